"""Makes batches of a lane's waiting events: closed by bytes, by count or by age.

Invariants: a batch's size is the exact size of its request's body, envelope included, and is below the limit unless it is one event that
alone is over it. Chunks stay whole, and are cut only where one doesn't fit an empty batch. A chunk with an event
that is blocked keeps its place in the queue, and holds back every later chunk that shares an id with it: to cut such chunks event by event
would cost more than the one round trip that its other events wait (docs/decisions/0005-order-by-request-not-by-event.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol

from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.lanes import LaneQueue
from forwarder.core.ports import Buffer
from forwarder.wire.envelope import cut_by_size, envelope_size

READ_AHEAD_CHUNKS: Final = 256
"""How many blocked chunks a lane's queue is searched past for others."""

READ_AHEAD_IDS: Final = 2048
"""How many ids such chunks may hold back before the search ends: searching on costs more than it finds."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch is closed: `max_bytes` of body before compression, `max_events`, or `max_age` seconds since its first event came."""

    max_bytes: int
    max_events: int
    max_age: float


class BatchSource(Protocol):
    """What the scheduler needs of a batcher. All times are wall-clock seconds, as in `Chunk.received_at`."""

    def next(
        self, lane: Lane, now: float, *, blocked: Set[str], max_body: int | None, flush: bool, max_events: int | None = None
    ) -> Batch | None:
        """Take the lane's next batch off the buffer's queue if one is due by bytes, count or age (`flush`: if anything waits).

        `blocked` are ordering keys that may not be taken now: chunks that hold one, and later chunks that share a key with a chunk
        so skipped, stay in the queue. `max_body` and `max_events` are limits below the usual ones.
        """

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due; not after `now` if it is due already; None if nothing waits."""

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
    """See `BatchSource`. `policy` may be replaced."""

    def __init__(self, buffer: Buffer, policy: BatchPolicy) -> None:
        self._buffer = buffer
        self.policy = policy

    def lanes(self) -> Sequence[Lane]:
        """The lanes that have events waiting."""
        return list(self._buffer.waiting_lanes())

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due: `now` if it is full or from the future, None if nothing waits."""
        queue = self._buffer.queue(lane)
        if queue.oldest is None:
            return None
        if queue.size >= self.policy.max_bytes or queue.events >= self.policy.max_events:
            return now
        if queue.oldest > now:  # the clock was set back: the event's age is unknown
            return now
        return queue.oldest + self.policy.max_age

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
        """See `BatchSource.next`."""
        due = self.due_at(lane, now)
        if due is None or (due > now and not flush):
            return None
        queue = self._buffer.queue(lane)
        size_limit = min(self.policy.max_bytes, max_body or self.policy.max_bytes)
        room = _Room(size_limit - envelope_size(lane, ()), min(self.policy.max_events, max_events or self.policy.max_events))
        chunks = self._take_unblocked(queue, room, blocked) if blocked else self._take(queue, room)
        if not chunks:
            return None
        return batch_of(lane, chunks)

    def _take(self, queue: LaneQueue, room: _Room) -> list[Chunk]:
        taken = queue.take(room.bytes, room.events)
        if not taken:
            first, *rest = self._cut(queue.popleft(), room)
            queue.put_back(rest)
            taken.append(first)
        return taken

    def _cut(self, chunk: Chunk, room: _Room) -> list[Chunk]:
        """The chunk in pieces that each fit an empty batch."""
        pieces = cut_by_size(chunk, room.bytes, room.events)
        if len(pieces) > 1:
            self._buffer.replace(chunk, pieces)
            return pieces
        return [chunk]

    def _take_unblocked(self, queue: LaneQueue, room: _Room, blocked: Set[str]) -> list[Chunk]:
        taken: list[Chunk] = []
        kept: list[Chunk] = []
        held: set[str] = set()
        while queue and len(kept) < READ_AHEAD_CHUNKS and len(held) < READ_AHEAD_IDS:
            chunk = queue.popleft()
            if not (blocked.isdisjoint(chunk.ids) and held.isdisjoint(chunk.ids)):
                held |= chunk.ids
                kept.append(chunk)
            elif room.fits(chunk):
                taken.append(chunk)
                room.take(chunk)
            elif taken:
                kept.append(chunk)
                break
            else:
                first, *rest = self._cut(chunk, room)
                taken.append(first)
                kept += rest
                break
        queue.put_back(kept)
        return taken


def batch_of(lane: Lane, chunks: Iterable[Chunk]) -> Batch:
    """The batch of a lane's chunks, with the exact size of its body."""
    held = tuple(chunks)
    return Batch(lane, held, envelope_size(lane, held))
