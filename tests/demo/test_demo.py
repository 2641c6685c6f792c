"""The demo: a real sandbox and a real pipeline in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from forwarder.demo.demo import Demo, DemoVerdict, choose_ports, open_demo
from forwarder.demo.traffic import PROJECT_KEY, Sdk
from tests.support.sdk import PostingSdk

pytestmark = pytest.mark.slow

Spoil = Callable[[list[dict[str, Any]]], object]


def sdk(spoil: Spoil = lambda _: None) -> Callable[[str], Sdk]:
    """An SDK that posts, after `spoil`."""
    return lambda host: PostingSdk(host, PROJECT_KEY, spoil)


def state_files() -> list[Path]:
    """What there is in this user's state directory."""
    return sorted(Path(os.environ["STATE_DIRECTORY"]).glob("**/*"))


async def verdict(spoil: Spoil) -> DemoVerdict:
    """Of a short demo with a spoilt SDK."""
    async with open_demo(choose_ports(0), sdk(spoil)) as demo:
        await demo.traffic(3)
        assert await demo.settle()
        return await demo.verdict()


async def test_everything_arrives() -> None:
    """What the SDK sent is in the sandbox, event by event, and the books balance."""
    outcome = await verdict(lambda _: None)
    assert outcome.good
    assert outcome.sent == outcome.stored > 10


async def test_a_demo_leaves_nothing_behind() -> None:
    """It neither reads nor writes what a forwarder in production keeps on this machine."""
    before = state_files()
    assert (await verdict(lambda _: None)).good
    assert state_files() == before


async def test_a_lost_event_is_noticed() -> None:
    """An event that never arrived makes the verdict bad."""
    outcome = await verdict(lambda events: events.pop())
    assert (outcome.missing, outcome.good) == (1, False)


async def test_an_event_of_the_user_is_counted_beside() -> None:
    """Someone tries the address that is printed, with good events and a bad one: that is no
    failure of the demo.
    """

    def add(events: list[dict[str, Any]]) -> None:
        good = {"event": "x", "distinct_id": "y", "properties": {"record": [1]}}
        events += [good, {"event": "z", "distinct_id": "y"}, {"event": "no id"}]

    outcome = await verdict(add)
    assert (outcome.missing, outcome.stored - outcome.sent, outcome.extra % 2, outcome.good) == (
        0,
        0,
        0,
        True,
    )
    assert outcome.extra == 2 * outcome.extra_dead > 0


async def test_an_event_that_arrives_under_two_uuids_is_noticed() -> None:
    """A copy of the demo's own event isn't someone else's."""
    outcome = await verdict(lambda events: events.append({**events[0], "uuid": str(uuid4())}))
    assert (outcome.conflicts > 0, outcome.extra, outcome.good) == (True, 0, False)


async def test_an_event_that_changes_is_noticed() -> None:
    """The same uuid with other bytes is a conflict, and makes the verdict bad."""
    outcome = await verdict(
        lambda events: events.append({**events[0], "properties": {"changed": True}})
    )
    assert (outcome.conflicts, outcome.good) == (1, False)


async def test_status_can_be_watched() -> None:
    """While it runs, the admin server answers at the address that is printed."""
    async with open_demo(choose_ports(0), sdk()) as demo, aiohttp.ClientSession() as client:
        async with client.get(f"http://{demo.admin_address}/readyz") as response:
            assert response.status == 200
        async with client.get(demo.sandbox_url) as response:
            assert response.status == 200
    assert demo.left == []


async def live(demo: Demo) -> asyncio.Task[None]:
    """Endless traffic, once it has begun."""
    task = asyncio.create_task(demo.traffic(None, pause=0.001))
    async with asyncio.timeout(60):
        while not demo.sent:
            await asyncio.wait({task}, timeout=0.01)
    return task


async def test_endless_traffic_can_be_stopped() -> None:
    """`stop_traffic` ends the story; what was sent by then is flushed and delivered."""
    async with open_demo(choose_ports(0), sdk()) as demo:
        task = await live(demo)
        demo.stop_traffic()
        await task
        await demo.settle()
        assert (await demo.verdict()).good


async def test_cancelled_traffic_is_flushed() -> None:
    """Cancelling the traffic ends it at the next event, and still sends what the SDK holds."""
    async with open_demo(choose_ports(0), sdk()) as demo:
        task = await live(demo)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await demo.settle()
        assert (await demo.verdict()).good


def test_usual_ports_are_used_when_free() -> None:
    """The wanted port and the next two are used; one that is taken is replaced
    by a free one, and named.
    """
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        busy_socket.listen()
        port = busy_socket.getsockname()[1]
        ports = choose_ports(port)
    assert "ingestion" in ports.moved
    assert ports.ingestion not in {port, 0}
    assert len({ports.ingestion, ports.admin, ports.sandbox}) == 3


def test_any_free_ports() -> None:
    """Port 0 means any free ones, and nothing has moved."""
    ports = choose_ports(0)
    assert ports.moved == ()
    assert all(port > 1023 for port in (ports.ingestion, ports.admin, ports.sandbox))
