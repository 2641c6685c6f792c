"""A clock that stands still until a test turns it.

Time is kept in whole nanoseconds, so that ten steps of 0.1 seconds end where one step of a second
does. Timers that are due at the same instant fire in the order in which they were set, as
asyncio's own do.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from forwarder.core.clock import Timer

NANOSECONDS: Final = 1_000_000_000
TURNS: Final = 40
"""Turns of the event loop that count as "settled": more than any chain of callbacks and awaits in
forwarder is long.
"""

MIDNIGHT: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z, where a fake clock begins by default."""


async def settle(turns: int = TURNS) -> None:
    """Let the loop run what is ready, and what that makes ready in its turn.
    Takes no time on any clock.
    """
    for _ in range(turns):
        await asyncio.sleep(0)


@dataclass(order=True, slots=True)
class FakeTimer:
    """A call in the future of a `FakeClock`."""

    due: int
    number: int
    callback: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        """Don't call it any more. Cancelling twice, or after the call, does nothing."""
        self.callback = None


class FakeClock:
    """A `forwarder.core.clock.Clock` whose time passes in `advance` alone."""

    def __init__(
        self, now: float = MIDNIGHT, monotonic: float = 1000.0, *, turns: int = TURNS
    ) -> None:
        """`turns`: of the loop after each timer; few make hours pass quickly, where no chain of
        callbacks has to end at once.
        """
        self._turns = turns
        self._wall = round(now * NANOSECONDS)
        self._monotonic = round(monotonic * NANOSECONDS)
        self._timers: list[FakeTimer] = []
        self._set = 0

    def now(self) -> float:
        return self._wall / NANOSECONDS

    def monotonic(self) -> float:
        return self._monotonic / NANOSECONDS

    @property
    def pending(self) -> int:
        """How many timers wait to be fired: none when whatever is under test has cleaned up."""
        return sum(1 for timer in self._timers if timer.callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """A delay of zero or less fires in the next `advance`, even by
        zero seconds.
        """
        self._set += 1
        timer = FakeTimer(self._monotonic + max(0, round(delay * NANOSECONDS)), self._set, callback)
        heapq.heappush(self._timers, timer)
        return timer

    async def sleep(self, seconds: float) -> None:
        """Zero seconds or less give way to the loop once, as asyncio's own
        sleep does.
        """
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: fire what falls due, in order, each at its own time, and let the
        loop settle after each.
        """
        end = self._monotonic + round(seconds * NANOSECONDS)
        await settle(self._turns)
        while (timer := self._next(end)) is not None:
            self._pass(max(0, timer.due - self._monotonic))
            callback = timer.callback
            timer.callback = None
            if callback is not None:
                callback()
                await settle(self._turns)
        self._pass(end - self._monotonic)
        await settle(self._turns)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does: no time passes and
        no timer fires.
        """
        self._wall += round(seconds * NANOSECONDS)

    def _next(self, end: int) -> FakeTimer | None:
        return heapq.heappop(self._timers) if self._timers and self._timers[0].due <= end else None

    def _pass(self, nanoseconds: int) -> None:
        self._monotonic += nanoseconds
        self._wall += nanoseconds


class BusyClock(FakeClock):
    """A clock whose time also passes while it is read, as on a busy machine."""

    def monotonic(self) -> float:
        """A tenth of a second later each time."""
        self._monotonic += 100_000_000
        return super().monotonic()
