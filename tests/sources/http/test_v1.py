"""The v1 protocol as the listener speaks it: which headers count, and answers that are made for
each request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from forwarder.core.errors import (
    BufferFull,
    InvalidRequest,
    InvalidToken,
    NotAcknowledged,
    RequestTooLarge,
    UnsupportedMedia,
)
from forwarder.core.ports import Incoming, V1Head
from forwarder.sources.http import HttpPolicy
from tests.support.cases import cases
from tests.support.listening import ListenerRig, RawReply, listening, post

PATH = "/i/v1/analytics/events"
AUTHORIZATION = "Authorization: Bearer phc_a"
REQUEST_ID = "PostHog-Request-Id: 0190a0a0-1111-7222-8333-444455556666"
ORIGIN = "Origin: https://a.example"


@dataclass
class Scripted:
    """The results of a request, as they are when they are asked for."""

    text: bytes
    retries: bool = False
    asked: int = 0

    def body(self) -> bytes:
        self.asked += 1
        return self.text


def answering_with(to: ListenerRig, results: Scripted) -> Scripted:
    """Let the intake give every request these results."""

    def give(incoming: Incoming) -> None:
        if incoming.head is not None:
            incoming.head.results = results

    to.intake.refuse = give
    return results


def v1(*headers: str, body: bytes = b"{}", path: str = PATH) -> bytes:
    """A request with a key."""
    return post(path, body, AUTHORIZATION, *headers)


def error_of(reply: RawReply) -> dict[str, str]:
    """An error as the SDKs read it."""
    assert reply.headers["content-type"] == "application/json"
    error: dict[str, str] = json.loads(reply.body)
    assert set(error) == {"error", "error_description"}
    return error


@cases("path", [PATH, PATH + "/", PATH + "?x=1", "http://host" + PATH])
async def test_the_intake_gets_the_relevant_headers(path: str) -> None:
    """Key, SDK and time of sending, on the path with and without its slash; what has no key is the
    intake's to refuse.
    """
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        client = await to.connect()
        head = ("POSTHOG-SDK-INFO: a/1", "PostHog-Request-Timestamp: now", "PostHog-Attempt: 1")
        assert (await client.ask(v1(*head, path=path))).status == 200
        assert (await client.ask(post(path))).status == 200
        assert (await client.ask(v1("Authorization: Bearer b", path=path))).status == 200
        assert to.listener.statistics().requests == {(PATH, 200): 3}
    full, empty, double = (incoming.head for incoming in to.intake.accepted)
    assert isinstance(full, V1Head)
    assert isinstance(empty, V1Head)
    assert isinstance(double, V1Head)
    assert (full.authorization, full.sdk_info, full.request_timestamp) == (
        b"Bearer phc_a",
        b"a/1",
        b"now",
    )
    assert (empty.authorization, empty.sdk_info, empty.request_timestamp) == (b"", b"", b"")
    assert double.authorization == b"Bearer phc_a, Bearer b"


async def test_other_paths_know_nothing_of_it() -> None:
    """There a key in the head makes no difference, and the head is remembered as ever."""
    async with listening() as to:
        client = await to.connect()
        for _ in range(2):
            reply = await client.ask(post("/batch/", b"{}", AUTHORIZATION, REQUEST_ID))
            assert (reply.status, reply.body) == (200, b'{"status":"Ok"}')
            assert "posthog-request-id" not in reply.headers
    assert [incoming.head for incoming in to.intake.accepted] == [None, None]


async def test_nothing_in_a_trailer_counts() -> None:
    """A key that comes behind the body is none."""
    request = (
        f"POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n"
        f"0\r\n{AUTHORIZATION}\r\n\r\n"
    )
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        assert (await to.ask(request.encode())).status == 200
    (incoming,) = to.intake.accepted
    assert incoming.head is not None
    assert incoming.head.authorization == b""


async def test_an_offer_of_another_protocol_keeps_the_key() -> None:
    """As Java's client makes it."""
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        reply = await to.ask(
            v1(
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AA",
                REQUEST_ID,
            )
        )
        assert (reply.status, reply.headers["posthog-request-id"]) == (
            200,
            REQUEST_ID.partition(": ")[2],
        )
    (incoming,) = to.intake.accepted
    assert incoming.head is not None
    assert incoming.head.authorization == b"Bearer phc_a"


async def test_each_answer_is_made_for_its_request() -> None:
    """JSON, with the request's id; also when the same head comes again."""
    async with listening() as to:
        client = await to.connect()
        for number in range(3):
            answering_with(to, Scripted(b'{"results":{"%d":1}}' % number))
            reply = await client.ask(v1(REQUEST_ID))
            assert (reply.status, reply.body) == (200, b'{"results":{"%d":1}}' % number)
            assert reply.headers == {
                "content-type": "application/json",
                "content-length": str(len(reply.body)),
                "posthog-request-id": REQUEST_ID.partition(": ")[2],
            }


@cases("late", [False, True])
async def test_events_that_have_to_come_again(late: bool) -> None:
    """The answer says when, and its body is made when it is given: not before the
    events were acknowledged.
    """
    async with listening() as to:
        results = answering_with(to, Scripted(b"early"))
        to.intake.later = lambda _: late
        client = await to.connect()
        for _ in range(2):
            results.text = b"early"
            results.retries = False
            asked = results.asked
            await client.send(v1(ORIGIN))
            if late:
                await to.until(lambda: len(to.intake.waiters) == 1)
                assert results.asked == asked
                results.text = b"final"
                results.retries = True
                to.intake.acknowledge()
            reply = await client.reply()
            assert reply.body == (b"final" if late else b"early")
            assert reply.headers.get("retry-after") == ("1" if late else None)
            assert reply.headers["access-control-allow-origin"] == "https://a.example"
            assert results.asked == asked + 1


