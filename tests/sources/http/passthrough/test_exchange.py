"""Bodies and answers flow at the pace of the slower side, and answers keep the order
of requests.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.shares import Headroom
from forwarder.core.tls import client_context
from forwarder.sources.http import HttpPolicy, load_tls
from forwarder.sources.http.passthrough import PassThroughPolicy
from forwarder.sources.http.passthrough.exchange import STALLED, WINDOW
from forwarder.sources.http.protocol.limits import BODY_GRACE
from tests.support.answered import answered, asked, get
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.listening import ListenerRig, RawConnection, chunked, listening, post, turns
from tests.support.origin import OK, Asked, origin, through, whole

READ = 256 * 1024
"""Of one read of the loop, at most."""


async def pour(client: RawConnection, size: int) -> int:
    """Write up to `size` bytes until the listener takes no more for a while; how many went."""
    piece = b"x" * 65536
    sent = 0
    while sent < size:
        client.writer.write(piece[: size - sent])
        sent += min(len(piece), size - sent)
        try:
            await asyncio.wait_for(client.writer.drain(), 0.3)
        except TimeoutError:
            break
    return sent


def held(to: ListenerRig) -> int:
    """Bytes in the account of what is being received."""
    return to.listener.statistics().receiving_bytes


@pytest.mark.slow
@cases("crowded", [False, True])
async def test_a_slow_upstream_slows_the_sender(crowded: bool) -> None:
    """While it doesn't read, at most a window and a read are held, and less while too much is
    being received; then all of it goes.
    """
    go = asyncio.Event()

    async def slow(request: Asked) -> None:
        await asyncio.wait_for(go.wait(), 20)
        await request.read()
        await request.write(OK)

    size = 60_000_000
    headroom = Headroom(10_000 if crowded else 24_000_000)
    policy = HttpPolicy(max_body=size)
    async with (
        origin(slow) as upstream,
        listening(policy, headroom=headroom, passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        await client.send(post("/s/", b"").replace(b"Length: 0", b"Length: %d" % size))
        sent = await pour(client, size)
        assert sent < size
        assert 0 < held(to) <= (0 if crowded else WINDOW) + READ
        await to.pass_time(20)
        assert (await asked(await to.connect(), post(body=b"x" * 1000))).status == 200
        go.set()
        client.writer.write(b"x" * (size - sent))
        assert (await answered(client)).body == b"ok"
        assert upstream.asked[0].body == b"x" * size
        assert held(to) == 0


async def test_two_bodies_in_one_read() -> None:
    """What one read brought of the next body waits too: that the first is taken doesn't open the
    sender's way for the second.
    """
    size = 30_000_000
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        async with origin() as upstream:
            policy = PassThroughPolicy(
                url=upstream.url,
                assets_url=f"http://127.0.0.1:{full.getsockname()[1]}",
                connect_timeout=60.0,
            )
            async with listening(
                HttpPolicy(max_body=size), headroom=Headroom(0), passthrough=policy
            ) as to:
                client = await to.connect()
                waits = post("/static/x", b"").replace(b"Length: 0", b"Length: %d" % size)
                await client.send(post("/s/", b"abc") + waits + b"y")
                assert (await answered(client)).body == b"ok"
                await pour(client, size // 2)
                assert held(to) == 1
                client.writer.transport.abort()


async def test_a_trickle_while_much_is_received() -> None:
    """A sender that brings a byte a second is too slow also while each byte shuts the window for a
    moment: 408.
    """
    async with (
        origin() as upstream,
        listening(headroom=Headroom(0), passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        await client.send(post("/s/", b"x" * 1000)[:-900])
        for _ in range(int(BODY_GRACE) + 3):
            await to.until(lambda: held(to) == 0 and bool(upstream.asked))
            client.writer.write(b"x")
            await to.clock.advance(1)
        assert (await answered(client)).status == 408


async def test_an_upstream_that_never_reads() -> None:
    """503 after `timeout`; what still comes of the body is discarded, and the
    connection continues.
    """

    async def deaf(request: Asked) -> None:
        await asyncio.Event().wait()

    size = 60_000_000
    async with (
        origin(deaf) as upstream,
        listening(HttpPolicy(max_body=size), passthrough=through(upstream)) as to,
    ):
        client = await to.connect()
        await client.send(post("/s/", b"").replace(b"Length: 0", b"Length: %d" % size))
        sent = await pour(client, size)
        await to.pass_time(32)
        client.writer.write(b"x" * (size - sent))
        assert (await answered(client)).status == 503
        assert held(to) == 0
        assert (await asked(client, post())).status == 200


@pytest.mark.slow
@cases("secure", [False, True])
async def test_a_slow_sender_slows_the_upstream(secure: bool, tmp_path: Path) -> None:
    """While it doesn't read its answer, no more of that is read than fits in a few buffers; it
    isn't late; then all of it comes.
    """
    size = 40_000_000
    written = 0

    async def large(request: Asked) -> None:
        nonlocal written
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            await request.write(b"y" * 100_000)
            written += 100_000

    certificate = make_certificate(tmp_path)
    tls = load_tls(certificate.cert_file, certificate.key_file) if secure else None
    trust = client_context(certificate.cert_file) if secure else None
    async with origin(large) as upstream, listening(passthrough=through(upstream), tls=tls) as to:
        client = await to.connect(
            limit=65536, ssl=trust, server_hostname="localhost" if secure else None
        )
        await client.send(get("/static/large.js"))
        before = -1
        while before != written or not written:
            before = written
            await asyncio.wait_for(asyncio.shield(turns(50_000)), 20)
        assert written < size // 2
        await to.pass_time(60)
        assert (await answered(client)).body == b"y" * size


async def test_a_sender_that_never_reads() -> None:
    """Its connection is dropped after a while, and the upstream's."""

    async def large(request: Asked) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n")
        for _ in range(400):
            await request.write(b"y" * 100_000)

    async with origin(large) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect(limit=1024)
        await client.send(get("/static/large.js"))
        await to.until(
            lambda: any(connection._life.unread for connection in to.listener._state.connections)
        )
        await to.pass_time(int(STALLED) + 2)
        await asyncio.wait_for(upstream.asked[0].gone.wait(), 5)
        assert to.listener.statistics().connections == 0


