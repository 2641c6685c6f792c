"""How long an upstream is waited for: its time runs only while something is expected of it.

Invariants: it doesn't run while the sender is waited for (to bring more of its request, to read its answer, or for its turn among its own
requests), so that a slow sender isn't taken for a slow upstream; when it has run out, the task inside is ended by `TimeoutError`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from forwarder.core.clock import Clock, Timer


class Patience:
    """An asynchronous context manager around everything that has to do with the upstream."""

    def __init__(self, clock: Clock, seconds: float, *, whole: bool) -> None:
        """`seconds` for all of it (`whole`), or until there is progress each time."""
        self._clock = clock
        self._seconds = self._left = seconds
        self._whole = whole
        self._timer: Timer | None = None
        self._since = 0.0
        self._timeout = asyncio.timeout(None)
        self._reading = True
        self._sending = True
        self._inside = False

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        self._inside = True
        self._change()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        self._inside = False
        await self._timeout.__aexit__(kind, error, trace)

    def reading(self, *, expected: bool) -> None:
        """Whether the next of the answer is the upstream's to bring."""
        self._reading = expected
        self._change()

    def sending(self, *, expected: bool) -> None:
        """Whether what there is of the request is the upstream's to take; false: the sender is to bring more of it."""
        self._sending = expected
        self._change()

    def progressed(self) -> None:
        """The upstream took or brought something."""
        if not self._whole:
            self._stop()
            self._left = self._seconds
            self._change()

    def _change(self) -> None:
        if not (self._reading and self._sending):
            self._stop()
        elif self._timer is None and self._inside:
            self._since = self._clock.monotonic()
            self._timer = self._clock.call_later(self._left, self._over)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left = max(0.0, self._left - (self._clock.monotonic() - self._since))

    def _over(self) -> None:
        self._timer, self._inside = None, False
        self._timeout.reschedule(asyncio.get_running_loop().time())
