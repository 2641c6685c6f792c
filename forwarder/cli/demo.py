"""`forwarder demo`: everything at once, to see it work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forwarder.runtime.demo import Demo, Ports, Verdict

LINE_EVERY = 2.0
"""Seconds between two lines where there is no terminal."""

LIVE_EVERY = 0.25
DRAINING = "Draining; Ctrl-C again ends at once."
INTERRUPTED = 130
"""Exit code after a second signal."""


def demo(
    once: Annotated[bool, typer.Option("--once", help="Send the sample, wait until it is delivered, compare, and end.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65533, help="Where events go in; admin and sandbox take the next two. 0: any free ones.")
    ] = 8320,
) -> None:
    """Start a sandbox and a forwarder, and send a small shop's events through the official Python SDK.

    Ctrl-C drains and prints the books. With --once it exits with 0 only if every event arrived unchanged and the books balance.
    """
    import uvloop

    from forwarder.runtime.demo import choose_ports
    from forwarder.telemetry.logs import configure_logging

    configure_logging(level="warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        verdict = runner.run(_show(choose_ports(port), once=once))
    _print_verdict(verdict)
    raise typer.Exit(0 if verdict.good else 1)


async def _show(ports: Ports, *, once: bool) -> Verdict:
    from forwarder.runtime.demo import LIVE_PAUSE, VISITORS, open_demo

    async with open_demo(ports) as demo:
        _print_addresses(demo, ports)
        _obey_signals(demo)
        story = asyncio.create_task(_tell(demo, VISITORS, 0.0) if once else _tell(demo, None, LIVE_PAUSE))
        await _watch(demo, story)
        await story
        return await demo.verdict()


async def _tell(demo: Demo, visitors: int | None, pause: float) -> None:
    await demo.traffic(visitors, pause)
    await demo.settle()


def _obey_signals(demo: Demo) -> None:
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(INTERRUPTED)
        demo.stop_traffic()
        if not sys.stdout.isatty():
            sys.stdout.write(f"{DRAINING}\n")
            sys.stdout.flush()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


async def _watch(demo: Demo, story: asyncio.Task[None]) -> None:
    if not sys.stdout.isatty():
        await _lines(demo, story)
        return
    from rich.live import Live

    from forwarder.cli.output import console

    with Live(_screen(demo), console=console(), auto_refresh=False) as live:
        while not story.done():
            await asyncio.wait({story}, timeout=LIVE_EVERY)
            live.update(_screen(demo), refresh=True)


async def _lines(demo: Demo, story: asyncio.Task[None]) -> None:
    from forwarder.cli.output import flow

    while not story.done():
        await asyncio.wait({story}, timeout=LINE_EVERY)
        sys.stdout.write(f"sent {demo.sent:,}:{flow(demo.snapshot()).plain}\n")
        sys.stdout.flush()


def _screen(demo: Demo) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from forwarder.cli.output import flow, lane_table

    snapshot = demo.snapshot()
    what = DRAINING if demo.stopping else "Ctrl-C drains and prints the books."
    sent = Text(f"  SDK sent {demo.sent:,} events. {what}", style="dim")
    return Group(flow(snapshot), Text(), lane_table(snapshot.lanes, books=True), Text(), sent)


def _print_addresses(demo: Demo, ports: Ports) -> None:
    for name in ports.moved:
        sys.stdout.write(f"The usual port for {name} is taken; another one is used.\n")
    sys.stdout.write(
        f"events go in at  http://127.0.0.1:{ports.ingestion}  (Posthog('phc_…', host='http://127.0.0.1:{ports.ingestion}'))\n"
        f"status           http://{demo.admin_address}/status\n"
        f"sandbox          {demo.sandbox_url}/\n\n"
    )
    sys.stdout.flush()


def _print_verdict(verdict: Verdict) -> None:
    from forwarder.cli.output import console, lane_table
    from forwarder.telemetry.snapshot import balanced

    screen = console()
    screen.print(lane_table(verdict.snapshot.lanes, books=True))
    found = (
        f"{verdict.sent:,} events sent, {verdict.stored:,} in the sandbox, "
        f"{verdict.missing:,} missing, {verdict.conflicts:,} changed on the way"
    )
    if verdict.good:
        screen.print(f"Good: {found}; the books balance.", style="green")
        return
    books = "balance" if balanced(verdict.snapshot) else "don't balance"
    sys.stderr.write(f"Not good: {found}; the books {books}.\n  `forwarder status` of a running demo says what the upstream answers.\n")
