"""The local check of a refused batch: each suspect by its index, and never long at a time."""

from __future__ import annotations

import asyncio

from forwarder.core.event import Batch
from forwarder.delivery.inspecting import inspect
from forwarder.wire.envelope import envelope_size
from forwarder.wire.strict import Oddity
from tests.delivery.rig import LANE, chunk_of, event


def batch_of(*requests: list[bytes]) -> Batch:
    """A batch of these requests' events."""
    chunks = tuple(chunk_of(raw, 7.0) for raw in requests)
    return Batch(LANE, chunks, envelope_size(LANE, chunks))


def odd(value: bytes) -> bytes:
    """An event with this value."""
    return event("odd", v="here").replace(b'"here"', value)


async def test_suspects_are_told_by_their_index() -> None:
    """Over all chunks, with what each has."""
    batch = batch_of([event("a"), odd(b"1e999")], [event("b")], [odd(b"9" * 400), event("c")])
    assert {index: suspicion.oddities for index, suspicion in (await inspect(batch)).items()} == {
        1: (Oddity.NUMBER_OVERFLOW,),
        3: (Oddity.LONG_INTEGER,),
    }


async def test_others_have_their_turn_meanwhile() -> None:
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
