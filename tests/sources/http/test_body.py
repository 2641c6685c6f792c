"""Bodies in pieces."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.http.request import BodyBuffer

PIECES = st.one_of(st.binary(max_size=20), st.integers(4000, 4200).map(bytes), st.integers(600_000, 700_000).map(bytes))


@given(st.lists(PIECES, max_size=9))
def test_joined(pieces: list[bytes]) -> None:
    """The pieces, small and large, make the body in their order; a body that isn't kept is only measured."""
    kept, measured = BodyBuffer(keep=True), BodyBuffer(keep=False)
    for piece in pieces:
        kept.add(piece)
        measured.add(piece)
    assert kept.joined() == b"".join(pieces)
    assert kept.length == measured.length == len(b"".join(pieces))
    assert measured.joined() == b""


@pytest.mark.parametrize(("size", "count"), [(1, 100_000), (1000, 900), (5000, 200), (65_536, 300)])
def test_pieces_take_little_more_than_their_bytes(size: int, count: int) -> None:
    """However small or many the pieces are; a large body neither while it is put together: it is never there twice."""
    tracemalloc.start()
    try:
        body = BodyBuffer(keep=True)
        for number in range(count):
            body.add(bytes([number % 256]) * size)
        received = tracemalloc.get_traced_memory()[0]
        whole = body.joined()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(whole) == size * count
    assert received < 1.15 * size * count
    assert peak < 1.15 * size * count + (1 << 20)


def test_one_large_piece_is_not_copied() -> None:
    """A single piece is passed on as it is."""
    piece = bytes(10_000)
    body = BodyBuffer(keep=True)
    body.add(piece)
    assert body.joined() is piece
