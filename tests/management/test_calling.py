"""A call from beginning to end: what is sent, time limits, attempts, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import (
    DELETE_DOMAIN,
    GET_DOMAIN,
    LIST_DOMAINS,
    PAUSE_BATCH_EXPORT,
    UPDATE_DOMAIN,
    Method,
)
from forwarder.core.clock import Backoff
from forwarder.management import Client, InvalidCall
from forwarder.management.calling import ATTEMPTS, wait_before_next
from forwarder.management.transport import BROKEN, UNTRUSTED, ConnectionFailure, HttpReply
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, raw, refusal, said, talking, waited
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.upstream import Answer, Fault, Upstream, failing
from tests.support.waiting import eventually

IDS = {"organization_id": ORGANIZATION, "id": DOMAIN}
UNAVAILABLE = said({"detail": "Down for maintenance."}, 503)


async def test_reads_are_retried_until_they_are_answered() -> None:
    """A GET is made again while the service is not well."""
    clock = FakeClock()
    async with talking(
        clock, UNAVAILABLE, said({}, 429), failing(Fault.CLOSE), said({"id": DOMAIN})
    ) as (client, service):
        assert (await waited(client.domains.get(ORGANIZATION, DOMAIN), clock))["id"] == DOMAIN
    assert len(service.requests) == 4
    assert clock.pending == 0


async def test_reading_ends_after_four_attempts() -> None:
    """The last answer is reported, and how often it was tried."""
    clock = FakeClock()
    async with talking(clock, *[UNAVAILABLE] * 5) as (client, service):
        error = await waited(refusal(client.domains.get(ORGANIZATION, DOMAIN)), clock)
    assert (
        str(error)
        == "domains get: HTTP 503 service_unavailable: Down for maintenance. (4 attempts)"
    )
    assert error.hint == "If it persists, check the service."
    assert not error.unsure
    assert len(service.requests) == 4


async def test_a_change_waits_when_it_came_too_early() -> None:
    """429 with Retry-After lets a change wait so long, and then it is made."""
    clock = FakeClock()
    async with talking(clock, said({}, 429, retry_after="7"), said({"id": DOMAIN}, 201)) as (
        client,
        service,
    ):
        task = asyncio.ensure_future(client.domains.create(ORGANIZATION, domain="example.com"))
        await eventually(lambda: clock.pending == 2)
        await clock.advance(6.9)
        assert len(service.requests) == 1
        await clock.advance(0.2)
        assert (await task)["id"] == DOMAIN
    assert [request.json for request in service.requests] == [{"domain": "example.com"}] * 2


async def test_a_wait_beyond_the_time_limit_is_left_to_the_caller() -> None:
    """Who is to come back after the time is over hears so at once."""
    async with talking(
        FakeClock(), said({"code": "throttled", "detail": "Slow down."}, 429, retry_after="31")
    ) as (client, service):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert (error.status, error.type, error.code, error.retry_after) == (
        429,
        "throttled_error",
        "throttled",
        31.0,
    )
    assert error.hint == "Retry in 31 s."
    assert len(service.requests) == 1


@pytest.mark.parametrize("changes", [False, True], ids=["reading", "a change"])
async def test_the_time_limit_bounds_a_call(changes: bool) -> None:
    """A service that doesn't answer in time is left; of a change it is said
    that it may have been done.
    """
    clock = FakeClock()
    async with talking(clock, failing(Fault.HANG), timeout=20) as (client, service):
        work = client.call(DELETE_DOMAIN if changes else GET_DOMAIN, IDS)
        task = asyncio.ensure_future(refusal(work))
        await service.until(lambda: bool(service.requests))
        await clock.advance(19.9)
        assert not task.done()
        await clock.advance(0.2)
        error = await task
    verb = "delete" if changes else "get"
    assert str(error) == f"domains {verb}: no whole answer within 20 s"
    assert (error.status, error.type, error.code, error.unsure) == (
        None,
        "connection_error",
        "timeout",
        changes,
    )
    assert ("It may have been done" in error.hint) == changes
    assert clock.pending == 0


async def test_the_time_limit_is_for_all_attempts_together() -> None:
    """Attempts and waits share the time; the error tells what was before."""
    clock = FakeClock()
    async with talking(clock, said({}, 503, retry_after="15"), failing(Fault.HANG), timeout=20) as (
        client,
        service,
    ):
        task = asyncio.ensure_future(refusal(client.domains.get(ORGANIZATION, DOMAIN)))
        await eventually(lambda: clock.pending == 2)
        await clock.advance(15)
        await service.until(lambda: len(service.requests) == 2)
        await clock.advance(5)
        assert (
            str(await task)
            == "domains get: no whole answer within 20 s (before that: HTTP 503) (2 attempts)"
        )


async def test_each_page_has_its_own_time_limit() -> None:
    """A list as a whole may take longer than one call."""
    clock = FakeClock()
    pages = [
        said(
            {
                "count": 3,
                "next": f"http://h/?limit=1&offset={number}" if number < 3 else None,
                "results": [{"id": number}],
            }
        )
        for number in (1, 2, 3)
    ]
    async with talking(clock, *pages, timeout=5) as (client, _):
        seen: list[object] = []
        async for domain in client.domains.list(ORGANIZATION):
            seen.append(domain["id"])
            await clock.advance(4)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("waiting", [False, True], ids=["in a request", "between attempts"])
async def test_cancellation_leaves_nothing_behind(waiting: bool) -> None:
    """A call that is cancelled drops its connection and its timers, and the client can
    be used on.
    """
    clock = FakeClock()
    answer = said({}, 503, retry_after="9") if waiting else failing(Fault.HANG)
    async with talking(clock, answer, said({"id": DOMAIN})) as (client, service):
        task = asyncio.ensure_future(client.domains.get(ORGANIZATION, DOMAIN))
        await service.until(lambda: bool(service.requests))
        if waiting:
            await eventually(lambda: clock.pending == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.pending == 0
        assert (await client.domains.get(ORGANIZATION, DOMAIN))["id"] == DOMAIN


async def test_a_closed_client_makes_no_calls() -> None:
    """After its end a client refuses, and opens nothing; also one that was waiting to try again."""
    clock = FakeClock()
    async with talking(clock, said({}, 503, retry_after="9")) as (client, service):
        task = asyncio.ensure_future(refusal(client.domains.get(ORGANIZATION, DOMAIN)))
        await eventually(lambda: clock.pending == 2)
        await client.close()
        await clock.advance(10)
        assert (await task).status == 503
        with pytest.raises(InvalidCall, match="domains get: the client is closed"):
            await client.domains.get(ORGANIZATION, DOMAIN)
        await client.close()
    assert len(service.requests) == 1


@cases("body", [{"domain": object()}, {"domain": float("nan")}, [set()]])
async def test_what_is_no_json_is_not_sent(body: Any) -> None:
    """A body that JSON can't hold is refused before anything is sent."""
    async with talking() as (client, service):
        with pytest.raises(
            InvalidCall, match=r"^domains update: what is given can't be sent as JSON: "
        ) as caught:
            await client.call(UPDATE_DOMAIN, IDS, body)
    assert caught.value.__context__ is None
    assert service.requests == []


