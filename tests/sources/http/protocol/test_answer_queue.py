"""Answers that are given later: their order, and what becomes of a connection meanwhile."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from forwarder.core.errors import InvalidRequest, NotAcknowledged
from forwarder.core.ports import Incoming
from forwarder.core.tls import client_context
from forwarder.sources.http import HttpPolicy, load_tls
from forwarder.sources.http.protocol.answer_queue import MAX_PENDING, MOST_PENDING
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.listening import ListenerRig, RawConnection, chunked, listening, post, turns

LATE = post(body=b"late")


def late(incoming: Incoming) -> bool:
    """Bodies that begin so are acknowledged later."""
    return incoming.body.startswith(b"late")


async def nothing_yet(client: RawConnection) -> None:
    """No answer has come, though there was time for one."""
    await turns(20)
    assert client.reader._buffer == b""  # type: ignore[attr-defined]


async def waiting(to: ListenerRig, count: int) -> None:
    """So many requests have been offered and aren't acknowledged."""
    await to.until(lambda: len(to.intake.waiters) == count)


async def test_an_answer_comes_when_it_is_due() -> None:
    """The request is offered at once, and answered and counted when it is acknowledged; the
    connection stays open.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        for number in range(3):  # the second head is known
            await client.send(LATE)
            await waiting(to, 1)
            await nothing_yet(client)
            assert sum(to.listener.statistics().requests.values()) == number
            to.intake.acknowledge()
            reply = await client.reply()
            assert (reply.status, reply.body, reply.headers.get("connection")) == (
                200,
                b'{"status":"Ok"}',
                None,
            )
        assert to.listener.statistics().requests == {("/batch", 200): 3}


async def test_not_acknowledged_is_503() -> None:
    """The sender learns when to come back, on a connection that stays open, also behind a head
    that was seen before.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        for _ in range(2):
            await client.send(LATE)
            await waiting(to, 1)
            to.intake.acknowledge(error=NotAcknowledged("too slow", retry_after=1.5))
            reply = await client.reply()
            assert (reply.status, reply.headers["retry-after"], reply.body) == (
                503,
                "2",
                b"too slow\n",
            )
        assert (await client.ask(post())).status == 200
        assert to.listener.statistics().requests == {("/batch", 200): 1, ("/batch", 503): 2}


@cases("warm", [False, True])
async def test_answers_keep_the_order_of_requests(warm: bool) -> None:
    """Whatever comes behind a waiting request waits too: taken at once, refused, another path,
    HEAD, a preflight, another late one.
    """
    async with listening() as to:
        to.intake.later = late
        to.intake.refuse = lambda incoming: (
            InvalidRequest("no") if incoming.body == b"bad" else None
        )
        client = await to.connect()
        if warm:
            assert (await client.ask(post())).status == 200
        others = [
            post(),
            post(body=b"bad"),
            post("/nowhere"),
            b"HEAD /e/ HTTP/1.1\r\nHost: a\r\n\r\n",
            post(body=b"late-2"),
            post("/e/"),
        ]
        for request in [LATE, *others]:
            await client.send(request)
            await turns()
        await waiting(to, 2)
        to.intake.waiters.pop()(None)
        await nothing_yet(client)
        to.intake.acknowledge()
        statuses = [(await client.reply(head=number == 4)).status for number in range(7)]
        assert statuses == [200, 200, 400, 404, 405, 200, 200]
        assert (await client.ask(post())).status == 200


async def test_pipelined_in_one_piece() -> None:
    """Requests that come in one piece with a waiting one are parsed and offered, not held up."""
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE + post(body=b"2") + LATE + post(body=b"4"))
        await waiting(to, 2)
        assert to.intake.bodies == [b"late", b"2", b"late", b"4"]
        to.intake.acknowledge()
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        await nothing_yet(client)
        to.intake.acknowledge()
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]


async def test_a_beacon_and_cors_headers() -> None:
    """A late answer is the same as one given at once: 204 for a beacon, headers for a browser,
    errors too.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        request = post("/e/?beacon=1", b"late", "Origin: https://a.example")
        for error, status in ((None, 204), (NotAcknowledged("no"), 503)):
            await client.send(request)
            await waiting(to, 1)
            to.intake.acknowledge(error=error)
            reply = await client.reply()
            assert (reply.status, reply.headers["access-control-allow-origin"]) == (
                status,
                "https://a.example",
            )


@cases(
    ("request_", "connection"),
    [
        (post("/batch/", b"late", "Connection: close"), "close"),
        (post("/batch/", b"late", version="1.0"), "close"),
        (post("/batch/", b"late", "Connection: keep-alive", version="1.0"), "keep-alive"),
    ],
)
async def test_the_end_of_a_connection_waits(request_: bytes, connection: str) -> None:
    """What was to be the last answer still is; nothing that follows such a request is taken, or
    changes that.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(request_)
        await waiting(to, 1)
        if connection == "close":
            await client.send(post() * 3)
            await nothing_yet(client)
        to.intake.acknowledge()
        assert (await client.reply()).headers["connection"] == connection
        if connection == "close":
            assert await client.ended() == b""
            assert to.intake.bodies == [b"late"]


