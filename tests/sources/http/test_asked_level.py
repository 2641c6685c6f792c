"""The header `Forwarder-Ack`: which level of acknowledgement a sender asks for."""

from __future__ import annotations

import pytest

from forwarder.core.ack import AckLevel
from tests.support.listening import chunked, listening, post


async def test_the_level_that_is_asked_for() -> None:
    """`Forwarder-Ack` is handed on, in any case of letters, and known heads keep it apart from others."""
    async with listening() as to:
        client = await to.connect()
        for _ in range(3):
            for header in (["Forwarder-Ack: Delivered"], [], ["forwarder-ack:  disk "], ["FORWARDER-ACK: memory"]):
                assert (await client.ask(post("/batch/", b"{}", *header))).status == 200
        asked = [incoming.ack for incoming in to.intake.taken]
        assert asked == [AckLevel.DELIVERED, None, AckLevel.DISK, AckLevel.MEMORY] * 3


@pytest.mark.parametrize("header", ["durable", "", "disk, disk", "disk\r\nForwarder-Ack: disk", "\xff"])
async def test_a_level_that_is_none(header: str) -> None:
    """Anything else is refused with the names of the three; the connection stays open, and nothing is offered."""
    async with listening() as to:
        client = await to.connect()
        for _ in range(2):
            reply = await client.ask(post("/batch/", b"{}", f"Forwarder-Ack: {header}"))
            assert reply.status == 400
            assert all(level.value.encode() in reply.body for level in AckLevel)
        assert (await client.ask(post())).status == 200
        assert to.intake.bodies == [b"{}"]


async def test_a_level_in_odd_places() -> None:
    """A trailer can't ask for one; beside an offer of another protocol it counts."""
    async with listening() as to:
        client = await to.connect()
        assert (await client.ask(chunked(b"{}", trailer=b"Forwarder-Ack: disk\r\n"))).status == 200
        upgrade = post("/e/", b"{}", "Connection: Upgrade", "Upgrade: h2c", "Forwarder-Ack: disk")
        assert (await client.ask(upgrade)).status == 200
        assert [incoming.ack for incoming in to.intake.taken] == [None, AckLevel.DISK]