async def test_fields_where_there_are_none_are_refused() -> None:
    """An endpoint that takes no body gets none."""
    async with talking() as (client, _):
        with pytest.raises(InvalidCall, match="domains get: it takes no fields"):
            await client.call(GET_DOMAIN, IDS, {})


async def test_no_fields_are_an_empty_object() -> None:
    """An endpoint that takes a body gets one, always."""
    async with talking(None, raw(b"", 200, "")) as (client, service):
        assert await client.call(PAUSE_BATCH_EXPORT, {"project_id": 1, "id": DOMAIN}) is None
    assert service.requests[0].json == {}


async def test_many_calls_at_once() -> None:
    """One client makes many calls at the same time."""
    async with (
        Upstream(lambda request: said({"id": request.path})) as service,
        Client(service.url, KEY) as client,
    ):
        domains = await asyncio.gather(
            *(client.domains.get(ORGANIZATION, number) for number in range(200))
        )
    assert [domain["id"].split("/")[-2] for domain in domains] == [
        str(number) for number in range(200)
    ]


async def test_closing_ends_a_call_in_flight() -> None:
    """A client that is closed in the middle of a call opens nothing anew: the call fails."""
    async with talking(FakeClock(), failing(Fault.HANG)) as (client, service):
        task = asyncio.ensure_future(refusal(client.domains.get(ORGANIZATION, DOMAIN)))
        await service.until(lambda: bool(service.requests))
        await client.close()
        assert (await task).type == "connection_error"
    assert len(service.requests) == 1


