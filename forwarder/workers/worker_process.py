"""A worker as its supervisor sees it: a sequence of processes, each with its own channel.

Invariants: at most one process of a worker runs at a time; a process that ends unexpectedly is
restarted, after a pause that grows while processes end soon; its last snapshot stays in use until
the successor sends one, so that the books continue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import structlog

from forwarder.admin.event_lookup import Sighting, WantedUuid
from forwarder.core.clock import Backoff, Clock, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.processes import send_signal
from forwarder.telemetry.readable import duration
from forwarder.telemetry.snapshot import Snapshot, Worker
from forwarder.telemetry.taps import TapBatch, TapRequest
from forwarder.workers.channel import Assignment, Command, SupervisorsEnd
from forwarder.workers.merging import WorkerShare
from forwarder.workers.worker import CANT_START

ANSWER_SECONDS: Final = 2.0
"""How long a worker may take to send its snapshot; after that its previous one is used."""

STEADY_SECONDS: Final = 60.0
"""A process that has run this long didn't fail at its start: it is restarted
after the shortest pause.
"""

CHECK_EVERY: Final = 1.0
"""Seconds between an answer, or the end of the wait for it, and the next question
whether a worker responds.
"""

MAX_UNANSWERED: Final = 20
"""A worker that leaves this many questions in a row unanswered, in about a minute, is killed, as
an orchestrator kills a daemon that fails `/livez`. What counts is questions, not time: a pause of
the whole machine, or of all processes, is nobody's fault.
"""

MAX_UNANSWERED_AT_STOP: Final = 5
"""The same while the daemon stops or restarts: all others have ended, or wait for this one."""

PAUSES: Final = Backoff(0.2, 30.0)

_log = structlog.get_logger(__name__)


class WorkerState(StrEnum):
    """Where a worker is in its life; see `Worker.state`."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    AWAY = "away"
    DONE = "done"


ALIVE: Final = frozenset({WorkerState.RUNNING, WorkerState.DRAINING})


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker's process is started."""

    command: Sequence[str]
    environment: Mapping[str, str]


def launch(arguments: Sequence[str]) -> Launch:
    """This very program, with `arguments`, in the same surroundings."""
    here = {"", str(Path.cwd())}
    # modules in the working directory take no part, unless they do here
    safe = [] if here & set(sys.path) else ["-P"]
    return Launch([sys.executable, *safe, "-m", "forwarder", *arguments], dict(os.environ))


