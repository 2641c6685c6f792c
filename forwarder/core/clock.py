"""Time: the clock as a port, so that tests turn it instead of waiting, and how long to wait before
a retry.

Full jitter (uniform between zero and the bound) spreads retries best, so that clients that failed
together do not return together. Equal jitter (between half the bound and all of it) is for probes,
which are few and should not come too soon.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Clock(Protocol):
    """Wall-clock and monotonic time, and calls in the future."""

    def now(self) -> float:
        """Wall-clock time, seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary beginning."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running loop after `delay` seconds, unless cancelled."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`. Cancellation ends the wait at once."""


class SystemClock:
    """The real clock."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_for_event(event: asyncio.Event, timeout: float | None, clock: Clock) -> bool:
    """Wait until `event` is set, at most `timeout` seconds on `clock`; whether it was set.
    Cancellation ends the wait at once.
    """
    if event.is_set() or timeout is None:
        return await event.wait()
    if timeout <= 0:
        return False
    expired = asyncio.get_running_loop().create_future()
    waiter = asyncio.ensure_future(event.wait())
    timer = clock.call_later(timeout, lambda: None if expired.done() else expired.set_result(None))
    try:
        await asyncio.wait({waiter, expired}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        expired.cancel()
        waiter.cancel()
    return event.is_set()


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `initial` to `maximum` seconds."""

    initial: float
    maximum: float
    uniform: Callable[[float, float], float] = random.uniform

    def bound(self, attempt: int) -> float:
        """The longest wait before attempt `attempt` + 1; attempts count from 1."""
        return float(min(self.maximum, self.initial * 2 ** min(attempt - 1, 60)))

    def full_jitter(self, attempt: int) -> float:
        """A wait before attempt `attempt` + 1, anywhere up to the bound."""
        return self.uniform(0.0, self.bound(attempt))

    def equal_jitter(self, attempt: int) -> float:
        """A wait before attempt `attempt` + 1, of half the bound at least."""
        bound = self.bound(attempt)
        return self.uniform(bound / 2, bound)


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, seen from wall-clock second `now`; None if there is no such header, or one
    that can't be read.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now, UTC)).total_seconds())
