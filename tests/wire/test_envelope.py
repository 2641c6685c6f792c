"""Bodies of upstream requests, and chunks that are cut for them."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.wire.envelope import (
    PIECE_BYTES,
    body_pieces,
    cut_at,
    cut_by_size,
    envelope_head,
    envelope_size,
)
from forwarder.wire.identity import ids_of

LANES = st.builds(
    Lane, st.text(alphabet=st.characters(codec="ascii"), min_size=1, max_size=64), st.booleans()
)
DATA = st.lists(
    st.lists(
        st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers()),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=5,
)


def batch_of(lane: Lane, chunks: list[list[dict[str, object]]]) -> Batch:
    """A batch of chunks of events."""
    made = tuple(
        [
            Chunk(
                lane,
                b",".join([json.dumps(event).encode() for event in events]),
                len(events),
                frozenset(),
                0.0,
            )
            for events in chunks
        ]
    )
    return Batch(lane, made, envelope_size(lane, made))


@given(LANES, DATA)
def test_the_body(lane: Lane, chunks: list[list[dict[str, object]]]) -> None:
    """Key, perhaps the historical mark, and all events in order; no `sent_at`; its size is known
    before it is made.
    """
    batch = batch_of(lane, chunks)
    body = b"".join(body_pieces(batch))
    expected: dict[str, object] = {
        "api_key": lane.api_key,
        "batch": [event for chunk in chunks for event in chunk],
    }
    assert json.loads(body) == {
        **expected,
        **({"historical_migration": True} if lane.historical else {}),
    }
    assert len(body) == batch.size


@given(LANES)
def test_the_envelope_alone(lane: Lane) -> None:
    """What stands around the events is what is counted for it."""
    assert envelope_size(lane, ()) == len(envelope_head(lane) + b"]}")


def test_large_bodies_come_in_pieces() -> None:
    """No piece is much larger than a chunk and the piece size, and events stay byte for byte."""
    chunks = [[{"x": "y" * 100_000}] for _ in range(12)]
    batch = batch_of(Lane("phc_a"), chunks)  # type: ignore[arg-type]
    pieces = list(body_pieces(batch))
    assert len(pieces) > 3
    assert max(map(len, pieces)) < PIECE_BYTES + 110_000
    assert sum(map(len, pieces)) == batch.size
    assert json.loads(b"".join(pieces))["batch"] == [event for chunk in chunks for event in chunk]


LANE = Lane("phc_a")
EVENTS = st.lists(
    st.builds(
        lambda name, padding, space: (
            b'{"distinct_id":%b"%b","x":"%b"}' % (space, name, b"y" * padding)
        ),
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(0, 40),
        st.sampled_from([b"", b" ", b"\n"]),
    ),
    min_size=1,
    max_size=20,
)


def chunk_with(events: list[bytes], *, ordered: bool = True, separator: bytes = b",") -> Chunk:
    """A chunk of events, received at a time of its own."""
    ids = frozenset().union(*[ids_of(event) for event in events]) if ordered else frozenset()
    return Chunk(LANE, separator.join(events), len(events), ids, 12.5)


@given(
    EVENTS,
    st.integers(1, 200),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([b",", b" , ", b",\n"]),
)
def test_cutting_by_size(
    events: list[bytes], max_bytes: int, max_events: int, ordered: bool, separator: bytes
) -> None:
    """The pieces hold the same events in the same order, each piece within both limits or a single
    event, with its own ids.
    """
    pieces = cut_by_size(
        chunk_with(events, ordered=ordered, separator=separator), max_bytes, max_events
    )
    assert [event for piece in pieces for event in piece.events()] == events
    for piece in pieces:
        assert piece.count <= max_events
        assert piece.count == 1 or len(piece.data) + 1 <= max_bytes
        assert piece.ids == (
            frozenset().union(*[ids_of(event) for event in piece.events()])
            if ordered
            else frozenset()
        )
        assert (piece.lane, piece.received_at) == (LANE, 12.5)


@given(EVENTS, st.integers(1, 200), st.integers(1, 8))
def test_pieces_are_as_few_as_can_be(events: list[bytes], max_bytes: int, max_events: int) -> None:
    """No piece could have taken the first event of the next."""
    pieces = cut_by_size(chunk_with(events), max_bytes, max_events)
    for piece, following in pairwise(pieces):
        first = following.events()[0]
        assert piece.count == max_events or len(piece.data) + 1 + len(first) + 1 > max_bytes


@given(
    EVENTS.filter(lambda events: len(events) > 1),
    st.data(),
    st.booleans(),
    st.sampled_from([b",", b" , ", b",\n"]),
)
def test_cutting_at_a_place(
    events: list[bytes], data: st.DataObject, ordered: bool, separator: bytes
) -> None:
    """Both sides hold their events as they were, in order, with their own ids; where a lane keeps
    no order, no ids are looked for.
    """
    count = data.draw(st.integers(1, len(events) - 1))
    sides = cut_at(chunk_with(events, ordered=ordered, separator=separator), count)
    for side, expected in zip(sides, (events[:count], events[count:]), strict=True):
        assert side.events() == expected
        assert side.count == len(expected)
        assert side.ids == (frozenset().union(*map(ids_of, expected)) if ordered else frozenset())
        assert (side.lane, side.received_at) == (LANE, 12.5)


def test_cutting_a_large_chunk_takes_it_once_more() -> None:
    """While it is cut its bytes are there twice, in it and in its pieces, and its events never one
    by one beside.
    """
    chunk = chunk_with([b'{"distinct_id":"a","x":"%b"}' % (b"y" * 600)] * 10_000, ordered=False)
    tracemalloc.start()
    try:
        pieces = cut_by_size(chunk, 2_000_000, 5000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum([piece.count for piece in pieces]) == 10_000
    assert peak < 1.5 * len(chunk.data)
