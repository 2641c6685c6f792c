"""The configured Kafka clusters as one part of the pipeline. Imported only where clusters are
configured: the client is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import structlog

from forwarder.config.settings import Settings
from forwarder.config.source_settings import KafkaSecuritySettings, KafkaSettings
from forwarder.core.ack import AckLevel
from forwarder.core.clock import Clock
from forwarder.core.record_intake import RecordIntake
from forwarder.daemon.mappings import kafka_mapping
from forwarder.daemon.roles import Role
from forwarder.sources.kafka.diagnosis import quiet
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.kafka.security import Security
from forwarder.sources.kafka.source import KafkaSource
from forwarder.telemetry.readable import duration, plural
from forwarder.telemetry.snapshot import KafkaCluster

_MAX_REASONS: Final = 3
"""Reasons to pause that notices name for a cluster."""

_log = structlog.get_logger(__name__)


class KafkaSources:
    """All clusters, from `start` to `close`."""

    def __init__(self, sources: Sequence[KafkaSource]) -> None:
        self._sources = sources

    @classmethod
    def of(cls, settings: Settings, role: Role, intake: RecordIntake, clock: Clock) -> KafkaSources:
        """The clusters that the settings name, for one worker. Raises `ConfigurationError` for a
        mapping that can't be used.
        """
        quiet()
        policies = [
            policy_of(settings, number, role) for number in range(len(settings.sources.kafka))
        ]
        if role.number == 0:  # one worker reports it for all
            _warn_of_secrets_in_the_clear(policies)
        return cls([KafkaSource(policy, intake, clock) for policy in policies])

    def start(self) -> None:
        """Begin to read, on the running loop; errors from now on are part
        of what `observe` returns.
        """
        for source in self._sources:
            source.start()

    def stop_reading(self) -> None:
        """Read nothing more; the groups keep their members."""
        for source in self._sources:
            source.stop_reading()

    async def close(self) -> None:
        """Commit what is settled, return the rest, leave the groups; within a few seconds.
        Cancelled, it cuts the connections.
        """
        await asyncio.gather(*[source.close() for source in self._sources])

    def observe(self, now: float) -> tuple[tuple[KafkaCluster, ...], list[str], list[str]]:
        """The state of all clusters, and warnings and notices about them."""
        clusters = tuple(source.statistics() for source in self._sources)
        return clusters, list(kafka_warnings(clusters, now)), list(kafka_notices(clusters))


def policy_of(settings: Settings, number: int, role: Role) -> KafkaPolicy:
    """How one worker reads the cluster that is `sources.kafka[number]`. Raises
    `ConfigurationError` for a mapping that can't be used.
    """
    cluster = settings.sources.kafka[number]
    return KafkaPolicy(
        name=cluster.name,
        key=f"sources.kafka[{number}]",
        bootstrap_servers=cluster.bootstrap_servers,
        topics=cluster.topics,
        topics_pattern=cluster.topics_pattern,
        wait_for_topics=cluster.missing_topics == "wait",
        group_id=cluster.group_id,
        group_instance_id=_instance(cluster, role),
        client_id=cluster.client_id,
        from_earliest=cluster.auto_offset_reset == "earliest",
        mapping=kafka_mapping(cluster, number),
        api_key=cluster.api_key,
        api_key_header=cluster.api_key_header,
        key_is_distinct_id=cluster.key_is_distinct_id,
        level=AckLevel(cluster.commit),
        commit_interval=cluster.commit_interval,
        max_in_flight=settings.max_in_flight(cluster),
        max_uncommitted=cluster.max_uncommitted,
        fetch_max_bytes=cluster.fetch_max_bytes,
        max_partition_fetch_bytes=cluster.max_partition_fetch_bytes,
        fetch_min_bytes=cluster.fetch_min_bytes,
        fetch_max_wait=cluster.fetch_max_wait,
        session_timeout=cluster.session_timeout,
        max_poll_interval=cluster.max_poll_interval,
        revocation_timeout=cluster.revocation_timeout,
        halt_after=cluster.halt_after,
        read_committed=cluster.isolation_level == "read_committed",
        security=_security(cluster.security),
    )


def _warn_of_secrets_in_the_clear(policies: Sequence[KafkaPolicy]) -> None:
    for policy in [exposed for exposed in policies if exposed.security.shows_its_secret]:
        _log.warning(
            "kafka: a secret is sent over the network in the clear",
            cluster=policy.name,
            secret="password" if policy.security.mechanism == "PLAIN" else "token",
            key=f"{policy.key}.security.protocol",
            hint="Set it to SASL_SSL, if the brokers have a port for that.",
        )


def _instance(cluster: KafkaSettings, role: Role) -> str | None:
    """The name of a static member: each worker is one of its own."""
    name = cluster.group_instance_id
    return name if name is None or role.workers == 1 else f"{name}-{role.number}"


def _security(settings: KafkaSecuritySettings) -> Security:
    return Security(**vars(settings))


def kafka_warnings(clusters: Iterable[KafkaCluster], now: float) -> Iterator[str]:
    """Why a cluster isn't read, and other problems with it, a sentence each."""
    for cluster in clusters:
        for warning in _warnings(cluster, now):
            yield f"kafka {cluster.name}: {warning}"


def _warnings(cluster: KafkaCluster, now: float) -> Iterator[str]:
    again = (
        ""
        if cluster.next_try is None
        else f"; retried in {duration(max(0.0, cluster.next_try - now))}"
    )
    hint = f" ({cluster.hint.rstrip('.')})" if cluster.hint else ""
    if cluster.state == "down":
        yield f"{cluster.why}{hint}{again or '; retried continuously'}"
    elif cluster.state == "waiting":
        yield f"{cluster.why}; nothing is read until then{hint}"
    elif cluster.state == "failed":
        yield f"{cluster.why}; nothing is read from it until this process is restarted{hint}"
    elif cluster.note:
        yield cluster.note
    if cluster.expired:
        yield (
            f"{plural(cluster.expired, 'record')} expired unread since the start: the topic's "
            "retention is shorter than the delay"
        )


def kafka_notices(clusters: Iterable[KafkaCluster]) -> Iterator[str]:
    """Why partitions aren't read, a sentence each: they are once there is room, or their lane is
    delivered again.
    """
    for cluster in clusters:
        for notice in _pauses(cluster):
            yield f"kafka {cluster.name}: {notice}"


def _pauses(cluster: KafkaCluster) -> Iterator[str]:
    if cluster.state == "stopping":
        return
    reasons: dict[str, int] = {}
    for partition in cluster.partitions:
        if partition.paused:
            reasons[partition.paused] = reasons.get(partition.paused, 0) + 1
    for why, count in list(reasons.items())[:_MAX_REASONS]:
        yield (
            f"{count:,} of {plural(len(cluster.partitions), 'partition')} "
            f"{'is' if count == 1 else 'are'} paused: {why}"
        )
