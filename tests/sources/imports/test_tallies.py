"""What is counted of an import."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.moments import day_of, when
from forwarder.sources.imports.tallies import EXAMPLES, NAMES, OTHER_NAMES, DayTally, ImportTotals, RecordBooks, RefusalExample, check_days


@settings(deadline=None, max_examples=30)
@given(st.lists(st.uuids().map(str), max_size=30), st.integers(0, 30))
def test_a_digest_does_not_depend_on_the_order(some: list[str], cut: int) -> None:
    """Nor on how the uuids were shared out over batches."""
    one, other = DayTally(), DayTally()
    one.arrived(some)
    turned = some[::-1]
    other.arrived(turned[:cut])
    other.arrived(turned[cut:])
    assert one == other
    assert one.delivered == one.source == len(some)


@pytest.mark.parametrize(
    ("microseconds", "day", "text"),
    [
        (0, "1970-01-01", "1970-01-01T00:00:00.000Z"),
        (86_399_999_999, "1970-01-01", "1970-01-01T23:59:59.999999Z"),
        (86_400_000_000, "1970-01-02", "1970-01-02T00:00:00.000Z"),
        (1_709_210_096_789_000, "2024-02-29", "2024-02-29T12:34:56.789Z"),
    ],
)
def test_days_are_those_of_utc(microseconds: int, day: str, text: str) -> None:
    """A day ends with its last microsecond."""
    assert day_of(microseconds) == day
    assert when(microseconds) == text


def test_books_balance_and_add_up() -> None:
    """Read is delivered, refused, left out and repeats together; a difference says how many are missing."""
    one = RecordBooks(read=10, delivered=5, refused={"no_time": 2}, left_out={"--event": 1}, repeats=2)
    other = RecordBooks(read=4, delivered=1, refused={"no_time": 1, "no_id": 1})
    assert (one.difference, other.difference) == (0, 1)
    one.add(other)
    assert one == RecordBooks(read=14, delivered=6, refused={"no_time": 3, "no_id": 1}, left_out={"--event": 1}, repeats=2)
    assert one.difference == 1


def test_of_many_names_the_rest_are_counted_together() -> None:
    """A source that puts ids into names doesn't fill the memory."""
    totals = ImportTotals()
    totals.named(f"event {number}" for number in range(NAMES + 20))
    totals.named(["event 0"])
    assert totals.names["event 0"] == 2
    assert totals.names[OTHER_NAMES] == 20
    assert len(totals.names) == NAMES + 1


def test_of_each_reason_some_examples_are_kept() -> None:
    """The first ones, so that the same run shows the same."""
    totals = ImportTotals()
    for line in range(EXAMPLES * 2):
        totals.example("no_time", RefusalExample("a.json", line, "there is none"))
    assert [each.line for each in totals.examples["no_time"]] == list(range(EXAMPLES))


def test_long_names_and_details_are_cut() -> None:
    """A checkpoint is written every second: a name or an answer of a megabyte has no place in it."""
    totals = ImportTotals()
    totals.named(["n" * 200, "n" * 201, "n" * 900_000])
    totals.example("400", RefusalExample("a.json", 1, "d" * 900_000))
    assert totals.names == {"n" * 200: 1, "n" * 199 + "…": 2}
    assert totals.examples["400"][0].detail == "d" * 199 + "…"


@pytest.mark.parametrize(
    "days", [{"yesterday": DayTally()}, {"20240101": DayTally()}, {"2024-01-01": DayTally(uuids="xyz")}, {"": DayTally()}]
)
def test_days_that_are_none_are_refused(days: dict[str, DayTally]) -> None:
    """A file that was changed by hand is told before it is used."""
    with pytest.raises(ValueError, match=r".+"):
        check_days(days)
