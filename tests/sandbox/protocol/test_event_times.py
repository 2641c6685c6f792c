"""When an event happened, by the service's rules."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.protocol.event_times import (
    EPOCH,
    happened_at,
    read_sent_at,
    read_time,
    sent_at_of_query,
    why_now,
)
from tests.support.cases import cases
from tests.support.service_times import NOW as MADE
from tests.support.service_times import TABLE, expected, is_near

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLOW = NOW - HOUR
LARGEST = 2**63 - 1


@cases("text", list(TABLE))
def test_as_the_service_reads_it(text: str) -> None:
    """Each text of the table that the forwarder's own reader is compared with, too."""
    moment = read_time(text, MADE)
    wanted = expected(text)
    assert (moment is None) == (wanted is None), moment
    if moment is not None and wanted is not None:
        assert is_near(moment, wanted)


@given(st.text(max_size=80) | st.from_regex(r"[0-9A-Za-z:/., +-]{0,60}"))
def test_no_text_makes_an_error(text: str) -> None:
    """A text is a time in UTC, none, or one before the first year."""
    with suppress(OverflowError):
        moment = read_time(text, MADE)
        assert moment is None or moment.tzinfo is UTC


def test_long_texts_are_none() -> None:
    """They take no time, either."""
    assert read_time("2025-03-01 " + " " * 10_000_000 + "12:00:00", MADE) is None


@cases(
    ("timestamp", "offset", "sent_at", "happened"),
    [
        ("2026-01-01T10:00:00Z", None, None, NOW - 2 * HOUR),
        ("2026-01-01T10:00:00Z", None, SLOW, NOW - HOUR),
        ("2026-01-01T10:00:00Z", 5000, SLOW, NOW - timedelta(seconds=5)),
        ("2026-01-01T10:00:00Z", 5000, None, NOW - timedelta(seconds=5)),
        ("2026-01-01T10:00:00Z", 0, SLOW, NOW),
        ("yesterday", 5000, None, NOW - timedelta(seconds=5)),
        (None, 5000, SLOW, NOW - timedelta(seconds=5)),
        (None, -5000, None, NOW + timedelta(seconds=5)),
        (None, True, None, NOW),
        (None, None, SLOW, NOW),
        (None, None, None, NOW),
        ("2026-01-02T11:00:00Z", None, None, NOW + 23 * HOUR),
        ("2026-01-02T11:00:01Z", None, None, NOW),
        ("2026-01-02T11:00:01Z", None, NOW + HOUR, NOW + 22 * HOUR + timedelta(seconds=1)),
        (None, -24 * 3600 * 1000, None, NOW),
        (None, LARGEST, None, EPOCH),
        (None, -LARGEST, None, NOW),
        ("yesterday", None, None, NOW),
        ("yesterday", None, SLOW, NOW),
        ("", None, SLOW, NOW),
        (1767261600, None, None, NOW),
        ("0000-01-01T00:00:00Z", None, None, EPOCH),
        ("0001-01-01T00:00:00+14:00", None, None, EPOCH),
        ("0001-01-01T00:00:00Z", None, NOW + HOUR, EPOCH),
        ("9999-12-31T23:59:59Z", None, SLOW, NOW),
    ],
)
def test_rules(
    timestamp: object, offset: object, sent_at: datetime | None, happened: datetime
) -> None:
    """One row of `parse_event_timestamp` each."""
    assert happened_at(timestamp, offset, sent_at, NOW) == happened


@cases(
    ("timestamp", "why"),
    [
        ("2026-01-01T10:00:00Z", None),
        ("2026-01-02T11:00:00Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("yesterday", "can't read it"),
        ("", "can't read it"),
        (1767261600, "can't read it"),
        ("2026-01-02T11:00:01Z", "more than 23 hours ahead"),
    ],
)
def test_why_the_service_takes_its_own_now(timestamp: object, why: str | None) -> None:
    """It read no time, or one that is too far ahead."""
    said = why_now(timestamp, NOW)
    assert said is None if why is None else why in (said or "")


@cases(
    ("text", "seconds"),
    [
        ("2026-01-01T12:00:00Z", 0),
        ("2026-01-01T12:00:00.5Z", 0.5),
        ("2026-01-01T12:00:00,5Z", 0.5),
        ("2026-01-01T12:00Z", 0),
        ("2026-01-01T14:00:00+02:00", 0),
        ("2026-01-01T14:00:00+0200", 0),
        ("2026-01-01T14:00:00+02", 0),
        ("20260101T120000Z", 0),
        ("2026-W01-4T12:00:00Z", 0),
        ("2026-01-01T12:00:00", None),
        ("2026-01-01 12:00:00Z", None),
        ("2026-01-01t12:00:00z", None),
        ("2026-01-01T120000Z", None),
        ("2026-01-01T24:00:00Z", None),
        ("2026-02-30T12:00:00Z", None),
        ("2026-01-01", None),
        ("1767268800000", None),
        (1767268800000, None),
        (None, None),
    ],
)
def test_sent_at(text: object, seconds: float | None) -> None:
    """What `OffsetDateTime::parse` of the crate `time` 0.3 says of ISO 8601."""
    assert read_sent_at(text) == (None if seconds is None else NOW + timedelta(seconds=seconds))


@cases(
    ("digits", "seconds"),
    [
        ("1767268800123", 0.123),
        ("1609459200000", -157_809_600),
        ("1609459199999", None),
        ("1767268800", None),
        ("x", None),
        (None, None),
        ("9" * 15, None),
        ("٣", None),
    ],
)
def test_sent_at_of_a_query(digits: str | None, seconds: float | None) -> None:
    """`_` is milliseconds since 1970, after the year 2020, or nothing."""
    wanted = None if seconds is None else NOW + timedelta(seconds=seconds)
    assert sent_at_of_query(digits) == wanted
