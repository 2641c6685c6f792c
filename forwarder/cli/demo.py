"""`forwarder demo` and `forwarder drill`: a sandbox and a forwarder at work, and the same through
simulated failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Port
from forwarder.cli.signals import run_to_end, stop_on_signals
from forwarder.core.proposals import proposed
from forwarder.telemetry.readable import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from forwarder.demo import demo as demos
    from forwarder.demo.drill.checks import Check, DrillVerdict, Step
    from forwarder.demo.kafka import KafkaDemo
    from forwarder.demo.logs import LogDemo

    AnyDemo = demos.Demo | KafkaDemo | LogDemo

LINE_EVERY: Final = 2.0
"""Seconds between two lines where there is no terminal."""
LIVE_EVERY: Final = 0.25
DRAINING: Final = "Draining; press Ctrl-C again to stop at once."


def demo(
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Send the sample, wait until it is delivered, compare, and end."
        ),
    ] = False,
    port: Port = 8320,
    kafka: Annotated[
        bool,
        typer.Option(
            "--kafka",
            help=(
                "Also start a Kafka broker, and send the events as records. Requires the "
                "extra kafka-demo."
            ),
        ),
    ] = False,
    logs: Annotated[
        bool,
        typer.Option("--logs", help="Follow an access log that rotates: page views become events."),
    ] = False,
) -> None:
    """Run a sandbox and a forwarder, and send sample events through them.

    The official Python SDK sends a small shop's events; with --kafka they are records of topics,
    with --logs lines of a web server's access log. Ctrl-C drains and prints the books. With --once,
    the exit code is 0 only if every event arrived unchanged and the books balance, else 1.

    Example: forwarder demo --once
    """
    from forwarder.demo.demo import choose_ports
    from forwarder.telemetry.logs import configure_logging

    if kafka and logs:
        raise typer.BadParameter(
            "--kafka and --logs can't be used together; run one demo at a time"
        )
    # With Kafka, one dead letter is part of the demo.
    configure_logging(level="error" if kafka else "warning")
    verdict = run_to_end(_show_demo(choose_ports(port), once=once, kafka=kafka, logs=logs))
    print_demo_verdict(verdict)
    raise typer.Exit(ExitCode.DONE if verdict.good else ExitCode.NO)


def drill(port: Port = 8320) -> None:
    """Simulate an outage, a kill -9 and a wrong key, and show that no event is lost.

    It takes about half a minute. The exit code is 0 only if every event arrived unchanged and the
    books balance, else 1 with what is missing.

    Example: forwarder drill --port 0
    """
    from forwarder.demo.demo import choose_ports

    verdict = run_to_end(_run_drill(choose_ports(port)))
    if verdict is None:
        sys.stderr.write(
            "Interrupted. The drill's processes have been stopped and its files removed.\n"
        )
        raise typer.Exit(ExitCode.INTERRUPTED)
    print_drill_verdict(verdict)
    raise typer.Exit(ExitCode.DONE if verdict.good else ExitCode.NO)


async def _show_demo(
    ports: demos.Ports, *, once: bool, kafka: bool, logs: bool
) -> demos.DemoVerdict:
    from forwarder.demo.demo import LIVE_PAUSE, VISITORS

    async with _open_demo(ports, kafka=kafka, logs=logs) as demo:
        # before the addresses are there: whoever reads them may press Ctrl-C
        stop_on_signals(partial(_stop_traffic, demo))
        _print_addresses(
            ports,
            (
                f"{demo.entrance}\nstatus            http://{demo.admin_address}/status\nsandbox  "
                f"         {demo.sandbox_url}/\n"
            ),
        )
        task = asyncio.create_task(
            _send(demo, VISITORS, 0.0) if once else _send(demo, None, LIVE_PAUSE)
        )
        await _watch(demo, task)
        await task
        return await demo.verdict()


async def _send(demo: AnyDemo, visitors: int | None, pause: float) -> None:
    await demo.traffic(visitors, pause)
    await demo.settle()


def _open_demo(
    ports: demos.Ports, *, kafka: bool, logs: bool
) -> AbstractAsyncContextManager[AnyDemo]:
    if logs:
        from forwarder.demo.logs import open_log_demo

        return open_log_demo(ports)
    if not kafka:
        from forwarder.demo.demo import open_demo

        return open_demo(ports)
    from forwarder.demo.kafka import open_kafka_demo

    sys.stdout.write("Starting a Kafka broker, which is downloaded the first time.\n")
    sys.stdout.flush()
    return open_kafka_demo(ports)


def _stop_traffic(demo: AnyDemo) -> None:
    demo.stop_traffic()
    if not sys.stdout.isatty():
        sys.stdout.write(f"{DRAINING}\n")
        sys.stdout.flush()


async def _watch(demo: AnyDemo, task: asyncio.Task[None]) -> None:
    """Show how far the demo is: a live screen on a terminal, lines elsewhere."""
    if not sys.stdout.isatty():
        from forwarder.cli.tables import flow

        while not task.done():
            await asyncio.wait({task}, timeout=LINE_EVERY)
            sys.stdout.write(f"sent {demo.sent:,}{demo.details()}:{flow(demo.snapshot()).plain}\n")
            sys.stdout.flush()
        return
    from rich.live import Live

    from forwarder.cli.tables import console

    with Live(_screen(demo), console=console(), auto_refresh=False) as live:
        while not task.done():
            await asyncio.wait({task}, timeout=LIVE_EVERY)
            live.update(_screen(demo), refresh=True)


def _screen(demo: AnyDemo) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from forwarder.cli.tables import flow, lane_table

    snapshot = demo.snapshot()
    what = DRAINING if demo.stopping else "Ctrl-C drains and prints the books."
    sent = Text(f"  Sent {plural(demo.sent, 'event')}{demo.details()}. {what}", style="dim")
    return Group(flow(snapshot), Text(), lane_table(snapshot.lanes, books=True), Text(), sent)


def _print_addresses(ports: demos.Ports, addresses: str) -> None:
    for name in ports.moved:
        sys.stdout.write(f"The default port for {name} is in use; another one is used.\n")
    sys.stdout.write(f"{addresses}\n")
    sys.stdout.flush()


def print_demo_verdict(verdict: demos.DemoVerdict) -> None:
    """Print the books, and one line that says what arrived; on standard error if that isn't all."""
    from forwarder.cli.tables import console, lane_table
    from forwarder.telemetry.snapshot import balanced

    screen = console()
    screen.print(lane_table(verdict.snapshot.lanes, books=True))
    summary = (
        f"{plural(verdict.sent, 'event')} sent, {verdict.stored:,} in the sandbox, "
        f"{verdict.missing:,} missing, {verdict.conflicts:,} changed in transit"
    )
    if verdict.unreadable:
        summary += (
            f", {verdict.unreadable:,} unreadable and {verdict.dead:,} among the dead letters"
        )
    if verdict.extra or verdict.extra_dead:
        dead = f", {verdict.extra_dead:,} dead-lettered" if verdict.extra_dead else ""
        summary += f"; beside them of yours {verdict.extra:,} delivered{dead}"
    if verdict.good:
        screen.print(f"Good: {summary}; the books balance.", style="green")
        return
    books = "balance" if balanced(verdict.snapshot) else "don't balance"
    sys.stderr.write(
        f"Not good: {summary}; the books {books}.\n"
        f"  `{proposed('status')}` of a running demo shows "
        "the upstream's answers.\n"
    )