async def test_the_last_request_behind_a_waiting_one() -> None:
    """One that ends the connection, by its own wish or by a bug here, is answered in its turn, and
    nothing after it is taken.
    """
    for bugs, request_ in enumerate(
        [post("/batch/", b"last", "Connection: close"), post("/batch/", b"bug")]
    ):
        async with listening(bugs=bugs) as to:
            to.intake.later = late
            to.intake.refuse = lambda incoming: (
                RuntimeError("a bug") if incoming.body == b"bug" else None
            )
            client = await to.connect()
            await client.send(LATE + request_ + post(body=b"after"))
            await client.send(post(body=b"after"))
            await waiting(to, 1)
            to.intake.acknowledge()
            replies = [await client.reply() for _ in range(2)]
            assert [(reply.status, reply.headers.get("connection")) for reply in replies] == [
                (200, None),
                (500 if bugs else 200, "close"),
            ]
            assert await client.ended() == b""
            assert b"after" not in to.intake.bodies


async def test_a_lost_connection_is_not_answered() -> None:
    """A connection that is lost while it waits is forgotten; the acknowledgement that comes after
    that does no harm.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE + post() + LATE)
        await waiting(to, 2)
        reset = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, reset
        )
        client.writer.transport.abort()
        await to.until(lambda: to.listener.statistics().connections == 0)
        to.intake.acknowledge(2)
        assert to.listener.statistics().requests == {}


async def test_a_half_closed_connection_gets_its_answer() -> None:
    """A sender that closes can't be distinguished from one that only sends no more: its connection
    lasts until the answer is due.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE)
        await waiting(to, 1)
        await client.close()
        await turns(20)
        assert to.listener.statistics().connections == 1
        to.intake.acknowledge()
        await to.until(lambda: to.listener.statistics().connections == 0)
        assert to.listener.statistics().requests == {("/batch", 200): 1}


async def test_pending_answers_follow_a_half_close() -> None:
    """After a half close the waiting answers come, then the end; a request that isn't complete
    never will be.
    """
    for rest in (b"", b"POST /e/ HT", post(body=b"x" * 10)[:-3]):
        async with listening() as to:
            to.intake.later = late
            client = await to.connect()
            await client.send(LATE + post() + rest)
            await waiting(to, 1)
            client.writer.write_eof()
            await nothing_yet(client)
            to.intake.acknowledge()
            assert [(await client.reply()).status for _ in range(2)] == [200, 200]
            assert await client.ended() == b""
            await to.until(lambda: to.listener.statistics().connections == 0)


async def test_a_waiting_connection_is_not_idle() -> None:
    """However long an answer takes, the sweep leaves its connection alone; after it, idle time
    begins anew.
    """
    async with listening(HttpPolicy(idle_timeout=10, header_timeout=10, answer_timeout=3600)) as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE)
        await waiting(to, 1)
        await to.pass_time(100)
        to.intake.acknowledge()
        assert (await client.reply()).status == 200
        await to.pass_time(8)
        assert (await client.ask(post())).status == 200
        await to.pass_time(12)
        assert await client.ended() == b""


async def test_an_answer_that_never_comes() -> None:
    """When the intake has nothing to say for too long, because a disk hangs, the sender gets 503
    and keeps its events.
    """
    async with listening(HttpPolicy(answer_timeout=10)) as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE)
        await waiting(to, 1)
        await to.pass_time(6)
        await client.send(LATE + post())
        await waiting(to, 2)
        await nothing_yet(client)
        await to.pass_time(6)
        assert (await client.reply()).status == 503
        await nothing_yet(client)
        to.intake.acknowledge(2)
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        assert to.listener.statistics().requests == {("/batch", 200): 2, ("/batch", 503): 1}


async def test_a_slow_request_behind_a_waiting_one() -> None:
    """Its time limit holds; its 408 waits for its turn, and then the connection ends."""
    async with listening(HttpPolicy(header_timeout=5)) as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE + b"POST /e/ HTTP/1.1\r\n")
        await waiting(to, 1)
        await to.pass_time(8)
        await nothing_yet(client)
        to.intake.acknowledge()
        assert [(await client.reply()).status for _ in range(2)] == [200, 408]
        assert await client.ended() == b""


