"""Times of a past are read to the microsecond, or refused: none becomes another time."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.times import parse_time
from tests.sources.imports.preflights import ahead
from tests.support.cases import cases

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = 1_706_788_800_000_000
"""2024-02-01 12:00:00 UTC."""
UNREADABLE_TEXTS = [
    "",
    " ",
    "yesterday",
    "2024-13-01 00:00:00",
    "2024-02-30",
    "12:00:00",
    "-1",
    "1.2.3",
    "1_000",
    "x" * 1000,
    "9" * 5000,
    "²",
]
BEYOND = ["1969-12-31 23:59:59", "0001-01-01 00:00:00", "9999-12-31T23:59:59-01:00"]
UNREADABLE_NUMBERS = [
    -1,
    -1706788800.5,
    253_402_300_800_000_000,
    10**40,
    1e300,
    math.inf,
    math.nan,
    True,
    Decimal("NaN"),
    Decimal("Infinity"),
]
UNREADABLE_JSON = [
    b"null",
    b"true",
    b"{}",
    b"[]",
    b'""',
    b"-5",
    b"1e400000000",
    b"9" * 5000,
    b'"null"',
    b"",
]


@cases(
    ("value", "micros"),
    [
        ("2024-02-01T12:00:00Z", 0),
        ("2024-02-01T12:00:00.5Z", 500_000),
        ("2024-02-01t12:00:00.123z", 123_000),
        ("2024-02-01 12:00:00", 0),
        ("2024-02-01 12:00:00.123", 123_000),
        ("2024-02-01 12:00:00.123456", 123_456),
        ("2024-02-01 12:00:00.123456789", 123_456),
        ("2024-02-01T17:30:00.001+05:30", 1000),
        ("2024-02-01 15:00:00+03", 0),
        ("2024-02-01 12:00:00 UTC", 0),
        ("2024-02-01 12:00:00.25 gmt", 250_000),
        (" 2024-02-01 12:00:00 ", 0),
        ("20240201T120000Z", 0),
        ("1706788800", 0),
        ("1706788800.25", 250_000),
        ("1706788800123", 123_000),
        (1706788800, 0),
        (1706788800.123, 123_000),
        (1706788800123, 123_000),
        (1706788800123.5, 123_500),
        (1706788800123456, 123_456),
        (Decimal("1706788800.1234567"), 123_456),
        (b'"2024-02-01T12:00:00.5Z"', 500_000),
        (b'"2024-02-01T12:00:00\\u005a"', 0),
        (b"1706788800", 0),
        (b"1706788800.1", 100_000),
        (b"1.7067888e9", 0),
        (b"1706788800123", 123_000),
        (msgspec.Raw(b'"2024-02-01 12:00:00"'), 0),
        (msgspec.Raw(b"1706788800123"), 123_000),
    ],
)
def test_every_form_of_a_time_is_read_to_the_microsecond(
    value: bytes | msgspec.Raw | str | float | Decimal, micros: int
) -> None:
    """ISO 8601 with T or a space, with a zone or none, and epochs in three units, as JSON, as text
    and as numbers.
    """
    assert parse_time(value) == NOON + micros


@cases("value", [*UNREADABLE_TEXTS, *BEYOND, *UNREADABLE_NUMBERS, *UNREADABLE_JSON])
def test_an_invalid_time_is_refused(value: bytes | str | float | Decimal) -> None:
    """Nothing that can't be read, and no time outside of 1970 to 9999, becomes a time; the reason
    is short, however long the value.
    """
    with pytest.raises(RecordRefused) as refused:
        parse_time(value)
    assert refused.value.why is Reason.MISSING_TIMESTAMP
    assert len(refused.value.detail) < 200


@cases(
    ("value", "shown"), [(b"null", "null"), (b"1e400", "1E+400"), ("soon", "'soon'"), (-1, "-1")]
)
def test_a_value_is_shown_as_it_was_written(value: bytes | str | int, shown: str) -> None:
    """For people, who know neither bytes nor decimals of a program."""
    with pytest.raises(RecordRefused) as refused:
        parse_time(value)
    assert refused.value.detail.startswith(f"{shown} can't be read")


@cases(
    ("text", "offset", "hours"),
    [
        ("2024-02-01 12:00:00", 0, 0),
        ("2024-02-01 12:00:00", 60, -1),
        ("2024-02-01 12:00:00", -480, 8),
        ("20240201T120000", 60, -1),
        ("2024-02-01 12:00:00Z", 60, 0),
        ("2024-02-01T12:00:00+00:00", 60, 0),
        ("1706788800", 60, 0),
    ],
)
def test_the_offset_counts_only_for_texts_without_a_zone(
    text: str, offset: int, hours: int
) -> None:
    """A clock an hour ahead of UTC shows noon at eleven; a text with a zone, and an epoch, says
    for itself when it was.
    """
    assert parse_time(text, ahead(offset)) == NOON + hours * 3_600_000_000


def test_eight_digits_are_a_date_as_text_and_seconds_as_a_number() -> None:
    """`20240201` as a text would be August 1970 as seconds, which no one writes; a number is
    always an epoch.
    """
    assert parse_time("20240201") == NOON - 12 * 3_600_000_000 == parse_time("2024-02-01")
    assert parse_time(20240201) == 20_240_201_000_000


@cases(
    ("number", "micros"),
    [
        (0, 0),
        (10_000_000_000, 10**16),
        (10_000_000_001, 10_000_000_001_000),
        (10**13, 10**16),
        (10**13 + 1, 10**13 + 1),
        (253_402_300_799_999_999, 253_402_300_799_999_999),
    ],
)
def test_the_unit_of_an_epoch_follows_from_its_size(number: int, micros: int) -> None:
    """Up to 1e10 seconds, up to 1e13 milliseconds, above that microseconds, up to the end of the
    year 9999.
    """
    assert parse_time(number) == parse_time(str(number)) == parse_time(b"%d" % number) == micros


@settings(deadline=None, max_examples=60)
@given(
    micros=st.integers(0, 253_402_300_799_999_999 - 24 * 3_600_000_000),
    offset=st.integers(-720, 720),
)
def test_a_time_written_with_any_offset_is_the_same_time(micros: int, offset: int) -> None:
    """With a zone, and without one but with the option, the same microseconds come back."""
    local = (
        EPOCH + timedelta(microseconds=micros, minutes=offset)
        if micros > 10**12
        else EPOCH + timedelta(microseconds=micros)
    )
    minutes = offset if micros > 10**12 else 0
    bare = local.isoformat(sep=" ").removesuffix("+00:00")
    sign = "-" if minutes < 0 else "+"
    rest = divmod(abs(minutes), 60)
    assert parse_time(f"{bare}{sign}{rest[0]:02}:{rest[1]:02}") == micros
    assert parse_time(bare, ahead(minutes)) == micros


@settings(deadline=None, max_examples=100)
@given(value=st.one_of(st.text(max_size=30), st.floats(), st.integers(), st.binary(max_size=30)))
def test_any_value_is_a_time_or_refused(value: str | float | bytes) -> None:
    """Nothing else than a time in range, or a refusal, comes of any value."""
    try:
        micros = parse_time(value)
    except RecordRefused:
        return
    assert 0 <= micros < 253_402_300_800_000_000
