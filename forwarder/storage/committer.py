"""Group commit: everything that becomes durable together is written in one go, on a thread of its
own.

Participants request a commit (`request`). At the end of the loop's iteration, never at the first
request, each is asked for its job. The jobs run one after the other on the commit thread, in the
order in which the participants were added: dead letters before the log, so that a dead letter is
durable before the record that settles its event. Later requests go into the next group.

Invariants: at most one group runs at a time; a participant's `finish` is called on the loop for
each of its jobs, in order; a job learns whether an earlier one of its group failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import drop_frames

RETRY_SECONDS: Final = 1.0
"""Seconds from a failure to the next attempt, unless a request comes earlier."""

MAX_ROUNDS: Final = 16
"""Iterations of the loop for which a group is gathered, as long as each adds to it."""

_log = structlog.get_logger()


class CommitJob(Protocol):
    """A participant's share of a group."""

    def run(self, *, alone: bool) -> None:
        """Make it durable, on the commit thread. `alone`: an earlier job of the group failed.
        Raises the error.
        """


class CommitParticipant(Protocol):
    """Has something to make durable."""

    @property
    def awaited(self) -> int:
        """How many callers a group that began now would answer."""

    def prepare(self) -> CommitJob | None:
        """All that is to be made durable now, called on the loop; None if there is nothing."""

    def finish(self, job: CommitJob, error: Exception | None) -> None:
        """The job succeeded or failed: called on the loop. It may request another commit."""


_Group: TypeAlias = list[tuple[CommitParticipant, CommitJob, Exception | None]]


class Committer:
    """Commits groups for its participants. Used on one loop; `close` ends its thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._participants: list[CommitParticipant] = []
        self._groups: SimpleQueue[_Group | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        """Whether a group runs or is being gathered."""
        self._again = False
        self._gathered = 0
        """What the group had after the last iteration."""
        self._rounds = 0
        """Iterations for which it has been gathered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = asyncio.Event()
        """Set when the thread ends."""
        self._timer: Timer | None = None
        self._due = 0.0
        """When it goes off."""

    def add(self, participant: CommitParticipant) -> None:
        """Add a participant; its jobs run after those of participants added before."""
        self._participants.append(participant)

    def start(self) -> None:
        """Start the thread; commit on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._work, args=(self._loop,), name="commit", daemon=True
        )
        self._thread.start()
        if self._again:
            self.request()

    def request(self) -> None:
        """Commit at the end of this iteration, or once the running group is done."""
        if self._busy or self._loop is None:
            self._again = True
            return
        self._busy = True
        self._idle.clear()
        self._loop.call_soon(self._begin)

    def request_within(self, seconds: float) -> None:
        """Commit in so many seconds at the latest; at the start, if it runs no more or not yet."""
        if self._loop is None:
            self._again = True
            return
        due = self._clock.monotonic() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.call_later(seconds, self._on_time)

    def retry(self) -> None:
        """Something failed: commit again in a second at the latest."""
        self.request_within(RETRY_SECONDS)

    def _on_time(self) -> None:
        self._timer = None
        self.request()

    async def settle(self) -> None:
        """Return when everything requested is durable, or failed. Cancellation only
        ends the wait.
        """
        while self._busy:
            await self._idle.wait()

    async def close(self) -> None:
        """Commit what is requested, and end the thread. Cancellation leaves the
        thread to end by itself.
        """
        if self._thread is None:
            return
        await self.settle()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._groups.put(None)
        thread = self._thread
        self._thread = None
        self._loop = None
        await self._ended.wait()
        thread.join()

    def _begin(self) -> None:
        """Begin a group, once an iteration of the loop added nothing to it."""
        awaited = sum([participant.awaited for participant in self._participants])
        if awaited > self._gathered and self._rounds < MAX_ROUNDS and self._loop is not None:
            self._gathered = awaited
            self._rounds += 1
            self._loop.call_soon(self._begin)
            return
        self._gathered = self._rounds = 0
        self._again = False
        group: _Group = []
        for participant in self._participants:
            try:
                job = participant.prepare()
            except Exception:
                _log.exception("a commit can't be prepared; it is tried again in a second")
                self.retry()
                continue
            if job is not None:
                group.append((participant, job, None))
        if group:
            self._groups.put(group)
        else:
            self._end()

    def _end(self) -> None:
        self._busy = False
        if self._again:
            self._again = False
            self.request()
        else:
            self._idle.set()

    def _finish(self, group: _Group) -> None:
        for participant, job, error in group:
            try:
                participant.finish(job, error)
            except Exception:
                _log.exception("a commit succeeded, but finishing it failed")
            if error is not None:
                drop_frames(error)
        self._end()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The commit thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed before this ended
            while (group := self._groups.get()) is not None:
                loop.call_soon_threadsafe(self._finish, _run(group))
            loop.call_soon_threadsafe(self._ended.set)


def _run(group: Sequence[tuple[CommitParticipant, CommitJob, Exception | None]]) -> _Group:
    done: _Group = []
    failed = False
    for participant, job, _ in group:
        try:
            job.run(alone=failed)
        except Exception as error:  # handed to the participant on the loop
            failed = True
            done.append((participant, job, error))
        else:
            done.append((participant, job, None))
    return done
