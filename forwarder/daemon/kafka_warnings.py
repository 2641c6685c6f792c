"""What a person should know about the Kafka clusters that are read, in a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from forwarder.telemetry.readable import duration
from forwarder.telemetry.snapshot import KafkaCluster

NAMED: Final = 3
"""Reasons to pause that are named for a cluster."""


def kafka_warnings(clusters: Iterable[KafkaCluster], now: float) -> Iterator[str]:
    """Why a cluster isn't read, and what isn't as it should be."""
    for cluster in clusters:
        for words in _said(cluster, now):
            yield f"kafka {cluster.name}: {words}"


def _said(cluster: KafkaCluster, now: float) -> Iterator[str]:
    again = "" if cluster.next_try is None else f"; tried again in {duration(max(0.0, cluster.next_try - now))}"
    hint = f" ({cluster.hint.rstrip('.')})" if cluster.hint else ""
    if cluster.state == "down":
        yield f"{cluster.why}{hint}{again or '; tried again all the time'}"
    elif cluster.state == "waiting":
        yield f"{cluster.why}; nothing is read until then{hint}"
    elif cluster.state == "failed":
        yield f"{cluster.why}; nothing is read from it until this process is started again{hint}"
    elif cluster.note:
        yield f"{cluster.note}; the others are read"
    if cluster.expired:
        yield f"{cluster.expired:,} records expired unread since the start: the topic's retention is shorter than they had to wait"
    yield from _pauses(cluster)


def _pauses(cluster: KafkaCluster) -> Iterator[str]:
    """Why partitions aren't read, if that isn't because of the end."""
    if cluster.state == "stopping":
        return
    reasons: dict[str, int] = {}
    for partition in cluster.partitions:
        if partition.paused:
            reasons[partition.paused] = reasons.get(partition.paused, 0) + 1
    for why, count in list(reasons.items())[:NAMED]:
        yield f"{count} of {len(cluster.partitions)} partitions wait: {why}"
