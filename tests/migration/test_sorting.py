"""Events sorted by time, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.migration.finishing import Finished
from forwarder.migration.records import Place
from forwarder.migration.sorting import SortLimits, sorted_by_time

SMALL = SortLimits(memory=5_000, runs=2)
"""Some nine events, two runs."""


def finished(time: int, number: int) -> Finished:
    """An event at a time, with texts of its own."""
    return Finished(time, f"person é {number % 3}", b'{"number":%d}' % number, Place(f"file {number % 2}", number + 1), number)


def some(count: int, seed: int = 1) -> list[Finished]:
    """Events at few times, in no order."""
    rng = random.Random(seed)
    return [finished(rng.randrange(count // 3 + 1), number) for number in range(count)]


def by_time(events: list[Finished]) -> list[Finished]:
    """What is expected: Python's own sort, which is stable."""
    return sorted(events, key=lambda event: event.time)


def files(folder: Path) -> list[str]:
    """What stands in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_what_fits_in_memory_makes_no_file(tmp_path: Path) -> None:
    """A small import is sorted without the disk."""
    events = some(100)
    with sorted_by_time(events, tmp_path) as ordered:
        assert next(ordered) == by_time(events)[0]
        assert files(tmp_path) == []
        assert list(ordered) == by_time(events)[1:]


def test_what_doesnt_fit_goes_through_runs(tmp_path: Path) -> None:
    """With far more runs than may be open, all comes out in order, and no file stays, in the end or after."""
    events = some(1_000)
    with sorted_by_time(iter(events), tmp_path, SMALL) as ordered:
        first = next(ordered)
        assert len(files(tmp_path)) == 1
        assert [first, *ordered] == by_time(events)
        assert files(tmp_path) == []


def test_blocks_of_a_run_are_read_one_after_the_other(tmp_path: Path) -> None:
    """Runs of several blocks, and events larger than a block or than memory, come out as they went in."""
    events = [finished(-number % 7, number)._replace(data=bytes([number]) * size) for number, size in enumerate([200_000, 700_000, 9] * 6)]
    with sorted_by_time(events, tmp_path, SortLimits(memory=1_000_000, runs=3)) as ordered:
        assert list(ordered) == by_time(events)


def test_nothing_gives_nothing(tmp_path: Path) -> None:
    """An import without events is sorted too."""
    with sorted_by_time([], tmp_path, SMALL) as ordered:
        assert list(ordered) == []


def test_no_file_is_left_when_reading_stops_early(tmp_path: Path) -> None:
    """Whoever leaves the block before the end leaves no file behind, and none open."""
    with sorted_by_time(some(200), tmp_path, SMALL) as ordered:
        next(ordered)
    assert files(tmp_path) == []
    assert list(ordered) == []


def test_no_file_is_left_when_the_source_fails(tmp_path: Path) -> None:
    """An error of the source is the caller's, and the runs written so far are removed."""

    def failing() -> Iterator[Finished]:
        yield from some(200)
        raise RuntimeError("the source")

    def sort() -> None:
        with sorted_by_time(failing(), tmp_path, SMALL) as ordered:
            list(ordered)

    with pytest.raises(RuntimeError, match="the source"):
        sort()
    assert files(tmp_path) == []


def test_files_of_a_run_that_died_are_removed_and_no_others(tmp_path: Path) -> None:
    """What a killed process left is cleared away; what else is in the folder isn't touched."""
    for name in ("sort-000000.run", "sort-000007.run", "checkpoint.json"):
        (tmp_path / name).write_bytes(b"torn")
    events = some(200)
    with sorted_by_time(events, tmp_path, SMALL) as ordered:
        assert list(ordered) == by_time(events)
    assert files(tmp_path) == ["checkpoint.json"]


def test_a_folder_that_cant_be_written_in_says_so(tmp_path: Path) -> None:
    """Where a run can't be written the import ends with what to do."""

    def sort() -> None:
        with sorted_by_time(some(200), tmp_path / "missing", SMALL) as ordered:
            list(ordered)

    with pytest.raises(ConfigurationError, match="missing can't be sorted in: No such file"):
        sort()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), max_size=80), st.integers(500, 8_000), st.integers(2, 5))
def test_any_order_comes_out_sorted_and_stable(times: list[int], memory: int, runs: int) -> None:
    """Whatever comes, and however little is held: it is Python's stable sort."""
    events = [finished(time, number) for number, time in enumerate(times)]
    with TemporaryDirectory() as folder:
        with sorted_by_time(events, Path(folder), SortLimits(memory, runs)) as ordered:
            assert list(ordered) == by_time(events)
        assert files(Path(folder)) == []
