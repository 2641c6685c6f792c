"""Outcomes of docs/explanation/delivery.md, from the upstream's bytes to settled events, over real
sockets. 400 to some of the events: `test_poison.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forwarder.core.outcome import HaltReason
from forwarder.core.ports import Ordering, Reason
from tests.delivery.rig import BATCHES, RETRIES, Rig, event, events
from tests.support.cases import cases
from tests.support.upstream import OK, Answer, Fault, Upstream, failing, plain

HTML = Answer(200, b"<html>Please log in</html>", {"Content-Type": "text/html; charset=utf-8"})
FIRST_BACKOFF = RETRIES.initial
"""The rig's backoff takes the longest wait that is allowed."""
SECOND_BACKOFF = 2 * RETRIES.initial


@cases("answer", [OK, Answer(200, b""), Answer(200, b'{"status":1}')])
async def test_200_with_json_or_nothing_is_delivered(answer: Answer) -> None:
    """A complete 200 with a JSON or empty body settles the events, without a warning."""
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1", "e2"]
        assert rig.delivery.statistics().warnings == {}
        assert rig.delivery.statistics().delivered == 3
        rig.assert_balanced()


@cases(
    ("answer", "warning"),
    [
        (Answer(204, b""), "other_2xx"),
        (plain(202, "queued"), "other_2xx"),
        (plain(200, "thanks"), "odd_body"),
        (Answer(200, b'{"status":"Ok","quota_limited":["events"]}'), "quota_limited"),
    ],
)
async def test_batch_with_an_odd_answer_counts_as_delivered_with_a_warning(
    answer: Answer, warning: str
) -> None:
    """Another 2xx, a body that isn't JSON and `quota_limited`: the warning is counted by kind."""
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        rig.offer(events(2))
        await rig.run_until_empty()
        assert len(upstream.requests) == 1
        assert rig.delivery.statistics().warnings == {warning: 1}
        assert rig.delivery.statistics().delivered == 2


FAILURES = [
    *[plain(status, "later") for status in (408, 425, 429, 500, 502, 503, 504)],
    *[
        failing(fault)
        for fault in (Fault.RESET, Fault.RESET_IN_REQUEST, Fault.CLOSE, Fault.TRUNCATE)
    ],
]


@cases("answer", FAILURES, ids=[f"{answer.status}-{answer.fault.name}" for answer in FAILURES])
async def test_failures_are_retried_with_the_same_bytes(answer: Answer) -> None:
    """What may pass by itself is tried again with the same bytes, until it is delivered once;
    nothing is lost or dead-lettered.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.extend([answer, answer])
        rig.offer(events(2))
        waited = await rig.run_until_empty()
        assert len(upstream.requests) == 3
        assert upstream.delivered == ["e0", "e1"]
        assert waited >= FIRST_BACKOFF + SECOND_BACKOFF
        assert len({request.wire for request in upstream.requests if request.wire}) == 1
        assert rig.dead_letter_names() == []
        rig.assert_balanced()


async def test_a_hang_ends_with_the_time_out_and_is_retried() -> None:
    """An upstream that never answers costs the time-out; then the batch is tried again."""
    async with Upstream() as upstream, Rig(upstream, timeout=0.1) as rig:
        upstream.script.append(failing(Fault.HANG))
        rig.offer(events(2))
        await rig.until(lambda: rig.delivery.statistics().upstream.failing)
        assert "0.1 s" in rig.delivery.statistics().upstream.why
        await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1"]
        assert rig.delivery.statistics().requests == {"error": 1, "200": 1}


async def test_retry_after_is_never_cut_short() -> None:
    """However short the backoff would be, no attempt comes before Retry-After."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.append(plain(503, retry_after="40"))
        rig.offer(events(1))
        waited = await rig.run_until_empty()
        assert BATCHES.max_age + 40 <= waited <= BATCHES.max_age + 40 + 2


