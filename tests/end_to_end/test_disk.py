"""A buffer on disk through the whole pipeline: what was answered 200 is there after any end, in
order where that was asked, and the books balance after every callback, restarts included.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from tests.end_to_end.test_order import arrivals, slow, story, visit
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Fault, Request, Upstream, failing, plain
from tests.support.waiting import eventually, tick
from tests.support.whole import KEY, Whole, accepted, always_balanced, batch, event, events

DISK: dict[str, Any] = {"kind": "disk", "max_bytes": "8MiB"}
HISTORICAL = b'"historical_migration":true,'
OTHER = "phc_anotheranother12"
FAILURES = [
    plain(500),
    plain(429),
    plain(503),
    plain(408),
    *map(failing, (Fault.RESET, Fault.CLOSE, Fault.TRUNCATE)),
]


def down(_: Request) -> Answer:
    """An upstream that takes nothing."""
    return plain(500)


@pytest.mark.parametrize("seed", range(3))
async def test_faults_poison_and_restarts(seed: int) -> None:
    """Failures of all kinds, events that are refused alone, restarts in between: each event is
    delivered or a dead letter.

    A request that a restart cuts off may have arrived: then its events
    arrive twice, the same bytes.
    """
    random = Random(seed)
    sent = [event(f"poison{number}" if number % 50 == 7 else f"e{number}") for number in range(200)]
    poison = {raw for raw in sent if b"poison" in raw}

    def answer(request: Request) -> Answer:
        if random.random() < 0.2:
            return random.choice([*FAILURES, plain(413)] if len(request.events) > 1 else FAILURES)
        return plain(400, "bad event") if b"poison" in request.body else OK

    retry = {"retry": {"initial": "20ms", "max": "100ms"}}
    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, buffer=DISK, batch={"max_events": 10}, delivery=retry) as whole,
    ):
        with always_balanced(whole):
            for number, start in enumerate(range(0, 200, 5)):
                await whole.take(sent[start : start + 5], OTHER if number % 3 else KEY)
                if number in (13, 27):
                    await whole.restart()
            await whole.emptied()
            await whole.restart()
        assert set(accepted(upstream)) == set(sent) - poison
        assert {data for data, _ in await whole.letters()} == poison
        assert whole.total(lambda lane: lane.total_received) == 200
        assert (
            whole.total(lambda lane: lane.delivered),
            whole.total(lambda lane: lane.total_dead),
        ) == (196, 4)


async def test_events_answered_200_survive_a_crash() -> None:
    """Senders that are answered while the process is about to die find their events delivered,
    unchanged; the books continue.
    """
    random = Random(5)
    answered: list[bytes] = []

    async def press(whole: Whole, name: str) -> None:
        """Send until the connection is gone."""
        client = await whole.connect()
        try:
            for number in range(1000):
                raw = events(3, f"{name}-{number}-")
                if (
                    await client.ask(post("/batch/", batch(raw, random.choice([KEY, OTHER]))))
                ).status == 200:
                    answered.extend(raw)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            await client.close()

    def at_least(count: int) -> bool:
        return len(answered) >= count

    async with (
        Upstream(lambda _: random.choice([OK, plain(500)])) as upstream,
        Whole(upstream.url, buffer=DISK) as whole,
    ):
        with always_balanced(whole):
            for life in range(4):
                before = len(answered)
                senders = [
                    asyncio.ensure_future(press(whole, f"{life}-{sender}")) for sender in range(4)
                ]
                await eventually(partial(at_least, before + 60))
                await whole.restart(crash=True)
                await asyncio.gather(*senders)
            await whole.emptied()
        assert len(answered) >= 240
        assert set(answered) <= set(accepted(upstream))


async def test_200_waits_for_the_disk() -> None:
    """No sender is answered before the fsync that covers its events has returned; senders that
    come meanwhile share the next one.
    """
    syncs: list[int] = []
    fdatasync = os.fdatasync
    go_on = threading.Event()

    def counted(fd: int) -> None:
        """A disk that takes its time."""
        syncs.append(fd)
        assert go_on.wait(20)
        fdatasync(fd)

    async with Upstream(down) as upstream, Whole(upstream.url, buffer=DISK) as whole:
        await whole.written()
        with patch("os.fdatasync", counted):
            clients = [await whole.connect() for _ in range(20)]
            asked = [
                asyncio.ensure_future(client.ask(post("/batch/", batch(events(1, f"s{number}-")))))
                for number, client in enumerate(clients)
            ]
            await eventually(lambda: syncs)
            await eventually(lambda: whole.snapshot.connections == 20)
            for _ in range(20):
                await tick()
            assert not any(future.done() for future in asked)
            go_on.set()
            assert {(await future).status for future in asked} == {200}
            assert len(syncs) < 10
        for client in clients:
            await client.close()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("ordering", ["per_distinct_id", "strict"])
async def test_order_holds_across_restarts(ordering: str, *, crash: bool) -> None:
    """Each visitor's events are first taken by the upstream in their order, whatever fails and
    however often the process ends.
    """
    random = Random(11)
    reported = story(random, 12)

    def answer(_: Request) -> Answer:
        return random.choice(FAILURES) if random.random() < 0.25 else slow(random)

    delivery = {
        "ordering": ordering,
        "concurrency": 6,
        "retry": {"initial": "20ms", "max": "100ms"},
    }
    limits = {"max_events": 4, "max_age": "0s"}
    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, buffer=DISK, batch=limits, delivery=delivery, window=4096) as whole,
    ):
        with always_balanced(whole):
            for step in range(1000):
                if not reported:
                    break
                size = random.randint(1, 5)
                await whole.take(reported[:size])
                del reported[:size]
                if step % 9 == 8:
                    await whole.restart(crash=crash)
            await whole.emptied()
        arrived = arrivals(upstream)
        assert await whole.letters() == []
        for number in range(12):
            theirs = visit(number)
            assert [raw for raw in arrived if raw in set(theirs)] == theirs


async def test_historical_lanes_keep_their_order_across_crashes() -> None:
    """By default, without a setting."""
    reported = story(Random(7), 6)
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, buffer=DISK, window=4096) as whole,
    ):
        for number, raw in enumerate(reported):
            assert (await whole.send(post("/batch/", batch([raw], more=HISTORICAL)))).status == 200
            if number % 20 == 19:
                await whole.restart(crash=True)
        taking = True
        await whole.emptied()
        arrived = arrivals(upstream)
        assert all(request.json["historical_migration"] is True for request in upstream.requests)
        for number in range(6):
            assert [raw for raw in arrived if raw in set(visit(number))] == visit(number)


async def test_a_crash_after_999_of_1000_redelivers_one() -> None:
    """What was settled before the crash isn't sent again: of a request's thousand events only the
    one that was missing.
    """
    sent = events(1000)
    last = Counter[bytes]()

    def answer(request: Request) -> Answer:
        if sent[999] in request.body:
            last[request.body] += 1
            return plain(500) if last.total() < 3 else OK
        return OK

    batches = {"max_events": 111, "max_age": "0s"}
    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, buffer=DISK, batch=batches, delivery={"concurrency": 1}) as whole,
    ):
        await whole.take(sent)
        await eventually(lambda: whole.total(lambda lane: lane.delivered) == 999)
        await whole.written()
        await whole.restart(crash=True)
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert whole.total(lambda lane: lane.delivered) == 1000
        assert await whole.letters() == []


async def test_a_dead_letter_is_one_after_a_crash_too() -> None:
    """Refused for good, then a crash: it is a dead letter once, and the
    upstream doesn't see it again.
    """
    async with (
        Upstream(
            lambda request: plain(400, "bad") if b"poison" in request.body else OK
        ) as upstream,
        Whole(upstream.url, buffer=DISK) as whole,
    ):
        with always_balanced(whole):
            await whole.take([*events(5), event("poison")])
            await eventually(lambda: whole.total(lambda lane: lane.total_dead) == 1)
            await whole.take(events(5, "more"))
            await whole.emptied()
            await whole.written()
            seen = sum(b"poison" in request.body for request in upstream.requests)
            await whole.restart(crash=True)
            await whole.take(events(5, "last"))
            await whole.emptied()
        assert [data for data, _ in await whole.letters()] == [event("poison")]
        assert sum(b"poison" in request.body for request in upstream.requests) == seen
        assert whole.total(lambda lane: lane.total_dead) == 1