@cases(
    ("answer", "value"),
    [
        (raw(b"", 200, ""), None),
        (raw(b"", 200, "text/html"), None),
        (raw(b"", 202, ""), None),
        (said({"paused": True}), {"paused": True}),
        (said({"paused": True}, 201), {"paused": True}),
        (said([{"id": 1}], 201), [{"id": 1}]),
        (said(None), None),
        (said("ok"), None),
        (raw(b"ok", 200, "text/plain"), None),
    ],
)
async def test_where_the_contract_has_no_body_there_may_be_one(
    answer: Answer, value: object
) -> None:
    """What the service answers is returned, if it is an object or a list;
    anything else counts as nothing.
    """
    async with talking(None, answer) as (client, _):
        assert await client.call(PAUSE_BATCH_EXPORT, {"project_id": 1, "id": DOMAIN}) == value


@cases("status", [200, 201, 202, 203])
async def test_any_status_of_success_is_one(status: int) -> None:
    """Service and contract may differ in the number."""
    async with talking(None, said({"id": DOMAIN}, status)) as (client, _):
        assert (await client.domains.create(ORGANIZATION, domain="example.com"))["id"] == DOMAIN


@cases(
    ("answer", "words"),
    [
        (raw(b"", 200, ""), "the answer is empty, where a resource is due"),
        (raw(b"", 204, ""), "the answer is empty, where a resource is due"),
        (said([1]), "the answer isn't a resource: it begins '[1]'"),
        (raw(b'{"id":'), "the answer isn't a resource: it begins '{\"id\":'"),
        (raw(b'{"id":NaN}'), "the answer isn't a resource"),
        (raw(b"\xff\xfe", 200), "the answer isn't a resource"),
        (raw(b"[" * 100_000), "the answer isn't a resource"),
        (
            raw(b"<html><title>Welcome to the hotel</title>", 200, "text/html"),
            "a web page (Welcome to the hotel) was answered, not a resource",
        ),
        (
            raw(b"<!doctype html>", 200, "application/json"),
            "a web page was answered, not a resource",
        ),
    ],
)
async def test_what_is_no_resource_is_an_error_that_says_so(answer: Answer, words: str) -> None:
    """Where a resource is due, anything else is an error; a web page is called one."""
    async with talking(None, answer) as (client, service):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert words in str(error)
    assert str(error).startswith(f"domains get: HTTP {answer.status}, but ")
    assert (error.status, error.type, error.code, error.unsure) == (
        answer.status,
        "answer_error",
        "unreadable",
        False,
    )
    assert "`url`" in error.hint
    assert len(service.requests) == 1


@cases(
    "body",
    [
        [],
        {},
        {"count": 1, "results": None},
        {"count": 1, "results": [1]},
        {"count": "1", "results": []},
        {"count": True, "results": []},
        {"count": 1, "results": [], "next": 7},
    ],
)
async def test_what_is_no_page_is_an_error(body: Any) -> None:
    """A list is answered as pages, and as nothing else."""
    async with talking(None, said(body)) as (client, _):
        error = await refusal(client.call(LIST_DOMAINS, {"organization_id": ORGANIZATION}))
    assert "the answer isn't a page of a list" in str(error)


async def test_what_a_newer_service_adds_is_kept() -> None:
    """Fields that the contract doesn't know come through, in resources and in pages; a page begins
    as every page.
    """
    page = {"results": [{"id": 1, "new": [{}]}], "newer": 7, "count": 1}
    async with talking(None, said({"id": DOMAIN, "new": 7}), said(page)) as (client, _):
        assert await client.call(GET_DOMAIN, IDS) == {"id": DOMAIN, "new": 7}
        answered = await client.call(LIST_DOMAINS, {"organization_id": ORGANIZATION})
    assert answered == {**page, "next": None, "previous": None}
    assert [*answered] == ["count", "next", "previous", "results", "newer"]


