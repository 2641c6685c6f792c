"""The buffer in memory: bounded in bytes, gone with the process.

Invariants: `used` is the sum of the costs of all chunks that were offered and not settled, waiting
or in flight; it exceeds the limit only by the overhead of chunks that were cut afterwards. A lane
without events isn't remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from forwarder.buffer.holdings import (
    BufferStatistics,
    LaneHolding,
    PoolOf,
    drop_oldest,
    no_pool,
    settle_acks,
    withdraw,
)
from forwarder.core.ack import AckCallback
from forwarder.core.errors import BUFFER_FULL_HINT, BufferFull
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.lane_queue import DayQueue, LaneQueue
from forwarder.core.ports import DropCause, Fate


class MemoryBuffer:
    """The buffer in memory, for destinations that may lose events."""

    def __init__(self, max_bytes: int, *, any_if_empty: bool = False, by_day: bool = False) -> None:
        """`any_if_empty`: whether an empty buffer accepts what is offered whatever its size, for a
        source that would offer it for ever.

        `by_day`: whether its queues count what waits of each day (`DayQueue`).
        """
        self.max_bytes = max_bytes
        self._any_if_empty = any_if_empty
        self._make_queue: type[LaneQueue] = DayQueue if by_day else LaneQueue
        self.used = 0
        self.holdings: dict[Lane, LaneHolding] = {}
        self.pool_of: PoolOf = no_pool
        """The pool of a lane that the buffer begins to hold."""
        self.on_arrival: Callable[[], None] = lambda: None
        """Never called: what is offered is in its queue at once."""

    # `held` is never called: memory has no queue to wait in.
    def offer(
        self,
        chunks: Sequence[Chunk],
        held: AckCallback | None = None,  # noqa: ARG002
    ) -> bool:
        """Take all of `chunks`, and answer True, or none. Raises `BufferFull`, taking none."""
        self.check(chunks)
        for chunk in chunks:
            self._hold(chunk).queue.append(chunk)
        return True

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises `BufferFull` if `chunks` have no room now."""
        cost = 0
        for chunk in chunks:
            cost += chunk.cost
        if self.used + cost > self.max_bytes and (self.used or not self._any_if_empty):
            raise BufferFull("the buffer is full", hint=BUFFER_FULL_HINT)

    def cost(self, chunk: Chunk) -> int:
        """What the chunk takes of the memory."""
        return chunk.cost

    def _hold(self, chunk: Chunk) -> LaneHolding:
        holding = self.holdings.get(chunk.lane)
        if holding is None:
            holding = self.holdings[chunk.lane] = LaneHolding(
                self.pool_of(chunk.lane), self._make_queue
            )
        cost = chunk.cost
        holding.bytes += cost
        if holding.pool is not None:
            holding.pool.bytes += cost
        holding.events += chunk.count
        self.used += cost
        return holding

    def queue(self, lane: Lane) -> LaneQueue:
        """The lane's waiting chunks; an empty queue for a lane that has none."""
        holding = self.holdings.get(lane)
        return holding.queue if holding else self._make_queue()

    def waiting_lanes(self) -> Collection[Lane]:
        """The lanes that have waiting chunks."""
        return [lane for lane, holding in self.holdings.items() if holding.queue]

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts`, which hold the same events, stand for `chunk`."""
        for part in parts:
            self._hold(part)
        self._forget([chunk])

    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropCause) -> None:
        """Forget chunks of one lane, and the lane with its last one; settle their acks."""
        self._forget(chunks)
        settle_acks(chunks, fate)

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take the chunks that have one of these acks and still wait off their queues."""
        return withdraw(self.holdings, acks, lane)

    def drop_oldest(self, lane: Lane | None) -> list[Chunk]:
        """Take the chunk that has waited longest off its queue; empty if none waits."""
        return drop_oldest(self.holdings, lane)

    def oldest(self, lane: Lane) -> float | None:
        """When the oldest event that waits was received, wall-clock seconds; None if
        nothing waits.
        """
        return self.queue(lane).oldest

    def _forget(self, chunks: Sequence[Chunk]) -> None:
        cost = sum([chunk.cost for chunk in chunks])
        lane = chunks[0].lane
        holding = self.holdings[lane]
        self.used -= cost
        holding.bytes -= cost
        if holding.pool is not None:
            holding.pool.bytes -= cost
        holding.events -= sum([chunk.count for chunk in chunks])
        if not holding.events:
            holding.move(None)
            del self.holdings[lane]

    def count(self, lane: Lane) -> int:
        """Events of the lane that are held, in flight or waiting."""
        holding = self.holdings.get(lane)
        return holding.events if holding else 0

    def statistics(self) -> BufferStatistics:
        """Figures for metrics, health and tests."""
        return BufferStatistics(
            self.used, self.max_bytes, sum([holding.events for holding in self.holdings.values()])
        )
