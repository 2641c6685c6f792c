"""Times that can't be: how far records' times are from those of their receipt, which the vendor
wrote by its own clock, in UTC.

Most records are received within seconds. If the times are those of another zone than they are read
in, their receipts are away from them by a whole number of quarters of an hour, and always the same
number, or two by the season. A sender that was offline has any distance, and many of them have
many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from forwarder.sources.imports.times import DAY, EPOCH, MINUTE, SECOND

QUARTER: Final = 15 * MINUTE
_EARLY: Final = 60 * SECOND
"""How far a sender's clock may be ahead."""
_PROMPT: Final = 180 * SECOND
"""How late, and how early, records are that count as received at once."""
_FARTHEST: Final = 15 * 4
"""Quarters of an hour that no zone exceeds."""
_SEASONS: Final = (-4, -2, 2, 4)
"""Quarters by which clocks are moved twice a year."""
ENOUGH: Final = 20
"""Fewer records show nothing."""
_MOST: Final = 2000
"""Months of which the distances are kept."""
_MONTH: Final = 30 * DAY
_SHOWN: Final = 3
ZONES: Final = (
    "UTC",
    *("America/Los_Angeles", "America/New_York", "America/Chicago", "America/Denver"),
    *("Europe/London", "Europe/Berlin", "Europe/Athens", "Europe/Moscow", "Europe/Istanbul"),
    *("America/Sao_Paulo", "America/Argentina/Buenos_Aires", "America/Mexico_City"),
    *("America/Bogota", "America/Phoenix", "America/Anchorage", "Pacific/Honolulu"),
    *("America/Halifax", "America/St_Johns", "America/Santiago", "Africa/Lagos", "Africa/Cairo"),
    *("Africa/Johannesburg", "Africa/Nairobi", "Asia/Dubai", "Asia/Tehran", "Asia/Karachi"),
    *("Asia/Kolkata", "Asia/Kathmandu", "Asia/Dhaka", "Asia/Jakarta", "Asia/Bangkok"),
    *("Asia/Shanghai", "Asia/Singapore", "Asia/Hong_Kong", "Asia/Tokyo", "Asia/Seoul"),
    *("Australia/Perth", "Australia/Adelaide", "Australia/Brisbane", "Australia/Sydney"),
    *("Pacific/Auckland", "Pacific/Chatham"),
)
"""Zones that are proposed, the first that fits first."""


class ZoneShift(Struct, frozen=True):
    """What shows that times are of another zone."""

    compared: int
    """Records with a time and one of receipt."""
    shifted: int
    """Of these, how many were received a whole number of quarters of an hour away."""
    minutes: tuple[int, ...]
    """How many minutes after their times most were received; negative: before."""
    zones: tuple[str, ...] = ()
    """Zones whose clocks show these times; the first ones."""
    offset: str = ""
    """The offset from UTC, as `--time-offset` takes it, if there is one distance."""


class ReceiptDistances:
    """Compares times with those of receipt, in bounded memory. `clock` is what times without a
    zone were read as (None: UTC).
    """

    def __init__(self, clock: tzinfo | None = None) -> None:
        self._clock = clock
        self._compared = 0
        self._counts = dict[int, int]()
        self._months = dict[tuple[int, int], list[int]]()
        """By month and distance: how many, and the time of the first."""

    def add(self, time: int, receipt: int) -> None:
        """Compare a record's time, as it was read, with that of its receipt, both in microseconds
        since 1970.
        """
        self._compared += 1
        quarters, rest = divmod(receipt - time + _EARLY, QUARTER)
        if rest > _PROMPT or abs(quarters) > _FARTHEST:
            return
        self._counts[quarters] = self._counts.get(quarters, 0) + 1
        month = time // _MONTH, quarters
        if month in self._months:
            self._months[month][0] += 1
        elif len(self._months) < _MOST:
            self._months[month] = [1, time]

    @property
    def compared(self) -> int:
        """How many records were compared."""
        return self._compared

    def shift(self) -> ZoneShift | None:
        """What the distances show; None if the times can be."""
        wrong = {quarters: count for quarters, count in self._counts.items() if quarters}
        if self._compared < ENOUGH or not wrong:
            return None
        most = max(sorted(wrong), key=wrong.__getitem__)
        other = max(_SEASONS, key=lambda season: self._counts.get(most + season, 0))
        distances = {most: wrong[most]}
        # in the other half of a year
        if (count := self._counts.get(most + other, 0)) * 10 >= self._compared:
            distances[most + other] = count
        shifted = sum(count for quarters, count in distances.items() if quarters)
        if sum(distances.values()) * 2 < self._compared or shifted * 5 < self._compared:
            return None
        return ZoneShift(
            self._compared,
            shifted,
            tuple(quarters * QUARTER // MINUTE for quarters in distances if quarters),
            (*self._fitting(distances),)[:_SHOWN],
            _offset(self._ahead(most)) if len(distances) == 1 and self._is_constant() else "",
        )

    def _is_constant(self) -> bool:
        """Whether the clock that times were read as is never moved: else one distance means that
        the clock that shows them is moved, too.
        """
        times = [time for _, time in self._months.values()]
        year = range(min(times), min(times) + 12 * _MONTH, _MONTH)
        return len({_offset_of(self._clock, time) for time in (*times, *year)}) == 1

    def _ahead(self, quarters: int) -> int:
        """How many minutes ahead of UTC the clock is that shows times of this distance."""
        first = min(time for (_, other), (_, time) in self._months.items() if other == quarters)
        return _offset_of(self._clock, first) - quarters * QUARTER // MINUTE

    def _fitting(self, distances: Mapping[int, int]) -> Iterator[str]:
        """The zones whose clocks show the times of all months, but for a few records."""
        seen = [
            (count, time, quarters)
            for (_, quarters), (count, time) in self._months.items()
            if quarters in distances
        ]
        for name in ZONES:
            try:
                zone = ZoneInfo(name)
            except ZoneInfoNotFoundError:
                continue
            fitting = sum(
                count
                for count, time, quarters in seen
                if _offset_of(zone, time + quarters * QUARTER)
                == _offset_of(self._clock, time) - quarters * QUARTER // MINUTE
            )
            if fitting * 20 >= 19 * sum(count for count, *_ in seen):
                yield name


def _offset_of(clock: tzinfo | None, time: int) -> int:
    """How many minutes ahead of UTC a clock is at a time in UTC."""
    if clock is None:
        return 0
    there: datetime = (EPOCH + timedelta(microseconds=time)).astimezone(clock)
    return (there.utcoffset() or timedelta()) // timedelta(minutes=1)


def _offset(minutes: int) -> str:
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"
