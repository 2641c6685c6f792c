"""One snapshot of several processes' snapshots: what the supervisor of workers shows.

Each field says how its figures are merged (`telemetry/snapshot.py`); what follows from more than
one field stands here. Books that balance in each snapshot balance in the sum, although the
snapshots are of different instants; a lane is identified by its label; nothing is accepted as long
as no worker accepts, and one that can't while others can is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from forwarder.telemetry.labels import MAX_LABELS, OTHER, UNDECODABLE
from forwarder.telemetry.merging import merge_figures
from forwarder.telemetry.snapshot import (
    KafkaCluster,
    LaneSnapshot,
    LogSourceState,
    Snapshot,
    State,
    by_label,
    merge_destinations,
)

_WORST_FIRST: Final = (
    "failed",
    "down",
    "waiting",
    "connecting",
    "starting",
    "joining",
    "stopping",
    "ended",
    "reading",
)
"""The states of a Kafka cluster and of a log source."""
_Source = TypeVar("_Source", KafkaCluster, LogSourceState)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker's part of the merged snapshot."""

    name: str
    snapshot: Snapshot
    listens: bool = True
    """Whether it accepts events: a worker for the directory of a former one doesn't."""
    there: bool = True
    """Whether its process runs; else the snapshot is its last one, and only its books and its
    buffer count.
    """
    responds: bool = True
    """Whether its process answers; else the snapshot is its last one, and it accepts nothing."""


class LabelLimit:
    """Keeps the first `limit` labels, for good; the rest become `other`: each worker has this many
    labels of its own.
    """

    def __init__(self, limit: int = MAX_LABELS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, label: str) -> str:
        """The label to show."""
        if label in self._known or label in (OTHER, UNDECODABLE):
            return label
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(label)
        return label


def merge(members: Sequence[WorkerShare], labels: Callable[[str], str] = str) -> Snapshot:
    """One snapshot of at least one worker's."""
    there = [member for member in members if member.there] or list(members)
    ready = any(_accepts(member) for member in members)
    return replace(
        merge_figures([(member.snapshot, member.there) for member in members]),
        state=_state(members),
        lanes=by_label(
            _labelled(lane, labels(lane.label))
            for member in members
            for lane in member.snapshot.lanes
        ),
        buffer_limit_bytes=sum(
            member.snapshot.buffer_limit_bytes for member in members if member.listens
        ),
        memory_bytes=sum(member.snapshot.memory_bytes for member in there if member.listens),
        memory_limit_bytes=sum(
            member.snapshot.memory_limit_bytes for member in members if member.listens
        ),
        warnings=(
            *_by_worker(there, lambda snapshot: snapshot.warnings),
            *(_not_accepting(members) if ready else ()),
        ),
        notices=tuple(_by_worker(there, lambda snapshot: snapshot.notices)),
        kafka=merge_sources(
            [(member.snapshot.kafka, member.there) for member in members], "connecting"
        ),
        logs=merge_sources(
            [(member.snapshot.logs, member.there) for member in members], "starting"
        ),
        ready=ready,
        not_ready=() if ready else (*_silent(members), *_not_accepting(members)),
        workers=(),
        destinations=merge_destinations(member.snapshot.destinations for member in members),
    )


def _labelled(lane: LaneSnapshot, label: str) -> LaneSnapshot:
    return lane if label == lane.label else replace(lane, label=label, name="")


def merge_sources(
    members: Iterable[tuple[Sequence[_Source], bool]], idle: str
) -> tuple[_Source, ...]:
    """Each source once, by name, of workers' sources with whether the worker is there. The worst
    state of all workers counts.

    A source that no running worker reads is `idle`: a worker that starts again reads it.
    """
    by_name: dict[str, list[tuple[_Source, bool]]] = {}
    for sources, there in members:
        for source in sources:
            by_name.setdefault(source.name, []).append((source, there))
    return tuple(_merge_source(parts, idle) for parts in by_name.values())


def _merge_source(parts: Sequence[tuple[_Source, bool]], idle: str) -> _Source:
    merged = merge_figures(sorted(parts, key=lambda member: _rank(member[0].state)))
    return (
        merged if any(there for _, there in parts) else replace(merged, state=idle, why="", hint="")
    )


def _rank(state: str) -> int:
    return _WORST_FIRST.index(state) if state in _WORST_FIRST else 0


def _accepts(member: WorkerShare) -> bool:
    return member.there and member.listens and member.responds and member.snapshot.ready


def _state(members: Iterable[WorkerShare]) -> State:
    states = {member.snapshot.state for member in members if member.there and member.listens}
    return next(
        (state for state in (State.RUNNING, State.STARTING, State.DRAINING) if state in states),
        State.STARTING,
    )


def _silent(members: Iterable[WorkerShare]) -> tuple[str, ...]:
    return tuple(
        f"{member.name}: it doesn't respond"
        for member in members
        if member.there and member.listens and not member.responds
    )


def _not_accepting(members: Iterable[WorkerShare]) -> tuple[str, ...]:
    listening = [member for member in members if member.there and member.listens]
    return tuple(
        _by_worker(
            listening,
            lambda snapshot: (
                () if snapshot.ready else snapshot.not_ready or (snapshot.state.value,)
            ),
        )
    )


def _by_worker(
    members: Sequence[WorkerShare], texts: Callable[[Snapshot], Iterable[str]]
) -> list[str]:
    """The texts of all workers, with their names unless all workers have the same text."""
    names: dict[str, list[str]] = {}
    for member in members:
        for text in texts(member.snapshot):
            names.setdefault(text, []).append(member.name)
    return [
        text if len(having) == len(members) else f"{', '.join(having)}: {text}"
        for text, having in names.items()
    ]
