"""Whether what is set for a Kafka cluster fits together, and fits the rest."""

from __future__ import annotations

from collections.abc import Iterator

from forwarder.config.conflicts import Conflict, too_large
from forwarder.config.kafka import KafkaSettings
from forwarder.config.kafka_security_checks import security_conflicts
from forwarder.config.mapping_checks import mapping_conflicts
from forwarder.config.settings import Settings
from forwarder.config.units import format_duration, format_size
from forwarder.core.ports import Ordering


def kafka_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Everything that doesn't fit in `sources.kafka`. Reads the files that are named."""
    yield from _names(settings)
    yield from _members(settings)
    for number, cluster in enumerate(settings.sources.kafka):
        key = f"sources.kafka[{number}]"
        for check in (_brokers, _topics, _project_key, _format, _fetching, _group):
            yield from check(key, cluster)
        yield from _commit(key, cluster, settings)
        yield from _in_flight(key, cluster, settings)
        yield from mapping_conflicts(f"{key}.mapping", cluster.mapping)
        yield from security_conflicts(f"{key}.security", cluster.security)


def _names(settings: Settings) -> Iterator[Conflict]:
    names = [cluster.name for cluster in settings.sources.kafka]
    for number, name in enumerate(names):
        if name in names[:number]:
            message = f"{name} is the name of sources.kafka[{names.index(name)}] too"
            yield Conflict(f"sources.kafka[{number}].name", message, "give each cluster a name of its own")


def _members(settings: Settings) -> Iterator[Conflict]:
    """Two members of one group by one name: the group shuts out each of them in turn."""
    seen: set[tuple[str, str, str]] = set()
    for number, cluster in enumerate(settings.sources.kafka):
        members = {(broker, cluster.group_id, cluster.group_instance_id or "") for broker in cluster.bootstrap_servers}
        if cluster.group_instance_id and members & seen:
            message = f"{cluster.group_instance_id} is already a member of {cluster.group_id} there"
            yield Conflict(f"sources.kafka[{number}].group_instance_id", message, "give each member of a group a name of its own")
        seen |= members


def _brokers(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if not cluster.bootstrap_servers:
        yield Conflict(f"{key}.bootstrap_servers", "is missing: where to find the cluster", "for example: kafka-1:9092,kafka-2:9092")


def _topics(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.topics and cluster.topics_pattern:
        yield Conflict(f"{key}.topics_pattern", f"can't be beside {key}.topics", "keep one of the two")
    if not cluster.topics and not cluster.topics_pattern:
        yield Conflict(f"{key}.topics", "is missing: what to read", f"name topics, or set {key}.topics_pattern")


def _project_key(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.api_key and cluster.api_key_file:
        yield Conflict(f"{key}.api_key_file", f"can't be beside {key}.api_key", "keep one of the two")
    if cluster.format == "json" and not _knows_project_key(cluster):
        message = "is missing: what a mapping makes names no project key, so that no event would go on"
        yield Conflict(f"{key}.api_key", message, f"set it, {key}.api_key_file or {key}.api_key_header")


def _knows_project_key(cluster: KafkaSettings) -> bool:
    return any((cluster.api_key, cluster.api_key_file, cluster.api_key_header))


def _format(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.format == "json" and cluster.mapping.event is None:
        message = "is missing: format json needs a mapping, and that the event's name"
        yield Conflict(f"{key}.mapping.event", message, "for example: .type, or '\"signed up\"'")
    if cluster.format == "events" and cluster.mapping.given:
        yield Conflict(f"{key}.mapping", "has no effect with format events", f"set {key}.format to json, or leave the mapping out")


def _fetching(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    most, name = cluster.fetch_max_bytes, f"{key}.fetch_max_bytes"
    for other, size in (("fetch_min_bytes", cluster.fetch_min_bytes), ("max_partition_fetch_bytes", cluster.max_partition_fetch_bytes)):
        if size > most:
            yield too_large(f"{key}.{other}", size, f"must fit into {name}", most, name)


def _group(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    """The member is stuck for as long as a revocation takes: it mustn't be put out of the group for that."""
    if cluster.revocation_timeout >= cluster.max_poll_interval:
        message = f"{format_duration(cluster.revocation_timeout)} must be less than {key}.max_poll_interval"
        hint = f"lower {key}.revocation_timeout, or raise {key}.max_poll_interval"
        yield Conflict(f"{key}.revocation_timeout", f"{message} ({format_duration(cluster.max_poll_interval)})", hint)


def _commit(key: str, cluster: KafkaSettings, settings: Settings) -> Iterator[Conflict]:
    if cluster.commit != "disk":
        return
    if settings.buffer.kind != "disk":
        yield Conflict(f"{key}.commit", "disk needs buffer.kind: disk", f"set buffer.kind to disk, or {key}.commit to delivered")
    if settings.delivery.ordering not in {None, Ordering.NONE}:
        message = f"disk can't keep delivery.ordering: {settings.delivery.ordering} when a partition goes to another forwarder"
        yield Conflict(f"{key}.commit", message, f"set {key}.commit to delivered, or delivery.ordering to none")


def _in_flight(key: str, cluster: KafkaSettings, settings: Settings) -> Iterator[Conflict]:
    size, name, event = cluster.max_in_flight, f"{key}.max_in_flight", settings.upstream.max_event
    if size is None:
        return
    if size < event:
        message = f"{format_size(size)} must hold the largest event, upstream.max_event ({format_size(event)})"
        yield Conflict(name, message, f"raise {name}, or lower upstream.max_event")
    if settings.buffer.kind == "memory" and size > settings.buffer_share // 2:
        share = "one worker's share of " if settings.workers > 1 else ""
        yield too_large(name, size, f"may be at most half of {share}buffer.max_bytes", settings.buffer_share, "buffer.max_bytes")