async def test_answers_keep_their_order() -> None:
    """Late results, others that are known at once, errors and classic answers, in
    the order of the requests.
    """
    async with listening() as to:
        answering_with(to, Scripted(b"results"))
        to.intake.later = lambda incoming: incoming.body.startswith(b"late")
        client = await to.connect()
        await client.send(
            v1(body=b"late")
            + v1()
            + post(PATH).replace(b"POST", b"PUT")
            + post()
            + v1(body=b"late")
        )
        await to.until(lambda: len(to.intake.waiters) == 2)
        to.intake.acknowledge(2)
        replies = [await client.reply() for _ in range(5)]
        assert [(reply.status, reply.body[:9]) for reply in replies] == [
            (200, b"results"),
            (200, b"results"),
            (405, b'{"error":'),
            (200, b'{"status"'),
            (200, b"results"),
        ]


@cases(
    ("error", "status", "name"),
    [
        (InvalidRequest("no"), 400, "invalid_request"),
        (InvalidToken("no"), 401, "invalid_api_token"),
        (RequestTooLarge("no"), 413, "payload_too_large"),
        (UnsupportedMedia("no"), 415, "unsupported_media_type"),
        (BufferFull("no", retry_after=2.0), 503, "service_unavailable"),
    ],
)
async def test_errors_are_json(error: Exception, status: int, name: str) -> None:
    """With the statuses of all other paths, and what they say beside."""
    async with listening() as to:
        to.intake.refuse = lambda _: error
        reply = await to.ask(v1(REQUEST_ID, ORIGIN))
        assert reply.status == status
        assert error_of(reply) == {"error": name, "error_description": "no"}
        assert reply.headers.get("retry-after") == ("2" if status == 503 else None)
        assert reply.headers["posthog-request-id"] == REQUEST_ID.partition(": ")[2]
        assert reply.headers["access-control-allow-origin"] == "https://a.example"


async def test_late_errors_are_json() -> None:
    """Not acknowledged in time, noticed by the intake or noticed here."""
    async with listening() as to:
        answering_with(to, Scripted(b"results"))
        to.intake.later = lambda _: True
        client = await to.connect()
        await client.send(v1())
        await to.until(lambda: len(to.intake.waiters) == 1)
        to.intake.acknowledge(error=NotAcknowledged("too slow", retry_after=1.5))
        reply = await client.reply()
        assert (
            reply.status,
            reply.headers["retry-after"],
            error_of(reply)["error_description"],
        ) == (503, "2", "too slow")
        await client.send(v1())
        await to.until(lambda: len(to.intake.waiters) == 1)
        await to.pass_time(40)
        reply = await client.reply()
        assert (reply.status, error_of(reply)["error"]) == (503, "service_unavailable")


async def test_a_bug_is_json_too() -> None:
    """And ends the connection, as ever."""
    async with listening(bugs=1) as to:
        to.intake.refuse = lambda _: ValueError("a bug")
        client = await to.connect()
        reply = await client.ask(v1())
        assert (reply.status, error_of(reply)["error"], reply.headers["connection"]) == (
            500,
            "internal_server_error",
            "close",
        )
        assert await client.ended() == b""


async def test_refused_before_the_body_is_complete() -> None:
    """A body that is too large by its length, and other methods, with `Allow`."""
    async with listening(HttpPolicy(max_body=100)) as to:
        reply = await to.ask(v1(body=b"x" * 101))
        assert (reply.status, error_of(reply)["error"]) == (413, "payload_too_large")
        for method in (b"GET", b"PUT"):
            reply = await to.ask(v1().replace(b"POST", method))
            assert (reply.status, error_of(reply)["error"], reply.headers["allow"]) == (
                405,
                "method_not_allowed",
                "POST, OPTIONS",
            )


async def test_draining() -> None:
    """A listener that ends says so in JSON."""
    async with listening() as to:
        client = await to.connect()
        to.listener.draining = True
        reply = await client.ask(v1(body=b""))
        assert (reply.status, error_of(reply)["error"]) == (503, "service_unavailable")


async def test_browsers() -> None:
    """A preflight allows the protocol's headers; a page may read when to come again, and which
    request was answered.
    """
    wanted = (
        "authorization,content-encoding,content-type,posthog-attempt,posthog-request-id,postho"
        "g-request-timestamp,posthog-sdk-info"
    )
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        reply = await to.ask(
            f"OPTIONS {PATH} HTTP/1.1\r\nHost: a\r\n{ORIGIN}\r\nAccess-Control-Request-Method: "
            "POST\r\n"
            f"Access-Control-Request-Headers: {wanted}\r\n\r\n".encode()
        )
        assert (reply.status, reply.headers["access-control-allow-headers"]) == (204, wanted)
        assert reply.headers["access-control-allow-methods"] == "POST, OPTIONS"
        reply = await to.ask(v1(ORIGIN))
        assert reply.headers["access-control-expose-headers"] == "Retry-After, PostHog-Request-Id"


@cases("value", ["a b", "ü", "x" * 129, '"', "a, b", ""])
async def test_ids_that_are_not_echoed(value: str) -> None:
    """What could be anything but an id doesn't come back."""
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        reply = await to.ask(v1(f"PostHog-Request-Id: {value}"))
        assert (reply.status, reply.headers.get("posthog-request-id")) == (200, None)


async def test_old_http() -> None:
    """HTTP/1.0 with a connection that stays open."""
    async with listening() as to:
        answering_with(to, Scripted(b"{}"))
        reply = await to.ask(
            post(PATH, b"{}", AUTHORIZATION, REQUEST_ID, "Connection: keep-alive", version="1.0")
        )
        assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")
        assert reply.headers["posthog-request-id"] == REQUEST_ID.partition(": ")[2]
