"""How times are written."""

from __future__ import annotations

import pytest

from forwarder.sources.imports.catalog import BY_NAME
from forwarder.sources.imports.format import FormatContext
from forwarder.sources.imports.time_kinds import TimeInspector, TimeKind, kind_of
from forwarder.sources.imports.times import parse_time


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ('"2024-01-31T12:00:00Z"', TimeKind.ZONE),
        ('"2024-01-31 12:00:00.123456+02:00"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00-0530"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00 +02"', TimeKind.ZONE),
        ('"2024-01-31 12:00:00 UTC"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00z"', TimeKind.ZONE),
        ('"20240131T120000Z"', TimeKind.ZONE),
        ('"2024-01-31T12:00:00"', TimeKind.NO_ZONE),
        ('"2024-01-31 12:00:00.123"', TimeKind.NO_ZONE),
        ('"2024-01-31T12:00"', TimeKind.NO_ZONE),
        ('"2024-01-31"', TimeKind.NO_ZONE),
        ('"20240131"', TimeKind.NO_ZONE),
        ("1.712010112e9", TimeKind.SECONDS),
        ("1.712010112345E+12", TimeKind.MILLISECONDS),
        ("1712010112", TimeKind.SECONDS),
        ("1712010112.345", TimeKind.SECONDS),
        ('"1712010112"', TimeKind.SECONDS),
        ("10000000000", TimeKind.SECONDS),
        ("10000000001", TimeKind.MILLISECONDS),
        ("1712010112345", TimeKind.MILLISECONDS),
        ('"1712010112345"', TimeKind.MILLISECONDS),
        ("1712010112345678", TimeKind.MICROSECONDS),
    ],
)
def test_kinds_of_times(value: str, kind: TimeKind) -> None:
    """Zones, none, and epochs by their size; all of them are times that can be read."""
    assert kind_of(value.encode()) is kind
    parse_time(value.encode())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Wed, 31 Jan 2024 12:00:00 GMT", TimeKind.ZONE),
        ("31 Jan 2024 12:00:00 +0100", TimeKind.ZONE),
        ("Wed, 31 Jan 2024 12:00:00", TimeKind.NO_ZONE),
    ],
)
def test_kinds_of_dates_as_in_mail(text: str, kind: TimeKind) -> None:
    """Native records may have them."""
    assert kind_of(f'"{text}"'.encode()) is kind


@pytest.mark.parametrize("value", ["null", "{}", "true", '""', '"soon"', "-5", "1e400", '"' + "9" * 30 + '"'])
def test_what_is_no_time_is_not_counted(value: str) -> None:
    """Where nothing is known, nothing is said."""
    assert kind_of(value.encode()) is None


@pytest.mark.parametrize("value", ["1712010112", "10000000000", "10000000001", "9999999999999", "10000000000001"])
def test_units_are_those_that_times_are_read_in(value: str) -> None:
    """The bounds between seconds, milliseconds and microseconds are the reader's."""
    unit = {TimeKind.SECONDS: 1_000_000, TimeKind.MILLISECONDS: 1000, TimeKind.MICROSECONDS: 1}
    kind = kind_of(value.encode())
    assert kind is not None
    assert parse_time(value.encode()) == int(value) * unit[kind]


@pytest.mark.parametrize(
    ("form", "record", "kind"),
    [
        ("amplitude", '{"event_time":null,"client_event_time":"2024-01-31 12:00:00","x":1}', TimeKind.NO_ZONE),
        ("mixpanel", '{"event":"a","properties":{"time":1712010112,"x":{}}}', TimeKind.SECONDS),
        ("mixpanel", '{"event":"a","properties":[]}', None),
        ("mixpanel", '{"event":"a"}', None),
        ("segment", '{"originalTimestamp":"2024-01-31T12:00:00Z"}', TimeKind.ZONE),
        ("native", '{"timestamp":"","event":"a"}', None),
        ("native", '{"timestamp":"2024-01-31T12', None),
        ("native", "[1]", None),
    ],
)
def test_each_format_has_its_fields(form: str, record: str, kind: TimeKind | None) -> None:
    """The first field that has a value counts; what can't be read says nothing."""
    known = BY_NAME[form]
    assert TimeInspector(known.times(known.options(), FormatContext())).kind(record.encode()) is kind


def test_columns_may_be_called_anything() -> None:
    """Names with spaces, and names that mean something elsewhere, are found as they are."""
    look = TimeInspector(("the time", "class", "f0"))
    assert look.kind(b'{"the time":null,"class":"","f0":1712010112}') is TimeKind.SECONDS


def test_without_fields_nothing_is_looked_at() -> None:
    """A format whose time isn't known is no reason for an error."""
    assert TimeInspector(()).kind(b'{"timestamp":1712010112}') is None
