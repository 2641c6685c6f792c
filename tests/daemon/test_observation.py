"""Snapshots of a pipeline: figures of all parts that belong together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from forwarder import __version__
from forwarder.buffer.disk.buffer import DiskStatistics
from forwarder.daemon.observation import FULL, _not_ready
from forwarder.delivery.delivery import DeliveryStatistics
from forwarder.intake.admission import IntakeStatistics
from forwarder.sources.http import HttpStatistics
from forwarder.sources.http.passthrough import PassThroughStatistics
from forwarder.storage.directory import ASIDE, DEAD_LETTERS, LOG
from forwarder.telemetry.snapshot import Snapshot, State, balanced
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT, FakeClock
from tests.support.listening import post
from tests.support.upstream import OK, Upstream, plain
from tests.support.whole import KEY, Whole, batch, event, events


@cases(
    ("state", "used", "reason"),
    [
        (State.STARTING, 0, "starting"),
        (State.DRAINING, 0, "draining"),
        (State.RUNNING, 1000, "full"),
        (State.RUNNING, int(1000 * FULL), "full"),
        (State.RUNNING, int(1000 * FULL) - 1, ""),
        (State.RUNNING, 0, ""),
    ],
)
def test_not_ready_only_when_nothing_can_be_accepted(state: State, used: int, reason: str) -> None:
    """Starting, draining, or full; each says so in a few words."""
    said = _not_ready(state, used, 1000)
    assert bool(said) == bool(reason)
    assert all(reason in message for message in said)


def test_not_ready_while_the_disk_refuses() -> None:
    """It says so, with the system's words; the end that is about to come is reported
    before that.
    """
    (why,) = _not_ready(State.RUNNING, 1000, 1000, "No space left on device")
    assert why == "the disk refuses to write: No space left on device; senders get 503"
    assert "draining" in _not_ready(State.DRAINING, 0, 1000, "No space left on device")[0]


async def test_the_buffer_is_what_is_configured(clock: FakeClock) -> None:
    """Its kind, and on disk what its files take; in memory there are none."""
    async with Upstream() as upstream:
        async with Whole(
            upstream.url, clock, buffer={"kind": "disk", "max_bytes": "8MiB"}
        ) as whole:
            await whole.take(events(3))
            snapshot = whole.snapshot
            assert (snapshot.buffer_kind, snapshot.buffer_limit_bytes) == ("disk", 8 << 20)
            files = sum(file.stat().st_size for file in whole.disk.log.directory.iterdir())
            assert snapshot.buffer_disk_bytes == files > snapshot.buffer_bytes > 0
        async with Whole(upstream.url, clock) as whole:
            assert (whole.snapshot.buffer_kind, whole.snapshot.buffer_disk_bytes) == ("memory", 0)


async def test_quarantined_files_are_a_warning(clock: FakeClock, tmp_path: Path) -> None:
    """Files of buffer and dead letters that couldn't be read are reported, at the start that finds
    them; those of the buffer later too.
    """
    disk = {"kind": "disk", "max_bytes": "8MiB", "path": tmp_path}
    async with Upstream() as upstream:
        async with Whole(upstream.url, clock, buffer=disk) as whole:
            await whole.take(events(3))
            assert whole.snapshot.warnings == ()
        worker = tmp_path / "worker-0"
        (segment,) = (worker / LOG).iterdir()
        segment.write_bytes(b"rubbish" * 1000)
        (worker / DEAD_LETTERS).write_bytes(b"rubbish" * 1000)
        async with Whole(upstream.url, clock, buffer=disk) as whole:
            aside, letters = whole.snapshot.warnings
            number = len([file for file in (worker / ASIDE).iterdir() if file.name != "README"])
            assert f"is in {number} quarantined file{'' if number == 1 else 's'};" in aside
            assert "dead letters couldn't be read" in letters
        async with Whole(upstream.url, clock, buffer=disk) as whole:
            assert whole.snapshot.warnings == (aside,)


async def test_a_fresh_pipeline(clock: FakeClock) -> None:
    """It has no lanes, has sent nothing, is ready, and knows since when it runs."""
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        await clock.advance(5)
        snapshot = whole.snapshot
        assert (snapshot.version, snapshot.state, snapshot.started_at, snapshot.now) == (
            __version__,
            State.RUNNING,
            MIDNIGHT,
            MIDNIGHT + 5,
        )
        assert (snapshot.lanes, snapshot.upstream.state, snapshot.upstream.url) == (
            (),
            "unknown",
            upstream.url,
        )
        assert (snapshot.ready, snapshot.not_ready, snapshot.warnings) == (True, (), ())
        assert snapshot.addresses == (whole.address,)
        assert snapshot.buffer_limit_bytes == whole.settings.buffer.limit


async def test_one_event_from_receipt_to_delivery(clock: FakeClock) -> None:
    """Received and buffered with its age, then delivered; requests, bodies and events are counted
    on both sides.
    """
    async with (
        Upstream() as upstream,
        Whole(upstream.url, clock, batch={"max_age": "10s"}) as whole,
    ):
        await whole.take(events(3))
        await clock.advance(7)
        (lane,) = whole.snapshot.lanes
        assert (dict(lane.received), lane.buffered, lane.delivered, lane.oldest_age) == (
            {"http": 3},
            3,
            0,
            7.0,
        )
        assert whole.snapshot.buffer_bytes > 0
        assert whole.snapshot.http_requests == {("/batch", 200): 1}
        assert whole.snapshot.connections == 1
        await whole.emptied()
        snapshot = whole.snapshot
        (lane,) = snapshot.lanes
        assert (lane.buffered, lane.delivered, lane.oldest_age) == (0, 3, None)
        assert (snapshot.upstream_requests, snapshot.upstream.state) == ({"200": 1}, "up")
        assert (snapshot.batch_events.count, snapshot.batch_events.sum) == (1, 3.0)
        assert snapshot.batch_bytes.sum == len(upstream.requests[0].body)
        assert snapshot.buffer_bytes == 0


async def test_the_age_grows_while_events_wait_for_a_retry(clock: FakeClock) -> None:
    """In flight or between two attempts, the oldest event has its age; the upstream is down, and
    that is a warning, not a failure.
    """
    async with (
        Upstream(lambda _: plain(503, "overloaded", retry_after="600")) as upstream,
        Whole(upstream.url, clock) as whole,
    ):
        await whole.take(events(1))
        await whole.until(lambda: whole.snapshot.upstream.state == "down")
        await clock.advance(100)
        (lane,) = whole.snapshot.lanes
        assert lane.oldest_age is not None
        assert lane.oldest_age > 100
        assert "overloaded" in whole.snapshot.upstream.last_error
        assert "overloaded" in whole.snapshot.warnings[0]
        assert whole.snapshot.ready


@pytest.mark.parametrize("status", [500, 502, 429])
async def test_a_lane_that_is_sent_again_is_a_notice(clock: FakeClock, status: int) -> None:
    """Answers that make one lane wait are seen, with the upstream's words and the next attempt,
    until they end; no one is needed.
    """
    answers = [plain(status, "overloaded", retry_after="600")]
    async with (
        Upstream(lambda _: answers.pop() if answers else OK) as upstream,
        Whole(upstream.url, clock) as whole,
    ):
        await whole.take(events(1))
        await whole.until(lambda: bool(whole.snapshot.notices))
        (notice,) = whole.snapshot.notices
        assert f"HTTP {status}: overloaded" in notice
        assert "in 10m" in notice
        assert whole.snapshot.lanes[0].label in notice
        assert whole.snapshot.warnings == ()
        await clock.advance(601)
        await whole.emptied()
        assert whole.snapshot.notices == ()


async def test_lanes_that_fail_are_named_up_to_a_few(clock: FakeClock) -> None:
    """Many failing lanes don't fill the page: three by name, then their number."""
    async with (
        Upstream(lambda _: plain(500, "broken", retry_after="600")) as upstream,
        Whole(upstream.url, clock) as whole,
    ):
        for number in range(5):
            await whole.take(events(1), f"phc_oneofsome{number:04}")
        await whole.until(lambda: len(upstream.requests) == 5 and len(whole.snapshot.notices) == 4)
        assert whole.snapshot.notices[3] == "2 more lanes will be sent again later"


