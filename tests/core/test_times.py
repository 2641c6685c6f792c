"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.times import utc_text
from tests.support.cases import cases


@cases(
    ("time", "timespec", "text"),
    [
        (0, "", "1970-01-01T00:00:00.000Z"),
        (1_772_360_430.123, "", "2026-03-01T10:20:30.123Z"),
        (1_772_360_430.000_001, "", "2026-03-01T10:20:30.000001Z"),
        (1_772_360_430.999_9, "milliseconds", "2026-03-01T10:20:30.999Z"),
        (1_772_360_430.9, "seconds", "2026-03-01T10:20:30Z"),
        (-0.5, "microseconds", "1969-12-31T23:59:59.500000Z"),
        (
            datetime(2026, 3, 1, 2, tzinfo=timezone(timedelta(hours=3))),
            "",
            "2026-02-28T23:00:00.000Z",
        ),
        (datetime(1, 1, 1, tzinfo=UTC), "seconds", "0001-01-01T00:00:00Z"),
    ],
)
def test_text_is_utc_with_a_precision(time: datetime | float, timespec: str, text: str) -> None:
    """Without one it is as precise as the time, but to the millisecond at least."""
    assert utc_text(time, timespec) == text


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()))
def test_text_is_read_as_the_same_time(time: datetime) -> None:
    """Whatever zone the time has."""
    assert datetime.fromisoformat(utc_text(time)) == time.astimezone(UTC)
