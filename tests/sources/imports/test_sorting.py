"""Sorting by time on disk, and the spool."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.books import RecordBooks, RefusalExample
from forwarder.sources.imports.checkpoint import ImportJob
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.ledger import SharedRecord
from forwarder.sources.imports.sorting import (
    FILE,
    SPOOL,
    EventSorter,
    EventSpool,
    ReadFailure,
    SortedEvent,
    SortedFile,
    SortLimits,
    SpoolDamaged,
    SpoolIndex,
    check_room,
)

SMALL = SortLimits(memory=5_000, runs=2)
"""Some nine events, two runs."""


def finished(time: int, number: int) -> FinishedEvent:
    """An event at a time, with texts of its own."""
    return FinishedEvent(
        time, f"person é {number % 3}", "seen", f"uuid-{number}", b'{"number":%d}' % number, number % 2, number + 1, number, number % 4
    )


def some(count: int, seed: int = 1) -> list[FinishedEvent]:
    """Events at few times, in no order."""
    rng = random.Random(seed)
    return [finished(rng.randrange(count // 3 + 1), number) for number in range(count)]


def by_time(events: list[FinishedEvent]) -> list[FinishedEvent]:
    """What is expected: Python's own sort, which is stable."""
    return sorted(events, key=lambda event: event.time)


def ordered(sorter: EventSorter) -> Iterator[FinishedEvent]:
    """What a sorter gives, as it was."""
    return (entry.finished(-1) for entry in sorter.ordered())


def sort(events: Iterable[FinishedEvent], folder: Path, limits: SortLimits | None = None) -> list[FinishedEvent]:
    """Some events, sorted."""
    with EventSorter(folder, limits) as sorter:
        for event in events:
            sorter.add(event)
        for _ in sorter.merge():
            assert sorter.added
        return list(ordered(sorter))


def files(folder: Path) -> list[str]:
    """What stands in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_what_fits_in_memory_makes_no_file(tmp_path: Path) -> None:
    """A small import is sorted without the disk."""
    events = some(100)
    with EventSorter(tmp_path) as sorter:
        for event in events:
            sorter.add(event)
        assert list(sorter.merge()) == []
        found = ordered(sorter)
        assert next(found) == by_time(events)[0]
        assert files(tmp_path) == []
        assert list(found) == by_time(events)[1:]


def test_what_doesnt_fit_goes_through_runs(tmp_path: Path) -> None:
    """With far more runs than may be open, all comes out in order, and no file stays, in the end or after."""
    events = some(1_000)
    with EventSorter(tmp_path, SMALL) as sorter:
        for event in events:
            sorter.add(event)
        assert len(files(tmp_path)) > 50
        written = list(sorter.merge())
        assert written == sorted(written)
        assert len(files(tmp_path)) == 2
        assert list(ordered(sorter)) == by_time(events)
        assert files(tmp_path) == []


@pytest.mark.parametrize(("events", "written"), [(3, []), (4, [2]), (6, [3, 5])])
def test_no_more_is_written_again_than_has_to_be(tmp_path: Path, events: int, written: list[int]) -> None:
    """Three runs may be read together, and each has one event here: of four, just two are made one."""
    with EventSorter(tmp_path, SortLimits(memory=1, runs=3)) as sorter:
        for event in some(events):
            sorter.add(event)
        assert list(sorter.merge()) == written
        assert list(ordered(sorter)) == by_time(some(events))


def test_what_is_to_be_known_of_an_event_stays_with_it(tmp_path: Path) -> None:
    """In memory, and through runs."""
    events = some(40)
    known = [None, SharedRecord(is_last=True), SharedRecord(is_last=False, reason="too_large", detail="two MB")]
    for limits in (None, SMALL):
        with EventSorter(tmp_path, limits) as sorter:
            for number, event in enumerate(events):
                sorter.add(event, known[number % 3])
            assert len(list(sorter.merge())) == (0 if limits is None else 3)
            assert all(entry.shared == known[entry.turn % 3] for entry in sorter.ordered())


def test_blocks_of_a_run_are_read_one_after_the_other(tmp_path: Path) -> None:
    """Runs of several blocks, and events larger than a block or than memory, come out as they went in."""
    events = [finished(-number % 7, number)._replace(data=bytes([number]) * size) for number, size in enumerate([200_000, 700_000, 9] * 6)]
    assert sort(events, tmp_path, SortLimits(memory=1_000_000, runs=3)) == by_time(events)


def test_nothing_gives_nothing(tmp_path: Path) -> None:
    """An import without events is sorted too."""
    assert sort([], tmp_path, SMALL) == []


def test_no_file_is_left_when_reading_stops_early(tmp_path: Path) -> None:
    """Whoever leaves the block before the end leaves no file behind, and none open; so does who stops merging."""
    for steps in (1, 1_000):
        with EventSorter(tmp_path, SMALL) as sorter:
            for event in some(200):
                sorter.add(event)
            merging = sorter.merge()
            for _ in range(steps):
                next(merging, None)
            if steps > 1:
                next(ordered(sorter))
            del merging
        assert files(tmp_path) == []


def test_files_of_a_run_that_died_are_removed_and_no_others(tmp_path: Path) -> None:
    """What a killed process left is cleared away; what else is in the folder isn't touched."""
    for name in ("sort-000000.run", "sort-000007.run", "checkpoint.json"):
        (tmp_path / name).write_bytes(b"torn")
    events = some(200)
    assert sort(events, tmp_path, SMALL) == by_time(events)
    assert files(tmp_path) == ["checkpoint.json"]


