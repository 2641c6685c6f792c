"""Waiting without sleeping: for a condition, with a limit; and a clock that hurries."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from forwarder.core.clock import Timer
from tests.support.clock import MIDNIGHT

LIMIT: Final = 60.0
"""Seconds of real time after which a condition that should come true has failed: far more than it
takes on a busy machine.
"""

Result = TypeVar("Result")

USUAL: Final = 0.02
"""Seconds that `slowness` works on a usual machine."""

TICK: Final = 0.001
"""Seconds after which a condition is asked again, if the loop has nothing else to do: without it
waiting would keep a core busy.
"""
LOOKS_APART: Final = 4.0
"""Times as long as a look takes, the pause after it: what is costly to see isn't asked for all the
time.
"""
LONGEST_PAUSE: Final = 0.05
"""Seconds."""


async def eventually(
    condition: Callable[[], object], limit: float = LIMIT, *, explain: Callable[[], object] = str
) -> None:
    """Return as soon as `condition` holds; it is asked again after iterations of the loop. Fails
    after `limit` seconds, with what `explain` says then. Cancellation ends the wait at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    looks = Looks()
    while not condition():
        assert loop.time() < deadline, f"not so after {limit:g} s: {explain()}"
        await looks.pause()


class Looks:
    """Looks at something, again and again. The first one begins now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def pause(self) -> None:
        """A look is over: let the loop run until the next one, which begins then."""
        seconds = self._loop.time() - self._began
        await pause(min(max(TICK, LOOKS_APART * seconds), LONGEST_PAUSE))
        self._began = self._loop.time()


async def tick() -> None:
    """Let the loop run for a moment."""
    await pause(TICK)


async def pause(seconds: float) -> None:
    """Let some time pass, where something has a pace: a load, or looks at what continues. No test
    waits for anything by it.
    """
    passed = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, passed.set_result, None)
    try:
        await passed
    finally:
        timer.cancel()


async def in_thread(function: Callable[[], Result]) -> Result:
    """Call a function that blocks in a thread of its own, which is gone when this returns.
    Cancellation waits for its end.
    """
    with ThreadPoolExecutor(1) as executor:
        return await asyncio.get_running_loop().run_in_executor(executor, function)


@functools.cache
def slowness() -> float:
    """How many times as long as on a usual machine this one takes for the same work; from 1 to 4,
    as the best of some looks.
    """

    def worked() -> float:
        began = time.perf_counter()
        sum(range(1_000_000))
        return time.perf_counter() - began

    return min(max(1.0, min(worked() for _ in range(5)) / USUAL), 4.0)


class FastClock:
    """A `forwarder.core.clock.Clock` that runs `speed` times as fast as the real one, from
    midnight on.

    For tests over real sockets in which pauses of seconds occur: they happen in their right order
    and proportion, and no one waits. On a slow machine it runs slower by as much: what takes
    milliseconds elsewhere would take seconds by this clock.
    """

    def __init__(self, speed: float = 40.0) -> None:
        self.speed = max(1.0, speed / slowness())
        self._began = time.monotonic()

    def now(self) -> float:
        return MIDNIGHT + self.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self.speed

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay / self.speed, callback)

    async def sleep(self, seconds: float) -> None:
        passed = asyncio.Event()
        timer = self.call_later(seconds, passed.set)
        try:
            await passed.wait()
        finally:
            timer.cancel()
