"""Blocks: what they send, in which chunks, and what they count."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.event import Lane
from forwarder.sources.files.record_blocks import RecordLocation, SourceFile
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock, cut_by_day, event_key
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import ConvertedRecords
from forwarder.sources.imports.import_books import (
    FateKind,
    RecordBooks,
    RecordFate,
    RefusalExample,
    digest_hex,
    uuid_hashes,
)
from forwarder.sources.imports.times import DAY

LIMITS = ChunkLimits(1_000, 3)
FILES = {2: SourceFile("a.jsonl", "abc")}
LANE = Lane("phc_blocks12345678", historical=True)


def finished(
    number: int, day: int, distinct_id: str = "a", size: int = 10, part: int = 0
) -> FinishedEvent:
    """An event of a day, in the third file."""
    uuid = f"0190a0a0-1111-4222-8333-{number:011}{part}"
    return FinishedEvent(
        day * DAY + number, distinct_id, "seen", uuid, b"x" * size, 2, number + 1, number, part
    )


def cut(events: Sequence[FinishedEvent], limits: ChunkLimits = LIMITS) -> list[list[int]]:
    """The numbers of the events of each part."""
    return [list(part.numbers) for part in cut_by_day(EventColumns.of(events), limits)]


def test_parts_are_within_limits() -> None:
    """Commas count; an event that alone is over the limit is a part alone."""
    assert cut([finished(number, 7) for number in range(7)]) == [[0, 1, 2], [3, 4, 5], [6]]
    assert cut(
        [finished(number, 7, size=size) for number, size in enumerate([499, 499, 500, 2_000, 1])]
    ) == [[0, 1], [2], [3], [4]]


def test_midnight_parts_events() -> None:
    """The last microsecond of a day and the first of the next."""
    assert cut(
        [finished(0, 7)._replace(time=8 * DAY - 1), finished(1, 8)._replace(time=8 * DAY)]
    ) == [[0], [1]]


def test_one_id_keeps_its_order_over_days() -> None:
    """An event doesn't join others of its day before one with an earlier event of its id; events
    of other ids do.
    """
    assert cut([finished(0, 7, "a"), finished(1, 8, "b"), finished(2, 7, "b")]) == [[0], [1], [2]]
    assert cut(
        [finished(0, 7, "a"), finished(1, 8, "b"), finished(2, 7, "c"), finished(3, 8, "a")]
    ) == [[0, 2], [1, 3]]


def test_a_merge_keeps_the_order_of_both_its_ids() -> None:
    """Neither does it overtake what its second person did, nor is it overtaken by that person."""
    merge = finished(1, 8, "ann")._replace(
        event="$identify", data=b'{"distinct_id":"ann","properties":{"$anon_distinct_id":"device"}}'
    )
    parts = list(
        cut_by_day(
            EventColumns.of([finished(0, 7, "other"), merge, finished(2, 7, "device")]), LIMITS
        )
    )
    assert [list(part.numbers) for part in parts] == [[0], [1], [2]]
    assert [part.ids() for part in parts] == [{"other"}, {"ann", "device"}, {"device"}]
    earlier = merge._replace(time=7 * DAY)
    assert cut([finished(0, 7, "other"), finished(2, 8, "device"), earlier]) == [[0], [2], [1]]


TRAFFIC = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from("abcd"), st.integers(1, 60)),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=100)
@given(TRAFFIC, st.integers(1, 6), st.integers(20, 150))
def test_whatever_comes_is_in_one_part_of_its_day_and_in_order(
    traffic: list[tuple[int, str, int]], max_events: int, max_bytes: int
) -> None:
    """Each event once, within limits; one id's events as they came, and so those of a day."""
    events = [finished(number, day, who, size) for number, (day, who, size) in enumerate(traffic)]
    parts = list(cut_by_day(EventColumns.of(events), ChunkLimits(max_bytes, max_events)))
    left = [event for part in parts for event in part]
    assert sorted(left, key=lambda event: event.number) == events
    for part in parts:
        assert len({event.day for event in part}) == 1
        assert len(part) <= max_events
        assert len(b",".join(part.data)) <= max_bytes or len(part) == 1
    for key in ("distinct_id", "day"):
        for value in {getattr(event, key) for event in events}:
            order = [event.number for event in left if getattr(event, key) == value]
            assert order == sorted(order)


