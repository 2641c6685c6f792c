"""How connections wait, are slowed down, are rejected, and end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tracemalloc
from collections.abc import AsyncIterator
from functools import partial

import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.shares import Headroom, size_for
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol import lifecycle as phases
from forwarder.sources.http.protocol.limits import BODY_GRACE, BODY_WINDOW
from tests.support.cases import cases
from tests.support.listening import ListenerRig, RawConnection, chunked, listening, post, turns

HEAD = b"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def _holds(to: ListenerRig, size: int) -> bool:
    return to.listener.statistics().receiving_bytes == size


async def test_keep_alive_and_pipelining() -> None:
    """Many requests on a connection are answered in their order, whether one by one or all at
    once, whole or cut anywhere.
    """
    requests = [post("/e", b"%d" % number) for number in range(50)] + [
        post("/nowhere"),
        chunked(b"c", b"d"),
        post("/e", b"last"),
    ]
    raw = b"".join(requests)
    async with listening() as to:
        for step in (len(raw), 1000, 97, 13):
            to.intake.accepted.clear()
            client = await to.connect()
            await client.send(*[raw[at : at + step] for at in range(0, len(raw), step)])
            statuses = [(await client.reply()).status for _ in requests]
            assert statuses == [200] * 50 + [404, 200, 200]
            assert to.intake.bodies == [b"%d" % number for number in range(50)] + [b"cd", b"last"]


async def test_idle_connections_close_silently() -> None:
    """A connection without a request is closed after the idle time-out, without a word; one in use
    is not.
    """
    async with listening(HttpPolicy(idle_timeout=20)) as to:
        idle = await to.connect()
        used = await to.connect()
        await idle.ask(post())
        for _ in range(3):
            await to.pass_time(15)
            assert (await used.ask(post())).status == 200
        assert await idle.ended() == b""
        assert to.listener.statistics().connections == 1


@cases(
    "begun", [b"P", b"POST /e HTTP/1.1\r\n", b"POST /e HTTP/1.1\r\nHost: a\r\n", post() + b"POST"]
)
async def test_slow_head(begun: bytes) -> None:
    """A head must be complete in time, however it dribbles: 408 and the end."""
    async with listening(HttpPolicy(header_timeout=10)) as to:
        client = await to.connect()
        await client.send(begun)
        if begun.startswith(post()):
            assert (await client.reply()).status == 200
        for _ in range(12):
            await to.pass_time(1)
            if begun.endswith(b"\r\n"):  # a header can dribble without becoming wrong
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await client.send(b"x")
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (408, "close")
        assert await client.ended() == b""


async def test_stalled_body() -> None:
    """A body that stops coming is 408 once a window brought less than the least rate, and what was
    held of it is let go.
    """
    async with listening(HttpPolicy(body_timeout=60)) as to:
        client = await to.connect()
        await client.send(HEAD % 100_000, b"x" * 50_000)
        await to.until(lambda: to.listener.statistics().receiving_bytes == 50_000)
        await to.pass_time(BODY_GRACE + BODY_WINDOW)
        assert to.listener.statistics().receiving_bytes == 50_000
        await to.pass_time(3)
        assert to.listener.statistics().receiving_bytes == 0
        assert (await client.reply()).status == 408
        assert to.listener.statistics().requests == {("/e", 408): 1}


async def test_slow_but_steady_body() -> None:
    """A body that brings at least 16 KiB a second is waited for past its time-out, and no longer
    than it does.
    """
    async with listening(HttpPolicy(body_timeout=20)) as to:
        steady = await to.connect()
        slow = await to.connect()
        await steady.send(HEAD % (20_000 * 100))
        await slow.send(HEAD % (10_000 * 100))
        for second in range(1, 100):
            await steady.send(b"x" * 20_000)
            if second <= 15:
                await slow.send(b"x" * 10_000)
                await to.until(partial(_holds, to, 30_000 * second))
            await turns(20)
            await to.pass_time(1)
        await steady.send(b"x" * 20_000)
        assert (await steady.reply()).status == 200
        assert (await slow.reply()).status == 408


@contextlib.asynccontextmanager
async def _deaf(to: ListenerRig) -> AsyncIterator[tuple[RawConnection, int]]:
    """A sender that has read nothing yet, and is read no more; with how many pairs of requests
    (404 and 405 to come) it has sent.
    """
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.setblocking(False)
    await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", to.port))
    client = RawConnection(*await asyncio.open_connection(sock=deaf, limit=1024))
    to.clients.append(client)
    pairs = (post("/nowhere") + b"GET /e HTTP/1.1\r\nHost: a\r\n\r\n") * 500
    await to.until(lambda: len(to.listener._state.connections) == 1)
    (connection,) = to.listener._state.connections
    sent = 0
    while connection._life._transport.is_reading():
        assert sent < 200_000, "what is not read piles up without a bound"
        client.writer.write(pairs)
        sent += 500
        await turns()
    client.writer.write(pairs)
    yield client, sent + 500


async def test_a_sender_that_reads_no_answers_is_read_no_more() -> None:
    """Answers pile up to a bound, then reading stops; when the sender reads, all come, in order."""
    pair = answers.NOT_FOUND.plain + answers.METHOD_NOT_ALLOWED.plain
    async with listening() as to, _deaf(to) as (client, sent):
        await turns(100)
        assert sum(to.listener.statistics().requests.values()) < 2 * sent
        assert (
            await asyncio.wait_for(client.reader.readexactly(len(pair) * sent), 30) == pair * sent
        )


async def test_a_sender_that_never_reads_its_answers_is_dropped() -> None:
    """It is idle, as far as its listener can tell, and it can't be notified."""
    async with listening(HttpPolicy(idle_timeout=30, linger_timeout=5)) as to, _deaf(to):
        await to.pass_time(20)
        assert to.listener.statistics().connections == 1
        await to.pass_time(20)
        await to.until(lambda: to.listener.statistics().connections == 0)


