"""Times and derived UUIDs are those of the standard library, one by one and several at once; new
ones are of version 7.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.core.stamps import (
    new_uuid7,
    new_uuids7,
    time_text,
    utc_text,
    uuid5,
    uuid_texts5,
    uuids5,
)
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


@given(
    st.floats(0, 253_402_300_799, exclude_max=True)
    | st.integers(0, 253_402_300_799 * 1000).map(lambda millis: millis / 1000)
)
@example(1.9999999)
@example(1_000_000_000.9999996)
def test_a_time_is_exact(seconds: float) -> None:
    """To the microsecond, rounded as the standard library rounds; no more digits than it needs."""
    at = datetime.fromtimestamp(seconds, UTC)
    digits = "microseconds" if at.microsecond % 1000 else "milliseconds"
    assert time_text(seconds).decode() == f'"{at.isoformat(timespec=digits)[:-6]}Z"'


@given(st.uuids(), st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=8))
def test_they_are_those_of_the_standard_library(namespace: uuid.UUID, names: list[str]) -> None:
    """For every namespace and name."""
    right = [str(uuid.uuid5(namespace, name)).encode() for name in names]
    encoded = [name.encode() for name in names]
    assert [uuid5(namespace.bytes, name) for name in encoded] == right
    assert uuids5(namespace.bytes, encoded) == right
    assert uuids5(namespace.bytes, encoded, b"<", b"..>") == [b"<%b..>" % text for text in right]
    assert uuid_texts5(namespace.bytes, encoded) == [text.decode() for text in right]


@given(st.floats(0, 2.8e11), st.integers(0, 20), st.binary(max_size=9), st.binary(max_size=9))
def test_new_ones(now: float, count: int, before: bytes, after: bytes) -> None:
    """Version 7, RFC variant, the time in the first 48 bits; as many as were asked for, each
    between what it stands between.
    """
    made = new_uuids7(now, count, before, after)
    assert len(made) == count
    assert all(text.startswith(before) and text.endswith(after) for text in made)
    for text in [new_uuid7(now), *[text[len(before) : len(text) - len(after)] for text in made]]:
        parsed_uuid = uuid.UUID(text.decode())
        assert (parsed_uuid.version, parsed_uuid.variant, parsed_uuid.int >> 80) == (
            7,
            uuid.RFC_4122,
            int(now * 1000),
        )
        assert str(parsed_uuid) == text.decode()


NOW = 1_780_000_000.0


def one_by_one(now: float, count: int) -> list[bytes]:
    """So many, made each by itself."""
    return [new_uuid7(now) for _ in range(count)]


@pytest.mark.parametrize("make", [one_by_one, new_uuids7])
def test_new_ones_are_unique_and_in_order_of_time(
    make: Callable[[float, int], list[bytes]],
) -> None:
    """Many of one instant differ; those of a later millisecond sort behind."""
    first = make(NOW, 5000)
    later = make(NOW + 0.001, 5000)
    assert len({*first, *later}) == 10_000
    assert max(first) < min(later)


@pytest.mark.parametrize("make", [one_by_one, new_uuids7])
def test_the_bits_of_new_ones_are_random(make: Callable[[float, int], list[bytes]]) -> None:
    """Each bit beside time, version and variant is set in about half of them."""
    count = 4000
    whole = [uuid.UUID(text.decode()).int & (1 << 80) - 1 for text in make(NOW, count)]
    often = [
        sum(number >> bit & 1 for number in whole)
        for bit in range(80)
        if bit not in (62, 63, 76, 77, 78, 79)
    ]
    assert count * 0.4 < min(often) <= max(often) < count * 0.6
