"""What keeps a connection from being read."""

from __future__ import annotations

import asyncio

from forwarder.sources.http.protocol.lifecycle import TURN_BYTES, Lifecycle
from tests.support.listening import listening, post, turns


class Paused(asyncio.Transport):
    """A transport that says whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = True
        self.pauses = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nothing is written."""

    def is_closing(self) -> bool:
        """It stays open."""
        return False

    def pause_reading(self) -> None:
        """Until it is resumed."""
        self.read = False
        self.pauses += 1

    def resume_reading(self) -> None:
        """It is read again."""
        self.read = True


async def test_others_have_one_turn_and_then_reading_resumes() -> None:
    """However often that is asked for in one turn."""
    transport = Paused()
    life = Lifecycle(transport, last=False)
    life.let_others()
    life.let_others()
    assert (transport.read, transport.pauses) == (False, 1)
    await turns(1)
    assert transport.read


async def test_another_reason_to_wait_outlasts_the_turn() -> None:
    """The sender doesn't read its answers; and the reverse."""
    transport = Paused()
    life = Lifecycle(transport, last=False)
    life.let_others()
    life.stop_writing()
    await turns(1)
    assert not transport.read
    life.resume_writing()
    assert transport.read
    life.let_others()
    life.stop_writing()
    life.resume_writing()
    assert not transport.read
    await turns(1)
    assert transport.read


async def test_a_large_body_arrives_in_turns() -> None:
    """Whole, and the next request of its connection after it."""
    async with listening() as to:
        client = await to.connect()
        body = bytes(range(256)) * (5 * TURN_BYTES // 256)
        assert (await client.ask(post("/e", body))).status == 200
        assert (await client.ask(post("/e", b"next"))).status == 200
        assert to.intake.bodies == [body, b"next"]
