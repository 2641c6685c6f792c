"""The daemon: starts the pipeline, obeys signals, drains, and says what was left behind.

Invariants: the admin server is the first to listen and the last to close, so that a start or a drain can be watched; from the first
SIGTERM or SIGINT on `/readyz` fails, while events are still taken for `shutdown.delay`; a second one ends the process at once. The
exit code is 0 only if nothing that was taken is left undelivered in memory.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog
import uvloop

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.ports import DeadLetter, Reason
from forwarder.runtime.admin import AdminServer
from forwarder.runtime.allocator import fix_thresholds
from forwarder.runtime.pipeline import build
from forwarder.telemetry.labels import LaneLabels
from forwarder.telemetry.readable import size
from forwarder.telemetry.snapshot import Snapshot, State

INTERRUPTED: Final = 130
"""Exit code after a second signal, SIGINT and SIGTERM alike (surface: Exit codes)."""

LEFT_BEHIND: Final = 1

COLLECT_EVERY: Final = 50_000
"""New objects between two looks for garbage."""

OWN_KEYS: Final = ("log.", "shutdown.")
"""Sections that take effect on a reload without the pipeline's help: loading applies the first, the shutdown reads the second."""

_log = structlog.get_logger(__name__)


class Runnable(Protocol):
    """What the daemon asks of a pipeline."""

    async def start(self) -> None:
        """Take and deliver. Raises `ForwarderError` or `OSError` when it can't listen."""

    def snapshot(self) -> Snapshot:
        """The state now."""

    def reload(self, settings: Settings) -> list[str]:
        """Use other settings from now on; the keys that need a restart."""

    def stop_taking(self) -> None:
        """Refuse new events."""

    async def drain(self, seconds: float) -> bool:
        """Deliver what is buffered, for at most `seconds`; whether all of it was."""

    async def close(self) -> list[DeadLetter]:
        """Stop everything; the events that were left undelivered."""


Build = Callable[[Settings, Clock], Runnable]
Load = Callable[[], Settings]


def run_daemon(settings: Settings, load: Load | None = None) -> int:
    """Run until a signal ends it; the exit code. `load` reads the configuration again on SIGHUP.

    Raises `ForwarderError` when it can't start: an address in use, an unusable certificate.
    """
    fix_thresholds()
    _spare_the_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Daemon(settings, build, load).run())


def _spare_the_collector() -> None:
    """Look for garbage in cycles seldom: events make none, and each look would visit everything that waits in the buffer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 50, 100)


class Daemon:
    """One life of the process, from start to exit code."""

    def __init__(
        self,
        settings: Settings,
        build_pipeline: Build,
        load: Load | None = None,
        *,
        clock: Clock | None = None,
        exit_now: Callable[[int], None] = os._exit,
    ) -> None:
        self._settings = settings
        self._load = load
        self._clock = clock or SystemClock()
        self._exit_now = exit_now
        self._pipeline = build_pipeline(settings, self._clock)
        self._admin = AdminServer(self.snapshot)
        self._stop = asyncio.Event()

    @property
    def admin_address(self) -> str:
        """Where the admin server listens."""
        return self._admin.address

    def snapshot(self) -> Snapshot:
        """The pipeline's snapshot; once a stop was asked for, it is draining and not ready."""
        snapshot = self._pipeline.snapshot()
        if not self._stop.is_set():
            return snapshot
        return replace(snapshot, state=State.DRAINING, ready=False, not_ready=("draining: this process is about to end",))

    async def run(self) -> int:
        """Start, wait for a signal, stop; the exit code. Cancellation closes what is open without draining."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            await self._admin.start(self._settings.admin.listen)
            return await self._serve()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
            await self._admin.close()

    def on_stop_signal(self, number: signal.Signals) -> None:
        """Begin the shutdown; the second time, end the process at once."""
        if not self._stop.is_set():
            _log.info("stopping", signal=number.name, takes_for_seconds=self._settings.shutdown.delay)
            self._stop.set()
            return
        held = sum(lane.buffered for lane in self._pipeline.snapshot().lanes)
        _log.error("interrupted", signal=number.name, events_lost=held, exit_code=INTERRUPTED)
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit_now(INTERRUPTED)

    def reload(self) -> None:
        """Read the configuration again; what is wrong with it, or can't change live, is logged and changes nothing."""
        if self._load is None:
            _log.warning("there is no configuration to read again")
            return
        try:
            settings = self._load()
        except ForwarderError as error:
            _log.error("the configuration can't be read again; the one in use stays", why=error.message, hint=error.hint)
            return
        fixed = [key for key in self._pipeline.reload(settings) if not key.startswith(OWN_KEYS)]
        self._settings = settings
        _log.info("configuration read again", needs_restart=fixed)

    async def _serve(self) -> int:
        left: list[DeadLetter] = []
        try:
            await self._start()
            await self._stop.wait()
            await self._drain()
        finally:
            left = await self._pipeline.close()
            if left:
                _name_what_is_left(left)
        _log.info("stopped", undelivered=len(left))
        return LEFT_BEHIND if left else 0

    async def _start(self) -> None:
        try:
            await self._pipeline.start()
        except OSError as error:
            raise ConfigurationError(f"can't start: {error.strerror or error}", hint="`forwarder config check` says more.") from error
        self._announce()

    async def _drain(self) -> None:
        shutdown = self._settings.shutdown
        await self._clock.sleep(shutdown.delay)
        self._pipeline.stop_taking()
        _log.info("draining", seconds=shutdown.drain_timeout)
        await self._pipeline.drain(shutdown.drain_timeout)

    def _announce(self) -> None:
        snapshot = self._pipeline.snapshot()
        _log.info(
            "listening",
            ingestion=list(snapshot.addresses) or [self._settings.sources.http.listen],
            admin=self.admin_address,
            upstream=snapshot.upstream.url,
        )
        _log.warning(
            "events wait in memory",
            meaning=f"Events wait in memory, at most {size(snapshot.buffer_limit_bytes)}: what the upstream hasn't taken is lost "
            f"if this process is killed, and when it stops after {self._settings.shutdown.drain_timeout:g} s of draining.",
            keys={"kind": "buffer.kind", "size": "buffer.max_bytes", "drain": "shutdown.drain_timeout"},
        )


def _name_what_is_left(left: Sequence[DeadLetter]) -> None:
    """Say what was taken and not delivered."""
    labels = LaneLabels()
    counts = Counter(labels.label(letter.lane) for letter in left)
    oldest = min(letter.at for letter in left)
    _log.error(
        "events were left behind",
        undelivered=len(left),
        lanes=dict(counts),
        oldest=datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds"),
        reason=Reason.UNDELIVERED_AT_EXIT,
        meaning="These events became dead letters. Dead letters are kept in memory in this version: they end with this process.",
        hint="Give the drain more time with `shutdown.drain_timeout`, and see why the upstream didn't take them.",
    )
