"""Suspects apart from the others: no byte changes, and no order that the lane keeps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Batch, Chunk
from forwarder.core.ports import Ordering
from forwarder.delivery.groups import Group, Part
from forwarder.delivery.isolating import exonerate, isolate, representative
from forwarder.wire.envelope import envelope_size
from forwarder.wire.identity import ids_of
from forwarder.wire.strict import Oddity, Suspicion
from tests.delivery.rig import LANE, chunk_of, event
from tests.delivery.test_splitting import Held

KINDS = [(Oddity.NUL,), (Oddity.LONG_INTEGER,), (Oddity.NESTED_60,)]
EVENTS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, None, None, 0, 1, 2])), min_size=1, max_size=30)


def group_of(people: list[int], sizes: list[int]) -> tuple[Group, list[bytes], list[Chunk]]:
    """A batch of events of these persons, in chunks of these sizes and one of what is left."""
    raw = [event(str(number), f"p{person}") for number, person in enumerate(people)]
    chunks: list[Chunk] = []
    at = 0
    for size in [*sizes, len(raw)]:
        if raw[at : at + size]:
            chunks.append(chunk_of(raw[at : at + size], 7.0))
        at += size
    return Group.of(Batch(LANE, tuple(chunks), envelope_size(LANE, chunks))), raw, chunks


def contents(part: Part) -> list[bytes]:
    """The events of a part."""
    return [one for chunk in part.batch.chunks for one in chunk.events()]


def assert_ordered(group: Group, raw: list[bytes], ordering: Ordering) -> None:
    """All events are there once, and none was overtaken by a later one that shares what the lane orders by."""
    places = {one: (index, place) for index, part in enumerate(group.parts) for place, one in enumerate(contents(part))}
    assert sorted(places) == sorted(raw)
    assert sum(len(contents(part)) for part in group.parts) == len(raw)
    for later, second in enumerate(raw):
        for first in raw[:later]:
            if ordering is Ordering.STRICT or (ordering is Ordering.PER_DISTINCT_ID and not ids_of(first).isdisjoint(ids_of(second))):
                assert places[first] < places[second]
    for part in group.parts:
        assert part.batch.size == envelope_size(LANE, part.batch.chunks)


@given(EVENTS, st.lists(st.integers(1, 6), max_size=5), st.sampled_from(list(Ordering)), st.sets(st.sampled_from(KINDS)))
def test_suspects_are_apart_and_order_is_kept(
    events: list[tuple[int, int | None]], sizes: list[int], ordering: Ordering, known: set[tuple[Oddity, ...]]
) -> None:
    """Parts hold suspects or none; suspects of different kinds share one only if there are precedents for them."""
    group, raw, chunks = group_of([person for person, _ in events], sizes)
    held = Held(chunks)
    suspects = {index: Suspicion(KINDS[kind], (index,)) for index, (_, kind) in enumerate(events) if kind is not None}
    isolate(ordering, group, group.parts[0], suspects, held, covered=lambda suspicion: suspicion.oddities in known)
    assert_ordered(group, raw, ordering)
    assert held.chunks == {chunk for part in group.parts for chunk in part.batch.chunks}
    for part in group.parts:
        kinds = {suspects[raw.index(one)].oddities if raw.index(one) in suspects else None for one in contents(part)}
        assert kinds <= (part.suspects or {None})
        assert len(kinds) == 1 or kinds <= known
        if part.suspects:
            assert [group.suspicions[chunk] for chunk in part.batch.chunks] == [suspects[raw.index(one)] for one in contents(part)]
    for left, right in pairwise(group.parts):
        assert left.suspects or right.suspects
    if ordering is Ordering.NONE:
        assert len(group.parts) <= 2 + len(KINDS)
    for part in [part for part in group.parts if part.batch.count > 1 and part.suspects]:
        assert representative(ordering, group, part).batch.count == 1
    assert_ordered(group, raw, ordering)


@given(EVENTS, st.sampled_from(list(Ordering)))
def test_what_is_cleared_goes_with_the_others_again(events: list[tuple[int, int | None]], ordering: Ordering) -> None:
    """Once no kind is suspected any more, everything is one part again, in an order that the lane allows."""
    group, raw, chunks = group_of([person for person, _ in events], [])
    suspects = {index: Suspicion(KINDS[kind], (index,)) for index, (_, kind) in enumerate(events) if kind is not None}
    isolate(ordering, group, group.parts[0], suspects, Held(chunks), covered=lambda _: False)
    exonerate(group, frozenset(KINDS))
    assert len(group.parts) == 1
    assert_ordered(group, raw, ordering)
