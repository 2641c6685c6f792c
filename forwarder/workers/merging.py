"""One snapshot of several processes' snapshots: what the supervisor of workers shows.

Each field says how its figures are merged (`telemetry/snapshot.py`); what follows from more than one field stands here. Books that balance
in each snapshot balance in the sum, although the snapshots are of different instants; a lane is identified by its label; nothing is
accepted as long as no worker accepts, and one that can't while others can is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forwarder.telemetry.labels import MAX_LABELS, OTHER, UNDECODABLE
from forwarder.telemetry.merging import merge_figures
from forwarder.telemetry.snapshot import KafkaCluster, Snapshot, State, by_label

_GRAVEST_FIRST: Final = ("failed", "down", "waiting", "connecting", "joining", "stopping", "reading")
"""The states of a Kafka cluster."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's share of the sum."""

    name: str
    snapshot: Snapshot
    listens: bool = True
    """Whether it takes events: one that empties a directory that was left doesn't."""
    there: bool = True
    """Whether its process runs; else the snapshot is the last that was seen, and only its books and its buffer count."""


class Labels:
    """Lets at most `limit` labels through, first come first served, for good; the rest are `other`: each worker has so many of its own."""

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


def merge(members: Sequence[Member], labels: Callable[[str], str] = str) -> Snapshot:
    """The sum of at least one member."""
    there = [member for member in members if member.there] or list(members)
    ready = any(_takes(member) for member in members)
    return replace(
        merge_figures([(member.snapshot, member.there) for member in members]),
        state=_state(members),
        lanes=by_label(replace(lane, label=labels(lane.label)) for member in members for lane in member.snapshot.lanes),
        buffer_limit_bytes=sum(member.snapshot.buffer_limit_bytes for member in members if member.listens),
        warnings=(*_said(there, lambda snapshot: snapshot.warnings), *(_not_taking(members) if ready else ())),
        kafka=merge_clusters([(member.snapshot.kafka, member.there) for member in members]),
        ready=ready,
        not_ready=() if ready else _not_taking(members),
        workers=(),
    )


def merge_clusters(members: Iterable[tuple[Sequence[KafkaCluster], bool]]) -> tuple[KafkaCluster, ...]:
    """Each Kafka cluster once, of workers' clusters with whether the worker is there: each is a member of its own in the group."""
    found: dict[str, list[tuple[KafkaCluster, bool]]] = {}
    for clusters, there in members:
        for cluster in clusters:
            found.setdefault(cluster.name, []).append((cluster, there))
    return tuple(_cluster(each) for each in found.values())


def _cluster(found: Sequence[tuple[KafkaCluster, bool]]) -> KafkaCluster:
    """One that a worker can't read isn't well, and neither is one that nobody is there to read."""
    merged = merge_figures(sorted(found, key=lambda each: _rank(each[0].state)))
    return merged if any(there for _, there in found) else replace(merged, state="connecting", why="", hint="")


def _rank(state: str) -> int:
    return _GRAVEST_FIRST.index(state) if state in _GRAVEST_FIRST else 0


def _takes(member: Member) -> bool:
    return member.there and member.listens and member.snapshot.ready


def _state(members: Iterable[Member]) -> State:
    states = {member.snapshot.state for member in members if member.there and member.listens}
    return next((state for state in (State.RUNNING, State.STARTING, State.DRAINING) if state in states), State.STARTING)


def _not_taking(members: Iterable[Member]) -> tuple[str, ...]:
    listening = [member for member in members if member.there and member.listens]
    return tuple(_said(listening, lambda snapshot: () if snapshot.ready else snapshot.not_ready or (snapshot.state.value,)))


def _said(members: Sequence[Member], words: Callable[[Snapshot], Iterable[str]]) -> list[str]:
    """What each says, with who says it unless all say the same."""
    names: dict[str, list[str]] = {}
    for member in members:
        for text in words(member.snapshot):
            names.setdefault(text, []).append(member.name)
    return [text if len(said) == len(members) else f"{', '.join(said)}: {text}" for text, said in names.items()]
