"""Finished events in columns are the same events."""

from __future__ import annotations

from forwarder.sources.imports.columns import EventColumns, FinishedEvent


def finished(number: int, file: int = 0, part: int = 0) -> FinishedEvent:
    """An event with texts and a place of its own."""
    return FinishedEvent(
        10 + number,
        f"person-{number}",
        f"name-{number % 3}",
        f"uuid-{number}",
        b"%d" % number,
        file,
        number + 1,
        number,
        part,
    )


def test_columns_are_a_sequence_of_their_events() -> None:
    """Counted, walked through, taken by an index from either end, or by neighbours."""
    events = [finished(number, part=number % 2) for number in range(5)]
    columns = EventColumns.of(events)
    assert (len(columns), list(columns), columns[0], columns[-1]) == (
        5,
        events,
        events[0],
        events[-1],
    )
    assert list(columns[1:3]) == events[1:3]
    assert list(columns[1:3].numbers) == [1, 2]
    assert list(EventColumns.of([])) == []


def test_bounds_are_of_all_events() -> None:
    """Names and times, also of some neighbours of them."""
    columns = EventColumns.of([finished(number) for number in (4, 0, 8)])
    assert columns.bounds == ({"name-0": 1, "name-1": 1, "name-2": 1}, 10, 18)
    assert columns[1:2].bounds == ({"name-0": 1}, 10, 10)


def test_some_of_the_events() -> None:
    """In the order that was asked for."""
    columns = EventColumns.of([finished(number, file=2, part=number % 2) for number in range(12)])
    some = columns.only([10, 3])
    assert list(some) == [finished(10, file=2), finished(3, file=2, part=1)]
    assert list(columns.only([])) == []


def test_ids_are_those_that_order_is_kept_by() -> None:
    """Each event's own, and the second id of one that makes one person of two."""
    merge = FinishedEvent(
        1,
        "person-9",
        "$identify",
        "uuid-9",
        b'{"distinct_id":"person-9","properties":{"$anon_distinct_id":"device"}}',
        0,
        1,
        9,
    )
    assert EventColumns.of([finished(0), finished(1)]).ids() == {"person-0", "person-1"}
    assert EventColumns.of([finished(0), merge]).ids() == {"person-0", "person-9", "device"}
