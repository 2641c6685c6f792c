"""The daemon: starts the pipeline, obeys signals, drains, and reports in the log how it starts and
ends.

Invariants: the admin server is the first to listen and the last to close, so that a start or a
drain can be watched; from the first SIGTERM or SIGINT on `/readyz` fails, while events are still
accepted for `shutdown.delay`; a second one, a second later at the earliest, cuts the drain short:
what memory holds becomes dead letters at once. The exit code is 0 only if no accepted event is left
undelivered in memory; the events of a disk buffer stay for the next start.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import uvloop

from forwarder.admin.event_lookup import Sighting, WantedUuid
from forwarder.admin.server import AdminServer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock, Timer
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.ports import DeadLetter, Reason
from forwarder.core.proposals import proposed
from forwarder.core.stop_requests import STOP_SIGNALS, StopRequests, remove_handlers
from forwarder.daemon.allocator import fix_thresholds
from forwarder.daemon.inheritance import NOTHING, InheritedDescriptors
from forwarder.daemon.memory import memory_risks
from forwarder.daemon.pipeline import KeptDescriptors, build
from forwarder.daemon.restart import SIGNALS, InPlaceRestart, PendingRestart, unblock_signals
from forwarder.daemon.roles import ALONE, Role
from forwarder.storage.directory import LOG, worker_directories, worker_directory
from forwarder.telemetry.labels import LaneLabels
from forwarder.telemetry.readable import plural, size
from forwarder.telemetry.snapshot import Snapshot, State
from forwarder.telemetry.taps import TapBatch, TapRequest

INTERRUPTED: Final = 130
"""Exit code after a second signal, SIGINT and SIGTERM alike (surface: Exit codes)."""

INTERRUPT_SECONDS: Final = 10.0
"""How long writing dead letters may take after a second signal."""

LEFT_BEHIND: Final = 1

COLLECT_EVERY: Final = 50_000
"""New objects between two garbage collections."""

COLLECT_FIRST: Final = 1.0
"""Seconds after its start when the event loop looks for garbage among what the start left: by then
it listens.
"""

Load = Callable[[], Settings]

_log = structlog.get_logger(__name__)


def log_interrupted(number: signal.Signals, events: int) -> None:
    """Log that a second signal ends the drain, and how many events are buffered."""
    _log.error("interrupted", signal=number.name, exit_code=INTERRUPTED, events_waiting=events)


def log_ended_at_once(settings: Settings, why: str, events: int) -> None:
    """Log that the process ends without writing anything more, and what happens to the events in
    the buffer.
    """
    fate = {"events_waiting": events} if settings.buffer.kind == "disk" else {"events_lost": events}
    _log.error("ended at once", why=why, exit_code=INTERRUPTED, **fate)


def too_slow(seconds: float) -> str:
    """Why a process is ended that was interrupted so long ago."""
    return f"what is buffered wasn't saved within {seconds:g} s of the second signal"


def third(number: signal.Signals) -> str:
    """Why a process is ended while it saves what is buffered."""
    return f"a third signal, {number.name}, came before what is buffered was saved"


def read_again(load: Load | None) -> Settings | None:
    """The configuration as it is now; None, with the reason in the log, if it can't be read or
    there is none.
    """
    if load is None:
        _log.warning("there is no configuration to read again")
        return None
    try:
        return load()
    except ForwarderError as error:
        _log.error(
            "the configuration can't be read again; the one in use stays",
            why=error.message,
            hint=error.hint,
        )
        return None


class Runnable(Protocol):
    """What the daemon needs of a pipeline."""

    async def start(self) -> None:
        """Accept and deliver. Raises `ForwarderError` or `OSError` when it can't listen."""

    def snapshot(self) -> Snapshot:
        """The state now."""

    def explain(self, wanted: WantedUuid) -> Sequence[Sighting]:
        """Where an event is, as far as it is in memory."""

    def tap(self, request: TapRequest) -> TapBatch:
        """What a tap has collected."""

    def reload(self, settings: Settings) -> list[str]:
        """Use other settings from now on; returns the keys that need a restart."""

    def on_input_end(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when standard input, if that is read, has ended
        and all of it is settled.
        """

    def keep_descriptors(self) -> KeptDescriptors:
        """Have the listening sockets and the locks stay open after `close`."""

    def stop_accepting(self) -> None:
        """Reject new events."""

    async def shut_down(self, seconds: float) -> None:
        """Answer requests in progress, stop listening, and deliver, for at most
        `seconds` in all.
        """

    async def close(self) -> list[DeadLetter]:
        """Stop everything; returns the undelivered events."""


Build = Callable[[Settings, Clock, Role], Runnable]


def run_daemon(
    settings: Settings,
    load: Load | None = None,
    restart: InPlaceRestart | None = None,
    inherited: InheritedDescriptors = NOTHING,
) -> int:
    """Run until a signal ends it, or the end of standard input, if that is read; the exit code.

    `load` reads the configuration again on SIGHUP, `restart` is for SIGUSR2.
    Raises `ForwarderError` when it can't start: an address in use, an unusable certificate.
    """
    daemon: Daemon | None = None

    async def main() -> int:
        nonlocal daemon
        daemon = Daemon(
            settings, build, load, restart=restart, inherited=inherited, ends_process=True
        )
        return await daemon.run()

    code = run_tuned(main, settings.largest_fetch)
    return daemon.restarting.replace(code) if daemon is not None else code


def run_tuned(main: Callable[[], Coroutine[Any, Any, int]], recurring: int = 0) -> int:
    """Run `main` on the fast event loop, with the C library and the garbage collector tuned for
    it; `recurring`: see `fix_thresholds`.
    """
    fix_thresholds(recurring)
    _collect_seldom()

    async def with_first_collection() -> int:
        asyncio.get_running_loop().call_later(COLLECT_FIRST, _collect_what_the_start_left)
        return await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(with_first_collection())


def _collect_seldom() -> None:
    """Collect garbage seldom: events form no cycles, and each collection would visit everything in
    the buffer. Bodies are counted beside (`core/garbage.py`).
    """
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 50, 100)
    gc.enable()


def _collect_what_the_start_left() -> None:
    """What is alive then, such as modules, stays: no later collection visits it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Daemon:
    """The process from start to exit code."""

    def __init__(
        self,
        settings: Settings,
        build_pipeline: Build,
        load: Load | None = None,
        *,
        role: Role = ALONE,
        clock: Clock | None = None,
        exit_now: Callable[[int], None] = os._exit,
        restart: InPlaceRestart | None = None,
        inherited: InheritedDescriptors = NOTHING,
        ends_process: bool = False,
    ) -> None:
        """`restart`: how SIGUSR2 restarts it in place; `inherited`: what it uses in place of the
        configured addresses, and its locks. `ends_process`: whether the process ends with it.
        """
        self._ends_process = ends_process
        self._inherited = inherited = inherited.fitting(settings)
        if inherited is not NOTHING:
            own = bool(inherited.listen)
            role = replace(
                role, descriptors=inherited.sockets, removes_socket=own, locks=inherited.locks
            )
        self._settings = settings
        self._load = load
        self._clock = clock or SystemClock()
        self._exit_now = exit_now
        self._pipeline = build_pipeline(settings, self._clock, role)
        self._pipeline.on_input_end(self.on_input_end)
        self._admin = AdminServer(self.snapshot, self._pipeline.explain, self._pipeline.tap)
        self._addresses = settings.sources.http.listen, settings.admin.listen
        self._stop = asyncio.Event()
        self._requests = StopRequests(self._clock.monotonic)
        self._interrupted = asyncio.Event()
        self._interruption: Timer | None = None
        self.restarting = PendingRestart(restart, self._stop)
        only = settings.destinations[0] if len(settings.destinations) == 1 else None
        self.directory = (
            settings.buffer.path
            if only is None
            else worker_directory(settings.buffer.path, role.number, only)
        )
        """Where a disk buffer's files are; of several destinations the
        directory that theirs are in.
        """

    @property
    def admin_address(self) -> str:
        """Where the admin server listens."""
        return self._admin.address

    def snapshot(self) -> Snapshot:
        """The pipeline's snapshot; once a stop was asked for, it is draining and not ready."""
        snapshot = self._pipeline.snapshot()
        if not self._stop.is_set() or self.restarting.decided:
            return snapshot
        return replace(
            snapshot,
            state=State.DRAINING,
            ready=False,
            not_ready=("draining: this process is about to end",),
        )

    async def run(self) -> int:
        """Start, wait for a signal, stop; the exit code. Cancellation closes what
        is open without draining.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        loop.add_signal_handler(signal.SIGUSR2, self.on_restart_signal)
        unblock_signals()
        self._inherited.announce()
        try:
            await self._open()
            return await self._serve()
        finally:
            await self._close()
            await self.restarting.close()
            ends = self._ends_process and not self.restarting.decided
            remove_handlers(loop, SIGNALS, ends=ends)

    def on_restart_signal(self) -> None:
        """Restart in place, if the new program accepts the configuration."""
        self.restarting.request()

    def on_stop_signal(self, number: signal.Signals) -> None:
        """Begin the shutdown; the second time, end the drain; the third time, end the process at
        once. Signals within a second are one.
        """
        request = self._requests.count()
        if request == 1:
            self.restarting.withdraw()
            _log.info(
                "stopping", signal=number.name, accepts_for_seconds=self._settings.shutdown.delay
            )
            self._stop.set()
        elif request == 2:
            log_interrupted(number, self._pipeline.snapshot().buffered)
            self.interrupt()
        elif request:
            self._end_at_once(third(number))

    def interrupt(self) -> None:
        """End the drain: what memory holds becomes dead letters now. Should that take too long,
        the process ends without.
        """
        self._stop.set()
        self._interrupted.set()
        if self._interruption is None:
            self._interruption = self._clock.call_later(
                INTERRUPT_SECONDS, lambda: self._end_at_once(too_slow(INTERRUPT_SECONDS))
            )

    def _end_at_once(self, why: str) -> None:
        log_ended_at_once(self._settings, why, self._pipeline.snapshot().buffered)
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit_now(INTERRUPTED)

    def on_input_end(self) -> None:
        """Begin the shutdown: standard input has ended, and all of it is settled."""
        if not self._stop.is_set():
            _log.info("stopping: standard input has ended")
            self._stop.set()

    def reload(self) -> None:
        """Read the configuration again; what is wrong with it, or can't change live, is logged and
        changes nothing.
        """
        settings = read_again(self._load)
        if settings is None:
            return
        fixed = self._pipeline.reload(settings)
        self._settings = settings
        self._reloaded(fixed)

    async def _serve(self) -> int:
        left: list[DeadLetter] = []
        try:
            await self._start()
            await self._stop.wait()
            await self._drain_until_interrupted()
        finally:
            left = await self._pipeline.close()
            if self._interruption is not None:
                self._interruption.cancel()
            if left:
                log_undelivered(left, self._pipeline.snapshot().dead_letters_path)
        waiting = 0 if left else self._pipeline.snapshot().buffered
        if waiting:
            log_buffered(self._pipeline.snapshot(), self.directory)
        _log.info("stopped", undelivered=len(left), waiting=waiting)
        if self._interrupted.is_set():
            return INTERRUPTED
        return LEFT_BEHIND if left else 0

    async def _drain_until_interrupted(self) -> None:
        drain = asyncio.create_task(self._drain(), name="drain")
        interrupted = asyncio.create_task(self._interrupted.wait(), name="wait for a second signal")
        try:
            await asyncio.wait({drain, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drain.cancel()
            interrupted.cancel()
            await asyncio.gather(drain, interrupted, return_exceptions=True)
        if not drain.cancelled():
            drain.result()

    async def _start(self) -> None:
        try:
            await self._pipeline.start()
        except OSError as error:
            raise ConfigurationError(
                f"can't start: {error_text(error)}",
                hint=f"Run `{proposed('config check')}` for details.",
            ) from error
        self._announce()

    async def _drain(self) -> None:
        shutdown = self._settings.shutdown
        if self.restarting.decided:
            self.restarting.kept = self._keep()
        else:
            await self._clock.sleep(shutdown.delay)
        _log.info("draining", seconds=shutdown.drain_timeout)
        await self._pipeline.shut_down(shutdown.drain_timeout)

    def _keep(self) -> InheritedDescriptors:
        """Have the sockets and locks stay open for the new program."""
        descriptors = self._pipeline.keep_descriptors()
        before = self._inherited
        return InheritedDescriptors(
            descriptors.sockets,
            self._admin.keep(),
            descriptors.locks,
            listen=before.listen if before.sockets else self._addresses[0],
            admin_listen=before.admin_listen if before.admin else self._addresses[1],
        )

    def _reloaded(self, fixed: list[str]) -> None:
        """Log that the configuration was read again."""
        _log.info("configuration read again", needs_restart=fixed)

    def _announce(self) -> None:
        """Log that it runs."""
        snapshot = self._pipeline.snapshot()
        announce_addresses(snapshot, self._settings.sources.http.listen, self.admin_address)
        announce_buffer(self._settings, snapshot, self.directory)

    async def _open(self) -> None:
        """Make the state visible, before the pipeline starts."""
        removes_file = bool(self._inherited.admin_listen)
        admin = self._settings.admin
        await self._admin.start(
            admin.listen,
            admin.hosts,
            self._inherited.admin,
            removes_file=removes_file,
            tap=admin.tap,
        )

    async def _close(self) -> None:
        """End what `_open` began."""
        await self._admin.close()


def announce_addresses(snapshot: Snapshot, listen: str, admin: str) -> None:
    """Log where it listens, and where it delivers to. `listen`: what to name as long as no worker
    has said where it does.
    """
    _log.info(
        "listening",
        ingestion=list(snapshot.addresses) or [listen],
        admin=admin,
        upstream={
            destination.name: destination.upstream.url for destination in snapshot.destinations
        }
        or snapshot.upstream.url,
        **({"workers": len(snapshot.workers)} if snapshot.workers else {}),
    )


def announce_buffer(settings: Settings, snapshot: Snapshot, path: Path) -> None:
    """Log where events are buffered, and what that means; `path` is the directory of a
    disk buffer. Warn if there isn't enough memory for them.
    """
    for risk in memory_risks(settings):
        _log.warning(
            "memory may become short", why=f"{risk.key} {risk.message}", hint=f"{risk.hint}."
        )
    if settings.buffer.kind == "disk":
        _log.info(
            "events wait on disk",
            path=str(path),
            found=snapshot.buffer_found,
            meaning=f"Events are buffered on disk, at {path}, in at most "
            f"{size(snapshot.buffer_limit_bytes)}: they outlive this process. "
            f"Found there: {plural(snapshot.buffer_found, 'event')}.",
        )
        _announce_unused(settings)
        return
    _log.warning(
        "events wait in memory",
        meaning=f"Events are buffered in memory, at most {size(snapshot.buffer_limit_bytes)}. A "
        "kill loses those that the upstream hasn't accepted; at a stop those that "
        f"{settings.shutdown.drain_timeout:g} s of draining don't deliver "
        + (
            f"become dead letters, at {snapshot.dead_letters_path}."
            if snapshot.dead_letters_path
            else "are lost too."
        ),
        keys={"kind": "buffer.kind", "size": "buffer.max_bytes", "drain": "shutdown.drain_timeout"},
    )
    _announce_unused(settings)


def _announce_unused(settings: Settings) -> None:
    """Warn about files of a disk buffer that nothing reads, because the buffer is in memory, or
    their destination isn't configured.
    """
    path = settings.buffer.path
    on_disk = settings.buffer.kind == "disk"
    try:
        directories = [
            (name, directory)
            for (_, name), directory in worker_directories(path).items()
            if (directory / LOG).is_dir()
        ]
    except OSError:  # missing, or another user's
        return
    unused = [
        (name, directory)
        for name, directory in directories
        if not on_disk or name not in settings.destinations
    ]
    if not unused:
        return
    names = sorted({name or "one without a name" for name, _ in unused})
    why = (
        f"their destinations aren't configured ({', '.join(names)})"
        if on_disk
        else "`buffer.kind` is memory"
    )
    drain = (
        "with the destination under `upstreams` they are delivered"
        if on_disk
        else f"`{proposed('buffer drain', path)}` delivers them"
    )
    _log.warning(
        "the files of a disk buffer aren't used",
        paths=[str(directory) for _, directory in unused],
        meaning=f"{why[:1].upper()}{why[1:]}: events in these files aren't delivered.",
        hint=f"`{proposed('buffer ls', path)}` lists them, {drain}.",
    )


def log_buffered(snapshot: Snapshot, path: Path) -> None:
    """Log what a disk buffer keeps for the next start."""
    _log.info(
        "events wait on disk for the next start",
        events=snapshot.buffered,
        path=str(path),
        lanes={lane.label: lane.buffered for lane in snapshot.lanes if lane.buffered},
    )


def log_undelivered(left: Sequence[DeadLetter], kept_at: str) -> None:
    """Log the undelivered events of memory; `kept_at` is where the dead letters are kept, empty if
    they are in memory only.
    """
    labels = LaneLabels()
    counts = Counter(labels.label(dead_letter.lane) for dead_letter in left)
    oldest = min(dead_letter.at for dead_letter in left)
    meaning = (
        f"These events became dead letters, which are kept at {kept_at}: "
        f"`{proposed('dead-letters replay --reason', Reason.UNDELIVERED_AT_EXIT)}` sends them "
        "again."
        if kept_at
        else (
            "These events became dead letters, in memory only, because no directory could be "
            "used: they are lost when this process ends."
        )
    )
    _log.error(
        "events were left behind",
        undelivered=len(left),
        lanes=dict(counts),
        oldest=datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds"),
        reason=Reason.UNDELIVERED_AT_EXIT,
        meaning=meaning,
        hint=(
            "Give the drain more time with `shutdown.drain_timeout`, and check why the "
            "upstream didn't accept them."
        )
        + ("" if kept_at else " Give the dead letters a directory with `dead_letters.path`."),
    )
