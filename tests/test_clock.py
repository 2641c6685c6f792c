"""The fake clock itself, since half of the tests believe it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from forwarder.core.clock import Clock, wait_for_event
from tests.support.clock import MIDNIGHT, FakeClock, settle


async def test_timers_fire_in_order_at_their_own_time(clock: FakeClock) -> None:
    """Timers fire by due time, then in the order set, and each sees the clock at its
    own instant.
    """
    fired: list[tuple[str, float]] = []

    def fire(name: str) -> None:
        fired.append((name, clock.now() - MIDNIGHT))

    for name, delay in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        clock.call_later(delay, partial(fire, name))
    await clock.advance(1.5)
    assert fired == [("first", 1.0), ("second", 1.0)]
    await clock.advance(0.5)
    assert fired[2:] == [("late", 2.0)]


async def test_what_a_timer_starts_runs_before_the_next_timer(clock: FakeClock) -> None:
    """A sleeper that wakes and sleeps again is woken again within the same advance."""
    woken: list[float] = []

    async def ticker() -> None:
        for _ in range(3):
            await clock.sleep(0.1)
            woken.append(round(clock.monotonic() - 1000, 6))

    task = asyncio.create_task(ticker())
    await clock.advance(0.3)
    await task
    assert woken == [0.1, 0.2, 0.3]


async def test_small_steps_add_up(clock: FakeClock) -> None:
    """Ten steps of a tenth are one second exactly."""
    fired = asyncio.Event()
    clock.call_later(1.0, fired.set)
    for _ in range(10):
        await clock.advance(0.1)
    assert fired.is_set()


async def test_cancelled_timers_and_sleeps_leave_nothing(clock: FakeClock) -> None:
    """A cancelled timer does not fire, a cancelled sleep ends at once, and
    none is pending afterwards.
    """
    timer = clock.call_later(1.0, lambda: pytest.fail("it was cancelled"))
    sleeper = asyncio.create_task(clock.sleep(1.0))
    await settle()
    assert clock.pending == 2
    timer.cancel()
    sleeper.cancel()
    await clock.advance(2.0)
    assert sleeper.cancelled()
    assert clock.pending == 0


async def test_a_step_of_the_wall_clock_passes_no_time(clock: FakeClock) -> None:
    """Setting the wall clock moves `now` alone."""
    fired = asyncio.Event()
    clock.call_later(5.0, fired.set)
    clock.step(-3600)
    await settle()
    assert (clock.now(), clock.monotonic(), fired.is_set()) == (MIDNIGHT - 3600, 1000.0, False)


async def test_waiting_for_an_event_ends_on_this_clock(clock: FakeClock) -> None:
    """The fake clock is a `Clock`: code that waits with a limit gives up when it is turned past
    the limit.
    """
    port: Clock = clock
    waiting = asyncio.create_task(wait_for_event(asyncio.Event(), 3.0, port))
    await clock.advance(2.9)
    assert not waiting.done()
    await clock.advance(0.1)
    assert await waiting is False
