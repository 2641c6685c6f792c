"""Whatever is sent on one connection, and however it is cut: each request gets its own answer, in order."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.answered import answered, get
from tests.support.listening import Listening, chunked, listening, post, turns
from tests.support.origin import Asked, origin, through, whole

KINDS = ["event", "late", "get", "post", "chunks", "head", "nowhere", "options", "definitions", "asset"]


async def echo(request: Asked) -> None:
    """Answer after a while with what was asked for, in one of several ways."""
    await request.read()
    await turns(len(request.target) * 7 % 11)
    words = request.target.encode() + b" " + request.body
    if request.method == "HEAD":
        await request.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Target: %b\r\n\r\n" % request.target.encode())
    elif "chunks" in request.target:
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (words[:7], words[7:]) if piece]
        await request.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces, b"0\r\n\r\n")
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
        "definitions": (get(f"/flags/definitions?{number}", "Authorization: a"), b"/flags/definitions?%d " % number),
        "asset": (get(f"/static/{number}.js"), b"/static/%d.js " % number),
    }
    return kinds[kind]


async def acknowledge(to: Listening, chance: random.Random, stop: asyncio.Event) -> None:
    """Acknowledge what waits, in any order, now and then."""
    while not stop.is_set():
        if to.intake.waiters and chance.random() < 0.3:
            to.intake.waiters.pop(chance.randrange(len(to.intake.waiters)))(None)
        await asyncio.sleep(0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.binary(max_size=40)), max_size=14),
    st.randoms(use_true_random=False),
)
async def test_every_request_gets_its_answer(requests: list[tuple[str, int, bytes]], chance: random.Random) -> None:
    """Events that are acknowledged at once or late, in any order, calls with and without bodies, refusals: one stream, cut anywhere."""
    spelled_out = [spelled(*request) for request in requests]
    stream = b"".join([request for request, _ in spelled_out])
    async with origin(echo) as upstream, listening(passthrough=through(upstream)) as to:
        to.intake.later = lambda incoming: incoming.body.startswith(b"late")
        client, stop = await to.connect(), asyncio.Event()
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
