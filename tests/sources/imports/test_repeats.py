"""What the source has twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.events import ImportedEvent
from forwarder.sources.imports.moments import DAY
from forwarder.sources.imports.repeats import FILE, Repeats


def event(
    key: str | None = None, day: int = 20_000, *, name: str = "a", time: int = 0, who: str = "person", uuid: str = "0198c3c0"
) -> ImportedEvent:
    """An event of a day, so many microseconds after its start."""
    return ImportedEvent(name, who, day * DAY + time, uuid, {}, key)


def found(events: Sequence[ImportedEvent], folder: Path, in_memory: int = 1_000) -> list[bool]:
    """Which of some events are repeats."""
    with Repeats(folder, in_memory) as repeats:
        told = [repeats.is_repeat(each) for each in events]
        assert repeats.repeats == sum(told)
    assert list(folder.iterdir()) == []
    return told


@pytest.mark.parametrize(
    ("first", "second", "is_repeat"),
    [
        (event("k"), event("k"), True),
        (event("k"), event("k", time=DAY - 1, who="other", uuid="other"), True),
        (event("k"), event("k", 20_001), False),
        (event("k"), event("l"), False),
        (event("k"), event("k", name="b"), False),
        (event("k"), event(), False),
        (event("c", name="ab"), event("bc", name="a"), False),
        (event(), event(), True),
        (event(), event(name="b"), False),
        (event(), event(time=1), False),
        (event(), event(who="other"), False),
        (event(), event(uuid="other"), False),
        (event(name="a", who="bc"), event(name="ab", who="c"), False),
        (event("\ud800"), event("\ud800"), True),
    ],
)
def test_what_a_repeat_is(first: ImportedEvent, second: ImportedEvent, is_repeat: bool, tmp_path: Path) -> None:
    """The same natural key and name on one UTC day; without a key, all that the service collapses on."""
    assert found([first, second], tmp_path) == [False, is_repeat]


def test_memory_is_bounded_and_nothing_forgotten(tmp_path: Path) -> None:
    """Far more events than memory may hold are all known, in whatever order of days they come again."""
    events = [event(str(number), number % 7) for number in range(700)]
    with Repeats(tmp_path, 100) as repeats:
        assert not any(repeats.is_repeat(each) for each in events)
        assert (tmp_path / FILE).exists()
        assert all(repeats.is_repeat(each) for each in sorted(events, key=lambda each: each.time))
        assert repeats.repeats == 700
        assert not repeats.is_repeat(event("new", 3))
    assert list(tmp_path.iterdir()) == []


def test_one_day_may_be_larger_than_memory(tmp_path: Path) -> None:
    """A day's digests are in the file and in memory at once."""
    events = [event(str(number % 90)) for number in range(180)]
    assert found(events, tmp_path, 20) == [False] * 90 + [True] * 90


def test_what_fits_in_memory_makes_no_file(tmp_path: Path) -> None:
    """A small import writes nothing."""
    with Repeats(tmp_path) as repeats:
        repeats.is_repeat(event())
        assert list(tmp_path.iterdir()) == []


def test_a_file_left_by_a_run_that_died_is_removed(tmp_path: Path) -> None:
    """The next run starts with nothing seen, whatever the one before left."""
    (tmp_path / FILE).write_bytes(b"torn")
    events = [event(str(number)) for number in range(50)]
    assert not any(found(events, tmp_path, 10))


def test_a_folder_that_cant_be_written_in_says_so(tmp_path: Path) -> None:
    """Where the file can't be made the import ends with what to do, before anything could be sent twice."""
    (folder := tmp_path / "folder").mkdir()
    repeats = Repeats(folder, 1)
    folder.rmdir()
    with pytest.raises(ConfigurationError, match=r"repeats\.sqlite can't be used"):
        repeats.is_repeat(event())
    repeats.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=120), st.integers(0, 40))
def test_it_is_as_a_set_would_be(keys: list[tuple[int, int]], in_memory: int) -> None:
    """For any order and any memory: an event is a repeat if and only if its key came before on its day."""
    seen = set[tuple[int, int]]()
    expected = []
    for each in keys:
        expected.append(each in seen)
        seen.add(each)
    with TemporaryDirectory() as folder:
        assert found([event(str(key), day) for key, day in keys], Path(folder), in_memory) == expected


def test_what_looks_like_it_is_in_the_file_is_searched_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bits in memory say of every digest that it may be in the file, still no event is lost."""
    monkeypatch.setattr("forwarder.sources.imports.repeats_file._FILTER", 8)
    events = [event(str(number)) for number in range(300)]
    assert found([*events, *events], tmp_path, 20) == [False] * 300 + [True] * 300
