"""A disk buffer without room: shares of lanes, what `when_full` says, and a disk that refuses;
before and after a restart.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.ports import DropReason
from tests.end_to_end.test_memory import fill
from tests.support.listening import post
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole, accepted, always_balanced, batch, events

LIMIT: Final = 4_000_000
OTHER: Final = "phc_anotheranother12"
BAD: Final = "phc_badbadbadbad12345"
THREE: Final = tuple(f"phc_oneofthreelanes{number}" for number in range(3))
SMALL: Final[dict[str, Any]] = {
    "buffer": {"kind": "disk", "max_bytes": LIMIT},
    "batch": {"max_bytes": "200kB", "max_age": "100ms"},
    "http": {"api_keys": [KEY, OTHER, BAD, *THREE]},
}
HISTORICAL: Final = b'"historical_migration":true,'


def full_by(when_full: str) -> dict[str, Any]:
    """Settings with that rule."""
    return {**SMALL, "buffer": {**SMALL["buffer"], "when_full": when_full}}


@pytest.mark.parametrize("crash", [False, True])
async def test_one_lane_has_seven_eighths_also_after_a_restart(*, crash: bool) -> None:
    """What one lane may hold on disk is seven eighths; another one is accepted; all that was
    answered 200 arrives, once.
    """
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, **SMALL) as whole,
    ):
        sent = await fill(whole, KEY, "a")
        held = whole.snapshot.buffer_bytes
        assert 0.95 * LIMIT * 7 / 8 < held <= LIMIT * 7 / 8
        await whole.restart(crash=crash)
        assert whole.snapshot.buffer_bytes == pytest.approx(held, rel=0.02)
        response = await whole.send(post("/batch/", batch(events(50, "more", padding=100))))
        assert response.status == 503
        assert whole.snapshot.ready
        others = events(50, "other")
        await whole.take(others, OTHER)
        taking = True
        await whole.emptied()
        assert set(accepted(upstream)) == {*sent, *others}
        await whole.take(events(1, "again"))


async def test_a_historical_lane_has_half() -> None:
    """And another one half of the rest, also after a restart; live lanes of
    the same keys find room.
    """
    async with Upstream(lambda _: plain(500)) as upstream, Whole(upstream.url, **SMALL) as whole:

        async def historical(key: str, name: str) -> int:
            """Send until it is rejected; how many requests were accepted."""
            for number in range(1000):
                raw = events(50, f"{name}{number}-", padding=100)
                if (await whole.send(post("/batch/", batch(raw, key, HISTORICAL)))).status == 503:
                    return number
            raise AssertionError("never full")

        await historical(KEY, "a")
        assert 0.95 * LIMIT / 2 < whole.snapshot.buffer_bytes <= LIMIT / 2
        await historical(OTHER, "b")
        assert 0.95 * LIMIT * 3 / 4 < whole.snapshot.buffer_bytes <= LIMIT * 3 / 4
        await whole.restart(crash=True)
        assert await historical(KEY, "c") == await historical(OTHER, "d") == 0
        await whole.take(events(50, "live"), KEY)
        assert whole.snapshot.ready


async def test_a_halted_lane_has_a_quarter() -> None:
    """A lane that the upstream refuses may hold a quarter, also after a restart, once it is halted
    again; others continue.
    """
    async with (
        Upstream(lambda request: plain(403, "no") if request.api_key == BAD else OK) as upstream,
        Whole(upstream.url, **SMALL) as whole,
    ):
        for _ in range(2):
            await whole.send(post("/batch/", batch(events(1), BAD)))
            await eventually(lambda: any(lane.halted for lane in whole.snapshot.lanes))
            await fill(whole, BAD, "b")
            assert 0.9 * LIMIT / 4 < whole.snapshot.buffer_bytes <= LIMIT / 4
            await whole.restart(crash=True)
        await whole.take(events(50))
        await eventually(lambda: len(accepted(upstream)) == 50)


@dataclass(slots=True)
class Pressed:
    """What senders to three lanes were answered."""

    sent: list[bytes] = field(default_factory=list)
    """Events that were answered 200."""
    in_doubt: int = 0
    """Events whose answer says that they weren't written in time: a slow disk may have them yet."""
    statuses: Counter[int] = field(default_factory=Counter)