@cases("part", [b"POST /e HTTP/1.1\r\nHo", post("/e", b"x" * 40)[:-20]], ids=["head", "body"])
async def test_a_request_that_is_not_read_on_is_not_late(part: bytes) -> None:
    """While the sender reads no answers nothing is read from it: the rest of a request has the
    time of an idle connection, then its own.
    """
    policy = HttpPolicy(idle_timeout=30, header_timeout=10, body_timeout=10, linger_timeout=5)
    async with listening(policy) as to:
        client = await to.connect()
        await client.send(part)
        await to.until(
            lambda: any(
                connection._life.phase in (phases.HEAD, phases.BODY)
                for connection in to.listener._state.connections
            )
        )
        (connection,) = to.listener._state.connections
        connection.pause_writing()
        await to.pass_time(25)
        assert to.listener.statistics().requests == {}
        connection.resume_writing()
        await to.pass_time(9)
        assert to.listener.statistics().requests == {}
        connection.pause_writing()
        await to.pass_time(40)
        await to.until(lambda: to.listener.statistics().connections == 0)


async def test_too_large_a_body() -> None:
    """A length over the limit is refused before anything is read, and the sender that continues
    sending still gets to read why.
    """
    async with listening(HttpPolicy(max_body=1000)) as to:
        client = await to.connect()
        await client.send(HEAD % 5_000_000)
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert await client.ended() == b""
        sender = await to.connect()
        await sender.send(HEAD % 5_000_000 + b"x" * 5_000_000)
        assert (await sender.reply()).status == 413
        assert (await to.ask(post("/e", b"x" * 1000))).status == 200
        assert (await to.ask(post("/e", b"x" * 1001))).status == 413


@cases("chunks", [[b"x" * 1001], [b"x" * 500, b"x" * 501], [b"x"] * 1001])
@cases("path", ["/e", "/nowhere"])
async def test_too_large_in_chunks(chunks: list[bytes], path: str) -> None:
    """Chunks count as they come, also where the body is only read to be discarded."""
    async with listening(HttpPolicy(max_body=1000)) as to:
        assert (await to.ask(chunked(*chunks, path=path))).status == 413
        assert (await to.ask(chunked(*chunks[1:], path=path))).status == (
            200 if path == "/e" else 404
        )


async def test_lingering_ends() -> None:
    """A sender that neither closes nor stops is dropped after a while, or after enough."""
    async with listening(HttpPolicy(max_body=1000, linger_timeout=5)) as to:
        silent = await to.connect()
        await silent.send(HEAD % 2000)
        await to.until(lambda: to.listener.statistics().requests != {})
        await to.pass_time(7)
        assert to.listener.statistics().connections == 0
        busy = await to.connect()
        with pytest.raises((ConnectionError, TimeoutError)):
            await busy.send(HEAD % 200_000_000, *[b"x" * 1_000_000] * 60)


async def test_endless_extensions_and_trailers() -> None:
    """What comes beside a body's bytes is bounded."""
    for endless in (b"3;", b"3\r\nabc\r\n0\r\nX: "):
        async with listening(HttpPolicy(max_header_bytes=1000)) as to:
            client = await to.connect()
            await client.send(
                b"POST /e HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + endless,
                *[b"x" * 300] * 8,
            )
            assert (await client.reply()).status == 431


