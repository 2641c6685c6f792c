"""What is counted of an import, and how a repaired dead letter is counted."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.import_books import (
    EXAMPLES,
    NAMES,
    OTHER_NAMES,
    DayTally,
    FateKind,
    ImportTotals,
    RecordBooks,
    RecordFate,
    RefusalExample,
    check_days,
    count_kind,
    count_replayed,
    uuid_hash,
    uuid_hashes,
)
from forwarder.sources.imports.times import DAY, day_of, when
from tests.support.cases import cases


@settings(deadline=None, max_examples=30)
@given(st.lists(st.uuids().map(str), max_size=30), st.integers(0, 30))
def test_a_digest_does_not_depend_on_the_order(some: list[str], cut: int) -> None:
    """Nor on how the uuids were shared out over blocks; what is taken off again leaves nothing."""
    one = DayTally()
    other = DayTally()
    one.add(len(some), len(some), uuid_hashes(some))
    turned = some[::-1]
    for part in (turned[:cut], turned[cut:]):
        other.add(len(part), len(part), uuid_hashes(part))
    assert one == other
    for uuid in some:
        one.add(-1, -1, -uuid_hash(uuid))
    assert one == DayTally()


@cases(
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
    """Read is delivered, refused, left out and repeats together; a difference
    says how many are missing.
    """
    one = RecordBooks(
        read=10, delivered=5, refused={"missing_timestamp": 2}, left_out={"--event": 1}, repeats=2
    )
    other = RecordBooks(
        read=4, delivered=1, refused={"missing_timestamp": 1, "missing_distinct_id": 1}
    )
    assert (one.difference, other.difference) == (0, 1)
    one.add(other)
    assert one == RecordBooks(
        read=14,
        delivered=6,
        refused={"missing_timestamp": 3, "missing_distinct_id": 1},
        left_out={"--event": 1},
        repeats=2,
    )
    assert one.difference == 1


def test_of_many_names_the_rest_are_counted_together() -> None:
    """A source that puts ids into names doesn't fill the memory."""
    totals = ImportTotals()
    totals.named({f"event {number}": 1 for number in range(NAMES + 20)})
    totals.named({"event 0": 1})
    assert totals.names["event 0"] == 2
    assert totals.names[OTHER_NAMES] == 20
    assert len(totals.names) == NAMES + 1


def test_of_each_reason_some_examples_are_kept() -> None:
    """The first ones, so that the same run shows the same."""
    totals = ImportTotals()
    for line in range(EXAMPLES * 2):
        totals.example("missing_timestamp", RefusalExample("a.json", line, "there is none"))
    assert [example.line for example in totals.examples["missing_timestamp"]] == list(
        range(EXAMPLES)
    )


def test_long_names_and_details_are_cut() -> None:
    """A checkpoint is written every second: a name or an answer of a megabyte has no
    place in it.
    """
    totals = ImportTotals()
    totals.named({"n" * 200: 1, "n" * 201: 1, "n" * 900_000: 1})
    totals.example("400", RefusalExample("a.json", 1, "d" * 900_000))
    assert totals.names == {"n" * 200: 1, "n" * 199 + "…": 2}
    assert totals.examples["400"][0].detail == "d" * 199 + "…"


@cases(
    "days",
    [
        {"yesterday": DayTally()},
        {"20240101": DayTally()},
        {"2024-01-01": DayTally(uuids="xyz")},
        {"": DayTally()},
    ],
)
def test_days_that_are_none_are_refused(days: dict[str, DayTally]) -> None:
    """A file that was changed by hand is reported before it is used."""
    with pytest.raises(ValueError, match=r".+"):
        check_days(days)


def test_what_is_not_delivered_is_counted_by_its_reason() -> None:
    """Repeats have none."""
    books = RecordBooks(read=4)
    for fate in [
        RecordFate(FateKind.REFUSED, "missing_distinct_id"),
        RecordFate(FateKind.LEFT_OUT, "--event"),
        RecordFate(FateKind.REPEAT),
    ]:
        count_kind(books, fate)
    count_kind(books, RecordFate(FateKind.REFUSED, "missing_distinct_id"))
    assert books == RecordBooks(
        read=4, refused={"missing_distinct_id": 2}, left_out={"--event": 1}, repeats=1
    )


def event(number: int, day: int = 0) -> FinishedEvent:
    """An event with a uuid and a time of its own."""
    return FinishedEvent(
        day * DAY + number, "ann", "seen", str(UUID(int=number)), b"", 0, number + 1, number
    )


def test_a_record_of_the_format_s_arrives() -> None:
    """The source has one event more on its day, and so has the service."""
    totals = ImportTotals()
    count_replayed(totals, [event(1), event(2, day=1)], [], "")
    assert [(day.source, day.delivered) for day in totals.days.values()] == [(1, 1), (1, 1)]
    assert (totals.names, totals.first, totals.last) == ({"seen": 2}, 1, DAY + 2)


def test_the_counts_are_those_of_an_import_without_a_refusal() -> None:
    """Refused by the service, and accepted when it is sent again: days and digests say what they
    would have said.
    """
    whole = ImportTotals()
    repaired = ImportTotals()
    whole.day(0).add(2, 2, uuid_hash(event(1).uuid) + uuid_hash(event(2).uuid))
    repaired.day(0).add(2, 1, uuid_hash(event(1).uuid))
    assert repaired.days != whole.days
    count_replayed(repaired, [event(2)], [], "1970-01-01")
    assert repaired.days == whole.days


def test_an_event_that_was_edited_to_another_day_is_of_that_day() -> None:
    """No day has more delivered than its source has."""
    totals = ImportTotals(days={"1970-01-01": DayTally(source=1)})
    count_replayed(totals, [event(2, day=1)], [], "1970-01-01")
    assert [(day.source, day.delivered) for day in totals.days.values()] == [(0, 0), (1, 1)]


def test_what_the_service_refuses_of_a_repaired_record_is_there_and_not_delivered() -> None:
    """It is a letter of its own, which is counted when it is replayed."""
    totals = ImportTotals()
    count_replayed(totals, [event(1)], [event(2)], "")
    assert (totals.days["1970-01-01"].source, totals.days["1970-01-01"].delivered) == (2, 1)
    count_replayed(totals, [event(2)], [], "1970-01-01")
    assert (totals.days["1970-01-01"].source, totals.days["1970-01-01"].delivered) == (2, 2)


def test_older_books_count_no_repaired_records() -> None:
    """A checkpoint or a manifest that doesn't say reads as none; sums have the repaired of all."""
    books = msgspec.json.decode(b'{"read":1,"refused":{"missing_distinct_id":1}}', type=RecordBooks)
    assert (books.repaired, books.unrepaired) == (0, 1)
    books.add(RecordBooks(repaired=2, refused={"missing_distinct_id": 2}))
    assert (books.repaired, books.unrepaired) == (2, 1)
