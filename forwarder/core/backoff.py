"""How long to wait before trying again: exponential, with full jitter (each wait is uniform between zero and the bound)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `initial` to `maximum` seconds."""

    initial: float
    maximum: float
    uniform: Callable[[float, float], float] = random.uniform

    def bound(self, attempt: int) -> float:
        """The longest wait before attempt `attempt` + 1; attempts count from 1."""
        return float(min(self.maximum, self.initial * 2 ** min(attempt - 1, 60)))

    def delay(self, attempt: int) -> float:
        """A wait before the next attempt, with full jitter."""
        return self.uniform(0.0, self.bound(attempt))
