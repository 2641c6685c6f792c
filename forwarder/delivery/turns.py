"""The order in which lanes are asked for the next request (docs/explanation/delivery.md,
Concurrency). Pure.

Invariants: live lanes come before historical ones, but one request in twenty begins with the
historical lanes, so that a backlog can't be starved. Pending work comes before fresh batches of
its kind; while the upstream fails, before all fresh batches. Fresh batches share the upstream by
bytes: among waiting lanes of a kind the one served least comes first, and a lane that newly waits
starts level with the least served one of its kind, so that neither a new lane nor one that was
idle gets ahead by its past.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from forwarder.core.event import Lane

HISTORICAL_EVERY: Final = 20


class Turns:
    """Keeps the bytes that each waiting lane was served, and counts the requests since the last
    historical one.
    """

    def __init__(self) -> None:
        self._served: dict[bool, dict[Lane, int]] = {False: {}, True: {}}
        """By kind: live, historical."""
        self._since_historical = 0

    def order(
        self, pending: Collection[Lane], waiting: Collection[Lane], *, pending_first: bool = False
    ) -> Iterator[Lane]:
        """The lanes with `pending` work and those with events `waiting` for a fresh batch, first
        to last. A lane may come twice.

        `pending_first`: all pending work comes before all fresh batches,
        because the upstream fails.
        """
        historical_first = self._since_historical >= HISTORICAL_EVERY - 1
        for historical in (historical_first, not historical_first):
            yield from [lane for lane in pending if lane.historical == historical]
            if not pending_first:
                yield from self._by_bytes(waiting, historical)
        if pending_first:
            for historical in (historical_first, not historical_first):
                yield from self._by_bytes(waiting, historical)

    def count_request(self, lane: Lane) -> None:
        """The lane was given a request, of pending work or of a fresh batch."""
        self._since_historical = 0 if lane.historical else self._since_historical + 1

    def count_batch(self, lane: Lane, size: int) -> None:
        """The lane was given a fresh batch of `size` bytes."""
        served = self._served[lane.historical]
        served[lane] = served.get(lane, 0) + size

    # FBT001: `historical` names a kind of lanes.
    def _by_bytes(self, waiting: Collection[Lane], historical: bool) -> list[Lane]:  # noqa: FBT001
        lanes = [lane for lane in waiting if lane.historical == historical]
        known = self._served[historical]
        level = min([known[lane] for lane in lanes if lane in known], default=0)
        served = self._served[historical] = {lane: known.get(lane, level) for lane in lanes}
        lanes.sort(key=served.__getitem__)
        return lanes
