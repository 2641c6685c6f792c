"""How dead letters that were mended and sent again are counted."""

from __future__ import annotations

from uuid import UUID

import msgspec

from forwarder.sources.imports.events import ImportedEvent
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import FateKind, FileLedger, RecordFate
from forwarder.sources.imports.mending import ReplayedLetter, count_replayed
from forwarder.sources.imports.tallies import DayTally, ImportTotals, RecordBooks

DAY = 86_400_000_000
REFUSED = RecordFate(FateKind.REFUSED, "rejected_400")


def event(number: int, day: int = 0) -> FinishedEvent:
    """An event with a uuid and a time of its own."""
    return FinishedEvent(day * DAY + number, "ann", "seen", str(UUID(int=number)), b"", 0, number + 1, number)


def test_a_record_of_the_format_s_arrives() -> None:
    """The source has one event more on its day, and so has the service; the record is still one that was refused."""
    books, totals = RecordBooks(read=2, delivered=1, refused={"no_time": 1}), ImportTotals()
    count_replayed(ReplayedLetter(7, [event(1), event(2, day=1)], is_last=True), [books], totals)
    assert (books.mended, books.unmended, books.difference, books.refused) == (1, 0, 0, {"no_time": 1})
    assert [(day.source, day.delivered) for day in totals.days.values()] == [(1, 1), (1, 1)]
    assert (totals.names, totals.first, totals.last, totals.replayed) == ({"seen": 2}, 1, DAY + 2, [7])


def test_the_counts_are_those_of_an_import_without_a_refusal() -> None:
    """Refused by the service, and taken when it is sent again: days and digests say what they would have said."""
    whole, mended = ImportTotals(), ImportTotals()
    both = [ImportedEvent(each.event, each.distinct_id, each.time, each.uuid, {}) for each in (event(1), event(2))]
    position = FileLedger(whole)
    position.opened([1, 1], {})
    position.settle([0, 1], both)
    position = FileLedger(mended)
    position.opened([1, 1], {})
    position.settle([0], both[:1])
    position.settle([1], both[1:], REFUSED)
    assert mended.days != whole.days
    count_replayed(ReplayedLetter(1, [event(2)], day="1970-01-01", is_last=True), [position.books], mended)
    assert mended.days == whole.days
    assert (mended.names, mended.first, mended.last) == (whole.names, whole.first, whole.last)


def test_an_event_that_was_edited_to_another_day_is_of_that_day() -> None:
    """No day has more delivered than its source has."""
    totals = ImportTotals(days={"1970-01-01": DayTally(source=1)})
    count_replayed(ReplayedLetter(1, [event(2, day=1)], day="1970-01-01", is_last=True), [RecordBooks(refused={"x": 1})], totals)
    assert [(day.source, day.delivered) for day in totals.days.values()] == [(0, 0), (1, 1)]


def test_a_record_is_mended_with_the_last_of_its_letters() -> None:
    """One letter of several is counted by its events alone; what the service refuses of it is there, and not delivered."""
    books, totals = RecordBooks(read=1, refused={"no_id": 1}), ImportTotals()
    count_replayed(ReplayedLetter(1, [event(1)], [event(2)]), [books], totals)
    assert (books.mended, books.unmended) == (0, 1)
    assert (totals.days["1970-01-01"].source, totals.days["1970-01-01"].delivered) == (2, 1)
    count_replayed(ReplayedLetter(3, [event(2)], day="1970-01-01", is_last=True), [books], totals)
    assert (books.mended, books.unmended) == (1, 0)
    assert (totals.days["1970-01-01"].source, totals.days["1970-01-01"].delivered) == (2, 2)


def test_books_of_before_have_none_mended() -> None:
    """A checkpoint or a manifest that doesn't say reads as none; sums have the mended of all."""
    books = msgspec.json.decode(b'{"read":1,"refused":{"no_id":1}}', type=RecordBooks)
    assert (books.mended, books.unmended) == (0, 1)
    books.add(RecordBooks(mended=2, refused={"no_id": 2}))
    assert (books.mended, books.unmended) == (2, 1)


def test_no_more_is_mended_than_was_refused() -> None:
    """Books that don't balance would make a checkpoint that nobody can go on from; of a file and of all files it is the same record."""
    books, all_books = RecordBooks(refused={"no_id": 1}), RecordBooks(refused={"no_id": 5})
    for number in (1, 2):
        count_replayed(ReplayedLetter(number, [event(number)], is_last=True), [books, all_books], ImportTotals())
    assert (books.mended, all_books.mended) == (1, 1)
