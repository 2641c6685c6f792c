"""What is settled of a job's records, in the order of each file."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from time import process_time
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.books import DayTally, FateKind, ImportTotals, RecordBooks, RecordFate, RefusalExample
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.ledger import FileLedger
from forwarder.sources.imports.times import day_of

DAY = 86_400_000_000
REJECTED = RecordFate(FateKind.REFUSED, "rejected_400", RefusalExample("a.json", 1, "the service said no"))


def event(number: int, day: int = 0, name: str = "seen") -> FinishedEvent:
    """An event with a uuid and a time of its own."""
    return FinishedEvent(day * DAY + number, "someone", name, str(UUID(int=number)), b"", 0, 1, number)


def test_a_position_waits_for_the_first_unsettled_record() -> None:
    """What is settled beyond it is neither in the position nor in the counts."""
    totals = ImportTotals()
    position = FileLedger(totals)
    position.opened([1, 1, 1], {})
    position.settle([1, 2], [event(1), event(2)])
    assert (position.settled, position.read, totals.days) == (0, 3, {})
    position.settle([0], [event(0)])
    assert position.settled == 3
    assert position.books == RecordBooks(read=3, delivered=3)
    assert totals.days["1970-01-01"].delivered == 3
    assert (totals.first, totals.last, totals.names) == (0, 2, {"seen": 3})


def test_a_range_of_records_is_settled_like_a_list_of_them() -> None:
    """Also where its records have several events, so that it settles only some of them."""
    for records in (range(1, 3), [1, 2]):
        position = FileLedger(ImportTotals())
        position.opened([1, 1, 2], {})
        position.settle(records, [event(1), event(2)])
        position.settle(range(1), [event(0)])
        assert position.settled == 2
        position.settle(range(2, 3), [event(3)])
        assert position.books == RecordBooks(read=3, delivered=3)
        position.settle([], [])
        assert position.settled == 3


def test_a_batch_across_the_position_is_counted_in_parts() -> None:
    """A checkpoint between has just those before it."""
    totals = ImportTotals()
    position = FileLedger(totals)
    position.opened([1, 1, 1], {})
    position.settle([0, 2], [event(0), event(2)])
    assert (position.settled, totals.days["1970-01-01"].delivered) == (1, 1)
    position.settle([1], [event(1)])
    assert (position.settled, totals.days["1970-01-01"].delivered) == (3, 3)


def test_a_record_is_settled_with_the_last_of_its_events() -> None:
    """Its events may go with different batches, on different days; it is one record."""
    totals = ImportTotals()
    position = FileLedger(totals)
    position.opened([3], {})
    position.settle([0, 0], [event(1), event(2)])
    assert position.settled == 0
    position.settle([0], [event(3, day=1)])
    assert position.books == RecordBooks(read=1, delivered=1)
    assert [day.delivered for day in totals.days.values()] == [2, 1]


def test_records_that_send_nothing_are_counted_by_their_reason() -> None:
    """Refused, left out, or a repeat; examples say where they stand."""
    totals, example = ImportTotals(), RefusalExample("a.json", 2, "there is no time")
    position = FileLedger(totals)
    fates = {
        1: RecordFate(FateKind.REFUSED, "no_time", example),
        2: RecordFate(FateKind.LEFT_OUT, "--since"),
        3: RecordFate(FateKind.REPEAT),
    }
    position.opened([1, 0, 0, 0], fates)
    assert position.books == RecordBooks()
    position.settle([0], [event(0)])
    assert position.books == RecordBooks(read=4, delivered=1, refused={"no_time": 1}, left_out={"--since": 1}, repeats=1)
    assert totals.examples == {"no_time": [example]}


def test_what_the_service_refuses_is_refused() -> None:
    """The source has it, and it isn't delivered; a record with one such event is a refused record."""
    totals = ImportTotals()
    position = FileLedger(totals)
    position.opened([2, 1], {})
    position.settle([0, 1], [event(0), event(2)])
    position.settle([0], [event(1)], REJECTED)
    assert position.books == RecordBooks(read=2, delivered=1, refused={"rejected_400": 1})
    assert (totals.days["1970-01-01"].source, totals.days["1970-01-01"].delivered) == (3, 2)
    assert totals.examples["rejected_400"] == [REJECTED.example]


@pytest.mark.parametrize(("events", "fates"), [([0], {}), ([1], {0: RecordFate(FateKind.REPEAT)})])
def test_a_record_sends_events_or_has_a_reason(events: list[int], fates: dict[int, RecordFate]) -> None:
    """Anything else is a mistake of the caller, told at once: books would not balance."""
    with pytest.raises(ValueError, match="either"):
        FileLedger(ImportTotals()).opened(events, fates)


@pytest.mark.parametrize("records", [[0], [3], range(2, 4)])
def test_only_open_records_can_be_settled(records: list[int] | range) -> None:
    """Settling one twice is a mistake of the caller, and must not settle another instead."""
    position = FileLedger(ImportTotals())
    position.opened([1, 1, 1], {})
    position.settle([0], [event(0)])
    with pytest.raises(ValueError, match="aren't open: 1 are settled, 3 read"):
        position.settle(records, [event(each) for each in records])
    assert position.settled == 1


