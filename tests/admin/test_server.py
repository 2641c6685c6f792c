"""The admin server, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from forwarder.admin.server import AdminServer
from forwarder.admin.status import parse
from forwarder.core.errors import ConfigurationError
from forwarder.telemetry.snapshot import Snapshot, State
from tests.support.snapshots import FULL


class ShownState:
    """What the server is to show."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = FULL

    def __call__(self) -> Snapshot:
        assert self.snapshot is not None, "a bug anywhere in the figures"
        return self.snapshot


@pytest.fixture
def shown() -> ShownState:
    """A full snapshot, until a test changes it."""
    return ShownState()


@pytest.fixture
async def session(shown: ShownState) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running server."""
    server = AdminServer(shown)
    await server.start("127.0.0.1:0")
    async with aiohttp.ClientSession(f"http://{server.address}") as client:
        yield client
    await server.close()


async def get(
    session: aiohttp.ClientSession, path: str, accept: str = "*/*"
) -> tuple[int, str, str]:
    """Status code, content type and body."""
    async with session.get(path, headers={"Accept": accept}, allow_redirects=False) as response:
        return response.status, response.content_type, await response.text()


async def test_livez_lives_whatever_else_is_broken(
    session: aiohttp.ClientSession, shown: ShownState
) -> None:
    """`/livez` needs no snapshot: it says that the loop turns."""
    shown.snapshot = None
    assert (await get(session, "/livez"))[0] == 200


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.RUNNING])
async def test_readyz_fails_when_nothing_can_be_accepted(
    session: aiohttp.ClientSession, shown: ShownState, state: State
) -> None:
    """`/readyz` answers 503 with the reasons while nothing can be taken."""
    shown.snapshot = replace(FULL, state=state, ready=False, not_ready=("the buffer is full",))
    code, _, text = await get(session, "/readyz")
    assert code == 503
    assert "the buffer is full" in text


async def test_readyz_holds_while_the_upstream_is_down(session: aiohttp.ClientSession) -> None:
    """An upstream that is down and a halted lane don't make it unready: that would take away the
    buffers in the outage they are for.
    """
    assert (await get(session, "/readyz"))[0] == 200


async def test_status_is_json_for_programs(session: aiohttp.ClientSession) -> None:
    """`/status` is the document, unless a browser asks."""
    code, content_type, body = await get(session, "/status")
    assert (code, content_type) == (200, "application/json")
    assert parse(body.encode()) == FULL


async def test_status_is_a_page_for_browsers(session: aiohttp.ClientSession) -> None:
    """A browser gets a page that may load and run nothing."""
    async with session.get(
        "/status", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    ) as response:
        assert response.content_type == "text/html"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert (await response.text()).startswith("<!doctype html>")


async def test_metrics_are_text_or_openmetrics(session: aiohttp.ClientSession) -> None:
    """`/metrics` answers in the format that the scraper prefers."""
    code, content_type, body = await get(session, "/metrics")
    assert (code, content_type) == (200, "text/plain")
    assert "forwarder_events_received_total{" in body
    scrape = await get(session, "/metrics", "application/openmetrics-text")
    assert scrape[1] == "application/openmetrics-text"


async def test_other_paths_and_methods(session: aiohttp.ClientSession) -> None:
    """The root leads to the status, anything else isn't there, and nothing can be changed."""
    assert (await get(session, "/"))[0] == 302
    assert (await get(session, "/other"))[0] == 404
    async with session.post("/status") as response:
        assert response.status == 405


async def test_listens_on_a_unix_socket(tmp_path: Path) -> None:
    """`unix:/path` makes a socket file, which is gone after closing."""
    path = tmp_path / "admin.sock"
    server = AdminServer(ShownState())
    await server.start(f"unix:{path}")
    assert server.address == f"unix:{path}"
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.get("http://localhost/livez") as answer,
    ):
        assert answer.status == 200
    await server.close()
    assert not path.exists()


async def test_listens_on_ipv6() -> None:
    """`[::1]:port` is written back as it is to be used."""
    server = AdminServer(ShownState())
    await server.start("[::1]:0")
    assert server.address.startswith("[::1]:")
    await server.close()


