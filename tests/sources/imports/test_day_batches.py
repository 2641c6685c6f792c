"""Batches of one day each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.day_batches import BatchLimits, DayBatch, DayBatches, JoinedColumns, joined_data, without_data
from forwarder.sources.imports.times import DAY

LIMITS = BatchLimits(max_bytes=1_000, max_events=3, max_days=2)


def finished(number: int, day: int, distinct_id: str = "a", size: int = 10) -> FinishedEvent:
    """An event of a day."""
    return FinishedEvent(day * DAY + number, distinct_id, "seen", f"uuid-{number}", b"x" * size, 0, number + 1, number)


def numbers(batches: Sequence[DayBatch]) -> list[list[int]]:
    """The events of batches, by number."""
    return [[event.number for event in batch.events] for batch in batches]


def run(events: Sequence[FinishedEvent], limits: BatchLimits) -> list[DayBatch]:
    """All batches of some events."""
    batches = DayBatches(limits)
    return [batch for event in events for batch in batches.add(event)] + list(batches.flush())


def test_a_batch_leaves_when_it_has_its_count() -> None:
    """Events of one day fill a batch, which leaves with the last of them."""
    batches = DayBatches(LIMITS)
    assert [numbers(batches.add(finished(number, 7))) for number in range(4)] == [[], [], [[0, 1, 2]], []]
    assert numbers(batches.flush()) == [[3]]
    assert batches.flush() == []


def test_a_batch_leaves_before_an_event_that_would_be_too_much() -> None:
    """Commas count; an event that alone is over the limit goes alone, at once."""
    events = [finished(number, 7, size=size) for number, size in enumerate([499, 500, 500, 500, 2_000])]
    batches = run(events, LIMITS)
    assert numbers(batches) == [[0, 1], [2], [3], [4]]
    assert [batch.size for batch in batches] == [len(batch.data) for batch in batches] == [1_000, 500, 500, 2_000]


def test_midnight_parts_batches() -> None:
    """The last microsecond of a day and the first of the next are in two batches, the earlier first."""
    events = [finished(0, 7)._replace(time=8 * DAY - 1), finished(1, 8)._replace(time=8 * DAY)]
    assert [(batch.day, len(batch.events)) for batch in run(events, LIMITS)] == [(7, 1), (8, 1)]


def test_the_oldest_batch_makes_room_for_a_new_day() -> None:
    """With as many days open as there may be, the one opened first leaves, whatever day it is."""
    batches = DayBatches(LIMITS)
    assert [*batches.add(finished(0, 9, "a")), *batches.add(finished(1, 8, "b"))] == []
    assert numbers(batches.add(finished(2, 7, "c"))) == [[0]]
    assert batches.oldest == finished(1, 8, "b")
    assert numbers(batches.flush()) == [[1], [2]]
    assert batches.oldest is None


def test_a_straggler_doesnt_wait_for_others_of_its_day() -> None:
    """A full batch takes those along that were opened before it: what is delivered has no old gaps."""
    events = [finished(0, 3, "late"), finished(1, 7), finished(2, 7), finished(3, 7)]
    assert numbers(run(events, LIMITS)) == [[0], [1, 2, 3]]


def test_one_distinct_id_keeps_its_order_over_days() -> None:
    """An event doesn't join a batch that would leave before one with an earlier event of its distinct_id."""
    events = [finished(0, 7, "a"), finished(1, 8, "b"), finished(2, 7, "b")]
    batches = run(events, LIMITS)
    assert numbers(batches) == [[0], [1], [2]]
    assert [batch.ids for batch in batches] == [{"a"}, {"b"}, {"b"}]


def test_others_of_the_day_join_its_open_batch() -> None:
    """Days that alternate fill two batches, as long as no distinct_id goes back."""
    events = [finished(0, 7, "a"), finished(1, 8, "b"), finished(2, 7, "c"), finished(3, 8, "a")]
    assert numbers(run(events, LIMITS)) == [[0, 2], [1, 3]]


TRAFFIC = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd"), st.integers(1, 60)), max_size=60)


@settings(deadline=None, max_examples=150)
@given(TRAFFIC, st.integers(1, 6), st.integers(1, 4), st.integers(20, 150))
def test_whatever_comes_leaves_once_within_limits_and_in_order(
    traffic: list[tuple[int, str, int]], max_events: int, max_days: int, max_bytes: int
) -> None:
    """Each event leaves once, in a batch of its day, within limits; one distinct_id's events leave as they came, and so do each day's."""
    events = [finished(number, day, who, size) for number, (day, who, size) in enumerate(traffic)]
    batches = run(events, BatchLimits(max_bytes, max_events, max_days))
    left = [event for batch in batches for event in batch.events]
    assert sorted(left, key=lambda event: event.number) == events
    for batch in batches:
        assert {event.day for event in batch.events} == {batch.day}
        assert len(batch.events) <= max_events
        assert batch.size == len(batch.data) <= max_bytes or len(batch.events) == 1
    for key in ("distinct_id", "day"):
        for value in {getattr(event, key) for event in events}:
            order = [event.number for event in left if getattr(event, key) == value]
            assert order == sorted(order)


LONG_TRAFFIC = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abcdefgh"), st.integers(1, 60), st.integers(1, 25), st.booleans()), max_size=12
)
"""Days, persons, sizes, how many such events come in a row, and whether they merge persons."""


