"""What a buffer holds of each lane, and what every buffer does with that.

Invariant: a pool's figures are the sums over the holdings that are in it. Each lane is in one pool
or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.lane_queue import LanePool, LaneQueue
from forwarder.core.ports import DropCause, Fate

PoolOf = Callable[[Lane], LanePool | None]


class LaneHolding:
    """What the buffer holds of one lane: `bytes` and `events` waiting or in flight, and the queue
    of what waits.

    Whatever changes `bytes` changes the pool's, too.
    """

    __slots__ = ("bytes", "events", "pool", "queue")

    def __init__(
        self, pool: LanePool | None = None, make_queue: Callable[[], LaneQueue] = LaneQueue
    ) -> None:
        self.bytes = 0
        self.events = 0
        self.queue = make_queue()
        self.pool = pool
        if pool is not None:
            pool.lanes += 1

    def move(self, pool: LanePool | None) -> None:
        """Leave the pool for another one, or for none."""
        if pool is self.pool:
            return
        for share, sign in ((self.pool, -1), (pool, 1)):
            if share is not None:
                share.bytes += sign * self.bytes
                share.lanes += sign
        self.pool = pool


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """Bytes count as against the limit: the events' own and the overhead of holding them."""

    bytes: int
    limit_bytes: int
    events: int


def no_pool(lane: Lane) -> LanePool | None:  # noqa: ARG001 - a `PoolOf`
    """The pool of a lane where there are no pools."""
    return None


def assign_pools(holdings: Mapping[Lane, LaneHolding], pool_of: PoolOf) -> None:
    """Put each lane into its pool anew."""
    for lane, holding in holdings.items():
        holding.move(pool_of(lane))


def withdraw(
    holdings: Mapping[Lane, LaneHolding], acks: Collection[Ack], lane: Lane | None
) -> list[Chunk]:
    """Take the chunks that have one of these acks and still wait, in `lane` or
    anywhere, off their queues.
    """
    wanted = frozenset(acks)
    return [
        chunk
        for other, holding in holdings.items()
        if lane in (None, other)
        for chunk in holding.queue.withdraw(wanted)
    ]


def settle_acks(chunks: Sequence[Chunk], fate: Fate | DropCause) -> None:
    """Settle the acks of chunks with their fate."""
    for chunk in chunks:
        if chunk.ack is not None:
            chunk.ack.settle(chunk.count, chunk.data, fate)


def drop_oldest(holdings: Mapping[Lane, LaneHolding], lane: Lane | None) -> list[Chunk]:
    """Take the chunk that has waited longest, in `lane` or anywhere, off its queue; empty if none
    is in memory.
    """
    queues = [
        holding.queue
        for other, holding in holdings.items()
        if holding.queue and lane in (None, other)
    ]
    return [min(queues, key=lambda queue: queue.oldest or 0.0).popleft()] if queues else []