async def test_address_in_use_is_one_clear_error() -> None:
    """A port that is taken raises an error that names the setting and the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            ConfigurationError, match=f"admin.listen: can't listen on {listen}: (process|something)"
        ) as raised:
            await AdminServer(ShownState()).start(listen)
    assert "admin.listen" in raised.value.hint


async def test_the_socket_of_a_running_daemon_is_left_alone(tmp_path: Path) -> None:
    """A second daemon on the same path doesn't take the first one's socket away; nor is another
    file overwritten.
    """
    path = tmp_path / "admin.sock"
    first = AdminServer(ShownState())
    await first.start(f"unix:{path}")
    with pytest.raises(
        ConfigurationError, match=r"admin\.listen: can't listen on unix:.*another process does"
    ):
        await AdminServer(ShownState()).start(f"unix:{path}")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.get("http://localhost/livez") as answer,
    ):
        assert answer.status == 200
    path.unlink()
    path.write_text("another's")
    await first.close()
    with pytest.raises(ConfigurationError, match="a file that is not a socket"):
        await AdminServer(ShownState()).start(f"unix:{path}")
    assert path.read_text() == "another's"


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    """What a daemon that was killed has left doesn't keep the next one from starting."""
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = AdminServer(ShownState())
    await server.start(f"unix:{path}")
    await server.close()
    assert not path.exists()


async def test_unusable_address_is_one_clear_error(tmp_path: Path) -> None:
    """A socket path in a directory that isn't there raises an error that names it."""
    with pytest.raises(ConfigurationError, match=r"missing/admin\.sock"):
        await AdminServer(ShownState()).start(f"unix:{tmp_path}/missing/admin.sock")


async def test_closing_what_never_started_does_nothing() -> None:
    """Close may be called whatever happened before."""
    admin = AdminServer(ShownState())
    await admin.close()
    assert admin.address == ""


async def test_what_is_shown_may_take_asking_others() -> None:
    """A snapshot that has to be waited for is served as any other, by every path that shows one."""

    async def take() -> Snapshot:
        return FULL

    server = AdminServer(take)
    await server.start("127.0.0.1:0")
    async with aiohttp.ClientSession(f"http://{server.address}") as client:
        assert parse((await get(client, "/status"))[2].encode()) == FULL
        assert (await get(client, "/readyz"))[0] == 200
        assert "forwarder_worker_up{" in (await get(client, "/metrics"))[2]
    await server.close()


ADMIN_PATHS = (
    "/",
    "/status",
    "/metrics",
    "/readyz",
    "/explain?uuid=x",
    "/page/style.css",
    "/nowhere",
)


async def ask(address: str, path: str, host: str) -> tuple[int, str, str]:
    """Status code, content type and body for a request to a server under another name."""
    async with (
        aiohttp.ClientSession(f"http://{address}") as client,
        client.get(path, headers={"Host": host}, allow_redirects=False) as response,
    ):
        return response.status, response.content_type, await response.text()


async def test_an_unknown_host_is_misdirected() -> None:
    """A page that gives its name this server's address (DNS rebinding) reads nothing; the answer
    names the setting.
    """
    server = AdminServer(ShownState())
    await server.start("127.0.0.1:0", ["forwarder.internal"])
    try:
        for path in ADMIN_PATHS:
            status, content_type, body = await ask(server.address, path, "evil.example:8321")
            assert (status, content_type) == (421, "text/plain"), path
            assert "'evil.example:8321' is not a known name of this server" in body
            assert "`admin.hosts`" in body
        assert (await ask(server.address, "/livez", "evil.example"))[0] == 200
        for host in ("forwarder.internal:8321", "localhost", "127.0.0.1", "10.0.0.9:1"):
            assert (await ask(server.address, "/status", host))[0] == 200, host
        assert (await ask(server.address, "/status", '<script>"&.example'))[1] == "text/plain"
    finally:
        await server.close()


async def test_no_host_of_several_may_be_unknown() -> None:
    """A second `Host` header doesn't hide the first, and without any, as in
    HTTP/1.0, no browser asks.
    """
    server = AdminServer(ShownState())
    await server.start("127.0.0.1:0")
    try:
        for head, expected in (
            ("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", (b"400", b"421")),
            ("GET /status HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n", (b"400", b"421")),
            ("GET /status HTTP/1.0\r\n", (b"200",)),
        ):
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            writer.write(f"{head}Connection: close\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] in expected, head
            writer.close()
            await writer.wait_closed()
    finally:
        await server.close()


async def test_a_unix_socket_has_no_names(tmp_path: Path) -> None:
    """On a Unix socket any host is answered: no browser gets there."""
    server = AdminServer(ShownState())
    await server.start(f"unix:{tmp_path}/admin.sock")
    try:
        connector = aiohttp.UnixConnector(f"{tmp_path}/admin.sock")
        async with (
            aiohttp.ClientSession("http://forwarder.internal", connector=connector) as client,
            client.get("/metrics") as response,
        ):
            assert response.status == 200
    finally:
        await server.close()
