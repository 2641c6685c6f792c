"""What a sender gets when the upstream fails, and what it doesn't have to wait for."""

from __future__ import annotations

import asyncio
import socket

import pytest

from forwarder.sources.http.passthrough import PassThroughPolicy
from forwarder.sources.http.passthrough.service import OTHER_PERMITS
from forwarder.sources.http.passthrough.upstream import FAILURES, PROBE_SECONDS
from forwarder.upstream.connection import LAST_CHUNK
from tests.support.answered import answered, asked, get
from tests.support.cases import cases
from tests.support.listening import ListenerRig, RawConnection, listening, post, turns
from tests.support.origin import OK, Asked, Origin, always, hang, ok, origin, through, whole


async def reset(request: Asked) -> None:
    """Read the request, and reset the connection."""
    await request.read()
    request.reset()


async def closes(request: Asked) -> None:
    """Read the request, and close the connection."""
    await request.read()
    raise ConnectionResetError


async def switches(request: Asked) -> None:
    """Answer in another protocol, which no one has asked for."""
    await request.read()
    await request.write(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    )


def failing(to: ListenerRig) -> tuple[tuple[str, str], ...]:
    """The addresses that aren't asked, and why."""
    assert to.passthrough is not None
    return to.passthrough.statistics().failing


def in_flight(to: ListenerRig) -> int:
    """Requests that are being passed through."""
    assert to.passthrough is not None
    return to.passthrough.statistics().in_flight


async def test_connection_refused_by_the_upstream() -> None:
    """503 in plain text, at once; the connection continues, and events are taken."""
    async with origin() as upstream:
        policy = through(upstream)
    async with listening(passthrough=policy) as to:
        client = await to.connect()
        got = await asked(client, post("/flags", b"x", "Origin: https://a.example"))
        assert (got.status, got.one("content-type")) == (503, "text/plain; charset=utf-8")
        assert got.one("access-control-allow-origin") == "https://a.example"
        assert (await asked(client, post())).status == 200


@cases(
    "handler",
    [
        reset,
        closes,
        switches,
        always(b"no HTTP at all\r\n\r\n"),
        always(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"),
    ],
)
async def test_an_upstream_without_a_complete_head_is_502(handler: object) -> None:
    """An upstream that breaks off before the head of its answer is complete, or doesn't speak
    HTTP, is 503.
    """

    async def breaks(request: Asked) -> None:
        await handler(request)  # type: ignore[operator]
        raise ConnectionResetError

    async with origin(breaks) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, post("/flags", b"x"))).status == 503
        assert (await asked(client, post())).status == 200


@cases(
    ("path", "seconds"),
    [("/flags", 2), ("/decide/", 2), ("/flags/definitions", 2), ("/s/", 30), ("/array/x/y", 30)],
)
async def test_an_upstream_that_hangs(path: str, seconds: int) -> None:
    """503 after `flags_timeout` for what an app waits for, after `timeout` for the rest; the
    upstream's connection is dropped.
    """
    async with origin(hang) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(get(path))
        await to.until(lambda: len(upstream.asked) == 1)
        await to.clock.advance(seconds - 0.01)
        await turns(20)
        assert client.reader._buffer == b""  # type: ignore[attr-defined]
        await to.clock.advance(0.02)
        assert (await answered(client)).status == 503
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)
        assert (await asked(client, post())).status == 200


async def test_an_upstream_that_cant_be_connected_to() -> None:
    """503 after `connect_timeout`: the system queues the connection, and no one takes it."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with listening(
            passthrough=PassThroughPolicy(url=url, assets_url=url, connect_timeout=0.05)
        ) as to:
            client = await to.connect()
            assert (await asked(client, get("/static/x"))).status == 503


async def test_a_slow_sender_is_not_a_slow_upstream() -> None:
    """The time that a sender takes to bring its body doesn't count."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post("/flags", b"abcdef")
        await client.send(request[:-3])
        await to.until(lambda: len(upstream.asked) == 1)
        await to.clock.advance(20)
        await client.send(request[-3:])
        assert (await answered(client)).body == b"ok"