async def test_lanes_are_called_by_their_labels(clock: FakeClock) -> None:
    """Live and historical apart, never by the key."""
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        await whole.take(events(1))
        answer = await whole.send(
            post("/batch/", batch(events(2), more=b'"historical_migration":true,'))
        )
        assert answer.status == 200
        live, historical = whole.snapshot.lanes
        assert historical.label == live.label + "/historical"
        assert live.label.startswith("phc_…2345#")
        assert KEY not in str(whole.snapshot)


async def test_bad_events_and_odd_numbers_are_seen(clock: FakeClock) -> None:
    """What was refused at receipt is counted by reason, dropped ones too, and NaN that became null
    is noted.
    """
    async with (
        Upstream() as upstream,
        Whole(upstream.url, clock, dead_letters={"max_bytes": "64KiB"}) as whole,
    ):
        await whole.take([b'{"distinct_id":"x","properties":{"p":"%b"}}' % (b"x" * 2000)] * 4)
        await whole.take([event("odd", properties=b'{"n":NaN,"m":-Infinity,"s":"NaN"}')])
        (lane,) = whole.snapshot.lanes
        assert (dict(lane.dead_lettered), dict(lane.dropped)) == (
            {"missing_event": 2},
            {"invalid_overflow": 2},
        )
        assert (lane.total_received, lane.buffered) == (5, 1)
        assert whole.snapshot.notices == (
            "2 numbers became null: JSON can't represent NaN and infinite ones",
        )
        await whole.emptied()
        assert upstream.requests[0].events[0]["properties"] == {"n": None, "m": None, "s": "NaN"}


