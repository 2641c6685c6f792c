"""Every row of the outcome table, from the upstream's bytes to settled events, over
real sockets.
"""

from __future__ import annotations

from forwarder.core.outcome import HaltReason
from forwarder.core.ports import Ordering, Reason
from tests.delivery.rig import Rig, event, events
from tests.support.cases import cases
from tests.support.upstream import OK, Answer, Fault, Upstream, failing, plain

HTML = Answer(200, b"<html>Please log in</html>", {"Content-Type": "text/html; charset=utf-8"})


def json_answer(status: int, body: bytes) -> Answer:
    """An answer with a JSON content type."""
    return Answer(status, body)


@cases("answer", [OK, Answer(200, b""), json_answer(200, b'{"status":1}')])
async def test_200_with_json_or_nothing_is_delivered(answer: Answer) -> None:
    """A complete 200 with a JSON or empty body settles the events, without a warning."""
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        rig.offer(events(3))
        await rig.emptied()
        assert upstream.delivered == ["e0", "e1", "e2"]
        assert rig.delivery.statistics().warnings == {}
        assert rig.delivery.statistics().delivered == 3
        rig.assert_balanced()


@cases(
    ("answer", "kind"),
    [
        (Answer(204, b""), "other_2xx"),
        (plain(202, "queued"), "other_2xx"),
        (plain(200, "thanks"), "odd_body"),
        (json_answer(200, b'{"status":"Ok","quota_limited":["events"]}'), "quota_limited"),
    ],
)
async def test_odd_answers_are_delivered_with_a_warning(answer: Answer, kind: str) -> None:
    """Another 2xx, a body that isn't JSON and `quota_limited` count as delivered, and are counted
    by kind.
    """
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        rig.offer(events(2))
        await rig.emptied()
        assert len(upstream.requests) == 1
        assert rig.delivery.statistics().warnings == {kind: 1}


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
    nothing is lost, nothing buried.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.extend([answer, answer])
        rig.offer(events(2))
        waited = await rig.emptied()
        assert len(upstream.requests) == 3
        assert upstream.delivered == ["e0", "e1"]
        assert waited >= 0.5 + 1.0
        assert len({request.wire for request in upstream.requests if request.wire}) == 1
        assert rig.buried() == []
        rig.assert_balanced()


async def test_a_hang_ends_with_the_time_out_and_is_retried() -> None:
    """An upstream that never answers costs the time-out; then the batch is tried again."""
    async with Upstream() as upstream, Rig(upstream, timeout=0.1) as rig:
        upstream.script.append(failing(Fault.HANG))
        rig.offer(events(2))
        await rig.until(lambda: rig.delivery.statistics().upstream.failing)
        assert "0.1 s" in rig.delivery.statistics().upstream.why
        await rig.emptied()
        assert upstream.delivered == ["e0", "e1"]
        assert rig.delivery.statistics().requests == {"error": 1, "200": 1}


async def test_retry_after_is_never_cut_short() -> None:
    """However short the backoff would be, no attempt comes before Retry-After."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.append(plain(503, retry_after="40"))
        rig.offer(events(1))
        waited = await rig.emptied()
        assert 41.0 <= waited <= 43.0


async def test_a_date_as_retry_after_is_understood() -> None:
    """Retry-After as an HTTP date counts from the clock's now."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.append(plain(429, retry_after="Thu, 01 Jan 2026 00:01:00 GMT"))
        rig.offer(events(1))
        assert 60.0 <= await rig.emptied() <= 62.0


async def test_413_splits_the_batch_and_lowers_the_lanes_limit() -> None:
    """A body too large goes in halves, left first; for a while the lane makes
    smaller batches at once.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: OK if len(request.body) < 1200 else plain(413, "too big")
        rig.offer(events(16))
        await rig.emptied()
        assert upstream.delivered == [f"e{number}" for number in range(16)]
        assert rig.buried() == []
        refused = rig.delivery.statistics().requests["413"]
        rig.offer(events(16, "f"))
        await rig.emptied()
        assert rig.delivery.statistics().requests["413"] == refused


async def test_a_single_event_too_large_becomes_a_dead_letter() -> None:
    """An event that alone is refused with 413 is kept as a dead letter with the upstream's words;
    the others are delivered.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: plain(413, "over 1 MB") if "big" in request.names else OK
        rig.offer([*events(3), event("big"), *events(2, "f")])
        await rig.emptied()
        assert upstream.delivered == ["e0", "e1", "e2", "f0", "f1"]
        assert [(letter.reason, letter.why) for letter in rig.dead_letters.dead_letters] == [
            (Reason.TOO_LARGE, "HTTP 413: over 1 MB")
        ]
        rig.assert_balanced()


async def test_413_to_a_lone_event_is_no_proof_against_it() -> None:
    """As with 400: it is kept, and the lane halts, until another event is accepted; then it is
    sent once more, and is a dead letter.
    """
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.answer = lambda request: plain(413, "over 1 MB") if "big" in request.names else OK
        rig.offer([event("big")])
        await rig.halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 4)
        assert rig.buried() == []
        rig.offer([event("good")])
        await rig.emptied()
        assert upstream.delivered == ["good"]
        assert [(letter.reason, letter.why) for letter in rig.dead_letters.dead_letters] == [
            (Reason.TOO_LARGE, "HTTP 413: over 1 MB")
        ]
        assert rig.halt_reason() is None
        rig.assert_balanced()


