"""The adaptive concurrency limit: additive increase, multiplicative decrease. Pure.

The limit grows by one for each round of requests that the upstream accepted, if the limit was
reached; it is halved when the upstream is overloaded or can't be reached, and cut by a tenth when
answers become slow compared with what bodies of that size usually take (an exponentially weighted
mean and deviation for each class of sizes: 4 KiB and 4 MB aren't comparable). It is cut once a
round at most: attempts that began before the last cut say nothing new. Refusals (400, 401,
403, 413) are caused by the request, not by the load, and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from forwarder.core.outcome import Delivered, Outcome, Retry

MINIMUM: Final = 1
MAXIMUM: Final = 32
INITIAL: Final = 4

_AFTER_OVERLOAD: Final = 0.5
_AFTER_SLOWNESS: Final = 0.9
_WEIGHT: Final = 0.1
"""Weight of a new sample in mean and deviation."""
_DEVIATIONS: Final = 3.0
_SLACK: Final = 0.01
"""Seconds by which an answer may always be slower: noise of timers and loop."""
_SAMPLES: Final = 8
"""Answers of a class before one of it can count as slow."""


class LoadSignal(Enum):
    """What an outcome says about the upstream's load."""

    ACCEPTED = auto()
    OVERLOAD = auto()
    NEUTRAL = auto()


def load_signal(outcome: Outcome) -> LoadSignal:
    """What `outcome` says about the upstream's load."""
    if isinstance(outcome, Delivered):
        return LoadSignal.ACCEPTED
    if isinstance(outcome, Retry) and outcome.overload:
        return LoadSignal.OVERLOAD
    return LoadSignal.NEUTRAL


@dataclass(slots=True)
class _Latency:
    """How long answers to bodies of one class of sizes take, in seconds."""

    mean: float = 0.0
    deviation: float = 0.0
    samples: int = 0

    def is_slow(self, seconds: float) -> bool:
        """Whether an answer took far longer than usual."""
        usual = max(self.mean + _DEVIATIONS * self.deviation, self.mean * 1.5)
        return self.samples >= _SAMPLES and seconds > usual + _SLACK

    def add(self, seconds: float) -> None:
        """Add a sample. The first few weigh more, so that the mean doesn't start at zero."""
        self.samples += 1
        weight = max(_WEIGHT, 1 / self.samples)
        off = seconds - self.mean
        self.mean += weight * off
        self.deviation += weight * (abs(off) - self.deviation) if self.samples > 1 else 0.0


class Limiter:
    """The limit of requests in flight. `fixed`: a constant limit."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._limit = float(fixed or INITIAL)
        self._cut_at = -1
        self._usual: dict[int, _Latency] = {}

    @property
    def limit(self) -> int:
        """How many requests may be in flight now: at least one."""
        return int(self._limit)

    def observe(
        self,
        signal: LoadSignal,
        *,
        number: int,
        latest: int,
        in_flight: int,
        size: int,
        seconds: float,
    ) -> None:
        """Attempt `number` with a body of `size` bytes was answered after `seconds`.

        `latest` is the highest attempt number given out, `in_flight` how many were in flight until
        now, this one included.
        """
        if self._fixed is not None or signal is LoadSignal.NEUTRAL:
            return
        if signal is LoadSignal.OVERLOAD:
            self._cut(_AFTER_OVERLOAD, number, latest)
            return
        usual = self._usual.setdefault(size.bit_length() // 2, _Latency())
        slow = usual.is_slow(seconds)
        usual.add(seconds)
        if slow:
            self._cut(_AFTER_SLOWNESS, number, latest)
        elif in_flight >= self.limit:
            self._limit = min(float(MAXIMUM), self._limit + 1.0 / self._limit)

    def _cut(self, factor: float, number: int, latest: int) -> None:
        if number > self._cut_at:
            self._limit = max(float(MINIMUM), self._limit * factor)
            self._cut_at = latest
