"""What a tap sees of a whole pipeline: each event when it comes in and when it is settled, with
its reason.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from forwarder.core.ports import Incoming, Reason, ReplayedDeadLetter
from forwarder.core.taps import TapOutcome
from forwarder.telemetry.taps import TapFilter, TapRequest
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.whole import Whole, batch, event, events


class TapView:
    """What a tap on a pipeline has shown."""

    def __init__(self, whole: Whole, *outcomes: TapOutcome) -> None:
        self._whole = whole
        self._asked = TapRequest("tap", TapFilter(outcomes=outcomes, rate=1000))
        self.shown: list[tuple[str, ...]] = []
        self.look()

    def look(self) -> list[tuple[str, ...]]:
        """All that was shown by now: outcome, name, and reason if there is one."""
        for raw in self._whole.pipeline.tap(self._asked).events:
            one: dict[str, Any] = msgspec.json.decode(raw)
            self.shown.append(
                tuple(filter(None, (one["outcome"], one.get("event") or "-", one.get("reason"))))
            )
        return self.shown

    def count(self) -> Counter[tuple[str, ...]]:
        """How often each outcome, with its reason, was shown."""
        return Counter((outcome, *reason) for outcome, _, *reason in self.look())


async def test_events_come_in_and_are_settled() -> None:
    """In each way of decoding, and whatever becomes of them: delivered, rejected at receipt,
    refused, left at the end.
    """

    def answer(request: Request) -> Answer:
        if b"late" in request.body:
            return plain(500)
        return plain(400) if b"poison" in request.body else OK

    async with Upstream(answer) as upstream:
        whole = Whole(upstream.url)
        async with whole:
            watched = TapView(whole)
            await whole.take([event("one"), event("poison"), b'{"distinct_id":"x"}'])
            single = b'{"api_key":"phc_wholewholewhole12345",' + event("single")[1:]
            assert (await whole.send(post("/capture/", single))).status == 200
            await whole.emptied()
            seen = sorted(watched.look())
            assert seen == [
                ("dead-lettered", "-", "missing_event"),
                ("dead-lettered", "poison", "refused"),
                ("delivered", "one"),
                ("delivered", "single"),
                ("received", "one"),
                ("received", "poison"),
                ("received", "single"),
            ]
            await whole.take([event("late")])
        assert watched.look()[-1] == ("dead-lettered", "late", "undelivered_at_exit")


async def test_a_tap_shows_why_an_event_was_dropped() -> None:
    """What found no room, and what made room."""
    for rule in ("drop_newest", "drop_oldest"):
        buffer = {"max_bytes": "1MiB", "when_full": rule}
        async with (
            Upstream(lambda _: plain(500)) as upstream,
            Whole(upstream.url, FakeClock(), buffer=buffer) as whole,
        ):
            watched = TapView(whole, TapOutcome.DROPPED)
            for number in range(12):
                await whole.take(events(4, f"n{number}-", padding=30_000))
            assert (
                watched.count()["dropped", rule] == whole.total(lambda lane: lane.total_dropped) > 0
            )


async def test_a_tap_names_the_rule_that_dropped_an_event() -> None:
    """And the tap continues."""
    rules = [{"name": "noise", "match": {"event": "noise*"}, "drop": True}]
    async with Upstream() as upstream, Whole(upstream.url, rules=rules) as whole:
        watched = TapView(whole)
        await whole.take([event("noise"), event("kept")])
        await whole.emptied()
        assert watched.count() == {
            ("received",): 1,
            ("dropped", "rule:noise"): 1,
            ("delivered",): 1,
        }


async def test_a_dead_letter_that_is_replayed() -> None:
    """It was received once: now it is replayed, and then delivered."""
    async with Upstream() as upstream, Whole(upstream.url) as whole:
        watched = TapView(whole)
        replayed = Incoming(
            batch([event("again")]), source="replay", replayed=ReplayedDeadLetter(1, Reason.REFUSED)
        )
        assert whole.pipeline._parts.intake.accept(replayed, lambda _: None)
        await whole.until(lambda: len(watched.look()) == 2)
        assert watched.shown == [("replayed", "again"), ("delivered", "again")]
