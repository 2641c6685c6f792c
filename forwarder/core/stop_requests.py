"""Which requests to stop SIGTERM and SIGINT make.

A supervisor, a terminal and a service manager may each pass one stop on, and a process group gets
it as well: signals that come close together are one request. One that comes when the program has
done its work must not change its exit code.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

REPEAT_SECONDS: Final = 1.0
"""Signals within this time of the one that made a request belong to it."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def remove_handlers(
    loop: asyncio.AbstractEventLoop, numbers: Sequence[signal.Signals], *, ends: bool
) -> None:
    """Remove the loop's signal handlers. `ends`: the program has done its work and is about to
    exit; from now on it ignores stop signals.
    """
    for number in numbers:
        # the loop leaves the default behind, which kills: blocking the signal here would only have
        # another thread take it
        loop.remove_signal_handler(number)
        if ends and number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


class StopRequests:
    """Counts them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._count = 0
        self._last = 0.0

    def count(self) -> int:
        """The number of the request that a signal makes now, from 1; 0 if it belongs to the one
        before.
        """
        now = self._monotonic()
        if self._count and now - self._last < REPEAT_SECONDS:
            return 0
        self._last = now
        self._count += 1
        return self._count