async def test_an_early_answer() -> None:
    """An upstream may answer before it has read the body: the sender gets that answer when it has
    said all, and the rest is discarded.
    """

    async def early(request: Asked) -> None:
        await request.reader.readexactly(10)
        await request.write(
            b"HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
        )
        raise ConnectionResetError

    async with origin(early) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        request = post("/s/", b"x" * 1_000_000)
        await client.send(request[:1000])
        await to.until(lambda: bool(upstream.asked) and upstream.asked[0].gone.is_set())
        await client.send(request[1000:])
        assert (await answered(client)).status == 413
        assert (await asked(client, post())).status == 200


async def test_over_tls_and_a_unix_socket(tmp_path: Path) -> None:
    """Large bodies go through both ways over TLS and over a Unix socket."""
    body = bytes(range(256)) * 20_000

    async def echo(request: Asked) -> None:
        await request.read()
        await request.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), request.body
        )

    certificate = make_certificate(tmp_path)
    trust = client_context(certificate.cert_file)
    options = {
        "listen": "127.0.0.1:0",
        "tls": load_tls(certificate.cert_file, certificate.key_file),
    }
    async with origin(echo) as upstream:
        passthrough = through(upstream)
        async with listening(passthrough=passthrough, **options) as to:  # type: ignore[arg-type]
            client = await to.connect(ssl=trust, server_hostname="localhost")
            assert (await asked(client, post("/s/", body))).body == body
        async with listening(listen=f"unix:{tmp_path}/s", passthrough=through(upstream)) as to:
            client = await to.connect()
            assert (await asked(client, post("/s/", body))).body == body
            assert "x-forwarded-for" not in upstream.asked[-1].headers


async def test_an_upstream_with_tls(tmp_path: Path) -> None:
    """An upstream is spoken to over TLS, and its certificate is checked with what the
    policy holds.
    """
    certificate = make_certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate.cert_file, certificate.key_file)
    async with origin() as upstream:
        await upstream.stop()
        upstream.port = 0
        await upstream.start(server)
        url = upstream.url.replace("http:", "https:")
        trust = client_context(certificate.cert_file)
        async with listening(
            passthrough=PassThroughPolicy(url=url, assets_url=url, tls=trust)
        ) as to:
            assert (await asked(await to.connect(), get("/flags"))).body == b"ok"
        async with listening(passthrough=PassThroughPolicy(url=url, assets_url=url)) as to:
            assert (await asked(await to.connect(), get("/flags"))).status == 503


