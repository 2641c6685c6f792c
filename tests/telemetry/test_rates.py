"""Rates between two snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forwarder.telemetry.rates import LaneRates, RateWindow, quantile, rates_between
from forwarder.telemetry.snapshot import Histogram, LaneSnapshot, Snapshot
from tests.support.cases import cases
from tests.support.snapshots import FULL, GOOD

LATER = replace(FULL, now=FULL.now + 10)


@cases(
    ("before", "after"),
    [(None, FULL), (FULL, FULL), (replace(FULL, started_at=1.0), LATER)],
    ids=["first", "no time", "another run"],
)
def test_there_are_none_without_two_snapshots_of_one_run(
    before: Snapshot | None, after: Snapshot
) -> None:
    """One snapshot has no rate, and counters of different runs aren't compared."""
    assert rates_between(before, after) is None


def test_lanes_have_rates_of_their_own() -> None:
    """A new lane counts from zero, and one whose figures went back, because its worker was
    restarted, has none.
    """
    new = LaneSnapshot("new", received={"http": 50}, delivered=20)
    fallen = replace(GOOD, received={"http": 7}, delivered=1250)
    rates = rates_between(FULL, replace(LATER, lanes=(new, fallen)))
    assert rates is not None
    assert (rates.lane("new"), rates.lane(GOOD.label), rates.lane("gone")) == (
        LaneRates(5, 2),
        LaneRates(0, 10),
        LaneRates(),
    )
    assert (rates.received, rates.delivered) == (5, 12)


def test_latency_is_that_of_the_requests_in_between() -> None:
    """Earlier requests don't count; a quantile lies within its bucket, and there
    is none without requests.
    """
    slow = Histogram((0.1, 1.0), (10, 12, 3), 12.5)
    rates = rates_between(FULL, replace(LATER, request_duration=slow))
    assert rates is not None
    assert (rates.requests, rates.latency) == (1.0, Histogram((0.1, 1.0), (0, 10, 0), 5.0))
    assert quantile(rates.latency, 0.5) == pytest.approx(0.55)
    assert quantile(slow, 0.99) == 1.0
    assert quantile(Histogram((0.1,), (0, 0)), 0.5) is None


def test_a_steady_stream_in_batches_has_steady_rates() -> None:
    """They are of the last ten seconds; another run of the daemon, or a break, begins anew."""

    def at(second: int, delivered: int, started: float = 1.0) -> Snapshot:
        lanes = (LaneSnapshot("a", {"http": delivered}, delivered=delivered),)
        return replace(FULL, now=second + 10.0, started_at=started, lanes=lanes)

    window = RateWindow()
    assert window.add(at(0, 0)) is None
    flow_rates = [window.add(at(second, second // 5 * 500)) for second in range(1, 31)]
    rates = [flow.delivered for flow in flow_rates if flow is not None]
    assert (len(rates), set(rates[10:])) == (30, {100.0})
    assert window.add(at(31, 50, started=30.0)) is None
    assert window.add(at(32, 60, started=30.0)) is not None
    window.clear()
    assert window.add(at(33, 70, started=30.0)) is None
