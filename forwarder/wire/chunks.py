"""Cutting chunks between events, where a batch can't take one whole."""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.core.event import Chunk
from forwarder.wire.identity import ids_of


def chunk_of(events: Sequence[bytes], like: Chunk) -> Chunk:
    """A chunk of some of another's events, with the ordering keys of just those (none if the other has none)."""
    ids = frozenset().union(*[ids_of(event) for event in events]) if like.ids else like.ids
    return Chunk(like.lane, b",".join(events), len(events), ids, like.received_at)


def cut_by_size(chunk: Chunk, max_bytes: int, max_events: int) -> list[Chunk]:
    """The chunk in pieces of at most `max_bytes` of events (commas included) and `max_events` each; an event over it is a piece alone."""
    pieces: list[Chunk] = []
    piece: list[bytes] = []
    size = 0
    for event in chunk.events():
        if piece and (size + len(event) + 1 > max_bytes or len(piece) >= max_events):
            pieces.append(chunk_of(piece, chunk))
            piece, size = [], 0
        piece.append(event)
        size += len(event) + 1
    pieces.append(chunk_of(piece, chunk))
    return pieces
