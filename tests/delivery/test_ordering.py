"""Events arrive in order at a scripted upstream, through splits, retries and events with two
ids.
"""

from __future__ import annotations

import asyncio

from forwarder.core.ports import Ordering
from forwarder.delivery.batching import BatchPolicy
from tests.delivery.rig import Rig, event, events
from tests.support.cases import cases
from tests.support.upstream import OK, Answer, Request, Upstream, plain

TWO_EVENTS = BatchPolicy(max_bytes=5_000_000, max_events=2, max_age=1.0)


def overlapping(requests: list[Request]) -> list[tuple[list[str], list[str]]]:
    """Pairs of requests that were in flight at the same time, by their events."""
    ordered = sorted(requests, key=lambda request: request.began)
    return [
        (first.names, second.names)
        for index, first in enumerate(ordered)
        for second in ordered[index + 1 :]
        if first.ended is None or second.began < first.ended
    ]


@cases("ordering", list(Ordering))
async def test_halves_of_a_split_batch_go_in_order(ordering: Ordering) -> None:
    """Under every ordering the halves of a batch that was too large go one after the other, the
    left one first.
    """
    async with Upstream() as upstream, Rig(upstream, ordering=ordering, concurrency=8) as rig:
        upstream.answer = lambda request: OK if len(request.names) <= 2 else plain(413)
        rig.offer([event(f"e{number}", "ann") for number in range(16)])
        await rig.run_until_empty()
        assert upstream.delivered == [f"e{number}" for number in range(16)]
        assert overlapping(upstream.requests) == []


async def test_ids_stay_blocked_until_both_halves_of_a_split_are_settled() -> None:
    """While the right half of a split batch is in flight, no later event of its ids is sent,
    though the left half is settled.
    """
    release = asyncio.Event()
    async with (
        Upstream() as upstream,
        Rig(upstream, concurrency=8, batch=BatchPolicy(5_000_000, 4, 1.0)) as rig,
    ):
        upstream.script.extend([plain(413), OK, Answer(when=release)])
        rig.offer([event(f"e{number}", "ann") for number in range(4)])
        await rig.clock.advance(0.01)
        await upstream.until(lambda: len(upstream.requests) == 3)
        rig.offer([event("later", "ann")])
        rig.offer([event("other", "bob")])
        await rig.clock.advance(2.0)
        await upstream.until(lambda: "other" in upstream.delivered)
        assert [request.names for request in upstream.requests[1:]] == [
            ["e0", "e1"],
            ["e2", "e3"],
            ["other"],
        ]
        release.set()
        await rig.run_until_empty()
        assert upstream.delivered[-1] == "later"


@cases("ordering", [Ordering.PER_DISTINCT_ID, Ordering.STRICT])
@cases("status", [429, 500, 503])
async def test_no_later_event_of_an_id_passes_a_retry(ordering: Ordering, status: int) -> None:
    """While an event waits to be sent again, no later event of its person is sent, though there is
    room for more requests.
    """
    async with (
        Upstream() as upstream,
        Rig(upstream, ordering=ordering, concurrency=8, batch=TWO_EVENTS) as rig,
    ):
        failed: set[str] = set()

        def answer(request: Request) -> Answer:
            first = request.names[0]
            if first in failed:
                return OK
            failed.add(first)
            return plain(status)

        upstream.answer = answer
        for number in range(8):
            rig.offer(
                [event(f"ann-{number}", "ann"), event(f"bob-{number}", "bob"), event(f"x-{number}")]
            )
        await rig.run_until_empty()
        for name in ("ann", "bob"):
            mine = [other for other in upstream.delivered if other.startswith(name)]
            assert mine == [f"{name}-{number}" for number in range(8)]
            sent = [
                request
                for request in upstream.requests
                if any(other.startswith(name) for other in request.names)
            ]
            assert overlapping(sent) == []
        assert set(rig.times_accepted().values()) == {1}


