"""Waiting for events over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web import waiting as module
from tests.sandbox.client import KEY, UUID, SandboxClient, SandboxReply, batch, event, talking
from tests.support.cases import cases
from tests.support.waiting import eventually

OTHER = "phc_another_key_000000002"
LONG = "timeout=40"
"""Longer than a test may take: an answer came for another reason."""


async def wait(client: SandboxClient, query: str) -> SandboxReply:
    """Ask and get the answer."""
    return await client.ask("GET", f"/sandbox/wait?{query}")


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> list[module.WaitingEndpoint]:
    """The endpoints of the sandboxes that are opened."""
    made: list[module.WaitingEndpoint] = []

    class Remembered(module.WaitingEndpoint):
        def __init__(self, thread: StoreThread) -> None:
            super().__init__(thread)
            made.append(self)

    monkeypatch.setattr("forwarder.sandbox.app.WaitingEndpoint", Remembered)
    return made


async def begun(endpoints: list[module.WaitingEndpoint], number: int = 1) -> None:
    """Return once this many requests wait."""
    await eventually(lambda: endpoints[0]._waiters == number)


async def test_wait_answers_at_once_if_events_are_there() -> None:
    """The events are shown as the listing shows them, bounded by its limit; `count` is of all."""
    async with talking() as client:
        await client.post(
            "/batch/", batch(event(), event(event="other"), event(properties={"n": 1.50}))
        )
        answer = await wait(client, f"event=seen&count=2&limit=1&{LONG}")
        assert (answer.status, answer.json) == (
            200,
            await client.get("/sandbox/events?event=seen&limit=1"),
        )
        assert answer.json["count"] == 2
        assert len(answer.json["results"]) == 1


async def test_wait_ends_with_the_last_expected_event(
    endpoints: list[module.WaitingEndpoint],
) -> None:
    """Neither other events nor too few end the wait, the last one does."""
    async with talking() as client:
        waits = asyncio.create_task(wait(client, f"event=seen&distinct_id=ann&count=2&{LONG}"))
        await begun(endpoints)
        await client.post("/batch/", batch(event(event="other"), event(distinct_id="bob"), event()))
        done, _ = await asyncio.wait([waits], timeout=0.05)
        assert not done
        await client.post("/batch/", batch(event()))
        answer = await waits
    assert (answer.status, answer.json["count"]) == (200, 2)


async def test_repeats_are_no_further_events() -> None:
    """Distinct events are counted; with `arrivals` each arrival is."""
    async with talking() as client:
        for _ in range(2):
            await client.post("/batch/", batch(event(uuid=UUID)))
        assert (await wait(client, "count=2&timeout=0")).status == 408
        assert (await wait(client, "count=2&timeout=0&arrivals=true")).status == 200


async def test_the_default_is_one_event() -> None:
    """Without `count`; and none are there at once."""
    async with talking() as client:
        assert (await wait(client, "timeout=0")).status == 408
        assert (await wait(client, "count=0&timeout=0")).status == 200
        await client.post("/batch/", batch(event()))
        assert (await wait(client, "timeout=0")).status == 200


async def test_after_the_timeout_it_says_what_is_there() -> None:
    """408 with what matched, and in words what else arrived and what was rejected."""
    async with talking() as client:
        await client.post(
            "/batch/", batch(event(), event(event="other"), event(event="other"), event(event=""))
        )
        await client.post("/batch/", b"{")
        answer = await wait(client, f"event=seen&api_key={KEY}&count=3&timeout=0.01")
        matched = (await client.get("/sandbox/events?event=seen"))["results"]
    assert answer.status == 408
    said = answer.json
    assert (said["count"], said["expected"], said["events"], said["results"]) == (
        1,
        3,
        {"other": 2, "seen": 1},
        matched,
    )
    assert said["detail"].startswith(
        "1 of 3 events with event 'seen' and the given api_key arrived within 0.01 s. "
    )
    assert (
        "The sandbox has 3 events: other 2, seen 1. 1 event in accepted requests was not ingested."
        in said["detail"]
    )
    assert "1 request was rejected; the last one: /batch/ was answered 400 (" in said["detail"]
    assert KEY not in answer.text.replace(matched[0]["raw"], "")


async def test_an_empty_sandbox_says_so() -> None:
    """And a filter on nothing."""
    async with talking() as client:
        reply = await wait(client, "timeout=0")
        assert reply.json["detail"] == "0 of 1 event arrived within 0 s. The sandbox has no events."


@cases(
    "query",
    [
        "count=x",
        "count=-1",
        "count=1.5",
        "count=1e400",
        "timeout=soon",
        "timeout=-1",
        "timeout=nan",
        "until=x",
    ],
)
async def test_an_invalid_number_is_an_error(query: str) -> None:
    """Rather than a wait for something else."""
    async with talking() as client:
        answer = await wait(client, query)
    assert (answer.status, query.partition("=")[0] in answer.text) == (400, True)


async def test_the_end_of_the_sandbox_ends_the_wait(
    endpoints: list[module.WaitingEndpoint],
) -> None:
    """With 503, and at once: the shutdown waits for no one."""
    async with talking() as client:
        waits = asyncio.create_task(wait(client, LONG))
        await begun(endpoints)
        await client.sandbox.__aexit__(None, None, None)
        assert (await waits).status == 503


async def test_a_client_that_disconnects_is_noticed(
    monkeypatch: pytest.MonkeyPatch, endpoints: list[module.WaitingEndpoint]
) -> None:
    """Its wait ends, and the next one has its place."""
    monkeypatch.setattr(module, "GONE", 0.01)
    monkeypatch.setattr(module, "WAITERS", 1)
    async with talking() as client:
        waits = asyncio.create_task(wait(client, LONG))
        await begun(endpoints)
        assert (await wait(client, LONG)).status == 503
        waits.cancel()
        await begun(endpoints, 0)
        assert (await wait(client, "timeout=0")).status == 408
