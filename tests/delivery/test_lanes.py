"""The state of a lane: its pauses after failures, and what is withdrawn from it."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.clock import Backoff
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.outcome import HaltReason
from forwarder.core.ports import DropReason
from forwarder.delivery.lane_state import Pause
from tests.delivery.rig import LANE, Rig, chunk_of, event, events, upper
from tests.support.upstream import Answer, Upstream, plain
from tests.support.waiters import IntakeCallback


def pause() -> Pause:
    """A pause that always takes the longest wait."""
    return Pause(Backoff(0.5, 30.0, upper))


def test_failures_of_one_round_count_once() -> None:
    """Ten requests of one round fail: the streak rises by one. A request of the next round raises
    it again.
    """
    one = pause()
    for number in range(1, 11):
        one.failed(number, 10, 100.0, 0.0, "HTTP 503")
    assert (one.streak, one.until) == (1, 100.5)
    one.failed(11, 11, 101.0, 0.0, "HTTP 503")
    assert (one.streak, one.until) == (2, 102.0)


def test_a_success_from_before_the_failure_ends_no_streak() -> None:
    """A request that began before the failure and succeeds after it tells of an earlier time."""
    one = pause()
    one.failed(5, 6, 100.0, 0.0, "HTTP 503")
    one.succeeded(6)
    assert one.failing
    one.succeeded(7)
    assert (one.failing, one.until) == (False, 0.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000)), min_size=1))
def test_retry_after_holds_through_a_streak(failures: list[tuple[float, float]]) -> None:
    """`until` is never earlier than any Retry-After that was given in the streak."""
    one = pause()
    now = 0.0
    floor = 0.0
    for number, (step, retry_after) in enumerate(failures):
        now += step
        floor = max(floor, now + retry_after)
        one.failed(number, number, now, retry_after, "")
        assert one.until >= floor


OTHER = Lane("phc_otherotherother1")


def offer(rig: Rig, *names: str, lane: Lane = LANE) -> Ack:
    """A unit of events of one person each; its ack."""
    raw = [event(name) for name in names]
    chunk = chunk_of(raw, rig.clock.now(), lane, rig.ordering)
    chunk.ack = Ack(len(raw), IntakeCallback())
    rig.books.receive(lane, "kafka", len(raw))
    rig.buffer.offer([chunk])
    rig.delivery.wake()
    return chunk.ack


def settle(rig: Rig, chunks: list[Chunk]) -> list[str]:
    """Drop what was taken back; the events' names."""
    for chunk in chunks:
        rig.books.drop(chunk.lane, DropReason.RETURNED_TO_BROKER, chunk.count)
        rig.buffer.settle([chunk], DropReason.RETURNED_TO_BROKER)
    rig.assert_balanced()
    return [
        str(one).split('"event":"')[1].split('"')[0] for chunk in chunks for one in chunk.events()
    ]


async def test_a_batch_that_waits_for_its_retry_is_returned() -> None:
    """Its batch goes without it, in order; another lane's stays."""
    async with Upstream(lambda _: plain(500)) as upstream, Rig(upstream) as rig:
        acks = [offer(rig, f"a{number}", f"b{number}") for number in range(3)]
        other = offer(rig, "c", lane=OTHER)
        await rig.until(lambda: len(upstream.requests) >= 4 and not rig.tap.busy)
        assert settle(rig, rig.delivery.withdraw([acks[1], other], LANE)) == ["a1", "b1"]
        assert rig.delivery.withdraw([acks[1]]) == []
        upstream.script.clear()
        upstream.answer = lambda _: Answer()
        await rig.run_until_empty()
        assert [name for name in upstream.delivered if name != "c"] == ["a0", "b0", "a2", "b2"]
        assert "c" in upstream.delivered
        rig.assert_balanced()


async def test_events_in_flight_are_not_returned() -> None:
    """It may have arrived."""
    release = asyncio.Event()
    async with Upstream(lambda _: Answer(when=release)) as upstream, Rig(upstream) as rig:
        ack = offer(rig, "a")
        await rig.until(lambda: rig.tap.busy == 1)
        assert rig.delivery.withdraw([ack]) == []
        release.set()
        await rig.run_until_empty()
        assert upstream.delivered == ["a"]


async def test_a_drain_ends_when_the_rest_is_returned() -> None:
    """No one waits for what is gone."""
    async with Upstream(lambda _: plain(500)) as upstream, Rig(upstream) as rig:
        ack = offer(rig, *[f"e{number}" for number in range(3)])
        await rig.until(lambda: bool(upstream.requests) and not rig.tap.busy)
        drained = asyncio.create_task(rig.delivery.drain(25.0))
        await rig.until(lambda: not rig.tap.busy)
        settle(rig, rig.delivery.withdraw([ack]))
        await rig.until(drained.done)
        assert drained.result() is True


async def test_a_halted_lane_that_returned_everything_sends_later_events() -> None:
    """The event that was refused alone is gone as well; the next one is a probe."""
    async with Upstream(lambda _: plain(400)) as upstream, Rig(upstream) as rig:
        ack = offer(rig, "bad", "worse")
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: not rig.tap.busy)
        settle(rig, rig.delivery.withdraw([ack]) + rig.buffer.withdraw([ack]))
        assert rig.buffer.used == 0
        upstream.answer = lambda _: Answer()
        rig.offer(events(3, "good"))
        await rig.run_until_empty()
        assert sorted(upstream.delivered) == ["good0", "good1", "good2"]
        assert rig.halt_reason() is None