async def test_a_date_as_retry_after_is_understood() -> None:
    """Retry-After as an HTTP date counts from the clock's now."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        # 00:01:00 is 60 s after the clock's start
        upstream.script.append(plain(429, retry_after="Thu, 01 Jan 2026 00:01:00 GMT"))
        rig.offer(events(1))
        assert 60.0 <= await rig.run_until_empty() <= 62.0


async def test_413_splits_the_batch_and_lowers_the_lanes_limit() -> None:
    """A body too large goes in halves, left first; for a while the lane makes
    smaller batches at once.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: OK if len(request.body) < 1200 else plain(413, "too big")
        rig.offer(events(16))
        await rig.run_until_empty()
        assert upstream.delivered == [f"e{number}" for number in range(16)]
        assert rig.dead_letter_names() == []
        refused = rig.delivery.statistics().requests["413"]
        rig.offer(events(16, "f"))
        await rig.run_until_empty()
        assert rig.delivery.statistics().requests["413"] == refused


async def test_a_single_event_too_large_becomes_a_dead_letter() -> None:
    """An event that alone is refused with 413 is kept as a dead letter with the upstream's words;
    the others are delivered.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: plain(413, "over 1 MB") if "big" in request.names else OK
        rig.offer([*events(3), event("big"), *events(2, "f")])
        await rig.run_until_empty()
        assert upstream.delivered == ["e0", "e1", "e2", "f0", "f1"]
        assert [(letter.reason, letter.why) for letter in rig.dead_letters.dead_letters] == [
            (Reason.TOO_LARGE, "HTTP 413: over 1 MB")
        ]
        rig.assert_balanced()


async def test_event_answered_413_alone_is_dead_lettered_only_once_another_is_accepted() -> None:
    """As with 400: it is kept, and the lane halts, until another event is accepted; then it is
    sent once more, and is a dead letter.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: plain(413, "over 1 MB") if "big" in request.names else OK
        rig.offer([event("big")])
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 4)
        assert rig.dead_letter_names() == []
        rig.offer([event("good")])
        await rig.run_until_empty()
        assert upstream.delivered == ["good"]
        assert [(letter.reason, letter.why) for letter in rig.dead_letters.dead_letters] == [
            (Reason.TOO_LARGE, "HTTP 413: over 1 MB")
        ]
        assert rig.halt_reason() is None
        rig.assert_balanced()


@cases("ordering", list(Ordering))
async def test_413_to_every_event_halts_the_lane_and_leaves_no_body_limit(
    ordering: Ordering,
) -> None:
    """No event becomes a dead letter; when it is over all are delivered once, and new ones in one
    batch again.
    """
    async with Upstream(lambda _: plain(413)) as upstream, Rig(upstream, ordering=ordering) as rig:
        rig.offer(events(16))
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 10)
        assert rig.dead_letter_names() == []
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert sorted(rig.times_accepted().items()) == sorted(
            (f"e{number}", 1) for number in range(16)
        )
        before = len(upstream.requests)
        rig.offer(events(16, "f"))
        await rig.run_until_empty()
        assert len(upstream.requests) == before + 1


async def test_larger_accepted_body_raises_the_limit_that_a_413_set() -> None:
    """A proxy that answers 413 only for a moment doesn't keep batches small for minutes."""
    async with Upstream() as upstream, Rig(upstream, ordering=Ordering.NONE) as rig:
        upstream.script.extend([plain(413)] * 3)
        rig.offer(events(32))
        await rig.run_until_empty()
        assert [len(request.names) for request in upstream.requests] == [32, 16, 8, 4, 4, 8, 16]
        rig.offer(events(16, "f"))
        await rig.run_until_empty()
        assert len(upstream.requests[-1].names) > 8


HALTS = [
    (plain(401, "no such project"), HaltReason.UNKNOWN_KEY),
    (plain(403, "blocked"), HaltReason.FORBIDDEN),
    (plain(404), HaltReason.WRONG_ADDRESS),
    (plain(405), HaltReason.WRONG_ADDRESS),
    (plain(301, location="/elsewhere/"), HaltReason.WRONG_ADDRESS),
    (plain(307, location="/elsewhere/"), HaltReason.WRONG_ADDRESS),
    (plain(415), HaltReason.REJECTED),
    (plain(422, "no"), HaltReason.REJECTED),
    (HTML, HaltReason.CAPTIVE_PROXY),
]


