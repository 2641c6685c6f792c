"""Rejected requests are counted by path and reason, and the log says so without
growing with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from structlog.testing import capture_logs

from forwarder.core import errors
from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.protocol.answers import Rejection, of_error
from tests.support.answered import asked, get
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.listening import listening, post
from tests.support.origin import ok, origin, through

V1: Final = "/i/v1/analytics/events"
_START: Final = b"POST /e HTTP/1.1\r\nHost: a\r\n"
REQUESTS: Final[dict[str, tuple[bytes, str, Rejection]]] = {
    "no such path": (post("/api/x"), "other", Rejection.NOT_FOUND),
    "method": (get("/e"), "/e", Rejection.METHOD),
    "length": (post("/track", b"x" * 101), "/track", Rejection.TOO_LARGE),
    "two hosts": (_START + b"Host: a\r\n\r\n", "/e", Rejection.BAD_HTTP),
    "no HTTP": (b"\x16\x03\x01", "other", Rejection.BAD_HTTP),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "other", Rejection.BAD_HTTP),
    "level": (post("/e", b"{}", "Forwarder-Ack: twice"), "/e", Rejection.INVALID_ACK),
}
RAISED: Final[list[tuple[Exception, Rejection]]] = [
    (errors.InvalidRequest("a"), Rejection.UNDECODABLE),
    (errors.InvalidToken("a"), Rejection.INVALID_KEY),
    (errors.NoKey("a"), Rejection.NO_KEY),
    (errors.UnknownKey("a"), Rejection.UNKNOWN_KEY),
    (errors.RequestTooLarge("a"), Rejection.TOO_LARGE),
    (errors.UnsupportedMedia("a"), Rejection.UNSUPPORTED_MEDIA),
    (errors.BufferFull("a"), Rejection.BUFFER_FULL),
    (errors.DiskRefuses("a"), Rejection.DISK_REFUSES),
    (errors.LaneFull("a"), Rejection.LANE_FULL),
    (errors.TooManyLanes("a"), Rejection.TOO_MANY_LANES),
    (errors.DeadLettersFull("a"), Rejection.DEAD_LETTERS_FULL),
    (errors.NotAcknowledged("a"), Rejection.NOT_ACKNOWLEDGED),
    (errors.Draining("a"), Rejection.DRAINING),
    (errors.Backpressure("a"), Rejection.BUSY),
    (ZeroDivisionError("a"), Rejection.INTERNAL),
]


def raising(error: Exception) -> Callable[[object], Exception | None]:
    """What makes the intake raise."""
    return lambda _: error


@cases("name", REQUESTS)
async def test_by_the_listener(name: str) -> None:
    """What the listener rejects by itself has its path and reason."""
    request, path, reason = REQUESTS[name]
    async with listening(HttpPolicy(max_body=100)) as to:
        assert (await to.ask(request)).status >= 400
        assert to.listener.statistics().rejected == {(path, reason): 1}


@cases(("error", "reason"), RAISED, ids=[type(error).__name__ for error, _ in RAISED])
@cases("path", ["/batch", V1])
async def test_by_the_intake(error: Exception, reason: Rejection, path: str) -> None:
    """What the intake raises has its reason, in the v1 protocol too; also for a
    head that was seen before.
    """
    async with listening(bugs=int(reason is Rejection.INTERNAL)) as to:
        client = await to.connect()
        assert (await client.ask(post(path))).status == 200
        to.intake.refuse = raising(error)
        assert (await client.ask(post(path))).status >= 400
        statistics = to.listener.statistics()
        assert statistics.rejected == {(path, reason): 1}
        assert statistics.requests[(path, 200)] == 1


async def test_late() -> None:
    """A request that isn't acknowledged is counted when it is answered."""
    async with listening() as to:
        to.intake.later = lambda _: True
        client = await to.connect()
        await client.send(post())
        while not to.intake.waiters:
            await to.clock.advance(0)
        to.intake.acknowledge(error=errors.NotAcknowledged("late"))
        assert (await client.reply()).status == 503
        assert to.listener.statistics().rejected == {("/batch", Rejection.NOT_ACKNOWLEDGED): 1}


async def test_stalled_and_draining() -> None:
    """A body that doesn't come, and a request while the daemon ends."""
    async with listening() as to:
        client = await to.connect()
        await client.send(_START + b"Content-Length: 5\r\n\r\n", b"a")
        for _ in range(70):
            await to.clock.advance(1)
        assert (await client.reply()).status == 408
        waiting = await to.connect()
        await waiting.send(b"POST /batch")
        await to.clock.advance(0)
        to.listener.draining = True
        reply = await waiting.ask(b" HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        assert reply.status == 503
        assert to.listener.statistics().rejected == {
            ("/e", Rejection.STALLED): 1,
            ("/batch", Rejection.DRAINING): 1,
        }


async def test_passed_through() -> None:
    """A call that forwarder answers itself is counted by its path; what the upstream
    answers isn't.
    """
    async with origin(ok) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        assert (await asked(client, get("/flags"))).status == 200
        assert to.listener.statistics().rejected == {}
        await upstream.stop()
        assert (await asked(client, get("/flags"))).status == 503
        assert to.listener.statistics().rejected == {("/flags", Rejection.UPSTREAM): 1}


async def test_the_log() -> None:
    """The first of a path and reason is logged within a sweep, with the answer's words; the next
    ones together, a minute later.
    """
    async with listening() as to:
        to.intake.refuse = raising(errors.InvalidRequest("the body is empty"))
        with capture_logs() as logs:
            for rejected, seconds, lines in ((1, 2, 1), (3, 30, 1), (0, 60, 2), (0, 200, 2)):
                for _ in range(rejected):
                    assert (await to.ask(post())).status == 400
                for _ in range(seconds):
                    await to.clock.advance(1)
                assert len(logs) == lines
            first, second = [_said(line) for line in logs]
            assert first == ("warning", "/batch", "undecodable", 1, 1, "the body is empty")
            assert second == ("warning", "/batch", "undecodable", 3, 4, "the body is empty")
            assert (await to.ask(post("/nowhere"))).status == 404
            await to.clock.advance(1)
        assert [_said(line)[:4] for line in logs[2:]] == [("info", "other", "not_found", 1)]


def _said(line: object) -> tuple[object, ...]:
    assert isinstance(line, dict)
    assert line["event"] == "requests are rejected"
    return tuple(
        line[name] for name in ("log_level", "path", "reason", "rejected", "in_all", "why")
    )


def test_reasons_are_documented() -> None:
    """The table of docs/reference/http.md has each reason once, and no other."""
    section = text_of("http").partition("## Rejected requests")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \| (?:\d|v1)", section, re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(
        Rejection
    )


def test_every_error_has_a_reason() -> None:
    """Whatever the intake may raise has an answer that says why."""
    for error, reason in RAISED[:-1]:
        answer = of_error(error)
        assert answer is not None
        assert answer.reason is reason
        assert answer.in_json().reason is reason
