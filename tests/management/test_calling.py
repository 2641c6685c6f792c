"""A call from beginning to end: what is sent, time limits, attempts, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forwarder.contract.endpoints import DELETE_DOMAIN, GET_DOMAIN, PAUSE_BATCH_EXPORT, UPDATE_DOMAIN
from forwarder.management import Client, InvalidCall
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, raw, refusal, said, talking, waited
from tests.support.clock import FakeClock
from tests.support.upstream import Fault, Upstream, failing
from tests.support.waiting import eventually

IDS = {"organization_id": ORGANIZATION, "id": DOMAIN}
UNAVAILABLE = said({"detail": "Down for maintenance."}, 503)


async def test_reading_goes_on_until_it_is_answered() -> None:
    """A GET is made again while the service is not well."""
    clock = FakeClock()
    async with talking(clock, UNAVAILABLE, said({}, 429), failing(Fault.CLOSE), said({"id": DOMAIN})) as (client, service):
        assert (await waited(client.domains.get(ORGANIZATION, DOMAIN), clock))["id"] == DOMAIN
    assert len(service.requests) == 4
    assert clock.pending == 0


async def test_reading_ends_after_four_attempts() -> None:
    """The last answer is told, and how often it was tried."""
    clock = FakeClock()
    async with talking(clock, *[UNAVAILABLE] * 5) as (client, service):
        error = await waited(refusal(client.domains.get(ORGANIZATION, DOMAIN)), clock)
    assert str(error) == "domains get: HTTP 503 service_unavailable: Down for maintenance. (4 attempts)"
    assert error.hint == "If it goes on, look at the service."
    assert not error.unsure
    assert len(service.requests) == 4


async def test_a_change_waits_when_it_came_too_early() -> None:
    """429 with Retry-After lets a change wait so long, and then it is made."""
    clock = FakeClock()
    async with talking(clock, said({}, 429, retry_after="7"), said({"id": DOMAIN}, 201)) as (client, service):
        task = asyncio.ensure_future(client.domains.create(ORGANIZATION, domain="example.com"))
        await eventually(lambda: clock.pending == 2)
        await clock.advance(6.9)
        assert len(service.requests) == 1
        await clock.advance(0.2)
        assert (await task)["id"] == DOMAIN
    assert [request.json for request in service.requests] == [{"domain": "example.com"}] * 2


async def test_a_wait_beyond_the_time_limit_is_left_to_the_caller() -> None:
    """Who is to come back after the time is over hears so at once."""
    async with talking(FakeClock(), said({"code": "throttled", "detail": "Slow down."}, 429, retry_after="31")) as (client, service):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert (error.status, error.type, error.code, error.retry_after) == (429, "throttled_error", "throttled", 31.0)
    assert error.hint == "Ask again in 31 s."
    assert len(service.requests) == 1


@pytest.mark.parametrize("changes", [False, True], ids=["reading", "a change"])
async def test_the_time_limit_bounds_a_call(changes: bool) -> None:
    """A service that doesn't answer in time is left; of a change it is said that it may have been done."""
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
    assert (error.status, error.type, error.code, error.unsure) == (None, "connection_error", "timeout", changes)
    assert ("It may have been done" in error.hint) == changes
    assert clock.pending == 0


async def test_the_time_limit_is_for_all_attempts_together() -> None:
    """Attempts and waits share the time; the error tells what was before."""
    clock = FakeClock()
    async with talking(clock, said({}, 503, retry_after="15"), failing(Fault.HANG), timeout=20) as (client, service):
        task = asyncio.ensure_future(refusal(client.domains.get(ORGANIZATION, DOMAIN)))
        await eventually(lambda: clock.pending == 2)
        await clock.advance(15)
        await service.until(lambda: len(service.requests) == 2)
        await clock.advance(5)
        assert str(await task) == "domains get: no whole answer within 20 s (before that: HTTP 503) (2 attempts)"


async def test_each_page_has_its_own_time_limit() -> None:
    """A list as a whole may take longer than one call."""
    clock = FakeClock()
    pages = [
        said({"count": 3, "next": f"http://h/?limit=1&offset={number}" if number < 3 else None, "results": [{"id": number}]})
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
    """A call that is cancelled drops its connection and its timers, and the client can be used on."""
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


@pytest.mark.parametrize("body", [{"domain": object()}, {"domain": float("nan")}, [set()]])
async def test_what_is_no_json_is_not_sent(body: Any) -> None:
    """A body that JSON can't hold is refused before anything is sent."""
    async with talking() as (client, service):
        with pytest.raises(InvalidCall, match=r"^domains update: what is given can't be sent as JSON: ") as caught:
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
    async with Upstream(lambda request: said({"id": request.path})) as service, Client(service.url, KEY) as client:
        found = await asyncio.gather(*(client.domains.get(ORGANIZATION, number) for number in range(200)))
    assert [each["id"].split("/")[-2] for each in found] == [str(number) for number in range(200)]


async def test_closing_ends_a_call_that_is_under_way() -> None:
    """A client that is closed in the middle of a call opens nothing anew: the call fails."""
    async with talking(FakeClock(), failing(Fault.HANG)) as (client, service):
        task = asyncio.ensure_future(refusal(client.domains.get(ORGANIZATION, DOMAIN)))
        await service.until(lambda: bool(service.requests))
        await client.close()
        assert (await task).type == "connection_error"
    assert len(service.requests) == 1
