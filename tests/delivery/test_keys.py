"""The key check: unknown keys are found, kept and let go, and never in the way of good ones."""

from __future__ import annotations

import asyncio

from forwarder.core.event import Lane
from forwarder.core.outcome import HaltReason
from forwarder.delivery.keys import CAPACITY, CONCURRENCY, HOUR, KeyLedger, KeyStatus
from tests.delivery.rig import LANE, Rig, events
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.upstream import (
    OK,
    UNAUTHORIZED,
    Answer,
    Fault,
    Request,
    Upstream,
    failing,
    plain,
)


def knows(*keys: str) -> Upstream:
    """An upstream that knows these keys, and tells so at `/decide` alone."""

    def decide(request: Request) -> Answer:
        return OK if request.api_key in keys else UNAUTHORIZED

    return Upstream(decide=decide)


async def test_a_known_key_is_asked_about_once() -> None:
    """A lane's first batch waits for the answer; after that the key isn't asked about
    for an hour.
    """
    async with knows(LANE.api_key) as upstream, Rig(upstream, verify_keys=True) as rig:
        for number in range(5):
            rig.offer(events(2, f"r{number}-"))
            await rig.run_until_empty()
        (asked,) = upstream.decides
        assert asked.path == "/decide?v=3"
        assert asked.json["api_key"] == LANE.api_key
        assert asked.json["distinct_id"]
        assert asked.ended is None or asked.began < upstream.requests[0].began
        assert rig.keys is not None
        assert rig.keys.status(LANE.api_key) is KeyStatus.VERIFIED
        await rig.clock.advance(HOUR)
        rig.offer(events(1, "later"))
        await rig.run_until_empty()
        await rig.until(lambda: len(upstream.decides) == 2)


async def test_an_unknown_key_halts_its_lane_until_it_is_known() -> None:
    """401 at `/decide`: nothing is sent to `/batch/`; the key is asked about at growing intervals,
    and 200 lets the events go.
    """
    async with knows() as upstream, Rig(upstream, verify_keys=True) as rig:
        rig.offer(events(3))
        await rig.run_until_halted(HaltReason.UNKNOWN_KEY)
        await rig.until(lambda: rig.clock.monotonic() > 1000 + 500)
        assert upstream.requests == []
        assert 12 <= len(upstream.decides) <= 30
        assert rig.buffer.statistics().events == 3
        upstream.decide = lambda _: OK
        await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1", "e2"]
        assert rig.halt_reason() is None


async def test_a_key_that_was_revoked_is_found_within_the_hour() -> None:
    """A lane in use whose key the upstream forgets is halted at the next hourly check."""
    async with knows(LANE.api_key) as upstream, Rig(upstream, verify_keys=True) as rig:
        rig.offer(events(1))
        await rig.run_until_empty()
        upstream.decide = lambda _: UNAUTHORIZED
        await rig.clock.advance(HOUR)
        rig.offer(events(1, "f"))
        await rig.until(lambda: len(upstream.decides) >= 2)
        rig.offer(events(1, "g"))
        await rig.run_until_halted(HaltReason.UNKNOWN_KEY)
        assert "g0" not in upstream.delivered


@cases("answer", [plain(404), plain(500), plain(429), failing(Fault.RESET)])
async def test_any_other_answer_means_deliver(answer: Answer) -> None:
    """Neither 200 nor 401: no one knows better, so the events go."""
    async with (
        Upstream(decide=lambda _: answer) as upstream,
        Rig(upstream, verify_keys=True) as rig,
    ):
        rig.offer(events(2))
        await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1"]
        assert rig.keys is not None
        assert rig.keys.status(LANE.api_key) is KeyStatus.UNVERIFIED


async def test_a_first_batch_waits_five_seconds_at_most() -> None:
    """While `/decide` doesn't answer, the lane's first batch is sent after five seconds."""
    never = asyncio.Event()
    async with (
        Upstream(decide=lambda _: Answer(when=never)) as upstream,
        Rig(upstream, verify_keys=True) as rig,
    ):
        rig.offer(events(1))
        await rig.clock.advance(4.5)
        assert upstream.requests == []
        await rig.clock.advance(0.6)
        await upstream.until(lambda: upstream.delivered == ["e0"])


async def test_made_up_keys_dont_slow_a_good_lane() -> None:
    """10,000 made-up keys are being asked about when a good lane begins: it waits five seconds at
    most, and then continues unhindered.
    """
    slow = asyncio.Event()
    async with (
        Upstream(decide=lambda _: Answer(401, when=slow)) as upstream,
        Rig(upstream, verify_keys=True) as rig,
    ):
        assert rig.keys is not None
        for number in range(10_000):
            rig.keys.ask(f"phc_madeup{number}")
        rig.offer(events(50))
        await rig.clock.advance(5.5)
        await upstream.until(lambda: len(upstream.delivered) == 50)
        assert len(upstream.decides) == CONCURRENCY
        for number in range(20):
            rig.offer(events(50, f"r{number}-"))
        await rig.clock.advance(1.1)
        await upstream.until(lambda: len(upstream.delivered) == 50 * 21)