async def press(whole: Whole, *, patient: bool = False) -> Pressed:
    """Send to three lanes, more than fits.

    A patient sender comes back when what was in progress is written, as its Retry-After says.
    """
    pressed = Pressed()
    for number in range(200):
        raw = events(50, f"p{number}-", padding=400)
        reply = await whole.send(post("/batch/", batch(raw, THREE[number % 3])))
        pressed.statuses[reply.status] += 1
        if reply.status == 200:
            pressed.sent += raw
        elif b"could not be written in time" in reply.body:
            pressed.in_doubt += len(raw)
        if patient and reply.status == 503:
            await whole.written()
    return pressed


@pytest.mark.parametrize("rule", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("crash", [False, True])
async def test_drops_are_counted_for_good(rule: str, *, crash: bool) -> None:
    """With no room senders get 200, something is dropped and counted, and the books say the same
    after the next start.

    But for moments in which the files are compacted, to get the room that was made: then they
    get 503.
    """
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, **full_by(rule)) as whole,
    ):
        with always_balanced(whole):
            pressed = await press(whole, patient=True)
            sent = pressed.sent
            refused = pressed.statuses[503] * 50 - pressed.in_doubt
            assert set(pressed.statuses) <= {200, 503}
            assert refused < (50 * 50 if rule == DropReason.DROP_OLDEST else 1)
            dropped = whole.total(lambda lane: lane.dropped[rule])
            assert 0 < dropped < len(sent)
            assert any(
                f"{dropped:,} events dropped since the start" in warning
                for warning in whole.snapshot.warnings
            )
            await whole.written()
            await whole.restart(crash=crash)
            assert whole.total(lambda lane: lane.dropped[rule]) == dropped
            received = whole.total(lambda lane: lane.total_received)
            assert 0 <= received - len(sent) <= pressed.in_doubt
            assert whole.snapshot.warnings == ()
            taking = True
            await whole.emptied()
        arrived = accepted(upstream)
        assert len(arrived) == received - dropped
        remaining = (
            sent[: len(sent) - dropped] if rule == DropReason.DROP_NEWEST else sent[dropped:]
        )
        assert len(set(remaining) & set(arrived)) > 0.8 * len(remaining)


async def test_reject_drops_nothing() -> None:
    """With no room senders get 503 with Retry-After, and what was answered 200 arrives."""
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, **SMALL) as whole,
    ):
        pressed = await press(whole)
        assert set(pressed.statuses) == {200, 503}
        assert whole.total(lambda lane: lane.total_dropped) == 0
        received = whole.total(lambda lane: lane.total_received)
        assert 0 <= received - len(pressed.sent) <= pressed.in_doubt
        taking = True
        await whole.emptied()
        arrived = accepted(upstream)
        assert set(arrived) >= set(pressed.sent)
        assert len(arrived) == arrived.total() == received


async def test_a_failing_disk_is_reported_and_waited_for() -> None:
    """While nothing can be written senders get 503 and `/readyz` says why; delivery continues, and
    taking too as soon as it can.
    """
    refuse = False
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        """A disk that is full, or not."""
        if refuse:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fdatasync(fd)

    taking = False

    def answer(_: Request) -> Answer:
        return OK if taking else plain(500)

    with patch("os.fdatasync", sync):
        async with Upstream(answer) as upstream, Whole(upstream.url, **SMALL) as whole:
            with always_balanced(whole):
                before = events(50, "before")
                await whole.take(before)
                refuse = True
                for _ in range(2):
                    reply = await whole.send(post("/batch/", batch(events(5, "refused"))))
                    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (503, True)
                (why,) = whole.snapshot.not_ready
                assert why.startswith("the disk refuses to write: No space left on device")
                assert not whole.snapshot.ready
                taking = True
                await whole.emptied()
                assert not whole.snapshot.ready
                refuse = False
                await eventually(lambda: whole.snapshot.ready)
                after = events(50, "after")
                await whole.take(after)
                await whole.emptied()
                await whole.written()
                await whole.restart(crash=True)
            assert whole.total(lambda lane: lane.delivered) == 100
            assert accepted(upstream) == dict.fromkeys([*before, *after], 1)


LARGE: Final = 720_000
"""Bytes of an event of which two fit a segment of 2 MiB: a third of the files is wasted."""


def large_full_by(when_full: str, ack: str) -> dict[str, Any]:
    """Settings of a small buffer with that rule, in which large events waste more of the files
    than a lane's share leaves.
    """
    return {
        "buffer": {"kind": "disk", "max_bytes": "16MiB", "when_full": when_full, "ack": ack},
        "batch": {"max_bytes": "200kB"},
        "delivery": {"concurrency": 1},
    }


