"""Cutting chunks between events, where a batch can't take one whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from forwarder.core.event import Chunk, split_events
from forwarder.wire.identity import ids_of
from forwarder.wire.splice import Locator

Span: TypeAlias = tuple[int, int]


def cut_by_size(chunk: Chunk, max_bytes: int, max_events: int) -> list[Chunk]:
    """The chunk in pieces of at most `max_bytes` of events (commas included) and `max_events` each; an event over it is a piece alone."""
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
    """Where each event begins and ends in the chunk's data. A chunk to be cut may be large: its events are never there one by one."""
    if chunk.count == 1:
        return [(0, len(chunk.data))]
    text = b"[%b]" % chunk.data
    events = split_events(text)
    return [(at - 1, at - 1 + len(memoryview(event))) for at, event in zip(Locator(text).offsets(events), events, strict=True)]


def _slice(chunk: Chunk, spans: Sequence[Span], at: int) -> Chunk:
    """A chunk of neighbouring events of another from index `at` on, with the ordering keys of just those (none if it has none)."""
    data = chunk.data[spans[0][0] : spans[-1][1]]
    ids = frozenset().union(*[ids_of(chunk.data[start:end]) for start, end in spans]) if chunk.ids else chunk.ids
    return chunk.part(data, len(spans), ids, at)
