"""A batch of an import as delivery carries it."""

from __future__ import annotations

from forwarder.core.event import Where
from forwarder.core.ports import Reason, letters_of
from forwarder.imports.chunks import SOURCE, ImportChunk
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.moments import DAY
from forwarder.wire.chunks import cut_at
from tests.imports.imports import LANE


def chunk(told: list[tuple[list[int], str]]) -> ImportChunk:
    """Four events, of which the records are told when they are settled."""
    events = [FinishedEvent(3 * DAY + n, f"p{n}", "seen", f"u{n}", b'{"distinct_id":"p%d"}' % n, 0, n + 1, n) for n in range(4)]
    data = b",".join(event.data for event in events)
    ids = frozenset(event.distinct_id for event in events)
    return ImportChunk(
        LANE,
        data,
        [event._replace(data=b"") for event in events],
        ids,
        5.0,
        lambda events, fate: told.append(([event.number for event in events], fate)),
        lambda event: Where(f"a.jsonl:{event.line}", (1, event.number)),
    )


def test_its_events_are_told_when_they_are_settled() -> None:
    """All at once, with their fate."""
    told: list[tuple[list[int], str]] = []
    whole = chunk(told)
    assert (whole.day, whole.source) == (3, SOURCE)
    assert whole.ack is not None
    whole.ack.settle(4, whole.data, "delivered")
    assert told == [([0, 1, 2, 3], "delivered")]


def test_parts_of_it_are_told_each_by_itself() -> None:
    """Whatever becomes of the other part; the ids of a part are those of its own events."""
    told: list[tuple[list[int], str]] = []
    left, right = cut_at(chunk(told), 1)
    assert (left.ids, right.ids) == (frozenset({"p0"}), frozenset({"p1", "p2", "p3"}))
    middle = cut_at(right, 2)[0]
    for part, fate in ((middle, "buried"), (left, "delivered")):
        assert part.ack is not None
        part.ack.settle(part.count, part.data, fate)
    assert told == [([1, 2], "buried"), ([0], "delivered")]


def test_a_dead_letter_says_where_its_event_was() -> None:
    """Also that of a part: by file and line, and by a place that no other has."""
    letters = letters_of(cut_at(chunk([]), 2)[1], Reason.REFUSED, "no", 1.0)
    assert [(letter.coordinates, letter.place, letter.data) for letter in letters] == [
        ("a.jsonl:3", (1, 2), b'{"distinct_id":"p2"}'),
        ("a.jsonl:4", (1, 3), b'{"distinct_id":"p3"}'),
    ]
