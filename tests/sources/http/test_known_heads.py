"""Heads that a connection has seen before: a request with one is answered as if it were parsed."""

from __future__ import annotations

from forwarder.core.errors import InvalidToken
from forwarder.core.ports import Incoming
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.connection import (
    MAX_KNOWN_HEAD,
    MAX_KNOWN_HEADS,
    KnownHead,
    KnownHeads,
    remember,
)
from forwarder.sources.http.protocol.routes import Route
from tests.support.cases import cases
from tests.support.listening import chunked, listening, post

ORDINARY = [
    post("/e", b"abc"),
    post("/batch/?compression=gzip", b"abc", "Content-Encoding: gzip", "Content-Type: a/b"),
    post("/e", b"abc", "Connection: keep-alive", "Origin: https://a.example"),
    post("/e", b"abc", "Connection: Upgrade", "Upgrade: h2c"),
]
SPECIAL = [
    post("/e", b"abc", "Connection: close"),
    post("/e", b"abc", "Expect: 100-continue"),
    post("/nowhere", b"abc"),
    post("/e", b"abc").replace(b"POST", b"PUT"),
    chunked(b"abc"),
    b"POST /e HTTP/1.1\r\nHost: a\r\n\r\n",
    post("/e", b"abc", version="1.0"),
    post("/e/?beacon=1", b"abc"),
]


@cases("request_", ORDINARY + SPECIAL)
async def test_the_second_time_is_like_the_first(request_: bytes) -> None:
    """A request that comes again, on the same connection or another, is taken, answered and
    counted as it was.
    """
    async with listening() as to:
        first = await to.ask(request_)
        requests = list(to.intake.accepted)
        client = await to.connect()
        for _ in range(3 if request_ in ORDINARY else 1):
            assert await client.ask(request_) == first
            assert (
                to.intake.accepted[-len(requests) :] == requests
                if requests
                else not to.intake.accepted
            )
        assert sum(to.listener.statistics().requests.values()) == (4 if request_ in ORDINARY else 2)
        assert len(to.listener._state.heads[0]) == (1 if request_ in ORDINARY else 0)


async def test_lengths_may_differ() -> None:
    """The same head with another length is known too, as long as the body is as long as it says,
    and not longer than allowed.
    """
    async with listening(HttpPolicy(max_body=50)) as to:
        client = await to.connect()
        for size in (3, 0, 1, 10, 50):
            assert (await client.ask(post("/e", b"x" * size))).status == 200
        small = post("/e", b"abc").replace(b"Content-L", b"content-l")
        for request in (
            small,
            small,
            post("/e", b"abc").replace(b": 3", b": 003"),
            post("/e", b"abc").replace(b": 3", b":3"),
        ):
            assert (await client.ask(request)).status == 200
        assert len(to.listener._state.heads[0]) == 2
        for wrong in (b"+3", b"3_0", b"3 3", b"", b"0x3", b"3,3", b"9" * 30, b"9" * 5000):
            assert (await to.ask(post("/e", b"abc").replace(b": 3", b": " + wrong))).status == 400
        assert (await client.ask(post("/e", b"x" * 51))).status == 413
        assert [len(body) for body in to.intake.bodies] == [3, 0, 1, 10, 50, 3, 3, 3, 3]


async def test_a_length_in_another_place() -> None:
    """What only looks like the length is not left out: a second one, or one in a value or in the
    body, means what it always means.
    """
    async with listening() as to:
        client = await to.connect()
        odd = post("/e", b"abc", "X: Content-Length: 9")
        for request in (
            odd,
            odd.replace(b"9", b"8"),
            post("/e", b"abc"),
            post("/e", b"\r\nContent-Length: 5\r\n\r\n"),
        ):
            assert (await client.ask(request)).status == 200
        assert (await client.ask(post("/e", b"abc", "Content-Length: 3"))).status == 400


async def test_one_head_is_not_remembered_for_another() -> None:
    """After a request that came in pieces, what was decided on it isn't kept for the next, which
    is refused.
    """
    first = post("/e", b"abcdef")
    second = post("/nowhere", b"abc")
    async with listening() as to:
        client = await to.connect()
        await client.send(first[:-3])
        await to.until(lambda: to.listener.statistics().receiving_bytes == 3)
        assert (await client.ask(first[-3:])).status == 200
        for _ in range(3):
            assert (await client.ask(second)).status == 404
        assert to.intake.bodies == [b"abcdef"]


async def test_only_whole_requests() -> None:
    """The same head with more or less than its body is parsed: the body still to come, or the next
    request, is not lost.
    """
    request = post("/e", b"abcdef")
    async with listening() as to:
        client = await to.connect()
        await client.ask(request)
        for cut in range(1, len(request)):
            await client.send(
                request[:cut], request[cut:] + request, request + request[:cut], request[cut:]
            )
            assert [(await client.reply()).status for _ in range(4)] == [200] * 4
        assert set(to.intake.bodies) == {b"abcdef"}


async def test_refusals() -> None:
    """What the intake refuses is refused in the same words."""
    async with listening() as to:
        to.intake.refuse = lambda _: InvalidToken("no key")
        first = await to.ask(post())
        to.intake.refuse = lambda _: None
        await to.ask(post())
        to.intake.refuse = lambda _: InvalidToken("no key")
        assert await to.ask(post()) == first


async def test_draining() -> None:
    """A listener that drains takes nothing by memory either."""
    async with listening() as to:
        client = await to.connect()
        await client.ask(post())
        to.listener.draining = True
        assert (await client.ask(post())).status == 503


async def test_larger_than_allowed_is_never_known() -> None:
    """A head that was refused is not remembered."""
    async with listening(HttpPolicy(max_body=2)) as to:
        for _ in range(2):
            assert (await to.ask(post("/e", b"abc"))).status == 413


def test_bounds() -> None:
    """Memory for heads is bounded in number and size."""
    known = KnownHead(
        Route("x"), Incoming(b""), forwarded_for=b"", forwarded=b"", headers=b"", accepted=b""
    )
    heads: KnownHeads = {}
    for number in range(MAX_KNOWN_HEADS * 3 + 1):
        remember(heads, (b"%d" % number, b""), known)
        assert 0 < len(heads) <= MAX_KNOWN_HEADS
    remember(heads, (b"x" * MAX_KNOWN_HEAD, b"y"), known)
    assert (b"x" * MAX_KNOWN_HEAD, b"y") not in heads
