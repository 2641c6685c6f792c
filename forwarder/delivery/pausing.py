"""Waiting after failures: growing waits, counted once a round however many requests of it fail. Pure.

Invariants: `streak` is 0 exactly while nothing is wrong; an attempt that began before the last failure neither raises the streak (its
failure is the same event as that one) nor ends it (its success tells of an earlier time); `until` never moves back while the
streak lasts, so that no Retry-After is cut short. Attempts are told apart by their number, not by time: a clock can stand still.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forwarder.core.clock import Backoff


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How retries wait, in seconds. `give_up_after`: the age of a batch's oldest event past which a failed batch becomes dead letters;
    None: never."""

    initial: float = 0.5
    maximum: float = 30.0
    give_up_after: float | None = None


@dataclass(slots=True)
class Pause:
    """Whether a lane, or the whole upstream, waits after failures. Times are monotonic seconds."""

    backoff: Backoff
    streak: int = 0
    until: float = 0.0
    why: str = ""
    _failed: int = field(default=-1)
    """The number up to which attempts had begun when the last failure came."""

    @property
    def failing(self) -> bool:
        """Whether the last word was a failure. Then only one attempt at a time should test the ground."""
        return self.streak > 0

    def failed(self, attempt: int, latest: int, now: float, not_before: float, why: str) -> None:
        """Attempt number `attempt` failed, when `latest` was the highest number given out. Wait, and at least `not_before` seconds."""
        if attempt > self._failed:
            self.streak += 1
            self.until = max(self.until, now + self.backoff.full_jitter(self.streak))
        self.until = max(self.until, now + not_before)
        self._failed = latest
        self.why = why

    def succeeded(self, attempt: int) -> None:
        """Attempt number `attempt` got through: go on, if it began after the last failure."""
        if attempt > self._failed:
            self.streak, self.until, self.why = 0, 0.0, ""
