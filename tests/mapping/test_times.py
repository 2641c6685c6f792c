"""Times of foreign records: each format, zones, and what can't be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.mapping import TimestampRule, Unmappable
from forwarder.mapping.times import Times
from tests.support.cases import cases


def read(value: str, form: str = "iso", zone: str = "UTC") -> str:
    """What a value is read as."""
    return (
        Times("timestamp", TimestampRule(".t", form, zone)).read(value.encode()).decode().strip('"')
    )


@cases(
    ("value", "form", "expected"),
    [
        ('"2026-01-31T12:00:00Z"', "iso", "2026-01-31T12:00:00.000Z"),
        ('"2026-01-31T12:00:00z"', "iso", "2026-01-31T12:00:00.000Z"),
        ('" 2026-01-31 12:00:00.5 "', "iso", "2026-01-31T12:00:00.500Z"),
        ('"2026-01-31T12:00:00.123456789+02:00"', "iso", "2026-01-31T10:00:00.123456Z"),
        ('"2026-01-31T12:00-0530"', "iso", "2026-01-31T17:30:00.000Z"),
        ('"2026-01-31"', "iso", "2026-01-31T00:00:00.000Z"),
        ('"20260131T120000Z"', "iso", "2026-01-31T12:00:00.000Z"),
        ("20260131", "iso", "2026-01-31T00:00:00.000Z"),
        (r'"2026\u002d01-31"', "iso", "2026-01-31T00:00:00.000Z"),
        ("1769860800", "unix", "2026-01-31T12:00:00.000Z"),
        ("1769860800.25", "unix", "2026-01-31T12:00:00.250Z"),
        ("1769860800.1234567", "unix", "2026-01-31T12:00:00.123456Z"),
        ('"1769860800.1"', "unix", "2026-01-31T12:00:00.100Z"),
        ("1.7698608e9", "unix", "2026-01-31T12:00:00.000Z"),
        ("-1", "unix", "1969-12-31T23:59:59.000Z"),
        ("-0.0000001", "unix", "1969-12-31T23:59:59.999999Z"),
        ("1769860800123", "unix_ms", "2026-01-31T12:00:00.123Z"),
        ("1769860800123.5", "unix_ms", "2026-01-31T12:00:00.123500Z"),
        ("1769860800123456", "unix_us", "2026-01-31T12:00:00.123456Z"),
        ("1769860800123456789", "unix_ns", "2026-01-31T12:00:00.123456Z"),
        ('"31/Jan/2026:12:00:00 +0100"', "%d/%b/%Y:%H:%M:%S %z", "2026-01-31T11:00:00.000Z"),
        ('"2026.01.31 12h"', "%Y.%m.%d %Hh", "2026-01-31T12:00:00.000Z"),
        ("202601311200", "%Y%m%d%H%M", "2026-01-31T12:00:00.000Z"),
        ('"2026%Z"', "%Y%%Z", "2026-01-01T00:00:00.000Z"),
    ],
)
def test_formats(value: str, form: str, expected: str) -> None:
    """Each is written as ISO 8601 in UTC, to the microsecond where there are any."""
    assert read(value, form) == expected


@cases(
    ("value", "form"),
    [
        ('"yesterday"', "iso"),
        ('""', "iso"),
        ("1769860800", "iso"),
        ("1712010112345", "iso"),
        ('"1712010112345.5"', "iso"),
        ('"Sat, 31 Jan 2026 12:00:00 CET"', "iso"),
        ('"2026-02-30"', "iso"),
        ('"0001-01-01T00:00:00+14:00"', "iso"),
        ("true", "iso"),
        ("{}", "iso"),
        ('["2026-01-31"]', "iso"),
        ('"2026-01-31T12:00:00Z"', "unix"),
        ('"1_769_860_800"', "unix"),
        ('"\u0661\u0667"', "unix"),
        ('"Infinity"', "unix"),
        ('"NaN"', "unix"),
        ("1769860800123", "unix"),
        ("1e400", "unix"),
        ("1e999999999", "unix"),
        ("9" * 5000, "unix_ns"),
        ("-" + "9" * 39, "unix_ms"),
        ('"2026-01-31"', "%d/%m/%Y"),
        ('"31/01/2026 and more"', "%d/%m/%Y"),
    ],
)
def test_what_cant_be_read(value: str, form: str) -> None:
    """It is never now, and never another time than was meant: it is an error."""
    with pytest.raises(Unmappable, match=r"^timestamp: .* can't be read as a time of the format"):
        read(value, form)


@cases(
    ("text", "zone", "expected"),
    [
        ("2026-01-31T12:00:00", "Europe/Berlin", "2026-01-31T11:00:00.000Z"),
        ("2026-07-31T12:00:00", "Europe/Berlin", "2026-07-31T10:00:00.000Z"),
        ("2026-07-31T12:00:00Z", "Europe/Berlin", "2026-07-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00", "+05:30", "2026-01-31T06:30:00.000Z"),
        ("2026-01-31T12:00:00", "-0800", "2026-01-31T20:00:00.000Z"),
        ("2026-01-31T12:00:00", "Z", "2026-01-31T12:00:00.000Z"),
        ("2026-03-29T01:59:59", "Europe/Berlin", "2026-03-29T00:59:59.000Z"),
        ("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T01:30:00.000Z"),
        ("2026-03-29T03:30:00", "Europe/Berlin", "2026-03-29T01:30:00.000Z"),
        ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T00:30:00.000Z"),
        ("2026-10-25T03:00:00", "Europe/Berlin", "2026-10-25T02:00:00.000Z"),
    ],
)
def test_zones(text: str, zone: str, expected: str) -> None:
    """A time without a zone is of the zone; a skipped one counts by the offset before, one that
    comes twice is the first.
    """
    assert read(f'"{text}"', zone=zone) == expected


@cases(
    "zone",
    [
        "Europe/Atlantis",
        "Europe",
        "",
        "../etc/passwd",
        "/etc/passwd",
        "+25:00",
        "+01:60",
        "1",
        "a\0b",
    ],
)
def test_no_zones(zone: str) -> None:
    """The key is named."""
    with pytest.raises(ConfigurationError, match=r"^m\.timestamp\.zone: ") as caught:
        Times("m.timestamp", TimestampRule(".t", zone=zone))
    assert "+02:00" in caught.value.hint


def test_a_machine_without_data_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said, rather than that the zone is wrong."""
    import zoneinfo  # noqa: PLC0415 - what the test takes away

    monkeypatch.setattr(zoneinfo, "ZoneInfo", _none_there)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ConfigurationError, match="no data of zones") as caught:
        Times("m.timestamp", TimestampRule(".t", zone="Europe/Berlin"))
    assert "tzdata" in caught.value.hint
    assert (
        Times("m.timestamp", TimestampRule(".t", zone="+01:00")).read(b'"2026-01-31T12:00"')
        == b'"2026-01-31T11:00:00.000Z"'
    )


