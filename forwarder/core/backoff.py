"""How long to wait before trying again: exponential, with jitter, so that those who failed together don't come back together.

Full jitter (uniform between zero and the bound) spreads retries best; equal jitter (between half the bound and all of it) is for probes,
which are few and shouldn't come too soon.
"""

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

    def full_jitter(self, attempt: int) -> float:
        """A wait before attempt `attempt` + 1, anywhere up to the bound."""
        return self.uniform(0.0, self.bound(attempt))

    def equal_jitter(self, attempt: int) -> float:
        """A wait before attempt `attempt` + 1, of half the bound at least."""
        bound = self.bound(attempt)
        return self.uniform(bound / 2, bound)
