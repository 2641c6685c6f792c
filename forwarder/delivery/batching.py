"""Makes batches of a lane's waiting events: closed by bytes, by count or by age.

Invariants: a batch's size is the exact size of its request's body, envelope included, and is below
the limit unless it is one event that alone is over it. Chunks stay whole, and are cut only where
one doesn't fit an empty batch. A chunk with an event that is blocked keeps its place in the queue,
and holds back every later chunk that shares an id with it: to cut such chunks event by event would
cost more than the one round trip that its other events wait
(docs/decisions/0005-order-by-request-not-by-event.md).

By day (`BatchPolicy.by_day`), a batch's chunks are of one UTC day, that of the first chunk that
may go. Chunks of other days are passed over as blocked ones are: they keep their places, and hold
back what shares an id with them. The search ends `READ_AHEAD_CHUNKS` past the last chunk that it
took, so that its cost is in proportion to what is taken, however days and ids alternate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.lane_queue import DayQueue, DayTotal, LaneQueue
from forwarder.core.ports import Buffer
from forwarder.wire.envelope import cut_by_size, envelope_size

READ_AHEAD_CHUNKS: Final = 256
"""How many chunks a lane's queue is searched past for others: blocked ones in all, or by day since
the last that was taken.
"""

READ_AHEAD_IDS: Final = 2048
"""How many ids such chunks may hold back before the search ends: searching on
costs more than it finds.
"""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch is closed: `max_bytes` of body before compression, `max_events`, or `max_age`
    seconds since its first event came.
    """

    max_bytes: int
    max_events: int
    max_age: float
    by_day: bool = False
    """Whether a batch must not mix days (`Chunk.day`); needs a buffer whose queues count by day."""
    one_day: bool = False
    """By day: whether only one day may be in flight. While any ids are blocked, that is the day of
    the last batch.
    """
    gather_bytes: int = 0
    """By day: a batch is due, though no day has a full one, once all days together have so much
    waiting, as it counts in the buffer.
    """


class SendingPace(Protocol):
    """How fast events may go."""

    def due_at(self, events: int, wall: float) -> float:
        """From when so many events may go, wall-clock seconds; `math.inf` if they may not. `wall`
        is the time of the question.

        Asked once a batch is due otherwise, again and again until it goes, and for more as more
        wait; at the same time for as many events the answer is the same. Must not raise.
        """

    def went(self, events: int) -> None:
        """So many events go now; they may be more or fewer than were asked for."""


