"""Whether an upstream is asked at all: after some failures in a row nobody waits for it any more, but one who probes.

Invariants: while it is open at most one attempt is let through each `PROBE_SECONDS`, however slowly its sender brings it; when that one has
failed, the next comes no sooner than an interval later, which grows from `initial` to `maximum` seconds. Anything that answers closes it, a
straggler from before too. Failures of stragglers don't count once it is open; a probe that was overtaken is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forwarder.core.clock import Backoff

FAILURES: Final = 5
"""Failures in a row that open a circuit."""

PROBES: Final = Backoff(1.0, 5.0)
"""Waits between probes: one caller in so many seconds waits in vain, and no longer are flags away after an outage."""

PROBE_SECONDS: Final = 5.0
"""For so long nobody else is let through while one probes: its sender may take minutes to bring its body, and the upstream be back."""


class Attempt:
    """The leave to ask once. What came of it is told to the circuit: `answered`, `succeeded`, `failed` or `abandoned`."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False
        """Whether its failure was told: an answer that is a gateway's complaint and breaks off too is one failure."""


@dataclass(frozen=True, slots=True)
class Open:
    """Why and since when (monotonic seconds) nobody is let through."""

    since: float
    why: str


class Circuit:
    """The circuit of one upstream. Times are monotonic seconds."""

    def __init__(self, failures: int = FAILURES, probes: Backoff = PROBES) -> None:
        self._limit = failures
        self._probes = probes
        self._failures = 0
        self._failed_probes = 0
        self._next_probe = 0.0
        self._probe: Attempt | None = None
        self._probe_until = 0.0
        """When another may probe although that one hasn't ended."""
        self.open: Open | None = None
        """Set while it is open."""

    def begin(self, now: float) -> Attempt | None:
        """The leave to ask; None if nobody is to be kept waiting for this upstream now."""
        if self.open is None:
            return Attempt()
        if now < (self._next_probe if self._probe is None else self._probe_until):
            return None
        self._probe, self._probe_until = Attempt(), now + PROBE_SECONDS
        return self._probe

    def answered(self) -> None:
        """An answer has begun that isn't a gateway's complaint: the upstream is there."""
        if self.open is not None:
            self.open, self._probe, self._failures = None, None, 0

    def succeeded(self) -> None:
        """The answer is complete."""
        self.answered()
        self._failures = 0

    def failed(self, attempt: Attempt, now: float, why: str) -> None:
        """Nothing came of it."""
        if attempt.failed:
            return
        attempt.failed = True
        if self.open is None:
            self._failures += 1
            if self._failures >= self._limit:
                self._failed_probes = 0
                self._open(now, Open(now, why))
        elif attempt is self._probe:
            self._failed_probes += 1
            self._open(now, Open(self.open.since, why))

    def abandoned(self, attempt: Attempt) -> None:
        """Nobody wants to know any more: it tells nothing, and the next one may probe in its place."""
        if attempt is self._probe:
            self._probe = None

    def retry_after(self, now: float) -> float:
        """Seconds until the next probe is due."""
        return max(0.0, (self._next_probe if self._probe is None else self._probe_until) - now)

    def _open(self, now: float, state: Open) -> None:
        self.open, self._probe = state, None
        self._next_probe = now + self._probes.equal_jitter(self._failed_probes + 1)
