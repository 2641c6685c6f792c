"""The daemon as one of several workers: its supervisor is told in place of an admin server, and commands in place of signals.

Invariants: a stop is obeyed once, however often it is said: who stops a whole group of processes, as a terminal or a service manager does,
means the supervisor's as well, and only that one cuts a drain short; a worker never outlives its supervisor by more than its drain.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from forwarder.admin.event_lookup import WantedUuid
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ForwarderError
from forwarder.daemon.daemon import Build, Daemon, Load, run_tuned
from forwarder.daemon.pipeline import build
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.channel import Assignment, Command, Message, WorkersEnd, written

CANT_START: Final = 2
"""Exit code of a worker that can't start, as of any command that can't."""

REST: Final = 2
"""Looks, a second apart, that must find nothing to do before a worker without a listener ends."""

_log = structlog.get_logger(__name__)


def run_worker(settings: Settings, load: Load, assignment: Assignment) -> int:
    """Run until the supervisor, or its end, ends it; the exit code."""
    structlog.contextvars.bind_contextvars(worker=f"worker-{assignment.role.number}")

    def load_again() -> Settings:
        return assignment.applied(load())

    return run_tuned(lambda: live(assignment.applied(settings), build, load_again, assignment))


async def live(settings: Settings, build_pipeline: Build, load: Load, assignment: Assignment, clock: Clock | None = None) -> int:
    """One life of a worker, from start to exit code; what keeps it from starting is told to the supervisor. Cancellation doesn't drain."""
    end = WorkersEnd(assignment.channel)
    try:
        await end.open()
        return await Worker(settings, build_pipeline, load, assignment, end, clock=clock).run()
    except ForwarderError as error:
        end.fail(error)
        return CANT_START
    finally:
        await end.close()


class Worker(Daemon):
    """One life of a worker."""

    def __init__(
        self,
        settings: Settings,
        build_pipeline: Build,
        load: Load,
        assignment: Assignment,
        end: WorkersEnd,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(settings, build_pipeline, load, role=assignment.role, clock=clock)
        self._end = end
        self._listens = assignment.role.listens
        self._alone = False
        self._rest: asyncio.Task[None] | None = None
        self._started = False

    def on_stop_signal(self, number: signal.Signals) -> None:
        """Begin the shutdown, once."""
        if not self._stop.is_set():
            super().on_stop_signal(number)

    def on_restart_signal(self) -> None:
        """Nothing: the supervisor obeys it, and says what to do."""

    async def _open(self) -> None:
        answers = {Command.SHOW: lambda _: written(self.snapshot()), Command.FIND: self._find}
        deeds = {Command.STOP: self._stop.set, Command.MAKE_WAY: self._make_way, Command.RELOAD: self.reload}
        self._end.obey(answers, deeds, self._on_alone)

    async def _close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.gather(self._rest, return_exceptions=True)
        if self._started:
            self._end.say(Message.ENDED, written(self.snapshot()))

    def _announce(self) -> None:
        self._started = True
        self._end.say(Message.STARTED, written(self.snapshot()))
        if not self._listens:
            self._rest = asyncio.create_task(self._end_at_rest(), name="look for the end of the work")

    def _reloaded(self, fixed: list[str]) -> None:
        _log.debug("configuration read again", needs_restart=fixed)

    async def _drain(self) -> None:
        if self._alone and self._settings.buffer.kind == "disk":
            self._pipeline.stop_accepting()  # the backlog waits for the next supervisor, who needs the directory
            return
        if self._alone or not self._listens:
            self._settings = _without_delay(self._settings)
        await super()._drain()

    def _find(self, uuid: str) -> bytes:
        return msgspec.json.encode(list(self._pipeline.explain(WantedUuid.parse(uuid))))

    def _make_way(self) -> None:
        self._settings = _without_delay(self._settings)
        self._stop.set()

    def _on_alone(self) -> None:
        if not self._stop.is_set():
            _log.error("the supervisor is gone: this worker ends")
            self._alone = True
            self._stop.set()

    async def _end_at_rest(self) -> None:
        looks = 0
        while looks < REST:
            await self._clock.sleep(1.0)
            looks = looks + 1 if _is_at_rest(self._pipeline.snapshot()) else 0
        _log.info("nothing waits any more", path=str(self.directory))
        self._stop.set()


def _is_at_rest(snapshot: Snapshot) -> bool:
    return not snapshot.buffered and not snapshot.dead_letters_wanted


def _without_delay(settings: Settings) -> Settings:
    return replace(settings, shutdown=replace(settings.shutdown, delay=0.0))
