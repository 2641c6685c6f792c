"""The body of an upstream request: valid JSON, of the size that was promised, and nothing in it but what belongs there."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.wire.envelope import PIECE_BYTES, body_pieces, envelope_head, envelope_size

LANES = st.builds(Lane, st.text(alphabet=st.characters(codec="ascii"), min_size=1, max_size=64), st.booleans())
DATA = st.lists(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers()), min_size=1, max_size=3), min_size=1, max_size=5
)


def batch_of(lane: Lane, chunks: list[list[dict[str, object]]]) -> Batch:
    """A batch of chunks of events."""
    made = tuple([Chunk(lane, b",".join([json.dumps(event).encode() for event in each]), len(each), frozenset(), 0.0) for each in chunks])
    return Batch(lane, made, envelope_size(lane, made))


@given(LANES, DATA)
def test_the_body(lane: Lane, chunks: list[list[dict[str, object]]]) -> None:
    """Key, perhaps the historical mark, and all events in order; no `sent_at`; its size is known before it is made."""
    batch = batch_of(lane, chunks)
    body = b"".join(body_pieces(batch))
    expected: dict[str, object] = {"api_key": lane.api_key, "batch": [event for chunk in chunks for event in chunk]}
    assert json.loads(body) == {**expected, **({"historical_migration": True} if lane.historical else {})}
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
