"""Events sorted by time, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.entries import SharedRecord
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.sorting import EventSorter, SortLimits, check_room

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
            assert sorter.taken
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
