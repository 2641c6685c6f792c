"""The buffer in memory: bounded in bytes, gone with the process.

Invariants: `used` is the sum of the costs of all chunks that were offered and not settled, waiting or in flight; it never exceeds
the limit by more than the overhead of chunks that were cut after they were taken. A lane without events isn't remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forwarder.core.errors import BufferFull
from forwarder.core.event import Chunk, Lane
from forwarder.core.lane_queue import LaneQueue


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


class MemoryBuffer:
    """See `core.ports.Buffer`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.holdings: dict[Lane, LaneHolding] = {}

    def offer(self, chunks: Sequence[Chunk]) -> None:
        """Take all of `chunks` or none. Raises `BufferFull`, taking none."""
        cost = 0
        for chunk in chunks:
            cost += chunk.cost
        if self.used + cost > self.max_bytes:
            raise BufferFull("the buffer is full", hint="the upstream is slower than the senders, or down; see `forwarder status`")
        for chunk in chunks:
            self._hold(chunk).queue.append(chunk)

    def _hold(self, chunk: Chunk) -> LaneHolding:
        holding = self.holdings.get(chunk.lane)
        if holding is None:
            holding = self.holdings[chunk.lane] = LaneHolding()
        cost = chunk.cost
        holding.bytes += cost
        holding.events += chunk.count
        self.used += cost
        return holding

    def queue(self, lane: Lane) -> LaneQueue:
        """The lane's waiting chunks; an empty queue for a lane that has none."""
        holding = self.holdings.get(lane)
        return holding.queue if holding else LaneQueue()

    def waiting_lanes(self) -> Collection[Lane]:
        """The lanes that have waiting chunks."""
        return [lane for lane, holding in self.holdings.items() if holding.queue]

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts`, which hold the same events, stand for `chunk`."""
        for part in parts:
            self._hold(part)
        self.settle([chunk])

    def settle(self, chunks: Sequence[Chunk]) -> None:
        """Forget chunks of one lane, and the lane with its last one."""
        cost = sum([chunk.cost for chunk in chunks])
        lane = chunks[0].lane
        holding = self.holdings[lane]
        self.used -= cost
        holding.bytes -= cost
        holding.events -= sum([chunk.count for chunk in chunks])
        if not holding.events:
            del self.holdings[lane]

    def count(self, lane: Lane) -> int:
        """Events of the lane that are held, in flight or waiting."""
        holding = self.holdings.get(lane)
        return holding.events if holding else 0

    def statistics(self) -> BufferStatistics:
        """Figures for metrics, health and tests."""
        return BufferStatistics(self.used, self.max_bytes, sum([holding.events for holding in self.holdings.values()]))
