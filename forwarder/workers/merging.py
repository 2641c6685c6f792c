"""One snapshot of several processes' snapshots: what the supervisor of workers shows.

Invariants: figures are sums, so that books that balance in each snapshot balance in the sum, although the snapshots are of different
instants; a lane is told by its label; nothing is taken as long as no worker can take, and one that can't while others can is a warning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

from forwarder.telemetry.labels import MAX_LABELS, OTHER, UNDECODABLE
from forwarder.telemetry.snapshot import Histogram, Snapshot, State, Upstream, UpstreamState, by_label
from forwarder.workers.merging_kafka import merge_clusters

K = TypeVar("K")


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
    running = [member.snapshot for member in there]
    first = running[0]
    ready = any(_takes(member) for member in members)
    return Snapshot(
        version=first.version,
        state=_state(members),
        started_at=min(member.snapshot.started_at for member in members),
        now=max(member.snapshot.now for member in members),
        lanes=by_label(replace(lane, label=labels(lane.label)) for member in members for lane in member.snapshot.lanes),
        buffer_kind=first.buffer_kind,
        buffer_bytes=sum(member.snapshot.buffer_bytes for member in members),
        buffer_limit_bytes=sum(member.snapshot.buffer_limit_bytes for member in members if member.listens),
        buffer_disk_bytes=sum(member.snapshot.buffer_disk_bytes for member in members),
        buffer_refusing=any(member.snapshot.buffer_refusing for member in members if member.there),
        dead_letters_path=_common({member.snapshot.dead_letters_path for member in members} - {""}),
        dead_letters_wanted=sum(member.snapshot.dead_letters_wanted for member in members),
        buffer_found=sum(member.snapshot.buffer_found for member in members),
        upstream=_upstream([snapshot.upstream for snapshot in running]),
        upstream_requests=_sum(member.snapshot.upstream_requests for member in members),
        request_duration=_histogram([member.snapshot.request_duration for member in members]),
        batch_bytes=_histogram([member.snapshot.batch_bytes for member in members]),
        batch_events=_histogram([member.snapshot.batch_events for member in members]),
        concurrency_limit=sum(member.snapshot.concurrency_limit for member in members if member.there),
        in_flight=sum(member.snapshot.in_flight for member in members if member.there),
        http_requests=_sum(member.snapshot.http_requests for member in members),
        passthrough_requests=_sum(member.snapshot.passthrough_requests for member in members),
        rejected_requests=_sum(member.snapshot.rejected_requests for member in members),
        http_rejected_connections=sum(member.snapshot.http_rejected_connections for member in members),
        addresses=tuple(dict.fromkeys(address for member in members if member.there for address in member.snapshot.addresses)),
        connections=sum(member.snapshot.connections for member in members if member.there),
        warnings=(*_said(there, lambda snapshot: snapshot.warnings), *(_not_taking(members) if ready else ())),
        kafka=merge_clusters([(member.snapshot.kafka, member.there) for member in members]),
        ready=ready,
        not_ready=() if ready else _not_taking(members),
    )


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


def _upstream(upstreams: Sequence[Upstream]) -> Upstream:
    """One that fails for a worker fails; else what any of them knows."""
    for state in (UpstreamState.DOWN, UpstreamState.UP):
        for upstream in upstreams:
            if upstream.state is state:
                return upstream
    return upstreams[0]


def _common(paths: Collection[str]) -> str:
    """The directory that all of them are under; one alone is told as it is."""
    return os.path.commonpath(paths) if paths else ""


def _sum(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: Counter[K] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _histogram(histograms: Sequence[Histogram]) -> Histogram:
    return reduce(_both, histograms)


def _both(one: Histogram, other: Histogram) -> Histogram:
    """The two together. Buckets that differ can't be added (one has none yet, or is of another version): the fuller one stays."""
    if one.bounds != other.bounds:
        return max(one, other, key=lambda histogram: histogram.count)
    return Histogram(one.bounds, tuple(map(sum, zip(one.counts, other.counts, strict=True))), one.sum + other.sum)
