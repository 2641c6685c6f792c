"""Finished events in columns are the same events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.columns import (
    EventColumns,
    FinishedEvent,
    JoinedColumns,
    JoinedTexts,
    as_range,
    counted_of,
    joined_data,
    without_data,
)
from forwarder.sources.imports.format import EventBounds


def finished(number: int, file: int = 0, part: int = 0) -> FinishedEvent:
    """An event with texts and a place of its own."""
    return FinishedEvent(
        10 + number, f"person-{number}", f"name-{number % 3}", f"uuid-{number}", b"%d" % number, file, number + 1, number, part
    )


def test_columns_are_a_sequence_of_their_events() -> None:
    """Counted, walked through, taken by an index from either end, or by neighbours."""
    events = [finished(number, part=number % 2) for number in range(5)]
    columns = EventColumns.of(events)
    assert (len(columns), list(columns), columns[0], columns[-1]) == (5, events, events[0], events[-1])
    assert list(columns[1:3]) == events[1:3]
    assert columns[1:3].numbers == range(1, 3)
    assert columns == events
    assert list(EventColumns.of([])) == []


def test_without_parts_each_event_is_the_first_of_its_record() -> None:
    """As the fast way makes them."""
    columns = EventColumns(3, [10], ["person-0"], ["name-0"], ["uuid-0"], [b"0"], [1], range(1))
    assert [*columns, columns[0]] == [finished(0, file=3)] * 2


def test_bounds_are_of_all_events() -> None:
    """Names and times, also of some neighbours of them."""
    columns = EventColumns.of([finished(number) for number in (4, 0, 8)])
    assert columns.bounds == EventBounds({"name-0": 1, "name-1": 1, "name-2": 1}, 10, 18)
    assert columns[1:2].bounds == EventBounds({"name-0": 1}, 10, 10)
    assert columns.without_data().bounds == columns.bounds


def test_some_of_the_events_and_their_bytes() -> None:
    """In the order that was asked for; the bytes with commas between them, and how many they are without."""
    columns = EventColumns.of([finished(number, file=2, part=number % 2) for number in range(12)])
    some = columns.only([10, 3])
    assert list(some) == [finished(10, file=2), finished(3, file=2, part=1)]
    assert (some.joined(), some.size) == (b"10,3", 3)
    assert columns.only([]).joined() == b""


def test_ids_are_those_that_order_is_kept_by() -> None:
    """Each event's own, and the second id of one that makes one person of two."""
    merge = FinishedEvent(
        1, "person-9", "$identify", "uuid-9", b'{"distinct_id":"person-9","properties":{"$anon_distinct_id":"device"}}', 0, 1, 9
    )
    assert EventColumns.of([finished(0), finished(1)]).ids() == {"person-0", "person-1"}
    assert EventColumns.of([finished(0), merge]).ids() == {"person-0", "person-9", "device"}
    assert EventColumns.of([]).ids() == frozenset()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_joined_events_are_as_a_list_of_them(files: list[int], start: int, stop: int) -> None:
    """Whichever files they are of."""
    events = [finished(number, file) for number, file in enumerate(files)]
    joined = JoinedColumns.of(events)
    assert (len(joined), list(joined), joined == events) == (len(events), events, True)
    assert list(joined[start:stop]) == events[start:stop]
    assert [joined[at] for at in range(-len(events), len(events))] == events + events
    assert [each.file for each in joined.stretches] == [file for at, file in enumerate(files) if not at or files[at - 1] != file]


def test_joined_events_have_no_others() -> None:
    """An index beyond them is an error, as it is of a list; steps aren't neighbours."""
    joined = JoinedColumns.of([finished(0)])
    with pytest.raises(IndexError):
        _ = joined[1]
    with pytest.raises(ValueError, match="neighbours"):
        _ = joined[::2]


@pytest.mark.parametrize("of", [JoinedColumns.of, list], ids=["columns", "list"])
def test_what_is_asked_of_either_form(of: Callable[[list[FinishedEvent]], Sequence[FinishedEvent]]) -> None:
    """The JSON with commas; all but the JSON; what is counted."""
    events = of([finished(0), finished(1), finished(2, file=1)])
    assert joined_data(events) == b"0,1,2"
    assert [each.data for each in without_data(events)] == [b"", b"", b""]
    assert [each.number for each in without_data(events)] == [0, 1, 2]


@pytest.mark.parametrize("of", [EventColumns.of, list], ids=["columns", "list"])
def test_what_is_counted_of_either_form(of: Callable[[list[FinishedEvent]], Sequence[FinishedEvent]]) -> None:
    """Uuids, names, and bounds."""
    uuids, packed, bounds = counted_of(of([finished(0), finished(3)]))
    assert (list(uuids), packed, bounds) == (["uuid-0", "uuid-3"], b"", EventBounds({"name-0": 2}, 10, 13))


@pytest.mark.parametrize(("numbers", "is_range"), [([3, 4, 5], True), ([3, 3, 5], False), ([3, 5], False), ([], False), ([7], True)])
def test_neighbouring_numbers_are_a_range(numbers: list[int], *, is_range: bool) -> None:
    """Only those that follow one another, each once."""
    found = as_range(numbers)
    assert (list(found), isinstance(found, range)) == (numbers, is_range)


def joined(texts: list[bytes], longer: int = 0) -> JoinedTexts:
    """These texts, of which sizes were taken before `longer` bytes were put into each."""
    return JoinedTexts(b"".join(text + b"," for text in texts), [len(text) + 1 - longer for text in texts], longer)


@given(st.lists(st.binary(min_size=3, max_size=9), max_size=9), st.integers(0, 3), st.integers(-12, 12), st.integers(-12, 12))
def test_it_is_as_a_list(texts: list[bytes], longer: int, start: int, end: int) -> None:
    """One by one, in parts and parts of parts, and all together."""
    found = joined(texts, longer)
    assert (list(found), len(found), found.size, bytes(found.text)) == (texts, len(texts), sum(map(len, texts)), b",".join(texts))
    assert [found[index] for index in range(-len(texts), len(texts))] == texts * 2
    part = found[start:end]
    wanted = texts[start:end]
    assert (list(part), list(part[1:]), bytes(part.text), part.size) == (wanted, wanted[1:], b",".join(wanted), sum(map(len, wanted)))


def test_only_neighbours_can_be_taken() -> None:
    """And only texts that are there."""
    found = joined([b"a", b"b", b"c"])
    with pytest.raises(ValueError, match="neighbours"):
        _ = found[::2]
    with pytest.raises(IndexError):
        _ = found[3]
