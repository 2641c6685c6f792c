"""The sandbox's clock: wall-clock time plus an offset that a test moves forward.

Everything in the sandbox takes its time from one clock: receipt, schedules, waits of runs. It is
never moved back. The database keeps the offset.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

LATEST: Final = datetime(9990, 1, 1, tzinfo=UTC)
"""Where the clock can be moved to at most: whatever it is added to stays a time."""
_LONGEST: Final = 60.0
"""Seconds after which a wait looks at the time again: the machine may have slept, or its clock
been set.
"""
_SHORTEST: Final = 0.01


class SandboxClock:
    """A clock of seconds since 1970, called as `time.time` is. `base` is what it moves with."""

    def __init__(self, base: Callable[[], float] = time.time) -> None:
        self._base = base
        self._offset = 0.0
        self._waiting: set[asyncio.Event] = set()

    def __call__(self) -> float:
        return self._base() + self._offset

    @property
    def offset(self) -> float:
        """Seconds that it is ahead of its base."""
        return self._offset

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.fromtimestamp(self(), UTC)

    def advance(self, by: timedelta) -> None:
        """Move it forward, and wake what waits on it. Raises `ValueError` if that is backward or
        past `LATEST`.
        """
        if by < timedelta():
            raise ValueError("The clock can't be moved back.")
        if by > LATEST - self.now():
            raise ValueError(f"The clock can't be moved past the year {LATEST.year}.")
        self._offset += by.total_seconds()
        for woken in self._waiting:
            woken.set()

    def restore(self, offset: timedelta) -> None:
        """Begin with an offset that was kept."""
        self._offset = offset.total_seconds()

    def move_to(self, moment: datetime) -> None:
        """Move it forward to a time, as `advance`."""
        self.advance(moment - self.now())

    async def wait(self, until: datetime | None, woken: asyncio.Event) -> None:
        """Wait until a time (None: for ever), until `woken` is set, or until the clock is moved,
        which sets it. Cancellation ends it.
        """
        self._waiting.add(woken)
        try:
            while not woken.is_set() and (until is None or self.now() < until):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if until is None else self._turn(until)):
                        await woken.wait()
        finally:
            self._waiting.discard(woken)

    def _turn(self, until: datetime) -> float:
        return max(_SHORTEST, min(_LONGEST, (until - self.now()).total_seconds()))
