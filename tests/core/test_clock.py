"""The clock, waits between attempts, and the header Retry-After."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.clock import Backoff, SystemClock, retry_after, wait_for_event
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT, FakeClock, settle


def test_the_real_clock_is_the_systems() -> None:
    """Wall-clock time is the system's, and monotonic time doesn't go back."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5
    assert clock.monotonic() <= clock.monotonic()


async def test_the_real_clock_calls_unless_cancelled() -> None:
    """A timer fires on the running loop, a cancelled one doesn't."""
    clock = SystemClock()
    fired = list[str]()
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


async def test_a_limit_of_zero_checks_once(clock: FakeClock) -> None:
    """A limit of zero or less looks once."""
    assert not await wait_for_event(asyncio.Event(), 0.0, clock)
    assert not await wait_for_event(asyncio.Event(), -1.0, clock)


@pytest.mark.parametrize(("set_after", "happened"), [(2.9, True), (3.1, False)])
async def test_the_wait_ends_with_the_event_or_the_limit(
    clock: FakeClock, set_after: float, happened: bool
) -> None:
    """Whichever comes first on the clock, and no timer is left behind."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, 3.0, clock))
    await settle()
    event_timer = clock.call_later(set_after, event.set)
    await clock.advance(3.0)
    assert await waiting is happened
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


async def test_no_limit_waits_indefinitely(clock: FakeClock) -> None:
    """Until the event is set."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for_event(event, None, clock))
    await clock.advance(1e6)
    assert not waiting.done()
    event.set()
    assert await waiting


def upper(_low: float, high: float) -> float:
    """In place of chance: the longest wait."""
    return high


def test_bounds_double_up_to_the_maximum() -> None:
    """Attempt by attempt, from the initial bound on."""
    backoff = Backoff(0.5, 30.0)
    assert [backoff.bound(attempt) for attempt in range(1, 9)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        30.0,
        30.0,
    ]


def test_jitter() -> None:
    """A wait is drawn between zero (or half the bound, for equal jitter) and the bound, so that
    not all come back together.
    """
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    backoff = Backoff(1.0, 60.0, uniform)
    assert (backoff.full_jitter(3), backoff.equal_jitter(3)) == (0.0, 2.0)
    assert asked == [(0.0, 4.0), (2.0, 4.0)]
    assert Backoff(1.0, 60.0, upper).full_jitter(3) == 4.0


@given(st.integers(min_value=1, max_value=10**9), st.floats(0.001, 10), st.floats(10, 3600))
def test_a_wait_is_never_over_the_maximum(attempt: int, initial: float, maximum: float) -> None:
    """However many attempts failed: no overflow, no wait without end."""
    backoff = Backoff(initial, maximum)
    assert 0.0 <= backoff.full_jitter(attempt) <= maximum
    assert 0.0 < backoff.equal_jitter(attempt) <= maximum


@cases(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("²", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("9" * 40, 999_999_999.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30", 30.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 99999 00:00:30 GMT", None),
        (f"Thu, 01 Jan {'9' * 30} 00:00:30 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    """Both forms of the header are read; what can't be read is no wish."""
    assert retry_after(value, MIDNIGHT) == seconds
