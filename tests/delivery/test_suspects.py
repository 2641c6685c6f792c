"""Suspects: found by the local parser, sent apart from the others, refused by precedent."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Batch, Chunk
from forwarder.core.ports import Ordering
from forwarder.delivery.splitting import BatchPart, PartGroup
from forwarder.delivery.suspects import (
    REFUSALS_FOR_PRECEDENT,
    VALID_SECONDS,
    Precedents,
    exonerate,
    inspect,
    isolate,
    split_off_least_odd,
)
from forwarder.wire.envelope import envelope_size
from forwarder.wire.identity import ids_of
from forwarder.wire.strict import Oddity, Suspicion
from tests.delivery.rig import LANE, chunk_of, event
from tests.delivery.test_splitting import HeldChunks

KINDS = [(Oddity.NUL,), (Oddity.LONG_INTEGER,), (Oddity.NESTED_60,)]
EVENTS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([None, None, None, 0, 1, 2])),
    min_size=1,
    max_size=30,
)


def group_of(people: list[int], sizes: list[int]) -> tuple[PartGroup, list[bytes], list[Chunk]]:
    """A batch of events of these persons, in chunks of these sizes and one of what is left."""
    raw = [event(str(number), f"p{person}") for number, person in enumerate(people)]
    chunks: list[Chunk] = []
    at = 0
    for size in [*sizes, len(raw)]:
        if raw[at : at + size]:
            chunks.append(chunk_of(raw[at : at + size], 7.0))
        at += size
    return PartGroup.of(Batch(LANE, tuple(chunks), envelope_size(LANE, chunks))), raw, chunks


def contents(part: BatchPart) -> list[bytes]:
    """The events of a part."""
    return [one for chunk in part.batch.chunks for one in chunk.events()]


def assert_ordered(group: PartGroup, raw: list[bytes], ordering: Ordering) -> None:
    """All events are there once, and none was overtaken by a later one that shares what the lane
    orders by.
    """
    places = {
        one: (index, place)
        for index, part in enumerate(group.parts)
        for place, one in enumerate(contents(part))
    }
    assert sorted(places) == sorted(raw)
    assert sum(len(contents(part)) for part in group.parts) == len(raw)
    for later, second in enumerate(raw):
        for first in raw[:later]:
            if ordering is Ordering.STRICT or (
                ordering is Ordering.PER_DISTINCT_ID
                and not ids_of(first).isdisjoint(ids_of(second))
            ):
                assert places[first] < places[second]
    for part in group.parts:
        assert part.batch.size == envelope_size(LANE, part.batch.chunks)


@given(
    EVENTS,
    st.lists(st.integers(1, 6), max_size=5),
    st.sampled_from(list(Ordering)),
    st.sets(st.sampled_from(KINDS)),
)
def test_suspects_are_apart_and_order_is_kept(
    events: list[tuple[int, int | None]],
    sizes: list[int],
    ordering: Ordering,
    known: set[tuple[Oddity, ...]],
) -> None:
    """Parts hold suspects or none; suspects of different kinds share one only if there are
    precedents for them.
    """
    group, raw, chunks = group_of([person for person, _ in events], sizes)
    held = HeldChunks(chunks)
    suspects = {
        index: Suspicion(KINDS[kind], (index,))
        for index, (_, kind) in enumerate(events)
        if kind is not None
    }
    isolate(
        ordering,
        group,
        group.parts[0],
        suspects,
        held.replace,
        is_covered=lambda suspicion: suspicion.oddities in known,
    )
    assert_ordered(group, raw, ordering)
    assert held.chunks == {chunk for part in group.parts for chunk in part.batch.chunks}
    for part in group.parts:
        kinds = {
            suspects[raw.index(one)].oddities if raw.index(one) in suspects else None
            for one in contents(part)
        }
        assert kinds <= (part.suspected_kinds or {None})
        assert len(kinds) == 1 or kinds <= known
        if part.suspected_kinds:
            assert [group.suspicions[chunk] for chunk in part.batch.chunks] == [
                suspects[raw.index(one)] for one in contents(part)
            ]
    for left, right in pairwise(group.parts):
        assert left.suspected_kinds or right.suspected_kinds
    if ordering is Ordering.NONE:
        assert len(group.parts) <= 2 + len(KINDS)
    for part in [part for part in group.parts if part.batch.count > 1 and part.suspected_kinds]:
        assert split_off_least_odd(ordering, group, part).batch.count == 1
    assert_ordered(group, raw, ordering)


@given(EVENTS, st.sampled_from(list(Ordering)))
def test_cleared_suspects_rejoin_the_others(
    events: list[tuple[int, int | None]], ordering: Ordering
) -> None:
    """Once no kind is suspected any more, everything is one part again, in an
    order that the lane allows.
    """
    group, raw, chunks = group_of([person for person, _ in events], [])
    suspects = {
        index: Suspicion(KINDS[kind], (index,))
        for index, (_, kind) in enumerate(events)
        if kind is not None
    }
    isolate(
        ordering,
        group,
        group.parts[0],
        suspects,
        HeldChunks(chunks).replace,
        is_covered=lambda _: False,
    )
    exonerate(group, frozenset(KINDS))
    assert len(group.parts) == 1
    assert_ordered(group, raw, ordering)


def deep(levels: int) -> Suspicion:
    """An event nested so deep."""
    return Suspicion((Oddity.NESTED_120,), (levels,))


def test_three_precedents_cover_events_at_least_as_odd() -> None:
    """Two don't; and none of them says anything of a less odd event, or of another kind."""
    precedents = Precedents()
    for levels in (150, 140)[: REFUSALS_FOR_PRECEDENT - 1]:
        precedents.refuse(deep(levels), 0.0)
        assert not precedents.covers(deep(400), 0.0)
    precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(400), 0.0)
    assert precedents.covers(deep(150), 0.0)
    assert not precedents.covers(deep(149), 0.0)
    assert not precedents.covers(Suspicion((Oddity.NUL, Oddity.NESTED_120), (0, 400)), 0.0)
    for _ in range(REFUSALS_FOR_PRECEDENT):
        precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(130), 0.0)
    assert not precedents.covers(deep(129), 0.0)


