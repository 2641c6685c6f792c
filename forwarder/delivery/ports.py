"""What delivery asks of its sibling, the batcher."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from forwarder.core.event import Batch, Lane


class Batcher(Protocol):
    """Makes batches of what waits in the buffer. All times are wall-clock seconds, as in `Chunk.received_at`."""

    def next(
        self, lane: Lane, now: float, *, blocked: AbstractSet[str], max_body: int | None, flush: bool, max_events: int | None = None
    ) -> Batch | None:
        """Take the lane's next batch off the buffer's queue if one is due by bytes, count or age (`flush`: whatever there is).

        `blocked` are ordering keys that may not be taken now: chunks that hold one, and later chunks that share a key with a chunk
        so skipped, stay in the queue. `max_body` is a bound of the body's size, `max_events` of the count, below the usual ones.
        """

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the lane's next batch is due; not after `now` if it is due already; None if nothing waits."""

    def lanes(self) -> Sequence[Lane]:
        """The lanes with something waiting, in the order of turn: live before historical, but historical gets one request in twenty."""
