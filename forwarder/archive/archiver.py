"""Delivers to an archive: makes one file after another of what waits in a disk buffer.

Events stay in the buffer until they are due: the lane's oldest is `max_age` old, the lane has a
file's worth, or the buffer is a quarter full. Then the lane's events of one partition, up to a
file's worth, go through a `SpooledFile`, which is published, and only then are they settled. So an
archive costs the memory of one file's compressor, however many projects there are, and a crash
leaves nothing but an unfinished file: its events are in the buffer. A file that can't be published
stays spooled and is tried again, at growing intervals up to a minute; meanwhile no other is begun,
and the buffer keeps what comes.

Invariants: one task makes and publishes files; a chunk that it took is in `_taken` until it is
settled, and can't be withdrawn; a name is used for one content only.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import structlog

from forwarder.archive.folders import ArchiveFolder, PublishFailed
from forwarder.archive.spool import FileNames, Partition, SpooledFile
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.core.clock import Backoff, Clock, Timer, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.outcome import HaltReason
from forwarder.core.ports import Fate, Ledger
from forwarder.delivery.delivery import (
    BATCH_EVENTS,
    BODY_BYTES,
    SECONDS,
    DeliveryStatistics,
    EventDelivery,
    HistogramCounter,
    UpstreamHealth,
)
from forwarder.delivery.halting import HINTS, HaltReport
from forwarder.storage import failpoints
from forwarder.telemetry.labels import lane_label

FILE_BYTES: Final = 256 << 20
"""Bytes of events, as they count in the buffer, with which a lane is due, whatever their age."""

FILE_CHUNKS: Final = 50_000
"""Chunks that a file has at most: what is kept of each until it is settled is memory."""

FULL_SHARE: Final = 4
"""A buffer that is filled to this fraction makes its fullest lane due: what is in a file that
isn't complete still takes its room.
"""

AWAITED_BYTES: Final = 4 << 20
"""Bytes in memory with which a lane is due whose source waits for delivery, and reads no further.
"""

STEP_BYTES: Final = 4 << 20
"""Bytes of events that are compressed at once, in a thread."""

GATHER_SECONDS: Final = 0.5
"""Least seconds from a `wake` to the next look at the lanes."""

LOAD_SECONDS: Final = 5.0
"""Seconds that a file waits for more of its events to be read from the disk; then it is completed
without them.
"""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """How files are made: `max_age` in seconds; `spool`: a directory of this process's own for the
    file that is being made.
    """

    partition: Partition
    max_age: float
    spool: Path
    identity: str
    """Part of the names of this archive's files: those of no other process that writes to the same
    place have it.
    """


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An operator has to change something, wall-clock seconds."""

    since: float
    next_attempt: float


