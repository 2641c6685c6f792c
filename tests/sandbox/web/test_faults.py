"""Faults that tests set over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from forwarder.sandbox.web.faults import DEFAULT_PATHS, FINISHED, MAX_FAULTS, Faults, FaultSpec
from tests.sandbox.client import (
    KEY,
    UUID,
    SandboxClient,
    SandboxReply,
    batch,
    event,
    recorded,
    talking,
)
from tests.support.cases import cases
from tests.support.clock import FakeClock

FAULTS = "/sandbox/faults"


async def fail(client: SandboxClient, *faults: dict[str, Any]) -> Any:
    """Set faults."""
    answer = await client.post(FAULTS, faults[0] if len(faults) == 1 else list(faults))
    assert answer.status == 201, answer.text
    return answer.json


async def send(client: SandboxClient, path: str = "/batch/") -> SandboxReply:
    """Send one event, the same each time."""
    return await client.post(path, batch(event(uuid=UUID)))


async def test_the_next_requests_fail() -> None:
    """As many as asked for, with status, Retry-After and body; then the endpoint works again. Each
    is recorded with its status.
    """
    async with talking() as client:
        await fail(client, {"status": 503, "times": 2, "retry_after": 7})
        answers = [await send(client) for _ in range(3)]
        requests = await client.sandbox.requests()
        assert (await client.sandbox.summary()).events == 1
    assert [answer.status for answer in answers] == [503, 503, 200]
    assert [answer.headers.get("Retry-After") for answer in answers] == ["7", "7", None]
    assert [(request.status, request.arrivals, request.error) for request in requests] == [
        (503, 0, "a fault: 503"),
        (503, 0, "a fault: 503"),
        (200, 1, None),
    ]
    assert requests[0].size > 0


async def test_faults_apply_in_order() -> None:
    """One a request; what is left and how often each was applied is listed, and afterwards too."""
    async with talking() as client:
        await fail(client, {"status": 500}, {"status": 429, "times": 2, "body": {"detail": "slow"}})
        listed = await client.get(FAULTS)
        assert [
            (fault["id"], fault["status"], fault["left"], fault["applied"])
            for fault in listed["results"]
        ] == [
            (1, 500, 1, 0),
            (2, 429, 2, 0),
        ]
        answers = [await send(client) for _ in range(2)]
        assert [(answer.status, answer.text) for answer in answers][1] == (
            429,
            '{"detail": "slow"}',
        )
        listed = await client.get(FAULTS)
        assert [(fault["id"], fault["left"], fault["applied"]) for fault in listed["results"]] == [
            (2, 1, 1)
        ]
        assert [(fault["id"], fault["left"], fault["applied"]) for fault in listed["finished"]] == [
            (1, 0, 1)
        ]
        assert (await send(client)).status == 429
        assert (await send(client)).status == 200
        assert (await client.get(FAULTS))["count"] == 0


@cases("path", [f"{path}{slash}" for path in DEFAULT_PATHS for slash in ("", "/")])
async def test_by_default_each_endpoint_of_events_fails(path: str) -> None:
    """Whatever is sent to it."""
    async with talking() as client:
        await fail(client, {"status": 502})
        assert (await send(client, path)).status == 502


async def test_other_endpoints_work_unless_they_are_named() -> None:
    """Flags keep working while events fail, and the reverse; a star stands for the rest of
    a path, or for all.
    """
    async with talking() as client:
        decide = {"api_key": KEY, "distinct_id": "ann"}
        await fail(client, {"status": 503})
        assert (await client.post("/decide/?v=3", decide)).status == 200
        assert (await send(client)).status == 503
        await fail(client, {"status": 503, "path": ["/decide", "/flags/"], "times": 2})
        assert (await send(client)).status == 200
        assert [
            (await client.post(path, decide)).status
            for path in ("/decide/?v=3", "/flags?v=2", "/flags?v=2")
        ] == [503, 503, 200]
        await fail(client, {"status": 418, "path": "/api/*"})
        assert (await client.ask("GET", "/api/organizations/")).status == 418
        await fail(client, {"status": 418, "path": "*"})
        assert [
            (await client.ask("GET", path)).status
            for path in ("/", "/livez", "/sandbox/events", "/openapi.json")
        ] == [200] * 4
        assert (await send(client)).status == 418
        requests = await client.sandbox.requests()
        assert [(request.path, request.status) for request in requests[-2:]] == [
            ("/api/organizations/", 418),
            ("/batch/", 418),
        ]


async def test_an_answer_can_be_lost() -> None:
    """With `after` the events are stored and the sender doesn't learn it: what
    it repeats is a duplicate.
    """
    async with talking() as client:
        await fail(client, {"status": 504, "when": "after"})
        assert [(await send(client)).status for _ in range(2)] == [504, 200]
        summary = await client.sandbox.summary()
        requests = await client.sandbox.requests()
    assert (summary.events, summary.duplicates) == (1, 1)
    assert [
        (request.status, request.arrivals, request.error, request.api_key) for request in requests
    ] == [
        (504, 1, "a fault: 504, instead of 200", KEY),
        (200, 1, None, KEY),
    ]


async def test_the_answer_of_the_management_api_can_be_lost_too() -> None:
    """It is recorded then, as others of it aren't."""
    async with talking() as client:
        await fail(client, {"status": 502, "when": "after", "path": "/api/organizations"})
        assert [(await client.ask("GET", "/api/organizations/")).status for _ in range(2)] == [
            502,
            404,
        ]
        assert [request.status for request in await client.sandbox.requests()] == [502]