class BatchSource(Protocol):
    """What the scheduler needs of a batcher. All times are wall-clock seconds,
    as in `Chunk.received_at`.
    """

    def next(
        self,
        lane: Lane,
        now: float,
        *,
        blocked: Set[str],
        max_body: int | None,
        flush: bool,
        max_events: int | None = None,
    ) -> Batch | None:
        """Take the lane's next batch off the buffer's queue if one is due by bytes, count or age
        (`flush`: if anything waits).

        `blocked` are ordering keys that may not be taken now: chunks that hold one, and later
        chunks that share a key with a chunk so skipped, stay in the queue. `max_body` and
        `max_events` are limits below the usual ones.
        """

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due; not after `now` if it is due
        already; None if nothing waits.
        """

    def lanes(self) -> Sequence[Lane]:
        """The lanes that have events waiting."""


@dataclass(slots=True)
class _Room:
    """The room left in the batch that is being made."""

    bytes: int
    events: int

    def fits(self, chunk: Chunk) -> bool:
        return len(chunk.data) < self.bytes and chunk.count <= self.events

    def take(self, chunk: Chunk) -> None:
        self.bytes -= len(chunk.data) + 1
        self.events -= chunk.count


class Batcher:
    """Makes batches of buffered events. `policy` may be replaced."""

    def __init__(
        self, buffer: Buffer, policy: BatchPolicy, pace: SendingPace | None = None
    ) -> None:
        """`pace`: no batch is due before it says so, not even where batches are flushed."""
        self._buffer = buffer
        self.policy = policy
        self._pace = pace
        self._day: int | None = None
        """The day of the last batch."""

    def lanes(self) -> Sequence[Lane]:
        """The lanes that have events waiting."""
        return list(self._buffer.waiting_lanes())

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due: `now` if it is full or from the future, None if
        nothing waits.
        """
        return self._due_at(self._buffer.queue(lane), now)

    def _due_at(self, queue: LaneQueue, now: float, *, flush: bool = False) -> float | None:
        oldest = queue.oldest
        if oldest is None:
            return None
        # the clock was set back: the event's age is unknown
        at_once = flush or self._is_full(queue) or oldest > now
        due = now if at_once else oldest + self.policy.max_age
        return (
            due
            if self._pace is None or due > now
            else max(due, self._pace.due_at(self._expected(queue), now))
        )

    def _is_full(self, queue: LaneQueue) -> bool:
        policy = self.policy
        if not policy.by_day:
            return queue.size >= policy.max_bytes or queue.events >= policy.max_events
        days = _counted(queue)
        return days.cost >= policy.gather_bytes or any(
            self._is_full_day(total) for total in days.days.values()
        )

    def _is_full_day(self, total: DayTotal) -> bool:
        return total.size >= self.policy.max_bytes or total.events >= self.policy.max_events

    def _expected(self, queue: LaneQueue) -> int:
        """How many events the next batch will have, as far as can be known before it is made."""
        policy = self.policy
        waiting = _counted(queue).days[next(iter(queue)).day] if policy.by_day else queue
        return max(
            1,
            min(
                waiting.events, policy.max_events, waiting.events * policy.max_bytes // waiting.size
            ),
        )

    def next(
        self,
        lane: Lane,
        now: float,
        *,
        blocked: Set[str] = NO_IDS,
        max_body: int | None = None,
        flush: bool = False,
        max_events: int | None = None,
    ) -> Batch | None:
        queue = self._buffer.queue(lane)
        due = self._due_at(queue, now, flush=flush)
        if due is None or due > now:
            return None
        size_limit = min(self.policy.max_bytes, max_body or self.policy.max_bytes)
        room = _Room(
            size_limit - envelope_size(lane, ()),
            min(self.policy.max_events, max_events or self.policy.max_events),
        )
        if self.policy.by_day:
            chunks = self._take_day(_counted(queue), room, blocked, now, flush=flush)
        else:
            chunks = (
                self._take_unblocked(queue, room, blocked) if blocked else self._take(queue, room)
            )
        if not chunks:
            return None
        batch = batch_of(lane, chunks)
        if self._pace is not None:
            self._pace.went(batch.count)
        return batch

    def _take(self, queue: LaneQueue, room: _Room) -> list[Chunk]:
        chunks = queue.take(room.bytes, room.events)
        if not chunks:
            first, *rest = self._cut(queue.popleft(), room)
            queue.put_back(rest)
            chunks.append(first)
        return chunks

    def _cut(self, chunk: Chunk, room: _Room) -> list[Chunk]:
        """The chunk in pieces that each fit an empty batch."""
        pieces = cut_by_size(chunk, room.bytes, room.events)
        if len(pieces) > 1:
            self._buffer.replace(chunk, pieces)
            return pieces
        return [chunk]

    def _take_unblocked(self, queue: LaneQueue, room: _Room, blocked: Set[str]) -> list[Chunk]:
        chunks: list[Chunk] = []
        unfit: list[Chunk] = []
        held: set[str] = set()
        while queue and len(unfit) < READ_AHEAD_CHUNKS and len(held) < READ_AHEAD_IDS:
            chunk = queue.popleft()
            if not (blocked.isdisjoint(chunk.ids) and held.isdisjoint(chunk.ids)):
                held |= chunk.ids
                unfit.append(chunk)
            elif room.fits(chunk):
                chunks.append(chunk)
                room.take(chunk)
            elif chunks:
                unfit.append(chunk)
                break
            else:
                first, *rest = self._cut(chunk, room)
                chunks.append(first)
                unfit += rest
                break
        queue.put_back(unfit)
        return chunks

    def _take_day(
        self, queue: DayQueue, room: _Room, blocked: Set[str], now: float, *, flush: bool
    ) -> list[Chunk]:
        """Take chunks of one day: of the first one that may go, and of which a batch is due."""
        fixed = self.policy.one_day and bool(blocked)
        if fixed and self._day not in queue.days:
            return []
        if not blocked and len(queue.days) == 1:
            chunks = self._take(queue, room)
            self._day = chunks[0].day
            return chunks
        chunks = []
        last = 0
        left = 0
        held: set[str] = set()
        ready = flush or queue.cost >= self.policy.gather_bytes
        for passed, chunk in enumerate(queue, 1):
            if (
                ((fixed or chunks) and chunk.day != self._day)
                or not (blocked.isdisjoint(chunk.ids) and held.isdisjoint(chunk.ids))
                or not (ready or chunks or self._is_due(chunk, queue, now))
            ):
                held |= chunk.ids
                if passed - last >= READ_AHEAD_CHUNKS:
                    break
                continue
            if not chunks:
                self._day = chunk.day
                left = queue.days[chunk.day].events
                if not room.fits(chunk):
                    return self._cut_first(queue, passed, room)
            elif not room.fits(chunk):
                break
            chunks.append(chunk)
            room.take(chunk)
            last = passed
            left = left - chunk.count
            if not left:
                break
        # what fills its day waits behind what isn't due, and nothing in flight would wake delivery
        if not (chunks or ready or blocked):
            return self._take_day(queue, room, blocked, now, flush=True)
        queue.remove(last, frozenset(chunks))
        return chunks

    def _is_due(self, chunk: Chunk, queue: DayQueue, now: float) -> bool:
        """Whether a batch that begins with this chunk is due: its day has a full one, or it is old
        enough, or from the future.

        Or its day seems to be over: as many events of other days came since then as a batch has.
        So a source in the order of time settles in that order.
        """
        total = queue.days[chunk.day]
        is_over = queue.appended - total.last >= self.policy.max_events
        return (
            is_over
            or self._is_full_day(total)
            or not now - self.policy.max_age < chunk.received_at <= now
        )

    def _cut_first(self, queue: DayQueue, passed: int, room: _Room) -> list[Chunk]:
        """The first piece of the last of the chunks that were passed; the other
        pieces stay in its place.
        """
        *passed_over, chunk = [queue.popleft() for _ in range(passed)]
        first, *rest = self._cut(chunk, room)
        queue.put_back([*passed_over, *rest])
        return [first]


def _counted(queue: LaneQueue) -> DayQueue:
    if not isinstance(queue, DayQueue):
        raise TypeError("batches by day need a buffer whose queues count by day")
    return queue


def batch_of(lane: Lane, chunks: Iterable[Chunk]) -> Batch:
    """The batch of a lane's chunks, with the exact size of its body."""
    held = tuple(chunks)
    return Batch(lane, held, envelope_size(lane, held))