async def test_identify_waits_for_the_anonymous_events_that_it_claims() -> None:
    """`$identify` names the anonymous id, so it is sent after that id's events were taken, and
    their later ones after it.
    """
    release = asyncio.Event()
    async with Upstream() as upstream, Rig(upstream, concurrency=8, batch=TWO_EVENTS) as rig:
        upstream.script.append(Answer(when=release))
        rig.offer([event("page-1", "anon"), event("page-2", "anon")])
        await rig.clock.advance(1.0)
        await upstream.until(lambda: len(upstream.requests) == 1)
        rig.offer([event("$identify", "ann", **{"$anon_distinct_id": "anon"})])
        rig.offer([event("bystander")])
        rig.offer([event("after", "ann"), event("late-anon", "anon")])
        await rig.clock.advance(2.0)
        await upstream.until(lambda: upstream.delivered == ["bystander"])
        assert [request.names for request in upstream.requests] == [
            ["page-1", "page-2"],
            ["bystander"],
        ]
        release.set()
        await rig.run_until_empty()
        order = upstream.delivered
        assert (
            order.index("page-2")
            < order.index("$identify")
            < min(order.index("after"), order.index("late-anon"))
        )


@cases("earlier_id", ["user-1", "user-2"])
async def test_alias_waits_for_earlier_events_of_either_id(earlier_id: str) -> None:
    """`$create_alias` waits for events of either id."""
    release = asyncio.Event()
    async with Upstream() as upstream, Rig(upstream, concurrency=8) as rig:
        upstream.script.append(Answer(when=release))
        rig.offer([event("old", earlier_id)])
        await rig.clock.advance(1.0)
        await upstream.until(lambda: len(upstream.requests) == 1)
        rig.offer([event("$create_alias", "user-2", alias="user-1")])
        await rig.clock.advance(2.0)
        assert len(upstream.requests) == 1
        release.set()
        await rig.run_until_empty()
        assert upstream.delivered == ["old", "$create_alias"]


async def test_strict_makes_one_request_at_a_time() -> None:
    """Under `strict` the lane's events arrive in order of receipt, with one request in flight,
    through failures and splits.
    """
    async with (
        Upstream() as upstream,
        Rig(
            upstream, ordering=Ordering.STRICT, concurrency=8, batch=BatchPolicy(5_000_000, 4, 1.0)
        ) as rig,
    ):
        upstream.script.extend([plain(500), OK, plain(503), plain(413), OK, plain(429)])
        for number in range(5):
            rig.offer(events(4, f"r{number}-"))
        await rig.run_until_empty()
        assert upstream.delivered == [f"r{n}-{m}" for n in range(5) for m in range(4)]
        assert upstream.most_in_flight == 1


async def test_strict_resends_refused_batches_oldest_first_once_a_probe_is_accepted() -> None:
    """The probe "c" goes early and is accepted. Then "a" is sent before "b", even after another
    failure.
    """
    answers = {"a": [plain(400), plain(500), OK], "b": [plain(400), OK], "c": [OK], "d": [OK]}
    async with (
        Upstream() as upstream,
        Rig(upstream, ordering=Ordering.STRICT, batch=BatchPolicy(5_000_000, 1, 1.0)) as rig,
    ):
        upstream.answer = lambda request: answers[request.names[0]].pop(0)
        rig.offer([event(name) for name in "abcd"])
        await rig.run_until_empty()
        assert upstream.delivered == ["c", "a", "b", "d"]


@cases("ordering", [Ordering.PER_DISTINCT_ID, Ordering.STRICT])
async def test_probe_never_sends_a_later_event_of_the_refused_events_id(ordering: Ordering) -> None:
    """All fresh events share the refused event's id, so the probes resend the refused event."""
    async with (
        Upstream() as upstream,
        Rig(upstream, ordering=ordering, batch=BatchPolicy(5_000_000, 1, 1.0)) as rig,
    ):
        upstream.script.extend([plain(400), plain(400)])
        rig.offer([event("a1", "ann"), event("a2", "ann"), event("a3", "ann")])
        await rig.run_until_empty()
        assert upstream.delivered == ["a1", "a2", "a3"]
        assert [request.names[0] for request in upstream.requests] == ["a1", "a1", "a1", "a2", "a3"]


async def test_without_ordering_requests_go_in_parallel() -> None:
    """Under `none` the same person's events may be in several requests at
    once: that is what it is for.
    """
    release = asyncio.Event()
    held = Upstream(lambda _: Answer(when=release))
    async with (
        held as upstream,
        Rig(upstream, ordering=Ordering.NONE, concurrency=3, batch=TWO_EVENTS) as rig,
    ):
        for number in range(6):
            rig.offer([event(f"e{number}", "ann")])
        await rig.clock.advance(1.0)
        await upstream.until(lambda: upstream.in_flight == 3)
        release.set()
        await rig.run_until_empty()
        assert upstream.most_in_flight == 3
