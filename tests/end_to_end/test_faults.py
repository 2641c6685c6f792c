"""What the upstream can do wrong, through the whole pipeline: nothing is lost, and nothing is sent
twice without need.
"""

from __future__ import annotations

import pytest

from tests.support.upstream import OK, Answer, Fault, Request, Upstream, failing, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole, accepted, always_balanced, events

PASSING = [
    plain(503, "busy", retry_after="3"),
    plain(429, "slow down", retry_after="2"),
    plain(500, "boom"),
    plain(502),
    plain(408),
    failing(Fault.RESET_IN_REQUEST),
    failing(Fault.RESET),
    failing(Fault.CLOSE),
    failing(Fault.TRUNCATE),
]


@pytest.mark.parametrize(
    "answer", PASSING, ids=[f"{answer.status}-{answer.fault.name}" for answer in PASSING]
)
async def test_temporary_failures_are_retried(answer: Answer) -> None:
    """Each kind of failure, several times in a row, then none: every event is accepted once, and
    the books balance all the time.
    """
    sent = events(60)
    async with Upstream() as upstream, Whole(upstream.url, batch={"max_events": 10}) as whole:
        upstream.script.extend([answer] * 3)
        with always_balanced(whole.pipeline):
            for start in range(0, 60, 5):
                await whole.take(sent[start : start + 5])
            await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert len(upstream.requests) >= 4
        assert whole.total(lambda lane: lane.delivered) == 60
    assert whole.left == []


async def test_retry_after_holds_for_the_whole_upstream() -> None:
    """After 503 with Retry-After nothing is sent before that time, of no lane; then all is."""
    arrived: list[float] = []
    async with Upstream() as upstream, Whole(upstream.url) as whole:

        def answer(_: Request) -> Answer:
            arrived.append(whole.clock.monotonic())
            return OK

        upstream.answer = answer
        upstream.script.append(plain(503, retry_after="20"))
        await whole.take(events(3, "one"), "phc_onlanenumberone1")
        before = whole.clock.monotonic()
        await eventually(lambda: whole.snapshot.upstream.state == "down")
        await whole.take(events(3, "two"), "phc_onlanenumbertwo2")
        await whole.emptied()
        assert min(arrived) >= before + 20.0
        assert len(upstream.requests) == 3
        assert set(accepted(upstream).values()) == {1}


async def test_a_refused_connection_is_waited_out() -> None:
    """Nothing listens at the upstream's address; senders are answered 200 meanwhile. When it is
    back, everything is there once.
    """
    sent = events(40)
    async with Upstream() as upstream:
        await upstream.stop()
        async with Whole(upstream.url) as whole:
            with always_balanced(whole.pipeline):
                for start in range(0, 40, 10):
                    await whole.take(sent[start : start + 10])
                await eventually(lambda: whole.snapshot.upstream_requests.get("error", 0) >= 3)
                assert whole.total(lambda lane: lane.buffered) == 40
                assert whole.snapshot.ready
                async with upstream:
                    await whole.emptied()
                    assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_a_hang_past_the_time_out_is_tried_again() -> None:
    """An upstream that never answers costs the time-out, and no event."""
    sent = events(10)
    async with Upstream() as upstream, Whole(upstream.url, upstream={"timeout": "100ms"}) as whole:
        upstream.script.extend([failing(Fault.HANG)] * 2)
        await whole.take(sent)
        await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert whole.snapshot.upstream_requests == {"error": 2, "200": 1}


async def test_an_accepted_batch_without_an_answer_is_sent_again_unchanged() -> None:
    """When the answer is lost after the upstream took the events, they arrive again: the same
    bytes, so that it can tell.
    """
    sent = events(10)
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        upstream.script.extend([failing(Fault.TRUNCATE), failing(Fault.RESET)])
        await whole.take(sent)
        await whole.emptied()
        assert len(upstream.requests) == 3
        assert len({request.wire for request in upstream.requests}) == 1


async def test_413_splits_until_it_fits() -> None:
    """A body that the upstream finds too large goes in smaller ones; no event is
    lost, doubled or buried.
    """
    sent = events(64, padding=200)
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        upstream.answer = lambda request: (
            OK if len(request.body) < 2000 else plain(413, "too large")
        )
        with always_balanced(whole.pipeline):
            await whole.take(sent)
            await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert whole.total(lambda lane: lane.total_dead) == 0


async def test_everything_at_once() -> None:
    """Failures of all kinds in a row while requests keep coming in: each event is accepted once,
    the books balance at every instant.
    """
    sent = events(300)
    async with (
        Upstream() as upstream,
        Whole(upstream.url, upstream={"timeout": "2s"}, batch={"max_events": 20}) as whole,
    ):
        upstream.script.extend(
            [
                *PASSING,
                OK,
                plain(413),
                *reversed(PASSING),
                failing(Fault.HANG),
                OK,
                plain(413),
                plain(503),
            ]
        )
        with always_balanced(whole.pipeline):
            for start in range(0, 300, 6):
                await whole.take(sent[start : start + 6])
            await whole.emptied()
        assert accepted(upstream) == dict.fromkeys(sent, 1)
        assert whole.total(lambda lane: lane.delivered) == 300


@pytest.mark.parametrize("status", [401, 403, 404, 415, 307])
async def test_a_refusal_halts_the_lane_alone_and_passes_by_itself(status: int) -> None:
    """The refused lane's events are kept while another's are delivered; when the upstream changes
    its mind, they are too.
    """
    bad = "phc_badbadbadbad12345"
    good = "phc_goodgoodgood12345"
    refusing = True
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        upstream.answer = lambda request: (
            plain(status, "no") if refusing and request.api_key == bad else OK
        )
        await whole.take(events(5, "bad"), bad)
        await eventually(lambda: any(lane.halted for lane in whole.snapshot.lanes))
        await whole.take(events(5, "good"), good)
        await eventually(lambda: len(upstream.delivered) == 5)
        # the answer is on its way back yet
        await eventually(lambda: whole.total(lambda lane: lane.buffered) == 5)
        assert whole.snapshot.ready
        refusing = False
        await whole.emptied()
        assert set(accepted(upstream).values()) == {1}
        assert len(accepted(upstream)) == 10
        assert not any(lane.halted for lane in whole.snapshot.lanes)
