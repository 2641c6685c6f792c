"""The shell: turns, concurrency, drain, close, statistics, memory."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
import structlog

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.outcome import HaltReason, Reply
from forwarder.core.ports import Ordering
from forwarder.delivery.batching import Batcher, BatchPolicy
from tests.delivery.rig import LANE, Rig, event, events
from tests.support.upstream import OK, Answer, Fault, Upstream, failing, plain

ONE = BatchPolicy(5_000_000, 1, 1.0)


async def test_a_full_batch_goes_at_once_and_another_when_it_is_old() -> None:
    """Size or count closes a batch within milliseconds, age after `max_age`."""
    async with Upstream() as upstream, Rig(upstream, batch=BatchPolicy(5_000_000, 3, 1.0)) as rig:
        rig.offer(events(3))
        await rig.clock.advance(0.006)
        await upstream.until(lambda: len(upstream.delivered) == 3)
        rig.offer(events(2, "f"))
        await rig.clock.advance(0.9)
        assert len(upstream.requests) == 1
        await rig.clock.advance(0.11)
        await upstream.until(lambda: len(upstream.delivered) == 5)


async def test_many_notifications_start_one_pass() -> None:
    """News of the buffer is gathered: a thousand requests within some milliseconds set
    one timer.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        await rig.clock.advance(0)
        for number in range(1000):
            rig.offer(events(1, f"r{number}-"))
        assert rig.clock.pending == 1
        await rig.run_until_empty()
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("fixed", [1, 3])
async def test_a_fixed_concurrency_is_never_passed(fixed: int) -> None:
    """`concurrency: N` means N."""
    release = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=release)) as upstream,
        Rig(upstream, concurrency=fixed, batch=ONE) as rig,
    ):
        rig.offer(events(10))
        await rig.clock.advance(1)
        await upstream.until(lambda: upstream.in_flight == fixed)
        assert rig.delivery.statistics().in_flight == fixed
        release.set()
        await rig.run_until_empty()
        assert upstream.most_in_flight == fixed


async def test_adaptive_concurrency_grows_and_shrinks() -> None:
    """While the upstream takes all, more goes at once; when it answers 503, less, and one request
    at a time until it is back.
    """
    async with (
        Upstream() as upstream,
        Rig(upstream, concurrency=None, batch=ONE, ordering=Ordering.NONE) as rig,
    ):
        rig.offer(events(400))
        await rig.run_until_empty()
        grown = rig.delivery.statistics().concurrency_limit
        assert grown > 8
        upstream.script.extend([plain(503)] * 25)
        rig.offer(events(100, "f"))
        await rig.until(lambda: not upstream.script)
        assert rig.delivery.statistics().concurrency_limit <= grown // 2
        await rig.run_until_empty()
        assert set(rig.times_accepted().values()) == {1}


async def test_one_request_tests_a_failing_upstream() -> None:
    """After a round of 503 over several lanes, single requests test the ground at growing
    intervals: no storm.
    """
    async with Upstream(lambda _: plain(503)) as upstream, Rig(upstream, concurrency=8) as rig:
        for number in range(20):
            rig.offer(events(3), Lane(f"phc_lane{number:010}"))
        await rig.until(lambda: rig.clock.monotonic() >= 1300)
        assert len(upstream.requests) <= 8 + 6 + 300 / 30
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert len(upstream.delivered) == 60


async def test_one_request_tests_a_failing_lane() -> None:
    """Several batches of a lane fail with 500: they are tried again one at a time, and no new
    batch is begun beside them.
    """
    async with (
        Upstream(lambda _: plain(500)) as upstream,
        Rig(upstream, concurrency=8, batch=ONE, ordering=Ordering.NONE) as rig,
    ):
        rig.offer(events(20))
        await rig.until(lambda: rig.delivery.statistics().requests.get("500", 0) >= 8)
        await rig.until(lambda: rig.clock.monotonic() >= 1300)
        assert len({request.wire for request in upstream.requests}) == 8
        assert len(upstream.requests) <= 8 + 6 + 300 / 30
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert len(upstream.delivered) == 20


