"""What needs a person, and what doesn't."""

from __future__ import annotations

import re
from dataclasses import replace

from forwarder.core.ports import DropReason
from forwarder.telemetry.attention import (
    BUFFER_FILLING,
    EVENTS_OLD,
    HARMLESS_DROPS,
    Severity,
    buffer_severity,
    daemon_health,
    dead_letter_severity,
    drop_severity,
    lane_health,
    lane_severity,
    source_health,
    worker_health,
)
from forwarder.telemetry.snapshot import (
    KafkaCluster,
    KafkaPartition,
    LaneSnapshot,
    LogSourceState,
    State,
    Worker,
)
from tests.support.cases import cases
from tests.support.repository import ROOT
from tests.support.snapshots import FULL, GOOD, HALTED

ALERTS = (ROOT / "deploy" / "helm" / "forwarder" / "files" / "alerts.yaml").read_text()
BUSY = LaneSnapshot(
    "busy", received={"http": 1_000_000}, delivered=995_000, buffered=5_000, oldest_age=0.8
)


@cases(
    ("lane", "word", "severity"),
    [
        (replace(BUSY, buffered=0, oldest_age=None), "delivered", Severity.GOOD),
        (BUSY, "delivering", Severity.GOOD),
        (replace(BUSY, oldest_age=EVENTS_OLD), "delivering", Severity.GOOD),
        (replace(BUSY, oldest_age=EVENTS_OLD + 1), "delayed", Severity.WARNING),
        (HALTED, "halted: unknown_key", Severity.CRITICAL),
    ],
)
def test_a_busy_lane_needs_no_attention(lane: LaneSnapshot, word: str, severity: Severity) -> None:
    """Events in the buffer are normal work; only old ones need a person, and a halt
    needs one now.
    """
    assert lane_health(lane) == (word, severity)


def test_books_that_are_off_need_a_person() -> None:
    """Whatever else the lane does."""
    assert (lane_severity(GOOD), lane_severity(replace(GOOD, buffered=39))) == (
        Severity.GOOD,
        Severity.CRITICAL,
    )


def test_thresholds_are_those_of_the_alerts() -> None:
    """A page is amber where an alert would fire: old events, a buffer that
    fills, drops that lose events.
    """
    age = re.search(r'forwarder_oldest_event_age_seconds\{job="forwarder"\}\) > (\d+)', ALERTS)
    filling = re.search(r'forwarder_buffer_limit_bytes\{job="forwarder"\} > ([\d.]+)', ALERTS)
    harmless = re.search(
        r'forwarder_events_dropped_total\{job="forwarder", reason!~"([a-z_|]+)"', ALERTS
    )
    assert age is not None
    assert filling is not None
    assert harmless is not None
    assert (float(age[1]), float(filling[1]), set(harmless[1].split("|"))) == (
        EVENTS_OLD,
        BUFFER_FILLING,
        set(map(str, HARMLESS_DROPS)),
    )


@cases(
    ("used", "severity"),
    [
        (0, Severity.GOOD),
        (80, Severity.GOOD),
        (81, Severity.WARNING),
        (100, Severity.CRITICAL),
        (101, Severity.CRITICAL),
    ],
)
def test_a_buffer_that_fills(used: int, severity: Severity) -> None:
    """Over four fifths a person should look; without room senders are rejected."""
    assert buffer_severity(replace(FULL, buffer_bytes=used, buffer_limit_bytes=100)) is severity


def test_dead_letters_and_drops() -> None:
    """Dead letters are there until a person decides; a drop needs one only
    if events are lost by it.
    """
    assert (dead_letter_severity({"refused": 0}), dead_letter_severity({"refused": 1})) == (
        Severity.NEUTRAL,
        Severity.WARNING,
    )
    lost = {reason for reason in DropReason if drop_severity({reason.value: 1}) is Severity.WARNING}
    assert lost == {
        DropReason.INVALID_OVERFLOW,
        DropReason.DROP_NEWEST,
        DropReason.DROP_OLDEST,
        DropReason.OPTIONAL_DESTINATION,
        DropReason.DAMAGED,
    }
    assert drop_severity({"damaged": 0, "operator": 3}) is Severity.NEUTRAL


@cases(
    ("state", "ready", "severity"),
    [
        (State.RUNNING, True, Severity.GOOD),
        (State.RUNNING, False, Severity.CRITICAL),
        (State.STARTING, False, Severity.NEUTRAL),
        (State.DRAINING, False, Severity.NEUTRAL),
    ],
)
def test_a_start_and_a_stop_need_no_attention(
    state: State, ready: bool, severity: Severity
) -> None:
    """A running daemon that accepts nothing needs a person now."""
    assert daemon_health(replace(FULL, state=state, ready=ready)).severity is severity


@cases(
    ("source", "severity"),
    [
        (
            KafkaCluster("m", state="reading", partitions=(KafkaPartition("t", 0, paused="full"),)),
            Severity.GOOD,
        ),
        (KafkaCluster("m", state="joining"), Severity.NEUTRAL),
        (KafkaCluster("m", state="waiting", why="topic x isn't there"), Severity.WARNING),
        (KafkaCluster("m", state="reading", note="topic x isn't there"), Severity.WARNING),
        (KafkaCluster("m", state="down", why="no answer"), Severity.CRITICAL),
        (LogSourceState("w", state="reading"), Severity.GOOD),
        (LogSourceState("w", state="reading", why="1 file can't be opened"), Severity.WARNING),
        (LogSourceState("w", state="stopping"), Severity.NEUTRAL),
        (LogSourceState("w", state="failed", why="its positions can't be read"), Severity.CRITICAL),
    ],
)
def test_sources(source: KafkaCluster | LogSourceState, severity: Severity) -> None:
    """A source that isn't read needs a person, one that says why it is only partly read, too; a
    paused partition doesn't.
    """
    assert source_health(source) == (source.state, severity)


@cases(
    ("worker", "word", "severity"),
    [
        (Worker("w", "running"), "running", Severity.GOOD),
        (Worker("w", "starting"), "starting", Severity.NEUTRAL),
        (Worker("w", "running", silent_since=1.0), "not responding", Severity.WARNING),
        (
            Worker("w", "away", why="it was ended by SIGKILL"),
            "away: it was ended by SIGKILL",
            Severity.WARNING,
        ),
    ],
)
def test_workers(worker: Worker, word: str, severity: Severity) -> None:
    """One that ended unexpectedly comes back by itself; a person should look why."""
    assert worker_health(worker) == (word, severity)
