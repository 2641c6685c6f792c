"""Times of the sandbox's own texts."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.protocol.times import format_time, parse_rfc3339, parse_time
from tests.support.cases import cases


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_texts_sort_as_times_do(one: datetime, other: datetime) -> None:
    """The written form can be compared as text, and read back."""
    assert (format_time(one) < format_time(other)) == (one < other)
    assert parse_time(format_time(one)) == one


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
    """What lacks a part, or is not a time at all, is none."""
    assert parse_rfc3339(text) is None
