"""Group commit: everything that is to be durable together goes to the disk in one go, on a thread of its own.

The loop's parts say that they have something (`wanted`); at the end of the loop's iteration, never at the first of them, each is asked for
its job, and the jobs run one after the other on the commit thread, in the order in which the parts were added: dead letters before the
log, so that a letter is durable before the record that settles its event. What comes meanwhile goes in the next group.

Invariants: at most one group is under way; a part's `finish` is called on the loop for each job that it gave, in order; a job learns
whether an earlier one of its group failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

import structlog

from forwarder.core.clock import Clock

RETRY_SECONDS: Final = 1.0
"""How long after a failure there is the next attempt, if nobody offers anything before."""

MAX_ROUNDS: Final = 16
"""Iterations of the loop for which a group is gathered, as long as each brings more."""

_log = structlog.get_logger()


class Job(Protocol):
    """A part's share of a group."""

    def run(self, *, alone: bool) -> None:
        """Make it durable, on the commit thread. `alone`: an earlier job of the group failed. Raises what went wrong."""


class Part(Protocol):
    """What has something to make durable."""

    @property
    def waiting(self) -> int:
        """How much that somebody waits for would be in a group that began now."""

    def prepare(self) -> Job | None:
        """All that is to be made durable now, on the loop; None if there is nothing."""

    def finish(self, job: Job, error: Exception | None) -> None:
        """The job is done, or failed: called on the loop. It may want another one."""


_Group: TypeAlias = list[tuple[Part, Job, Exception | None]]


class Committer:
    """Commits groups for its parts. Used on one loop; `close` ends its thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: list[Part] = []
        self._groups: SimpleQueue[_Group | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False
        """A group is under way, or about to be."""
        self._again = False
        self._gathered = 0
        """What waited for the group after the last iteration."""
        self._rounds = 0
        """Iterations that it has been gathered for."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = asyncio.Event()
        """The thread has nothing left to do."""

    def add(self, part: Part) -> None:
        """Add a part; its jobs run after those of the parts that were added before."""
        self._parts.append(part)

    def start(self) -> None:
        """Begin to commit, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._ended.clear()
        self._thread = threading.Thread(target=self._work, args=(self._loop,), name="commit", daemon=True)
        self._thread.start()
        if self._again:
            self.wanted()

    def wanted(self) -> None:
        """Something is to be made durable: at the end of this iteration, or once the group that is under way is done."""
        if self._busy or self._loop is None:
            self._again = True
            return
        self._busy = True
        self._idle.clear()
        self._loop.call_soon(self._begin)

    def retry(self) -> None:
        """Something failed: try again in a second."""
        self._clock.call_later(RETRY_SECONDS, self.wanted)

    async def settle(self) -> None:
        """Return when everything that was wanted is durable, or failed. Cancellation only ends the wait."""
        while self._busy:
            await self._idle.wait()

    async def close(self) -> None:
        """Commit what is wanted, and end the thread. Cancellation leaves the thread to end by itself."""
        if self._thread is None:
            return
        await self.settle()
        self._groups.put(None)
        thread, self._thread, self._loop = self._thread, None, None
        await self._ended.wait()
        thread.join()

    def _begin(self) -> None:
        """Begin a group, once an iteration of the loop brought nothing more for it."""
        waiting = sum([part.waiting for part in self._parts])
        if waiting > self._gathered and self._rounds < MAX_ROUNDS and self._loop is not None:
            self._gathered = waiting
            self._rounds += 1
            self._loop.call_soon(self._begin)
            return
        self._gathered = self._rounds = 0
        self._again = False
        group: _Group = []
        for part in self._parts:
            try:
                job = part.prepare()
            except Exception:
                _log.exception("what is to be made durable could not be put together; it is tried again")
                self.retry()
                continue
            if job is not None:
                group.append((part, job, None))
        if group:
            self._groups.put(group)
        else:
            self._end()

    def _end(self) -> None:
        self._busy = False
        if self._again:
            self._again = False
            self.wanted()
        else:
            self._idle.set()

    def _finish(self, group: _Group) -> None:
        for part, job, error in group:
            try:
                part.finish(job, error)
            except Exception:
                _log.exception("what a commit made durable could not be taken account of")
        self._end()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The commit thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed before this ended
            while (group := self._groups.get()) is not None:
                loop.call_soon_threadsafe(self._finish, _run(group))
            loop.call_soon_threadsafe(self._ended.set)


def _run(group: Sequence[tuple[Part, Job, Exception | None]]) -> _Group:
    done: _Group = []
    failed = False
    for part, job, _ in group:
        error: Exception | None = None
        try:
            job.run(alone=failed)
        except Exception as caught:  # handed to the part on the loop
            error, failed = caught, True
        done.append((part, job, error))
    return done
