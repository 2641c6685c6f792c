"""The daemon as one of several workers: it reports to its supervisor instead of serving an admin
address, and obeys commands.

Invariants: a stop is obeyed once, however often it comes: a terminal or a service manager signals
the whole process group, and only the supervisor cuts a drain short; a worker never outlives its
supervisor by more than its drain.
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
from forwarder.telemetry.taps import TapRequest
from forwarder.workers.channel import Assignment, Command, Message, WorkersEnd, encode_snapshot

CANT_START: Final = 2
"""Exit code of a worker that can't start, as of any command that can't."""

REST: Final = 2
"""Checks, a second apart, that must find nothing to do before a worker without a listener ends."""

_log = structlog.get_logger(__name__)


def run_worker(settings: Settings, load: Load, assignment: Assignment) -> int:
    """Run until the supervisor, or its end, ends it; the exit code."""
    structlog.contextvars.bind_contextvars(worker=f"worker-{assignment.role.number}")

    def load_again() -> Settings:
        return assignment.applied(load())

    return run_tuned(
        lambda: live(
            assignment.applied(settings), build, load_again, assignment, ends_process=True
        ),
        settings.largest_fetch,
    )


async def live(
    settings: Settings,
    build_pipeline: Build,
    load: Load,
    assignment: Assignment,
    clock: Clock | None = None,
    *,
    ends_process: bool = False,
) -> int:
    """A worker from start to exit code; it reports to the supervisor why it can't start.
    Cancellation doesn't drain.
    """
    end = WorkersEnd(assignment.channel)
    try:
        await end.open()
        daemon = WorkerDaemon(
            settings,
            build_pipeline,
            load,
            assignment,
            end,
            clock=clock,
            ends_process=ends_process,
        )
        return await daemon.run()
    except ForwarderError as error:
        end.fail(error)
        return CANT_START
    finally:
        await end.close()


class WorkerDaemon(Daemon):
    """A worker from start to exit code."""

    def __init__(
        self,
        settings: Settings,
        build_pipeline: Build,
        load: Load,
        assignment: Assignment,
        end: WorkersEnd,
        *,
        clock: Clock | None = None,
        ends_process: bool = False,
    ) -> None:
        super().__init__(
            settings,
            build_pipeline,
            load,
            role=assignment.role,
            clock=clock,
            ends_process=ends_process,
        )
        self._end = end
        self._listens = assignment.role.listens
        self._orphaned = False
        self._rest: asyncio.Task[None] | None = None
        self._started = False

    def on_stop_signal(self, number: signal.Signals) -> None:
        """Begin the shutdown, once."""
        if not self._stop.is_set():
            super().on_stop_signal(number)

    def on_restart_signal(self) -> None:
        """Ignored: the supervisor obeys it, and sends a command."""

    def on_input_end(self) -> None:
        """Report it: the supervisor has all workers end."""
        self._end.send(Message.INPUT_ENDED, b"")

    async def _open(self) -> None:
        answers = {
            Command.PING: lambda _: b"!",
            Command.SHOW: lambda _: encode_snapshot(self.snapshot()),
            Command.FIND: self._find,
            Command.TAP: self._tap,
        }
        actions = {
            Command.STOP: self._stop.set,
            Command.MAKE_WAY: self._stop_at_once,
            Command.INTERRUPT: self.interrupt,
            Command.RELOAD: self.reload,
        }
        self._end.serve(answers, actions, self._on_orphaned)

    async def _close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.gather(self._rest, return_exceptions=True)
        if self._started:
            self._end.send(Message.ENDED, encode_snapshot(self.snapshot()))

    def _announce(self) -> None:
        self._started = True
        self._end.send(Message.STARTED, encode_snapshot(self.snapshot()))
        if not self._listens:
            self._rest = asyncio.create_task(
                self._end_at_rest(), name="wait for the end of the work"
            )

    def _reloaded(self, fixed: list[str]) -> None:
        _log.debug("configuration read again", needs_restart=fixed)

    async def _drain(self) -> None:
        if self._orphaned and self._settings.buffer.kind == "disk":
            # the next supervisor needs the directory, and delivers the backlog
            self._pipeline.stop_accepting()
            return
        if self._orphaned or not self._listens:
            self._settings = _without_delay(self._settings)
        await super()._drain()

    def _find(self, uuid: str) -> bytes:
        return msgspec.json.encode(list(self._pipeline.explain(WantedUuid.parse(uuid))))

    def _tap(self, request: str) -> bytes:
        return msgspec.json.encode(
            self._pipeline.tap(msgspec.json.decode(request, type=TapRequest))
        )

    def _stop_at_once(self) -> None:
        self._settings = _without_delay(self._settings)
        self._stop.set()

    def _on_orphaned(self) -> None:
        if not self._stop.is_set():
            _log.error("the supervisor is gone: this worker stops")
            self._orphaned = True
            self._stop.set()

    async def _end_at_rest(self) -> None:
        checks = 0
        while checks < REST:
            await self._clock.sleep(1.0)
            checks = checks + 1 if _is_at_rest(self._pipeline.snapshot()) else 0
        _log.info("nothing is left to deliver", path=str(self.directory))
        self._stop.set()


def _is_at_rest(snapshot: Snapshot) -> bool:
    return not snapshot.buffered and not snapshot.dead_letters_wanted


def _without_delay(settings: Settings) -> Settings:
    return replace(settings, shutdown=replace(settings.shutdown, delay=0.0))
