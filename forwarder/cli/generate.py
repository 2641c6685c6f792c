"""`forwarder generate`: realistic traffic at a steady rate, for load tests."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Admin, Config, TextOrJson, TextOutput, Yes, whole_number
from forwarder.cli.output import as_json
from forwarder.cli.signals import run_to_end, stop_on_signals
from forwarder.cli.target import LOOPBACK, ProjectKey, To, checked, choose_target, snapshot_of
from forwarder.core.proposals import proposed
from forwarder.telemetry.readable import plural

if TYPE_CHECKING:
    from forwarder.cli.target import EventTarget
    from forwarder.demo.load import LoadFigures, LoadGenerator, LoadPlan

LINE_EVERY: Final = 2.0
"""Seconds between two lines where there is no terminal."""
LIVE_EVERY: Final = 0.25
KEEPS_UP: Final = 0.95
"""The share of the wanted rate below which it is said that it wasn't reached."""


def generate(
    *,
    rate: Annotated[
        str, typer.Option("--rate", metavar="N|unlimited", help="Events a second.")
    ] = "1000",
    users: Annotated[
        int,
        typer.Option(
            "--users", metavar="N", parser=whole_number(10_000_000), help="Different people."
        ),
    ] = 500,
    duration: Annotated[
        str | None,
        typer.Option("--duration", metavar="TIME", help="How long to send. Default: until Ctrl-C."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            metavar="N",
            parser=whole_number(10**15),
            help="End after this many events.",
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", metavar="N", min=1, max=10_000, help="Events in a request, at most."
        ),
    ] = 100,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="Another story; the same seed makes the same events."
        ),
    ] = None,
    api_key: ProjectKey = None,
    to: To = None,
    admin: Admin = None,
    config: Config = None,
    yes: Yes = False,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Send realistic traffic at a steady rate, and report latencies and answers.

    The events are sessions of a shop's visitors, about 570 bytes each. A request that is answered
    503 is repeated after Retry-After. Ctrl-C ends the load and prints the sums. If the project that
    receives the events isn't on this machine, the command asks first.

    Exit codes: 0 every event was accepted; 1 some were not; 3 unreachable.

    Example: forwarder generate --rate 1000 --users 500 --duration 1m
    """
    from forwarder.cli.import_request import rate as parse_rate
    from forwarder.config.values import Duration
    from forwarder.demo.load import LoadPlan
    from forwarder.demo.traffic import SEED

    seconds = (
        None if duration is None else checked("--duration", Duration("1s", "30d").read, duration)
    )
    plan = LoadPlan(
        rate=parse_rate(rate),
        users=users,
        batch=batch,
        seconds=seconds,
        count=count,
        seed=SEED if seed is None else seed,
    )
    target = choose_target(to, api_key, admin, config)
    if not _agreed(target, yes=yes):
        raise typer.Exit(ExitCode.NO)
    raise typer.Exit(_run(plan, target, output))


def _agreed(target: EventTarget, *, yes: bool) -> bool:
    """Whether the events may go where they end up; asks if that isn't on this machine."""
    from forwarder.cli.output import confirm

    snapshot = snapshot_of(target.admin) if target.admin else None
    end = snapshot.upstream.url if snapshot else target.address
    local = target.local and (snapshot is None or urlsplit(end).hostname in LOOPBACK)
    return local or confirm(
        f"Generated events become data of a project at {end}. Send them?", yes=yes
    )


def _run(plan: LoadPlan, target: EventTarget, output: TextOutput) -> ExitCode:
    from forwarder.cli.output import report
    from forwarder.core.errors import ForwarderError
    from forwarder.demo.load import TargetUnreachable

    try:
        figures = run_to_end(_watch(plan, target, output))
    except TargetUnreachable as error:
        hint = f"Start a daemon with `{proposed('run')}`, or name another address with `--to URL`."
        report(
            ForwarderError(
                f"nothing accepts events at {target.address}: {error.message}", hint=hint
            )
        )
        return ExitCode.UNREACHABLE
    if output is TextOutput.JSON:
        sys.stdout.write(as_json({"to": target.address, **figures_as_json(figures)}) + "\n")
    else:
        sys.stdout.write("".join(f"{name:<10} {words}\n" for name, words in _sums(figures).items()))
    if plan.rate is not None and figures.seconds >= 1 and figures.rate < plan.rate * KEEPS_UP:
        sys.stderr.write(
            f"The rate of {plan.rate:,.0f} events/s was not reached: the receiver or this machine "
            "is slower.\n"
        )
    return ExitCode.DONE if figures.accepted == figures.sent else ExitCode.NO


