"""A chunk that is a record on disk, or a part of one; and what the buffer holds of a lane."""

from __future__ import annotations

from collections import deque
from typing import Final

from forwarder.buffer.disk.runs import Run
from forwarder.buffer.disk.segment import Stored
from forwarder.buffer.holdings import LaneHolding
from forwarder.core.ack import Ack
from forwarder.core.event import Chunk, Lane
from forwarder.core.lanes import LanePool

WINDOW: Final = 64 << 20
"""Bytes of memory that events at hand may take together: waiting to be sent, or in flight. The others wait on disk alone."""

LEAST_SHARE: Final = 512 << 10
"""What a lane may have at hand however full the window is."""


class StoredChunk(Chunk):
    """A chunk with its record. `first` is the index of its first event in the record as it was received."""

    __slots__ = ("first", "record")

    def __init__(  # noqa: PLR0917 - as in its base
        self,
        lane: Lane,
        data: bytes,
        count: int,
        ids: frozenset[str],
        received_at: float,
        source: str,
        ack: Ack | None,
        *,
        record: Stored,
        first: int,
    ) -> None:
        super().__init__(lane, data, count, ids, received_at, source, ack)
        self.record = record
        self.first = first

    @property
    def place(self) -> tuple[int, int]:
        """See `Chunk.place`."""
        return self.record.sequence, self.first

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        """See `Chunk.part`."""
        return StoredChunk(
            self.lane, data, count, ids, self.received_at, self.source, self.ack, record=self.record, first=self.first + at
        )


class DiskHolding(LaneHolding):
    """What the buffer holds of a lane: `bytes` as they count against the limit, offered ones included; `queue` has what is at hand and
    waits, `runs` what waits on disk alone, oldest first; `at_hand` is the memory that chunks at hand take."""

    __slots__ = ("at_hand", "loading", "ordered", "runs", "spilling")

    def __init__(self, pool: LanePool | None = None, *, ordered: bool) -> None:
        super().__init__(pool)
        self.ordered = ordered
        self.at_hand = 0
        self.loading = False
        self.spilling = False
        """Whether the last record that came is on disk alone, and its run may grow."""
        self.runs: deque[Run] = deque()


class Window:
    """The account of memory that chunks take, in bytes. A lane may have as much at hand as is free beside it: the more lanes there are
    with much to send, the less each gets, and none can take it all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def share(self) -> int:
        """What one lane may have at hand now."""
        return max(self.max_bytes - self.used, LEAST_SHARE)
