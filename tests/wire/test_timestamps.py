"""Times on the wire, and clocks of senders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.timestamps import (
    UNKNOWN,
    SenderClock,
    at,
    format_timestamp,
    parse_timestamp,
    read_sender_clock,
    shifted,
)
from tests.support.cases import cases

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


@cases(
    "text",
    [
        "2025-03-01T12:00:00Z",
        "2025-03-01T12:00:00.000Z",
        "2025-03-01t12:00:00z",
        "2025-03-01T12:00:00.000000000Z",
        "2025-03-01T12:00:00",
        "2025-03-01 12:00:00",
        "2025-03-01T15:00:00+03",
        "2025-03-01T15:00:00+03:00",
        "2025-03-01 15:00:00+0300",
        "2025-03-01T07:30:00-04:30",
        "2025-03-01T12",
        "20250301T120000Z",
        " 2025-03-01T12:00:00Z ",
        "Sat, 01 Mar 2025 12:00:00 GMT",
        "Sat, 01 Mar 2025 15:00:00 +0300",
        "Sat, 01 Mar 2025 12:00:00 UTC",
        "Sat Mar 01 2025 14:00:00 GMT+0200 (CEST)",
        "Sat Mar 01 2025 14:00:00 GMT+0200 (Central European Summer Time)",
        "2025-03-01 12:00:00 UTC",
        "2025/03/01 12:00:00 PM",
        "March 1, 2025 12:00 pm",
        "1740830400",
        "1740830400000",
        " 1740830400 ",
    ],
)
def test_a_time_is_read(text: str) -> None:
    """All these are the same instant; one without a zone is UTC (wire facts, trap 16)."""
    assert parse_timestamp(text) == NOON


def test_a_date_alone_is_its_midnight() -> None:
    """In UTC."""
    assert parse_timestamp("2025-03-01") == datetime(2025, 3, 1, tzinfo=UTC)


@cases(
    "text",
    [
        "",
        " ",
        "now",
        "yesterday",
        "17408304000",
        "2025-13-01",
        "2025-02-30T00:00:00Z",
        "2025-03-01T25:00:00Z",
        "2025-03-01T24:00:00Z",
        "Sat, 01 Mar 2025 15:00:00 CEST",
        "Sat, 01 Mar 2025 3:00 PM",
        "Fri, 01 Mar 2025 15:00:00 GMT",
        "12:00",
        "\0",
    ],
)
def test_no_time(text: str) -> None:
    """Anything else is none."""
    assert parse_timestamp(text) is None


@given(
    st.text(max_size=60)
    | st.from_regex(r"[0-9T:+Z. -]{0,40}")
    | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{1,9}.{0,20}")
)
def test_no_text_makes_an_error(text: str) -> None:
    """A text is a time with a zone, or none."""
    parsed = parse_timestamp(text)
    assert parsed is None or parsed.tzinfo is not None


@given(
    st.datetimes(
        timezones=st.builds(
            lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439)
        )
    )
)
def test_written_and_read_again(time: datetime) -> None:
    """A time is the same instant after it was written, in UTC and with a Z."""
    moved = shifted(time, 0)
    if moved is not None:
        text = format_timestamp(moved)
        assert text.endswith(b"Z")
        assert parse_timestamp(text.decode()) == time


@cases(
    ("seconds", "text"),
    [
        (0.0, b"1970-01-01T00:00:00.000Z"),
        (1.5, b"1970-01-01T00:00:01.500Z"),
        (0.000001, b"1970-01-01T00:00:00.000001Z"),
        (-1, b"1969-12-31T23:59:59.000Z"),
    ],
)
def test_written_to_the_millisecond_or_the_microsecond(seconds: float, text: bytes) -> None:
    """As many digits as the time has, in threes, at least three."""
    assert format_timestamp(at(seconds)) == text


@cases("seconds", [1e12, -1e12, 1e300, -1e300, float("inf"), float("-inf")])
def test_no_time_beyond_the_calendar(seconds: float) -> None:
    """Moving a time out of the calendar gives none."""
    assert shifted(NOON, seconds) is None


def test_no_time_beyond_the_calendar_by_its_zone() -> None:
    """Nor where only its zone would take it there."""
    assert shifted(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), 0) is None


NOW = 1_767_225_600.0
AHEAD = b"_=1767229200000"
BEHIND = b"_=1767222000000"


@cases(
    "query",
    [
        *(b"", b"ip=1&ver=1.57.2", b"_=", b"_=now", b"_=-5", b"_=123456789012345"),
        *(b"a_=1767229200000", b"_=0", b"_=1609459199999", b"_=1700000000"),
    ],
)
def test_nothing_is_known_without_a_time(query: bytes) -> None:
    """No `_`, or one that isn't a number of milliseconds, or is before 2021, says nothing."""
    assert read_sender_clock(query, NOW) == UNKNOWN
    assert read_sender_clock(b"_=1609459200000", NOW).sent_at == 1_609_459_200


@cases(
    ("query", "sent_at"),
    [(AHEAD, NOW + 3600), (BEHIND, NOW - 3600), (b"v=1&retry_count=0&" + BEHIND, NOW - 3600)],
)
def test_a_first_attempt_tells_the_clock(query: bytes, sent_at: float) -> None:
    """`_` counts as `sent_at`, whichever way the clock is wrong."""
    assert read_sender_clock(query, NOW) == SenderClock(sent_at)


@pytest.mark.parametrize("mark", [b"&retry_count=2", b"&beacon=1"])
def test_what_may_be_late_shows_only_a_clock_that_is_ahead(mark: bytes) -> None:
    """A repeated request and a beacon may carry the time of an earlier attempt, which can't lie in
    the future.
    """
    assert read_sender_clock(AHEAD + mark, NOW).sent_at == NOW + 3600
    assert read_sender_clock(BEHIND + mark, NOW).sent_at is None


def test_offsets_of_a_repeated_request_count_from_its_first_attempt() -> None:
    """They were measured then; those of a beacon, which seldom is late, count from its receipt."""
    assert read_sender_clock(BEHIND + b"&retry_count=1", NOW).offset_base == NOW - 3600
    assert read_sender_clock(BEHIND + b"&beacon=1", NOW).offset_base is None