class WorkerProcess:
    """One worker, from its first process to its last."""

    def __init__(
        self,
        name: str,
        how: Launch,
        assign: Callable[[int], Assignment],
        clock: Clock,
        *,
        listens: bool = True,
        on_absent: Callable[[], None] = lambda: None,
        on_input_end: Callable[[], None] | None = None,
    ) -> None:
        """`assign` makes the assignment for a channel's descriptor; `listens`: whether it accepts
        events.

        `on_absent`: called when a process has ended, or doesn't respond. `on_input_end`: called
        when standard input has ended, which only a worker with this has.
        """
        self._on_absent = on_absent
        self._on_input_end = on_input_end
        self._in_memory = False
        self.name = name
        self.snapshot: Snapshot | None = None
        """Its last one; None before the first."""
        self.settled: asyncio.Future[ForwarderError | None] = (
            asyncio.get_running_loop().create_future()
        )
        """Done as soon as the first process runs or has ended; with the error
        if it can't start at all.
        """
        self.state = WorkerState.STARTING
        self._how = how
        self._assign = assign
        self._clock = clock
        self._listens = listens
        self._process: asyncio.subprocess.Process | None = None
        self._line: SupervisorsEnd | None = None
        self._stop = asyncio.Event()
        self._stop_by = Command.STOP
        self._failure: ForwarderError | None = None
        self._restarts = 0
        self._cause = ""
        """Why its process ends, where neither the process nor its exit code shows it."""
        self._why = ""
        self._shows = True
        """Whether it sent its last snapshot in time."""
        self._silent_since: float | None = None
        """When the first question was asked that it hasn't answered, seconds since 1970; None if
        it responds.
        """

    async def keep(self) -> int:
        """Keep a process running until `stop`, or until nothing is left to do; the exit code.
        Cancelled, it kills the process.
        """
        attempt = 0
        while True:
            began = self._clock.monotonic()
            code = await self._run_process()
            self._silent_since = None
            self._on_absent()
            if self.state is WorkerState.STARTING and code == -signal.SIGTERM:
                # the whole process group was stopped before this process had anything to drain
                code = 0
            if self._is_over(code):
                return code
            attempt = 1 if self._clock.monotonic() - began > STEADY_SECONDS else attempt + 1
            self._report_end(code, PAUSES.bound(attempt))
            if await wait_for_event(self._stop, PAUSES.bound(attempt), self._clock):
                return 0
            self._restarts += 1
            self.state = WorkerState.STARTING

    def stop(self, command: Command = Command.STOP) -> None:
        """Have it drain and end, by this command."""
        self._stop_by = command
        self._stop.set()
        self.command(command)
        if self.state is WorkerState.RUNNING:
            self.state = WorkerState.DRAINING

    def kill(self) -> None:
        """End the process at once."""
        self._stop.set()
        if self._process is not None:
            send_signal(self._process, signal.SIGKILL)

    def command(self, command: Command) -> None:
        """Send the process a command, if there is a process."""
        if self._line is not None:
            self._line.command(command)

    async def refresh(self) -> None:
        """Ask it for its snapshot, if it responds. Cancellation only ends the wait."""
        if (line := self._responsive_line()) is not None:
            self._shows = bool(await line.ask(Command.SHOW, ANSWER_SECONDS))

    def member(self) -> WorkerShare | None:
        """Its part of the merged snapshot; None before its first one."""
        if self.snapshot is None:
            return None
        there = self.state in ALIVE
        responds = self._silent_since is None
        return WorkerShare(
            self.name, self.snapshot, listens=self._listens, there=there, responds=responds
        )

    async def find(self, wanted: WantedUuid) -> list[Sighting]:
        """Where the process has the event in memory. Cancellation only ends the wait."""
        line = self._responsive_line()
        answer = b"" if line is None else await line.ask(Command.FIND, ANSWER_SECONDS, wanted.text)
        return msgspec.json.decode(answer, type=list[Sighting]) if answer else []

    async def tap(self, request: TapRequest) -> TapBatch:
        """What a tap of the process has collected. Cancellation only ends the wait."""
        if (line := self._responsive_line()) is None:
            return TapBatch()
        answer = await line.ask(Command.TAP, ANSWER_SECONDS, msgspec.json.encode(request).decode())
        return msgspec.json.decode(answer, type=TapBatch) if answer else TapBatch()

    def described(self) -> Worker:
        """Its state, for `/status`."""
        process = (
            self._process.pid
            if self._process is not None and self._process.returncode is None
            else None
        )
        received = sum(lane.total_received for lane in self.snapshot.lanes) if self.snapshot else 0
        return Worker(
            self.name,
            self.state.value,
            process,
            self._restarts,
            self._why,
            received,
            self._silent_since,
        )

    def warning(self) -> str:
        """A warning about it; empty if there is none."""
        if self._why:
            return f"{self.name}: {self._why}; it is restarted"
        if self._silent_since is not None:
            silent = duration(self._clock.now() - self._silent_since)
            return (
                f"{self.name} hasn't responded for {silent}: requests on its connections "
                "wait, and its figures are out of date"
            )
        return (
            ""
            if self._shows or self.state not in ALIVE
            else f"{self.name} is slow to answer: its figures are out of date"
        )

    def _responsive_line(self) -> SupervisorsEnd | None:
        """The channel to its process; None if no answer is to be expected."""
        return self._line if self.state in ALIVE and self._silent_since is None else None

    def _on_started(self) -> None:
        self.state = WorkerState.DRAINING if self._stop.is_set() else WorkerState.RUNNING
        self._why = ""
        self._shows = True
        if not self._listens and self.snapshot is not None:
            _log.info("delivering what was left", worker=self.name, events=self.snapshot.buffered)
        elif self._restarts:
            _log.info("a worker is back", worker=self.name, restarts=self._restarts)
        self._settle(None)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def _on_failed(self, error: ForwarderError) -> None:
        self._failure = error

    async def _run_process(self) -> int:
        """One process, from start to exit code. Cancelled, it kills the process."""
        own, its = socket.socketpair()
        self._failure = None
        self._cause = ""
        line = SupervisorsEnd(
            own,
            on_started=self._on_started,
            on_snapshot=self._on_snapshot,
            on_failed=self._on_failed,
            on_input_end=self._on_input_end or (lambda: None),
        )
        try:
            with its:
                self._process = process = await self._spawn(its.fileno())
        except OSError as error:
            self._cause = (
                f"its process, {self._how.command[0]}, can't be started: {error_text(error)}"
            )
            await line.close()
            return 1
        except BaseException:
            await line.close()
            raise
        watch: asyncio.Task[None] | None = None
        try:
            await line.open()
            self._line = line
            if self._stop.is_set():
                line.command(self._stop_by)
            watch = asyncio.create_task(self._watch(line, process), name=f"watch over {self.name}")
            return await process.wait()
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            if process.returncode is None:
                send_signal(process, signal.SIGKILL)
                await process.wait()
            self._line = None
            await line.close()

    async def _watch(self, line: SupervisorsEnd, process: asyncio.subprocess.Process) -> None:
        """Ask it again and again whether it responds; kill it if it doesn't for too long."""
        unanswered = 0
        while unanswered < (MAX_UNANSWERED_AT_STOP if self._stop.is_set() else MAX_UNANSWERED):
            await self._clock.sleep(CHECK_EVERY)
            if self.state not in ALIVE:
                continue
            asked_at = self._clock.now()
            if await line.ask(Command.PING, ANSWER_SECONDS):
                unanswered = 0
                self._on_response()
            else:
                unanswered += 1
                self._on_silence(asked_at, process.pid)
        self._cause = "it didn't respond, and was killed"
        send_signal(process, signal.SIGKILL)

    def _on_silence(self, asked_at: float, process: int) -> None:
        self._on_absent()  # again each time: it may have written between stopping and being stopped
        if self._silent_since is None:
            self._silent_since = asked_at
            _log.error(
                "a worker doesn't respond",
                worker=self.name,
                process=process,
                meaning="Requests on its connections wait; new connections go to the other "
                "workers. "
                "After a minute it is killed and "
                f"restarted{': the events in its memory are lost then' if self._in_memory else ''}"
                ".",
                hint=(
                    f"If it was stopped, `kill -CONT {process}` continues it. Else `py-spy "
                    f"dump --pid {process}` shows what it does."
                ),
            )

    def _on_response(self) -> None:
        if self._silent_since is not None:
            _log.info(
                "a worker responds again",
                worker=self.name,
                silent_seconds=round(self._clock.now() - self._silent_since, 1),
            )
            self._silent_since = None

    async def _spawn(self, channel: int) -> asyncio.subprocess.Process:
        assignment = self._assign(channel)
        self._in_memory = assignment.kind == "memory"
        # sent to the whole service, it would end a process that starts
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        try:
            return await asyncio.create_subprocess_exec(
                *self._how.command,
                stdin=asyncio.subprocess.DEVNULL if self._on_input_end is None else None,
                env={**self._how.environment, **assignment.variable()},
                pass_fds=[channel, *assignment.role.inherited],
                start_new_session=True,  # a terminal's Ctrl-C is for the supervisor
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    def _is_over(self, code: int) -> bool:
        if self._stop.is_set() or (
            not self._listens and code == 0 and self.snapshot and not self.snapshot.buffered
        ):
            self.state = WorkerState.DONE
            self._settle(None)
            return True
        if code == CANT_START and self._listens and not self.settled.done():
            self._settle(
                self._failure
                or ConfigurationError(
                    f"{self.name} can't start", hint="Its own messages are above."
                )
            )
            return True
        return False

    def _settle(self, error: ForwarderError | None) -> None:
        if not self.settled.done():
            self.settled.set_result(error)

    def _report_end(self, code: int, pause: float) -> None:
        self._why = self._failure.message if self._failure else self._cause or _how_it_ended(code)
        self.state = WorkerState.AWAY
        _log.error(
            "a worker ended",
            worker=self.name,
            why=self._why,
            hint=self._failure.hint if self._failure else "",
            starts_again_in_seconds=pause,
            **(
                {"events_lost": self.snapshot.buffered} if self.snapshot and self._in_memory else {}
            ),
        )
        self._settle(None)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
