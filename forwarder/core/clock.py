"""Time as a port, so that tests turn the clock instead of waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Don't call it any more."""


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
        """See `Clock.call_later`."""
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await asyncio.sleep(seconds)


async def wait_for_event(event: asyncio.Event, timeout: float | None, clock: Clock) -> bool:
    """Wait until `event` is set, at most `timeout` seconds on `clock`; whether it was set. Cancellation ends the wait at once."""
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
