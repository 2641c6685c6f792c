"""The demo: sandbox, forwarder and a little shop's traffic in one process.

Invariants: it is the product's own pipeline with its default settings, and the official SDK
unchanged; the verdict compares, uuid by uuid, with the events of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from forwarder.admin.server import AdminServer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock
from forwarder.core.ports import DeadLetter
from forwarder.daemon.pipeline import Pipeline, build
from forwarder.demo.traffic import Sdk, connect, play, story
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot, balanced

VISITORS: Final = 60
"""Of the short form: about 400 events."""

LIVE_PAUSE: Final = 0.1
"""Seconds between two events of the live form."""

SETTLE_SECONDS: Final = 30.0
_CHECK_EVERY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on 127.0.0.1. `moved` names those that differ from the
    preferred ones, which are in use.
    """

    ingestion: int
    admin: int
    sandbox: int
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The sandbox's events compared with those that were sent."""

    sent: int
    stored: int
    missing: int
    conflicts: int
    snapshot: Snapshot
    unreadable: int = 0
    """Records that were sent and aren't events: they are expected as dead letters."""
    extra: int = 0
    """Events that somebody else sent while it ran: they are no part of `stored`."""

    @property
    def dead(self) -> int:
        """Dead letters."""
        return sum(lane.total_dead for lane in self.snapshot.lanes)

    @property
    def extra_dead(self) -> int:
        """Dead letters of what somebody else sent: an event of the demo that became
        one is missing.
        """
        return max(0, self.dead - self.unreadable)

    @property
    def good(self) -> bool:
        """Whether all events of the demo arrived unchanged, what is no event is a dead letter, and
        the books balance.
        """
        arrived = not self.missing and not self.conflicts and self.stored == self.sent
        return arrived and self.dead >= self.unreadable and balanced(self.snapshot)


@dataclass(slots=True)
class Forwarder:
    """The forwarder of a demo."""

    pipeline: Pipeline
    admin: AdminServer
    left: list[DeadLetter] = field(default_factory=list)
    """What it could not deliver before its end."""


