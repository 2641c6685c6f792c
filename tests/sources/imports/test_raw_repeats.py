"""What a source of raw events has twice, asked of whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.raw_events import RawEvents
from forwarder.sources.imports.raw_repeats import FILE, RawRepeats, packed

Key = tuple[int, int]
"""A time, and the number of a uuid."""


def block(keys: Sequence[Key], name: str = "a", who: str = "b") -> RawEvents:
    """Events of one name and id."""
    uuids = [str(UUID(int=number)) for _, number in keys]
    count = len(keys)
    return RawEvents([*range(count)], [b"{}"] * count, [0] * count, [name] * count, [who] * count, [time for time, _ in keys], uuids)


def found(blocks: Sequence[RawEvents], folder: Path, in_memory: int = 1_000) -> list[list[int]]:
    """Which events of each block are repeats. Nothing is left in the folder."""
    repeats = RawRepeats(folder, in_memory)
    told = [list(repeats.among(each)) for each in blocks]
    repeats.close()
    assert list(folder.iterdir()) == []
    return told


def test_all_that_the_service_collapses_on_makes_a_repeat(tmp_path: Path) -> None:
    """Uuid, time, name and id together, within a block and between blocks; each alone doesn't."""
    blocks = [block([(5, 1), (5, 1), (5, 2)]), block([(5, 1)]), block([(5, 1)], "other"), block([(5, 1)], who="other"), block([(6, 1)])]
    assert found(blocks, tmp_path) == [[1], [0], [], [], []]


def test_several_events_of_one_uuid_are_all_known(tmp_path: Path) -> None:
    """The second that differs from the first is as well remembered."""
    keys = [(5, 1), (6, 1), (7, 1)]
    assert found([block(keys), block(keys)], tmp_path) == [[], [0, 1, 2]]


def test_nothing_is_asked_of_no_events(tmp_path: Path) -> None:
    """A block of which nothing passed the filters."""
    assert found([RawEvents()], tmp_path) == [[]]


def test_what_goes_to_the_file_is_found_there(tmp_path: Path) -> None:
    """A source in the order of time writes what it can't hold, and knows it when a block reaches back to it."""
    blocks = [block([(time * 10 + each, time * 10 + each) for each in range(10)]) for time in range(30)]
    repeats = RawRepeats(tmp_path, 40)
    assert not any(repeats.among(each) for each in blocks)
    assert (tmp_path / FILE).exists()
    assert [list(repeats.among(each)) for each in blocks[::-1]] == [[*range(10)]] * 30
    repeats.close()


def test_a_folder_that_cant_be_written_in_says_so(tmp_path: Path) -> None:
    """Before anything could be sent twice."""
    (folder := tmp_path / "folder").mkdir()
    repeats = RawRepeats(folder, 1)
    folder.rmdir()
    repeats.among(block([(1, 1)]))
    with pytest.raises(ConfigurationError, match=r"repeats\.blocks can't be used"):
        repeats.among(block([(2, 2)]))
    repeats.close()


BLOCKS = st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=8), max_size=12)


@settings(deadline=None, max_examples=120)
@given(BLOCKS, st.integers(0, 30), st.booleans())
def test_it_is_as_a_set_would_be(blocks: list[list[Key]], in_memory: int, in_order: bool) -> None:
    """For any blocks, in the order of time or not, and any memory: a repeat is what came before, and nothing else."""
    if in_order:
        whole = sorted(key for keys in blocks for key in keys)
        sizes = [len(keys) for keys in blocks]
        blocks = [whole[sum(sizes[:at]) : sum(sizes[: at + 1])] for at in range(len(sizes))]
    seen = set[Key]()
    expected: list[list[int]] = []
    for keys in blocks:
        expected.append([])
        for at, key in enumerate(keys):
            if key in seen:
                expected[-1].append(at)
            seen.add(key)
    with TemporaryDirectory() as folder:
        assert found([block(keys) for keys in blocks], Path(folder), in_memory) == expected


def test_uuids_are_told_apart_however_they_are_spelled() -> None:
    """One spelled otherwise counts as another one, as its text does; a mixture of lengths isn't taken for the usual form."""
    usual = "0198c3c0-1111-7222-8333-444455556666"
    others = [usual.replace("-", ""), f"urn:uuid:{usual}", f"{{{usual}}}"]
    assert packed([usual]) == UUID(usual).bytes
    assert len({packed([each]) for each in (usual, *others)}) == 4
    assert packed([usual, *others]) == b"".join(packed([each]) for each in (usual, *others))
    short_and_long = ["0" * 32, f"{{{usual}}}", "0" * 38]
    assert packed(short_and_long) == b"".join(packed([each]) for each in short_and_long)
