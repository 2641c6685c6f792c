"""Refused events among good ones: found by bisection, and dead-lettered alone, with a bounded
number of requests.
"""

from __future__ import annotations

import asyncio
from math import log2

from forwarder.core.outcome import HaltReason
from forwarder.core.ports import Ordering, Reason
from forwarder.delivery.batching import BatchPolicy
from forwarder.delivery.lane_state import RetryPolicy
from tests.delivery.rig import LANE, Rig, event, events
from tests.support.cases import cases
from tests.support.upstream import OK, Answer, Request, Upstream, plain


def refusing(poison: set[str]) -> Upstream:
    """An upstream that refuses each request with one of these events in it."""

    def answer(request: Request) -> Answer:
        return plain(400, "not an event") if poison.intersection(request.names) else OK

    return Upstream(answer)


SCATTERED = {f"e{number}" for number in range(37, 1000, 101)}
FIRST = {f"e{number}" for number in range(10)}
LAST = {f"e{number}" for number in range(990, 1000)}
PAIRS = {f"e{number + offset}" for number in range(0, 1000, 220) for offset in (0, 1)}


@cases("poison", [SCATTERED, FIRST, LAST, PAIRS], ids=["scattered", "first", "last", "pairs"])
@cases("ordering", list(Ordering))
@cases("body", [1000, 50], ids=["one body", "20 bodies"])
async def test_poison_is_found_within_the_bound(
    poison: set[str], ordering: Ordering, body: int
) -> None:
    """Of 1,000 events 10 are refused: 990 are delivered once, 10 become dead letters, with at most
    10·2·log2(1000) requests.
    """
    everything = events(1000)
    async with refusing(poison) as upstream, Rig(upstream, ordering=ordering) as rig:
        for start in range(0, 1000, body):
            rig.offer(everything[start : start + body])
        await rig.run_until_empty()
        assert rig.times_accepted() == {
            f"e{number}": 1 for number in range(1000) if f"e{number}" not in poison
        }
        assert sorted(rig.dead_letter_names()) == sorted(poison)
        assert {(letter.reason, letter.why) for letter in rig.dead_letters.dead_letters} == {
            (Reason.REFUSED, "HTTP 400: not an event")
        }
        assert {letter.data for letter in rig.dead_letters.dead_letters} == {
            everything[int(name[1:])] for name in poison
        }
        assert len(upstream.requests) <= 10 * 2 * log2(1000)
        rig.assert_balanced()


def nul(name: str) -> bytes:
    """An event that strict parsers may reject."""
    return event(name, text="\0")


@cases("ordering", list(Ordering))
async def test_an_event_refused_for_its_own_reason_is_no_precedent(ordering: Ordering) -> None:
    """Of 40 suspects that look alike the upstream refuses two: those become dead letters, all
    others are delivered once, in order.
    """
    raw = [nul(f"e{number}") if number % 2 else event(f"e{number}") for number in range(80)]
    async with refusing({"e1", "e31"}) as upstream, Rig(upstream, ordering=ordering) as rig:
        rig.offer(raw)
        await rig.run_until_empty()
        assert sorted(rig.dead_letter_names()) == ["e1", "e31"]
        assert rig.times_accepted() == {
            f"e{number}": 1 for number in range(80) if number not in {1, 31}
        }
        if ordering is Ordering.STRICT:
            assert upstream.delivered == [
                f"e{number}" for number in range(80) if number not in {1, 31}
            ]
        rig.assert_balanced()


@cases("ordering", list(Ordering))
async def test_like_poison_waits_for_room_among_the_dead_letters(ordering: Ordering) -> None:
    """What is refused by precedent halts the lane as what is refused alone does, and is a dead
    letter when there is room.
    """
    raw = [nul(f"e{number}") if number % 2 else event(f"e{number}") for number in range(40)]
    poison = {f"e{number}" for number in range(1, 40, 2)}
    async with (
        refusing(poison) as upstream,
        Rig(upstream, ordering=ordering, dead_letter_bytes=2500) as rig,
    ):
        rig.offer(raw)
        await rig.run_until_halted(HaltReason.DEAD_LETTERS_FULL)
        rig.dead_letters.max_bytes = 10_000_000
        await rig.run_until_empty()
        assert set(rig.dead_letter_names()) == poison
        assert rig.times_accepted() == {f"e{number}": 1 for number in range(0, 40, 2)}
        rig.assert_balanced()


async def test_like_poison_alone_in_its_lane_waits_for_proof() -> None:
    """Nothing but suspects, all refused: none becomes a dead letter before another event is
    accepted; then all do, in few requests.
    """
    poison = {f"e{number}" for number in range(500)}
    async with refusing(poison) as upstream, Rig(upstream) as rig:
        rig.offer([nul(name) for name in sorted(poison)])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 6)
        assert rig.dead_letter_names() == []
        rig.offer([event("good")])
        await rig.run_until_empty()
        assert set(rig.dead_letter_names()) == poison
        assert upstream.delivered == ["good"]
        assert len(upstream.requests) < 50


async def test_a_lone_refused_event_waits_for_proof() -> None:
    """Refused alone, an event is kept, and the lane halted, until another event is accepted; then
    it is sent once more, and dead-lettered.
    """
    async with refusing({"bad"}) as upstream, Rig(upstream) as rig:
        rig.offer([event("bad")])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 4)
        assert rig.dead_letter_names() == []
        rig.offer([event("good")])
        await rig.run_until_empty()
        assert rig.dead_letter_names() == ["bad"]
        assert upstream.delivered == ["good"]
        assert rig.halt_reason() is None


