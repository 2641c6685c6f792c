"""What delivery tells of itself: plain numbers, read by metrics, status pages and tests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.core.event import Lane
from forwarder.delivery.halting import HaltReport

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BODY_BYTES: Final = tuple(float(4**power) for power in range(5, 13))
"""From 1 KiB to 16 MiB."""
BATCH_EVENTS: Final = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """A histogram's figures: `counts[i]` samples were above `bounds[i-1]` and at most `bounds[i]`; the last count has those above all
    bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts samples between bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a sample."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> HistogramCounts:
        """The figures so far."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """Whether the upstream is there, and what it, or the network, said last."""

    failing: bool
    why: str


@dataclass(frozen=True, slots=True)
class LaneRetry:
    """A lane whose last request is to be sent again: what the upstream said, and when the next attempt may be, wall-clock seconds."""

    lane: Lane
    why: str
    next_attempt: float


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """Figures since the start, and the state of now."""

    requests: Mapping[str, int]
    """By HTTP status, or "error"."""
    in_flight: int
    concurrency_limit: int
    durations: HistogramCounts
    """Seconds from the first byte sent to the answer."""
    batch_bytes: HistogramCounts
    """Bodies before compression, each attempt counted."""
    batch_events: HistogramCounts
    delivered: int
    """Events."""
    warnings: Mapping[str, int]
    """Delivered requests whose answer was odd, by kind (`Warned`)."""
    halts: Sequence[HaltReport]
    retries: Sequence[LaneRetry]
    """Lanes that wait after a failure of their own, and aren't halted."""
    upstream: UpstreamState
