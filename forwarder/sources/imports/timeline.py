"""When the events of a source are: by UTC day, and how far they are from the order of time.

Invariant: at most `MOST_DAYS` days are told apart, and of each file only the latest time so far is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from forwarder.sources.imports.moments import DAY

MOST_DAYS: Final = 36_600
"""A century. A source that has more days is no history of events; those past it are counted together."""


class DayAmount(Struct, gc=False):
    """Events and their bytes, as they would be sent."""

    events: int = 0
    bytes: int = 0


class DayAmounts:
    """How much there is of each UTC day."""

    def __init__(self, most: int = MOST_DAYS) -> None:
        self._most = most
        self._days: dict[int, DayAmount] = {}
        self.other = DayAmount()
        """Of the days that came when there were too many."""

    def __len__(self) -> int:
        return len(self._days)

    def add(self, time: int, size: int) -> None:
        """Count an event."""
        amount = self._days.get(time // DAY)
        if amount is None:
            amount = self.other if len(self._days) >= self._most else self._days.setdefault(time // DAY, DayAmount())
        amount.events += 1
        amount.bytes += size

    def items(self) -> list[tuple[int, DayAmount]]:
        """Each day, the oldest first."""
        return sorted(self._days.items())

    def requests(self, batch_events: int, batch_bytes: int) -> int:
        """How many requests it takes at least: none spans two days."""
        amounts: Mapping[int, DayAmount] = {**self._days, -1: self.other}
        return sum(max(-(-each.events // batch_events), -(-each.bytes // batch_bytes)) for each in amounts.values())


class TimeOrder:
    """How far events are from the order of time: in the source as a whole, and within each file."""

    def __init__(self) -> None:
        self.late = 0
        """Events older than one that came before."""
        self.late_in_file = 0
        """Events older than one that came before in the same file: naming the files in another order doesn't mend these."""
        self.furthest = 0
        """How much older at most, in microseconds."""
        self._latest = 0
        self._file = ""
        self._latest_in_file = 0

    def add(self, file: str, time: int) -> None:
        """Look at the next event."""
        if file != self._file:
            self._file, self._latest_in_file = file, 0
        if time >= self._latest_in_file:
            self._latest_in_file = time
        else:
            self.late_in_file += 1
        if time >= self._latest:
            self._latest = time
        else:
            self.late += 1
            self.furthest = max(self.furthest, self._latest - time)
