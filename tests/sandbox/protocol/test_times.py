"""When an event happened (wire facts: Time)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.protocol.times import (
    format_time,
    from_milliseconds,
    happened_at,
    parse_rfc3339,
    parse_time,
)
from tests.support.cases import cases

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLOW = NOW - HOUR


@cases(
    ("timestamp", "offset", "sent_at", "expected"),
    [
        ("2026-01-01T10:00:00Z", None, None, NOW - 2 * HOUR),
        ("2026-01-01T10:00:00Z", None, SLOW, NOW - HOUR),
        ("2026-01-01T10:00:00Z", 5000, SLOW, NOW - HOUR),
        ("2026-01-01T10:00:00Z", 5000, None, NOW - timedelta(seconds=5)),
        (None, 5000, SLOW, NOW - timedelta(seconds=5)),
        (None, 0, None, NOW),
        (None, True, None, NOW),
        (None, None, SLOW, NOW),
        (None, None, None, NOW),
        ("2026-01-01T12:00:00+02:00", None, None, NOW - 2 * HOUR),
        ("2026-01-01 10:00:00.25", None, None, NOW - 2 * HOUR + timedelta(milliseconds=250)),
        ("2026-01-02T11:00:00Z", None, None, NOW + 23 * HOUR),
        ("2026-01-02T11:00:01Z", None, None, NOW),
        (None, -24 * 3600 * 1000, None, NOW),
        ("yesterday", None, None, NOW),
        ("yesterday", None, SLOW, NOW),
        (1767261600, None, None, NOW),
        (None, float("inf"), None, NOW),
        ("0001-01-01T00:00:00+14:00", None, None, NOW),
        ("0001-01-01T00:00:00Z", None, NOW + HOUR, NOW),
    ],
)
def test_rules(
    timestamp: object, offset: object, sent_at: datetime | None, expected: datetime
) -> None:
    """One row of the service's rules each."""
    assert happened_at(timestamp, offset, sent_at, NOW) == expected


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_texts_sort_as_times_do(one: datetime, other: datetime) -> None:
    """The written form can be compared as text, and read back."""
    assert (format_time(one) < format_time(other)) == (one < other)
    assert parse_time(format_time(one)) == one


@cases(
    ("digits", "seconds"),
    [("1767268800123", 0.123), ("x", None), (None, None), ("9" * 15, None), ("٣", None)],
)
def test_milliseconds(digits: str | None, seconds: float | None) -> None:
    """`_` is milliseconds since 1970, or nothing."""
    expected = None if seconds is None else NOW + timedelta(seconds=seconds)
    assert from_milliseconds(digits) == expected


@cases(
    "text",
    ["2026-01-01T12:00:00Z", "2026-01-01t13:00:00.000+01:00", "2026-01-01 12:00:00.000000000z"],
)
def test_times_by_rfc_3339(text: str) -> None:
    """Date and time, apart by a T or a blank, to any fraction of a second, with a zone."""
    assert parse_rfc3339(text) == datetime(2026, 1, 1, 12, tzinfo=UTC)


@cases(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T12:00:00",
        "2026-01-01T12:00Z",
        "20260101T120000Z",
        "2026-02-30T12:00:00Z",
        "٢026-01-01T12:00:00Z",
    ],
)
def test_times_that_are_not_by_rfc_3339(text: str) -> None:
    """What lacks a part, or is no time at all, is none."""
    assert parse_rfc3339(text) is None
