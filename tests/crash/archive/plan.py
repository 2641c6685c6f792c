"""What the crash test of the archive has to keep: requests of events for three lanes, all of which
follow from a seed and a number.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from forwarder.core.event import Lane
from tests.crash.imports.plan import EventPlan

LANES: Final = (
    Lane("phc_archived_shop_000001"),
    Lane("phc_archived-app_000002"),
    Lane("phc_archived_shop_000001", historical=True),
)


class ArchivePlan:
    """Events of some 600 bytes, in requests of `together`; a request is of one lane."""

    def __init__(self, seed: int, count: int, together: int) -> None:
        self.count = count
        self.together = together
        self._events = EventPlan(seed, count)
        self._seed = seed

    @property
    def requests(self) -> int:
        """How many there are."""
        return -(-self.count // self.together)

    def lane(self, number: int) -> Lane:
        """The lane of an event."""
        return LANES[number // self.together % 7 % len(LANES)]

    def event(self, number: int) -> bytes:
        """An event, as it stands in a batch."""
        what = self._events.expected(number)
        uuid = what.uuid or str(UUID(int=(self._seed << 64) + number, version=4))
        head = (
            f'{{"event":"{what.event}","distinct_id":"{what.distinct_id}","timestamp":"'
            f'{what.timestamp}","uuid":"{uuid}"'
        )
        return b'%b,"properties":{%b}}' % (head.encode(), what.properties)

    def request(self, number: int) -> list[bytes]:
        """The events of a request."""
        return [
            self.event(event_number)
            for event_number in range(
                number * self.together, min(self.count, (number + 1) * self.together)
            )
        ]
