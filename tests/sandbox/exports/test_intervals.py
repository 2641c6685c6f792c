"""Intervals of batch exports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.exports.intervals import (
    LENGTHS,
    MOST,
    ExportSchedule,
    TimeRange,
    count,
    floor,
    next_of_schedule,
    split,
)

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9990, 1, 1), timezones=st.just(UTC))
NOW = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)


@given(
    TIMES,
    st.timedeltas(timedelta(microseconds=1), timedelta(days=3)),
    st.sampled_from(list(LENGTHS)),
)
def test_a_range_is_split_where_intervals_begin(
    first: datetime, length: timedelta, interval: str
) -> None:
    """Without a hole, into as many parts as were counted, none longer than an interval; a week
    begins on Monday.
    """
    span = TimeRange(first, first + length)
    parts = split(span, interval)
    assert (parts[0].first, parts[-1].last, len(parts)) == (*span, count(span, interval))
    for part, following in pairwise(parts):
        assert part.last == following.first == floor(following.first, interval)
    assert all(timedelta() < part.last - part.first <= LENGTHS[interval] for part in parts)
    assert floor(first, "week").weekday() == 0
    assert floor(first, "day").time() == datetime.min.time()


def test_what_a_schedule_runs_next() -> None:
    """The interval of `start_at` or of the creation, then one after the other, up to `end_at`."""
    hourly = ExportSchedule("hour", NOW, None, None)
    ten = NOW.replace(minute=0)
    assert next_of_schedule(hourly, None, NOW) == (ten, ten + timedelta(hours=1))
    assert next_of_schedule(hourly, ten + timedelta(hours=1), NOW) == (
        ten + timedelta(hours=1),
        ten + timedelta(hours=2),
    )
    later = hourly._replace(start_at=NOW + timedelta(hours=2))
    for done in (None, ten):
        assert next_of_schedule(later, done, NOW) == (
            ten + timedelta(hours=2),
            ten + timedelta(hours=3),
        )
    assert next_of_schedule(hourly._replace(end_at=NOW), None, NOW) is None
    assert next_of_schedule(hourly._replace(interval="day"), ten, NOW) == (
        ten,
        ten.replace(hour=0) + timedelta(days=1),
    )
    assert (
        next_of_schedule(
            hourly, datetime.max.replace(tzinfo=UTC, minute=0, second=0, microsecond=0), NOW
        )
        is None
    )


def test_a_schedule_limits_how_much_it_catches_up() -> None:
    """From `start_at` in the year 1 on there is one long interval, before the
    newest hundred thousand.
    """
    long_ago = datetime(1, 1, 1, tzinfo=UTC)
    for interval, length in LENGTHS.items():
        time_range = next_of_schedule(ExportSchedule(interval, NOW, long_ago, None), None, NOW)
        assert time_range is not None
        assert time_range.first == long_ago
        assert MOST - 2 <= (NOW - time_range.last) // length <= MOST
