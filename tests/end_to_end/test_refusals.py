"""Upstreams that refuse: proxies that refuse everything, poison among good events, and keys that
no one knows.
"""

from __future__ import annotations

from math import log2

import pytest

from forwarder.core.errors import Backpressure, TooManyLanes
from forwarder.core.ports import Incoming
from tests.support.listening import post
from tests.support.upstream import OK, UNAUTHORIZED, Answer, Request, Upstream, plain
from tests.support.waiters import IntakeCallback
from tests.support.waiting import FastClock, eventually
from tests.support.whole import KEY, Whole, accepted, always_balanced, batch, event, events

GOOD = "phc_theonegoodkey123"


async def test_a_proxy_that_refuses_everything_buries_nothing() -> None:
    """400 to all that is sent halts the lane and makes no dead letter; when the proxy goes away
    every event is delivered once.
    """
    sent = events(200)
    async with (
        Upstream(lambda _: plain(400, "blocked by policy")) as upstream,
        Whole(upstream.url) as whole,
    ):
        with always_balanced(whole.pipeline):
            for start in range(0, 200, 20):
                await whole.take(sent[start : start + 20])
            await eventually(
                lambda: any(lane.halted == "refuses_all" for lane in whole.snapshot.lanes)
            )
            probed = len(upstream.requests)
            await eventually(lambda: len(upstream.requests) >= probed + 4)
            (lane,) = whole.snapshot.lanes
            assert (lane.total_dead, lane.buffered) == (0, 200)
            assert "blocked by policy" in lane.why
            assert whole.snapshot.ready
            upstream.answer = lambda _: OK
            await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        (lane,) = whole.snapshot.lanes
        assert (lane.delivered, lane.total_dead, lane.halted) == (200, 0, None)


@pytest.mark.parametrize("request_size", [1000, 50])
async def test_poison_is_found_and_the_rest_delivered_once(request_size: int) -> None:
    """Of 1,000 events 10 are refused: 990 are delivered once, 10 buried with the upstream's words,
    in a bounded number of requests.
    """
    sent = events(1000)
    poison = {f"e{number}" for number in range(37, 1000, 101)}

    def answer(request: Request) -> Answer:
        return plain(400, "not an event of ours") if poison.intersection(request.names) else OK

    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, delivery={"concurrency": 1}) as whole,
    ):
        with always_balanced(whole.pipeline):
            for start in range(0, 1000, request_size):
                await whole.take(sent[start : start + request_size])
            await whole.emptied()
        assert len(upstream.requests) <= 10 * 2 * log2(1000)
        good = [raw for number, raw in enumerate(sent) if f"e{number}" not in poison]
        assert accepted(upstream) == dict.fromkeys(good, 1)
        (lane,) = whole.snapshot.lanes
        assert (lane.delivered, dict(lane.dead_lettered)) == (990, {"refused": 10})
        letters = await whole.letters()
        assert sorted(data for data, _ in letters) == sorted(set(sent) - set(good))
        assert {why for _, why in letters} == {"HTTP 400: not an event of ours"}


async def test_bad_events_are_kept_from_the_good_ones() -> None:
    """Without name or id, with half a surrogate pair, too large: answered 200, and a dead letter;
    the others are delivered.
    """
    good = events(3)
    large = event("large", properties=b'{"p":"%b"}' % (b"x" * 2000))
    bad = [
        b'{"distinct_id":"x"}',
        b'{"event":"no id"}',
        rb'{"event":"half","distinct_id":"\ud800"}',
        large,
    ]
    async with Upstream() as upstream, Whole(upstream.url, upstream={"max_event": "1kB"}) as whole:
        with always_balanced(whole.pipeline):
            await whole.take([good[0], *bad[:2], good[1], *bad[2:], good[2]])
            await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(good, 1)
        (lane,) = whole.snapshot.lanes
        assert dict(lane.dead_lettered) == {
            "missing_event": 1,
            "missing_distinct_id": 1,
            "lone_surrogate": 1,
            "too_large": 1,
        }
        assert {data for data, _ in await whole.letters()} == set(bad)


async def test_an_unknown_key_is_held_and_delivered_when_it_is_known() -> None:
    """`/batch/` would take its events with 200 and lose them: nothing is sent there until
    `/decide` knows the key.
    """
    known = {GOOD}
    async with Upstream(
        decide=lambda request: OK if request.api_key in known else UNAUTHORIZED
    ) as upstream:
        async with Whole(upstream.url, upstream={"verify_keys": True}) as whole:
            await whole.take(events(4, "made up"), KEY)
            await whole.take(events(4, "good"), GOOD)
            await eventually(lambda: len(upstream.delivered) == 4)
            await eventually(
                lambda: any(lane.halted == "unknown_key" for lane in whole.snapshot.lanes)
            )
            assert {request.api_key for request in upstream.requests} == {GOOD}
            known.add(KEY)
            await whole.emptied()
        assert set(accepted(upstream).values()) == {1}
        assert len(accepted(upstream)) == 8


async def test_made_up_keys_do_not_stop_a_good_one() -> None:
    """Ten thousand keys that no one knows, beside one good lane: the good one's events are taken
    and delivered all the while.
    """
    async with Upstream(
        decide=lambda request: OK if request.api_key == GOOD else UNAUTHORIZED
    ) as upstream:
        async with Whole(upstream.url, FastClock(2), upstream={"verify_keys": True}) as whole:
            await whole.take(events(1, "first"), GOOD)
            await eventually(lambda: upstream.delivered == ["first0"])
            accepted_count = 0
            refused = 0
            for number in range(10_000):
                try:
                    whole.pipeline._parts.intake.accept(
                        Incoming(batch(events(1), f"phc_madeup{number:06}")), IntakeCallback()
                    )
                    accepted_count += 1
                except TooManyLanes:
                    refused += 1
                if number % 100 == 0:
                    await whole.take(events(1, f"good{number}-"), GOOD)
            assert (accepted_count, refused) == (50, 9950)
            await eventually(lambda: len(upstream.delivered) == 101)
            assert {request.api_key for request in upstream.requests} == {GOOD}
            assert whole.snapshot.ready
            await eventually(lambda: sum(1 for lane in whole.snapshot.lanes if lane.halted) == 50)
            # the answers to the last good ones may be under way
            await eventually(lambda: whole.total(lambda lane: lane.buffered) == accepted_count)
        assert len(whole.left) == accepted_count


async def test_a_good_key_that_comes_after_made_up_ones_gets_in() -> None:
    """A key that is new while made-up ones hold their share is asked to come back, is checked
    meanwhile, and then taken.
    """
    upstream = Upstream(decide=lambda request: OK if request.api_key == GOOD else UNAUTHORIZED)
    async with upstream, Whole(upstream.url, FastClock(2), upstream={"verify_keys": True}) as whole:
        for number in range(200):
            try:
                whole.pipeline._parts.intake.accept(
                    Incoming(batch(events(1), f"phc_madeup{number:06}")), IntakeCallback()
                )
            except Backpressure:
                continue
        first = await whole.send(post("/batch/", batch(events(1), GOOD)))
        assert (first.status, first.headers["retry-after"]) == (503, "5")
        await eventually(lambda: any(request.api_key == GOOD for request in upstream.decides))
        statuses: list[int] = []
        while not statuses or statuses[-1] != 200:
            statuses.append((await whole.send(post("/batch/", batch(events(1), GOOD)))).status)
            assert len(statuses) < 1000
        await eventually(lambda: upstream.delivered == ["e0"])
