"""What a buffer holds of each lane, and what every buffer does with that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from forwarder.core.ack import Ack
from forwarder.core.event import Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.ports import DropReason, Fate


class LaneHolding:
    """What the buffer holds of one lane: `bytes` and `events` waiting or in flight, and the queue of what waits."""

    __slots__ = ("bytes", "events", "queue")

    def __init__(self) -> None:
        self.bytes = 0
        self.events = 0
        self.queue = LaneQueue()


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """Bytes count as against the limit: the events' own and the overhead of holding them."""

    bytes: int
    limit_bytes: int
    events: int


def withdraw(holdings: Mapping[Lane, LaneHolding], acks: Collection[Ack], lane: Lane | None) -> list[Chunk]:
    """Take the chunks that have one of these acks and still wait, in `lane` or anywhere, off their queues."""
    wanted = frozenset(acks)
    return [chunk for each, holding in holdings.items() if lane in (None, each) for chunk in holding.queue.withdraw(wanted)]


def tell_acks(chunks: Sequence[Chunk], fate: Fate | DropReason) -> None:
    """Tell the acks of settled chunks how that ended."""
    for chunk in chunks:
        if chunk.ack is not None:
            chunk.ack.settle(chunk.count, chunk.data, fate)


def drop_oldest(holdings: Mapping[Lane, LaneHolding], lane: Lane | None) -> list[Chunk]:
    """Take the chunk that has waited longest, in `lane` or anywhere, off its queue; empty if none is at hand."""
    queues = [holding.queue for each, holding in holdings.items() if holding.queue and lane in (None, each)]
    return [min(queues, key=lambda queue: queue.oldest or 0.0).popleft()] if queues else []