def _none_there(name: str) -> None:
    import zoneinfo  # noqa: PLC0415

    raise zoneinfo.ZoneInfoNotFoundError(name)


@cases(
    ("form", "why"),
    [
        ("seconds", "is no format"),
        ("", "is no format"),
        ("%d/%b %H:%M", "says no year"),
        ("%H:%M:%S", "says no day"),
        ("%Y-%m-%d %H:%M %Z", "short names"),
        ("%Y-%m-%d %Q", "can't be read"),
        ("%Y %", "can't be read"),
        ("%Y %Y", "can't be read"),
    ],
)
def test_no_formats(form: str, why: str) -> None:
    """The key is named, and a format without a year is refused: there is no
    clock that could tell it.
    """
    with pytest.raises(ConfigurationError, match=r"^m\.timestamp\.format: ") as caught:
        Times("m.timestamp", TimestampRule(".t", form))
    assert why in caught.value.message
    assert caught.value.hint


YEARLESS = TimestampRule(".t", "%b %d %H:%M:%S", "Europe/Berlin")


@cases(
    ("value", "reference", "expected"),
    [
        ("Jan 31 12:00:00", datetime(2026, 1, 31, 11), "2026-01-31T11:00:00.000Z"),
        ("Feb 01 12:00:00", datetime(2026, 1, 31, 11), "2026-02-01T11:00:00.000Z"),
        ("Feb 01 12:00:01", datetime(2026, 1, 31, 11), "2025-02-01T11:00:01.000Z"),
        ("Dec 31 23:59:59", datetime(2026, 1, 1), "2025-12-31T22:59:59.000Z"),
        ("Jan  1 00:30:00", datetime(2025, 12, 31, 23, 30), "2025-12-31T23:30:00.000Z"),
        ("Jan  1 00:30:00", datetime(2025, 12, 30, 23), "2024-12-31T23:30:00.000Z"),
        ("Jan 01 01:00:00", datetime(2001, 12, 31), "2002-01-01T00:00:00.000Z"),
        ("Jan 01 01:00:01", datetime(2001, 12, 31), "2001-01-01T00:00:01.000Z"),
        ("Feb 29 12:00:00", datetime(2026, 1, 31), "2024-02-29T11:00:00.000Z"),
        ("Feb 29 12:00:00", datetime(1903, 1, 31), "1896-02-29T11:00:00.000Z"),
    ],
)
def test_a_year_that_is_missing(value: str, reference: datetime, expected: str) -> None:
    """It is the latest in which the time isn't later than a day after the record's own, also when
    the same text was read before.
    """
    times = Times("timestamp", YEARLESS, has_time=True)
    for _ in range(2):
        times.read(f'"{value}"'.encode(), datetime(2020, 6, 1, tzinfo=UTC).timestamp())
        read = times.read(f'"{value}"'.encode(), reference.replace(tzinfo=UTC).timestamp())
        assert read.decode() == f'"{expected}"'