async def test_a_second_request_of_ordered_events_waits_a_moment() -> None:
    """Under `per_distinct_id` a lane makes a further request beside one in flight once that has
    taken a while: a fast upstream needs none.
    """
    release = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=release)) as upstream,
        Rig(upstream, batch=ONE) as rig,
    ):
        rig.offer(events(4))
        await rig.clock.advance(0.01)
        await upstream.until(lambda: upstream.in_flight == 1)
        await rig.clock.advance(0.03)
        assert len(upstream.requests) == 1
        await rig.clock.advance(0.02)
        await upstream.until(lambda: upstream.in_flight == 2)
        release.set()
        await rig.run_until_empty()


async def test_429_pauses_its_lane_alone() -> None:
    """A lane that is asked to slow down waits; the others continue."""
    busy = Lane("phc_busybusybusy")
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: (
            plain(429, retry_after="100") if request.api_key == busy.api_key else OK
        )
        rig.offer(events(1, "busy"), busy)
        await rig.until(lambda: len(upstream.requests) == 1)
        for number in range(10):
            rig.offer(events(2, f"r{number}-"))
            expected = 2 * (number + 1)
            # B023: the wait ends before the next round.
            await rig.until(lambda: len(upstream.delivered) == expected)  # noqa: B023
        assert sum(request.api_key == busy.api_key for request in upstream.requests) == 1


async def test_a_batch_that_always_fails_doesnt_hold_up_the_others() -> None:
    """What was begun beside a batch that always gets 500 is delivered all the same."""
    async with (
        Upstream() as upstream,
        Rig(upstream, concurrency=4, batch=ONE, ordering=Ordering.NONE) as rig,
    ):
        upstream.answer = lambda request: plain(500) if "e0" in request.names else OK
        rig.offer(events(4))
        await rig.until(lambda: sorted(upstream.delivered) == ["e1", "e2", "e3"])


async def test_historical_lanes_give_way_but_arent_starved() -> None:
    """While live events wait, a historical lane gets one request in twenty."""
    history = LANE._replace(historical=True)
    async with Upstream() as upstream, Rig(upstream, concurrency=1, batch=ONE) as rig:
        rig.offer(events(30, "old"), history)
        rig.offer(events(100, "new"))
        await rig.run_until_empty()
        order = [request.json.get("historical_migration", False) for request in upstream.requests]
        last_live = len(order) - order[::-1].index(False) - 1
        assert 3 <= sum(order[: last_live + 1]) <= 7


async def test_pending_historical_work_gives_way_too() -> None:
    """The halves of a historical batch that was split don't go before live events, except one
    request in twenty.
    """
    history = LANE._replace(historical=True)
    async with (
        Upstream() as upstream,
        Rig(upstream, concurrency=1, batch=BatchPolicy(5_000_000, 64, 1.0)) as rig,
    ):
        upstream.answer = lambda request: (
            plain(413)
            if request.json.get("historical_migration") and len(request.names) > 1
            else OK
        )
        rig.offer(events(64, "old"), history)
        await rig.clock.advance(0.006)
        rig.offer(events(64 * 100, "new"))
        await rig.until(lambda: sum(name.startswith("new") for name in upstream.delivered) == 6400)
        historical = [
            request.json.get("historical_migration", False) for request in upstream.requests
        ]
        beside = historical[
            historical.index(False) : len(historical) - historical[::-1].index(False)
        ]
        assert 3 <= sum(beside) <= 1 + len(beside) / 20
        await rig.run_until_empty()


