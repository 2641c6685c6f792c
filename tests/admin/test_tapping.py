"""`/tap`: the stream, who gets it, and what ends it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec import Raw

from forwarder.admin import tapping
from forwarder.admin.server import AdminServer
from forwarder.admin.tapping import MAX_STREAMS
from forwarder.core.taps import TapOutcome
from forwarder.telemetry.taps import TapBatch, TapFilter, TapRequest
from tests.support.snapshots import FULL
from tests.support.waiting import eventually


class Source:
    """What taps are fetched from; each batch is given once."""

    def __init__(self) -> None:
        self.batches = [TapBatch([Raw(b'{"outcome":"received"}')], 3, 1)]
        self.open: dict[str, TapFilter] = {}

    def __call__(self, request: TapRequest) -> TapBatch:
        if request.wanted is None:
            del self.open[request.tap]
            return TapBatch()
        self.open[request.tap] = request.wanted
        return self.batches.pop() if self.batches else TapBatch()


@pytest.fixture
def source() -> Source:
    """One batch."""
    return Source()


@pytest.fixture
async def session(source: Source) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running server."""
    server = AdminServer(lambda: FULL, tap=source)
    await server.start("127.0.0.1:0")
    async with aiohttp.ClientSession(f"http://{server.address}") as client:
        yield client
    await server.close()


async def test_events_then_what_is_not_shown_then_heartbeats(
    session: aiohttp.ClientSession, source: Source
) -> None:
    """A line for each event, one with the counts of others, and empty lines while nothing passes;
    the client's end closes the tap.
    """
    query = [
        ("event", "a*"),
        ("event", "b"),
        ("key", "l#1"),
        ("source", "kafka"),
        ("outcome", "dropped"),
        ("rate", "7"),
    ]
    async with session.get("/tap", params=query) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        lines = [await response.content.readline() for _ in range(3)]
        assert list(source.open.values()) == [
            TapFilter(("a*", "b"), ("l#1",), ("kafka",), (TapOutcome.DROPPED,), 7.0)
        ]
    assert lines == [
        b'{"outcome":"received"}\n',
        msgspec.json.encode({"skipped": 3, "lost": 1}) + b"\n",
        b"\n",
    ]
    await eventually(lambda: not source.open)


async def test_the_servers_end_ends_streams_at_once(source: Source) -> None:
    """A stop doesn't wait for clients that watch."""
    server = AdminServer(lambda: FULL, tap=source)
    await server.start("127.0.0.1:0")
    async with (
        aiohttp.ClientSession(f"http://{server.address}") as client,
        client.get("/tap") as response,
    ):
        await response.content.readline()
        await server.close()
        assert b"" in [await response.content.readline() for _ in range(3)]
    assert source.open == {}


async def test_a_client_that_reads_nothing_is_disconnected(
    session: aiohttp.ClientSession, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tap is closed, and the daemon keeps nothing for it."""
    monkeypatch.setattr(tapping, "STALLED_SECONDS", 0.1)
    source.batches = [TapBatch([Raw(b'"%b"' % (b"x" * 1_000_000))])] * 30
    async with session.get("/tap"):
        await eventually(lambda: source.open)
        await eventually(lambda: not source.open)


@pytest.mark.parametrize(
    "query",
    [
        "rate=0",
        "rate=-1",
        "rate=nan",
        "rate=1e9",
        "rate=fast",
        "outcome=lost",
        "outcome=",
        "event=",
        "other=1",
        "event=e&" * 21,
    ],
)
async def test_a_query_that_says_nothing_sensible(
    session: aiohttp.ClientSession, source: Source, query: str
) -> None:
    """It is answered 400, and nothing is tapped."""
    async with session.get(f"/tap?{query}") as response:
        assert (response.status, (await response.text()).endswith("\n")) == (400, True)
    assert source.open == {}


async def test_taps_are_few(session: aiohttp.ClientSession, source: Source) -> None:
    """One more than permitted is answered 503, until another ends."""
    async with contextlib.AsyncExitStack() as others:
        for _ in range(MAX_STREAMS - 1):
            assert (await others.enter_async_context(session.get("/tap"))).status == 200
        async with session.get("/tap") as last, session.get("/tap") as rejected:
            assert (last.status, rejected.status, "end one" in await rejected.text()) == (
                200,
                503,
                True,
            )
        await eventually(lambda: len(source.open) == MAX_STREAMS - 1)
        async with session.get("/tap") as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("permission", "peer", "headers", "code"),
    [
        ("local", "", {}, 200),
        ("never", "", {}, 403),
        ("local", "192.0.2.1", {}, 403),
        ("any", "192.0.2.1", {}, 200),
        ("local", "::ffff:127.0.0.1", {}, 200),
        ("local", "::ffff:192.0.2.1", {}, 403),
        ("local", "", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("any", "", {"Origin": "https://evil.example"}, 403),
        ("any", "", {"Host": "evil.example"}, 421),
    ],
)
async def test_who_may_tap(  # noqa: PLR0917 - a table of cases
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    permission: tapping.TapPermission,
    peer: str,
    headers: Mapping[str, str],
    code: int,
) -> None:
    """Clients on this machine, unless the setting says otherwise; never a page of another site."""
    if peer:
        real: Callable[[object], bool] = tapping.is_local
        monkeypatch.setattr(tapping, "is_local", lambda _: real((peer, 1)))
    server = AdminServer(lambda: FULL, tap=source)
    await server.start("127.0.0.1:0", tap=permission)
    async with (
        aiohttp.ClientSession(f"http://{server.address}") as client,
        client.get("/tap", headers=headers) as response,
    ):
        assert response.status == code
    await server.close()


async def test_every_client_of_a_unix_socket_is_local(source: Source, tmp_path: Path) -> None:
    """Who may open the socket is on this machine."""
    server = AdminServer(lambda: FULL, tap=source)
    await server.start(f"unix:{tmp_path}/admin")
    connector = aiohttp.UnixConnector(f"{tmp_path}/admin")
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as client,
        client.get("/tap") as response,
    ):
        assert response.status == 200
    await server.close()
