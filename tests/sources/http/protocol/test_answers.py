"""The listener's answers, and what browsers get."""

from __future__ import annotations

import math

import pytest

from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    InvalidRequest,
    InvalidToken,
    RequestTooLarge,
)
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answers import Cors
from tests.support.cases import cases
from tests.support.listening import listening, post


@cases(
    ("error", "status", "retry_after"),
    [
        (InvalidRequest("not JSON"), 400, None),
        (InvalidToken("no key"), 401, None),
        (RequestTooLarge("too big inside"), 413, None),
        (BufferFull("full"), 503, "1"),
        (Backpressure("wait", retry_after=0), 503, "1"),
        (Backpressure("wait", retry_after=-3), 503, "1"),
        (Backpressure("wait", retry_after=2.1), 503, "3"),
        (Backpressure("wait", retry_after=1e9), 503, "3600"),
        (Backpressure("wait", retry_after=math.inf), 503, "3600"),
        (Backpressure("wait", retry_after=math.nan), 503, "3600"),
    ],
)
async def test_refusals(error: Exception, status: int, retry_after: str | None) -> None:
    """A refusal of the intake has its status and says why in plain text; the connection stays, the
    same request may come again.
    """
    async with listening() as to:
        client = await to.connect()
        for _ in range(2):
            to.intake.refuse = lambda _: error
            reply = await client.ask(post())
            assert (reply.status, reply.headers.get("retry-after")) == (status, retry_after)
            assert reply.body.decode() == f"{error}\n"
            assert reply.headers["content-type"] == "text/plain; charset=utf-8"
            assert "connection" not in reply.headers
            to.intake.refuse = lambda _: None
            assert (await client.ask(post())).status == 200
        assert to.listener.statistics().requests == {("/batch", status): 2, ("/batch", 200): 2}


@pytest.mark.parametrize("seen_before", [False, True])
async def test_bug_in_the_intake(
    seen_before: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else is a bug: 500, the traceback logged once, the connection closed; the listener
    continues.
    """
    async with listening(bugs=1) as to:
        client = await to.connect()
        if seen_before:
            assert (await client.ask(post())).status == 200
        to.intake.refuse = lambda _: ZeroDivisionError("oops")
        reply = await client.ask(post())
        assert (reply.status, reply.headers["connection"]) == (500, "close")
        assert await client.ended() == b""
        to.intake.refuse = lambda _: None
        assert (await to.ask(post())).status == 200
    assert (capsys.readouterr().out + caplog.text).count("ZeroDivisionError: oops") == 1


def test_long_messages_are_cut() -> None:
    """A message never makes an answer large, and text that can't be encoded is replaced."""
    assert len(answers.bad_request("x" * 100_000).plain) < 1000
    assert b"?" in answers.problem(400, "\ud800", answers.Rejection.UNDECODABLE).plain


def test_no_content_has_no_length() -> None:
    """204 says nothing of a body (RFC 9110, 8.6)."""
    assert answers.ACCEPTED_SILENTLY.plain == b"HTTP/1.1 204 No Content\r\n\r\n"


ORIGIN = "Origin: https://a.example"
PREFLIGHT = (
    "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\n"
    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type,x-one\r\n"
    "\r\n"
)


def preflight(path: str = "/e/?ip=1", origin: str = "https://a.example") -> bytes:
    """What a browser asks before it sends JSON."""
    return PREFLIGHT.format(path=path, origin=origin).encode()


async def test_preflight() -> None:
    """A preflight is answered with the origin, the methods and the headers that were asked for,
    and may be kept; then POST is taken.
    """
    async with listening() as to:
        client = await to.connect()
        for _ in range(2):
            reply = await client.ask(preflight())
            assert reply.status == 204
            assert reply.headers == {
                "allow": "POST, OPTIONS",
                "access-control-allow-origin": "https://a.example",
                "access-control-allow-credentials": "true",
                "access-control-allow-methods": "POST, OPTIONS",
                "access-control-allow-headers": "content-type,x-one",
                "access-control-max-age": "86400",
                "vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
            }
        answer = await client.ask(post("/e/", b"x", ORIGIN))
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert (answer.headers["vary"], answer.headers["access-control-expose-headers"]) == (
            "Origin",
            "Retry-After",
        )


@cases(
    ("request_", "status"),
    [
        (post("/nowhere", b"", ORIGIN), 404),
        (preflight("/nowhere"), 404),
        (post("/e", b"", ORIGIN).replace(b"POST", b"GET"), 405),
        (post("/e", b"", "Expect: 1", ORIGIN), 417),
        (post("/e", b"x" * 2000, ORIGIN), 413),
        (post("/e", b"", "Host: b", ORIGIN), 400),
        (post("/e", b"", ORIGIN, "X: y", "X : y"), 400),
        (post("/e", b"", "X: " + "y" * 2000, ORIGIN), 431),
    ],
)
async def test_errors(request_: bytes, status: int) -> None:
    """Errors have the headers too: without them a browser hides the status."""
    async with listening(HttpPolicy(max_body=1000, max_header_bytes=1000)) as to:
        reply = await to.ask(request_)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (
            status,
            "https://a.example",
        )


@cases("seen_before", [False, True])
async def test_overload(seen_before: bool) -> None:
    """A page's SDK sees the 503 and its Retry-After."""
    async with listening() as to:
        client = await to.connect()
        if seen_before:
            assert (await client.ask(post("/e", b"1", ORIGIN))).status == 200
        to.intake.refuse = lambda _: BufferFull("full")
        reply = await client.ask(post("/e", b"1", ORIGIN))
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.headers["access-control-expose-headers"] == "Retry-After"


async def test_other_origins() -> None:
    """Only listed origins learn that they may; the others' requests are taken all the same, as
    a browser would not hold them back.
    """
    policy = HttpPolicy(cors_origins=("https://A.example/", "http://b.example:8080"))
    async with listening(policy) as to:
        for origin in ("https://a.example", "http://b.example:8080"):
            reply = await to.ask(post("/e", b"", f"Origin: {origin}"))
            assert reply.headers["access-control-allow-origin"] == origin
        for origin in ("http://a.example", "https://x.a.example", "null", "https://a.example.org"):
            reply = await to.ask(post("/e", b"", f"Origin: {origin}"))
            assert (
                reply.status,
                "access-control-allow-origin" in reply.headers,
                reply.headers["vary"],
            ) == (200, False, "Origin")
            reply = await to.ask(preflight(origin=origin))
            assert (reply.status, "access-control-allow-methods" in reply.headers) == (204, False)


async def test_options_without_origin() -> None:
    """Plain OPTIONS names the methods, for a path and for the server."""
    async with listening() as to:
        for target in ("/batch", "*"):
            reply = await to.ask(f"OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert (reply.status, reply.headers) == (204, {"allow": "POST, OPTIONS"})


def test_nothing_unsafe_is_echoed() -> None:
    """An origin or a list of headers that is not one is never echoed."""
    cors = Cors(("*",))
    for origin in (b"a\r\nSet-Cookie: x", b"a b", b"\xff", b"x" * 600, b""):
        assert b"Allow-Origin" not in cors.headers(origin)
    for names in (b"x\r\nSet-Cookie: y", b"a;b", b"\xff", b"x" * 5000, b""):
        assert b"Allow-Headers" not in cors.preflight(b"null", names)
    assert b"Access-Control-Allow-Origin: null\r\n" in cors.headers(b"null")
