"""Values are read as the service reads them: texts of JSON, numbers, times and versions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from forwarder.sandbox.conditions.values import (
    MAX_DEPTH,
    CannotDecide,
    caret_range,
    cut,
    date_of,
    depends_on_now,
    json_text,
    number_of,
    version_of,
)
from tests.support.cases import cases

NOW: Final = datetime(2024, 3, 31, 12, tzinfo=UTC)


@cases(
    ("value", "text"),
    [
        ("a b", "a b"),
        (None, "null"),
        (True, "true"),
        (10**30, "1" + "0" * 30),
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
        ("1e999", None),
        ([7], None),
    ],
)
def test_numbers(value: Any, number: float | None) -> None:
    """Finite decimal numbers, also in texts."""
    assert number_of(value) == number


@cases(
    ("value", "time"),
    [
        ("-1m", "2024-02-29T12:00:00+00:00"),
        ("13m", "2023-02-28T12:00:00+00:00"),
        ("-1y", "2023-03-31T12:00:00+00:00"),
        ("-1w", "2024-03-24T12:00:00+00:00"),
        ("36h", "2024-03-30T00:00:00+00:00"),
        ("2020", "2020-03-31T00:00:00+00:00"),
        ("2024-01-01", "2024-01-01T00:00:00+00:00"),
        ("2024-01-01 10:00:00 +02:00", "2024-01-01T10:00:00+02:00"),
        ("2024-01-01T10:00:00 UTC", "2024-01-01T10:00:00+00:00"),
        (1_704_067_200, "2024-01-01T00:00:00+00:00"),
        ("1704067200.5", "2024-01-01T00:00:00.500000+00:00"),
    ],
)
def test_times(value: Any, time: str) -> None:
    """Relative and absolute ones; months end where the shortest month on the way ends."""
    found = date_of(value, NOW)
    assert found is not None
    assert found.isoformat() == time


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
        1e300,
        "9" * 5_000,
        "9" * 25 + "d",
    ],
)
def test_what_names_no_time(value: Any) -> None:
    """It is none, whatever its size."""
    assert date_of(value, NOW) is None


def test_what_depends_on_the_time_of_the_evaluation() -> None:
    """Relative dates, and a year alone."""
    assert [
        depends_on_now(text) for text in ("-30d", "30d", "2024", "2024-01-01", "soon", "1704067200")
    ] == [True] * 3 + [False] * 3


@cases(
    ("value", "version"),
    [
        ("v1.2.3-beta+5", (1, 2, 3)),
        ("1", (1, 0, 0)),
        (1.2, (1, 2, 0)),
        ("01.08", (1, 8, 0)),
        ("1.2.3.4", (1, 2, 3)),
        ("a.b", None),
        ("", None),
    ],
)
def test_versions(value: Any, version: tuple[int, int, int] | None) -> None:
    """Three numbers; what follows them doesn't count."""
    assert version_of(value) == version


def test_the_next_version_that_may_be_incompatible() -> None:
    """The first number that isn't 0 goes up."""
    assert [caret_range(text) for text in ("1.2.3", "0.2.3", "0.0.3", "x")] == [
        ((1, 2, 3), (2, 0, 0)),
        ((0, 2, 3), (0, 3, 0)),
        ((0, 0, 3), (0, 0, 4)),
        None,
    ]