@cases(
    ("rest", "status"),
    [(b"rubbish\r\n\r\n", 400), (post(body=b"x" * 2000), 413), (chunked(b"x" * 2000), 413)],
)
async def test_a_refusal_behind_a_waiting_request(rest: bytes, status: int) -> None:
    """What can't be read ends the connection, but only after those before it are answered."""
    async with listening(HttpPolicy(max_body=1000)) as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE + rest)
        await waiting(to, 1)
        await nothing_yet(client)
        to.intake.acknowledge()
        first = await client.reply()
        second = await client.reply()
        assert (first.status, first.headers.get("connection")) == (200, None)
        assert (second.status, second.headers["connection"]) == (status, "close")
        assert await client.ended() == b""


async def test_100_continue_keeps_its_place() -> None:
    """It belongs to the request after the waiting one, and comes behind that one's answer."""
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        whole = post("/e/", b"body", "Expect: 100-continue")
        await client.send(LATE + whole[:-4])
        await waiting(to, 1)
        await nothing_yet(client)
        to.intake.acknowledge()
        assert (await client.reply()).status == 200
        assert (await client.reply()).status == 100
        assert (await client.ask(whole[-4:])).status == 200


async def test_draining_ends_with_the_last_answer() -> None:
    """Waiting requests are answered; the last of them says that the connection ends, and `close`
    waits for it.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE * 2)
        await waiting(to, 2)
        to.listener.draining = True
        closing = asyncio.ensure_future(to.listener.close(60))
        await turns(10)
        assert not closing.done()
        to.intake.acknowledge(2)
        replies = [await client.reply() for _ in range(2)]
        assert [(reply.status, reply.headers.get("connection")) for reply in replies] == [
            (200, None),
            (200, "close"),
        ]
        assert await client.ended() == b""
        await client.close()
        await closing


async def test_a_new_request_while_draining() -> None:
    """It is refused behind those that wait, and its 503 is the last answer."""
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE)
        await waiting(to, 1)
        to.listener.draining = True
        await client.send(post())
        await nothing_yet(client)
        to.intake.acknowledge()
        replies = [await client.reply() for _ in range(2)]
        assert [(reply.status, reply.headers.get("connection")) for reply in replies] == [
            (200, None),
            (503, "close"),
        ]
        assert await client.ended() == b""


async def test_close_drops_who_waits_too_long() -> None:
    """When the grace is over the connection is dropped, and an acknowledgement
    after that does no harm.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE)
        await waiting(to, 1)
        await to.listener.close(0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.reply()
        to.intake.acknowledge()


async def test_so_many_answers_wait_and_no_more() -> None:
    """A sender that pipelines without end is not read from until answers were given."""
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE * MAX_PENDING)
        await waiting(to, MAX_PENDING)
        await client.send(LATE * 3)
        await turns(50)
        assert len(to.intake.waiters) == MAX_PENDING
        to.intake.acknowledge(MAX_PENDING // 2)
        await waiting(to, MAX_PENDING // 2 + 3)
        to.intake.acknowledge(MAX_PENDING // 2 + 3)
        assert [(await client.reply()).status for _ in range(MAX_PENDING + 3)] == [200] * (
            MAX_PENDING + 3
        )


async def test_one_read_full_of_tiny_requests() -> None:
    """What waits on a connection is bounded however small requests are: past the bound the next is
    refused, and that is the end.
    """
    async with listening() as to:
        to.intake.later = late
        client = await to.connect()
        await client.send(LATE + b"POST /x HTTP/1.1\r\nHost:\r\n\r\n" * 3 * MOST_PENDING)
        await waiting(to, 1)
        await nothing_yet(client)
        to.intake.acknowledge()
        statuses = [(await client.reply()).status for _ in range(MOST_PENDING + 1)]
        assert statuses == [200, *[404] * (MOST_PENDING - 1), 503]
        assert await client.ended() == b""


async def test_over_tls(tmp_path: Path) -> None:
    """Late answers come over TLS too; the end of a connection is a whole one there."""
    made = make_certificate(tmp_path)
    trusting = client_context(made.cert_file)
    async with listening(tls=load_tls(made.cert_file, made.key_file)) as to:
        to.intake.later = late
        client = await to.connect(ssl=trusting, server_hostname="localhost")
        await client.send(LATE)
        await waiting(to, 1)
        to.intake.acknowledge()
        assert (await client.reply()).status == 200
        await client.send(post("/e/", b"late", "Connection: close"))
        await waiting(to, 1)
        to.intake.acknowledge()
        assert (await client.reply()).headers["connection"] == "close"
        assert await client.ended() == b""