async def test_bytes_being_received_are_bounded() -> None:
    """Past its share of the bound a sender that brings more gets 503, while small requests continue
    and the others are completed.
    """
    policy = HttpPolicy(max_receiving=size_for(1_000_000))
    async with listening(policy) as to:
        clients = [await to.connect() for _ in range(20)]
        for client in clients[:9]:
            await client.send(HEAD % 200_000, b"x" * 100_000)
        await to.until(lambda: to.listener.statistics().receiving_bytes == 900_000)
        await clients[9].send(HEAD % 200_000, b"x" * 100_000, b"x")
        await to.until(
            lambda: (
                to.listener.statistics().receiving_bytes == 900_000
                or to.listener.statistics().requests != {}
            )
        )
        await clients[9].send(b"x" * 10_000)
        reply = await clients[9].reply()
        assert (
            reply.status,
            int(reply.headers["retry-after"]) >= 1,
            reply.headers["connection"],
        ) == (503, True, "close")
        await clients[10].send(HEAD % 16_000, b"x" * 10_000, b"x" * 6_000)
        assert (await clients[10].reply()).status == 200
        for client in clients[:9]:
            await client.send(b"x" * 100_000)
        statuses = [(await client.reply()).status for client in clients[:9]]
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        assert to.listener.statistics().receiving_bytes == 0


async def test_dribbling_uploads_stay_within_the_bound() -> None:
    """200 connections that bring 19 MB each hold no more than the bound and
    what small requests may.
    """
    policy = HttpPolicy(max_receiving=4_000_000)
    async with listening(policy) as to:
        clients = [await to.connect() for _ in range(200)]
        for client in clients:
            client.writer.write(HEAD % 19_000_000)
        most = 0
        for _ in range(10):
            for client in clients:
                client.writer.write(b"x" * 8192)
            await turns(20)
            most = max(most, to.listener.statistics().receiving_bytes)
        assert 2_000_000 < most <= 4_000_000 + 256 * 1024


async def test_a_refused_body_is_not_held() -> None:
    """What there was of it is freed with the answer, not when its sender has closed at last."""
    async with listening(HttpPolicy(max_receiving=1_000_000)) as to:
        client = await to.connect()
        tracemalloc.start()
        try:
            await client.send(HEAD % 19_000_000, *[b"x" * 50_000] * 24)
            assert (await client.reply()).status == 503
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert to.listener.statistics().connections == 1
        assert to.listener.statistics().receiving_bytes == 0
        assert held < 500_000


async def test_less_is_received_beside_a_full_buffer() -> None:
    """What is being received and what is buffered share one bound, so that uploads that could not
    be taken in the end stop early.
    """
    buffer = MemoryBuffer(64_000_000)
    async with listening(headroom=Headroom(24_000_000, buffer)) as to:
        first = await to.connect()
        second = await to.connect()
        await first.send(HEAD % 19_000_000, *[b"x" * 500_000] * 10)
        await to.until(lambda: _holds(to, 5_000_000))
        buffer.used = 63_000_000
        await second.send(HEAD % 19_000_000, *[b"x" * 10_000] * 2)
        assert (await second.reply()).status == 503
        await first.send(b"x")
        assert (await first.reply()).status == 503
        assert _holds(to, 0)


async def test_too_many_connections() -> None:
    """Over the limit a connection gets 503 and is closed; as soon as one of the others goes, there
    is room again.
    """
    async with listening(HttpPolicy(max_connections=3)) as to:
        clients = [await to.connect() for _ in range(3)]
        for client in clients:
            assert (await client.ask(post())).status == 200
        for _ in range(10):
            refused = await to.connect()
            reply = await refused.reply()
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert int(reply.headers["retry-after"]) >= 1
        await clients[0].close()
        await to.until(lambda: to.listener.statistics().connections <= 12)
        assert (await (await to.connect()).ask(post())).status == 200


async def test_a_flood_of_connections() -> None:
    """Only so many get a reason at a time; the rest are dropped at once."""
    async with listening(HttpPolicy(max_connections=1)) as to:
        clients = [await to.connect() for _ in range(200)]
        await to.until(lambda: to.listener.statistics().connections <= 129)
        assert (await clients[0].ask(post())).status == 200
        assert await clients[199].ended() == b""


async def test_half_closed_sender() -> None:
    """A sender that has nothing more to say and closes its side still reads its answer; one that
    stops in the middle leaves nothing.
    """
    async with listening() as to:
        client = await to.connect()
        await client.send(post("/e", b"x"))
        client.writer.write_eof()
        assert (await client.reply()).status == 200
        assert await client.ended() == b""
        broken = await to.connect()
        await broken.send(HEAD % 1000 + b"x" * 100)
        broken.writer.write_eof()
        assert await broken.ended() == b""
        await to.until(lambda: to.listener.statistics().connections == 0)
        assert to.listener.statistics().receiving_bytes == 0
