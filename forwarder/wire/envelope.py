"""The body of an upstream request: `{"api_key":…,"batch":[…]}` around events that are joined, not encoded.

No `sent_at` is ever sent: the service would move each event by the time that it was buffered (wire facts: Time).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from forwarder.core.event import Batch, Chunk, Lane

PIECE_BYTES: Final = 256 * 1024
"""How much of a body is put together at a time: enough for few calls, little enough that 32 requests in flight stay small."""

_TAIL: Final = b"]}"


@lru_cache(maxsize=1024)
def envelope_head(lane: Lane) -> bytes:
    """What stands before a lane's events."""
    historical = b',"historical_migration":true' if lane.historical else b""
    return b'{"api_key":%b%b,"batch":[' % (msgspec.json.encode(lane.api_key), historical)


def envelope_size(lane: Lane, chunks: Sequence[Chunk]) -> int:
    """Exact size of the body of a request with these chunks, in bytes, before compression."""
    return len(envelope_head(lane)) + sum([len(chunk.data) for chunk in chunks]) + max(len(chunks) - 1, 0) + len(_TAIL)


def body_pieces(batch: Batch) -> Iterator[bytes]:
    """The body of a batch's request, in pieces of about `PIECE_BYTES`; a chunk larger than that is a piece as it is, not a copy."""
    chunks = batch.chunks
    run = max(1, len(chunks) * PIECE_BYTES // max(batch.size, PIECE_BYTES))
    last = len(chunks) - run
    head = envelope_head(batch.lane)
    for at in range(0, len(chunks), run):
        tail = _TAIL if at >= last else b""
        if run == 1 and len(chunks[at].data) >= PIECE_BYTES:
            yield from (head, chunks[at].data, tail)
        else:
            yield b"%b%b%b" % (head, b",".join([chunk.data for chunk in chunks[at : at + run]]), tail)
        head = b","