async def test_lanes_past_the_labels_are_put_together(clock: FakeClock) -> None:
    """However many keys there are, there are never more lanes in a snapshot than labels, and their
    sums are right.
    """
    async with (
        Upstream() as upstream,
        Whole(upstream.url, clock, http={"max_lanes": 1000}) as whole,
    ):
        for number in range(250):
            await whole.take(events(2), f"phc_oneofverymany{number:04}")
        snapshot = whole.snapshot
        assert len(snapshot.lanes) == 201
        assert snapshot.lanes[-1].label == "other"
        assert snapshot.lanes[-1].buffered == 100
        assert sum(lane.total_received for lane in snapshot.lanes) == 500
        assert balanced(snapshot)
        await whole.emptied()
        assert balanced(whole.snapshot)


async def test_a_halted_lane_says_why_and_what_to_do(clock: FakeClock) -> None:
    """With the upstream's words and a hint; readiness is not touched."""
    async with (
        Upstream(lambda _: plain(403, "blocked here")) as upstream,
        Whole(upstream.url, clock) as whole,
    ):
        await whole.take(events(1))
        await whole.until(lambda: whole.snapshot.lanes[0].halted)
        (lane,) = whole.snapshot.lanes
        assert (lane.halted, lane.why) == ("forbidden", "HTTP 403: blocked here")
        assert lane.hint
        assert lane.halted_since is not None
        assert lane.next_probe is not None
        assert lane.next_probe > lane.halted_since
        assert whole.snapshot.ready


async def test_made_up_keys_that_only_send_rubbish_leave_no_trace_but_in_the_sums(
    clock: FakeClock,
) -> None:
    """Thousands of keys with nothing but bad events: the snapshot stays short, every event is
    counted, and a good lane that is idle meanwhile keeps its figures under its label: a counter
    never goes back.
    """
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        await whole.take(events(1))
        await whole.emptied()
        (good,) = whole.snapshot.lanes
        for number in range(1200):
            await whole.take([b'{"distinct_id":"x"}'], f"phc_madeup{number:06}")
        snapshot = whole.snapshot
        assert len(snapshot.lanes) <= 202
        assert sum(lane.total_received for lane in snapshot.lanes) == 1201
        assert balanced(snapshot)
        assert [lane.delivered for lane in snapshot.lanes if lane.label == good.label] == [1]


def test_every_figure_of_a_part_is_observed() -> None:
    """A field of a snapshot that is named after a part is a figure of that part's statistics,
    which are all copied: none stays 0.
    """
    parts = {
        "buffer": DiskStatistics,
        "http": HttpStatistics,
        "intake": IntakeStatistics,
        "passthrough": PassThroughStatistics,
        "upstream": DeliveryStatistics,
    }
    own = {"buffer_kind", "buffer_refusing", "buffer_found"}
    named = [
        (part, field.name)
        for field in fields(Snapshot)
        for part in parts
        if field.name.startswith(f"{part}_")
    ]
    copied = [(part, name) for part, name in named if name not in own]
    assert copied
    assert [
        name
        for part, name in copied
        if name.removeprefix(f"{part}_") not in {field.name for field in fields(parts[part])}
    ] == []
