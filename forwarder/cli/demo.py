"""`forwarder demo`: everything at once, to see it work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forwarder.demo.demo import Demo, DemoVerdict, Ports
    from forwarder.demo.kafka import KafkaDemo

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
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Start a Kafka broker too; the events are records of its topics. Needs the extra kafka-demo.")
    ] = False,
) -> None:
    """Start a sandbox and a forwarder, and send a small shop's events through the official Python SDK, or with --kafka through topics.

    Ctrl-C drains and prints the books. With --once it exits with 0 only if every event arrived unchanged and the books balance.
    """
    import uvloop

    from forwarder.demo.demo import choose_ports
    from forwarder.telemetry.logs import configure_logging

    configure_logging(level="error" if kafka else "warning")  # with Kafka one dead letter is part of the story
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        verdict = runner.run(_show(choose_ports(port), once=once, kafka=kafka))
    _print_verdict(verdict)
    raise typer.Exit(0 if verdict.good else 1)


async def _show(ports: Ports, *, once: bool, kafka: bool) -> DemoVerdict:
    from forwarder.demo.demo import LIVE_PAUSE, VISITORS

    async with _open(ports, kafka=kafka) as demo:
        _print_addresses(demo, ports)
        _obey_signals(demo)
        story = asyncio.create_task(_tell(demo, VISITORS, 0.0) if once else _tell(demo, None, LIVE_PAUSE))
        await _watch(demo, story)
        await story
        return await demo.verdict()


def _open(ports: Ports, *, kafka: bool) -> AbstractAsyncContextManager[Demo | KafkaDemo]:
    if not kafka:
        from forwarder.demo.demo import open_demo

        return open_demo(ports)
    from forwarder.demo.kafka import open_kafka_demo

    sys.stdout.write("Starting a Kafka broker; the first time it is fetched.\n")
    sys.stdout.flush()
    return open_kafka_demo(ports)


async def _tell(demo: Demo | KafkaDemo, visitors: int | None, pause: float) -> None:
    await demo.traffic(visitors, pause)
    await demo.settle()


def _obey_signals(demo: Demo | KafkaDemo) -> None:
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


async def _watch(demo: Demo | KafkaDemo, story: asyncio.Task[None]) -> None:
    if not sys.stdout.isatty():
        await _lines(demo, story)
        return
    from rich.live import Live

    from forwarder.cli.output import console

    with Live(_screen(demo), console=console(), auto_refresh=False) as live:
        while not story.done():
            await asyncio.wait({story}, timeout=LIVE_EVERY)
            live.update(_screen(demo), refresh=True)


async def _lines(demo: Demo | KafkaDemo, story: asyncio.Task[None]) -> None:
    from forwarder.cli.output import flow

    while not story.done():
        await asyncio.wait({story}, timeout=LINE_EVERY)
        sys.stdout.write(f"sent {demo.sent:,}{demo.details()}:{flow(demo.snapshot()).plain}\n")
        sys.stdout.flush()


def _screen(demo: Demo | KafkaDemo) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from forwarder.cli.output import flow, lane_table

    snapshot = demo.snapshot()
    what = DRAINING if demo.stopping else "Ctrl-C drains and prints the books."
    sent = Text(f"  Sent {demo.sent:,} events{demo.details()}. {what}", style="dim")
    return Group(flow(snapshot), Text(), lane_table(snapshot.lanes, books=True), Text(), sent)


def _print_addresses(demo: Demo | KafkaDemo, ports: Ports) -> None:
    for name in ports.moved:
        sys.stdout.write(f"The usual port for {name} is taken; another one is used.\n")
    sys.stdout.write(
        f"{demo.entrance}\n"
        f"status           http://{demo.admin_address}/status\n"
        f"sandbox          {demo.sandbox_url}/\n\n"
    )
    sys.stdout.flush()


def _print_verdict(verdict: DemoVerdict) -> None:
    from forwarder.cli.output import console, lane_table
    from forwarder.telemetry.snapshot import balanced

    screen = console()
    screen.print(lane_table(verdict.snapshot.lanes, books=True))
    found = (
        f"{verdict.sent:,} events sent, {verdict.stored:,} in the sandbox, "
        f"{verdict.missing:,} missing, {verdict.conflicts:,} changed on the way"
    )
    if verdict.unreadable:
        found += f", {verdict.unreadable:,} unreadable and {verdict.dead:,} among the dead letters"
    if verdict.good:
        screen.print(f"Good: {found}; the books balance.", style="green")
        return
    books = "balance" if balanced(verdict.snapshot) else "don't balance"
    sys.stderr.write(f"Not good: {found}; the books {books}.\n  `forwarder status` of a running demo says what the upstream answers.\n")