def test_a_folder_that_cant_be_written_in_says_so(tmp_path: Path) -> None:
    """Where a run can't be written the import ends with what to do."""
    with pytest.raises(ConfigurationError, match="missing can't be sorted in: No such file") as raised:
        sort(some(200), tmp_path / "missing", SMALL)
    assert "--state" in raised.value.hint


def test_too_little_room_is_told_before(tmp_path: Path) -> None:
    """As far as it is known: how much it takes, and how much there is."""
    check_room(tmp_path, 1)
    with pytest.raises(ConfigurationError, match=r"that takes 1048576.0 GiB at least, there are \d") as raised:
        check_room(tmp_path, 1 << 50)
    assert "--state" in raised.value.hint


def test_a_run_that_the_disk_has_changed_is_told(tmp_path: Path) -> None:
    """Other events than those that were taken never come out."""
    with EventSorter(tmp_path, SMALL) as sorter:
        for event in some(30):
            sorter.add(event)
        for _ in sorter.merge():
            """Until it can be read."""
        path = next(tmp_path.glob("*.run"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(ConfigurationError, match="aren't those that were written"):
            list(ordered(sorter))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=80), st.integers(500, 8_000), st.integers(2, 5))
def test_any_order_comes_out_sorted_and_stable(times: list[int], memory: int, runs: int) -> None:
    """Whatever comes, and however little is held: it is Python's stable sort."""
    events = [finished(time, number) for number, time in enumerate(times)]
    with TemporaryDirectory() as folder:
        assert sort(events, Path(folder), SortLimits(memory, runs)) == by_time(events)
        assert files(Path(folder)) == []


JOB = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
LARGE = b"x" * 100_000
"""Three of them fill a block."""


def entries(count: int, data: bytes = LARGE) -> list[SortedEvent]:
    """Entries in order."""
    known = [None, SharedRecord(is_last=False), SharedRecord(is_last=True, reason="too_large", detail="two MB")]
    events = [FinishedEvent(number, "someone", "seen", "", data, number % 2, number, number) for number in range(count)]
    return [SortedEvent.of(event, turn, known[turn % 3]) for turn, event in enumerate(events)]


def written(spool: EventSpool, count: int, data: bytes = LARGE) -> SpoolIndex:
    """A spool of so many entries."""
    about = spool.empty({"a.jsonl": 7})
    about.files = [SortedFile("a.jsonl", "5eed", 9, RecordBooks(2, refused={"no_time": 2}), "d1", ReadFailure(17, "it is cut off"))]
    about.examples = {"no_time": [RefusalExample("a.jsonl", 3, "there is none")]}
    assert list(spool.write(entries(count, data), about))[-1:] == [count][:count]
    return about


def read(spool: EventSpool, about: SpoolIndex, first: int = 0) -> list[tuple[int, SortedEvent]]:
    """Entries from one on, with their numbers."""
    return [(number, entry) for begin, block in spool.read(about, first) for number, entry in enumerate(block, begin)]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 9, 10])
