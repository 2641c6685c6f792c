"""What the drill asks, of a real sandbox and of nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import aiohttp
import pytest

from forwarder.core.clock import SystemClock
from forwarder.demo.demo import Ports, choose_ports
from forwarder.demo.drill import looking
from forwarder.demo.drill.children import Child
from forwarder.demo.drill.looking import Look, NoAnswer
from forwarder.sandbox import Sandbox, SandboxOptions

KEY = "phc_abcdefghijklmnop"


class Runs:
    """A process that runs."""

    name = "run"
    code = None


RUNNING = cast(Child, Runs())


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def test_all_events_are_seen_over_several_pages(client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, each uuid is found; conflicts are counted."""
    monkeypatch.setattr(looking, "PAGE", 3)
    ports = choose_ports(0)
    events = [{"event": "seen", "distinct_id": "ann", "uuid": f"01890000-0000-4000-8000-{number:012x}"} for number in range(10)]
    changed = {**events[4], "event": "changed"}
    async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox:
        look = Look(client, ports, SystemClock())
        assert await look.stored() == frozenset()
        for batch in (events, [changed]):
            async with client.post(f"{sandbox.url}/batch/", json={"api_key": KEY, "batch": batch}) as response:
                assert response.status == 200
        assert await look.stored() == {event["uuid"] for event in events}
        assert await look.conflicts() == 1


async def test_nobody_answers(client: aiohttp.ClientSession) -> None:
    """That is an error that names the address; of flags it is an answer without a status."""
    look = Look(client, choose_ports(0), SystemClock())
    with pytest.raises(NoAnswer, match=f"{look.admin}/status doesn't answer"):
        await look.status()
    with pytest.raises(NoAnswer, match=f"{look.sandbox}/sandbox/summary doesn't answer"):
        await look.conflicts()
    assert (await look.flags(KEY)).status is None


async def test_waiting_ends_with_the_limit(client: aiohttp.ClientSession) -> None:
    """A process that never comes up is an error once the limit is over; one that is up is seen."""
    ports = choose_ports(0)
    look = Look(client, ports, SystemClock(), wait_seconds=0.1)
    with pytest.raises(NoAnswer):
        await look.up(RUNNING, look.sandbox, "/livez")
    async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")):
        await look.up(RUNNING, look.sandbox, "/livez")


async def test_an_answer_that_is_no_answer(client: aiohttp.ClientSession) -> None:
    """What the sandbox refuses is told with its code."""
    async with Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox:
        port = int(sandbox.url.rpartition(":")[2])
        look = Look(client, Ports(port, port, port), SystemClock())
        look.sandbox = f"{sandbox.url}/elsewhere"
        with pytest.raises(NoAnswer, match="the sandbox answers 404"):
            await look.conflicts()
