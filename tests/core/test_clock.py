"""The real clock, and waiting for an event on any clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from forwarder.core.clock import SystemClock, wait_for_event
from tests.support.clock import FakeClock, settle


def test_the_real_clock_is_the_systems() -> None:
    """Wall-clock time is the system's, and monotonic time doesn't go back."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()


async def test_the_real_clock_calls_unless_cancelled() -> None:
    """A timer fires on the running loop, a cancelled one doesn't."""
    clock, fired = SystemClock(), list[str]()
    done = asyncio.Event()
    clock.call_later(0.0, lambda: fired.append("cancelled")).cancel()
    clock.call_later(0.001, done.set)
    await asyncio.wait_for(done.wait(), 5)
    await clock.sleep(0)
    assert fired == []


async def test_an_event_that_is_set_is_not_waited_for(clock: FakeClock) -> None:
    """Whatever the limit."""
    event = asyncio.Event()
    event.set()
    for limit in (None, 0.0, 5.0):
        assert await wait_for_event(event, limit, clock)
    assert clock.pending == 0


async def test_no_time_to_wait_is_an_answer(clock: FakeClock) -> None:
    """A limit of zero or less looks once."""
    assert not await wait_for_event(asyncio.Event(), 0.0, clock)
    assert not await wait_for_event(asyncio.Event(), -1.0, clock)


@pytest.mark.parametrize(("set_after", "found"), [(2.9, True), (3.1, False)])
async def test_the_wait_ends_with_the_event_or_the_limit(clock: FakeClock, set_after: float, found: bool) -> None:
    """Whichever comes first on the clock, and no timer is left behind."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, 3.0, clock))
    await settle()
    event_timer = clock.call_later(set_after, event.set)
    await clock.advance(3.0)
    assert await waiting is found
    event_timer.cancel()
    assert clock.pending == 0


async def test_cancelling_the_wait_cleans_up(clock: FakeClock) -> None:
    """Neither a timer nor a task outlives it."""
    waiting = asyncio.create_task(wait_for_event(asyncio.Event(), 3.0, clock))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock.pending == 0


async def test_no_limit_waits_for_ever(clock: FakeClock) -> None:
    """Until the event is set."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, None, clock))
    await clock.advance(1e6)
    assert not waiting.done()
    event.set()
    assert await waiting