async def _run_drill(ports: demos.Ports) -> DrillVerdict | None:
    """The verdict; None if a signal ended the drill."""
    from forwarder.demo.drill.drill import run_drill
    from forwarder.demo.drill.processes import DrillFailed

    task = asyncio.create_task(run_drill(ports, print_step()))
    _cancel_on_signals(task)
    base = "http://127.0.0.1"
    _print_addresses(
        ports,
        (
            f"forwarder  {base}:{ports.ingestion}, status {base}:{ports.admin}/status\nsandbox    "
            f"{base}:{ports.sandbox}/"
        ),
    )
    try:
        return await task
    except asyncio.CancelledError:
        return None
    except DrillFailed as error:
        from forwarder.cli.output import report

        report(error)
        raise typer.Exit(ExitCode.NO) from error


def _cancel_on_signals(task: asyncio.Task[DrillVerdict]) -> None:
    """Cancel the drill at the first signal; later ones are ignored, so that they don't interrupt
    the cleanup.
    """
    seen: list[bool] = []

    def end() -> None:
        if not seen:
            seen.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, end)


def print_step() -> Callable[[Step], None]:
    """Prints steps, numbered in the order in which they come."""
    from itertools import count

    from forwarder.cli.tables import console

    screen = console()
    numbers = count(1)

    def write(step: Step) -> None:
        screen.print(step_page(step, next(numbers)))
        sys.stdout.flush()

    return write


def step_page(step: Step, number: int) -> RenderableType:
    """What was done, what that shows, and the books."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from forwarder.cli.tables import lane_table

    def line(check: Check) -> Text:
        style = "green" if check.good else "bold red"
        return (
            Text("✓" if check.good else "✗", style=style)
            .append(f" {check.claim}: ", style="default")
            .append(check.seen)
        )

    head = Text(f"\n{number}. {step.title}", style="bold").append(
        f"  {step.seconds:.1f} s", style="not bold dim"
    )
    lines = [Text(step.did), *map(line, step.checks)]
    books = Padding(lane_table(step.lanes, books=True), (0, 0, 0, 2), expand=False)
    return Group(head, *(Padding(text, (0, 0, 0, 3), expand=False) for text in lines), books)


def print_drill_verdict(verdict: DrillVerdict) -> None:
    """Print one line if all is good; else what isn't, on standard error."""
    from forwarder.cli.tables import console

    if verdict.good:
        console().print(
            (
                f"\nGood: {len(verdict.sent):,} events sent, all of them in the sandbox, 0 "
                "missing, 0 changed in transit; the books balance."
            ),
            style="green",
        )
        return
    sys.stderr.write("Not good:\n" + "".join(f"  {line}\n" for line in verdict.problems()))
