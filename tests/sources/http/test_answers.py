"""What the intake's refusals become."""

from __future__ import annotations

import math

import pytest

from forwarder.core.errors import Backpressure, BufferFull, InvalidRequest, InvalidToken, RequestTooLarge
from forwarder.sources.http import answers
from tests.support.listening import listening, post


@pytest.mark.parametrize(
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
    """A refusal of the intake has its status and says why in plain text; the connection stays, the same request may come again."""
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
async def test_bug_in_the_intake(seen_before: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything else is a bug: 500, the traceback logged once, the connection closed; the listener goes on."""
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