@cases("ordering", list(Ordering))
async def test_413_to_everything_halts_the_lane_without_a_lower_limit(ordering: Ordering) -> None:
    """No event becomes a dead letter; when it is over all are delivered once, and new ones in one
    batch again.
    """
    async with Upstream(lambda _: plain(413)) as upstream, Rig(upstream, ordering=ordering) as rig:
        rig.offer(events(16))
        await rig.halted(HaltReason.REFUSES_ALL)
        await rig.until(lambda: len(upstream.requests) >= 10)
        assert rig.buried() == []
        upstream.answer = lambda _: OK
        await rig.emptied()
        assert sorted(rig.times_accepted().items()) == sorted(
            (f"e{number}", 1) for number in range(16)
        )
        before = len(upstream.requests)
        rig.offer(events(16, "f"))
        await rig.emptied()
        assert len(upstream.requests) == before + 1


async def test_a_larger_accepted_body_ends_the_limit_of_413() -> None:
    """A proxy that answers 413 only for a moment doesn't keep batches small for minutes."""
    async with Upstream() as upstream, Rig(upstream, ordering=Ordering.NONE) as rig:
        upstream.script.extend([plain(413)] * 3)
        rig.offer(events(32))
        await rig.emptied()
        assert [len(request.names) for request in upstream.requests] == [32, 16, 8, 4, 4, 8, 16]
        rig.offer(events(16, "f"))
        await rig.emptied()
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
async def test_refusals_halt_the_lane_and_a_probe_resumes_it(
    answer: Answer, reason: HaltReason
) -> None:
    """A refusal stops the lane; one probe at a time, at growing intervals, finds out when it is
    over; then all is delivered once.
    """
    async with Upstream(lambda _: answer) as upstream, Rig(upstream) as rig:
        rig.offer(events(4))
        await rig.halted(reason)
        rig.offer(events(4, "f"))
        before = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) == before + 6)
        assert rig.clock.monotonic() - 1000 >= 1 + 2 + 4 + 8 + 16 + 32
        assert upstream.most_in_flight == 1
        assert [request.path for request in upstream.requests if request.path != "/batch/"] == []
        upstream.answer = lambda _: OK
        await rig.emptied()
        assert rig.times_accepted() == {
            f"{prefix}{number}": 1 for prefix in "ef" for number in range(4)
        }
        assert rig.halt_reason() is None
        assert rig.buried() == []
        rig.assert_balanced()


async def test_one_web_page_alone_is_only_retried() -> None:
    """200 with a web page may be an accident: the next answer decides."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.append(HTML)
        rig.offer(events(1))
        await rig.emptied()
        assert upstream.delivered == ["e0"]
        assert len(upstream.requests) == 2


async def test_web_pages_with_another_answer_between_them_dont_halt() -> None:
    """Only two web pages in a row mean a captive proxy."""
    async with Upstream() as upstream, Rig(upstream) as rig:
        upstream.script.extend([HTML, plain(500), HTML, plain(500), HTML])
        rig.offer(events(1))
        await rig.until(lambda: upstream.delivered == ["e0"] or rig.halt_reason() is not None)
        assert rig.halt_reason() is None


async def test_a_proxy_that_refuses_everything_halts_the_lane_and_buries_nothing() -> None:
    """400 to all that is sent, for hours: nothing is a dead letter; when it ends,
    every event is delivered.
    """
    async with Upstream(lambda _: plain(400, "computer says no")) as upstream, Rig(upstream) as rig:
        for number in range(5):
            rig.offer(events(40, f"r{number}-"))
        await rig.halted(HaltReason.REFUSES_ALL)
        await rig.clock.advance(0)
        probes = len(upstream.requests)
        await rig.until(lambda: len(upstream.requests) >= probes + 12)
        tried = [tuple(request.names) for request in upstream.requests[probes:]]
        assert len(set(tried)) == len(tried)
        assert all(len(names) == 1 for names in tried)
        assert rig.buried() == []
        upstream.answer = lambda _: OK
        await rig.emptied()
        assert sorted(rig.times_accepted().items()) == sorted(
            (f"r{n}-{m}", 1) for n in range(5) for m in range(40)
        )
        assert rig.buried() == []
        rig.assert_balanced()


async def test_dead_letters_full_halts_the_lane_and_keeps_the_events() -> None:
    """A refused event without a place to go stops its lane; when there is room, it goes there, and
    the lane continues.
    """
    async with Upstream() as upstream, Rig(upstream, dead_letter_bytes=10) as rig:
        upstream.answer = lambda request: plain(400, "bad") if "poison" in request.names else OK
        rig.offer([*events(3), event("poison"), *events(3, "f")])
        await rig.halted(HaltReason.DEAD_LETTERS_FULL)
        assert rig.buffer.statistics().events == 4
        rig.dead_letters.max_bytes = 10_000
        await rig.emptied()
        assert rig.buried() == ["poison"]
        assert upstream.delivered == ["e0", "e1", "e2", "f0", "f1", "f2"]
        rig.assert_balanced()
