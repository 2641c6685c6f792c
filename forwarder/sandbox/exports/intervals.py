"""Intervals of batch exports: aligned to UTC, a week to its Monday."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

LENGTHS: Final[Mapping[str, timedelta]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "every 5 minutes": timedelta(minutes=5),
    "every 15 minutes": timedelta(minutes=15),
}
MOST: Final = 100_000
"""Intervals of one backfill, and that a schedule catches up one by one: what is older goes out
with the first of them.
"""
EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
"""A Monday."""


class TimeRange(NamedTuple):
    """`[first, last)`."""

    first: datetime
    last: datetime


class ExportSchedule(NamedTuple):
    """When an export runs."""

    interval: str
    created_at: datetime
    start_at: datetime | None
    end_at: datetime | None


def floor(moment: datetime, interval: str) -> datetime:
    """The beginning of the interval that a moment is in."""
    length = LENGTHS[interval]
    return EARLIEST + (moment - EARLIEST) // length * length


def ceiling(moment: datetime, interval: str) -> datetime:
    """The first boundary after a moment. Raises `OverflowError` where there is none."""
    return floor(moment, interval) + LENGTHS[interval]


def next_of_schedule(
    schedule: ExportSchedule, done: datetime | None, now: datetime
) -> TimeRange | None:
    """The interval that a schedule runs next, once it has ended; None if the schedule ends before.
    `done` is the end of the last one.

    The first interval is that of `start_at`, else the one in which the export was created. One
    that follows an interval of another length begins where that ended.
    """
    interval, created_at, start_at, end_at = schedule
    start = floor(created_at if start_at is None else start_at, interval)
    first = start if done is None else max(start, done)
    try:
        last = ceiling(max(first, now - MOST * LENGTHS[interval]), interval)
    except OverflowError:
        return None
    return None if end_at is not None and last > end_at else TimeRange(first, last)


def count(span: TimeRange, interval: str) -> int:
    """How many intervals a range touches."""
    return -((floor(span.first, interval) - span.last) // LENGTHS[interval])


def split(span: TimeRange, interval: str) -> list[TimeRange]:
    """A range cut where intervals begin, the oldest first. Its own ends stay."""
    parts = list[TimeRange]()
    first = span.first
    end = floor_before(span.last, interval)
    while first < end:
        parts.append(TimeRange(first, ceiling(first, interval)))
        first = parts[-1].last
    parts.append(TimeRange(first, span.last))
    return parts


def floor_before(moment: datetime, interval: str) -> datetime:
    """The beginning of the interval that ends at a moment, or that it is in."""
    return floor(moment - timedelta(microseconds=1), interval)
