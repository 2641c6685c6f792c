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
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.blocks import SharedRecord
from forwarder.sources.imports.checkpoint import ImportJob, ReadFailure, SortedFile, SpoolIndex
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.import_books import RecordBooks, RefusalExample
from forwarder.sources.imports.sorting import (
    FILE,
    SPOOL,
    EventSorter,
    EventSpool,
    SortedEvent,
    SpoolDamaged,
    least_room,
)
from tests.sources.imports.lives import JOB, body, life, line, nameless, uuid_of, write
from tests.support.cases import cases

SMALL = (5_000, 2)
"""Bytes in memory, and runs that are merged at once."""
"""Some nine events, two runs."""


def finished(time: int, number: int) -> FinishedEvent:
    """An event at a time, with texts of its own."""
    return FinishedEvent(
        time,
        f"person é {number % 3}",
        "seen",
        f"uuid-{number}",
        b'{"number":%d}' % number,
        number % 2,
        number + 1,
        number,
        number % 4,
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
    return (FinishedEvent(entry.time, *entry[2:-1]) for entry in sorter.ordered())


def sort(
    events: Iterable[FinishedEvent], folder: Path, limits: tuple[int, ...] = ()
) -> list[FinishedEvent]:
    """Some events, sorted."""
    with EventSorter(folder, *limits) as sorter:
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
        in_order = ordered(sorter)
        assert next(in_order) == by_time(events)[0]
        assert files(tmp_path) == []
        assert list(in_order) == by_time(events)[1:]


def test_what_doesnt_fit_goes_through_runs(tmp_path: Path) -> None:
    """With far more runs than may be open, all comes out in order, and no file stays, in the end
    or after.
    """
    events = some(1_000)
    with EventSorter(tmp_path, *SMALL) as sorter:
        for event in events:
            sorter.add(event)
        assert len(files(tmp_path)) > 50
        written = list(sorter.merge())
        assert written == sorted(written)
        assert len(files(tmp_path)) == 2
        assert list(ordered(sorter)) == by_time(events)
        assert files(tmp_path) == []


@cases(("events", "written"), [(3, []), (4, [2]), (6, [3, 5])])
def test_no_more_is_written_again_than_has_to_be(
    tmp_path: Path, events: int, written: list[int]
) -> None:
    """Three runs may be read together, and each has one event here: of four, just two
    are made one.
    """
    with EventSorter(tmp_path, memory=1, runs=3) as sorter:
        for event in some(events):
            sorter.add(event)
        assert list(sorter.merge()) == written
        assert list(ordered(sorter)) == by_time(some(events))


def test_what_is_to_be_known_of_an_event_stays_with_it(tmp_path: Path) -> None:
    """In memory, and through runs."""
    events = some(40)
    known = [
        None,
        SharedRecord(is_last=True),
        SharedRecord(is_last=False, reason="too_large", detail="two MB"),
    ]
    for limits in ((), SMALL):
        with EventSorter(tmp_path, *limits) as sorter:
            for number, event in enumerate(events):
                sorter.add(event, known[number % 3])
            assert len(list(sorter.merge())) == (3 if limits else 0)
            assert all(entry.shared == known[entry.turn % 3] for entry in sorter.ordered())


def test_blocks_of_a_run_are_read_one_after_the_other(tmp_path: Path) -> None:
    """Runs of several blocks, and events larger than a block or than memory,
    come out as they went in.
    """
    events = [
        finished(-number % 7, number)._replace(data=bytes([number]) * size)
        for number, size in enumerate([200_000, 700_000, 9] * 6)
    ]
    assert sort(events, tmp_path, (1_000_000, 3)) == by_time(events)


def test_nothing_gives_nothing(tmp_path: Path) -> None:
    """An import without events is sorted too."""
    assert sort([], tmp_path, SMALL) == []


def test_no_file_is_left_when_reading_stops_early(tmp_path: Path) -> None:
    """Anyone who leaves the block before the end leaves no file behind, and none open; so does who
    stops merging.
    """
    for steps in (1, 1_000):
        with EventSorter(tmp_path, *SMALL) as sorter:
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
    with pytest.raises(
        ConfigurationError, match="missing can't be sorted in: No such file"
    ) as raised:
        sort(some(200), tmp_path / "missing", SMALL)
    assert "--state" in raised.value.hint


def test_a_damaged_run_is_reported(tmp_path: Path) -> None:
    """Other events than those that were taken never come out."""
    with EventSorter(tmp_path, *SMALL) as sorter:
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
        assert sort(events, Path(folder), (memory, runs)) == by_time(events)
        assert files(Path(folder)) == []


LARGE = b"x" * 100_000
"""Three of them fill a block."""


def entries(count: int, data: bytes = LARGE) -> list[SortedEvent]:
    """Entries in order."""
    known = [
        None,
        SharedRecord(is_last=False),
        SharedRecord(is_last=True, reason="too_large", detail="two MB"),
    ]
    return [
        SortedEvent(
            turn, turn, "someone", "seen", "", data, turn % 2, turn, turn, 0, known[turn % 3]
        )
        for turn in range(count)
    ]


def written(spool: EventSpool, count: int, data: bytes = LARGE) -> SpoolIndex:
    """A spool of so many entries."""
    about = SpoolIndex(JOB, {"a.jsonl": 7})
    about.files = [
        SortedFile(
            "a.jsonl",
            "5eed",
            9,
            RecordBooks(2, refused={"missing_timestamp": 2}),
            "d1",
            ReadFailure(17, "it is cut off"),
        )
    ]
    about.examples = {"missing_timestamp": [RefusalExample("a.jsonl", 3, "there is none")]}
    assert list(spool.write(entries(count, data), about))[-1:] == [count][:count]
    assert spool.find({"a.jsonl": 7}) is None
    spool.keep(about)
    return about


def read(spool: EventSpool, about: SpoolIndex, first: int = 0) -> list[tuple[int, SortedEvent]]:
    """Entries from one on, with their numbers."""
    return list(enumerate([entry for block in spool.read(about, first) for entry in block], first))


@cases("first", [0, 1, 2, 3, 4, 9, 10])
def test_it_is_read_from_any_entry_on(tmp_path: Path, first: int) -> None:
    """At the beginning, in and between blocks, and at the end."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    assert about.entries == 10
    assert read(spool, about, first) == list(enumerate(entries(10)))[first:]


def test_what_is_known_of_it_is_found_again(tmp_path: Path) -> None:
    """By the job that wrote it, from where its files stood."""
    about = written(EventSpool(tmp_path, JOB), 10)
    known = EventSpool(tmp_path, JOB).find({"a.jsonl": 7}, about.digest)
    assert known == about
    assert (about.files[0].name, about.files[0].broken) == (
        "a.jsonl",
        ReadFailure(17, "it is cut off"),
    )


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
    for content in (
        books[:-20],
        books.replace(b'"entries":4', b'"entries":5'),
        books.replace(b'"version":1', b'"version":2'),
    ):
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


@cases("what", ["changed", "cut", "cut in a header", "gone"])
def test_damage_is_reported_and_the_next_run_sorts_anew(tmp_path: Path, what: str) -> None:
    """Whatever the disk did, no other entries come out; those before the damage do."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 10)
    content = (tmp_path / SPOOL).read_bytes()
    damage = {
        "changed": content[:-5] + b"?????",
        "cut": content[: len(content) // 2],
        "cut in a header": content + b"x",
    }
    if what in damage:
        (tmp_path / SPOOL).write_bytes(damage[what])
    else:
        (tmp_path / SPOOL).unlink()
    read_entries: list[SortedEvent] = []
    with pytest.raises(SpoolDamaged, match=r"sorted.spool") as raised:
        read_entries.extend(entry for block in spool.read(about, 0) for entry in block)
    assert "sorted again" in raised.value.hint
    assert read_entries == entries(10)[: len(read_entries)]
    assert spool.find({"a.jsonl": 7}) is None


def test_a_spool_without_entries_is_one(tmp_path: Path) -> None:
    """Where nothing is to be sent."""
    spool = EventSpool(tmp_path, JOB)
    about = written(spool, 0)
    assert read(spool, about) == []
    assert spool.find({"a.jsonl": 7}) == about


def test_it_is_there_when_it_is_whole(tmp_path: Path) -> None:
    """Who stops writing leaves nothing that could be taken for a spool; nor does who dies, and
    what he leaves is removed.
    """
    spool = EventSpool(tmp_path, JOB)
    about = SpoolIndex(JOB, {})
    writing = spool.write(entries(10), about)
    next(writing)
    (tmp_path / f".{SPOOL}.77.part").write_bytes(b"of a process that died")
    assert spool.find({}) is None
    writing.close()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == [f".{SPOOL}.77.part"]
    written(spool, 4)
    spool.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_reported(tmp_path: Path) -> None:
    """With what to do, and nothing of it stays."""
    spool = EventSpool(tmp_path, JOB)

    def refused() -> Iterator[SortedEvent]:
        yield from entries(10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        ConfigurationError, match="can't be sorted in: No space left on device"
    ) as raised:
        list(spool.write(refused(), SpoolIndex(JOB, {})))
    assert "--state" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"sorted.spool can't be written: No such file"):
        list(EventSpool(tmp_path / "missing", JOB).write(entries(4), SpoolIndex(JOB, {})))


def shuffled(folder: Path, count: int = 60, seed: int = 1) -> list[Path]:
    """Two files with events of six days in no order, some of them in one record, and records that
    are none.
    """
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    lines = [line(number, number * 6 // count, pad="x" * 400) for number in numbers]
    records = [body(*lines[:3]), *lines[3 : count // 2], b"no json"]
    return [
        write(folder / "a.jsonl", records),
        write(folder / "b.jsonl", [nameless(count), *lines[count // 2 :]]),
    ]


def test_blocks_are_in_the_order_of_time_over_all_files(tmp_path: Path) -> None:
    """And of one time in that of the source. Each knows of what file and line its events are, and
    what they count.
    """
    paths = shuffled(tmp_path)
    with life(*paths, state=tmp_path / "state", sort=True) as run:
        run.read_all()
    assert [event.uuid for event in run.left] == [uuid_of(number) for number in range(60)]
    entries = [block for _, block in run.flying if block.entries]
    assert (
        sum(block.entries for block in entries)
        == sum(len(part) for block in entries for part in block.parts)
        == 60
    )
    assert sum(len(block.shared) for block in entries) == 3
    assert sum(books.delivered for block in entries for books in block.books.values()) == 57
    for block in entries:
        for chunk in block.parts:
            assert (
                [chunk[at] for at in range(len(chunk))]
                == list(chunk)
                == list(chunk.only(range(len(chunk))))
                == list(chunk[:])
            )
            for event in chunk:
                text = Path(block.files[event.file].name).read_text().splitlines()[event.line - 1]
                assert event.uuid in text


def test_it_says_what_it_does_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    """Blocks without events come as it reads and as it writes; closed between any two, it leaves
    nothing, and no spool.
    """
    paths = shuffled(tmp_path, 200)
    is_sorted = False
    stops = 0
    while not is_sorted:
        stops += 9
        with life(*paths, state=tmp_path / "state", sort=True) as run:
            blocks = [run.read() for _ in range(stops)]
        is_sorted = any(block is not None and block.sorted is not None for block in blocks)
        assert is_sorted or not list((tmp_path / "state").glob("*sort*"))
    assert stops > 50
    assert run.progress[0].startswith("it sorts before it sends: ")
    assert run.progress[-2:] == [
        "it sorts before it sends: 200 records are read, 200 of 200 events are in order",
        "",
    ]


def test_nothing_is_sorted_before_what_was_refused_is_kept(tmp_path: Path) -> None:
    """A run that finds sorted events doesn't read the source: anyone who took the block with them
    has kept all that is refused.
    """
    state = tmp_path / "state"
    with life(*shuffled(tmp_path), state=state, sort=True) as run:
        while (block := run.read()) is not None and block.sorted is None:
            """It reads and sorts."""
        assert len(run.letters) == 2
        assert not (state / FILE).exists()
        run.read()
        assert (state / FILE).exists()


def test_a_run_that_resumes_reads_nothing_of_the_source(tmp_path: Path) -> None:
    """It resumes in the sorted events, at the first that isn't settled."""
    [*paths] = shuffled(tmp_path, 900)
    with life(*paths, state=tmp_path / "state", sort=True) as run:
        run.read_all()
        while run.ledger.checkpoint.spool is None or not run.ledger.checkpoint.spool.settled:
            run.settle()
        run.save()
    for path in paths:
        write(path, [])
    with life(*paths, state=tmp_path / "state", sort=True) as again:
        checkpoint = again.finish()
    assert checkpoint.books.delivered == 898
    assert again.progress == [""]
    assert [event.uuid for event in run.arrived + again.arrived] == [
        uuid_of(number) for number in range(900)
    ]


@pytest.mark.parametrize("is_lost", [True, False])
def test_sorted_events_that_are_lost_are_sorted_again(tmp_path: Path, is_lost: bool) -> None:
    """And it resumes where it stood; also after the disk has changed them."""
    paths = shuffled(tmp_path, 900)
    state = tmp_path / "state"
    with life(*paths, state=state, sort=True) as run:
        run.read_all()
        while run.ledger.checkpoint.spool is None or not run.ledger.checkpoint.spool.settled:
            run.settle()
        run.save()
    if is_lost:
        (state / SPOOL).unlink()
    else:
        (state / SPOOL).write_bytes((state / SPOOL).read_bytes()[:-9])
        with life(*paths, state=state, sort=True) as failing, pytest.raises(SpoolDamaged):
            failing.read_all()
    with life(*paths, state=state, sort=True) as again:
        checkpoint = again.finish()
    assert checkpoint.complete
    assert [event.uuid for event in run.arrived + again.arrived] == [
        uuid_of(number) for number in range(900)
    ]


def test_a_limit_counts_events_in_the_order_of_the_source(tmp_path: Path) -> None:
    """It is taken while the source is read, so what is left are the first events of the files, not
    the oldest of all.
    """
    paths = [
        write(tmp_path / "a.jsonl", [line(number, 9 - number) for number in range(10)]),
        write(tmp_path / "b.jsonl", [line(50, 0)]),
    ]
    with life(*paths, state=tmp_path / "state", sort=True, filters=EventFilters(limit=4)) as run:
        checkpoint = run.finish()
    assert [event.uuid for event in run.arrived] == [uuid_of(number) for number in (3, 2, 1, 0)]
    assert checkpoint.complete


def test_the_room_that_it_takes_is_known_from_the_files(tmp_path: Path) -> None:
    """What is compressed counts as it is, text by a tenth of it: no more than it will take, for an
    import that has room isn't refused.
    """
    for name in ("a.jsonl", "b.JSONL.gz"):
        (tmp_path / name).write_bytes(bytes(1_000))
    with open_source([str(tmp_path / "a.jsonl"), str(tmp_path / "b.JSONL.gz")]) as source:
        assert least_room(source) == 1_100
    with (
        life(tmp_path / "a.jsonl", state=tmp_path / "state", sort=True, room=1 << 50) as run,
        pytest.raises(
            ConfigurationError, match=r"that takes 1048576.0 GiB at least, there are \d"
        ) as raised,
    ):
        run.read()
    assert "--state" in raised.value.hint
