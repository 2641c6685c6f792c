"""`/v1/logs` as the listener speaks it: where it exists, in which encoding it answers, and what
its errors look like.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from forwarder.core.errors import (
    BufferFull,
    Draining,
    InvalidRequest,
    InvalidToken,
    NotAcknowledged,
    RequestTooLarge,
    UnsupportedMedia,
)
from forwarder.core.ports import Incoming, OtlpHead
from forwarder.sources.http import HttpPolicy
from tests.support.cases import cases
from tests.support.listening import ListenerRig, RawReply, listening, post
from tests.support.otlp import JSON, PROTOBUF

PATH = "/v1/logs"
POLICY = HttpPolicy(otlp=True, path_prefixes=("/ingest",))
BOTH = pytest.mark.parametrize("content_type", [JSON, PROTOBUF], ids=["json", "protobuf"])


@dataclass
class OtlpAnswers:
    """The results of a request: a text, in whichever encoding."""

    text: bytes
    retries: bool = False

    def body(self) -> bytes:
        return self.text


def answering_with(to: ListenerRig, text: bytes) -> None:
    """Let the intake give every request this result."""

    def give(incoming: Incoming) -> None:
        if incoming.head is not None:
            incoming.head.results = OtlpAnswers(text)

    to.intake.refuse = give


def logs(content_type: str, *headers: str, body: bytes = b"abc", path: str = PATH) -> bytes:
    """A request."""
    return post(path, body, f"Content-Type: {content_type}", *headers)


def message_of(reply: RawReply, content_type: str) -> str:
    """The message of a `google.rpc.Status` in this encoding."""
    assert reply.headers["content-type"] == content_type
    if content_type == JSON:
        status: dict[str, str] = json.loads(reply.body)
        assert set(status) == {"message"}
        return status["message"]
    assert reply.body[:2] == bytes([0x12, len(reply.body) - 2])
    return reply.body[2:].decode()


@cases("path", [PATH, PATH + "/"])
async def test_otlp_is_404_unless_configured(path: str) -> None:
    """Elsewhere it is a path like any other on which nothing is accepted, passed
    through neither.
    """
    async with listening() as to:
        reply = await to.ask(logs(JSON, path=path))
        assert (reply.status, reply.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert to.listener.statistics().requests == {("other", 404): 1}


@BOTH
@pytest.mark.parametrize(
    "path", [PATH, PATH + "/", PATH + "?x=1", "/ingest" + PATH, "//v1/logs", "http://host" + PATH]
)
async def test_the_answer_has_the_encoding_of_the_request(content_type: str, path: str) -> None:
    """Whatever else the type says; the intake gets to know it, and both encodings are one route."""
    async with listening(POLICY) as to:
        answering_with(to, b"result")
        client = await to.connect()
        for written in (content_type, content_type.upper() + " ; charset=utf-8"):
            reply = await client.ask(logs(written, "Authorization: Bearer phc_a", path=path))
            assert (reply.status, reply.body, reply.headers["content-type"]) == (
                200,
                b"result",
                content_type,
            )
        assert to.listener.statistics().requests == {(PATH, 200): 2}
    for incoming in to.intake.accepted:
        assert isinstance(incoming.head, OtlpHead)
        assert (incoming.head.authorization, incoming.head.protobuf) == (
            b"Bearer phc_a",
            content_type == PROTOBUF,
        )


@BOTH
async def test_an_empty_answer(content_type: str) -> None:
    """In protobuf it has no bytes at all."""
    async with listening(POLICY) as to:
        answering_with(to, b"")
        reply = await to.ask(logs(content_type))
        assert (reply.status, reply.headers) == (
            200,
            {"content-type": content_type, "content-length": "0"},
        )


@BOTH
async def test_a_late_answer(content_type: str) -> None:
    """One that waits for the acknowledgement is in the same encoding, an error as well."""
    async with listening(POLICY) as to:
        answering_with(to, b"result")
        to.intake.later = lambda _: True
        client = await to.connect()
        await client.send(logs(content_type) + logs(content_type))
        await to.until(lambda: len(to.intake.waiters) == 2)
        to.intake.acknowledge()
        to.intake.acknowledge(error=NotAcknowledged("not in time"))
        first = await client.reply()
        second = await client.reply()
        assert (first.status, first.body, first.headers["content-type"]) == (
            200,
            b"result",
            content_type,
        )
        assert (second.status, message_of(second, content_type)) == (503, "not in time")
        assert int(second.headers["retry-after"]) > 0


@BOTH
@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (InvalidRequest("broken"), 400, False),
        (InvalidToken("another key"), 401, False),
        (RequestTooLarge("too large"), 413, False),
        (UnsupportedMedia("unknown"), 415, False),
        (BufferFull("full", retry_after=3), 503, True),
        (Draining("shutting down", retry_after=2), 503, True),
    ],
)
async def test_errors_are_statuses(
    content_type: str, error: Exception, status: int, again: bool
) -> None:
    """Only 503 asks for the request again, and says when."""
    async with listening(POLICY) as to:
        to.intake.refuse = lambda _: error
        reply = await to.ask(logs(content_type))
        assert (reply.status, message_of(reply, content_type)) == (status, str(error))
        assert ("retry-after" in reply.headers) == again
        assert to.listener.statistics().requests == {(PATH, status): 1}
        assert sum(to.listener.statistics().rejected.values()) == 1


@BOTH
async def test_errors_of_the_listener(content_type: str) -> None:
    """What it rejects by itself is a status, too: a body over the limit, and
    everything while it drains.
    """
    async with listening(HttpPolicy(otlp=True, max_body=100)) as to:
        reply = await to.ask(logs(content_type, body=b"x" * 101))
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert "larger" in message_of(reply, content_type)
        to.listener.draining = True
        reply = await to.ask(logs(content_type))
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")
        assert "shutting down" in message_of(reply, content_type)


async def test_another_type_is_answered_in_json() -> None:
    """The intake rejects it; a person may read why."""
    async with listening(POLICY) as to:
        to.intake.refuse = lambda _: UnsupportedMedia("unsupported content type")
        for request in (logs("text/plain"), post(PATH, b"abc")):
            reply = await to.ask(request)
            assert (reply.status, message_of(reply, JSON)) == (415, "unsupported content type")


@cases("method", ["GET", "HEAD", "PUT"])
async def test_only_post(method: str) -> None:
    """Anything else is 405."""
    async with listening(POLICY) as to:
        client = await to.connect()
        reply = await client.ask(f"{method} {PATH} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (reply.status, reply.headers["allow"], reply.headers["content-type"]) == (
            405,
            "POST, OPTIONS",
            JSON,
        )
        assert to.intake.accepted == []


async def test_pages_may_send() -> None:
    """A preflight is answered as on the other paths, and answers say who may read them."""
    async with listening(POLICY) as to:
        answering_with(to, b"{}")
        client = await to.connect()
        asks = (
            "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: content-type"
        )
        reply = await client.ask(f"OPTIONS {PATH} HTTP/1.1\r\nHost: a\r\n{asks}\r\n\r\n".encode())
        assert reply.status == 204
        assert reply.headers["access-control-allow-headers"] == "content-type"
        reply = await client.ask(logs(JSON, "Origin: https://a.example"))
        assert (reply.status, reply.headers["access-control-expose-headers"]) == (
            200,
            "Retry-After",
        )


async def test_heads_of_it_are_not_remembered() -> None:
    """Each answer is made for its request, on one connection with others."""
    async with listening(POLICY) as to:
        client = await to.connect()
        for number in range(3):
            answering_with(to, b"%d" % number)
            assert (await client.ask(logs(PROTOBUF))).body == b"%d" % number
            answer = await client.ask(post("/batch/", b"{}", f"Content-Type: {PROTOBUF}"))
            assert answer.body == b'{"status":"Ok"}'
