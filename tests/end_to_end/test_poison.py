"""Poison that upstreams with a strict JSON parser reject costs a few requests, whatever it is, and
no good event.
"""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from tests.support.strict import POISON, strict
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole, accepted, always_balanced, event, events

EVENTS = 10_000
POISONED_EVERY = 20
MOST_REQUESTS = 50


def poisoned(count: int, people: int) -> tuple[list[bytes], list[bytes]]:
    """So many events of so many persons, and those of them that are poison: one in twenty, of all
    kinds in turn.
    """
    kinds = cycle(POISON.values())
    raw = []
    poison = []
    for number in range(count):
        bad = number % POISONED_EVERY == 7
        properties = b'{"n":%d,"v":%b}' % (number, next(kinds) if bad else b"1.5")
        raw.append(event(f"e{number}", f"p{number % people}", properties=properties))
        if bad:
            poison.append(raw[-1])
    return raw, poison


def names(request: Request) -> set[str]:
    """The names of a request's events, whatever else is in them."""
    return {one["event"] for one in json.loads(request.body)["batch"]}


@pytest.mark.parametrize(
    ("ordering", "people"),
    [
        ("none", EVENTS),
        ("per_distinct_id", EVENTS),
        ("per_distinct_id", 100),
        ("per_distinct_id", 1),
        ("strict", EVENTS),
    ],
)
async def test_five_hundred_poison_events_of_ten_thousand_cost_fifty_requests(
    ordering: str, people: int
) -> None:
    """Every good event is delivered once and in order; every poison event is a dead letter with
    the upstream's words and ours.
    """
    raw, poison = poisoned(EVENTS, people)
    async with (
        Upstream(strict) as upstream,
        Whole(upstream.url, delivery={"ordering": ordering}, batch={"max_age": "1s"}) as whole,
    ):
        for start in range(0, EVENTS, 500):
            await whole.take(raw[start : start + 500])
        await whole.emptied(60.0)
        assert len(upstream.requests) <= MOST_REQUESTS
        good = set(raw) - set(poison)
        assert accepted(upstream) == dict.fromkeys(good, 1)
        letters = await whole.letters()
        assert sorted(data for data, _ in letters) == sorted(poison)
        for _, why in letters:
            assert why.startswith("HTTP 400: invalid json: ")
            assert "the event has " in why
        (lane,) = whole.snapshot.lanes
        assert (lane.delivered, dict(lane.dead_lettered)) == (len(good), {"refused": len(poison)})
        if ordering != "none":
            delivered = [int(name[1:]) for name in upstream.delivered]
            for person in range(min(people, 100)):
                mine = [number for number in delivered if number % people == person]
                assert mine == sorted(mine)
        if ordering == "strict":
            assert delivered == sorted(delivered)


async def test_suspicious_events_that_are_accepted_are_delivered() -> None:
    """An upstream that accepts what we suspect, and refuses events of its own taste, gets all that
    it accepts; nothing else is rejected.
    """
    raw, suspects = poisoned(1000, 1000)
    disliked = {"e100", "e500"}

    def answer(request: Request) -> Answer:
        return plain(400, "not to my taste") if disliked & names(request) else OK

    async with Upstream(answer) as upstream, Whole(upstream.url) as whole:
        with always_balanced(whole.pipeline):
            await whole.take(raw)
            await whole.emptied()
        assert sorted(await whole.letters()) == [
            (raw[100], "HTTP 400: not to my taste"),
            (raw[500], "HTTP 400: not to my taste"),
        ]
        assert set(suspects) < set(accepted(upstream))
        assert set(accepted(upstream).values()) == {1}


async def test_poison_that_no_parser_suspects_is_still_found() -> None:
    """Suspects and events that are poison for reasons of the upstream's own end as dead letters;
    all others are delivered once.
    """
    raw, poison = poisoned(1000, 1000)
    disliked = {f"e{number}" for number in range(5, 1000, 190)}

    def answer(request: Request) -> Answer:
        reply = strict(request)
        return plain(400, "not to my taste") if reply is OK and disliked & names(request) else reply

    async with Upstream(answer) as upstream, Whole(upstream.url) as whole:
        with always_balanced(whole.pipeline):
            await whole.take(raw)
            await whole.emptied()
        bad = {*poison, *(raw[int(name[1:])] for name in disliked)}
        assert {data for data, _ in await whole.letters()} == bad
        assert accepted(upstream) == dict.fromkeys(set(raw) - bad, 1)


async def test_a_proxy_that_answers_413_to_everything_makes_no_dead_letter() -> None:
    """It halts the lane as one that answers 400 does; when it is gone all events are delivered
    once, in batches as large as before.
    """
    sent = events(200)
    async with (
        Upstream(lambda _: plain(413, "too large for me")) as upstream,
        Whole(upstream.url) as whole,
    ):
        with always_balanced(whole.pipeline):
            await whole.take(sent[:100])
            await eventually(
                lambda: any(lane.halted == "refuses_all" for lane in whole.snapshot.lanes)
            )
            probed = len(upstream.requests)
            await eventually(lambda: len(upstream.requests) >= probed + 4)
            (lane,) = whole.snapshot.lanes
            assert (lane.total_dead, lane.buffered) == (0, 100)
            assert "too large for me" in lane.why
            upstream.answer = lambda _: OK
            await whole.emptied()
            healed = len(upstream.requests)
            await whole.take(sent[100:])
            await whole.emptied()
        assert len(upstream.requests) == healed + 1
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert whole.total(lambda lane: lane.total_dead) == 0
