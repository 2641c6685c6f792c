"""What happened between two snapshots of one daemon: events a second, and the answers of the
upstream, as live views show them.

Invariant: no rate is negative. Between snapshots of different runs of the daemon there are no
rates; where a worker was restarted in between, its figures count as zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from forwarder.telemetry.snapshot import Histogram, LaneSnapshot, Snapshot

WINDOW: Final = 10.0
"""Seconds over which live views compute rates, at least."""


@dataclass(frozen=True, slots=True)
class LaneRates:
    """Events a second of one lane."""

    received: float = 0.0
    delivered: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowRates:
    """Everything by the second, over `seconds`."""

    seconds: float
    received: float
    delivered: float
    requests: float
    """To the upstream."""
    latency: Histogram
    """Of those requests."""
    lanes: Mapping[str, LaneRates] = field(default_factory=dict)
    """By label."""

    def lane(self, label: str) -> LaneRates:
        """A lane's rates; zero if it had no events before."""
        return self.lanes.get(label, LaneRates())


def rates_between(before: Snapshot | None, after: Snapshot) -> FlowRates | None:
    """The rates from one snapshot to the next; None if there is none before, no time between them,
    or another run of the daemon.
    """
    if before is None or before.started_at != after.started_at or before.now >= after.now:
        return None
    seconds = after.now - before.now
    known = {lane.label: lane for lane in before.lanes}
    lanes = {
        lane.label: _lane(known.get(lane.label, LaneSnapshot(lane.label)), lane, seconds)
        for lane in after.lanes
    }
    latency = since(before.request_duration, after.request_duration)
    return FlowRates(
        seconds,
        sum(lane.received for lane in lanes.values()),
        sum(lane.delivered for lane in lanes.values()),
        latency.count / seconds,
        latency,
        lanes,
    )


class RateWindow:
    """The rates of the last seconds, of snapshots that come more often: events leave in batches, so
    that a steady stream looks unsteady from one look to the next.
    """

    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._kept: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> FlowRates | None:
        """The rates up to this snapshot; None for the first one of a run of the daemon."""
        snapshots = self._kept
        while len(snapshots) > 1 and snapshot.now - snapshots[1].now >= self._seconds:
            snapshots.popleft()
        rates = rates_between(snapshots[0] if snapshots else None, snapshot)
        if rates is None:
            snapshots.clear()
        snapshots.append(snapshot)
        return rates

    def clear(self) -> None:
        """Begin anew with the next snapshot."""
        self._kept.clear()


def _lane(before: LaneSnapshot, after: LaneSnapshot, seconds: float) -> LaneRates:
    received = after.total_received - before.total_received
    delivered = after.delivered - before.delivered
    return LaneRates(max(0, received) / seconds, max(0, delivered) / seconds)


def since(before: Histogram, after: Histogram) -> Histogram:
    """The observations that a histogram has gained."""
    if before.bounds != after.bounds:
        return after if not before.count else Histogram(after.bounds, (0,) * len(after.counts))
    counts = tuple(max(0, new - old) for old, new in zip(before.counts, after.counts, strict=True))
    return Histogram(after.bounds, counts, max(0.0, after.sum - before.sum))


def quantile(histogram: Histogram, share: float) -> float | None:
    """The value below which this share of the observations lies, evenly spread in its bucket; the
    last bound if it lies above all bounds.

    None if there are no observations.
    """
    if not histogram.count or not histogram.bounds:
        return None
    rank = share * histogram.count
    below = 0
    edges = (0.0, *histogram.bounds)
    for low, high, count in zip(edges, histogram.bounds, histogram.counts, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    return histogram.bounds[-1]
