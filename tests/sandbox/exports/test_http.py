"""HTTP destinations: what is posted where, and every way in which a service can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from forwarder.sandbox.exports import http
from forwarder.sandbox.exports.export_records import EVENT_COLUMNS, ExportRecord
from forwarder.sandbox.exports.http import HttpDestination
from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured
from tests.sandbox.shipped import KEY, at, holding, job, ship, stored, uuid_of
from tests.support.cases import cases

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RECORDS = [
    ExportRecord(
        1, 9, ("u-1", "seen", "d1", at(1), '{"a":1.0}', None, None, None, "p", "{}", 7, at(2)), "{}"
    )
]


@asynccontextmanager
async def service(handler: Handler) -> AsyncIterator[str]:
    """A server; its address."""
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def post(url: object, *, private: bool = True, **config: Any) -> None:
    """Post the records of a job of events."""
    whole = {"url": url, **config}
    with ThreadPoolExecutor(1) as executor:
        destination = HttpDestination(
            job({"type": "HTTP", "config": whole}),
            whole,
            DestinationPolicy(None, private),
            executor,
        )
        await destination.write(EVENT_COLUMNS, RECORDS)


class Accepting:
    """Accepts everything, and remembers it."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def accept(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        self.bodies.append(json.loads(await request.read()))
        return web.json_response({"status": "Ok"})


@cases(
    ("path", "asked"),
    [
        ("", "/batch/"),
        ("/", "/batch/"),
        ("/batch", "/batch"),
        ("/batch/", "/batch/"),
        ("/hook?a=1", "/hook?a=1"),
    ],
)
async def test_where_it_is_posted(path: str, asked: str) -> None:
    """A host gets `/batch/`; a path is the user's."""
    accepting = Accepting()
    async with service(accepting.accept) as url:
        await post(url + path)
    assert accepting.paths == [asked]


async def test_what_is_posted() -> None:
    """Events as SDKs send them, with their own times; by the project's key,
    or by the destination's.
    """
    accepting = Accepting()
    async with service(accepting.accept) as url:
        await post(url)
        await post(url, token="phc_other")
    first, second = accepting.bodies
    event = {
        "uuid": "u-1",
        "event": "seen",
        "distinct_id": "d1",
        "timestamp": at(1),
        "properties": {"a": 1.0},
    }
    assert first == {"api_key": KEY, "historical_migration": True, "batch": [event]}
    assert second["api_key"] == "phc_other"


async def test_many_events_are_many_requests() -> None:
    """Each of them small enough for a service, and each event in one."""
    accepting = Accepting()
    async with (
        holding([stored(number) for number in range(2_500)]) as thread,
        service(accepting.accept) as url,
    ):
        reported = await ship(job({"type": "http", "config": {"url": url}}), thread, None)
    assert [len(body["batch"]) for body in accepting.bodies] == [1_000, 1_000, 500]
    assert [event["uuid"] for body in accepting.bodies for event in body["batch"]] == [
        uuid_of(number) for number in range(2_500)
    ]
    assert [(completed, total) for _, completed, total in reported.calls] == [
        (0, 2_500),
        (1_000, 2_500),
        (2_000, 2_500),
        (2_500, 2_500),
    ]


@cases("status", [300, 302, 308, 400, 401, 404, 413, 429, 500, 503])
async def test_only_2xx_is_success(status: int) -> None:
    """No redirect is followed; of the body's words a few are repeated, and no key."""
    asked = list[str]()

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        headers = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(
            status=status, headers=headers, text=f"no {KEY} here, {'x' * 5_000} the end"
        )

    async with service(refuse) as url:
        with pytest.raises(DestinationFailed, match=f"answered {status} no … here, xxx") as raised:
            await post(url)
    assert asked == ["/batch/"]
    assert "the end" not in str(raised.value)


@cases("status", [200, 201, 204])
async def test_success(status: int) -> None:
    """Whatever the body is; the part is posted once."""
    posted = list[str]()

    async def accept(request: web.Request) -> web.Response:
        posted.append(request.path)
        return web.Response(status=status, text=None if status == 204 else "x" * 1_000_000)

    async with service(accept) as url:
        await post(url)
    assert posted == ["/batch/"]


async def test_a_service_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its answer, or in the middle of an error."""
    monkeypatch.setattr(http, "TIMEOUT", 0.2)
    begun = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        if request.path == "/error":
            response = web.StreamResponse(status=500)
            await response.prepare(request)
            await response.write(b"half")
        await begun.wait()
        return web.Response()

    async with service(hang) as url:
        for path in ("/batch/", "/error"):
            with pytest.raises(
                DestinationFailed, match=r"didn't answer within 0\.2 seconds|answered 500 half"
            ):
                await post(url + path)
        begun.set()


async def test_a_service_that_is_away() -> None:
    """The message says where, without the credentials in the URL."""
    async with service(Accepting().accept) as url:
        away = url
    with pytest.raises(DestinationFailed, match=f"{away}/batch/ can't be reached") as raised:
        await post(away.replace("http://", "http://me:secret@") + "/batch/")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "answer", [b"what?\r\n\r\n", b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nno %s here"]
)
async def test_a_query_is_never_repeated(answer: bytes) -> None:
    """Neither by what can't be read as an answer, nor by a service that
    names what it was asked for.
    """

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n")).split()[1]
        writer.write(answer.replace(b"%s", asked))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(DestinationFailed, match="/hook") as raised:
            await post(f"http://127.0.0.1:{port}/hook?code=secret")
    assert "secret" not in str(raised.value)


async def test_a_private_service() -> None:
    """It isn't asked unless it may be."""
    accepting = Accepting()
    async with service(accepting.accept) as url:
        with pytest.raises(ExportMisconfigured, match="private address"):
            await post(url, private=False)
    assert accepting.bodies == []


async def test_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would connect to whatever it likes."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    accepting = Accepting()
    async with service(accepting.accept) as url:
        await post(url)
    assert len(accepting.bodies) == 1


async def test_only_checked_addresses_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name has the addresses that it had when it was checked, whatever it says later."""
    accepting = Accepting()
    asked = list[str]()
    async with service(accepting.accept) as url:

        async def resolve(*_: object) -> list[str]:
            asked.append("resolved")
            return ["127.0.0.1"]

        monkeypatch.setattr("forwarder.sandbox.exports.network.DestinationUrl.resolve", resolve)
        await post(url.replace("127.0.0.1", "events.example.com"))
    assert (len(accepting.bodies), asked) == (1, ["resolved"])


def test_persons_dont_go_to_a_service() -> None:
    """They are no events."""
    with pytest.raises(ExportMisconfigured, match="accepts events only"):
        HttpDestination(
            job(model="persons"), {"url": "http://x"}, DestinationPolicy(), ThreadPoolExecutor(1)
        )
