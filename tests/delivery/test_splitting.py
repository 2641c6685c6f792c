"""Cutting batches: the same events, the same bytes, the same order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Batch, Chunk
from forwarder.delivery.splitting import cut, halves
from forwarder.wire.envelope import body_pieces, envelope_size
from tests.delivery.rig import LANE, chunk_of, event


class HeldChunks:
    """The chunks that a buffer holds."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = set(chunks)

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        self.chunks.remove(chunk)
        self.chunks |= set(parts)


def batch_of(counts: list[int]) -> Batch:
    """A batch of chunks with so many events each; two persons share its events."""
    numbers = iter(range(sum(counts)))
    made = [
        [event(f"e{number}", f"p{number % 2}") for number in islice(numbers, count)]
        for count in counts
    ]
    chunks = tuple(chunk_of(some, 7.0) for some in made)
    return Batch(LANE, chunks, envelope_size(LANE, chunks))


def raw(batch: Batch) -> list[bytes]:
    """The batch's events."""
    return [one for chunk in batch.chunks for one in chunk.events()]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_a_cut_keeps_every_byte_and_the_order(counts: list[int], data: st.DataObject) -> None:
    """Wherever a batch is cut, both sides together hold its events as they were, know their exact
    size, and are what the buffer holds.
    """
    batch = batch_of(counts)
    if batch.count < 2:
        return
    held = HeldChunks(batch.chunks)
    at = data.draw(st.integers(1, batch.count - 1))
    left, right = cut(batch, at, held.replace)
    assert left.count == at
    assert raw(left) + raw(right) == raw(batch)
    assert held.chunks == {*left.chunks, *right.chunks}
    for side in (left, right):
        assert side.size == len(b"".join(body_pieces(side)))
        assert side.received_at == 7.0


def test_halves_know_their_own_keys() -> None:
    """A cut chunk's ordering keys are computed anew, so that each half blocks only its own."""
    batch = batch_of([2])
    left, right = halves(batch, HeldChunks(batch.chunks).replace)
    assert [left.ids(), right.ids()] == [frozenset({"p0"}), frozenset({"p1"})]


@pytest.mark.parametrize("at", [0, 3])
def test_both_sides_of_a_cut_have_events(at: int) -> None:
    """There is no empty side."""
    batch = batch_of([2, 1])
    with pytest.raises(ValueError, match="inside"):
        cut(batch, at, HeldChunks(batch.chunks).replace)
