"""One sender takes all that it can get: another's events are accepted and delivered all the while,
and its calls for flags answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from forwarder.core.clock import SystemClock
from forwarder.telemetry.snapshot import balanced
from tests.support.answered import asked
from tests.support.listening import LIMIT, RawConnection, post
from tests.support.origin import Asked, origin, whole
from tests.support.waiting import eventually
from tests.support.whole import Whole, batch, events

GREEDY = ("127.0.0.2", 0)
REQUESTS = 20
BUFFERS: list[dict[str, Any]] = [
    {"kind": "memory", "max_bytes": "64MB"},
    {"kind": "disk", "max_bytes": "64MiB"},
]

Attack: TypeAlias = Callable[[Whole, list[RawConnection]], Awaitable[None]]


async def service(request: Asked) -> None:
    """The service: accepts batches and recordings, evaluates flags."""
    await request.read()
    body = b'{"flags":{"a":true}}' if request.target.startswith("/flags") else b'{"status":"Ok"}'
    await request.write(whole(body, "Content-Type: application/json"))


async def connect(daemon: Whole, clients: list[RawConnection], **options: Any) -> RawConnection:
    """A connection, closed at the end."""
    host, _, port = daemon.pipeline.addresses[0].rpartition(":")
    client = RawConnection(
        *await asyncio.wait_for(asyncio.open_connection(host, int(port), **options), LIMIT)
    )
    clients.append(client)
    return client


async def slow_uploads(daemon: Whole, clients: list[RawConnection]) -> None:
    """130 recordings that never end."""
    for _ in range(130):
        client = await connect(daemon, clients, local_addr=GREEDY)
        await client.send(post("/s/", b"x" * 100).replace(b"Length: 100", b"Length: 1000000"))


async def all_connections(daemon: Whole, clients: list[RawConnection]) -> None:
    """As many connections as may be open, idle ones and slow ones."""
    for number in range(daemon.settings.sources.http.max_connections):
        client = await connect(daemon, clients, local_addr=GREEDY)
        if number % 2:
            client.writer.write(b"POST /batch/ HTTP/1.1\r\nHost: a\r\nX: ")
    await eventually(lambda: daemon.snapshot.http_rejected_connections > 0)


async def large_bodies(daemon: Whole, clients: list[RawConnection]) -> None:
    """60 bodies of 19 MB, of each of which 500 KB come."""
    for _ in range(60):
        client = await connect(daemon, clients, local_addr=GREEDY)
        client.writer.write(
            post(body=b"x" * 500_000).replace(b"Length: 500000", b"Length: 19000000")
        )
    await eventually(lambda: daemon.snapshot.http_requests.get(("/batch", 503), 0) > 0)


@pytest.mark.parametrize("buffer", BUFFERS, ids=["memory", "disk"])
@pytest.mark.parametrize("attack", [slow_uploads, all_connections, large_bodies])
async def test_an_honest_sender_beside_a_greedy_one(attack: Attack, buffer: dict[str, Any]) -> None:
    """Each of its requests is 200, on new connections and on kept ones, in one piece and in many;
    each event arrives.
    """
    sections: dict[str, Any] = {
        "buffer": buffer,
        "http": {"max_connections": 200},
        "passthrough": {"connect_timeout": "10s"},
    }
    clients: list[RawConnection] = []
    async with (
        origin(service) as upstream,
        Whole(upstream.url, SystemClock(), **sections) as daemon,
    ):
        await attack(daemon, clients)
        persistent = await connect(daemon, clients)
        for number in range(REQUESTS):
            made = events(100, f"{number}-", padding=3000)
            client = persistent if number % 2 else await connect(daemon, clients)
            assert (await asked(client, post(body=batch(made)))).status == 200
            assert (await asked(client, post("/flags/?v=2", b"{}"))).status == 200
        await eventually(lambda: daemon.snapshot.lanes[0].delivered == 100 * REQUESTS)
        assert balanced(daemon.snapshot)
        assert daemon.snapshot.passthrough_requests[("/flags", 200)] == REQUESTS
        for client in clients:
            client.writer.transport.abort()
