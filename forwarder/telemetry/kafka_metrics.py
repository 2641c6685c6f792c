"""The metrics of the Kafka clusters that are read; a cluster's partitions have series as long as they are assigned to this daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from forwarder.telemetry.families import counter, gauge
from forwarder.telemetry.snapshot import KafkaCluster


def kafka_metrics(clusters: Sequence[KafkaCluster]) -> Iterator[Metric]:
    """The families; without samples if no cluster is configured."""
    yield gauge(
        "forwarder_kafka_up",
        "1 while this daemon is in its consumer group and the brokers answer, else 0.",
        ("cluster",),
        [((cluster.name,), int(cluster.reads)) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_lag",
        "Records of an assigned partition from what is settled to its end.",
        ("cluster", "topic", "partition"),
        [
            ((cluster.name, each.topic, str(each.partition)), each.lag)
            for cluster in clusters
            for each in cluster.partitions
            if each.lag is not None
        ],
    )
    yield gauge(
        "forwarder_kafka_assigned_partitions",
        "Partitions that the group has assigned to this daemon.",
        ("cluster",),
        [((cluster.name,), len(cluster.partitions)) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_paused_partitions",
        "Partitions that aren't read for now; /status says why.",
        ("cluster",),
        [((cluster.name,), cluster.paused) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_in_flight_bytes",
        "Bytes of records that were read and aren't settled.",
        ("cluster",),
        [((cluster.name,), cluster.in_flight_bytes) for cluster in clusters],
    )
    yield from _counters(clusters)


def _counters(clusters: Sequence[KafkaCluster]) -> Iterator[Metric]:
    yield counter(
        "forwarder_kafka_records",
        "Records read, by what became of them.",
        ("cluster", "outcome"),
        [((cluster.name, outcome), count) for cluster in clusters for outcome, count in cluster.records.items()],
    )
    yield counter(
        "forwarder_kafka_records_expired",
        "Records that were gone before they could be read.",
        ("cluster",),
        [((cluster.name,), cluster.expired) for cluster in clusters],
    )
    yield counter(
        "forwarder_kafka_commits",
        "Commits of offsets, by result.",
        ("cluster", "result"),
        [((cluster.name, result), count) for cluster in clusters for result, count in cluster.commits.items()],
    )
    yield counter(
        "forwarder_kafka_rebalances",
        "How often the group has assigned partitions to this daemon.",
        ("cluster",),
        [((cluster.name,), cluster.rebalances) for cluster in clusters],
    )
