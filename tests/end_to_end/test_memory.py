"""Full: senders are asked to come back, nothing that was answered 200 is lost, and one lane's
trouble isn't everyone's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.listening import post
from tests.support.upstream import OK, Answer, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole, accepted, always_balanced, batch, events

SMALL: dict[str, Any] = {
    "buffer": {"max_bytes": "2MB"},
    "batch": {"max_bytes": "500kB", "max_age": "100ms"},
}
KEYS = (KEY, "phc_anotheranother12", "phc_yetanotherone123")


async def fill(whole: Whole, key: str, prefix: str, *, size: int = 50) -> list[bytes]:
    """Send requests of a lane until one is refused; the events that were taken."""
    accepted_events: list[bytes] = []
    for number in range(1000):
        raw = events(size, f"{prefix}{number}-", padding=100)
        reply = await whole.send(post("/batch/", batch(raw, key)))
        if reply.status == 503:
            assert int(reply.headers["retry-after"]) >= 1
            return accepted_events
        assert reply.status == 200
        accepted_events += raw
    raise AssertionError("never full")


async def test_full_is_503_and_accepted_events_arrive() -> None:
    """While the upstream is down each lane fills its share of what is left until nothing is; later
    all that was answered 200 arrives.
    """
    async with Upstream() as upstream:
        await upstream.stop()
        async with Whole(upstream.url, **SMALL, http={"api_keys": KEYS}) as whole:
            first = await fill(whole, KEY, "a")
            held = whole.snapshot.buffer_bytes
            assert 0.95 * 1_750_000 < held <= 1_750_000
            assert whole.snapshot.ready
            second = await fill(whole, KEYS[1], "b", size=10)
            third = await fill(whole, KEYS[2], "c", size=1)
            assert whole.snapshot.buffer_bytes <= 2_000_000
            assert not whole.snapshot.ready
            assert "full" in whole.snapshot.not_ready[0]
            async with upstream:
                await whole.emptied()
                assert accepted(upstream) == dict.fromkeys([*first, *second, *third], 1)
            assert whole.snapshot.ready
            assert whole.snapshot.buffer_bytes == 0


async def test_senders_that_push_on_lose_nothing() -> None:
    """Senders that come back after each 503 get everything in, though the upstream is gone for a
    while; every event arrives once.
    """
    refused = 0
    sent: list[bytes] = []
    async with Upstream() as upstream, Whole(upstream.url, **SMALL) as whole:
        upstream.answer = lambda _: OK if refused >= 4 else plain(503)
        with always_balanced(whole.pipeline):
            for number in range(80):
                raw = events(50, f"r{number}-", padding=200)
                while (reply := await whole.send(post("/batch/", batch(raw)))).status != 200:
                    assert reply.status == 503
                    refused += 1
                    await whole.clock.sleep(float(reply.headers["retry-after"]))
                sent += raw
            await whole.emptied()
        assert refused >= 4
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_a_request_that_could_never_fit_is_413() -> None:
    """More than one lane may ever hold: coming back would never help, and the sender learns it."""
    async with Upstream() as upstream, Whole(upstream.url, **SMALL) as whole:
        reply = await whole.send(post("/batch/", batch(events(30, padding=60_000))))
        assert reply.status == 413
        assert whole.snapshot.lanes == ()
        assert upstream.requests == []


async def test_requests_during_a_drain_are_answered_503_with_retry_after() -> None:
    """On a connection that is open, a new request gets 503 and the connection closes; what was
    taken before is delivered.
    """
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        client = await whole.connect()
        assert (await client.ask(post("/batch/", batch(events(3))))).status == 200
        whole.pipeline.stop_accepting()
        reply = await client.ask(post("/batch/", batch(events(3, "late"))))
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert int(reply.headers["retry-after"]) >= 1
        await client.close()
        assert await whole.pipeline.drain(20.0)
        assert len(accepted(upstream)) == 3
    assert whole.left == []


async def test_an_incomplete_drain_names_what_is_left() -> None:
    """At the end every undelivered event is a dead letter, waiting or in flight, once, and the
    books balance.
    """
    hang = asyncio.Event()
    async with Upstream(lambda _: Answer(when=hang)) as upstream:
        async with Whole(
            upstream.url, batch={"max_events": 5}, delivery={"concurrency": 1}
        ) as whole:
            sent = events(20)
            for start in range(0, 20, 4):
                await whole.take(sent[start : start + 4])
            await eventually(lambda: upstream.in_flight == 1)
            whole.pipeline.stop_accepting()
            assert not await whole.pipeline.drain(2.0)
        assert sorted(letter.data for letter in whole.left) == sorted(sent)
        (lane,) = whole.snapshot.lanes
        assert (dict(lane.dead_lettered), lane.buffered, lane.difference) == (
            {"undelivered_at_exit": 20},
            0,
            0,
        )
        hang.set()
