"""Whose turn it is: lanes share the upstream by bytes, live ones before historical ones.

Invariants: among lanes of a kind the one served least comes first; a lane that newly has something starts level with the least
served one of its kind that waits, so that neither a new lane nor one that was idle gets ahead by its past. Of each twenty requests
one begins with the historical lanes, so that a backlog can't be starved (architecture: Limiter).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from forwarder.core.event import Lane

HISTORICAL_EVERY: Final = 20


class Turns:
    """Keeps the bytes that each waiting lane was served."""

    def __init__(self) -> None:
        self._served: dict[Lane, int] = {}
        self._requests = 0

    def order(self, waiting: Collection[Lane]) -> list[Lane]:
        """The waiting lanes, whose turn it is first."""
        self._admit(waiting)
        historical_first = self._requests % HISTORICAL_EVERY == HISTORICAL_EVERY - 1
        return sorted(waiting, key=lambda lane: (lane.historical != historical_first, self._served[lane]))

    def _admit(self, waiting: Collection[Lane]) -> None:
        known = {lane: self._served[lane] for lane in waiting if lane in self._served}
        levels = [min([served for lane, served in known.items() if lane.historical == kind], default=0) for kind in (False, True)]
        self._served = {lane: known.get(lane, levels[lane.historical]) for lane in waiting}

    def took(self, lane: Lane, size: int) -> None:
        """The lane was served a request of `size` bytes."""
        self._served[lane] = self._served.get(lane, 0) + size
        self._requests += 1
