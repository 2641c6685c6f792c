"""The sandbox as a whole."""

from __future__ import annotations

import ast
import asyncio
import logging
import socket
import sqlite3
from pathlib import Path

import aiohttp
import pytest

import forwarder.sandbox
from forwarder.contract.endpoints import ENDPOINTS
from forwarder.core.errors import ConfigurationError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.app import HANDLERS, split_address
from forwarder.sandbox.exports import batch_exports
from forwarder.sandbox.manage import domains, members, projects
from forwarder.sandbox.manage.dns import StaticResolver
from forwarder.sandbox.manage.domains import async_handlers
from forwarder.sandbox.store.stored_records import EventFilter, SandboxSummary
from tests.sandbox.client import UUID, batch, event, names, recorded, talking
from tests.support.cases import cases

ALL = EventFilter(arrivals=True)


async def test_a_file_keeps_everything(tmp_path: Path) -> None:
    """After a restart all is there as it was, and a repeat of an event from
    before is still recognised.
    """
    options = SandboxOptions(database=tmp_path / "events.db")
    async with talking(options) as client:
        await client.post("/batch/", batch(event(uuid=UUID), event(event="")))
        before = (
            await client.sandbox.events(),
            await client.sandbox.requests(),
            await client.sandbox.summary(),
        )
    async with talking(options) as client:
        assert (
            await client.sandbox.events(),
            await client.sandbox.requests(),
            await client.sandbox.summary(),
        ) == before
        await client.post("/batch/", batch(event(uuid=UUID), event(uuid=UUID, distinct_id="bob")))
        summary = await client.sandbox.summary()
        assert (summary.events, summary.duplicates, summary.conflicts) == (1, 1, 1)
    assert names(tmp_path) == ["events.db"]


async def test_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    """Another reader of the file sees an event as soon as its request was answered 200."""
    path = tmp_path / "events.db"
    async with talking(SandboxOptions(database=path)) as client:
        await client.post("/batch/", batch(event(uuid=UUID)))
        reader = sqlite3.connect(path)
        assert reader.execute("SELECT uuid FROM events").fetchall() == [(UUID,)]
        reader.close()


async def test_memory_forgets() -> None:
    """Without a file each sandbox is its own, and two at once know nothing of each other."""
    async with talking() as one, talking() as other:
        await one.post("/batch/", batch(event()))
        assert ((await one.sandbox.summary()).events, (await other.sandbox.summary()).events) == (
            1,
            0,
        )


async def test_clearing() -> None:
    """`clear` forgets everything that arrived."""
    async with talking() as client:
        await client.post("/batch/", batch(event(), event(event="")))
        await client.sandbox.clear()
        assert await client.sandbox.events(ALL) == []
        assert await client.sandbox.requests() == []
        assert await client.sandbox.summary() == SandboxSummary()