async def test_a_200_from_before_the_refusal_proves_nothing() -> None:
    """What was accepted before doesn't show that the upstream accepts anything now: the refused
    event isn't dead-lettered.
    """
    async with refusing({"bad"}) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        await rig.run_until_empty()
        rig.offer([event("bad")])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        assert rig.dead_letter_names() == []


async def test_a_200_to_a_request_from_before_the_refusal_proves_nothing() -> None:
    """A request that was in flight when the first refusal came, and is taken after it, says
    nothing about now.
    """
    release = asyncio.Event()

    def answer(request: Request) -> Answer:
        return Answer(when=release) if "slow" in request.names else plain(400)

    async with (
        Upstream(answer) as upstream,
        Rig(upstream, ordering=Ordering.NONE, batch=BatchPolicy(5_000_000, 1, 1.0)) as rig,
    ):
        rig.offer([event("slow"), event("bad")])
        await rig.clock.advance(0.01)
        await upstream.until(lambda: len(upstream.requests) == 2)
        await upstream.until(lambda: upstream.requests[1].ended is not None)
        await rig.clock.advance(0)
        release.set()
        await rig.until(lambda: upstream.delivered == ["slow"])
        await rig.until(lambda: len(upstream.requests) >= 5)
        assert rig.dead_letter_names() == []
        assert rig.halt_reason() is HaltReason.REFUSES_ALL


async def test_an_event_refused_by_a_proxy_that_went_away_is_delivered() -> None:
    """Events refused alone while everything was refused are sent again when the upstream
    accepts events, and not dead-lettered without that.
    """
    async with Upstream(lambda _: plain(400)) as upstream, Rig(upstream) as rig:
        rig.offer(events(4))
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 6)
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert sorted(upstream.delivered) == ["e0", "e1", "e2", "e3"]
        assert rig.dead_letter_names() == []


async def test_proof_comes_from_the_same_lane_only() -> None:
    """Another project's deliveries say nothing about the lane that is refused, and continue beside
    it.
    """
    other = LANE._replace(api_key="phc_anotherproject99")
    async with refusing({"bad"}) as upstream, Rig(upstream) as rig:
        rig.offer([event("bad")])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        rig.offer(events(3), other)
        await rig.until(lambda: rig.delivery.statistics().delivered == 3)
        assert rig.halt_reason() is HaltReason.REFUSES_ALL
        assert rig.dead_letter_names() == []


async def test_a_probe_never_overtakes_an_event_of_its_person() -> None:
    """While everything is refused, no event is tried before an earlier one of the same person."""
    raw = [
        event("a1", "ann"),
        event("a2", "ann"),
        event("a3", "ann"),
        event("b1", "bob"),
        event("a4", "ann"),
        event("b2", "bob"),
    ]
    async with (
        Upstream(lambda _: plain(400)) as upstream,
        Rig(upstream, batch=BatchPolicy(5_000_000, 4, 1.0)) as rig,
    ):
        rig.offer(raw)
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        halted_at = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) >= halted_at + 10)
        probed = {request.names[0] for request in upstream.requests[halted_at:]}
        assert probed == {"a1", "b1"}
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert [name for name in upstream.delivered if name.startswith("a")] == [
            "a1",
            "a2",
            "a3",
            "a4",
        ]
        assert [name for name in upstream.delivered if name.startswith("b")] == ["b1", "b2"]


async def test_given_up_events_become_dead_letters() -> None:
    """With `give_up_after`, a batch that fails and is older becomes dead letters; without room for
    them it is tried on.
    """
    policy = RetryPolicy(give_up_after=60.0)
    async with (
        Upstream(lambda _: plain(500, "boom")) as upstream,
        Rig(upstream, retry=policy, dead_letter_bytes=10) as rig,
    ):
        rig.offer(events(2))
        await rig.until(lambda: rig.clock.monotonic() > 1200)
        assert rig.dead_letter_names() == []
        rig.dead_letters.max_bytes = 10_000
        await rig.run_until_empty()
        assert rig.dead_letter_names() == ["e0", "e1"]
        assert {letter.reason for letter in rig.dead_letters.dead_letters} == {Reason.GAVE_UP}
        rig.assert_balanced()


async def test_an_event_after_a_lane_has_given_up_is_sent_when_it_is_due() -> None:
    """It comes when the pause of the last failure is over and nothing is pending: no other event
    has to come for its batch to go.
    """
    policy = RetryPolicy(give_up_after=1.0)
    async with (
        Upstream(lambda _: plain(500, "boom")) as upstream,
        Rig(upstream, retry=policy) as rig,
    ):
        rig.offer(events(1))
        await rig.run_until_empty()
        assert rig.dead_letter_names() == ["e0"]
        upstream.answer = lambda _: OK
        await rig.until(lambda: rig.clock.monotonic() > 1100)
        rig.offer([event("late")])
        await rig.run_until_empty()
        assert upstream.delivered == ["late"]


async def test_an_accepted_event_proves_that_the_upstream_accepts() -> None:
    """Then an event that is refused alone is at fault itself, though nothing else of its lane is
    left to show that.
    """
    async with refusing({"bad"}) as upstream, Rig(upstream) as rig:
        rig.delivery.confirm_acceptance(LANE)
        rig.offer([event("bad")])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        assert not rig.dead_letter_names()
        rig.delivery.confirm_acceptance(LANE)
        await rig.run_until_empty()
        assert rig.dead_letter_names() == ["bad"]
        assert rig.halt_reason() is None