def records() -> ImportBlock:
    """Five records from the tenth on: one sends two events of two days, one is refused, one of the
    last's two events is.
    """
    place = RecordLocation("a.jsonl", 12)
    refused = RecordFate(
        FateKind.REFUSED, "missing_timestamp", RefusalExample(*place, "there is none")
    )
    events = [finished(10, 7), finished(10, 8, "b", part=1), finished(11, 7), finished(14, 7)]
    fates = {2: refused, 3: RecordFate(FateKind.REPEAT)}
    made = ConvertedRecords(
        [2, 1, 0, 0, 1], fates, {4: refused}, [], EventColumns.of(events), first=10
    )
    block = ImportBlock(FILES, file=2)
    block.take(made, LIMITS)
    return block


def test_what_a_block_counts_is_known_when_it_is_made() -> None:
    """Records with their fates; a record of which the format refused an event is refused."""
    block = records()
    assert block.books == {2: RecordBooks(5, 2, {"missing_timestamp": 2}, {}, 1)}
    assert [reason for reason, _ in block.examples] == ["missing_timestamp", "missing_timestamp"]
    assert {day: (count.source, count.delivered) for day, count in block.days.items()} == {
        7: (3, 3),
        8: (1, 1),
    }
    assert block.days[8].uuids == digest_hex(uuid_hashes([finished(10, 8, part=1).uuid]))
    assert (block.names, block.first, block.last) == ({"seen": 4}, 7 * DAY + 10, 8 * DAY + 10)


def test_its_chunks_say_their_day_and_where_each_event_was() -> None:
    """Also a part of one, as delivery cuts them; the place of a dead letter names its
    event again.
    """
    block = records()
    first, second = block.chunks(LANE, 5.0)
    assert [(chunk.day, chunk.count, chunk.data, chunk.ids) for chunk in (first, second)] == [
        (7, 3, b",".join([b"x" * 10] * 3), frozenset("a")),
        (8, 1, b"x" * 10, frozenset("b")),
    ]
    part = first.part(b"x" * 10, 1, first.ids, 2)
    assert (part.day, part.where(0)) == (7, first.where(2))
    assert part.where(0).coordinates == "a.jsonl:15"
    assert [event_key(chunk.where(0).place) for chunk in (first, second)] == [
        (2, 10, 0),
        (2, 10, 1),
    ]


def test_events_that_the_service_refuses_are_subtracted() -> None:
    """Its record is refused once; one that the format refused already stays so. The rest is of
    what arrived.
    """
    block = records()
    block.chunks(LANE, 5.0)
    refusals = {
        (2, 10, 0): RecordFate(FateKind.REFUSED, "refused", RefusalExample("a.jsonl", 11, "bad")),
        (2, 10, 1): RecordFate(FateKind.REFUSED, "too_large", RefusalExample("a.jsonl", 11, "big")),
        (9, 1, 0): RecordFate(FateKind.REFUSED),
    }
    refusals[2, 14, 0] = RecordFate(
        FateKind.REFUSED, "refused", RefusalExample("a.jsonl", 15, "bad")
    )
    block.refuse(refusals)
    assert list(refusals) == [(9, 1, 0)]
    assert block.books == {2: RecordBooks(5, 1, {"missing_timestamp": 2, "refused": 1}, {}, 1)}
    assert block.examples[2] == ("refused", RefusalExample("a.jsonl", 11, "bad"))
    assert {
        day: (count.source, count.delivered, count.uuids) for day, count in block.days.items()
    } == {
        7: (3, 1, digest_hex(uuid_hashes([finished(11, 7).uuid]))),
        8: (1, 0, "0" * 32),
    }
    assert (+block.names, block.first, block.last) == ({"seen": 1}, 7 * DAY + 11, 7 * DAY + 11)
