"""`forwarder run` as a process that may open few files, or that is sent much to complain about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator

from tests.support.commands import Running, command_line, environment, running
from tests.support.listening import LIMIT, RawConnection, post
from tests.support.upstream import Upstream
from tests.support.whole import batch, event, events

ENV = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    "FORWARDER_LOG__FORMAT": "json",
    "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    "FORWARDER_BATCH__MAX_AGE": "20ms",
}
FILES = 800


@contextlib.asynccontextmanager
async def with_few_files(env: dict[str, str]) -> AsyncIterator[Running]:
    """A daemon with a low soft limit, which it may raise to `FILES`."""
    script = f'ulimit -Sn 128 && ulimit -Hn {FILES} && exec "$@"'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script, "sh", *command_line(["run"])),
        env=environment(env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def connect(
    address: str, clients: list[RawConnection], local: str = "127.0.0.1"
) -> RawConnection:
    """A connection, closed at the end."""
    host, _, port = address.rpartition(":")
    client = RawConnection(
        *await asyncio.wait_for(
            asyncio.open_connection(host, int(port), local_addr=(local, 0)), LIMIT
        )
    )
    clients.append(client)
    return client


async def test_more_connections_than_files() -> None:
    """The limit is raised as far as allowed, one line says so, and an address that opens all it
    can doesn't stop another's events.
    """
    clients: list[RawConnection] = []
    async with Upstream() as upstream:
        env = {
            **ENV,
            "FORWARDER_UPSTREAM__URL": upstream.url,
            "FORWARDER_SOURCES__HTTP__MAX_CONNECTIONS": "5000",
        }
        async with with_few_files(env) as daemon:
            said = json.loads(await daemon.line("fewer connections are accepted"))
            assert (said["configured"], said["open_files"]) == (5000, FILES)
            assert FILES // 4 <= said["max_connections"] < FILES
            address = json.loads(await daemon.line('"event": "listening"'))["ingestion"][0]
            for _ in range(FILES // 2):
                await connect(address, clients, "127.0.0.2")
            reused_client = await connect(address, clients)
            for number in range(20):
                client = reused_client if number % 2 else await connect(address, clients)
                assert (await client.ask(post(body=batch(events(10, f"{number}-"))))).status == 200
            await upstream.until(lambda: len(upstream.delivered) == 200)
            for client in clients:
                client.writer.transport.abort()
            daemon.send(signal.SIGTERM)
            assert await daemon.ended() == 0
            assert sum("fewer connections" in line for line in daemon.lines) == 1
            assert sum("connections are rejected" in line for line in daemon.lines) <= 11


async def test_610_poison_events() -> None:
    """They write ten lines, and one with the number of the rest, however the process ends; what
    else happens is seen.
    """
    clients: list[RawConnection] = []
    nameless = event("").replace(b'"event":""', b'"event":null')
    async with (
        Upstream() as upstream,
        running("run", env={**ENV, "FORWARDER_UPSTREAM__URL": upstream.url}) as daemon,
    ):
        address = json.loads(await daemon.line('"event": "listening"'))["ingestion"][0]
        client = await connect(address, clients)
        for _ in range(610):
            assert (await client.ask(post(body=batch([nameless])))).status == 200
        await client.close()
        daemon.send(signal.SIGTERM)
        await daemon.ended()
        lines = [json.loads(line) for line in daemon.lines if line.startswith("{")]
        dead = [line for line in lines if line["event"] == "events became dead letters"]
        assert len(dead) == 11
        assert [line.get("suppressed") for line in dead] == [None] * 10 + [599]
        assert [line["event"] for line in lines if line["event"] == "stopping"] == ["stopping"]
