"""Times as migrations count them: microseconds and days since 1970, UTC; and how they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def when(time: int) -> str:
    """A time in UTC: to the millisecond, or to the microsecond where it has any."""
    text = (EPOCH + timedelta(microseconds=time)).isoformat(timespec="microseconds" if time % 1000 else "milliseconds")
    return text.removesuffix("+00:00") + "Z"


def date_of(day: int) -> str:
    """The date of a day, counted from 1970: `2024-02-29`."""
    return (EPOCH + timedelta(days=day)).date().isoformat()


def day_of(time: int) -> str:
    """The date of a time."""
    return date_of(time // DAY)