async def test_refused_keys_dont_slow_a_good_lane() -> None:
    """With hundreds of lanes halted for unknown keys, a good lane's events are delivered at once,
    and no other's are.
    """
    async with knows(LANE.api_key) as upstream, Rig(upstream, verify_keys=True) as rig:
        keys = rig.keys
        assert keys is not None
        made_up = [Lane(f"phc_madeup{number}") for number in range(300)]
        for lane in made_up:
            keys.ask(lane.api_key)
        await rig.until(
            lambda: all(keys.status(lane.api_key) is KeyStatus.REFUSED for lane in made_up)
        )
        for lane in made_up:
            rig.offer(events(1, "made-up"), lane)
        rig.offer(events(1))
        assert await rig.until(lambda: upstream.delivered == ["e0"]) <= 2.0
        assert set(rig.delivery.halts) == set(made_up)
        rig.offer(events(5, "more"))
        assert await rig.until(lambda: len(upstream.delivered) == 6) <= 2.0
        assert {request.api_key for request in upstream.requests} == {LANE.api_key}


def test_the_ledger_is_bounded() -> None:
    """However many keys are made up, only so many are remembered; those still asked for are."""
    ledger = KeyLedger()
    ledger.ask("good", 0.0)
    ledger.take()
    ledger.answered("good", 200, 0.0)
    for number in range(3 * CAPACITY):
        ledger.ask(f"k{number}", 1.0)
        if number % 1000 == 0:
            ledger.ask("good", 1.0)
    assert len(ledger) == CAPACITY
    assert ledger.status("good") is KeyStatus.VERIFIED
    count = 0
    while ledger.take() is not None:
        count += 1
    assert count <= CAPACITY


def test_a_key_is_queued_once() -> None:
    """Asking again and again, before and while the check runs, costs one check."""
    ledger = KeyLedger()
    for _ in range(5):
        assert ledger.ask("k", 0.0) is KeyStatus.UNKNOWN
    assert ledger.take() == "k"
    ledger.ask("k", 0.0, at_once=True)
    assert ledger.take() is None
    assert ledger.answered("k", 200, 0.0) is KeyStatus.VERIFIED
    ledger.ask("k", HOUR - 1)
    assert ledger.take() is None
    ledger.ask("k", HOUR)
    assert ledger.take() == "k"


def test_what_is_known_survives_a_failed_check() -> None:
    """A time-out makes no refused key good and no verified one doubtful; 401 and 200 do."""
    ledger = KeyLedger()
    ledger.ask("k", 0.0)
    assert [
        ledger.answered("k", status, 0.0) for status in (503, 401, None, 200, 500, 401, 200)
    ] == [
        KeyStatus.UNVERIFIED,
        KeyStatus.REFUSED,
        KeyStatus.REFUSED,
        KeyStatus.VERIFIED,
        KeyStatus.VERIFIED,
        KeyStatus.REFUSED,
        KeyStatus.VERIFIED,
    ]


def test_the_key_ledger_takes_times_as_arguments() -> None:
    """The ledger takes its times as arguments."""
    clock = FakeClock()
    ledger = KeyLedger()
    ledger.ask("k", clock.monotonic())
    assert ledger.wait_until("k") == clock.monotonic() + 5.0


FLOODED = 100


def test_a_flood_of_made_up_keys_grows_nothing() -> None:
    """However many keys come in while hardly any is checked, no more than twice the capacity is
    held, and checks continue.
    """
    ledger = KeyLedger(FLOODED)
    for number in range(100 * FLOODED):
        ledger.ask(f"made-up-{number}", 0.0)
        assert len(ledger) <= FLOODED
        assert len(ledger._queue) <= 2 * FLOODED
    keys = []
    while (key := ledger.take()) is not None:
        keys.append(key)
    assert keys == [f"made-up-{number}" for number in range(99 * FLOODED, 100 * FLOODED)]


def test_a_key_that_is_asked_for_again_gets_its_turn_in_a_flood() -> None:
    """Its sender comes back more often than as many other keys come in as are remembered: then it
    is checked, once.
    """
    ledger = KeyLedger(FLOODED)
    asked = 0
    for number in range(20 * FLOODED):
        ledger.ask(f"made-up-{number}", 0.0)
        if number % (FLOODED // 2) == 0:
            ledger.ask("good", 0.0)
        if number % 10 == 0:
            key = ledger.take()
            assert key is not None
            asked += key == "good"
            ledger.answered(key, 200 if key == "good" else 401, 0.0)
    assert asked == 1
    assert ledger.status("good") is KeyStatus.VERIFIED