class Archiver(EventDelivery):
    """Makes files of a destination's events. It owns the thread that compresses."""

    def __init__(
        self,
        *,
        policy: ArchivePolicy,
        buffer: DiskBuffer,
        folder: Callable[[ThreadPoolExecutor], ArchiveFolder],
        books: Ledger,
        clock: Clock,
        backoff: Backoff | None = None,
    ) -> None:
        """`folder` makes the destination, given the thread for what blocks."""
        self._policy = policy
        self._buffer = buffer
        self._books = books
        self._clock = clock
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._thread = ThreadPoolExecutor(1, "archive")
        self._folder = folder(self._thread)
        self._names = FileNames(policy.identity, os.urandom(3).hex())
        self._files = 0
        self._taken: list[Chunk] = []
        self._stranded: list[Chunk] = []
        """Chunks whose file couldn't be made, for an unexpected reason: they stay in the buffer."""
        self._task: asyncio.Task[None] | None = None
        self._awake = asyncio.Event()
        self._arrived = asyncio.Event()
        """Set when events were read from the disk."""
        self._retry = asyncio.Event()
        """Set to try again before the wait is over."""
        self._idle = asyncio.Event()
        self._gathering: Timer | None = None
        self._timer: Timer | None = None
        self._unreadable: set[Lane] = set()
        """Lanes whose events can't be read now: others go first."""
        self._flush = self._held = False
        self._failed_lately = False
        """Whether an attempt failed since a drain began."""
        self._why = ""
        """Why the last attempt failed; empty if it didn't."""
        self._refusal: _Refusal | None = None
        self._failures = 0
        self._attempts: Counter[str] = Counter()
        self._delivered = 0
        self._durations = HistogramCounter(SECONDS)
        self._file_bytes = HistogramCounter(BODY_BYTES)
        self._file_events = HistogramCounter(BATCH_EVENTS)
        buffer.on_arrival = self._more_arrived

    def start(self) -> None:
        """Start, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """The buffer has new events. Costs a comparison if it was called lately."""
        if self._gathering is None:
            self._gathering = self._clock.call_later(GATHER_SECONDS, self._look)

    def _look(self) -> None:
        self._gathering = None
        self._awake.set()

    def _more_arrived(self) -> None:
        self._arrived.set()
        self.wake()

    async def drain(self, deadline_seconds: float) -> bool:
        """Archive everything, however young; return whether nothing is left. Ends early when an
        attempt to publish fails.

        Cancellation lets the archiver continue.
        """
        self._flush = True
        self._held = False
        self._retry.set()
        return await self._wait_until_idle(deadline_seconds, failed=False)

    async def drain_while_it_works(self, deadline_seconds: float) -> bool:
        """As `drain`, but doesn't try again what failed before."""
        self._flush = True
        return await self._wait_until_idle(deadline_seconds, failed=bool(self._why))

    async def finish_in_flight(self, deadline_seconds: float) -> None:
        """Begin no file any more, and wait for the one that is made, unless publishing fails.
        Cancellation only ends the wait.
        """
        self._held = True
        await self._wait_until_idle(deadline_seconds, failed=bool(self._why))

    def resume(self) -> None:
        """Begin files again, after `finish_in_flight`."""
        self._held = False
        self._awake.set()

    async def _wait_until_idle(self, seconds: float, *, failed: bool) -> bool:
        """Wait until there is nothing to do, or an attempt fails (`failed`: has failed); whether
        nothing is left.
        """
        self._failed_lately = failed
        self._idle.clear()
        self._awake.set()
        if not self._is_drained():
            await wait_for_event(self._idle, seconds, self._clock)
        return not self._taken and not self._buffer.waiting_lanes()

    async def close(self) -> None:
        """Stop. A copy to a folder is completed, an upload is cut off: then its
        events stay in the buffer.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.wake()  # so that later calls find a timer, which never fires
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        self._thread.shutdown()

    def undelivered(self) -> list[Chunk]:
        """The chunks that are in a file that isn't complete; of most the events aren't in memory
        any more.
        """
        return [*self._taken, *self._stranded]

    # The parameters are those of `ResendQueue.withdraw`.
    def withdraw(
        self,
        acks: Collection[Ack],  # noqa: ARG002
        lane: Lane | None = None,  # noqa: ARG002
    ) -> list[Chunk]:
        """What can still be taken back of what was taken: nothing, as it is in a file."""
        return []

    def oldest(self) -> dict[Lane, float]:
        """When the oldest event of the file that is made was received, by its
        lane, wall-clock seconds.
        """
        return (
            {self._taken[0].lane: min([chunk.received_at for chunk in self._taken])}
            if self._taken
            else {}
        )

    def statistics(self) -> DeliveryStatistics:
        """Figures since the start, and the state of now. Requests are attempts to publish a file,
        batches are files.
        """
        return DeliveryStatistics(
            requests=dict(self._attempts),
            in_flight=1 if self._taken else 0,
            concurrency_limit=1,
            durations=self._durations.counts(),
            batch_bytes=self._file_bytes.counts(),
            batch_events=self._file_events.counts(),
            delivered=self._delivered,
            warnings={},
            halts=self._halts(),
            retries=(),
            upstream=UpstreamHealth(bool(self._why), self._why),
        )

    def _halts(self) -> list[HaltReport]:
        """All lanes that wait while an operator has to change something.

        They are in no `Halts`: what halts one lane of a service leaves it less of the buffer, for
        the others' sake. Here all wait.
        """
        refusal = self._refusal
        reason = HaltReason.ARCHIVE_UNWRITABLE
        if refusal is None:
            return []
        lanes = {*[chunk.lane for chunk in self._taken[:1]], *self._buffer.waiting_lanes()}
        return [
            HaltReport(lane, reason, refusal.since, self._why, HINTS[reason], refusal.next_attempt)
            for lane in sorted(lanes)
        ]

    # The task

    async def _run(self) -> None:
        while True:
            lane = None if self._held else self._due_lane()
            if lane is None:
                if self._is_drained():
                    self._idle.set()
                await self._awake.wait()
                self._awake.clear()
                continue
            try:
                await self._archive(lane)
            except Exception:
                _log.exception(
                    "making a file of the archive failed unexpectedly; the next start makes it",
                    lane=lane_label(lane),
                )
                self._stranded += self._taken
                self._taken = []

    def _due_lane(self) -> Lane | None:
        """The lane that is to be archived now; None: the timer is set for the next one."""
        now = self._clock.now()
        lanes = {
            lane: self._due_at(lane, now)
            for lane in self._buffer.waiting_lanes()
            if lane not in self._unreadable
        }
        if self._unreadable:
            self._set_timer(LOAD_SECONDS)
            self._unreadable.clear()
        if not lanes:
            return None
        first = min(lanes, key=lambda lane: lanes[lane])
        if lanes[first] <= now:
            return first
        if self._buffer.used >= self._buffer.max_bytes // FULL_SHARE:
            return max(lanes, key=lambda lane: self._buffer.holdings[lane].bytes)
        self._set_timer(min(lanes[first] - now, self._policy.max_age))
        return None

    def _due_at(self, lane: Lane, now: float) -> float:
        """When a file of the lane is due, wall-clock seconds. For events from the future that is
        now: the clock was set back.
        """
        holding = self._buffer.holdings[lane]
        oldest = self._buffer.oldest(lane)
        if oldest is None:
            return now
        awaited = (
            bool(holding.queue)
            and holding.in_memory >= AWAITED_BYTES
            and _first(holding.queue).ack is not None
        )
        if self._flush or awaited or holding.bytes >= FILE_BYTES or oldest > now:
            return min(oldest, now)
        return oldest + self._policy.max_age

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(max(seconds, 0.001), self._awake.set)

    async def _archive(self, lane: Lane) -> None:
        """Make one file of the lane's events, publish it, and settle them.
        Cancelled, it settles nothing.
        """
        if not await self._load(lane):
            self._unreadable.add(lane)
            return
        received_at = _first(self._buffer.queue(lane)).received_at
        file = await self._until_it_works(self._open)
        try:
            await self._fill(file, lane, self._policy.partition.number(received_at))
            if self._taken:  # else they were dropped or withdrawn while the file was opened
                await self._publish(file, lane, received_at)
        finally:
            file.close()

    def _open(self) -> SpooledFile:
        return SpooledFile(self._policy.spool)

    async def _fill(self, file: SpooledFile, lane: Lane, partition: int) -> None:
        """Write the lane's events of a partition to the file, as many as wait, or fit."""

        def belongs(chunk: Chunk) -> bool:
            return self._policy.partition.number(chunk.received_at) == partition

        while file.size < FILE_BYTES and len(self._taken) < FILE_CHUNKS:
            queue = self._buffer.queue(lane)
            chunks = _take(queue, belongs, FILE_CHUNKS - len(self._taken))
            if not chunks:
                if queue or not await self._load(lane):
                    break
                continue
            self._taken += chunks
            await self._in_thread(file.add, chunks)
            await self._until_it_works(file.flush)
            self._buffer.release(chunks)
        file.end()
        await self._until_it_works(file.flush)

    async def _load(self, lane: Lane) -> bool:
        """Wait for events of the lane to be read from the disk; whether there are any."""
        end = self._clock.monotonic() + LOAD_SECONDS
        while lane in self._buffer.waiting_lanes():
            self._arrived.clear()
            if self._buffer.queue(lane):  # which begins to read more
                return True
            if not await wait_for_event(self._arrived, end - self._clock.monotonic(), self._clock):
                return False
        return False

    async def _publish(self, file: SpooledFile, lane: Lane, received_at: float) -> None:
        """Publish the file, as often as it takes, and settle its events."""
        self._files += 1
        name = self._names.name(
            lane, self._policy.partition.folder(received_at), received_at, self._files
        )
        count = sum([chunk.count for chunk in self._taken])
        self._file_bytes.observe(file.size)
        self._file_events.observe(count)
        while True:
            began = self._clock.monotonic()
            try:
                await self._folder.publish(name, file.content)
                break
            except PublishFailed as error:
                await self._failed(error)
            except Exception as error:
                _log.exception(
                    "a file of the archive couldn't be published unexpectedly", file=name
                )
                await self._failed(PublishFailed(error_text(error), refused=False))
        self._attempts["archived"] += 1
        self._durations.observe(self._clock.monotonic() - began)
        self._worked()
        if failpoints.ARMED:
            failpoints.hit("archive.published")
        chunks = self._taken
        self._taken = []
        self._delivered += count
        self._books.deliver(lane, count)
        self._buffer.settle(chunks, Fate.DELIVERED)
        _log.debug("file archived", lane=lane_label(lane), file=name, events=count)

    # Failing

    async def _until_it_works(self, function: Callable[[], Result]) -> Result:
        """Write aside, as often as it takes: a disk that is full may be emptied."""
        while True:
            try:
                return await self._in_thread(function)
            except OSError as error:
                await self._failed(
                    PublishFailed(f"{self._policy.spool}: {error_text(error)}", refused=True)
                )

    async def _in_thread(
        self,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Run what blocks. Cancellation waits for its end: what it uses is closed next."""
        future = asyncio.wrap_future(self._thread.submit(function, *arguments, **named))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def _failed(self, error: PublishFailed) -> None:
        """Remember why, and wait before the next attempt."""
        self._failures += 1
        self._attempts["error"] += 1
        if error.why != self._why:
            hint = HINTS[HaltReason.ARCHIVE_UNWRITABLE] if error.refused else ""
            _log.warning(
                "the archive fails; its events stay in the buffer", why=error.why, hint=hint
            )
        self._why = error.why
        self._failed_lately = True
        self._idle.set()
        wait = self._backoff.equal_jitter(self._failures)
        now = self._clock.now()
        since = now if self._refusal is None else self._refusal.since
        self._refusal = _Refusal(since, now + wait) if error.refused else None
        self._retry.clear()
        await wait_for_event(self._retry, wait, self._clock)

    def _worked(self) -> None:
        self._refusal = None
        if self._why:
            _log.info("the archive works again", failures=self._failures)
        self._failures = 0
        self._why = ""

    def _is_drained(self) -> bool:
        """Whether a drain has nothing left to wait for."""
        return self._failed_lately or (
            not self._taken and (self._held or not self._buffer.waiting_lanes())
        )


def _first(queue: LaneQueue) -> Chunk:
    return next(iter(queue))


def _take(queue: LaneQueue, belongs: Callable[[Chunk], bool], most: int) -> list[Chunk]:
    """Take the oldest chunks off the queue that belong together, some megabytes at most."""
    chunks: list[Chunk] = []
    size = 0
    while queue and len(chunks) < most and size < STEP_BYTES and belongs(_first(queue)):
        chunk = queue.popleft()
        size += len(chunk.data)
        chunks.append(chunk)
    return chunks