async def test_a_web_page_is_no_success_of_a_change() -> None:
    """What a captive portal answers to a change isn't taken for success."""
    async with talking(None, raw(b"<html><title>Log in</title>", 200, "text/html")) as (client, _):
        error = await refusal(client.domains.delete(ORGANIZATION, DOMAIN))
    assert "a web page (Log in) was answered" in str(error)
    assert error.unsure


LONGEST = Backoff(0.5, 8.0, lambda _, bound: bound)
WRITES = [Method.POST, Method.PATCH, Method.DELETE]
LOST = ConnectionFailure(BROKEN, "lost", "", sent=True)
REFUSED = ConnectionFailure(BROKEN, "not there", "", sent=False)


def wait(
    method: Method, outcome: HttpReply | ConnectionFailure, attempt: int = 1, left: float = 30.0
) -> float | None:
    """The wait, if it is the longest possible."""
    return wait_before_next(method, outcome, attempt, left, LONGEST)


@cases(
    "outcome",
    [
        LOST,
        REFUSED,
        HttpReply(408),
        HttpReply(429),
        HttpReply(500),
        HttpReply(502),
        HttpReply(503),
        HttpReply(504),
    ],
)
def test_reading_is_tried_again(outcome: HttpReply | ConnectionFailure) -> None:
    """A GET that failed for a reason that may pass is made again, after waits that double, four
    times in all.
    """
    assert [wait(Method.GET, outcome, attempt) for attempt in range(1, ATTEMPTS + 1)] == [
        0.5,
        1.0,
        2.0,
        None,
    ]


@cases(
    "outcome",
    [
        HttpReply(200),
        HttpReply(302),
        HttpReply(400),
        HttpReply(401),
        HttpReply(403),
        HttpReply(404),
        HttpReply(409),
    ],
)
def test_an_answer_is_an_answer(outcome: HttpReply) -> None:
    """What another attempt wouldn't change isn't tried again."""
    assert wait(Method.GET, outcome) is None


def test_a_certificate_that_is_not_trusted_will_not_be() -> None:
    """Failures that don't pass end the call at once."""
    assert wait(Method.GET, ConnectionFailure(UNTRUSTED, "", "", sent=False, again=False)) is None


@cases("method", WRITES)
@cases(
    "outcome",
    [
        LOST,
        REFUSED,
        HttpReply(408),
        HttpReply(429),
        HttpReply(500),
        HttpReply(503, retry_after=1.0),
    ],
)
def test_writing_is_not_tried_again(method: Method, outcome: HttpReply | ConnectionFailure) -> None:
    """What may have been done isn't done again."""
    assert wait(method, outcome) is None


@cases("method", WRITES)
def test_writing_is_tried_again_when_the_service_says_when(method: Method) -> None:
    """429 with Retry-After means that it wasn't done."""
    assert wait(method, HttpReply(429, retry_after=3.0)) == 3.0


def test_the_service_is_not_asked_before_it_wants_to_be() -> None:
    """A wait that the service asks for is kept to; one that is longer than the time that is left
    ends the call.
    """
    assert wait(Method.GET, HttpReply(503, retry_after=12.0), left=13.0) == 12.0
    assert wait(Method.GET, HttpReply(503, retry_after=12.0), left=12.0) is None


@settings(deadline=None)
@given(
    st.sampled_from(list(Method)),
    st.builds(HttpReply, st.integers(100, 599), retry_after=st.none() | st.floats(0, 1e6))
    | st.just(LOST),
    st.integers(1, 10),
    st.floats(-1, 100),
)
def test_a_wait_always_fits(
    method: Method, outcome: HttpReply | ConnectionFailure, attempt: int, left: float
) -> None:
    """No wait is negative, or takes all the time that is left; and there are never
    more than four attempts.
    """
    seconds = wait_before_next(method, outcome, attempt, left, Backoff(0.5, 8.0))
    assert seconds is None or (0 <= seconds < left and attempt < ATTEMPTS)