async def test_a_sender_that_stalls() -> None:
    """A body that doesn't come is 408, and the upstream's connection is dropped: it isn't left
    with half a body.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(post("/flags", b"abcdef")[:-3])
        await to.until(lambda: len(upstream.asked) == 1)
        await to.pass_time(63)
        assert (await answered(client)).status == 408
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)
        assert failing(to) == ()


@cases(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n",
    ],
)
@cases("way", ["reset", "close", "hang"])
@cases("version", ["1.1", "1.0"])
async def test_an_answer_that_is_cut(head: bytes, way: str, version: str) -> None:
    """The sender sees that it is: its connection is reset, never ended as if the body
    were whole.
    """

    async def handler(request: Asked) -> None:
        await request.read()
        await request.write(head + b"x" * 50)
        await asyncio.wait_for(seen.wait(), 5)
        if way == "reset":
            request.reset()
        if way == "hang":
            await request.reader.read()
        raise ConnectionResetError

    seen = asyncio.Event()
    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(post("/s/", b"x", version=version))
        start = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5)
        assert start.startswith(b"HTTP/1.1 200")
        await to.until(lambda: b"xxx" in client.reader._buffer)  # type: ignore[attr-defined]
        seen.set()
        if way == "hang":
            await to.clock.advance(31)
        with pytest.raises(ConnectionResetError):
            await client.ended()


async def test_the_time_between_pieces_counts_anew() -> None:
    """An answer that keeps coming may take as long as it likes, if it isn't one that an app
    waits for.
    """
    more = asyncio.Semaphore(0)

    async def handler(request: Asked) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        for _ in range(5):
            await more.acquire()
            await request.write(b"x")

    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        buffer = client.reader._buffer  # type: ignore[attr-defined]
        await client.send(get("/static/a.js"))
        for count in range(5):
            expected = b"\r\n\r\n" + b"x" * count
            # B023: the wait ends before the next round.
            await to.until(lambda: expected in buffer)  # noqa: B023
            await to.clock.advance(29)
            more.release()
        assert (await answered(client)).body == b"xxxxx"


async def test_five_failures_in_a_row() -> None:
    """Then 503 with Retry-After at once, without asking; one at a time is let through to see
    whether it is back; then all are.
    """
    async with origin(reset) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        for number in range(FAILURES):
            assert failing(to) == ()
            assert (await asked(client, post(f"/flags?{number}", b"x"))).status == 503
        assert (
            failing(to) == ((upstream.url, "ServerDisconnectedError"),)
            or failing(to)[0][0] == upstream.url
        )
        for _ in range(3):
            got = await asked(client, post("/decide", b"x"))
            assert (got.status, got.one("retry-after")) == (503, "1")
        assert len(upstream.asked) == FAILURES
        await to.clock.advance(1.0)
        assert (await asked(client, post("/flags", b"x"))).status == 503
        assert (await asked(client, post("/flags", b"x"))).status == 503
        assert len(upstream.asked) == FAILURES + 1
        upstream.handler = ok
        await to.clock.advance(2.0)
        for _ in range(3):
            assert (await asked(client, post("/flags", b"x"))).status == 200
        assert failing(to) == ()


async def opened(to: ListenerRig, upstream: Origin) -> RawConnection:
    """A connection on which calls have failed until the next may probe, by
    an upstream that is back.
    """
    upstream.handler = reset
    client = await to.connect()
    for _ in range(FAILURES):
        assert (await asked(client, post("/flags", b"x"))).status == 503
    assert failing(to) != ()
    upstream.handler = ok
    await to.clock.advance(1.0)
    return client


@cases("rest", [b"Expect: no\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"])
async def test_a_probe_that_is_refused_at_once(rest: bytes) -> None:
    """A request that is refused in the very read that brought its head never asked: the next one
    may probe.
    """
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await opened(to, upstream)
        refused = await to.connect()
        await refused.send(b"POST /flags HTTP/1.1\r\nHost: a\r\n" + rest)
        assert (await answered(refused)).status in (400, 417)
        assert len(upstream.asked) == FAILURES
        assert (await asked(client, post("/flags", b"x"))).status == 200


async def test_a_probe_with_a_slow_sender() -> None:
    """It doesn't keep others from their flags for as long as its upload takes."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await opened(to, upstream)
        slow = await to.connect()
        await slow.send(post("/s/", b"x" * 100)[:-50])
        await to.until(lambda: len(upstream.asked) == FAILURES + 1)
        got = await asked(client, post("/flags", b"x"))
        assert (got.status, got.one("retry-after")) == (503, str(int(PROBE_SECONDS)))
        await to.clock.advance(PROBE_SECONDS)
        assert (await asked(client, post("/flags", b"x"))).status == 200


async def test_a_repeated_get_has_no_body_any_more() -> None:
    """A GET with a body whose kept connection breaks is 503 at once: what was sent of the body
    can't be sent again.
    """

    async def breaks(request: Asked) -> None:
        await request.read()
        if request.body:
            raise ConnectionResetError
        await request.write(OK)

    async with origin(breaks) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, get("/flags"))).status == 200
        assert (await asked(client, post("/flags", b"abc").replace(b"POST", b"GET"))).status == 503
        upstream.handler = ok
        assert (await asked(client, post("/flags", b"abc"))).status == 200


