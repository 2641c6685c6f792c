"""How long requests have occupied the event loop since it last looked at everything else.

What one request may do at once is bounded (`wire.effort`). But one turn of the loop reads every
connection that has something, and six requests of 20 ms each kept all others waiting for 105 to
142 ms. So after `LIMIT_SECONDS` of a turn the intake bounds what comes more tightly.
"""

from __future__ import annotations

import asyncio
from typing import Final

LIMIT_SECONDS: Final = 0.02
"""Of one turn."""

COUNTED_FROM: Final = 0.001
"""Seconds; what takes less counts for nothing, so that usual requests cost nothing here."""


class LoopTurn:
    """The time that requests took in this turn of the loop."""

    __slots__ = ("_spent", "over")

    def __init__(self) -> None:
        self.over = False
        """Whether they took as long as they may."""
        self._spent = 0.0

    def spend(self, seconds: float) -> None:
        """A request took so long."""
        if seconds < COUNTED_FROM:
            return
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._next)
        self._spent += seconds
        self.over = self._spent >= LIMIT_SECONDS

    def _next(self) -> None:
        self._spent = 0.0
        self.over = False
