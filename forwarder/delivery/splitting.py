"""Cutting a batch between its events, for a body that is too large or has a refused event in it.

Invariants: the pieces hold the same events, byte for byte, in the same order; the buffer is told of every chunk that had to be cut, before
any piece of it can be settled. Nothing here looks into an event; only the ordering keys of a cut chunk's events are read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.wire.chunks import cut_at
from forwarder.wire.envelope import envelope_size


class Replaces(Protocol):
    """The part of the buffer that cutting needs."""

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts` stand for `chunk`."""


def halves(batch: Batch, buffer: Replaces) -> tuple[Batch, Batch]:
    """The batch in two, the left one with half of the events, rounded down. It must have two events or more."""
    return cut(batch, batch.count // 2, buffer)


def cut(batch: Batch, at: int, buffer: Replaces) -> tuple[Batch, Batch]:
    """The batch's first `at` events, and the others. Raises `ValueError` if one side were empty."""
    if not 0 < at < batch.count:
        raise ValueError("a batch can only be cut inside")
    left: list[Chunk] = []
    right = deque(batch.chunks)
    while at and right[0].count <= at:
        at -= right[0].count
        left.append(right.popleft())
    if at:
        begin, right[0] = _cut_chunk(right[0], at, buffer)
        left.append(begin)
    return _batch(batch.lane, left), _batch(batch.lane, right)


def _cut_chunk(chunk: Chunk, at: int, buffer: Replaces) -> tuple[Chunk, Chunk]:
    parts = cut_at(chunk, at)
    buffer.replace(chunk, parts)
    return parts


def _batch(lane: Lane, chunks: Iterable[Chunk]) -> Batch:
    whole = tuple(chunks)
    return Batch(lane, whole, envelope_size(lane, whole))
