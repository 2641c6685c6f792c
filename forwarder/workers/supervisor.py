"""The supervisor of workers: it holds the address, starts the workers and keeps them running, and
presents them as one daemon.

Invariants: it handles no event itself; the admin server is the first to listen and the last to
close; after the first SIGTERM or SIGINT nothing is started any more, and the supervisor ends after
its workers, with the worst of their exit codes; a second signal ends their drain, a third kills
them. When `workers` is lowered, workers that don't listen deliver what the directories of former
workers hold.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from forwarder import __version__
from forwarder.admin.event_lookup import Sighting, WantedUuid
from forwarder.admin.server import AdminServer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock, Timer, wait_for_event
from forwarder.core.connection_loads import create_loads
from forwarder.core.errors import ForwarderError
from forwarder.core.path import new_instance
from forwarder.core.stop_requests import STOP_SIGNALS, StopRequests, remove_handlers
from forwarder.daemon.daemon import (
    INTERRUPT_SECONDS,
    INTERRUPTED,
    Load,
    announce_addresses,
    announce_buffer,
    log_ended_at_once,
    log_interrupted,
    read_again,
    third,
    too_slow,
)
from forwarder.daemon.inheritance import NOTHING, InheritedDescriptors
from forwarder.daemon.policies import keys_needing_restart
from forwarder.daemon.restart import SIGNALS, InPlaceRestart, PendingRestart, unblock_signals
from forwarder.daemon.roles import Role
from forwarder.telemetry.snapshot import Snapshot, State
from forwarder.telemetry.taps import TapBatch, TapRequest, merged
from forwarder.workers.adoption import (
    dead_letters_changed_at,
    has_marked_dead_letters,
    leftovers,
    remove_if_empty,
)
from forwarder.workers.channel import Assignment, Command
from forwarder.workers.merging import LabelLimit, merge
from forwarder.workers.shared_address import SharedAddress, hold_address
from forwarder.workers.worker_process import Launch, WorkerProcess, WorkerState, launch

CHECK_EVERY: Final = 1.0
"""Seconds between two checks for work in directories of former workers."""

WORKERS_END: Final = INTERRUPT_SECONDS + 2.0
"""Seconds after a second signal when workers are killed: each ends by itself before."""

_log = structlog.get_logger(__name__)


def run_supervisor(
    settings: Settings,
    load: Load,
    arguments: Sequence[str],
    restart: InPlaceRestart | None = None,
    inherited: InheritedDescriptors = NOTHING,
) -> int:
    """Run until a signal ends it; the exit code. Each worker is `forwarder` with `arguments`.

    Raises `ForwarderError` when it, or a worker, can't start.
    """
    supervisor: Supervisor | None = None

    async def main() -> int:
        nonlocal supervisor
        supervisor = Supervisor(
            settings,
            load,
            launch(arguments),
            restart=restart,
            inherited=inherited,
            ends_process=True,
        )
        return await supervisor.run()

    code = asyncio.run(main())
    return supervisor.restarting.replace(code) if supervisor is not None else code


class Supervisor:
    """The supervisor from start to exit code."""

    def __init__(
        self,
        settings: Settings,
        load: Load,
        how: Launch,
        *,
        clock: Clock | None = None,
        exit_now: Callable[[int], None] = os._exit,
        restart: InPlaceRestart | None = None,
        inherited: InheritedDescriptors = NOTHING,
        ends_process: bool = False,
    ) -> None:
        """`restart`: how SIGUSR2 restarts it in place; `inherited`: sockets to use in place of the
        configured addresses. `ends_process`: whether the process ends with it.
        """
        self._ends_process = ends_process
        # each worker takes its directory's lock itself
        self._inherited = inherited.fitting(settings).without_locks()
        self._settings = settings
        self._load = load
        self._how = how
        self._clock = clock or SystemClock()
        self._exit_now = exit_now
        self._instance = new_instance()
        self._admin = AdminServer(self.snapshot, self.find, self.tap)
        self._started_at = self._clock.now()
        self._labels = LabelLimit()
        self._address: SharedAddress | None = None
        self._loads = create_loads(settings.workers)
        self._addresses = settings.sources.http.listen, settings.admin.listen
        self._stop = asyncio.Event()
        self._requests = StopRequests(self._clock.monotonic)
        self._interrupted = False
        self._interruption: Timer | None = None
        self.restarting = PendingRestart(restart, self._stop)
        self._workers: dict[int, WorkerProcess] = {}
        self._tasks: dict[int, asyncio.Task[int]] = {}
        self._letters: dict[int, int] = {}
        """When the dead letters of former workers had changed last when their worker ended, in
        nanoseconds since 1970; 0 if some were still marked.
        """

    async def run(self) -> int:
        """Start, wait for a signal, stop; the exit code. Cancellation kills the workers."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self.on_hangup)
        loop.add_signal_handler(signal.SIGUSR2, self.restarting.request)
        unblock_signals()
        inherited = self._inherited
        inherited.announce()
        try:
            admin = self._settings.admin
            await self._admin.start(
                admin.listen,
                admin.hosts,
                inherited.admin,
                removes_file=bool(inherited.admin_listen),
                tap=admin.tap,
            )
            self._address = hold_address(self._settings.sources.http.listen, inherited)
            return await self._supervise(self._address)
        finally:
            if self._address is not None:
                self._address.close()
            self._loads.close()
            await self._admin.close()
            await self.restarting.close()
            ends = self._ends_process and not self.restarting.decided
            remove_handlers(loop, SIGNALS, ends=ends)

    def on_stop_signal(self, number: signal.Signals) -> None:
        """Have the workers drain; the second time, have them end their drain; the third time, kill
        them and end at once. Signals within a second are one.
        """
        request = self._requests.count()
        if request == 1:
            self.restarting.withdraw()
            _log.info(
                "stopping", signal=number.name, accepts_for_seconds=self._settings.shutdown.delay
            )
            self._stop.set()
        elif request == 2:
            log_interrupted(number, self._buffered())
            self._interrupted = True
            self._stop.set()
            for worker in self._workers.values():
                worker.stop(Command.INTERRUPT)
            self._interruption = self._clock.call_later(
                WORKERS_END, lambda: self._end_at_once(too_slow(WORKERS_END))
            )
        elif request:
            self._end_at_once(third(number))

    def _buffered(self) -> int:
        """Events that workers hold which haven't ended, as far as it is known."""
        return sum(
            worker.snapshot.buffered
            for worker in self._workers.values()
            if worker.snapshot and worker.state is not WorkerState.DONE
        )

    def _end_at_once(self, why: str) -> None:
        for worker in self._workers.values():
            worker.kill()
        log_ended_at_once(self._settings, why, self._buffered())
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit_now(INTERRUPTED)

    def _on_input_end(self) -> None:
        """Have the workers drain: standard input has ended, and all of it is settled."""
        if not self._stop.is_set():
            _log.info("stopping: standard input has ended")
            self._stop.set()

    def on_hangup(self) -> None:
        """Have the workers read the configuration again, if it is valid; check again for
        directories of former workers.
        """
        settings = read_again(self._load)
        if settings is None:
            return
        fixed = keys_needing_restart(self._settings, settings)
        for worker in self._workers.values():
            worker.command(Command.RELOAD)
        self._adopt(leftovers(self._settings, os.environ))
        _log.info("configuration read again", needs_restart=fixed)

    async def snapshot(self) -> Snapshot:
        """The workers' snapshots as one. Cancellation only ends the wait for them."""
        await asyncio.gather(*(worker.refresh() for worker in self._workers.values()))
        now = self._clock.now()
        known = [
            member for worker in self._workers.values() if (member := worker.member()) is not None
        ]
        merged = (
            merge(known, self._labels)
            if known
            else Snapshot(__version__, State.STARTING, now, now, not_ready=("starting",))
        )
        warnings = [warning for worker in self._workers.values() if (warning := worker.warning())]
        merged = replace(
            merged,
            started_at=self._started_at,
            now=now,
            warnings=(*warnings, *merged.warnings),
            workers=tuple(worker.described() for worker in self._workers.values()),
        )
        if self._stop.is_set() and not self.restarting.decided:
            return replace(
                merged,
                state=State.DRAINING,
                ready=False,
                not_ready=("draining: this process is about to end",),
            )
        return merged

    async def find(self, wanted: WantedUuid) -> list[Sighting]:
        """Where workers have an event in memory. Cancellation only ends the wait for them."""
        answers = await asyncio.gather(*(worker.find(wanted) for worker in self._workers.values()))
        return [sighting for sightings in answers for sighting in sightings]

    async def tap(self, request: TapRequest) -> TapBatch:
        """What the workers' taps have collected; each has its part of the rate. Cancellation only
        ends the wait for them.
        """
        wanted = request.wanted and msgspec.structs.replace(
            request.wanted, rate=request.wanted.rate / max(1, len(self._workers))
        )
        asked = TapRequest(request.tap, wanted)
        return merged(
            await asyncio.gather(*(worker.tap(asked) for worker in self._workers.values()))
        )

    async def _supervise(self, address: SharedAddress) -> int:
        for number in range(self._settings.workers):
            self._begin(number, address, listens=True)
        failure: ForwarderError | None = None
        try:
            failure = await self._all_settled()
            if not self._stop.is_set() and failure is None:
                await self._announce(address)
                self._adopt(leftovers(self._settings, os.environ))
                while not await wait_for_event(self._stop, CHECK_EVERY, self._clock):
                    self._adopt_changed()
            code = await self._end(address)
        finally:
            await _cancelled(self._tasks.values())
            if self._interruption is not None:
                self._interruption.cancel()
        if failure is not None:
            raise failure
        _log.info("stopped", exit_code=code)
        return code

    def _begin(self, number: int, address: SharedAddress, *, listens: bool) -> None:
        """Keep worker `number` running from now on."""

        def assign(channel: int) -> Assignment:
            sockets, loads = (
                (address.descriptors, self._loads.descriptor) if listens else ((), None)
            )
            role = Role(
                number,
                self._settings.workers,
                listens,
                descriptors=sockets,
                loads=loads,
                instance=self._instance,
            )
            return Assignment.of(self._settings, role, channel, address.listen)

        def on_absent() -> None:
            if listens:
                self._loads.exclude(number)

        reads_input = number == 0 and any(source.stdin for source in self._settings.sources.logs)
        worker = WorkerProcess(
            f"worker-{number}",
            self._how,
            assign,
            self._clock,
            listens=listens,
            on_absent=on_absent,
            on_input_end=self._on_input_end if reads_input else None,
        )
        self._workers[number] = worker
        self._tasks[number] = asyncio.create_task(worker.keep(), name=worker.name)
        self._tasks[number].add_done_callback(lambda task: self._on_done(number, task))

    def _on_done(self, number: int, task: asyncio.Task[int]) -> None:
        if task.cancelled():
            return
        if task.exception() is not None:
            self._stop.set()  # a bug: it is raised when all have ended
            return
        last = self._workers[number].snapshot
        if number >= self._settings.workers and task.result() == 0 and last is not None:
            remove_if_empty(self._settings, os.environ, number, last)
            changed = dead_letters_changed_at(self._settings, os.environ, number)
            # what was marked while it was ending it hasn't seen
            marked = has_marked_dead_letters(self._settings, os.environ, number)
            self._letters[number] = 0 if marked else changed

    async def _all_settled(self) -> ForwarderError | None:
        """Wait until each worker runs, or has ended once, or a stop is requested; the error if one
        can't start at all.
        """
        settled = [worker.settled for worker in self._workers.values()]
        first_failure = asyncio.ensure_future(_failure(settled))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({first_failure, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return first_failure.result() if first_failure.done() else None
        finally:
            await _cancelled([first_failure, stopped])

    async def _announce(self, address: SharedAddress) -> None:
        snapshot = await self.snapshot()
        announce_addresses(snapshot, address.listen, self._admin.address)
        announce_buffer(self._settings, snapshot, self._settings.buffer.path)

    def _adopt(self, numbers: Sequence[int]) -> None:
        """Start a worker without a listener for each of these directories of former workers."""
        for number in numbers:
            task = self._tasks.get(number)
            if self._address is not None and (task is None or task.done()):
                _log.info(
                    "a directory of a former worker is adopted: its events are delivered",
                    directory=f"worker-{number}",
                )
                self._letters.pop(number, None)
                self._begin(number, self._address, listens=False)

    def _adopt_changed(self) -> None:
        """Adopt directories again whose dead letters an operator has marked or dropped
        since their worker ended.
        """
        self._adopt(
            [
                number
                for number, known in self._letters.items()
                if dead_letters_changed_at(self._settings, os.environ, number) > known
            ]
        )

    async def _end(self, address: SharedAddress) -> int:
        """Have all workers end; the worst of their exit codes."""
        self._stop.set()
        if self.restarting.decided:
            before = self._inherited
            self.restarting.kept = InheritedDescriptors(
                address.keep(),
                self._admin.keep(),
                listen=before.listen if before.sockets else self._addresses[0],
                admin_listen=before.admin_listen if before.admin else self._addresses[1],
            )
        address.release()
        command = Command.MAKE_WAY if self.restarting.decided else Command.STOP
        for worker in self._workers.values():
            worker.stop(Command.INTERRUPT if self._interrupted else command)
        codes = await asyncio.gather(*self._tasks.values())
        if self._interrupted:
            return INTERRUPTED
        return max((code if code >= 0 else 1 for code in codes), default=0)


async def _failure(
    settled: Iterable[asyncio.Future[ForwarderError | None]],
) -> ForwarderError | None:
    """The first failure, as soon as there is one; None when all are settled without one.
    Cancellation only ends the wait.
    """
    for task in asyncio.as_completed(settled):
        if (failure := await task) is not None:
            return failure
    return None


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel what isn't done, and wait for its end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
