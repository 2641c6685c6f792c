"""Halted lanes: one reason at a time, probes at growing intervals, and what people see."""

from __future__ import annotations

import pytest
import structlog

from forwarder.core.clock import Backoff
from forwarder.core.event import Lane
from forwarder.core.outcome import HaltReason
from forwarder.delivery.halting import HINTS, Halts
from tests.delivery.rig import LANE, upper


@pytest.fixture
def halts() -> Halts:
    """No lane is halted yet; waits are the longest."""
    return Halts(Backoff(1.0, 60.0, upper))


def test_probes_come_at_growing_intervals(halts: Halts) -> None:
    """One second, then twice as long each time, up to a minute."""
    halts.halt(LANE, HaltReason.FORBIDDEN, "HTTP 403", now=100.0, wall=0.0)
    waits = []
    for _ in range(9):
        halted = halts.get(LANE)
        assert halted is not None
        waits.append(halted.next_probe - 100.0)
        halts.probe_failed(LANE, 100.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_jitter_keeps_half_of_each_wait() -> None:
    """Lanes that were halted together don't probe together, and none probes at once."""
    halts = Halts()
    for number in range(100):
        halts.halt(Lane(f"phc_{number}"), HaltReason.FORBIDDEN, "", now=0.0, wall=0.0)
    probes = [report.next_probe for report in halts.report(0.0, 0.0)]
    assert all(0.5 <= probe <= 1.0 for probe in probes)
    assert len(set(probes)) > 50


def test_the_first_reason_stays_unless_the_key_check_knows_better(halts: Halts) -> None:
    """Answers to requests that were still in flight don't change why a lane is halted; the key
    check's word counts most.
    """
    halts.halt(LANE, HaltReason.FORBIDDEN, "a", now=0.0, wall=5.0)
    halts.halt(LANE, HaltReason.WRONG_ADDRESS, "b", now=0.0, wall=6.0)
    assert halts.report(0.0, 6.0)[0].reason is HaltReason.FORBIDDEN
    halts.halt(LANE, HaltReason.UNKNOWN_KEY, "c", now=0.0, wall=7.0, by_key_check=True)
    assert halts.report(0.0, 7.0)[0].reason is HaltReason.UNKNOWN_KEY


def test_the_report_says_what_to_do(halts: Halts) -> None:
    """Every reason has a hint; times are on the wall."""
    assert set(HINTS) == set(HaltReason)
    halts.halt(LANE, HaltReason.FORBIDDEN, "HTTP 403: no", now=100.0, wall=5000.0)
    (report,) = halts.report(100.5, 5000.5)
    assert (report.since, report.next_probe, report.why) == (5000.0, 5001.0, "HTTP 403: no")
    assert report.hint == HINTS[HaltReason.FORBIDDEN]


def test_each_change_is_logged_once_without_the_key(halts: Halts) -> None:
    """One line when a lane halts, one when it continues; the same lane's further refusals are
    silent; keys aren't shown.
    """
    with structlog.testing.capture_logs() as logs:
        halts.halt(LANE, HaltReason.FORBIDDEN, "HTTP 403", now=0.0, wall=0.0)
        halts.halt(LANE, HaltReason.FORBIDDEN, "HTTP 403", now=0.0, wall=0.0)
        halts.probe_failed(LANE, 1.0, HaltReason.FORBIDDEN, "HTTP 403")
        halts.resume(LANE)
    assert [line["event"] for line in logs] == ["lane halted", "lane resumed"]
    assert LANE.api_key not in str(logs)
    assert LANE not in halts
    assert len(halts) == 0
