"""`forwarder status` and `forwarder health`, as processes that ask a real admin server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from forwarder.admin.server import AdminServer
from forwarder.admin.status import parse
from forwarder.telemetry.snapshot import State
from tests.cli.conftest import Answering
from tests.support.commands import forwarder
from tests.support.snapshots import FULL, GOOD, HALTED

NOBODY = "127.0.0.1:1"


async def _not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A web server of another kind."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_status_shows_the_daemon_to_a_person(daemon: Answering) -> None:
    """Flow, lanes, halts with what to do, and warnings are on one screen."""
    done = await forwarder("status", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    for fact in ("in 1,230 → buffer 70", "out 1,150", "running, ready", GOOD.label, "7 refused", "upstream is down", "connection refused"):
        assert fact in done.out
    assert "worker-0 is running, process 4711; 1,000 received" in done.out
    assert f"lane {HALTED.label} is halted: unknown_key" in done.out
    assert "what to do: Check the project key." in done.out


async def test_status_as_json(daemon: Answering) -> None:
    """`--output json` prints the whole document."""
    done = await forwarder("status", "--admin", daemon.address, "--output", "json")
    assert parse(done.out.encode()) == FULL


async def test_status_says_why_nothing_is_taken(daemon: Answering) -> None:
    """A daemon that isn't ready says why."""
    daemon.snapshot = replace(FULL, state=State.DRAINING, ready=False, not_ready=("draining",), lanes=())
    done = await forwarder("status", "--admin", daemon.address)
    assert "accepts no events: draining" in done.out
    assert "No events yet." in done.out


async def test_status_without_a_daemon_exits_with_3() -> None:
    """Where nobody answers, the error says how to start one or where to look."""
    done = await forwarder("status", "--admin", NOBODY)
    assert (done.code, done.out) == (3, "")
    assert f"no daemon answers at {NOBODY}: Connection refused" in done.err
    assert "--admin" in done.err


async def test_status_of_something_else_is_refused() -> None:
    """An address that answers, but not as forwarder does, is told apart from a daemon."""
    server = await asyncio.start_server(_not_found, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        done = await forwarder("status", "--admin", f"{host}:{port}")
    assert done.code == 3
    assert "answered 404 to /status" in done.err


async def test_status_by_an_unknown_name_says_what_to_set() -> None:
    """A daemon that doesn't know the host name that it is asked by says so, and the command repeats it."""

    async def misdirected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 25\r\n\r\nadd it to `admin.hosts`. \n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(misdirected, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        done = await forwarder("status", "--admin", f"{host}:{port}")
    assert done.code == 3
    assert "answered 421 to /status\n  add it to `admin.hosts`." in done.err


async def test_an_address_that_is_none_is_wrong_usage() -> None:
    """A slip in `--admin` is exit code 2, not the 3 of a daemon that is down."""
    done = await forwarder("status", "--admin", "localhost")
    assert (done.code, done.out) == (2, "")
    assert "'localhost' is not an admin address" in done.err


async def test_health_follows_livez(daemon: Answering) -> None:
    """A live daemon that isn't ready is healthy; with `--ready` it isn't."""
    daemon.snapshot = replace(FULL, ready=False, not_ready=("the buffer is full",))
    assert (await forwarder("health", "--admin", daemon.address)).code == 0
    done = await forwarder("health", "--ready", "--admin", daemon.address)
    assert done.code == 1
    assert "the buffer is full" in done.out


async def test_health_ready(daemon: Answering) -> None:
    """A daemon that can take events is ready."""
    assert (await forwarder("health", "--ready", "--admin", daemon.address)).code == 0


async def test_health_without_a_daemon_exits_with_1() -> None:
    """For a container's health check nobody there is simply unhealthy."""
    done = await forwarder("health", "--admin", NOBODY)
    assert done.code == 1
    assert "no daemon answers" in done.err


async def test_address_from_environment(daemon: Answering) -> None:
    """Without `--admin` the daemon's own variable says where it is."""
    assert (await forwarder("health", env={"FORWARDER_ADMIN__LISTEN": daemon.address})).code == 0


async def test_address_from_configuration_over_a_unix_socket(tmp_path: Path) -> None:
    """Without `--admin` the configuration says where the daemon is; a Unix socket is as good as a port."""
    socket, file = tmp_path / "admin.sock", tmp_path / "forwarder.yaml"
    file.write_text(f"admin:\n  listen: unix:{socket}\n")
    server = AdminServer(lambda: FULL)
    await server.start(f"unix:{socket}")
    done = await forwarder("health", "--config", str(file))
    await server.close()
    assert (done.code, done.out) == (0, "live\n")