@pytest.mark.parametrize(("when", "events"), [("before", 0), ("after", 1)])
async def test_a_connection_is_reset(when: str, events: int) -> None:
    """The client gets no answer; the request is recorded with the status 0."""
    async with talking() as client:
        await fail(client, {"reset": True, "when": when})
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)) as error:
            await send(client)
        assert isinstance(error.value, ConnectionResetError) or "reset" in str(error.value).lower()
        [request] = await recorded(client.sandbox)
        assert (request.status, request.arrivals, (await client.sandbox.summary()).events) == (
            0,
            events,
            events,
        )
        assert (await send(client)).status == 200


@pytest.mark.parametrize(("when", "events"), [("before", 0), ("after", 1)])
async def test_an_answer_comes_late(when: str, events: int) -> None:
    """Before or after the endpoint has done its work; the answer is its own. The end of the
    sandbox ends the delay.
    """
    async with talking() as client:
        await fail(client, {"delay": 40, "when": when})
        sent = asyncio.create_task(send(client))
        if events:
            await recorded(client.sandbox)
        else:
            while not (await client.get(FAULTS))["finished"]:
                continue
        assert (await client.sandbox.summary()).events == events
        assert not sent.done()
        await client.sandbox.__aexit__(None, None, None)
        assert (await sent).status == 200


async def test_a_short_delay() -> None:
    """The endpoint's own answer follows; with a status the failure does."""
    async with talking() as client:
        await fail(client, {"delay": 0.02, "times": 1}, {"delay": 0.02, "status": 500})
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert [(await send(client)).status for _ in range(2)] == [200, 500]
        assert loop.time() - began >= 0.04


async def test_they_are_removed() -> None:
    """All of them, applied ones included."""
    async with talking() as client:
        await fail(client, {"status": 503, "times": 5})
        await send(client)
        assert (await client.ask("DELETE", FAULTS)).status == 204
        assert await client.get(FAULTS) == {"count": 0, "results": [], "finished": []}
        assert (await send(client)).status == 200


