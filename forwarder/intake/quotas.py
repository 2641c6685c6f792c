"""How much of the buffer one lane, the halted lanes together, and the historical lanes together may hold.

Past its share only that lane's senders are told to wait, so that one lane's trouble isn't everybody's (architecture: Quotas).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from forwarder.core.errors import LaneFull, RequestTooLarge
from forwarder.core.event import EVENT_OVERHEAD, Chunk, Lane

LANE_SHARE: Final = 2
HALTED_SHARE: Final = 4
HISTORICAL_SHARE: Final = 2
"""One lane may hold a half, halted lanes together a quarter, historical lanes together a half."""


_SHARE_IS_FULL: Final = "this project key's share of the buffer is full"


class Holding(Protocol):
    """What the buffer holds of a lane."""

    bytes: int


class Quotas:
    """Says no before the buffer is asked. Holds no state of its own: `held` is the buffer's, `halted` is delivery's."""

    def __init__(self, max_bytes: int, held: Mapping[Lane, Holding], halted: Collection[Lane], cost: Callable[[Chunk], int]) -> None:
        """`cost`: what a chunk counts for against the buffer's limit, in bytes."""
        self._cost = cost
        self._limit = max_bytes
        self._lane_limit = max_bytes // LANE_SHARE
        self._halted_limit = max_bytes // HALTED_SHARE
        self._historical_limit = max_bytes // HISTORICAL_SHARE
        self._held = held
        self._halted = halted

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises `LaneFull` if a lane's share has no room for its chunk now, `RequestTooLarge` if an empty lane or buffer had none."""
        if len(chunks) > 1:
            self._check_together(chunks)
        for chunk in chunks:
            lane, cost = chunk.lane, self._cost(chunk)
            if cost > self._lane_limit:
                raise RequestTooLarge(f"with these events one lane would take over half of the buffer ({self._lane_limit} bytes)")
            holding = self._held.get(lane)
            if holding is not None and holding.bytes + cost > self._lane_limit:
                raise LaneFull(_SHARE_IS_FULL)
            if self._halted and lane in self._halted and self._sum_of_halted() + cost > self._halted_limit:
                raise LaneFull("deliveries for this project key are halted, and the buffer's share for such is full")
            if lane.historical and self._sum_of_historical() + cost > self._historical_limit:
                raise LaneFull("the buffer's share for historical events is full")

    def check_room(self, lane: Lane, size: int) -> None:
        """Raises `LaneFull` if the lane has no room now for `size` bytes of events: known before any work is done on them."""
        holding = self._held.get(lane)
        if holding is not None and size <= self._lane_limit < holding.bytes + size:
            raise LaneFull(_SHARE_IS_FULL)

    def _check_together(self, chunks: Sequence[Chunk]) -> None:
        """What several lanes of one request share."""
        if sum(self._cost(chunk) for chunk in chunks) > self._limit:
            raise RequestTooLarge(f"these events would take more than the whole buffer ({self._limit} bytes)")
        halted = sum(self._cost(chunk) for chunk in chunks if chunk.lane in self._halted)
        if halted and self._sum_of_halted() + halted > self._halted_limit:
            raise LaneFull("deliveries for these project keys are halted, and the buffer's share for such is full")
        historical = sum(self._cost(chunk) for chunk in chunks if chunk.lane.historical)
        if historical > self._historical_limit:
            raise RequestTooLarge(f"these historical events would take over half of the buffer ({self._historical_limit} bytes)")
        if historical and self._sum_of_historical() + historical > self._historical_limit:
            raise LaneFull("the buffer's share for historical events is full")

    def full_lanes(self, chunks: Sequence[Chunk]) -> Sequence[Lane]:
        """The lanes whose shares have no room for these chunks, when `check` said so."""
        return [chunk.lane for chunk in chunks if not self._fits(chunk)] or [chunk.lane for chunk in chunks]

    def _fits(self, chunk: Chunk) -> bool:
        try:
            self.check((chunk,))
        except LaneFull:
            return False
        return True

    @property
    def max_lane_bytes(self) -> int:
        """What an empty lane could hold at most."""
        return self._lane_limit

    @property
    def max_events(self) -> int:
        """No empty lane could hold more events than these, however small."""
        return self._lane_limit // EVENT_OVERHEAD

    def _sum_of_halted(self) -> int:
        return sum(holding.bytes for lane, holding in self._held.items() if lane in self._halted)

    def _sum_of_historical(self) -> int:
        return sum(holding.bytes for lane, holding in self._held.items() if lane.historical)