@cases(("answer", "reason"), HALTS, ids=[str(answer.status) for answer, _ in HALTS])
async def test_halting_answer_stops_the_lane_until_a_probe_is_accepted(
    answer: Answer, reason: HaltReason
) -> None:
    """The halted lane sends one probe at a time, at growing intervals. Once one is accepted, all
    events are delivered once.
    """
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        began = rig.clock.monotonic()
        rig.offer(events(4))
        await rig.run_until_halted(reason)
        rig.offer(events(4, "f"))
        before = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) == before + 6)
        assert rig.clock.monotonic() - began >= 1 + 2 + 4 + 8 + 16 + 32  # the waits double
        assert [request.path for request in upstream.requests if request.path != "/batch/"] == []
        assert upstream.most_in_flight == 1
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert rig.times_accepted() == {
            f"{prefix}{number}": 1 for prefix in "ef" for number in range(4)
        }
        assert rig.halt_reason() is None
        assert rig.dead_letter_names() == []
        rig.assert_balanced()


@cases("status", [301, 307])
async def test_redirect_is_never_followed(status: int) -> None:
    """Neither the first request nor the probes of the halted lane go where a redirect leads."""
    redirect = plain(status, location="/elsewhere/")
    async with Upstream(lambda _: redirect) as upstream, Rig(upstream) as rig:
        rig.offer(events(4))
        await rig.until(lambda: len(upstream.requests) == 7)
        assert {request.path for request in upstream.requests} == {"/batch/"}


async def test_one_web_page_alone_is_only_retried() -> None:
    """200 with a web page may be an accident: the next answer decides."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.append(HTML)
        rig.offer(events(1))
        await rig.run_until_empty()
        assert upstream.delivered == ["e0"]
        assert len(upstream.requests) == 2


async def test_web_pages_with_another_answer_between_them_dont_halt() -> None:
    """Only two web pages in a row mean a captive proxy."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.extend([HTML, plain(500), HTML, plain(500), HTML])
        rig.offer(events(1))
        await rig.until(lambda: upstream.delivered == ["e0"] or rig.halt_reason() is not None)
        assert rig.halt_reason() is None


@asynccontextmanager
async def everything_refused() -> AsyncIterator[tuple[Upstream, Rig]]:
    """200 events, all answered 400, once their lane is halted."""
    async with Upstream(lambda _: plain(400, "computer says no")) as upstream, Rig(upstream) as rig:
        for number in range(5):
            rig.offer(events(40, f"r{number}-"))
        await rig.run_until_halted(HaltReason.REFUSES_ALL)
        yield upstream, rig


async def test_refuses_all_probes_with_a_different_single_event_each_time() -> None:
    """Each event may be the bad one, so no probe repeats one while there are others."""
    async with everything_refused() as (upstream, rig):
        before = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) >= before + 12)
        probes = [tuple(request.names) for request in upstream.requests[before:]]
        assert len(set(probes)) == len(probes)
        assert all(len(names) == 1 for names in probes)


async def test_refuses_all_dead_letters_nothing_and_delivers_all_afterwards() -> None:
    """400 to all that is sent, for minutes: nothing is a dead letter. When it ends, every event is
    delivered once.
    """
    async with everything_refused() as (upstream, rig):
        halted_at = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) >= halted_at + 12)
        assert rig.dead_letter_names() == []
        upstream.answer = lambda _: OK
        await rig.run_until_empty()
        assert sorted(rig.times_accepted().items()) == sorted(
            (f"r{n}-{m}", 1) for n in range(5) for m in range(40)
        )
        assert rig.dead_letter_names() == []
        rig.assert_balanced()


async def test_dead_letters_full_halts_the_lane_and_keeps_the_events() -> None:
    """A refused event without a place to go stops its lane; when there is room, it goes there, and
    the lane continues.
    """
    async with Upstream() as upstream, Rig(upstream, dead_letter_bytes=10) as rig:
        upstream.answer = lambda request: plain(400, "bad") if "poison" in request.names else OK
        rig.offer([*events(3), event("poison"), *events(3, "f")])
        await rig.run_until_halted(HaltReason.DEAD_LETTERS_FULL)
        assert rig.buffer.statistics().events == 4
        rig.dead_letters.max_bytes = 10_000
        await rig.run_until_empty()
        assert rig.dead_letter_names() == ["poison"]
        assert upstream.delivered == ["e0", "e1", "e2", "f0", "f1", "f2"]
        rig.assert_balanced()