@settings(deadline=None, max_examples=150)
@given(LONG_TRAFFIC, st.integers(1, 40), st.integers(1, 4), st.integers(20, 900), st.integers(1, 60))
def test_events_taken_together_make_the_batches_that_they_make_one_by_one(
    traffic: list[tuple[int, str, int, int, bool]], max_events: int, max_days: int, max_bytes: int, block: int
) -> None:
    """However they are cut into blocks: the same batches, with the same ids, in the same order."""
    rows = [(day, who, size, merges) for day, who, size, count, merges in traffic for _ in range(count)]
    data = b'{"distinct_id":"%b","properties":{"$anon_distinct_id":"h"}}'
    events = [finished(number, day, who, size) for number, (day, who, size, _) in enumerate(rows)]
    for number, (_, who, _, merges) in enumerate(rows):
        if merges:
            events[number] = events[number]._replace(event="$identify", data=data % who.encode())
    limits = BatchLimits(max_bytes, max_events, max_days)
    batches = DayBatches(limits)
    blocks = [EventColumns.of(events[at : at + block]) for at in range(0, len(events), block)]
    together = [batch for each in blocks for batch in batches.extend(each)] + list(batches.flush())
    alone = run(events, limits)
    assert numbers(together) == numbers(alone)
    assert [(batch.day, batch.size, batch.ids, batch.data) for batch in together] == [
        (batch.day, batch.size, batch.ids, batch.data) for batch in alone
    ]


@settings(deadline=None, max_examples=100)
@given(TRAFFIC, st.integers(1, 4))
def test_all_before_the_oldest_has_left(traffic: list[tuple[int, str, int]], max_days: int) -> None:
    """At any time everything before `oldest` has left, `oldest` hasn't, and what is held is bounded."""
    batches, left = DayBatches(BatchLimits(100, 4, max_days)), set[int]()
    for number, (day, who, size) in enumerate(traffic):
        left |= {event.number for batch in batches.add(finished(number, day, who, size)) for event in batch.events}
        oldest = number + 1 if batches.oldest is None else batches.oldest.number
        assert left >= set(range(oldest))
        assert oldest not in left
        assert number + 1 - len(left) <= 3 * max_days


@settings(deadline=None, max_examples=50)
@given(TRAFFIC)
def test_the_same_events_make_the_same_batches(traffic: list[tuple[int, str, int]]) -> None:
    """A second run sends the same batches."""
    events = [finished(number, day, who, size) for number, (day, who, size) in enumerate(traffic)]
    assert run(events, LIMITS) == run(events, LIMITS)


def test_an_event_that_makes_one_person_of_two_keeps_the_order_of_both() -> None:
    """Neither may a later event of the second person join an older batch, nor is the second id missing among those of its batch."""
    merge = FinishedEvent(
        2 * DAY, "ann", "$identify", "uuid-1", b'{"distinct_id":"ann","properties":{"$anon_distinct_id":"device"}}', 0, 2, 1
    )
    batches = DayBatches(BatchLimits(10_000, 10))
    assert not batches.add(finished(0, day=1, distinct_id="other"))
    assert not batches.add(merge)
    left = batches.add(finished(2, day=1, distinct_id="device"))
    assert numbers(left) == [[0]]
    assert [each.ids for each in batches.flush()] == [{"ann", "device"}, {"device"}]


def test_a_merge_doesn_t_join_a_batch_older_than_what_its_second_person_did() -> None:
    """It would overtake it."""
    merge = FinishedEvent(DAY, "ann", "$identify", "uuid-2", b'{"distinct_id":"ann","properties":{"$anon_distinct_id":"device"}}', 0, 3, 2)
    batches = DayBatches(BatchLimits(10_000, 10))
    assert not batches.add(finished(0, day=1, distinct_id="other"))
    assert not batches.add(finished(1, day=2, distinct_id="device"))
    assert numbers(batches.add(merge)) == [[0]]
    assert numbers(batches.flush()) == [[1], [2]]


def numbered(number: int, file: int = 0, part: int = 0) -> FinishedEvent:
    """An event with texts and a place of its own."""
    return FinishedEvent(
        10 + number, f"person-{number}", f"name-{number % 3}", f"uuid-{number}", b"%d" % number, file, number + 1, number, part
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_joined_events_are_as_a_list_of_them(files: list[int], start: int, stop: int) -> None:
    """Whichever files they are of."""
    events = [numbered(number, file) for number, file in enumerate(files)]
    joined = JoinedColumns.of(events)
    assert (len(joined), list(joined), joined == events) == (len(events), events, True)
    assert list(joined[start:stop]) == events[start:stop]
    assert [joined[at] for at in range(-len(events), len(events))] == events + events
    assert [each.file for each in joined.stretches] == [file for at, file in enumerate(files) if not at or files[at - 1] != file]


def test_joined_events_have_no_others() -> None:
    """An index beyond them is an error, as it is of a list; steps aren't neighbours."""
    joined = JoinedColumns.of([numbered(0)])
    with pytest.raises(IndexError):
        _ = joined[1]
    with pytest.raises(ValueError, match="neighbours"):
        _ = joined[::2]


@pytest.mark.parametrize("of", [JoinedColumns.of, list], ids=["columns", "list"])
def test_what_is_asked_of_either_form(of: Callable[[list[FinishedEvent]], Sequence[FinishedEvent]]) -> None:
    """The JSON with commas; all but the JSON; what is counted."""
    events = of([numbered(0), numbered(1), numbered(2, file=1)])
    assert joined_data(events) == b"0,1,2"
    assert [each.data for each in without_data(events)] == [b"", b"", b""]
    assert [each.number for each in without_data(events)] == [0, 1, 2]
