"""The body of an upstream request: `{"api_key":…,"batch":[…]}` around events that are joined, not
encoded; and how chunks are cut for it.

No `sent_at` is ever sent: the service would move each event by the time that it was buffered (wire
facts: Time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from forwarder.core.event import Batch, Chunk, Lane, split_events
from forwarder.wire.identity import ids_of
from forwarder.wire.splice import Locator

PIECE_BYTES: Final = 256 * 1024
"""How much of a body is put together at a time: enough for few calls, little enough that 32
requests in flight stay small.
"""

_TAIL: Final = b"]}"
_LARGE_CHUNK: Final = 16 * 1024
"""Bytes of a chunk, on average of a batch, from which on a copy costs more than a piece does."""


@lru_cache(maxsize=1024)
def envelope_head(lane: Lane) -> bytes:
    """What stands before a lane's events."""
    historical = b',"historical_migration":true' if lane.historical else b""
    return b'{"api_key":%b%b,"batch":[' % (msgspec.json.encode(lane.api_key), historical)


def envelope_size(lane: Lane, chunks: Sequence[Chunk]) -> int:
    """Exact size of the body of a request with these chunks, in bytes, before compression."""
    return (
        len(envelope_head(lane))
        + sum([len(chunk.data) for chunk in chunks])
        + max(len(chunks) - 1, 0)
        + len(_TAIL)
    )


def body_pieces(batch: Batch) -> Iterator[bytes]:
    """The body of a batch's request: large chunks as they are, not copied; small ones joined, in
    pieces of about `PIECE_BYTES`.
    """
    chunks = batch.chunks
    if batch.size > len(chunks) * _LARGE_CHUNK:
        between = envelope_head(batch.lane)
        for chunk in chunks:
            yield between
            yield chunk.data
            between = b","
        yield _TAIL
        return
    run = max(1, len(chunks) * PIECE_BYTES // max(batch.size, PIECE_BYTES))
    last = len(chunks) - run
    head = envelope_head(batch.lane)
    for at in range(0, len(chunks), run):
        yield b"%b%b%b" % (
            head,
            b",".join([chunk.data for chunk in chunks[at : at + run]]),
            _TAIL if at >= last else b"",
        )
        head = b","


Span: TypeAlias = tuple[int, int]


def cut_by_size(chunk: Chunk, max_bytes: int, max_events: int) -> list[Chunk]:
    """The chunk in pieces of at most `max_bytes` of events (commas included) and `max_events`
    each; an event over it is a piece alone.
    """
    pieces: list[Chunk] = []
    piece: list[Span] = []
    at = 0
    for start, end in _spans(chunk):
        if piece and (end - piece[0][0] + 1 > max_bytes or len(piece) >= max_events):
            pieces.append(_slice(chunk, piece, at))
            at += len(piece)
            piece = []
        piece.append((start, end))
    pieces.append(_slice(chunk, piece, at))
    return pieces


def cut_at(chunk: Chunk, count: int) -> tuple[Chunk, Chunk]:
    """The chunk's first `count` events, and the others; there must be some on either side."""
    begin, rest = cut_into(chunk, (count, chunk.count - count))
    return begin, rest


def cut_into(chunk: Chunk, counts: Sequence[int]) -> list[Chunk]:
    """The chunk in pieces of so many events each."""
    spans = _spans(chunk)
    pieces: list[Chunk] = []
    at = 0
    for count in counts:
        pieces.append(_slice(chunk, spans[at : at + count], at))
        at += count
    return pieces


def _spans(chunk: Chunk) -> list[Span]:
    """Where each event begins and ends in the chunk's data. A chunk to be cut may be large: its
    events are never there one by one.
    """
    if chunk.count == 1:
        return [(0, len(chunk.data))]
    text = b"[%b]" % chunk.data
    events = split_events(text)
    return [
        (at - 1, at - 1 + len(memoryview(event)))
        for at, event in zip(Locator(text).offsets(events), events, strict=True)
    ]


def _slice(chunk: Chunk, spans: Sequence[Span], at: int) -> Chunk:
    """A chunk of neighbouring events of another from index `at` on, with the ordering keys of just
    those (none if it has none).
    """
    data = chunk.data[spans[0][0] : spans[-1][1]]
    ids = (
        frozenset().union(*[ids_of(chunk.data[start:end]) for start, end in spans])
        if chunk.ids
        else chunk.ids
    )
    return chunk.part(data, len(spans), ids, at)