async def test_drain_sends_what_isnt_due() -> None:
    """Draining delivers batches that wait for company, at once, and says that nothing is left."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        assert await rig.delivery.drain(25.0)
        assert upstream.delivered == ["e0", "e1", "e2"]
        assert rig.clock.monotonic() == 1000.0


async def test_drain_ends_at_its_deadline() -> None:
    """An upstream that fails until the end: drain returns False in time, and what is left is named
    after close.
    """
    async with Upstream(lambda _: plain(503)) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        rig.offer(events(2, "other"), Lane("phc_otherotherother"))
        drained = asyncio.create_task(rig.delivery.drain(25.0))
        await rig.until(drained.done)
        assert drained.result() is False
        assert 25.0 <= rig.clock.monotonic() - 1000.0 <= 26.0
        await rig.delivery.close()
        left = sum(chunk.count for chunk in rig.delivery.undelivered())
        waiting = sum(rig.buffer.queue(lane).events for lane in rig.buffer.waiting_lanes())
        assert left + waiting == 5
        assert left > 0


async def test_drain_probes_halted_lanes_once_more() -> None:
    """A halted lane gets a last probe at once; without success: drain ends without waiting for the
    deadline; in time: all is delivered.
    """
    async with Upstream(lambda _: plain(403)) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        await rig.run_until_halted(HaltReason.FORBIDDEN)
        before = rig.clock.monotonic()
        tried = len(upstream.requests)
        drained = asyncio.create_task(rig.delivery.drain(25.0))
        await rig.until(drained.done)
        assert (drained.result(), len(upstream.requests)) == (False, tried + 1)
        assert rig.clock.monotonic() - before < 1.0
        upstream.answer = lambda _: OK
        again = asyncio.create_task(rig.delivery.drain(25.0))
        await rig.until(again.done)
        assert again.result() is True


async def test_drain_asks_about_a_refused_key_once_more() -> None:
    """A lane halted by the key check is asked about at `/decide` a last time, and never sent to
    `/batch/` on suspicion.
    """
    async with (
        Upstream(decide=lambda _: plain(401)) as upstream,
        Rig(upstream, verify_keys=True) as rig,
    ):
        rig.offer(events(3))
        await rig.run_until_halted(HaltReason.UNKNOWN_KEY)
        asked = len(upstream.decides)
        drained = asyncio.create_task(rig.delivery.drain(25.0))
        await rig.until(drained.done)
        assert drained.result() is False
        assert len(upstream.decides) >= asked + 1
        assert upstream.requests == []


async def test_a_drain_while_it_works_ends_with_the_first_failure() -> None:
    """An upstream that fails isn't waited for, and no halted lane is probed; one that
    accepts gets everything.
    """
    async with Upstream(lambda _: plain(503)) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        drained = asyncio.create_task(rig.delivery.drain_while_it_works(25.0))
        await rig.until(drained.done)
        assert (drained.result(), len(upstream.requests)) == (False, 1)
        assert rig.clock.monotonic() - 1000.0 < 1.0
    async with Upstream() as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        assert await rig.delivery.drain_while_it_works(25.0)
        assert upstream.delivered == ["e0", "e1", "e2"]


async def test_what_is_in_flight_is_finished_and_nothing_begun() -> None:
    """Requests in flight are waited for, while what comes meanwhile waits,
    until deliveries are resumed.
    """
    now = asyncio.Event()
    async with Upstream(lambda _: Answer(when=now)) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        await rig.clock.advance(1)
        await upstream.until(lambda: upstream.in_flight == 1)
        finished = asyncio.create_task(rig.delivery.finish_in_flight(25.0))
        rig.offer(events(2, "later"))
        await rig.clock.advance(5.0)
        assert not finished.done()
        now.set()
        await rig.until(finished.done)
        assert upstream.delivered == ["e0", "e1", "e2"]
        rig.delivery.resume()
        await rig.until(lambda: len(upstream.delivered) == 5)


async def test_close_cancels_what_is_in_flight() -> None:
    """After close no request is in flight, no timer is set, and the events that were are among the
    undelivered, in order.
    """
    async with (
        Upstream(lambda _: failing(Fault.HANG)) as upstream,
        Rig(upstream, concurrency=2, batch=ONE) as rig,
    ):
        rig.offer(events(3))
        await rig.clock.advance(1)
        await upstream.until(lambda: upstream.in_flight == 2)
        await rig.delivery.close()
        await upstream.until(lambda: upstream.in_flight == 0)
        names = [event(f"e{number}") for number in range(2)]
        assert [chunk.data for chunk in rig.delivery.undelivered()] == names
        rig.delivery.wake()  # as by a buffer that is closed later
        assert rig.clock.pending == 0
        assert rig.buffer.statistics().events == 3


async def test_statistics_tell_what_happened() -> None:
    """Requests by code, histograms, the upstream's state, halts with what to do."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.extend([plain(503, "busy"), OK, plain(403)])
        rig.offer(events(4))
        await rig.until(lambda: rig.delivery.statistics().upstream.failing)
        now = rig.delivery.statistics()
        assert now.upstream.why == "HTTP 503: busy"
        await rig.run_until_empty()
        rig.offer(events(4, "f"))
        await rig.run_until_halted(HaltReason.FORBIDDEN)
        now = rig.delivery.statistics()
        assert now.requests == {"503": 1, "200": 1, "403": 1}
        assert (now.delivered, now.in_flight, now.upstream.failing) == (4, 0, False)
        assert (
            sum(now.durations.counts),
            sum(now.batch_bytes.counts),
            sum(now.batch_events.counts),
        ) == (3, 3, 3)
        assert now.batch_events.total == 12
        assert [(report.lane, report.reason) for report in now.halts] == [
            (LANE, HaltReason.FORBIDDEN)
        ]


