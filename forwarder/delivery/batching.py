"""Takes batches from the buffer's lanes: closed by bytes, by count or by age.

Invariants: a batch's size is the exact size of its request's body, envelope included, and is below the limit unless it is one event that
alone is over it. Chunks are taken whole, and cut only where one doesn't fit an empty batch. A chunk with an event that may not go yet
keeps its place in the queue, and holds back every later chunk that shares an id with it: to part such chunks event by event would
cost more than the one round trip that the others in it wait (docs/decisions/0005-order-by-request-not-by-event.md).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.lanes import LaneQueue
from forwarder.core.ports import Buffer
from forwarder.delivery.turns import Turns
from forwarder.wire.chunks import cut_by_size
from forwarder.wire.envelope import envelope_size

READ_AHEAD_CHUNKS: Final = 256
"""How many chunks that may not go yet a lane is searched past for others."""

READ_AHEAD_IDS: Final = 2048
"""How many ids such chunks may hold back before the search ends: each look at a queue of large chunks would cost more than it finds."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch is closed: `max_bytes` of body before compression, `max_events`, or `max_age` seconds since its first event came."""

    max_bytes: int
    max_events: int
    max_age: float


@dataclass(slots=True)
class _Room:
    """What still fits into the batch that is being made."""

    bytes: int
    events: int

    def fits(self, chunk: Chunk) -> bool:
        return len(chunk.data) < self.bytes and chunk.count <= self.events

    def take(self, chunk: Chunk) -> None:
        self.bytes -= len(chunk.data) + 1
        self.events -= chunk.count


class Batcher:
    """Makes the next batch of a lane; says which lane's turn it is and when a lane is due."""

    def __init__(self, buffer: Buffer, turns: Turns, policy: BatchPolicy) -> None:
        self._buffer = buffer
        self._turns = turns
        self.policy = policy

    def lanes(self) -> Sequence[Lane]:
        """The lanes that have something waiting, in the order of their turn: live ones first, but for one request in twenty."""
        return self._turns.order(self._buffer.waiting_lanes())

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due, wall-clock seconds: `now` if it is full or from the future, None if nothing waits."""
        queue = self._buffer.queue(lane)
        if queue.oldest is None:
            return None
        if queue.size >= self.policy.max_bytes or queue.events >= self.policy.max_events:
            return now
        if queue.oldest > now:  # the clock was set back: how long the event has waited can't be told
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
        """Take the lane's next batch off its queue, if one is due (or `flush` is set); None if there is none, or all of it is blocked.

        `blocked` are ordering keys that may not be taken now; `max_body` and `max_events` are limits below the policy's own.
        """
        due = self.due_at(lane, now)
        if due is None or (due > now and not flush):
            return None
        queue = self._buffer.queue(lane)
        size_limit = min(self.policy.max_bytes, max_body or self.policy.max_bytes)
        room = _Room(size_limit - envelope_size(lane, ()), min(self.policy.max_events, max_events or self.policy.max_events))
        chunks = self._take_unblocked(queue, room, blocked) if blocked else self._take(queue, room)
        if not chunks:
            return None
        batch = Batch(lane, tuple(chunks), envelope_size(lane, chunks))
        self._turns.took(lane, batch.size)
        return batch

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
