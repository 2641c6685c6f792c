"""Taps: what they choose, what they count, and what they never do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from forwarder.core.event import NO_IDS, Chunk, Lane, split_events
from forwarder.core.ports import DeadLetter, Reason
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.telemetry import taps
from forwarder.telemetry.labels import key_label
from forwarder.telemetry.taps import (
    FORGOTTEN_AFTER,
    QUEUE_BYTES,
    TapBatch,
    TapFilter,
    TapRequest,
    Taps,
    merged,
)
from tests.support.cases import cases
from tests.support.clock import NANOSECONDS, FakeClock

KEY = "phc_tappedtappedtapped1234"


def chunk(*names: str, source: str = "http", key: str = KEY, more: str = "") -> Chunk:
    """Events of these names."""
    data = ",".join(
        f'{{"event":{json.dumps(name)},"distinct_id":"a","properties":{{"password":"x"{more}}}}}'
        for name in names
    )
    return Chunk(Lane(key), data.encode(), len(names), NO_IDS, 0.0, source)


class Tapped:
    """A tap with this filter, on a clock that stands still."""

    def __init__(self, wanted: TapFilter) -> None:
        self.clock = FakeClock()
        self.point = TapPoint()
        self._taps = Taps({"": self.point}, self.clock, self.clock.monotonic)
        self._asked = TapRequest("one", wanted)
        self.batch()

    def batch(self) -> TapBatch:
        """What it has collected."""
        return self._taps.poll(self._asked)

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.clock._pass(round(seconds * NANOSECONDS))

    def close(self) -> None:
        """End it."""
        self._taps.poll(TapRequest("one"))

    def see(
        self, *chunks: Chunk, outcome: TapOutcome = TapOutcome.RECEIVED, reason: str = ""
    ) -> None:
        """Let chunks pass."""
        assert self.point.tap is not None
        self.point.tap.chunks(outcome, chunks, reason)


def shown(batch: TapBatch) -> list[dict[str, Any]]:
    """The events of a batch."""
    return [json.loads(bytes(event)) for event in batch.events]


def names(batch: TapBatch) -> list[str]:
    """Their names."""
    return [event["event"] for event in shown(batch)]


def test_an_event_is_shown_without_its_secrets() -> None:
    """With time, outcome, label and source; secrets are hidden, and the reason of a
    drop is there.
    """
    tapped = Tapped(TapFilter())
    tapped.see(chunk("e"), outcome=TapOutcome.DROPPED, reason="withdrawn")
    (event,) = shown(tapped.batch())
    assert event.pop("time").endswith("Z")
    data = {"event": "e", "distinct_id": "a", "properties": {"password": "…"}}
    where = {"outcome": "dropped", "lane": key_label(KEY), "source": "http", "reason": "withdrawn"}
    assert event == {**where, "event": "e", "distinct_id": "a", "data": data}
    assert tapped.batch() == TapBatch()


@cases(
    ("wanted", "seen"),
    [
        (TapFilter(events=("order placed",)), ["order placed"]),
        (TapFilter(events=("order*", "?tart")), ["start", "order placed", "order paid"]),
        (TapFilter(events=("Größe",)), ["Größe"]),
        (TapFilter(events=("/a?",)), ["/ab"]),
        (TapFilter(events=("a[bc]",)), ["ab"]),
        (TapFilter(events=("properties", "password")), []),
        (TapFilter(outcomes=(TapOutcome.DELIVERED,)), []),
        (TapFilter(sources=("kafka",)), ["from kafka"]),
        (TapFilter(keys=(key_label("phc_otherother9876"),)), ["of another"]),
        (TapFilter(keys=(key_label("phc_otherother9876")[-6:],)), ["of another"]),
        (TapFilter(keys=("phc_",)), []),
    ],
)
def test_filters(wanted: TapFilter, seen: list[str]) -> None:
    """Names, however they are spelled in JSON, patterns, outcomes, sources and keys; what isn't
    wanted isn't counted either.
    """
    tapped = Tapped(wanted)
    tapped.see(
        chunk("start", "order placed"),
        chunk("Größe", "ab", "/ab"),
        chunk("from kafka", source="kafka"),
    )
    tapped.see(chunk("of another", key="phc_otherother9876"), chunk("order paid"))
    batch = tapped.batch()
    assert (names(batch), batch.skipped) == (seen, 0)


def test_the_rate_holds_for_each_outcome() -> None:
    """Beyond it events are counted; many of one outcome don't hide the few of another; the
    allowance comes back with time.
    """
    tapped = Tapped(TapFilter(rate=3))
    tapped.see(*[chunk("a", "b", "c", "d")] * 5)
    tapped.see(chunk("d"), outcome=TapOutcome.DELIVERED)
    batch = tapped.batch()
    assert (len(batch.events), names(batch)[-1], batch.skipped) == (4, "d", 17)
    tapped.turn(1.0)
    tapped.see(chunk("e"))
    assert names(tapped.batch()) == ["e"]


def test_time_is_limited_too() -> None:
    """What takes long is paid for by not looking: events are counted until the tap's share of the
    time has made up for it.
    """
    tapped = Tapped(TapFilter(events=("rare",), rate=1000))
    real = split_events

    def slow(text: bytes) -> Any:
        tapped.turn(0.1)
        return real(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taps, "split_events", slow)
        tapped.see(chunk("rare", "x"))
        tapped.see(chunk("rare", "x"))
        tapped.see(chunk("rare", "x"))
    batch = tapped.batch()
    assert (names(batch), batch.skipped) == (["rare"], 4)
    tapped.turn(0.1 / taps.SHARE)
    tapped.see(chunk("rare"))
    assert names(tapped.batch()) == ["rare"]


def test_an_unread_queue_stays_bounded() -> None:
    """Beyond its bytes and one event, chosen events are lost, and counted."""
    tapped = Tapped(TapFilter(rate=1000))
    for _ in range(8):
        tapped.see(chunk("large", more=f',"p":"{"x" * (QUEUE_BYTES // 3)}"'))
    batch = tapped.batch()
    assert (len(batch.events), batch.lost) == (3, 5)
    assert sum(map(len, map(bytes, batch.events))) < 2 * QUEUE_BYTES


@pytest.mark.parametrize(
    "end",
    [Tapped.close, lambda tapped: tapped.turn(FORGOTTEN_AFTER + 1)],
    ids=["closed", "forgotten"],
)
def test_a_tap_ends(end: Callable[[Tapped], None]) -> None:
    """Closed, or not asked for a minute, it is gone, and nothing looks at events any more."""
    tapped = Tapped(TapFilter())
    end(tapped)
    if tapped.point.tap is not None:
        tapped.see(chunk("a"))
    assert tapped.point.tap is None


@cases(
    ("data", "excerpt"),
    [
        (b'{"no json, phc_aaaaaaaaaaaa1234', '{"no json, phc_…1234'),
        (b"[1]", "[1]"),
        (b"[" * 90_000, None),
        (b"\xff\x1b", "\ufffd\ufffd"),
    ],
)
def test_a_dead_letter_that_is_no_event(data: bytes, excerpt: str | None) -> None:
    """Of what a source couldn't read, an excerpt is shown that is safe to
    print; its lane is unknown.
    """
    tapped = Tapped(TapFilter())
    assert tapped.point.tap is not None
    letter = DeadLetter(
        Reason.UNDECODABLE, None, data, 0.0, why="not JSON, phc_aaaaaaaaaaaa1234\x1b"
    )
    tapped.point.tap.dead_letters(TapOutcome.DEAD_LETTERED, [letter])
    (event,) = shown(tapped.batch())
    assert (event["lane"], event["reason"], event["why"]) == (
        "none",
        "undecodable",
        "not JSON, phc_…1234\ufffd",
    )
    assert event["data"] == excerpt if excerpt else len(event["data"]) <= 200


@pytest.mark.parametrize("wanted", [(), ("n5",)])
def test_of_a_large_chunk_the_beginning_is_looked_at(wanted: tuple[str, ...]) -> None:
    """However large a request was, little of it is decoded; the rest is counted."""
    tapped = Tapped(TapFilter(events=wanted, rate=1000))
    large = chunk(*[f"n{number}" for number in range(8000)])
    assert len(large.data) > taps.LARGE
    tapped.see(large)
    batch = tapped.batch()
    if wanted:
        assert names(batch) == ["n5"]
        assert 6900 < batch.skipped < 7999
    else:
        assert (len(batch.events), len(batch.events) + batch.skipped) == (1000, 8000)
        assert max(int(name[1:]) for name in names(batch)) < 1100


def test_a_dead_letter_is_found_by_its_name() -> None:
    """One that is no event, or too large to be looked at, has none."""
    tapped = Tapped(TapFilter(events=("a",)))
    assert tapped.point.tap is not None
    huge = b'{"event":"a","p":"%b"}' % (b"x" * taps.LARGEST_EVENT)
    letters = [
        DeadLetter(Reason.REFUSED, None, data, 0.0)
        for data in (b'{"event":"a"}', b'{"event":"b"}', b'"a" {', huge)
    ]
    tapped.point.tap.dead_letters(TapOutcome.DEAD_LETTERED, letters)
    assert names(tapped.batch()) == ["a"]


def test_a_tap_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a tap never reaches the sender whose event it was: the tap is closed."""
    tapped = Tapped(TapFilter())
    monkeypatch.setattr(taps, "lane_label", lambda _: 1 / 0)
    with structlog.testing.capture_logs() as logged:
        tapped.see(chunk("a"))
    assert [line["log_level"] for line in logged] == ["error"]
    assert tapped.point.tap is None


def test_workers_batches_are_one() -> None:
    """Events of all, and their counts added."""
    assert merged([TapBatch([], 1, 2), TapBatch([], 3, 4)]) == TapBatch([], 4, 6)