async def test_through_a_proxy() -> None:
    """With a proxy, that is what is spoken to: it gets the upstream's address."""
    async with origin() as proxy:
        url = "http://upstream.invalid/base"
        async with listening(
            passthrough=PassThroughPolicy(url=url, assets_url=url, proxy=proxy.url)
        ) as to:
            assert (await asked(await to.connect(), get("/flags?v=2"))).body == b"ok"
        assert proxy.targets == ["http://upstream.invalid/base/flags?v=2"]
        assert proxy.asked[0].headers["host"] == "upstream.invalid"


KINDS = [
    "event",
    "late",
    "get",
    "post",
    "chunks",
    "head",
    "nowhere",
    "options",
    "definitions",
    "asset",
]


async def echo(request: Asked) -> None:
    """Answer after a while with what was asked for, in one of several ways."""
    await request.read()
    await turns(len(request.target) * 7 % 11)
    words = request.target.encode() + b" " + request.body
    if request.method == "HEAD":
        await request.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Target: %b\r\n\r\n"
            % request.target.encode()
        )
    elif "chunks" in request.target:
        pieces = [
            b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (words[:7], words[7:]) if piece
        ]
        await request.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n"
        )
    else:
        await request.write(whole(words))


def spelled(kind: str, number: int, body: bytes) -> tuple[bytes, bytes | int]:
    """A request of a kind, and the body or status of its answer."""
    target = f"/flags/?{kind}{number}"
    kinds: dict[str, tuple[bytes, bytes | int]] = {
        "event": (post("/e", b"event" + body), b'{"status":"Ok"}'),
        "late": (post("/batch/", b"late" + body), b'{"status":"Ok"}'),
        "get": (get(target), target.encode() + b" "),
        "post": (post(target, body), target.encode() + b" " + body),
        "chunks": (chunked(body or b"x", path=target), target.encode() + b" " + (body or b"x")),
        "head": (get(f"/s?{number}", method="HEAD"), b""),
        "nowhere": (post("/nowhere", body), 404),
        "options": (get("/flags", method="OPTIONS"), 204),
        "definitions": (
            get(f"/flags/definitions?{number}", "Authorization: a"),
            b"/flags/definitions?%d " % number,
        ),
        "asset": (get(f"/static/{number}.js"), b"/static/%d.js " % number),
    }
    return kinds[kind]


async def acknowledge(to: ListenerRig, chance: random.Random, stop: asyncio.Event) -> None:
    """Acknowledge what waits, in any order, now and then."""
    while not stop.is_set():
        if to.intake.waiters and chance.random() < 0.3:
            to.intake.waiters.pop(chance.randrange(len(to.intake.waiters)))(None)
        await asyncio.sleep(0)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.binary(max_size=40)), max_size=14
    ),
    st.integers(0, 2**32 - 1),
)
async def test_every_request_gets_its_answer(
    requests: list[tuple[str, int, bytes]], seed: int
) -> None:
    """Events that are acknowledged at once or late, in any order, calls with and without bodies,
    refusals: one stream, cut anywhere.
    """
    # of its own: how often it is asked depends on the machine, and what Hypothesis gives has an end
    chance = random.Random(seed)
    spelled_out = [spelled(*request) for request in requests]
    stream = b"".join([request for request, _ in spelled_out])
    async with origin(echo) as upstream, listening(passthrough=through(upstream)) as to:
        to.intake.later = lambda incoming: incoming.body.startswith(b"late")
        client = await to.connect()
        stop = asyncio.Event()
        acknowledging = asyncio.create_task(acknowledge(to, chance, stop))
        try:
            start = 0
            while start < len(stream):
                end = start + chance.choice([1, 7, 50, 300, 5000])
                await client.send(stream[start:end])
                await turns(chance.choice([0, 1, 5]))
                start = end
            for request, expected in spelled_out:
                got = await answered(client, head=request.startswith(b"HEAD"))
                assert (got.status if isinstance(expected, int) else got.body) == expected
        finally:
            stop.set()
            await acknowledging
        assert to.intake.waiters == []