def test_precedents_end() -> None:
    """After a time, or with the first event of the kind that is accepted; then the kind isn't
    suspected for as long.
    """
    precedents = Precedents()
    assert not precedents.valid(0.0)
    for _ in range(REFUSALS_FOR_PRECEDENT):
        precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(130), VALID_SECONDS - 1)
    assert precedents.valid(VALID_SECONDS - 1)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    assert not precedents.valid(VALID_SECONDS)
    precedents.refuse(deep(130), VALID_SECONDS)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    for _ in range(REFUSALS_FOR_PRECEDENT):
        precedents.refuse(deep(130), VALID_SECONDS)
    precedents.accept((Oddity.NESTED_120,), VALID_SECONDS)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    assert precedents.clears(deep(130), 2 * VALID_SECONDS - 1)
    assert not precedents.clears(deep(130), 2 * VALID_SECONDS)


def test_memory_is_bounded() -> None:
    """However many are refused alone, the least odd ones are kept."""
    precedents = Precedents()
    for levels in range(1000, 130, -1):
        precedents.refuse(deep(levels), 0.0)
    assert precedents.covers(deep(140), 0.0)
    ((_, known),) = precedents._refused.values()
    assert len(known) < 20


def batch_of(*requests: list[bytes]) -> Batch:
    """A batch of these requests' events."""
    chunks = tuple(chunk_of(raw, 7.0) for raw in requests)
    return Batch(LANE, chunks, envelope_size(LANE, chunks))


def odd(value: bytes) -> bytes:
    """An event with this value."""
    return event("odd", v="here").replace(b'"here"', value)


async def test_suspects_are_named_by_their_index() -> None:
    """Over all chunks, with what each has."""
    batch = batch_of([event("a"), odd(b"1e999")], [event("b")], [odd(b"9" * 400), event("c")])
    assert {index: suspicion.oddities for index, suspicion in (await inspect(batch)).items()} == {
        1: (Oddity.NUMBER_OVERFLOW,),
        3: (Oddity.LONG_INTEGER,),
    }


async def test_scanning_suspects_yields_to_other_work() -> None:
    """Between events, and within one that is large."""
    many = batch_of([event(f"e{number}", text="x" * 1000) for number in range(1000)])
    large = batch_of([odd(b"[" + b"1,2," * 50_000 + b"1e999]")])
    for batch in (many, large):
        inspecting = asyncio.create_task(inspect(batch))
        turns = 0
        while not inspecting.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10
