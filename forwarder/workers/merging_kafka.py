"""The Kafka clusters of several processes as one: each worker is a member of its own in the group.

Invariants: what was counted stays counted when a worker is away, so that no figure goes back; partitions, and how a cluster is, are told
by the workers that are there; a cluster that one of them can't read isn't well, and neither is one that nobody is there to read; a
partition is told once, though what is known of a worker may be of before another one took it over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from forwarder.telemetry.snapshot import KafkaCluster, KafkaPartition

Member: TypeAlias = tuple[Sequence[KafkaCluster], bool]
"""A worker's clusters, and whether its process runs."""

_GRAVEST_FIRST: Final = ("failed", "down", "waiting", "connecting", "joining", "stopping", "reading")


def merge_clusters(members: Sequence[Member]) -> tuple[KafkaCluster, ...]:
    """Each cluster once."""
    found: dict[str, list[tuple[KafkaCluster, bool]]] = {}
    for clusters, there in members:
        for cluster in clusters:
            found.setdefault(cluster.name, []).append((cluster, there))
    return tuple(_merged(each) for each in found.values())


def _merged(found: Sequence[tuple[KafkaCluster, bool]]) -> KafkaCluster:
    counted = [cluster for cluster, _ in found]
    there = [cluster for cluster, is_there in found if is_there]
    gravest = min(there or counted, key=lambda cluster: _rank(cluster.state))
    return replace(
        gravest if there else replace(gravest, state="connecting", why="", hint="", next_try=None),
        note=next((cluster.note for cluster in there if cluster.note), ""),
        partitions=_partitions(there),
        in_flight_bytes=sum(cluster.in_flight_bytes for cluster in there),
        records=_sum(cluster.records for cluster in counted),
        commits=_sum(cluster.commits for cluster in counted),
        rebalances=sum(cluster.rebalances for cluster in counted),
        expired=sum(cluster.expired for cluster in counted),
        last_commit=max((cluster.last_commit for cluster in counted if cluster.last_commit is not None), default=None),
        next_try=min((cluster.next_try for cluster in there if cluster.next_try is not None), default=None),
    )


def _partitions(clusters: Iterable[KafkaCluster]) -> tuple[KafkaPartition, ...]:
    """Each once, as it is told by the worker that has come furthest in it."""
    found: dict[tuple[str, int], KafkaPartition] = {}
    for each in [partition for cluster in clusters for partition in cluster.partitions]:
        other = found.setdefault((each.topic, each.partition), each)
        if (each.position or 0) > (other.position or 0):
            found[each.topic, each.partition] = each
    return tuple(found[key] for key in sorted(found))


def _rank(state: str) -> int:
    return _GRAVEST_FIRST.index(state) if state in _GRAVEST_FIRST else 0


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
