"""A batch: the chunks that make up one upstream request."""

from __future__ import annotations

from dataclasses import dataclass

from forwarder.core.event import Chunk, Lane


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Chunks of one lane, in order of receipt, that go in one request of exactly `size` bytes before compression."""

    lane: Lane
    chunks: tuple[Chunk, ...]
    size: int

    @property
    def count(self) -> int:
        """How many events there are in it."""
        return sum([chunk.count for chunk in self.chunks])

    @property
    def received_at(self) -> float:
        """When its oldest event was received, wall-clock seconds."""
        return min([chunk.received_at for chunk in self.chunks])

    def ids(self) -> frozenset[str]:
        """The ordering keys of all its events."""
        return frozenset().union(*[chunk.ids for chunk in self.chunks])