def test_a_year_that_follows_from_nothing() -> None:
    """A record without a time is unmappable; so is a text that isn't of the format, and a day that
    no year has.
    """
    times = Times("timestamp", YEARLESS, has_time=True)
    with pytest.raises(
        Unmappable, match="says no year, and the record has no time that it would follow from"
    ):
        times.read(b'"Jan 31 12:00:00"')
    for value in ("Jan 31", "Feb 30 12:00:00"):
        with pytest.raises(Unmappable, match="can't be read as a time"):
            times.read(f'"{value}"'.encode(), 1e9)
    with pytest.raises(Unmappable, match="can't be read as a time"):
        times.read(b'"Jan 31 12:00:00"', 1e18)


_ROUNDED = timedelta(milliseconds=1)
"""More than the seconds of a late year are rounded by."""


@given(
    st.datetimes(datetime(1971, 1, 2), datetime(9998, 12, 30)),
    st.timedeltas(timedelta(days=-1) + _ROUNDED, timedelta(days=364) - _ROUNDED),
)
@example(datetime(2001, 1, 1), timedelta(days=364) - _ROUNDED)
def test_a_year_is_found_again(time: datetime, before: timedelta) -> None:
    """Of a time up to a day after the reference, or less than 364 days before it: the same day of
    the next year is then later than that.
    """
    form = "%m-%d %H:%M:%S.%f"
    text = time.strftime(form)
    reference = (time + before).replace(tzinfo=UTC).timestamp()
    times = Times("timestamp", TimestampRule(".t", form), has_time=True)
    assert datetime.fromisoformat(
        times.read(f'"{text}"'.encode(), reference).decode().strip('"')
    ) == time.replace(tzinfo=UTC)


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_every_time_survives(naive: datetime) -> None:
    """To the microsecond, in every format that has them."""
    time = naive.replace(tzinfo=UTC)
    micros = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    texts = [
        (f'"{time.isoformat()}"', "iso"),
        (str(micros), "unix_us"),
        (f"{micros}000", "unix_ns"),
        (str(micros * 1000), "unix_ns"),
    ]
    seconds, rest = divmod(abs(micros), 1_000_000)
    texts.append((f"{'-' if micros < 0 else ''}{seconds}.{rest:06}", "unix"))
    for value, form in texts:
        assert datetime.fromisoformat(read(value, form)) == time
