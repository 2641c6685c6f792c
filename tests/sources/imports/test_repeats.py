"""What came before on the same day, asked one by one and of whole blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import ImportedEvent, derived_uuid
from forwarder.sources.imports.repeats import FORMER_FILE, Repeats, pack_uuids
from forwarder.sources.imports.times import DAY
from tests.support.cases import cases


def event(
    key: str | None = None,
    day: int = 20_000,
    *,
    name: str = "a",
    time: int = 0,
    who: str = "person",
    uuid: str = "0198c3c0",
) -> ImportedEvent:
    """An event of a day, so many microseconds after its start; with a key
    its uuid follows from that.
    """
    return ImportedEvent(
        name, who, day * DAY + time, uuid if key is None else derived_uuid(key), {}, key is not None
    )


def among(repeats: Repeats, events: Sequence[ImportedEvent]) -> list[int]:
    """Which of some neighbouring events are repeats, by index."""
    rows = [
        (imported.event, imported.distinct_id, imported.time, imported.uuid, imported.keyed)
        for imported in events
    ]
    columns: list[list[Any]] = [[row[column] for row in rows] for column in range(5)]
    return repeats.among(*columns)


Sizes = tuple[int, int]
"""The slots of an index, at first and at most."""
USUAL: Sizes = 1 << 10, 1 << 12
SMALL: Sizes = 4, 64
SIZES = st.sampled_from([(1, 1), (1, 8), (2, 2), SMALL, (64, 64), USUAL])


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of few digests, most of them in the file."""
    monkeypatch.setattr("forwarder.sources.imports.repeats._PAGE", 3)
    monkeypatch.setattr("forwarder.sources.imports.repeats._IN_MEMORY", 300)


def are_repeats(events: Sequence[ImportedEvent], folder: Path, sizes: Sizes = USUAL) -> list[bool]:
    """Which of some events are repeats."""
    with Repeats(folder, *sizes) as repeats:
        reported = [among(repeats, [imported]) == [0] for imported in events]
        assert repeats.repeats == sum(reported)
    assert list(folder.iterdir()) == []
    return reported


@cases(
    ("first", "second", "is_repeat"),
    [
        (event("k"), event("k"), True),
        (event("k"), event("k", time=DAY - 1, who="other", uuid="other"), True),
        (event("k"), event("k", 20_001), False),
        (event("k"), event("l"), False),
        (event("k"), event("k", name="b"), False),
        (event("k"), event(), False),
        (event(), event(), True),
        (event(), event(name="b"), False),
        (event(), event(time=1), False),
        (event(), event(who="other"), False),
        (event(), event(uuid="other"), False),
        (event(name="a", who="bc"), event(name="ab", who="c"), False),
        (event(name="\ud800"), event(name="\ud800"), True),
    ],
)
def test_what_a_repeat_is(
    first: ImportedEvent, second: ImportedEvent, is_repeat: bool, tmp_path: Path
) -> None:
    """The same natural key and name on one UTC day; without a key, all that
    the service collapses on.
    """
    assert are_repeats([first, second], tmp_path) == [False, is_repeat]


@pytest.mark.parametrize("sizes", [SMALL, (2, 2), USUAL])
def test_memory_is_bounded_and_nothing_forgotten(sizes: Sizes, tmp_path: Path) -> None:
    """Far more events than an index may hold are all known, in whatever order
    of days they come again.
    """
    events = [event(str(number), number % 7) for number in range(700)]
    with Repeats(tmp_path, *sizes) as repeats:
        assert not any(among(repeats, [imported]) for imported in events)
        assert all(
            among(repeats, [imported])
            for imported in sorted(events, key=lambda imported: imported.time)
        )
        assert repeats.repeats == 700
        assert not among(repeats, [event("new", 3)])


def test_one_day_may_be_larger_than_an_index(tmp_path: Path) -> None:
    """A day's digests are in several of them at once."""
    events = [event(str(number % 90)) for number in range(180)]
    assert are_repeats(events, tmp_path, (4, 16)) == [False] * 90 + [True] * 90


def test_a_file_left_by_a_former_version_is_removed(tmp_path: Path) -> None:
    """It left it where it was killed; ours have no names."""
    (tmp_path / FORMER_FILE).write_bytes(b"torn")
    events = [event(str(number)) for number in range(50)]
    assert not any(are_repeats(events, tmp_path))


def test_a_folder_that_cant_be_written_in_says_so(tmp_path: Path) -> None:
    """Where the file can't be made the import ends with what to do, before
    anything could be sent twice.
    """
    (folder := tmp_path / "folder").mkdir()
    repeats = Repeats(folder)
    folder.rmdir()
    with pytest.raises(ConfigurationError, match=r"no file in .*folder can be used"):
        among(repeats, [event(str(number)) for number in range(100)])
    repeats.close()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=120), SIZES)
def test_it_is_as_a_set_would_be(keys: list[tuple[int, int]], sizes: Sizes) -> None:
    """For any order and any sizes: an event is a repeat if and only if its
    key came before on its day.
    """
    seen = set[tuple[int, int]]()
    expected = []
    for pair in keys:
        expected.append(pair in seen)
        seen.add(pair)
    with TemporaryDirectory() as folder:
        assert (
            are_repeats([event(str(key), day) for key, day in keys], Path(folder), sizes)
            == expected
        )


