"""The metrics of a snapshot. Figures are plain integers in the parts; they become metrics only for
a scrape.

Invariants: names and labels are those of docs/reference/metrics.md (tested); every label set
appears once; the number of series is bounded (lanes by `labels.MAX_LABELS`, files by
`snapshot.LOG_FILES` a source, reasons, routes and sources by closed sets).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from forwarder.telemetry.exposition import counter, gauge, histogram
from forwarder.telemetry.snapshot import (
    DestinationSnapshot,
    KafkaCluster,
    LaneSnapshot,
    LogSourceState,
    Snapshot,
    Worker,
    by_label,
)


def metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """All metric families."""
    yield from (
        _by_destination(snapshot.destinations)
        if snapshot.destinations
        else _of_destination(snapshot)
    )
    yield from _memory(snapshot)
    yield from _http(snapshot)
    yield from _kafka(snapshot.kafka)
    yield from _logs(snapshot.logs)
    yield from _workers(snapshot)
    yield gauge(
        "forwarder_build_info",
        "The running version; always 1.",
        ("version",),
        [((snapshot.version,), 1)],
    )


def _by_destination(destinations: Iterable[DestinationSnapshot]) -> Iterator[Metric]:
    """The families of several destinations, each sample with a label that names its own."""
    families: dict[str, Metric] = {}
    for destination in destinations:
        for family in _of_destination(destination):
            samples = [
                sample._replace(labels={"destination": destination.name, **sample.labels})
                for sample in family.samples
            ]
            if family.name in families:
                families[family.name].samples += samples
            else:
                family.samples = samples
                families[family.name] = family
    yield from families.values()


def _of_destination(snapshot: Snapshot | DestinationSnapshot) -> Iterator[Metric]:
    lanes = by_label(snapshot.lanes)
    yield from _books(lanes)
    yield from _waiting(lanes, snapshot)
    yield from _delivery(snapshot)
    yield _halted(lanes)


def _books(lanes: Iterable[LaneSnapshot]) -> Iterator[Metric]:
    yield counter(
        "forwarder_events_received",
        "Events received: accepted, or kept as dead letters at receipt.",
        ("source", "lane"),
        [
            ((source, lane.label), count)
            for lane in lanes
            for source, count in lane.received.items()
        ],
    )
    yield counter(
        "forwarder_events_delivered",
        "Events delivered to the upstream.",
        ("lane",),
        [((lane.label,), lane.delivered) for lane in lanes],
    )
    yield counter(
        "forwarder_events_dropped",
        "Events dropped.",
        ("lane", "reason"),
        [((lane.label, reason), count) for lane in lanes for reason, count in lane.dropped.items()],
    )
    yield gauge(
        "forwarder_events_dead_lettered",
        "Events that are dead letters now.",
        ("lane", "reason"),
        [
            ((lane.label, reason), count)
            for lane in lanes
            for reason, count in lane.dead_lettered.items()
        ],
    )


def _waiting(
    lanes: Iterable[LaneSnapshot], snapshot: Snapshot | DestinationSnapshot
) -> Iterator[Metric]:
    yield gauge(
        "forwarder_events_buffered",
        "Events in the buffer, pending or in flight.",
        ("lane",),
        [((lane.label,), lane.buffered) for lane in lanes],
    )
    yield gauge(
        "forwarder_buffer_bytes",
        "Bytes in the buffer, including overhead.",
        (),
        [((), snapshot.buffer_bytes)],
    )
    yield gauge(
        "forwarder_buffer_limit_bytes",
        "Maximum bytes of the buffer.",
        (),
        [((), snapshot.buffer_limit_bytes)],
    )
    yield gauge(
        "forwarder_buffer_disk_bytes",
        "Bytes of a disk buffer's files; 0 for a memory buffer.",
        (),
        [((), snapshot.buffer_disk_bytes)],
    )
    yield gauge(
        "forwarder_buffer_refusing",
        "1 while the disk can't be written; senders get 503.",
        (),
        [((), int(snapshot.buffer_refusing))],
    )
    yield gauge(
        "forwarder_oldest_event_age_seconds",
        "Time since the lane's oldest buffered event was received; 0 if there is none.",
        ("lane",),
        [((lane.label,), lane.oldest_age or 0.0) for lane in lanes],
    )


def _delivery(snapshot: Snapshot | DestinationSnapshot) -> Iterator[Metric]:
    yield counter(
        "forwarder_upstream_requests",
        "Requests to the upstream, by status code or kind of failure.",
        ("code",),
        [((code,), count) for code, count in snapshot.upstream_requests.items()],
    )
    yield histogram(
        "forwarder_upstream_request_duration_seconds",
        "Time from sending a batch to the end of its answer.",
        snapshot.request_duration,
    )
    yield histogram(
        "forwarder_batch_bytes",
        "Size of a batch on the wire before compression.",
        snapshot.batch_bytes,
    )
    yield histogram("forwarder_batch_events", "Events in a batch.", snapshot.batch_events)
    yield gauge(
        "forwarder_delivery_concurrency_limit",
        "Maximum number of requests in flight to the upstream.",
        (),
        [((), snapshot.concurrency_limit)],
    )


def _halted(lanes: Iterable[LaneSnapshot]) -> Metric:
    return gauge(
        "forwarder_lane_halted",
        "1 for a halted lane.",
        ("lane", "reason"),
        [((lane.label, lane.halted), 1) for lane in lanes if lane.halted],
    )


def _memory(snapshot: Snapshot) -> Iterator[Metric]:
    yield gauge(
        "forwarder_memory_bytes",
        "Anonymous memory of all processes, or of their cgroup where its limit counts.",
        (),
        [((), snapshot.memory_bytes)],
    )
    yield gauge(
        "forwarder_memory_limit_bytes",
        "Limit of that memory (`limits.memory`, or the cgroup's); 0 without a limit.",
        (),
        [((), snapshot.memory_limit_bytes)],
    )
    yield gauge(
        "forwarder_memory_short",
        "1 while memory is short; senders get 503.",
        (),
        [((), int(snapshot.memory_short))],
    )


def _http(snapshot: Snapshot) -> Iterator[Metric]:
    yield counter(
        "forwarder_http_requests",
        "Requests of senders, by route and status code.",
        ("path", "code"),
        [((path, str(code)), count) for (path, code), count in snapshot.http_requests.items()],
    )
    yield counter(
        "forwarder_http_requests_rejected",
        (
            "Requests of senders that forwarder rejected, passed-through routes included, by "
            "route and reason."
        ),
        ("path", "reason"),
        [(labels, count) for labels, count in snapshot.rejected_requests.items()],
    )
    yield counter(
        "forwarder_rule_events",
        "Events that a rule has changed, dropped or failed on.",
        ("rule", "outcome"),
        [(labels, count) for labels, count in snapshot.rule_events.items()],
    )
    yield counter(
        "forwarder_http_connections_rejected",
        (
            "Connections of senders that were rejected because there were too many, in total or "
            "of one sender."
        ),
        (),
        [((), snapshot.http_rejected_connections)],
    )
    yield counter(
        "forwarder_otlp_filtered",
        "Log records over OTLP that were excluded by the mapping's `where`.",
        (),
        [((), snapshot.intake_filtered_records)],
    )
    yield counter(
        "forwarder_passthrough_requests",
        "Requests without events that were passed through, by route and status code.",
        ("path", "code"),
        [
            ((path, str(code)), count)
            for (path, code), count in snapshot.passthrough_requests.items()
        ],
    )


def _kafka(clusters: Sequence[KafkaCluster]) -> Iterator[Metric]:
    """Without samples if no cluster is configured. A partition has series as long as it is
    assigned to this daemon.
    """
    yield gauge(
        "forwarder_kafka_up",
        "1 while this daemon is in its consumer group and the brokers answer, else 0.",
        ("cluster",),
        [((cluster.name,), int(cluster.reads)) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_lag",
        "Records of an assigned partition between the settled offset and the end.",
        ("cluster", "topic", "partition"),
        [
            ((cluster.name, partition.topic, str(partition.partition)), partition.lag)
            for cluster in clusters
            for partition in cluster.partitions
            if partition.lag is not None
        ],
    )
    yield gauge(
        "forwarder_kafka_assigned_partitions",
        "Partitions assigned to this daemon.",
        ("cluster",),
        [((cluster.name,), len(cluster.partitions)) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_paused_partitions",
        "Paused partitions; /status says why.",
        ("cluster",),
        [((cluster.name,), cluster.paused) for cluster in clusters],
    )
    yield gauge(
        "forwarder_kafka_in_flight_bytes",
        "Bytes of records that were read and aren't settled.",
        ("cluster",),
        [((cluster.name,), cluster.in_flight_bytes) for cluster in clusters],
    )
    yield from _kafka_counters(clusters)


def _kafka_counters(clusters: Sequence[KafkaCluster]) -> Iterator[Metric]:
    yield counter(
        "forwarder_kafka_records",
        "Records read, by outcome.",
        ("cluster", "outcome"),
        [
            ((cluster.name, outcome), count)
            for cluster in clusters
            for outcome, count in cluster.records.items()
        ],
    )
    yield counter(
        "forwarder_kafka_records_expired",
        "Records that expired before they could be read.",
        ("cluster",),
        [((cluster.name,), cluster.expired) for cluster in clusters],
    )
    yield counter(
        "forwarder_kafka_commits",
        "Commits of offsets, by result.",
        ("cluster", "result"),
        [
            ((cluster.name, result), count)
            for cluster in clusters
            for result, count in cluster.commits.items()
        ],
    )
    yield counter(
        "forwarder_kafka_rebalances",
        "Number of partition assignments of this daemon.",
        ("cluster",),
        [((cluster.name,), cluster.rebalances) for cluster in clusters],
    )


def _logs(sources: Sequence[LogSourceState]) -> Iterator[Metric]:
    """Without samples if no log source is configured."""
    yield gauge(
        "forwarder_logs_up",
        (
            "1 while the source's lines are read and its positions stored, else 0; 1, too, if "
            "there is nothing to read."
        ),
        ("source",),
        [((source.name,), int(source.reads)) for source in sources],
    )
    yield gauge(
        "forwarder_logs_lag_bytes",
        "Bytes of all files between the settled position and the end.",
        ("source",),
        [((source.name,), source.lag) for source in sources],
    )
    yield gauge(
        "forwarder_logs_files",
        (
            "Files that are followed, those of them that are open, and files and folders that "
            "can't be read."
        ),
        ("source", "state"),
        [
            ((source.name, state), getattr(source, state))
            for source in sources
            for state in ("followed", "open", "unreadable")
        ],
    )
    yield gauge(
        "forwarder_logs_in_flight_bytes",
        "Bytes of lines that were read and aren't settled.",
        ("source",),
        [((source.name,), source.in_flight_bytes) for source in sources],
    )
    offsets = {
        (source.name, file.path): file.position
        for source in sources
        for file in reversed(source.files)
    }
    yield gauge(
        "forwarder_log_file_offset_bytes",
        (
            "Settled position in a file, of at most 200 files a source: those with the largest "
            "lag, then those that were read last."
        ),
        ("source", "path"),
        list(offsets.items()),
    )
    yield from _log_counters(sources)


_LINE_RESULTS: Final = ("taken", "filtered", "refused", "overlong")
"""What becomes of a line that is of its format, or of none: `unmatched` ones have a metric of
their own.
"""


def _log_counters(sources: Sequence[LogSourceState]) -> Iterator[Metric]:
    """Each result has a series from the start: what grows from nothing to its first count must
    show as growth.
    """
    yield counter(
        "forwarder_logs_lines",
        (
            "Lines or multi-line records read, by result; those that aren't of the format are "
            "counted by forwarder_logs_unmatched_total."
        ),
        ("source", "result"),
        [
            ((source.name, result), source.lines.get(result, 0))
            for source in sources
            for result in _LINE_RESULTS
        ],
    )
    yield counter(
        "forwarder_logs_unmatched",
        "Lines that aren't of the source's format; they are skipped.",
        ("source",),
        [((source.name,), source.lines.get("unmatched", 0)) for source in sources],
    )
    yield counter(
        "forwarder_logs_replaced",
        "Lines with bytes that aren't UTF-8, which were replaced by U+FFFD.",
        ("source",),
        [((source.name,), source.replaced) for source in sources],
    )
    yield counter(
        "forwarder_logs_bytes",
        "Bytes read.",
        ("source",),
        [((source.name,), source.bytes) for source in sources],
    )
    yield counter(
        "forwarder_logs_rotations",
        "Rotations of files that were noticed, by kind.",
        ("source", "kind"),
        [
            ((source.name, kind), source.rotations.get(kind, 0))
            for source in sources
            for kind in ("rename", "truncate")
        ],
    )
    yield counter(
        "forwarder_logs_commits",
        "Attempts to store positions, by result.",
        ("source", "result"),
        [
            ((source.name, result), source.commits.get(result, 0))
            for source in sources
            for result in ("ok", "failed")
        ],
    )


def _workers(snapshot: Snapshot) -> Iterator[Metric]:
    working = ("running", "draining")
    yield gauge(
        "forwarder_worker_up",
        "1 for a running worker, 0 for one that isn't; absent if the daemon is a single process.",
        ("worker",),
        [((worker.name,), float(worker.state in working)) for worker in snapshot.workers],
    )
    yield gauge(
        "forwarder_worker_unresponsive_seconds",
        "Seconds since a worker was first asked without answering; 0 for one that responds.",
        ("worker",),
        [((worker.name,), _silence(worker, snapshot.now)) for worker in snapshot.workers],
    )
    yield counter(
        "forwarder_worker_restarts",
        "Number of restarts of a worker after it ended unexpectedly.",
        ("worker",),
        [((worker.name,), worker.restarts) for worker in snapshot.workers],
    )


def _silence(worker: Worker, now: float) -> float:
    return 0.0 if worker.silent_since is None else max(0.0, now - worker.silent_since)
