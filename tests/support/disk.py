"""A disk buffer without threads, on a disk that forgets what wasn't synced: everything happens
when a test says so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from forwarder.buffer.disk.backlog import Loader
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.buffer.disk.format import UNUSED, VERSION, SegmentHeader, encode_segment_header
from forwarder.buffer.disk.opening import OpenPolicy, open_buffer
from forwarder.core.clock import Timer
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import Fate, Ordering
from forwarder.storage.committer import CommitParticipant, Committer

NEVER: Final = 1000


class StillClock:
    """A clock that stands; timers are kept for the test to see."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append((self.time + delay, callback))
        return _NoTimer()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


class _NoTimer:
    def cancel(self) -> None:
        """There is nothing to cancel."""


class InlineCommitter(Committer):
    """Commits when `pump` is called, on the caller's thread."""

    def __init__(self, clock: StillClock) -> None:
        super().__init__(clock)
        self.due = False

    def add(self, part: CommitParticipant) -> None:
        super().add(part)

    def request(self) -> None:
        self.due = True

    def request_within(self, seconds: float) -> None:
        self._clock.call_later(seconds, self.request)

    def pump(self) -> None:
        """Commit until nothing is required any more."""
        for _ in range(NEVER):
            if not self.due:
                return
            self.due = False
            jobs = [
                (part, job) for part in self._participants if (job := part.prepare()) is not None
            ]
            failed = False
            done: list[tuple[CommitParticipant, Any, Exception | None]] = []
            for part, job in jobs:
                error: Exception | None = None
                try:
                    job.run(alone=failed)
                except OSError as caught:
                    error = caught
                    failed = True
                done.append((part, job, error))
            for part, job, error in done:
                part.finish(job, error)
        raise AssertionError("it never ends")


class InlineLoader(Loader):
    """Reads at once."""

    def run(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        try:
            result = work()
        except OSError as error:
            done(None, error)
        else:
            done(result, None)


class NoLetters:
    """There are no dead letters, or those that a test says."""

    def __init__(
        self, places: Collection[tuple[int, int]] = (), gone: dict[Lane, int] | None = None
    ) -> None:
        self._places = places
        self._gone = gone or {}
        self.forgotten: set[int] = set()

    def places(self) -> Collection[tuple[int, int]]:
        return self._places

    def forget(self, numbers: Collection[int]) -> None:
        self.forgotten |= set(numbers)

    def gone(self, lane: Lane) -> int:
        return self._gone.get(lane, 0)

    def lanes(self) -> Collection[Lane]:
        return self._gone


class LossyDisk:
    """Remembers what of each file was synced; `crash` brings that back, and nothing more."""

    def __init__(self, *, syncs: bool = True) -> None:
        self._synced: dict[Path, bytes] = {}
        self._syncs = syncs
        self.refuses = False

    def sync(self, descriptors: set[int]) -> None:
        """What the log calls in place of fdatasync."""
        if self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for fd in descriptors if self._syncs else ():
            path = Path(f"/proc/self/fd/{fd}").readlink()
            self._synced[path] = path.read_bytes()

    def crash(self, directory: Path) -> None:
        """The power is gone: of each file only what was synced is left (a new file is, its maker
        syncs it himself).
        """
        for path in directory.glob("*.segment"):
            path.write_bytes(self._synced.get(path) or _new_file(path.stat().st_size))


def _new_file(size: int) -> bytes:
    return encode_segment_header(SegmentHeader(VERSION, size, UNUSED, 0.0)).ljust(size, b"\0")


class DiskRig:
    """A buffer in a directory, which can crash and be opened again."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = 1 << 20,
        window: int = 1 << 20,
        ordering: Ordering = Ordering.NONE,
        disk: LossyDisk | None = None,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.disk = disk or LossyDisk()
        self._policy = OpenPolicy(max_bytes, lambda _: ordering, window, self.disk.sync)
        self.letters = NoLetters()
        self.open()

    def open(self, letters: NoLetters | None = None) -> None:
        """Open it, as a daemon's start does."""
        self.letters = letters or NoLetters()
        self.clock = StillClock()
        self.committer = InlineCommitter(self.clock)
        self.buffer: DiskBuffer = open_buffer(
            self.directory, self.committer, self.clock, self._policy, self.letters
        )
        self.buffer.loader = InlineLoader()
        self.committer.pump()

    @property
    def log_directory(self) -> Path:
        """Where the segments are."""
        return self.directory / "log"

    def pump(self) -> None:
        """Write what is to be written, timers that are set included."""
        while self.clock.timers or self.committer.due:
            timers = self.clock.timers
            self.clock.timers = []
            for _, callback in timers:
                callback()
            self.committer.pump()

    def put(self, lane: Lane, *events: bytes) -> None:
        """Take events, as one chunk, and make them durable."""
        self.buffer.offer([Chunk(lane, b",".join(events), len(events), NO_IDS, self.clock.now())])
        self.pump()

    def deliver(self, lane: Lane, chunks: int = 1) -> list[bytes]:
        """Take the lane's next chunks and settle them; their events."""
        queue = self.buffer.queue(lane)
        next_chunks = [queue.popleft() for _ in range(chunks)]
        self.buffer.settle(next_chunks, Fate.DELIVERED)
        self.pump()
        return [event for chunk in next_chunks for event in chunk.events()]

    def events(self, lane: Lane) -> list[bytes]:
        """Every event of the lane that waits, those on disk alone too; all waits on."""
        buffer = self.buffer
        waiting_chunks = []
        while (holding := buffer.holdings.get(lane)) is not None and (
            holding.queue or holding.runs
        ):
            used = buffer.memory.used
            in_memory = holding.in_memory
            # as if what was taken had gone: all of a long backlog is to be seen
            buffer.memory.used = holding.in_memory = 0
            queue = buffer.queue(lane)
            buffer.memory.used += used
            holding.in_memory += in_memory
            if queue:
                waiting_chunks.append(queue.popleft())
        buffer.queue(lane).put_back(waiting_chunks)
        return [event for chunk in waiting_chunks for event in chunk.events()]

    def open_events(self, lane: Lane) -> int:
        """What the log's books say is in the buffer, and among the dead letters, of a lane."""
        return self.buffer.commits.books().lanes[lane].open

    def dropped(self, lane: Lane) -> dict[str, int]:
        """What the log's books say was dropped of a lane."""
        return dict(self.buffer.commits.books().lanes[lane].dropped)

    def crash(self) -> None:
        """Lose everything that wasn't synced, and open again."""
        self.abandon()
        self.disk.crash(self.log_directory)
        self.open()

    def abandon(self) -> None:
        """Close the files without a word to the log."""
        self.buffer.loader._threads.shutdown()
        self.buffer.log.close()

    def close(self) -> None:
        """End in good order."""
        self.buffer.commits.closing = True
        self.committer.request()
        self.committer.pump()
        self.abandon()