async def test_gateway_errors_count_as_failures() -> None:
    """502, 503 and 504 of the one who stands before the upstream are passed on, and count; other
    answers prove that it is there.
    """
    async with (
        origin(always(whole(b"no", "Retry-After: 7", status="503 No"))) as upstream,
        listening(passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        for status in ("500 E", "404 N", "401 U", "429 T"):
            upstream.handler = always(whole(b"no", status=status))
            for _ in range(2):
                assert (await asked(client, get("/flags"))).status == int(status[:3])
        upstream.handler = always(whole(b"no", "Retry-After: 7", status="503 No"))
        for _ in range(FAILURES):
            got = await asked(client, get("/flags"))
            assert (got.status, got.body, got.one("retry-after")) == (503, b"no", "7")
        got = await asked(client, get("/flags"))
        assert (got.body, got.one("retry-after")) == (
            b"The upstream fails; it will be asked again soon.\n",
            "1",
        )


async def test_assets_have_a_circuit_of_their_own() -> None:
    """An address for assets that fails keeps no one from their flags."""
    async with (
        origin() as upstream,
        origin(reset) as assets,
        listening(passthrough=through(upstream, assets)) as to,
    ):
        client = await to.connect()
        for _ in range(FAILURES):
            assert (await asked(client, get("/static/a.js"))).status == 503
        assert (await asked(client, get("/static/a.js"))).status == 503
        assert (await asked(client, get("/flags"))).status == 200


async def test_the_sender_leaves() -> None:
    """The request to the upstream is dropped, while its answer is waited for and while it comes;
    that is no failure of the upstream.
    """
    started = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx"

    async def begins(request: Asked) -> None:
        await request.write(started)
        await request.reader.read()
        raise ConnectionResetError

    async with origin(hang) as upstream, listening(passthrough=through(upstream)) as to:
        for handler in [hang, begins] * FAILURES:
            upstream.handler = handler
            client = await to.connect()
            await client.send(post("/s/", b"x"))
            await to.until(lambda: bool(upstream.asked) and not upstream.asked[-1].gone.is_set())
            if handler is begins:
                await client.reader.readuntil(b"x")
            await client.close()
            await asyncio.wait_for(upstream.asked[-1].gone.wait(), 5)
            await to.until(lambda: in_flight(to) == 0)
        assert failing(to) == ()


async def test_a_body_that_becomes_invalid_never_passes_for_whole() -> None:
    """A valid chunk and nonsense come in one piece: what the upstream has of the body is not ended
    as if that were all.
    """
    seen: list[bytes] = []

    async def reads_all(request: Asked) -> None:
        seen.append(await request.reader.read())
        raise ConnectionResetError

    head = b"POST /s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with origin(reads_all) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(head)
        await to.until(lambda: bool(upstream.asked))
        await client.send(b"5\r\nhello\r\nnonsense\r\n")
        assert (await answered(client)).status == 400
        await to.until(lambda: bool(seen))
        assert not seen[0].endswith(LAST_CHUNK)


async def test_the_sender_closes_its_side_while_the_answer_comes() -> None:
    """Its connection is reset: what it has is not the whole."""

    async def begins(request: Asked) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await request.reader.read()
        raise ConnectionResetError

    async with origin(begins) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(post("/s/", b"x", version="1.0"))
        await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\nx"), 5)
        client.writer.write_eof()
        with pytest.raises(ConnectionResetError):
            await client.ended()
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)


async def test_too_many() -> None:
    """A sender has seven eighths of the permits, and no more: what it asks then is 503 with
    Retry-After, and events are taken.
    """
    share = OTHER_PERMITS * 7 // 8
    async with origin(hang) as upstream, listening(passthrough=through(upstream)) as to:
        clients = [await to.connect() for _ in range(4)]
        for busy in clients:
            await busy.send(get("/s/") * (share // 4))
        await to.until(lambda: len(upstream.asked) == share)
        client = await to.connect()
        got = await asked(client, post("/s/", b"x"))
        assert (got.status, got.one("retry-after")) == (503, "2")
        assert (await asked(client, post())).status == 200
        await clients[0].close()
        await to.until(lambda: in_flight(to) == share * 3 // 4)
        upstream.handler = ok
        assert (await asked(client, post("/s/", b"x"))).status == 200


async def test_draining() -> None:
    """A listener that drains lets what is in progress end, with `Connection: close`, and refuses
    the rest; `until_idle` waits for it.
    """
    go = asyncio.Event()

    async def handler(request: Asked) -> None:
        await request.read()
        await asyncio.wait_for(go.wait(), 5)
        await request.write(OK)

    async with origin(handler) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        late = await to.connect()
        assert (await asked(late, post())).status == 200
        await client.send(post("/flags", b"x"))
        await to.until(lambda: len(upstream.asked) == 1)
        to.listener.draining = True
        assert (await asked(late, post("/flags", b"x"))).status == 503
        assert to.passthrough is not None
        assert not await to.passthrough.until_idle(0)
        go.set()
        got = await answered(client)
        assert (got.body, got.one("connection"), await client.ended()) == (b"ok", "close", b"")
        assert await to.passthrough.until_idle(5)


async def test_closing() -> None:
    """What is still in progress at the end is dropped, on both sides."""
    async with origin(hang) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(post("/flags", b"x"))
        await to.until(lambda: len(upstream.asked) == 1)
        await to.listener.close(0)
        assert await client.ended() == b""
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)


async def test_via() -> None:
    """The forwarder adds itself; loops are recognized by another header."""
    async with origin() as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        answer = await asked(
            client, get("/flags", "Via: 1.1 forwarder", "Via: 1.1 forwarder, 1.0 x")
        )
        assert answer.status == 200
        assert (
            upstream.asked[0].headers["via"] == "1.1 forwarder, 1.1 forwarder, 1.0 x, 1.1 forwarder"
        )