async def send_large(
    whole: Whole, count: int, prefix: str = "large"
) -> tuple[list[bytes], list[int]]:
    """Events that come one by one, and what each was answered."""
    sent = events(count, prefix, padding=LARGE)
    return sent, [(await whole.send(post("/batch/", batch([raw])))).status for raw in sent]


async def test_a_request_that_empty_files_may_not_hold_is_too_large() -> None:
    """Less than seven eighths of the buffer, and more than its files hold for certain: 413, not 503
    indefinitely. What is smaller is accepted, and so is what comes next.
    """
    buffer = {"kind": "disk", "max_bytes": 1 << 20}
    async with Upstream() as upstream, Whole(upstream.url, buffer=buffer) as whole:
        statuses = {}
        for count in (350, 500, 700, 900, 100):
            raw = events(count, f"{count}-", padding=850)
            statuses[count] = (await whole.send(post("/batch/", batch(raw)))).status
            await whole.emptied()
        assert statuses == {350: 200, 500: 413, 700: 413, 900: 413, 100: 200}


@pytest.mark.parametrize("ack", ["memory", "disk"])
async def test_full_files_are_a_full_buffer(ack: str) -> None:
    """Below the limit, too, full files reject as a full buffer does, and nothing is ready; what
    was accepted arrives, and then there is room again.
    """
    taking = False
    settings = large_full_by("reject", ack)
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, SystemClock(), **settings) as whole,
    ):
        sent: list[bytes] = []
        statuses: list[int] = []
        shown = whole.snapshot
        while statuses[-5:] != [503] * 5 or shown.ready:
            assert len(sent) < 400  # what isn't written yet may find room once it is
            more, answers = await send_large(whole, 5, f"large{len(sent)}-")
            sent += more
            statuses += answers
            shown = whole.snapshot
        acknowledged = [raw for raw, status in zip(sent, statuses, strict=True) if status == 200]
        assert shown.buffer_bytes < 0.8 * shown.buffer_limit_bytes
        assert (shown.ready, shown.not_ready) == (
            False,
            ("the buffer's files are full: senders get 503",),
        )
        assert shown.rejected_requests == {("/batch", "buffer_full"): len(sent) - len(acknowledged)}
        taking = True
        await whole.emptied()
        assert set(accepted(upstream)) == set(acknowledged)
        await whole.until(lambda: whole.snapshot.ready)
        await whole.take(events(1, "again", padding=LARGE))


@pytest.mark.parametrize("ack", ["memory", "disk"])
@pytest.mark.parametrize("when_full", ["drop_newest", "drop_oldest"])
async def test_full_files_drop_what_a_full_buffer_drops(when_full: str, ack: str) -> None:
    """All are answered 200, unless what is in flight or not yet written holds the room of what is
    dropped; the first or the last of them arrive, and the books know of the others.
    """
    taking = False
    async with (
        Upstream(lambda _: OK if taking else plain(500)) as upstream,
        Whole(upstream.url, SystemClock(), **large_full_by(when_full, ack)) as whole,
    ):
        sent: list[bytes] = []
        statuses: list[int] = []
        # At level memory what isn't written yet holds the room of what could be dropped.
        while len(sent) < 40 or not whole.snapshot.lanes[0].dropped:
            assert len(sent) < 400
            more, answers = await send_large(whole, 5, f"large{len(sent)}-")
            sent += more
            statuses += answers
        rejected = statuses.count(503)
        if when_full == "drop_newest":
            assert rejected == 0
        elif ack == "disk":
            assert rejected <= 10
        shown = whole.snapshot
        assert shown.ready
        # the lane that fills the buffer may be past its share, too
        full = {"buffer_full"} if when_full == "drop_newest" else {"buffer_full", "lane_full"}
        assert {reason for _, reason in shown.rejected_requests} <= full
        taking = True
        await whole.emptied()
        arrived = [raw for raw in sent if raw in accepted(upstream)]
        [lane] = whole.snapshot.lanes
        assert lane.dropped == {when_full: len(sent) - rejected - len(arrived)}
        assert 5 <= len(arrived) < 25
        answered = [raw for raw, status in zip(sent, statuses, strict=True) if status == 200]
        assert answered[0 if when_full == "drop_newest" else -1] in arrived