class Demo:
    """A running demo; `open_demo` makes one."""

    def __init__(
        self, sandbox: Sandbox, forwarder: Forwarder, host: str, client: Sdk, clock: Clock
    ) -> None:
        self.sandbox_url = sandbox.url
        self.admin_address = forwarder.admin.address
        self._sandbox = sandbox
        self._forwarder = forwarder
        self._host = host
        self._client = client
        self._clock = clock
        self._sent: set[str] = set()
        self._stop = threading.Event()

    @property
    def sent(self) -> int:
        """Events handed to the SDK."""
        return len(self._sent)

    @property
    def left(self) -> list[DeadLetter]:
        """What was not delivered before the end."""
        return self._forwarder.left

    @property
    def entrance(self) -> str:
        """A line that says where to send events."""
        return f"send events to    {self._host}  (Posthog('phc_…', host='{self._host}'))"

    def details(self) -> str:
        """More about what was sent, for the progress line."""
        return ""

    @property
    def stopping(self) -> bool:
        """Whether the traffic has to stop."""
        return self._stop.is_set()

    def snapshot(self) -> Snapshot:
        """The forwarder's state now."""
        return self._forwarder.pipeline.snapshot()

    async def traffic(self, visitors: int | None, pause: float = 0.0) -> None:
        """Send the story's events, then flush the SDK. Cancelled, or after `stop_traffic`, it ends
        at the next event, and flushes too.
        """
        with ThreadPoolExecutor(1, "demo-traffic") as executor:
            thread = asyncio.get_running_loop().run_in_executor(
                executor, self._play, visitors, pause
            )
            try:
                await asyncio.shield(thread)
            except asyncio.CancelledError:
                self.stop_traffic()
                await thread
                raise

    def stop_traffic(self) -> None:
        """Send nothing more."""
        self._stop.set()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until nothing is buffered, for at most `seconds`; whether that happened."""
        return await settled(
            self._clock, lambda: not any(lane.buffered for lane in self.snapshot().lanes), seconds
        )

    async def verdict(self) -> DemoVerdict:
        """Compare what was sent with what the sandbox holds. An event of the demo that is there
        under another uuid, too, was changed.
        """
        events = {event.uuid: event for event in await self._sandbox.events()}
        own = [event for uuid, event in events.items() if uuid in self._sent]
        sent = {(event.event, event.distinct_id, event.timestamp) for event in own}
        others = [event for uuid, event in events.items() if uuid not in self._sent]
        doubles = sum((event.event, event.distinct_id, event.timestamp) in sent for event in others)
        changed = (
            sum(conflict.first.uuid in self._sent for conflict in await self._sandbox.conflicts())
            + doubles
        )
        return DemoVerdict(
            self.sent,
            len(own),
            self.sent - len(own),
            changed,
            self.snapshot(),
            extra=len(others) - doubles,
        )

    def _play(self, visitors: int | None, pause: float) -> None:
        try:
            play(self._client, story(visitors), self._sent, self._stop, pause)
        finally:
            self._client.shutdown()


@contextlib.asynccontextmanager
async def open_demo(
    ports: Ports, connect_sdk: Callable[[str], Sdk] = connect
) -> AsyncIterator[Demo]:
    """Start sandbox, forwarder and admin server; at the end drain, and close all. Raises
    `ConfigurationError` without the SDK.
    """
    ingestion = f"127.0.0.1:{ports.ingestion}"
    host = f"http://{ingestion}"
    client = connect_sdk(host)
    # never beside those of a real forwarder
    with tempfile.TemporaryDirectory(prefix="forwarder-demo-") as letters:
        async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox:
            settings = _settings(sandbox.url, ingestion, letters)
            async with running(settings, f"127.0.0.1:{ports.admin}") as forwarder:
                yield Demo(sandbox, forwarder, host, client, SystemClock())


def _settings(upstream: str, ingestion: str, letters: str) -> Settings:
    """The default settings, except for addresses and the directory of dead letters."""
    return Settings.parse(
        {
            "upstream": {"url": upstream},
            "sources": {"http": {"listen": ingestion}},
            "dead_letters": {"path": letters},
        }
    )


@contextlib.asynccontextmanager
async def running(settings: Settings, admin_listen: str) -> AsyncIterator[Forwarder]:
    """A started forwarder, drained and closed at the end."""
    pipeline = build(settings, SystemClock())
    forwarder = Forwarder(pipeline, AdminServer(pipeline.snapshot, pipeline.explain))
    await forwarder.admin.start(admin_listen)
    try:
        await pipeline.start()
        yield forwarder
        pipeline.stop_accepting()
        await pipeline.drain(settings.shutdown.drain_timeout)
    finally:
        forwarder.left = await pipeline.close()
        await forwarder.admin.close()


async def settled(clock: Clock, done: Callable[[], bool], seconds: float) -> bool:
    """Wait until `done`, for at most `seconds`; whether that happened."""
    end = clock.monotonic() + seconds
    while not done():
        if clock.monotonic() >= end:
            return False
        await clock.sleep(_CHECK_EVERY)
    return True


def choose_ports(first: int) -> Ports:
    """`first` and the two ports after it, as far as they are free; others are any free ports. 0:
    any free ports.
    """
    wanted = {
        "ingestion": first,
        "admin": first + 1 if first else 0,
        "sandbox": first + 2 if first else 0,
    }
    with contextlib.ExitStack() as held:
        ports = {name: _free(port, held) for name, port in wanted.items()}
    moved = tuple(name for name, port in wanted.items() if port and ports[name] != port)
    return Ports(ports["ingestion"], ports["admin"], ports["sandbox"], moved)


def _free(port: int, held: contextlib.ExitStack) -> int:
    for candidate in (port, 0):
        holder = held.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", candidate))
            return int(holder.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")
