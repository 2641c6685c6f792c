"""Calls that bring no events, through the whole daemon: beside events, while the upstream is down,
with several workers.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import tracemalloc
from typing import Any

from forwarder.core.clock import Clock, SystemClock
from tests.support.answered import RawAnswer, answered, asked, get
from tests.support.clock import FakeClock
from tests.support.listening import LIMIT, RawConnection, post
from tests.support.origin import Asked, Origin, hang, ok, origin, whole
from tests.support.supervised import supervised
from tests.support.upstream import Upstream
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole

EVENT = json.dumps({"api_key": KEY, "event": "e", "distinct_id": "d"}).encode()


async def service(request: Asked) -> None:
    """The service: takes batches, evaluates flags, has definitions with a tag."""
    await request.read()
    if request.target.startswith("/flags/definitions"):
        known = request.headers.get("if-none-match") == '"1"'
        await request.write(
            b'HTTP/1.1 304 N\r\nETag: "1"\r\n\r\n'
            if known
            else whole(b'{"flags":[1]}', 'ETag: "1"')
        )
    elif request.target.startswith("/flags"):
        await request.write(whole(b'{"flags":{"a":true}}', "Content-Type: application/json"))
    else:
        await request.write(whole(b'{"status":"Ok"}', "Content-Type: application/json"))


async def connected(whole_: Whole) -> RawConnection:
    """A connection to the pipeline's listener."""
    host, _, port = whole_.pipeline.addresses[0].rpartition(":")
    return RawConnection(*await asyncio.wait_for(asyncio.open_connection(host, int(port)), LIMIT))


def passing(url: str, clock: Clock | None = None, **sections: Any) -> Whole:
    """A daemon whose connections to the upstream may take as long as a busy machine needs."""
    sections["passthrough"] = {"connect_timeout": "10s", **sections.get("passthrough", {})}
    return Whole(url, clock or SystemClock(), **sections)


def delivered(upstream: Origin) -> int:
    """Requests with events that the service was sent."""
    return sum(target.startswith("/batch") for target in upstream.targets)


async def test_events_and_flags_through_one_daemon() -> None:
    """Events are buffered and delivered, flag calls answered by the service itself; each is
    counted where it belongs.
    """
    async with origin(service) as upstream, passing(upstream.url) as daemon:
        client = await connected(daemon)
        for _ in range(5):
            assert (await asked(client, post("/e", EVENT))).body == b'{"status":"Ok"}'
            assert (await asked(client, post("/flags/?v=2", b"{}"))).body == b'{"flags":{"a":true}}'
        await eventually(lambda: daemon.snapshot.lanes[0].delivered == 5)
        await client.close()
        shown = daemon.snapshot
        assert (shown.http_requests, shown.passthrough_requests) == (
            {("/e", 200): 5},
            {("/flags", 200): 5},
        )


async def test_the_key_of_the_destination_in_place_of_the_senders() -> None:
    """In path, query and a compressed body in chunks; other keys pass byte for byte, and a body
    that can't be searched is 413 instead of lost.
    """
    own = "phc_destinationsown"
    async with origin(service) as upstream:
        where = {"name": "eu", "url": upstream.url, "verify_keys": False, "api_keys": {KEY: own}}
        other = {"name": "us", "url": "http://127.0.0.1:9", "verify_keys": False}
        async with passing("", upstream={"url": ""}, upstreams=[where, other]) as daemon:
            client = await connected(daemon)
            packed = gzip.compress(b'{"token":"%b","distinct_id":"a"}' % KEY.encode())
            chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
            head = b"POST /flags/?v=2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert (await asked(client, head + chunked)).status == 200
            assert gzip.decompress(upstream.asked[-1].body) == (
                b'{"token":"%b","distinct_id":"a"}' % own.encode()
            )
            for target, passed in (
                (f"/array/{KEY}/config", f"/array/{own}/config"),
                (f"/flags/definitions?token={KEY}", f"/flags/definitions?token={own}"),
            ):
                assert (await asked(client, get(target))).status == 200
                assert upstream.targets[-1] == passed
            plain = b'{"token" : "phc_another", "x":[1.0 ]}'
            assert (await asked(client, post("/flags/?v=2", plain))).status == 200
            assert upstream.asked[-1].body == plain
            snapshot = b'[{"properties":{"token":"%b","$x":"%b"}}]'
            recorded = post("/s/", snapshot % (KEY.encode(), b"x" * 3_000_000))
            assert (await asked(client, recorded)).status == 200
            assert upstream.asked[-1].body == snapshot % (own.encode(), b"x" * 3_000_000)
            before = len(upstream.asked)
            bomb = gzip.compress(b" " * 9_000_000)
            assert (await asked(client, post("/s/", bomb))).status == 413
            large = await asked(client, post("/s/", b"{" + b" " * 9_000_000))
            assert large.status == 413
            assert b"searched for project keys" in large.body
            assert len(upstream.asked) == before
            await client.close()


