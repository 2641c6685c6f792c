"""Emptying a buffer whose daemon is down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import DeadLetter
from forwarder.inspect.drain import UPSTREAM_PATIENCE, drain_directory, drain_pipeline
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, Upstream, UpstreamState
from tests.support.clock import FakeClock
from tests.support.snapshots import FULL
from tests.support.whole import settings

LANE = LaneSnapshot("phc_…lane#000000", {"http": 10}, delivered=2, buffered=8)


class FakeDrain:
    """A pipeline of one lane; each drain does the next of `steps` to it, and takes all of its time
    by default.
    """

    def __init__(
        self,
        clock: FakeClock,
        *steps: Callable[[LaneSnapshot], LaneSnapshot],
        seconds: float = UPSTREAM_PATIENCE,
    ) -> None:
        self._clock = clock
        self._steps = list(steps)
        self._seconds = seconds
        self.lane = LANE
        self.state = UpstreamState.UP
        self.closed = False

    async def start(self) -> None:
        """Nothing to do."""

    def snapshot(self) -> Snapshot:
        """The lane as it is."""
        return replace(
            FULL,
            lanes=(self.lane,),
            upstream=Upstream("http://u", self.state, "connection refused"),
        )

    async def drain(self, seconds: float) -> bool:
        """Take the next step."""
        self.lane = self._steps.pop(0)(self.lane)
        if self.lane.buffered:
            await self._clock.sleep(min(seconds, self._seconds))
        return not self.lane.buffered

    async def close(self) -> list[DeadLetter]:
        """Note it."""
        self.closed = True
        return []


def delivering(events: int) -> Callable[[LaneSnapshot], LaneSnapshot]:
    """Deliver so many of the lane's events."""
    return lambda lane: replace(
        lane, delivered=lane.delivered + events, buffered=lane.buffered - events
    )


def burying(lane: LaneSnapshot) -> LaneSnapshot:
    """One event becomes a dead letter."""
    return replace(lane, dead_lettered={"refused": 1}, buffered=lane.buffered - 1)


async def turned(clock: FakeClock, work: asyncio.Task[object]) -> None:
    """Turn the clock until the work is done."""
    while not work.done():
        await clock.advance(1.0)


async def test_a_drain_continues_while_events_are_delivered(clock: FakeClock) -> None:
    """Also past the time of one drain; what became a dead letter is counted apart."""
    reported: list[int] = []
    pipeline = FakeDrain(clock, delivering(3), burying, delivering(4))
    work = asyncio.create_task(drain_pipeline(pipeline, clock, reported.append))
    await turned(clock, work)
    done = work.result()
    assert (done.delivered, done.dead_lettered, done.left_events, done.unreachable) == (7, 1, 0, "")
    assert sum(reported) == 8
    assert pipeline.closed


async def test_it_gives_up_on_an_upstream_that_fails(clock: FakeClock) -> None:
    """Nothing delivered in a whole drain, and it is down: it says why, and what is left."""
    pipeline = FakeDrain(clock, delivering(0))
    pipeline.state = UpstreamState.DOWN
    work = asyncio.create_task(drain_pipeline(pipeline, clock, lambda _: None))
    await turned(clock, work)
    assert (work.result().unreachable, work.result().left_events) == ("connection refused", 8)


async def test_a_drain_leaves_what_is_not_accepted(clock: FakeClock) -> None:
    """A drain that ends early with something left has nothing but lanes that were
    probed without success.
    """
    pipeline = FakeDrain(clock, delivering(5), seconds=2.0)
    work = asyncio.create_task(drain_pipeline(pipeline, clock, lambda _: None))
    await turned(clock, work)
    assert [(lane.label, lane.buffered) for lane in work.result().left] == [(LANE.label, 3)]
    assert work.result().unreachable == ""


async def test_a_directory_needs_a_workers_name(tmp_path: Path) -> None:
    """Its files are found by it."""
    with pytest.raises(ConfigurationError, match="isn't named worker-<n>"):
        await drain_directory(
            settings("http://127.0.0.1:9"), tmp_path / "copy", SystemClock(), lambda _: None
        )