def test_it_is_read_from_any_entry_on(tmp_path: Path, first: int) -> None:
    """At the beginning, in and between blocks, and at the end."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    assert about.entries == 10
    assert read(spool, about, first) == list(enumerate(entries(10)))[first:]


def test_what_is_known_of_it_is_found_again(tmp_path: Path) -> None:
    """By the job that wrote it, from where its files stood."""
    about = written(EventSpool(tmp_path, JOB), 10)
    found = EventSpool(tmp_path, JOB).find({"a.jsonl": 7}, about.digest)
    assert found == about
    failure = about.files[0].failure
    assert failure is not None
    assert (failure.file, failure.offset, failure.reason) == ("a.jsonl", 17, "it is cut off")


def test_one_that_is_of_something_else_isnt_used(tmp_path: Path) -> None:
    """Of another job, sorted from elsewhere on, or of other entries than a checkpoint counts."""
    about = written(EventSpool(tmp_path, JOB), 4)
    assert EventSpool(tmp_path, ImportJob(JOB.id, "native", "b.jsonl")).find({"a.jsonl": 7}) is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 8}) is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 7}, "5eed") is None
    assert EventSpool(tmp_path, JOB).find({"a.jsonl": 7}) == about


def test_one_that_isnt_whole_isnt_used(tmp_path: Path) -> None:
    """Without its books, with books that the disk has changed, and without entries."""
    spool = EventSpool(tmp_path, JOB)
    written(spool, 4)
    books = (tmp_path / FILE).read_bytes()
    for content in (books[:-20], books.replace(b'"entries":4', b'"entries":5'), books.replace(b'"version":1', b'"version":2')):
        assert content != books
        (tmp_path / FILE).write_bytes(content)
        assert spool.find({"a.jsonl": 7}) is None
    (tmp_path / FILE).write_bytes(books)
    (tmp_path / SPOOL).unlink()
    assert spool.find({"a.jsonl": 7}) is None


def test_the_same_entries_have_the_same_digest_and_others_another(tmp_path: Path) -> None:
    """So a spool that is lost can be made again, and is known."""
    digests = []
    for name, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        digests.append(written(EventSpool(tmp_path / name, JOB), 4, data).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("what", ["changed", "cut", "cut in a header", "gone"])
def test_damage_is_told_and_the_next_run_sorts_anew(tmp_path: Path, what: str) -> None:
    """Whatever the disk did, no other entries come out; those before the damage do."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    content = (tmp_path / SPOOL).read_bytes()
    damage = {"changed": content[:-5] + b"?????", "cut": content[: len(content) // 2], "cut in a header": content + b"x"}
    if what in damage:
        (tmp_path / SPOOL).write_bytes(damage[what])
    else:
        (tmp_path / SPOOL).unlink()
    found: list[SortedEvent] = []
    with pytest.raises(SpoolDamaged, match=r"sorted.spool") as raised:
        found.extend(entry for _, block in spool.read(about, 0) for entry in block)
    assert "sorted anew" in raised.value.hint
    assert found == entries(10)[: len(found)]
    assert spool.find({"a.jsonl": 7}) is None


def test_a_spool_without_entries_is_one(tmp_path: Path) -> None:
    """Where nothing is to be sent."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 0)
    assert read(spool, about) == []
    assert spool.find({"a.jsonl": 7}) == about


def test_it_is_there_when_it_is_whole(tmp_path: Path) -> None:
    """Who stops writing leaves nothing that could be taken for a spool; nor does who dies, and what he leaves is removed."""
    spool = EventSpool(tmp_path, JOB)
    about = spool.empty({})
    writing = spool.write(entries(10), about)
    next(writing)
    (tmp_path / f".{SPOOL}.77.part").write_bytes(b"of a process that died")
    assert spool.find({}) is None
    writing.close()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == [f".{SPOOL}.77.part"]
    written(spool, 4)
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    """With what to do, and nothing of it stays."""
    spool = EventSpool(tmp_path, JOB)

    def refused() -> Iterator[SortedEvent]:
        yield from entries(10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigurationError, match="can't be sorted in: No space left on device") as raised:
        list(spool.write(refused(), SpoolIndex(JOB, {})))
    assert "--state" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"sorted.spool can't be written: No such file"):
        list(EventSpool(tmp_path / "missing", JOB).write(entries(4), SpoolIndex(JOB, {})))