def test_uuids_of_one_hash_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the index says of every digest that it may have it, each is looked
    up, and no event is lost.
    """
    monkeypatch.setattr(
        "forwarder.sources.imports.repeats.hash", lambda value: hash(value) & 1, raising=False
    )
    events = [event(str(number)) for number in range(300)]
    assert are_repeats([*events, *events], tmp_path, SMALL) == [False] * 300 + [True] * 300


Key = tuple[int, int]
"""A time, and the number of a uuid."""


def block(keys: Sequence[Key], name: str = "a", who: str = "b") -> list[ImportedEvent]:
    """Events of one name and id, without keys."""
    return [ImportedEvent(name, who, time, str(UUID(int=number)), {}) for time, number in keys]


def found_in_blocks(
    blocks: Sequence[list[ImportedEvent]], folder: Path, sizes: Sizes = USUAL
) -> list[list[int]]:
    """Which events of each block are repeats. Nothing is left in the folder."""
    repeats = Repeats(folder, *sizes)
    reported = [among(repeats, events) for events in blocks]
    repeats.close()
    assert list(folder.iterdir()) == []
    return reported


def test_all_that_the_service_collapses_on_makes_a_repeat(tmp_path: Path) -> None:
    """Uuid, time, name and id together, within a block and between blocks; each alone doesn't."""
    blocks = [
        block([(5, 1), (5, 1), (5, 2)]),
        block([(5, 1)]),
        block([(5, 1)], "other"),
        block([(5, 1)], who="other"),
        block([(6, 1)]),
    ]
    assert found_in_blocks(blocks, tmp_path) == [[1], [0], [], [], []]


def test_several_events_of_one_uuid_are_all_known(tmp_path: Path) -> None:
    """The second that differs from the first is as well remembered."""
    keys = [(5, 1), (6, 1), (7, 1)]
    assert found_in_blocks([block(keys), block(keys)], tmp_path) == [[], [0, 1, 2]]


def test_nothing_is_asked_of_no_events(tmp_path: Path) -> None:
    """A block of which nothing passed the filters."""
    assert found_in_blocks([[]], tmp_path) == [[]]


def test_what_goes_to_the_file_is_found_there(tmp_path: Path) -> None:
    """A source in the order of time writes what it can't hold, and knows it when a block reaches
    back to it.
    """
    blocks = [
        block([(time * 10 + number, time * 10 + number) for number in range(10)])
        for time in range(30)
    ]
    with Repeats(tmp_path, *SMALL) as repeats:
        assert not any(among(repeats, events) for events in blocks)
        assert [among(repeats, events) for events in blocks[::-1]] == [[*range(10)]] * 30


def test_a_folder_that_no_block_can_be_written_in_says_so(tmp_path: Path) -> None:
    """Before anything could be sent twice."""
    (folder := tmp_path / "folder").mkdir()
    repeats = Repeats(folder)
    folder.rmdir()
    with pytest.raises(ConfigurationError, match="folder can be used"):
        among(repeats, block([(1, number) for number in range(20)]))
    repeats.close()


def test_keys_and_events_without_any_in_one_block(tmp_path: Path) -> None:
    """Each is known by what makes its repeats."""
    mixed = [event("k"), event(), event("k", time=5), event(time=5), event()]
    with Repeats(tmp_path) as repeats:
        assert among(repeats, mixed) == [2, 4]
        assert among(repeats, [event(time=5), event("k", 20_001), event("k", time=9)]) == [0, 2]


BLOCKS = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=8), max_size=12
)


@settings(deadline=None, max_examples=120)
@given(BLOCKS, SIZES, st.booleans())
def test_blocks_are_as_a_set_would_be(
    blocks: list[list[Key]], sizes: Sizes, in_order: bool
) -> None:
    """For any blocks, in the order of time or not, and any sizes: a repeat is what came before,
    and nothing else.
    """
    if in_order:
        whole = sorted(key for keys in blocks for key in keys)
        lengths = [len(keys) for keys in blocks]
        blocks = [whole[sum(lengths[:at]) : sum(lengths[: at + 1])] for at in range(len(lengths))]
    seen = set[Key]()
    expected: list[list[int]] = []
    for keys in blocks:
        expected.append([])
        for at, key in enumerate(keys):
            if key in seen:
                expected[-1].append(at)
            seen.add(key)
    with TemporaryDirectory() as folder:
        assert found_in_blocks([block(keys) for keys in blocks], Path(folder), sizes) == expected


def test_uuids_are_distinguished_however_they_are_spelled() -> None:
    """One spelled otherwise counts as another one, as its text does; a mixture of lengths isn't
    taken for the usual form.
    """
    usual = "0198c3c0-1111-7222-8333-444455556666"
    others = [usual.replace("-", ""), f"urn:uuid:{usual}", f"{{{usual}}}"]
    assert pack_uuids([usual]) == UUID(usual).bytes
    assert len({pack_uuids([uuid]) for uuid in (usual, *others)}) == 4
    assert pack_uuids([usual, *others]) == b"".join(pack_uuids([uuid]) for uuid in (usual, *others))
    short_and_long = ["0" * 32, f"{{{usual}}}", "0" * 38]
    assert pack_uuids(short_and_long) == b"".join(pack_uuids([uuid]) for uuid in short_and_long)