async def test_no_key_is_in_the_logs() -> None:
    """Halts, dead letters and warnings are logged under the lane's label, though the upstream
    repeats the key in its words.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        words = f"bad event of {LANE.api_key}"
        upstream.answer = lambda request: (
            plain(400, words) if "bad" in request.names else plain(202)
        )
        with structlog.testing.capture_logs() as logs:
            rig.offer([event("bad")])
            await rig.run_until_halted(HaltReason.REFUSES_ALL)
            rig.offer(events(3))
            rig.offer(events(3, "f"))
            await rig.run_until_empty()
        assert {line["event"] for line in logs} >= {
            "lane halted",
            "events became dead letters",
            "delivered, but the answer was odd",
        }
        assert LANE.api_key not in str(logs)
        assert LANE.api_key not in str([letter.why for letter in rig.dead_letters.dead_letters])
        assert sum(line["event"] == "delivered, but the answer was odd" for line in logs) == 1


async def test_a_lane_that_keeps_failing_is_logged_once() -> None:
    """The third failure of a lane in a row is a line in the log, later ones aren't, and so is its
    end; a key isn't in it.
    """
    answers = [plain(500, "broken")] * 6
    async with (
        Upstream(lambda _: answers.pop() if answers else OK) as upstream,
        Rig(upstream) as rig,
    ):
        with structlog.testing.capture_logs() as logs:
            rig.offer(events(2))
            await rig.run_until_empty()
        reported = [(line["event"], line["log_level"]) for line in logs]
        assert reported == [
            ("lane keeps failing, its deliveries wait", "warning"),
            ("lane recovered", "info"),
        ]
        assert logs[0]["upstream_said"] == "HTTP 500: broken"
        assert LANE.api_key not in str(logs)
        assert rig.delivery.statistics().retries == []


async def test_a_sink_that_raises_loses_nothing() -> None:
    """A fault of our own in the sink is logged, and the batch is tried again."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        inner = rig.tap.inner

        class FaultySink:
            async def send(self, batch: Batch) -> Reply:
                rig.tap.inner = inner
                raise KeyError("a bug")

        rig.tap.inner = FaultySink()
        rig.offer(events(2))
        with structlog.testing.capture_logs() as logs:
            await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1"]
        assert [line["log_level"] for line in logs if "unexpected" in line["event"]] == ["error"]


async def test_a_fault_in_a_pass_doesnt_end_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own while batches are made is logged, and delivery
    continues with the next event.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        due_at = Batcher.due_at

        def broken(self: Batcher, lane: Lane, now: float) -> float | None:
            monkeypatch.setattr(Batcher, "due_at", due_at)
            raise KeyError("a bug")

        monkeypatch.setattr(Batcher, "due_at", broken)
        with structlog.testing.capture_logs() as logs:
            rig.offer(events(2))
            await rig.clock.advance(2)
            rig.offer(events(1, "f"))
            await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1", "f0"]
        assert sum("unexpected" in line["event"] for line in logs) == 1


async def test_a_hanging_upstream_costs_compressed_copies_only() -> None:
    """Eight requests of 4 MB hang: what delivery holds of them is their compressed bodies, not
    eight bodies.
    """
    body = b'{"event":"x","distinct_id":"y","properties":{"z":"%b"}}' % (b"z" * 2000)
    async with (
        Upstream(lambda _: failing(Fault.HANG)) as upstream,
        Rig(upstream, concurrency=8, ordering=Ordering.NONE) as rig,
    ):
        for _ in range(16):
            rig.buffer.offer(
                [
                    Chunk(LANE, b",".join([body] * 1000), 1000, frozenset(), rig.clock.now())
                    for _ in range(1)
                ]
            )
        tracemalloc.start()
        rig.delivery.wake()
        await rig.clock.advance(1)
        await upstream.until(lambda: upstream.in_flight == 8)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 6_000_000
