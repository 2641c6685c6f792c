"""Latencies: what counts of them, and how they are reported."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.latency import (
    ALLOWED,
    BATCH_AGE,
    LOW,
    NAME,
    LatencyMeasurement,
    LatencyResult,
    LatencySeries,
    draw_latency,
    latency_table,
    percentiles,
)
from benchmarks.processes import free_port
from benchmarks.report import percentile
from benchmarks.targets import Machine, Target
from tests.benchmarks.test_measuring import TWO_CORES
from tests.support.cases import cases


def test_percentiles_are_of_all_values() -> None:
    """The smallest value that so many are at or below."""
    values = [float(number) for number in range(1000, 0, -1)]
    computed = [percentile(values, share) for share in (0.5, 0.99, 0.999)]
    assert (computed, percentile([7.0], 0.99)) == ([500.0, 990.0, 999.0], 7.0)


@cases(("p99", "good"), [(BATCH_AGE + ALLOWED - 0.001, True), (BATCH_AGE + ALLOWED + 0.001, False)])
def test_the_slowest_percent_of_deliveries_decides(p99: float, *, good: bool) -> None:
    """One request in a hundred may take longer; of each load."""
    figures = percentiles([0.5] * 98 + [p99, 9.0])
    quick = LatencySeries(
        1,
        disk=False,
        greatest=2000.0,
        rate=1000.0,
        delays=figures,
        answers=figures,
        deliveries=percentiles([0.1]),
    )
    series = LatencySeries(
        50,
        disk=True,
        greatest=200.0,
        rate=100.0,
        delays=figures,
        answers=figures,
        deliveries=figures,
    )
    result = LatencyResult(NAME, [quick, series])
    assert result.good == good
    assert f"| {p99:.3f} s " in latency_table(result)
    assert latency_table(result).endswith(": good" if good else "NOT GOOD")


@pytest.mark.long
@TWO_CORES
def test_a_short_run_measures_each_request(tmp_path: Path) -> None:
    """Of a load that is found and of one that is given: every request is answered, every event
    arrives, and the picture can be drawn.
    """
    first, second = sorted(os.sched_getaffinity(0))[:2]
    series = [LatencySeries(50, disk=True), LatencySeries(1, disk=False, rate=LOW)]
    measurement = LatencyMeasurement(
        Target(free_port(), free_port()), Machine(first, second), seconds=0.2, warm_up=0.2
    )
    for one_series in series:
        measurement.measure(one_series)
    result = LatencyResult(NAME, series)
    assert [one_series.rate == one_series.greatest / 2 for one_series in result.series] == [
        True,
        False,
    ]
    assert all(
        0 < one_series.answers[0.5] <= one_series.answers[0.999] for one_series in result.series
    )
    assert all(
        0 < one_series.deliveries[0.5] <= one_series.deliveries[0.999]
        for one_series in result.series
    )
    draw_latency(result, tmp_path / "latency.svg")
    ElementTree.fromstring((tmp_path / "latency.svg").read_text())
