"""What of a daemon's state needs a person: the one place that decides it, for the status page,
`forwarder status` and the live view.

Invariants: what recovers by itself, or is normal work, needs no operator: a busy lane, a retry, a
paused partition, a count of answers in the past. Thresholds are those of the alerts (docs:
alerts), so that a page is amber exactly where an alert would fire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from forwarder.core.ports import RULE_PREFIX, DropReason
from forwarder.telemetry.readable import plural
from forwarder.telemetry.snapshot import (
    DestinationSnapshot,
    KafkaCluster,
    LaneSnapshot,
    LogSourceState,
    Snapshot,
    State,
    UpstreamState,
    Worker,
)

EVENTS_OLD: Final = 300.0
"""Seconds; a lane whose oldest event is older is not delivered as it should be."""
BUFFER_FILLING: Final = 0.8
"""Of the buffer's limit; above it, senders will soon be rejected."""
HARMLESS_DROPS: Final = frozenset(
    {DropReason.OPERATOR, DropReason.WITHDRAWN, DropReason.RETURNED_TO_BROKER}
)
"""Reasons for dropping by which no event is lost: an operator decided so, or the sender or Kafka
still has it.
"""


class Severity(StrEnum):
    """How urgently a person is needed. The values are the style classes of the pages."""

    GOOD = "good"
    """It works."""
    NEUTRAL = ""
    """Nobody is needed: it has nothing to do, or changes by itself."""
    WARNING = "warn"
    """A person should look at it today."""
    CRITICAL = "bad"
    """A person is needed now: events aren't delivered, read or accepted."""


class HealthState(NamedTuple):
    """A state in a word, and whether it needs a person."""

    word: str
    severity: Severity


def daemon_health(snapshot: Snapshot) -> HealthState:
    """Whether the daemon accepts events. While it starts or drains, no operator is needed."""
    word = f"{snapshot.state}, {'ready' if snapshot.ready else 'not ready'}"
    if snapshot.ready:
        return HealthState(word, Severity.GOOD)
    return HealthState(
        word, Severity.CRITICAL if snapshot.state is State.RUNNING else Severity.NEUTRAL
    )


def upstream_health(snapshot: Snapshot | DestinationSnapshot) -> HealthState:
    """Whether the upstream answers."""
    severities = {
        UpstreamState.UP: Severity.GOOD,
        UpstreamState.DOWN: Severity.CRITICAL,
        UpstreamState.UNKNOWN: Severity.NEUTRAL,
    }
    return HealthState(
        f"upstream {snapshot.upstream.state.words}", severities[snapshot.upstream.state]
    )


def lane_health(lane: LaneSnapshot) -> HealthState:
    """Whether a lane is delivered. One with events in the buffer is busy, not in trouble, unless
    they get old.
    """
    if lane.halted:
        return HealthState(f"halted: {lane.halted}", Severity.CRITICAL)
    if not lane.buffered:
        return HealthState("delivered", Severity.GOOD)
    old = lane.oldest_age is not None and lane.oldest_age > EVENTS_OLD
    return (
        HealthState("delayed", Severity.WARNING)
        if old
        else HealthState("delivering", Severity.GOOD)
    )


def lane_severity(lane: LaneSnapshot) -> Severity:
    """Of a whole lane: also books that are off need a person."""
    return Severity.CRITICAL if lane.difference else lane_health(lane).severity


def troubles(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Iterator[HealthState]:
    """How many lanes and sources need a person, beside the state of daemon and upstream: the most
    urgent first, and nothing of those that need none.
    """
    lanes = tuple(lanes)
    sources: list[KafkaCluster | LogSourceState] = [*snapshot.kafka, *snapshot.logs]
    counts = {
        "halted": sum(bool(lane.halted) for lane in lanes),
        "with wrong books": sum(bool(lane.difference) for lane in lanes),
    }
    for what, count in counts.items():
        if count:
            yield HealthState(f"{plural(count, 'lane')} {what}", Severity.CRITICAL)
    down = sum(source_health(source).severity is Severity.CRITICAL for source in sources)
    if down:
        yield HealthState(f"{plural(down, 'source')} down", Severity.CRITICAL)
    delayed = sum(lane_health(lane).severity is Severity.WARNING for lane in lanes)
    if delayed:
        yield HealthState(f"{plural(delayed, 'lane')} delayed", Severity.WARNING)


def buffer_severity(snapshot: Snapshot) -> Severity:
    """Whether the buffer has room."""
    used = snapshot.buffer_bytes
    limit = snapshot.buffer_limit_bytes
    if limit and used >= limit:
        return Severity.CRITICAL
    return Severity.WARNING if used > limit * BUFFER_FILLING else Severity.GOOD


def dead_letter_severity(counts: Mapping[str, int]) -> Severity:
    """Dead letters stay until a person replays or drops them."""
    return Severity.WARNING if any(counts.values()) else Severity.NEUTRAL


def _loses(reason: str) -> bool:
    """Whether events that are dropped for this reason are lost, and not meant to be."""
    return reason not in HARMLESS_DROPS and not reason.startswith(RULE_PREFIX)


def drop_severity(counts: Mapping[str, int]) -> Severity:
    """Whether events are lost, among those dropped; counts are by reason."""
    return Severity.WARNING if any(map(counts.get, filter(_loses, counts))) else Severity.NEUTRAL


def source_health(source: KafkaCluster | LogSourceState) -> HealthState:
    """Whether a Kafka cluster or a log source is read."""
    if source.state in ("down", "failed"):
        return HealthState(source.state, Severity.CRITICAL)
    if source.why or source.hint or (isinstance(source, KafkaCluster) and source.note):
        return HealthState(source.state, Severity.WARNING)
    return HealthState(source.state, Severity.GOOD if source.reads else Severity.NEUTRAL)


def worker_health(worker: Worker) -> HealthState:
    """Whether a worker process runs. It comes back by itself, but it ended unexpectedly."""
    word = f"{worker.condition}: {worker.why}".removesuffix(": ")
    if worker.why or worker.silent_since is not None:
        return HealthState(word, Severity.WARNING)
    return HealthState(word, Severity.GOOD if worker.state == "running" else Severity.NEUTRAL)