async def _watch(plan: LoadPlan, target: EventTarget, output: TextOutput) -> LoadFigures:
    """Send the load and show how far it is: on standard error if the sums are for programs. Raises
    `TargetUnreachable`.
    """
    from forwarder.core.clock import SystemClock
    from forwarder.demo.load import LoadEndpoint, LoadGenerator

    endpoint = LoadEndpoint(f"{target.url}/batch/", target.api_key, target.socket, target.context)
    load = LoadGenerator(plan, endpoint, SystemClock())
    stop_on_signals(load.stop)
    wanted = "as fast as possible" if plan.rate is None else f"{plan.rate:,.0f} events/s"
    what = (
        f"{wanted}, {plural(plan.users, 'user')}, {plural(plan.request_events(), 'event')} a "
        "request"
    )
    to = sys.stderr if output is TextOutput.JSON else sys.stdout
    to.write(f"Sending to {target.address}: {what}\n")
    to.flush()
    task = asyncio.create_task(load.run())
    if not to.isatty():
        while not (await asyncio.wait({task}, timeout=LINE_EVERY))[0]:
            to.write(f"{_line(load)}\n")
            to.flush()
    else:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(
            console=Console(file=to, highlight=False), auto_refresh=False, transient=True
        ) as live:
            while not (await asyncio.wait({task}, timeout=LIVE_EVERY))[0]:
                live.update(Text(f"{_line(load)}  Ctrl-C prints the sums."), refresh=True)
    await task
    return load.figures


def _line(load: LoadGenerator) -> str:
    figures = load.figures
    answers = ", ".join(f"{what}: {count:,}" for what, count in sorted(figures.answers.items()))
    return (
        f"{figures.accepted:,} events accepted, {figures.rate:,.0f}/s, {_latency(figures)}, "
        f"answers {answers or 'none yet'}"
    )


def _latency(figures: LoadFigures) -> str:
    return f"p50 {_milliseconds(figures, 0.5)}, p99 {_milliseconds(figures, 0.99)}"


def _milliseconds(figures: LoadFigures, share: float) -> str:
    value = figures.latencies.percentile(share) * 1000
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def figures_as_json(figures: LoadFigures) -> dict[str, Any]:
    """The sums for programs: events, requests by their answers, seconds, bytes."""
    return {
        "sent": figures.sent,
        "accepted": figures.accepted,
        "rejected": figures.rejected,
        "unanswered": figures.unanswered,
        "seconds": round(figures.seconds, 3),
        "rate": round(figures.rate, 1),
        "bytes": figures.bytes,
        "requests": figures.requests,
        "answers": dict(sorted(figures.answers.items())),
        "latency_seconds": {
            f"p{share * 100:.0f}": round(figures.latencies.percentile(share), 6)
            for share in (0.5, 0.99)
        },
    }


def _sums(figures: LoadFigures) -> dict[str, str]:
    """The last lines."""
    lost = {"rejected": figures.rejected, "given up": figures.unanswered}
    rest = "".join(f", {count:,} {what}" for what, count in lost.items() if count)
    megabytes = figures.bytes / 1e6 / figures.seconds if figures.seconds else 0.0
    return {
        "sent": f"{figures.sent:,} events in {figures.seconds:.1f} s, {megabytes:.2f} MB/s",
        "accepted": f"{figures.accepted:,} events, {figures.rate:,.0f}/s{rest}",
        "answers": ", ".join(
            f"{what}: {count:,}" for what, count in sorted(figures.answers.items())
        )
        or "none",
        "latency": f"{_latency(figures)} of a request",
    }