async def test_browsers_see_the_failure() -> None:
    """A preflight request takes no fault, and the answer has the headers
    without which a page sees none.
    """
    async with talking() as client:
        await fail(client, {"status": 503})
        headers = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
        assert (await client.ask("OPTIONS", "/batch/", None, headers)).status == 200
        answer = await client.ask("POST", "/batch/", b"{}", headers)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (
            503,
            "https://shop.example",
        )


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_pages_of_other_sites_change_nothing(method: str) -> None:
    """As with every list that the sandbox shows."""
    async with talking() as client:
        await fail(client, {"status": 503})
        answer = await client.ask(
            method, FAULTS, b'{"status": 500}', {"Origin": "https://evil.example"}
        )
        assert answer.status == 403
        assert [fault["status"] for fault in (await client.get(FAULTS))["results"]] == [503]


@cases(
    ("body", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a fault"),
        ("[3]", "not a fault"),
        ("{}", "neither status nor reset nor delay"),
        ('{"times": 2}', "neither status nor reset nor delay"),
        ('{"reset": false}', "neither status nor reset nor delay"),
        ('{"status": 503, "reset": true}', "exclude each other"),
        ('{"reset": true, "body": "x"}', "belong to a status"),
        ('{"status": 99}', "status: "),
        ('{"status": 600}', "status: "),
        ('{"status": "down"}', "status: "),
        ('{"delay": -1}', "delay: "),
        ('{"delay": NaN}', "delay: "),
        ('{"delay": 1, "seconds": 0}', "seconds: "),
        ('{"status": 503, "times": 0}', "times: "),
        ('{"status": 503, "when": "later"}', "when: "),
        ('{"status": 503, "retry_after": "a\\nb"}', "retry_after: "),
        ('{"status": 503, "path": "decide"}', "path"),
        ('{"status": 503, "path": []}', "path"),
        ('{"status": 503, "path": "/nowhere"}', "does not serve '/nowhere'"),
        ('{"status": 503, "path": "/sandbox/events"}', "own lists"),
        ('{"stauts": 503}', "there is no 'stauts', did you mean status. A fault has"),
        ('{"status": 503, "body": "\\ud800"}', "not JSON"),
        ('[{"status": 503}, {"status": 1}]', "status: "),
    ],
)
async def test_an_invalid_fault_is_400(body: str, words: str) -> None:
    """400 with what is wrong and what a fault may have; none of a list is set."""
    async with talking() as client:
        answer = await client.post(FAULTS, body.encode())
        assert answer.status == 400
        assert words in answer.text
        assert "retry_after" in answer.text or "does not serve" in answer.text
        assert (await client.get(FAULTS))["count"] == 0


async def test_there_are_not_too_many() -> None:
    """A list that is too long, or one more than there may be, is an error."""
    async with talking() as client:
        await fail(client, *[{"status": 503}] * MAX_FAULTS)
        assert (await client.post(FAULTS, {"status": 503})).status == 400
        assert (await client.post(FAULTS, b" " * 1_000_000)).status == 413


async def test_for_a_while() -> None:
    """A fault with seconds lasts from when it was added, for any number of requests, or for
    `times` of them.
    """
    clock = FakeClock()
    faults = Faults(clock.monotonic)
    faults.add([FaultSpec(status=503, seconds=30), FaultSpec(status=500, times=1, seconds=60)])
    assert [fault.status for _ in range(5) if (fault := faults.take("/batch/"))] == [503] * 5
    await clock.advance(29.9)
    shown: Any = faults.shown()["results"]
    assert (shown[0]["seconds_left"], shown[0]["left"], shown[0]["applied"]) == (0.1, None, 5)
    await clock.advance(0.1)
    assert [fault.status if (fault := faults.take("/batch/")) else None for _ in range(2)] == [
        500,
        None,
    ]


def test_the_latest_of_those_that_are_finished_are_listed() -> None:
    """Not all of a long run."""
    faults = Faults()
    faults.add([FaultSpec(status=503)] * (FINISHED + 5))
    while faults.take("/e"):
        continue
    finished = faults.shown()["finished"]
    assert isinstance(finished, list)
    assert [fault["id"] for fault in finished] == list(range(6, FINISHED + 6))
