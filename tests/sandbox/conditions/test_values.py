"""Values are read as the service reads them: texts of JSON, numbers and times."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from forwarder.sandbox.conditions.values import (
    MAX_DEPTH,
    CannotDecide,
    cut,
    date_of,
    json_text,
    number_of,
    time_of,
)
from tests.support.cases import cases

NOW: Final = datetime(2024, 3, 31, 12, tzinfo=UTC)


@cases(
    ("value", "text"),
    [
        ("a b", "a b"),
        (None, "null"),
        (True, "true"),
        (2**64 - 1, "18446744073709551615"),
        (10**30, "1e+30"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e16, "1e+16"),
        (1.5e-5, "0.000015"),
        (1e-7, "1e-7"),
        (float("inf"), "null"),
        (["é", 1, None], '["é",1,null]'),
        ({"b": {"d": 1, "c": "\n"}, "a": []}, '{"a":[],"b":{"c":"\\n","d":1}}'),
    ],
)
def test_texts(value: Any, text: str) -> None:
    """Compact JSON with sorted keys; a text stands for itself."""
    assert json_text(value) == text


def test_a_text_has_an_end() -> None:
    """Nesting has a bound, and an explanation shows the beginning."""
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert json_text(deep).startswith("[[[")
    with pytest.raises(CannotDecide, match="deeper than 100"):
        json_text({"a": deep})
    assert cut("x" * 81) == "x" * 79 + "…"


@cases(
    ("value", "number"),
    [
        ("1.5e2", 150.0),
        (".5", 0.5),
        (7, 7.0),
        (True, None),
        (" 7", None),
        ("0x1f", None),
        ("1e999", math.inf),
        ("-INF", -math.inf),
        ("infinit", None),
        (10**400, None),
        (math.inf, None),
        ([7], None),
    ],
)
def test_numbers(value: Any, number: float | None) -> None:
    """Decimal numbers, also in texts, where they can be infinite."""
    assert number_of(value) == number


@cases(
    ("text", "time"),
    [
        ("-1m", "2024-02-29T12:00:00+00:00"),
        ("13m", "2023-02-28T12:00:00+00:00"),
        ("-1y", "2023-03-31T12:00:00+00:00"),
        ("-1w", "2024-03-24T12:00:00+00:00"),
        ("36h", "2024-03-30T00:00:00+00:00"),
        ("2024-01-01", "2024-01-01T00:00:00+00:00"),
        ("2024-1-1 10:00", "2024-01-01T10:00:00+00:00"),
        ("2024-01-01T10:00:00.1234567", "2024-01-01T10:00:00.123456+00:00"),
        ("2024-01-01T10:00:00+02:00", "2024-01-01T10:00:00+02:00"),
        # What follows is read by `dateparser`; the time that it lacks is that of `now`.
        ("2024-01-01 10:00:00 +02:00", "2024-01-01T08:00:00+00:00"),
        ("2024-01-01 10:00 UTC", "2024-01-01T10:00:00+00:00"),
        ("May 6, 2024", "2024-05-06T12:00:00+00:00"),
        ("12/31/2023 8:30 PM", "2023-12-31T20:30:00+00:00"),
        ("Fri, 13 Dec 2024 10:00:00 GMT", "2024-12-13T10:00:00+00:00"),
    ],
)
def test_times(text: str, time: str) -> None:
    """Relative and absolute ones; months end where the shortest month on the way ends."""
    moment = time_of(text, NOW)
    assert moment is not None
    assert moment.isoformat() == time
    assert date_of(text, NOW) == moment


@cases(
    ("text", "time"),
    [
        ("2024-01-01", "2023-12-31T23:00:00+00:00"),
        ("2024-07-01 12:00", "2024-07-01T10:00:00+00:00"),
        ("2024-07-01T12:00:00Z", "2024-07-01T12:00:00+00:00"),
        # NOW is 14:00 there, by a clock that has just been set to summer time.
        ("-1d", "2024-03-30T13:00:00+00:00"),
        ("-1h", "2024-03-31T11:00:00+00:00"),
        # The first of the two moments at which clocks show it, and none where they skip it.
        ("2023-10-29 02:30:00", "2023-10-29T00:30:00+00:00"),
        ("2024-03-31 02:30:00", None),
        # Other forms are in UTC.
        ("2024/07/01 12:00", "2024-07-01T12:00:00+00:00"),
    ],
)
def test_times_of_a_zone(text: str, time: str | None) -> None:
    """Times without a zone, and relative ones, are by the clocks of the zone of `now`."""
    moment = time_of(text, NOW.astimezone(ZoneInfo("Europe/Berlin")))
    assert (moment and moment.isoformat()) == time


@cases(
    ("value", "time"),
    [
        (1_704_067_200, "2024-01-01T00:00:00+00:00"),
        ("1704067200.5", "2024-01-01T00:00:00.500000+00:00"),
        ("2020", "1970-01-01T00:33:40+00:00"),
    ],
)
def test_times_of_a_property(value: Any, time: str) -> None:
    """A number, also in a text, counts seconds."""
    moment = date_of(value, NOW)
    assert moment is not None
    assert moment.isoformat() == time


@cases(
    "value",
    [
        "",
        "soon",
        "-10000d",
        "-9999y",
        "-5x",
        None,
        True,
        [],
        "2023-02-29",
        "2024-W05-1",
        "2024-01-01T10:00:00 UTC",
        1e300,
        "9" * 5_000,
        "9" * 25 + "d",
    ],
)
def test_what_names_no_time(value: Any) -> None:
    """It is none, whatever its size."""
    assert date_of(value, NOW) is None