def test_the_running_digest_is_never_beyond_the_position() -> None:
    """It is of the last block that is settled whole."""
    position = FileLedger(ImportTotals())
    position.opened([1, 1], {}, "digest of 2")
    position.opened([1, 1], {}, "digest of 4")
    position.settle([0, 1, 2], [event(0), event(1), event(2)])
    assert (position.settled, position.digested, position.digest) == (3, 2, "digest of 2")
    position.settle([3], [event(3)])
    assert (position.digested, position.digest) == (4, "digest of 4")


def test_a_file_is_complete_when_it_is_read_and_settled() -> None:
    """Neither of both alone is enough."""
    position = FileLedger(ImportTotals())
    position.opened([1], {})
    position.ended = True
    assert not position.complete
    position.settle([0], [event(0)])
    assert position.complete


@dataclass
class Source:
    """Records with their events, as a job meets them again in each run."""

    events: list[list[FinishedEvent]]

    def fates(self, start: int) -> dict[int, RecordFate]:
        """Of those from `start` on that send nothing."""
        kinds = [RecordFate(FateKind.REFUSED, "no_id"), RecordFate(FateKind.LEFT_OUT, "--event"), RecordFate(FateKind.REPEAT)]
        return {index - start: kinds[index % 3] for index in range(start, len(self.events)) if not self.events[index]}

    def run(self, books: RecordBooks, totals: ImportTotals, random: Random, stop: int | None = None) -> FileLedger:
        """Read from a position on, settle in any order, and be killed after some batches."""
        position = FileLedger(totals, books)
        start = position.settled
        position.opened([len(each) for each in self.events[start:]], self.fates(start))
        pending = [(number, each) for number in range(start, len(self.events)) for each in self.events[number]]
        random.shuffle(pending)
        batches = [
            [pair for pair in pending[first : first + 5] if day_of(pair[1].time) == day]
            for first in range(0, len(pending), 5)
            for day in sorted({day_of(each.time) for _, each in pending[first : first + 5]})
        ]
        for batch in batches[:stop]:
            position.settle([number for number, _ in batch], [each for _, each in batch])
            assert position.books.difference == 0
        return position


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=25), st.lists(st.integers(0, 4), max_size=6), st.integers())
def test_killed_anywhere_the_counts_are_those_of_one_run(days: list[list[int]], kills: list[int], seed: int) -> None:
    """Whatever is sent twice is counted once: books, days, digests, names and times are the same as without a kill."""
    source = Source([[event(number * 10 + place, day) for place, day in enumerate(each)] for number, each in enumerate(days)])
    random = Random(seed)
    books, totals = RecordBooks(), ImportTotals()
    for stop in kills:
        source.run(books, totals, random, stop)
        books, totals = (msgspec.json.decode(msgspec.json.encode(each), type=type(each)) for each in (books, totals))  # type: ignore[assignment]
    done = source.run(books, totals, random)
    whole = ImportTotals()
    assert source.run(RecordBooks(), whole, Random(1)).books == done.books
    assert totals.names == whole.names
    assert totals.days == whole.days
    assert (totals.first, totals.last) == (whole.first, whole.last)
    assert done.settled == len(days)
    expected: dict[str, DayTally] = {}
    for each in (one for record in source.events for one in record):
        expected.setdefault(day_of(each.time), DayTally()).arrived([each.uuid])
    assert totals.days == expected


def test_books_of_all_files_are_kept_beside_those_of_each() -> None:
    """Whatever becomes of records; an example is told once."""
    totals, of_all = ImportTotals(), RecordBooks(read=5, delivered=5)
    position = FileLedger(totals, of_all=of_all)
    fates = {
        1: RecordFate(FateKind.REFUSED, "no_time", RefusalExample("a.json", 2, "no")),
        2: RecordFate(FateKind.LEFT_OUT, "--since"),
        3: RecordFate(FateKind.REPEAT),
    }
    position.opened([1, 0, 0, 0], fates)
    position.settle([0], [event(0)])
    assert position.books == RecordBooks(read=4, delivered=1, refused={"no_time": 1}, left_out={"--since": 1}, repeats=1)
    assert of_all == RecordBooks(read=9, delivered=6, refused={"no_time": 1}, left_out={"--since": 1}, repeats=1)
    assert len(totals.examples["no_time"]) == 1


def test_what_is_settled_out_of_turn_is_known_as_parked() -> None:
    """Until it can be counted, also where a batch is counted in parts."""
    position = FileLedger(ImportTotals())
    position.opened([1, 1, 1, 1], {})
    position.settle([1, 3], [event(1), event(3)])
    assert position.parked == 2
    position.settle([0], [event(0)])
    assert (position.settled, position.parked) == (2, 1)
    position.settle([2], [event(2)])
    assert (position.settled, position.parked) == (4, 0)


@pytest.mark.parametrize("stuck", [1, 2000])
def test_very_much_that_waits_for_its_first_record_is_settled_in_time(stuck: int) -> None:
    """Neither many small batches behind it, nor very many refused ones, are looked at each time that it moves."""
    count = 20_000
    position = FileLedger(ImportTotals())
    position.opened([1] * count, {})
    for number in range(stuck, count):
        position.settle([number], [event(number)], REJECTED if number % 2 else None)
    assert position.settled == 0
    began = process_time()
    for number in range(stuck):
        position.settle([number], [event(number)])
    assert position.settled == count
    assert process_time() - began < 3
