"""Load for `forwarder generate`."""

from __future__ import annotations

import asyncio

import pytest

from forwarder.core.clock import SystemClock
from forwarder.demo.load import (
    CATCH_UP,
    Latencies,
    LoadEndpoint,
    LoadFigures,
    LoadGenerator,
    LoadPlan,
    Pace,
    TargetUnreachable,
)
from tests.support.upstream import Upstream, plain

KEY = "phc_loadloadloadload1234"


def plan(
    rate: float | None = None,
    batch: int = 100,
    count: int | None = 250,
    seconds: float | None = None,
) -> LoadPlan:
    """A load that isn't slowed down."""
    return LoadPlan(rate=rate, users=20, batch=batch, count=count, seconds=seconds, seed=1)


async def sent_to(upstream: Upstream, planned: LoadPlan) -> LoadFigures:
    """What came of a load."""
    load = LoadGenerator(planned, LoadEndpoint(f"{upstream.url}/batch/", KEY), SystemClock())
    await load.run()
    return load.figures


async def test_every_event_arrives_once() -> None:
    """So many as were asked for, each with a uuid of its own, in requests of that size."""
    async with Upstream() as upstream:
        figures = await sent_to(upstream, plan())
        assert sorted(len(request.events) for request in upstream.requests) == [50, 100, 100]
        assert {request.api_key for request in upstream.requests} == {KEY}
        events = [event for request in upstream.requests for event in request.events]
    assert len({event["uuid"] for event in events}) == 250
    assert (
        figures.sent,
        figures.accepted,
        figures.rejected,
        figures.unanswered,
        figures.answers,
    ) == (250, 250, 0, 0, {"200": 3})
    assert figures.latencies.percentile(0.5) > 0


async def test_the_same_seed_makes_the_same_events() -> None:
    """Apart from uuids and times; they are of several people, with text beyond ASCII, and as large
    as those of SDKs.
    """

    async def run() -> list[tuple[str, str, dict[str, object]]]:
        async with Upstream() as upstream:
            await sent_to(upstream, plan(batch=250))
            (request,) = upstream.requests
            assert 450 < len(request.body) / 250 < 700
            return [
                (event["event"], event["distinct_id"], event["properties"])
                for event in request.events
            ]

    first = await run()
    assert first == await run()
    assert len({person for _, person, _ in first}) > 20
    assert {"$pageview", "$identify", "signed up", "order placed", "$groupidentify"} <= {
        name for name, _, _ in first
    }
    assert not str(first).isascii()


async def test_a_request_is_repeated_after_503() -> None:
    """With the same events, until it is accepted."""
    async with Upstream() as upstream:
        upstream.script.append(plain(503, "full", retry_after="0"))
        figures = await sent_to(upstream, plan(count=5))
        first, second = upstream.requests
        assert first.events == second.events
    assert (figures.sent, figures.accepted, figures.answers) == (5, 5, {"503": 1, "200": 1})


async def test_a_request_that_is_rejected_is_counted() -> None:
    """It is not repeated."""
    async with Upstream(lambda _: plain(401, "unknown")) as upstream:
        figures = await sent_to(upstream, plan(count=10))
    assert (figures.sent, figures.accepted, figures.rejected) == (10, 0, 10)


async def test_a_load_that_is_stopped_gives_up_what_is_not_accepted() -> None:
    """A wait for Retry-After ends at once, and the events are counted."""
    async with Upstream(lambda _: plain(503, "full", retry_after="3600")) as upstream:
        load = LoadGenerator(
            plan(count=10), LoadEndpoint(f"{upstream.url}/batch/", KEY), SystemClock()
        )
        running = asyncio.create_task(load.run())
        await upstream.until(
            lambda: bool(upstream.requests) and upstream.requests[0].ended is not None
        )
        load.stop()
        await running
    assert (load.figures.sent, load.figures.accepted, load.figures.unanswered) == (10, 0, 10)


async def test_a_target_that_is_not_there_ends_the_load() -> None:
    """At the first request; it says why."""
    load = LoadGenerator(plan(), LoadEndpoint("http://127.0.0.1:9/batch/", KEY), SystemClock())
    with pytest.raises(TargetUnreachable):
        await load.run()


async def test_a_load_ends_with_its_time() -> None:
    """Also when the next request would be due much later."""
    async with Upstream() as upstream:
        figures = await sent_to(upstream, plan(rate=0.01, seconds=0.05, count=None))
    assert figures.accepted == 1


@pytest.mark.parametrize(
    ("rate", "batch", "events"),
    [(None, 100, 100), (1000.0, 100, 100), (50.0, 100, 25), (0.1, 100, 1), (1e3, 1, 1)],
)
def test_a_slow_load_has_small_requests(rate: float | None, batch: int, events: int) -> None:
    """As SDKs flush after a time, too."""
    assert plan(rate, batch).request_events() == events


def test_pace() -> None:
    """Requests are due at the rate; a short delay is caught up with, a long one isn't."""
    pace = Pace(100.0, 0.0)
    assert [pace.due(10, 0.0), pace.due(10, 0.0), pace.due(10, 0.5)] == [0.0, 0.1, 0.2]
    late = 60.0
    assert [pace.due(10, late), pace.due(10, late)] == [late - CATCH_UP, late - CATCH_UP + 0.1]
    assert Pace(None, 0.0).due(10, 7.0) == 7.0


def test_latencies() -> None:
    """Percentiles are right to 2 %, from microseconds to minutes."""
    latencies = Latencies()
    assert latencies.percentile(0.5) == 0.0
    for milliseconds in range(1, 1001):
        latencies.add(milliseconds / 1000)
    assert latencies.percentile(0.5) == pytest.approx(0.5, rel=0.03)
    assert latencies.percentile(0.99) == pytest.approx(0.99, rel=0.03)
    latencies.add(0.0)
    assert latencies.percentile(0.0001) == pytest.approx(1e-6, rel=0.03)
