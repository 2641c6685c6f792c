"""The accounts of a running import."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.imports.accounts import SourceOrderCounts
from forwarder.sources.files.options import BrokenSource
from forwarder.sources.files.records import SourceFile
from forwarder.sources.imports.changes import SourceContent
from forwarder.sources.imports.checkpoint import ImportCheckpoint, StateFolder, read_checkpoint
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import FateKind, RecordFate
from forwarder.sources.imports.planned import FileEnded, FileStarted, RecordsRead
from forwarder.sources.imports.tallies import RecordBooks, RefusalExample
from tests.imports.imports import JOB, uuid_of

CONTENTS = [SourceContent("a", 1, "aa"), SourceContent("b", 1, "bb")]
SAID_NO = RecordFate(FateKind.REFUSED, "refused", RefusalExample("a", 1, "no"))


def accounts(saved: ImportCheckpoint | None = None) -> SourceOrderCounts:
    """Of a job of two files."""
    return SourceOrderCounts(JOB, 5.0, CONTENTS, saved)


def read(file: int, counts: list[int], digest: str = "") -> RecordsRead:
    """Records that send so many events each; those that send none are repeats."""
    return RecordsRead(file, counts, {at: RecordFate(FateKind.REPEAT) for at, count in enumerate(counts) if not count}, {}, (), digest)


def event(file: int, number: int) -> FinishedEvent:
    """An event of a record."""
    return FinishedEvent(number, "ann", "seen", uuid_of(100 * file + number), b"", file, number + 1, number)


def begun(it: SourceOrderCounts, files: str = "ab") -> None:
    """Files that are read."""
    for number, name in enumerate(files):
        it.take(FileStarted(number, SourceFile(name, name * 2)))


def test_a_batch_over_several_files_settles_each_of_its_records() -> None:
    """In whatever order its events are, and batches are settled."""
    it = accounts()
    begun(it)
    it.take(read(0, [1, 1, 0]))
    it.take(read(1, [1, 1]))
    it.settle([event(0, 1), event(1, 0)])
    assert (it.settled, it.in_flight, it.delivered, it.pending) == (1, 2, 2, 3 + 1 + 1)
    it.settle([event(1, 1), event(0, 0)])
    assert it.books == RecordBooks(read=5, delivered=4, repeats=1)
    assert (it.in_flight, it.delivered, it.pending) == (0, 4, 0)


def test_what_the_service_refuses_is_counted_so() -> None:
    """It isn't delivered, and isn't in flight any more."""
    it = accounts()
    begun(it, "a")
    it.take(read(0, [1, 1]))
    it.settle([event(0, 0)], SAID_NO)
    it.settle([event(0, 1)])
    assert it.books == RecordBooks(read=2, delivered=1, refused={"refused": 1})
    assert (it.in_flight, it.delivered) == (0, 1)
    assert it.totals.examples["refused"][0].detail == "no"


def test_a_checkpoint_has_files_in_their_order(tmp_path: Path) -> None:
    """Those that are done, those that aren't, and those of earlier runs that haven't begun again."""
    it = accounts()
    begun(it)
    it.take(read(0, [1], "digest of a"))
    it.take(read(1, [1], "digest of b"))
    it.take(FileEnded(1))
    it.settle([event(1, 0)])
    folder = StateFolder(tmp_path)
    folder.save(it.checkpoint(6.0))
    folder.close()
    saved = read_checkpoint(tmp_path)
    assert saved is not None
    assert [(file.name, file.books.read, file.read, file.complete, file.digest) for file in saved.files] == [
        ("a", 0, 1, False, ""),
        ("b", 1, 1, True, "digest of b"),
    ]
    assert not saved.complete
    again = accounts(saved)
    assert {name: each.records for name, each in again.saved().items()} == {"a": 0, "b": 1}
    again.take(FileStarted(0, SourceFile("a", "aa")))
    assert [(file.name, file.books.read) for file in again.checkpoint(7.0).files] == [("a", 0), ("b", 1)]
    assert again.books == RecordBooks(read=1, delivered=1)
    assert again.checkpoint(7.0).started_at == 5.0


def test_a_run_goes_on_counting_where_the_last_one_ended() -> None:
    """In the books of the file, in those of all, and by day; nothing is counted twice."""
    first = accounts()
    begun(first, "a")
    first.take(read(0, [1, 1]))
    first.settle([event(0, 0)])
    second = accounts(first.checkpoint(6.0))
    begun(second, "a")
    second.take(read(0, [1]))
    second.settle([event(0, 1)])
    second.take(FileEnded(0))
    second.exhausted = True
    saved = second.checkpoint(7.0)
    assert saved.complete
    assert saved.books == second.books == RecordBooks(read=2, delivered=2)
    assert saved.totals.days["1970-01-01"].delivered == 2
    assert second.delivered == 1


def test_a_file_that_is_read_again_isn_t_done_before_its_end() -> None:
    """It may be broken now; and what it has more than it had is taken too."""
    first = accounts()
    begun(first, "a")
    first.take(read(0, [1]))
    first.take(FileEnded(0))
    first.settle([event(0, 0)])
    saved = first.checkpoint(6.0)
    assert saved.files[0].complete
    second = accounts(saved)
    begun(second, "a")
    second.take(read(0, [1, 1]))
    second.settle([event(0, 1)])
    second.settle([event(0, 2)])
    assert not second.checkpoint(7.0).files[0].complete
    second.take(FileEnded(0, BrokenSource("a", 1, "cut off")))
    assert not second.checkpoint(7.0).files[0].complete


def test_what_isn_t_open_can_t_be_settled() -> None:
    """A mistake that must not go unseen."""
    it = accounts()
    begun(it, "a")
    it.take(read(0, [1]))
    with pytest.raises(ValueError, match="aren't open"):
        it.settle([event(0, 1)])


def test_very_many_files_cost_nothing_but_their_checkpoint() -> None:
    """What is asked twice a second doesn't look at each of them."""
    it = accounts()
    for number in range(2000):
        it.take(FileStarted(number, SourceFile(f"f{number}", "aa")))
        it.take(read(number, [1]))
        it.take(FileEnded(number))
        it.settle([event(number, 0)])
    assert it.books is it.books
    assert it.settled == 2000
    assert not it._open
    assert len(it.checkpoint(6.0).files) == 2000