async def test_an_outage() -> None:
    """Down: events are taken, flag calls fail within their time, then at once, definitions
    continue, `/status` says it. Back: all works.
    """
    async with origin(service) as upstream, passing(upstream.url, clock := FakeClock()) as daemon:
        poll = get("/flags/definitions?token=x", "Authorization: Bearer y")
        client = await connected(daemon)
        assert (await asked(client, poll)).body == b'{"flags":[1]}'
        upstream.handler = hang
        for number in range(5):
            before = len(upstream.asked)
            await client.send(post(f"/flags/?{number}", b"{}"))
            while len(upstream.asked) == before:
                await clock.advance(0)
            await clock.advance(2)
            assert (await answered(client)).status == 503
        assert (await asked(client, post("/flags", b"{}"))).status == 503
        await clock.advance(5)
        upstream.handler = service
        await upstream.stop()
        got = await asked(client, poll)
        assert (got.status, got.body, got.all("warning")[0]) == (
            200,
            b'{"flags":[1]}',
            '110 - "Response is Stale"',
        )
        assert (await asked(client, post("/e", EVENT))).status == 200
        assert any("get 503 at once" in warning for warning in daemon.snapshot.warnings)
        assert daemon.snapshot.ready
        await upstream.start()
        for _ in range(200):
            await clock.advance(1)
            if delivered(upstream) and (await asked(client, post("/flags", b"{}"))).status == 200:
                break
        assert (await asked(client, poll)).all("warning") == []
        assert not any("503 at once" in warning for warning in daemon.snapshot.warnings)
        await client.close()


async def test_shutdown_waits_for_calls_in_flight() -> None:
    """A drain lets calls end that are in progress, though no event is left to deliver."""
    go = asyncio.Event()

    async def slow(request: Asked) -> None:
        await asyncio.wait_for(go.wait(), 10)
        await request.write(whole(b"late"))

    async with origin(slow) as upstream, passing(upstream.url) as daemon:
        client = await connected(daemon)
        await client.send(get("/flags"))
        await eventually(lambda: len(upstream.asked) == 1)
        daemon.pipeline.stop_accepting()
        draining = asyncio.create_task(daemon.pipeline.drain(10))
        go.set()
        assert (await answered(client)).body == b"late"
        assert await draining
        await client.close()


async def test_disabled() -> None:
    """`passthrough.enabled: false`: 404, and the service is never asked."""
    async with (
        origin(ok) as upstream,
        passing(upstream.url, passthrough={"enabled": False}) as daemon,
    ):
        client = await connected(daemon)
        assert (await asked(client, get("/flags"))).status == 404
        await client.close()
        assert upstream.asked == []
        assert daemon.snapshot.passthrough_requests == {}


async def test_assets_url() -> None:
    """`upstream.assets_url` is where assets come from."""
    async with origin(ok) as upstream, origin(ok) as assets:
        async with passing(upstream.url, upstream={"assets_url": assets.url + "/cdn/"}) as daemon:
            client = await connected(daemon)
            assert (await asked(client, get("/static/array.js?v=1"))).status == 200
            await client.close()
        assert (assets.targets, upstream.targets) == (["/cdn/static/array.js?v=1"], [])


async def test_memory_stays_bounded() -> None:
    """60 MB up and 60 MB down, with the one who reads being slow, take no more than a
    few buffers.
    """
    size = 60_000_000
    piece = b"z" * 50_000
    read = 0

    async def both(request: Asked) -> None:
        nonlocal read
        while read < size:
            read += len(await request.reader.read(100_000))
            await asyncio.sleep(0)
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            await request.write(piece)

    async with origin(both) as upstream, passing(upstream.url) as daemon:
        client = await connected(daemon)
        tracemalloc.start()
        try:
            await client.send(post("/s/", b"").replace(b"Length: 0", b"Length: %d" % size))
            for _ in range(size // len(piece)):
                await client.send(piece)
            head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), LIMIT)
            got = 0
            while got < size:
                got += len(await asyncio.wait_for(client.reader.read(20_000), LIMIT))
                await asyncio.sleep(0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await client.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert read == got == size
    assert peak < 4_000_000, peak


async def test_two_workers() -> None:
    """Both pass calls through, and the sum is shown."""
    async with Upstream() as upstream, supervised(upstream.url) as daemon:
        first = await daemon.status()
        host, _, port = first.addresses[0].rpartition(":")
        got: list[RawAnswer] = []
        for _ in range(20):
            client = RawConnection(*await asyncio.open_connection(host, int(port)))
            got.append(await asked(client, post("/decide/?v=3", b"{}")))
            await client.close()
        assert {one.status for one in got} == {200}
        shown = await daemon.until(lambda now: now.passthrough_requests == {("/decide", 200): 20})
        assert shown.http_requests == {}
        assert (
            'forwarder_passthrough_requests_total{code="200",path="/decide"} 20.0'
            in await daemon.metrics()
        )
        daemon.command.send(signal.SIGTERM)
        assert await daemon.command.ended() == 0
