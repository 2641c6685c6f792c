"""Order per id through the whole pipeline, while the upstream fails at random."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from tests.support.listening import post
from tests.support.upstream import OK, Answer, Fault, Request, Upstream, failing, plain
from tests.support.whole import Whole, accepted, always_balanced, batch, event

FAILURES = [
    plain(500),
    plain(429),
    plain(503),
    plain(413),
    plain(408),
    *map(failing, (Fault.RESET, Fault.CLOSE, Fault.TRUNCATE)),
]


def story(random: Random, visitors: int) -> list[bytes]:
    """Visitors, all at once: each looks around anonymously, becomes known, continues, and is known
    by another name at last.
    """
    queues = [list(visit(number)) for number in range(visitors)]
    reported: list[bytes] = []
    while any(queues):
        reported.append(random.choice([queue for queue in queues if queue]).pop(0))
    return reported


def visit(number: int) -> list[bytes]:
    """One visitor's events, in order."""
    anonymous = f"anon-{number}"
    person = f"person-{number}"
    other = f"loyal-{number}"
    claim = msgspec.json.encode({"$anon_distinct_id": anonymous, "$set": {"n": number}})
    alias = msgspec.json.encode({"alias": other})
    return [
        *[event(f"v{number}-page{page}", anonymous) for page in range(3)],
        event("$identify", person, properties=claim).replace(
            b'"uuid":"', b'"n":"v%d","uuid":"' % number
        ),
        *[event(f"v{number}-order{order}", person) for order in range(3)],
        event("$create_alias", person, properties=alias).replace(
            b'"uuid":"', b'"n":"v%d","uuid":"' % number
        ),
        event(f"v{number}-loyal", other),
    ]


def slow(random: Random) -> Answer:
    """200 after a while, so that many requests are in flight at once and overtake each other where
    they may.
    """
    ready = asyncio.Event()
    asyncio.get_running_loop().call_later(random.random() * 0.03, ready.set)
    return Answer(when=ready)


def arrivals(upstream: Upstream) -> list[bytes]:
    """What the upstream took, in order of its answers; its own records are in that
    order already.
    """
    return list(accepted(upstream))


@pytest.mark.parametrize("ordering", ["per_distinct_id", "strict"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))]
)
async def test_no_event_passes_an_earlier_one_of_its_ids(seed: int, ordering: str) -> None:
    """Through retries, splits and resets: each visitor's events arrive in order, `$identify` after
    the anonymous ones that it claims.
    """
    random = Random(seed)
    reported = story(random, 12)

    def answer(_: Request) -> Answer:
        return random.choice(FAILURES) if random.random() < 0.25 else slow(random)

    limits = {"max_events": 4, "max_age": "0s"}
    async with (
        Upstream(answer) as upstream,
        Whole(
            upstream.url, batch=limits, delivery={"ordering": ordering, "concurrency": 6}
        ) as whole,
    ):
        with always_balanced(whole.pipeline):
            while reported:
                size = random.randint(1, 5)
                await whole.take(reported[:size])
                del reported[:size]
            await whole.emptied()
        arrived = arrivals(upstream)
        assert set(accepted(upstream).values()) == {1}
        assert len(arrived) == 12 * 9 + whole.total(lambda lane: -lane.total_dead)
        for number in range(12):
            theirs = [raw for raw in arrived if raw in set(visit(number))]
            assert theirs == [raw for raw in visit(number) if raw in set(theirs)]
        if ordering == "strict":
            assert upstream.most_in_flight == 1


async def test_historical_events_keep_their_order_by_default() -> None:
    """Without a setting, historical lanes are delivered in order per id (interface document,
    Versioning 2).
    """
    random = Random(7)
    reported = story(random, 6)

    def answer(_: Request) -> Answer:
        return plain(500) if random.random() < 0.4 else OK

    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, batch={"max_events": 3, "max_age": "20ms"}) as whole,
    ):
        for raw in reported:
            reply = await whole.send(
                post("/batch/", batch([raw], more=b'"historical_migration":true,'))
            )
            assert reply.status == 200
        await whole.emptied()
        assert all(request.json["historical_migration"] is True for request in upstream.requests)
        arrived = arrivals(upstream)
        for number in range(6):
            assert [raw for raw in arrived if raw in set(visit(number))] == visit(number)