@cases(
    "listen", ["", "8322", ":8322", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"]
)
def test_what_is_no_address(listen: str) -> None:
    """An address names a host and a port, and the error shows how."""
    with pytest.raises(ConfigurationError) as error:
        split_address(listen)
    assert "127.0.0.1:8322" in error.value.hint


def test_an_ipv6_address() -> None:
    """A host in brackets is an IPv6 address."""
    assert split_address("[::1]:8322") == ("::1", 8322)


async def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    """The error names the address; the database is closed and nothing is left open."""
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        listen = f"127.0.0.1:{busy_socket.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=listen):
            await Sandbox(
                SandboxOptions(listen=listen, database=tmp_path / "events.db")
            ).__aenter__()
    assert names(tmp_path) == ["events.db"]


async def test_shutdown_answers_requests_in_flight() -> None:
    """A request that is in when the end comes is answered and kept; afterwards no one listens."""
    async with aiohttp.ClientSession() as session:
        async with Sandbox() as sandbox:
            url = sandbox.url
            sending = [asyncio.ensure_future(_send(session, url)) for _ in range(8)]
            await recorded(sandbox)
        statuses = await asyncio.gather(*sending, return_exceptions=True)
        assert 200 in statuses
        with pytest.raises(aiohttp.ClientConnectorError):
            await _send(session, url)


async def _send(session: aiohttp.ClientSession, url: str) -> int:
    async with session.post(f"{url}/batch/", json=batch(event())) as response:
        await response.read()
        return response.status


def test_it_shares_no_decoder_with_the_forwarder() -> None:
    """The sandbox imports nothing of wire, intake or delivery, nor the library that the forwarder
    decodes with.
    """
    imported: set[str] = set()
    for path in Path(forwarder.sandbox.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported.update(
                [node.module] if isinstance(node, ast.ImportFrom) and node.module else names
            )
    own = {
        name
        for name in imported
        if name.startswith("forwarder") and not name.startswith("forwarder.sandbox")
    }
    words = {"forwarder.config.units", "forwarder.telemetry.readable"}
    assert {name.split(".")[1] for name in own - words} == {"contract", "core", "pages", "storage"}
    assert not {"msgspec", "isal"} & imported


GUARDED = (
    "/",
    "/openapi.json",
    "/sandbox/events",
    "/sandbox/live",
    "/sandbox/summary",
    "/page/main.js",
    "/api/organizations/",
    "/nowhere",
)


async def test_an_unknown_host_reads_and_clears_nothing() -> None:
    """A page that gives its name this server's address (DNS rebinding) sees nothing and changes
    nothing but what it may send anyway.
    """
    async with Sandbox(SandboxOptions()) as sandbox, aiohttp.ClientSession(sandbox.url) as session:
        named = {
            "Host": "evil.example:8322",
            "Origin": "http://evil.example:8322",
            "Sec-Fetch-Site": "same-origin",
        }
        event = {"api_key": "phc_key", "event": "seen", "distinct_id": "ann"}
        async with session.post(
            "/capture/", json=event, headers={"Host": "sandbox:8322"}
        ) as answer:
            assert answer.status == 200
        for path in GUARDED:
            async with session.get(path, headers=named) as answer:
                assert (answer.status, answer.content_type) == (421, "text/plain"), path
                assert "`forwarder sandbox --host`" in await answer.text()
        async with session.delete("/sandbox/events", headers=named) as answer:
            assert answer.status == 421
        assert (await sandbox.summary()).events == 1


async def test_the_services_endpoints_answer_to_any_name() -> None:
    """A forwarder that reaches the sandbox by a service's name needs no option; a name that is
    given reaches all of it.
    """
    options = SandboxOptions(hosts=frozenset({"sandbox"}))
    async with Sandbox(options) as sandbox, aiohttp.ClientSession(sandbox.url) as session:
        asked = {"api_key": "phc_key", "distinct_id": "ann"}
        for path in ("/decide/?v=3", "/flags/?v=2"):
            async with session.post(
                path, json=asked, headers={"Host": "analytics.example:8322"}
            ) as answer:
                assert answer.status == 200, path
        async with session.get("/livez", headers={"Host": "analytics.example"}) as answer:
            assert answer.status == 200
        async with session.get("/sandbox/events", headers={"Host": "sandbox:8322"}) as answer:
            assert answer.status == 200


KEY = b"phx_secret_personal_key"


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer " + KEY + b"\x01",
        b"Authorization : Bearer " + KEY,
        b"Authorization: Bearer " + KEY + b"\r\n and more",
        b"Authorization: Bearer " + KEY * 5000,
        b"Content-Length: " + KEY,
    ],
)
async def test_no_key_is_logged(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A header that can't be read is 400 and one line of the log, which doesn't quote it."""
    async with Sandbox() as sandbox:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(sandbox.url.rpartition(":")[2])
        )
        writer.write(
            b"GET /api/environments/1/dashboards/ HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n\r\n"
        )
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a request could not be read as HTTP"
    ]
    assert "secret" not in caplog.text


def test_a_fault_of_the_program_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception keeps its traceback."""
    with caplog.at_level(logging.ERROR):
        logging.getLogger("forwarder.sandbox.app").error(
            "it failed", exc_info=ValueError("a fault")
        )
    assert "ValueError: a fault" in caplog.text


def test_every_endpoint_has_exactly_one_handler() -> None:
    """Each endpoint of the table has one handler in one module, and no
    handler is of another endpoint.
    """
    modules = (batch_exports, domains, members, projects)
    wired = [endpoint.name for module in modules for endpoint in module.HANDLERS]
    waiting = [endpoint.name for endpoint in async_handlers(StaticResolver({}))]
    assert sorted(wired + waiting) == sorted(endpoint.name for endpoint in ENDPOINTS)
    assert sorted(endpoint.name for endpoint in HANDLERS) == sorted(wired)
