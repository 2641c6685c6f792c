"""Cross-field validation of a Kafka cluster: its topics, its format and mapping, how it signs in;
and of its files.

Each mechanism of signing in has its keys, in a table. A key that would have no effect is reported:
its author expects one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forwarder.config.conflicts import (
    Conflict,
    one_alone,
    too_large,
    unreadable,
    unusable_authorities,
    unusable_pair,
)
from forwarder.config.settings import Settings
from forwarder.config.source_checks import (
    commit_conflicts,
    in_flight_conflicts,
    mapping_conflicts,
    same_names,
)
from forwarder.config.source_settings import KafkaSecuritySettings, KafkaSettings
from forwarder.config.units import format_duration
from forwarder.core.configured_files import open_file
from forwarder.core.ports import Ordering

_PASSWORD: Final = ("username", "password", "password_file")
_KEYS: Final = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": (
        "token_file",
        "token_url",
        "client_id",
        "client_secret",
        "client_secret_file",
        "scope",
    ),
    "AWS_MSK_IAM": ("aws_region",),
}
"""The keys of each mechanism."""
_ENOUGH: Final = 4096
"""Bytes of a file that show whether it holds anything."""
_OF_TLS: Final = ("ca_file", "cert_file", "key_file")
_OF_TOKEN_URL: Final = ("client_id", "client_secret", "client_secret_file", "scope")


def kafka_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Everything that doesn't fit in `sources.kafka`. Reads the files that are named."""
    yield from same_names(
        "sources.kafka", "cluster", [cluster.name for cluster in settings.sources.kafka]
    )
    yield from _members(settings)
    for number, cluster in enumerate(settings.sources.kafka):
        key = f"sources.kafka[{number}]"
        for check in (_brokers, _topics, _project_key, _format, _fetching, _group):
            yield from check(key, cluster)
        yield from _commit(key, cluster, settings)
        yield from in_flight_conflicts(key, cluster.max_in_flight, settings)
        yield from mapping_conflicts(f"{key}.mapping", cluster.mapping)
        yield from security_conflicts(f"{key}.security", cluster.security)


def _members(settings: Settings) -> Iterator[Conflict]:
    """Two members of one group by one name: the group shuts out each of them in turn."""
    seen: set[tuple[str, str, str]] = set()
    for number, cluster in enumerate(settings.sources.kafka):
        members = {
            (broker, cluster.group_id, cluster.group_instance_id or "")
            for broker in cluster.bootstrap_servers
        }
        if cluster.group_instance_id and members & seen:
            message = f"{cluster.group_instance_id} is already a member of {cluster.group_id} there"
            yield Conflict(
                f"sources.kafka[{number}].group_instance_id",
                message,
                "give each member of a group a name of its own",
            )
        seen |= members


def _brokers(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if not cluster.bootstrap_servers:
        yield Conflict(
            f"{key}.bootstrap_servers",
            "is missing: where to find the cluster",
            "for example: kafka-1:9092,kafka-2:9092",
        )


def _topics(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.topics and cluster.topics_pattern:
        yield Conflict(
            f"{key}.topics_pattern", f"can't be beside {key}.topics", "keep one of the two"
        )
    if not cluster.topics and not cluster.topics_pattern:
        yield Conflict(
            f"{key}.topics", "is missing: what to read", f"name topics, or set {key}.topics_pattern"
        )


def _project_key(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.format == "json" and not _knows_project_key(cluster):
        message = (
            "is missing: what a mapping makes names no project key, so that no event would be sent"
        )
        yield Conflict(
            f"{key}.api_key", message, f"set it, {key}.api_key_file or {key}.api_key_header"
        )


def _knows_project_key(cluster: KafkaSettings) -> bool:
    return any((cluster.api_key, cluster.api_key_file, cluster.api_key_header))


def _format(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    if cluster.format == "json" and cluster.mapping.event is None:
        message = "is missing: format json needs a mapping, and that the event's name"
        yield Conflict(f"{key}.mapping.event", message, "for example: .type, or '\"signed up\"'")
    if cluster.format == "events" and cluster.mapping.given:
        yield Conflict(
            f"{key}.mapping",
            "has no effect with format events",
            f"set {key}.format to json, or leave the mapping out",
        )


def _fetching(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    most = cluster.fetch_max_bytes
    name = f"{key}.fetch_max_bytes"
    for other, size in (
        ("fetch_min_bytes", cluster.fetch_min_bytes),
        ("max_partition_fetch_bytes", cluster.max_partition_fetch_bytes),
    ):
        if size > most:
            yield too_large(f"{key}.{other}", size, f"must fit into {name}", most, name)


def _group(key: str, cluster: KafkaSettings) -> Iterator[Conflict]:
    """The member is stuck for as long as a revocation takes: it mustn't be put out of the group
    for that.
    """
    if cluster.revocation_timeout >= cluster.max_poll_interval:
        message = (
            f"{format_duration(cluster.revocation_timeout)} must be less than "
            f"{key}.max_poll_interval"
        )
        hint = f"lower {key}.revocation_timeout, or raise {key}.max_poll_interval"
        yield Conflict(
            f"{key}.revocation_timeout",
            f"{message} ({format_duration(cluster.max_poll_interval)})",
            hint,
        )


def _commit(key: str, cluster: KafkaSettings, settings: Settings) -> Iterator[Conflict]:
    yield from commit_conflicts(key, cluster.commit, settings)
    if cluster.commit == "disk" and settings.delivery.ordering not in {None, Ordering.NONE}:
        message = (
            f"disk can't keep delivery.ordering: {settings.delivery.ordering} when a "
            "partition goes to another forwarder"
        )
        yield Conflict(
            f"{key}.commit", message, f"set {key}.commit to delivered, or delivery.ordering to none"
        )


def security_conflicts(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    """Everything that doesn't fit in the section at `key`. Reads the files that are named."""
    for check in (_mechanism, _other_mechanisms, _password, _token, _amazon, _tls, _files):
        yield from check(key, security)


def _set(security: KafkaSecuritySettings, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(security, name) is not None]


def _mechanism(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    signs_in = security.protocol.startswith("SASL_")
    if signs_in and security.mechanism is None:
        yield Conflict(
            f"{key}.mechanism",
            f"is missing: {security.protocol} signs in",
            f"write one of {', '.join(_KEYS)}",
        )
    if security.mechanism and not signs_in:
        message = (
            f"{security.mechanism} needs a protocol that signs in, and {key}.protocol is "
            f"{security.protocol}"
        )
        yield Conflict(
            f"{key}.mechanism",
            message,
            f"set {key}.protocol to SASL_SSL, or leave the mechanism out",
        )


def _other_mechanisms(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    own = _KEYS.get(security.mechanism or "", ())
    others = tuple(
        dict.fromkeys(name for names in _KEYS.values() for name in names if name not in own)
    )
    for name in _set(security, others):
        needed = " or ".join(mechanism for mechanism, names in _KEYS.items() if name in names)
        yield Conflict(
            f"{key}.{name}",
            f"has an effect only with {needed}",
            f"set {key}.mechanism to it, or leave the key out",
        )


def _password(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if _KEYS.get(security.mechanism or "") != _PASSWORD:
        return
    if security.username is None:
        yield Conflict(
            f"{key}.username",
            f"is missing: {security.mechanism} signs in with a user and a password",
            "write the user's name",
        )
    yield from _one_of(key, security, "password_file", "password")


def _token(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if security.mechanism != "OAUTHBEARER":
        return
    yield from _one_of(key, security, "token_file", "token_url")
    if security.token_url is None:
        for name in _set(security, _OF_TOKEN_URL):
            yield Conflict(
                f"{key}.{name}",
                f"has an effect only with {key}.token_url",
                "set that, or leave the key out",
            )
        return
    if security.client_id is None:
        yield Conflict(
            f"{key}.client_id",
            f"is missing: {key}.token_url asks who wants a token",
            "write the client's id",
        )
    yield from _one_of(key, security, "client_secret_file", "client_secret")


def _one_of(key: str, security: KafkaSecuritySettings, one: str, other: str) -> Iterator[Conflict]:
    """Either of two keys is needed, and not both."""
    given = _set(security, (one, other))
    if not given:
        yield Conflict(
            f"{key}.{one}",
            f"is missing: {security.mechanism} needs it or {key}.{other}",
            "set one of the two",
        )
    if len(given) == 2:
        yield Conflict(f"{key}.{other}", f"can't be beside {key}.{one}", "keep one of the two")


def _amazon(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if security.mechanism != "AWS_MSK_IAM":
        return
    if security.aws_region is None:
        yield Conflict(
            f"{key}.aws_region",
            "is missing: AWS_MSK_IAM signs for a region",
            "for example: eu-central-1",
        )
    if security.protocol == "SASL_PLAINTEXT":
        yield Conflict(
            f"{key}.protocol",
            "SASL_PLAINTEXT can't be used with AWS_MSK_IAM",
            f"set {key}.protocol to SASL_SSL",
        )


def _tls(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if not security.protocol.endswith("SSL"):
        for name in _set(security, _OF_TLS):
            message = f"has no effect: {security.protocol} isn't encrypted"
            yield Conflict(
                f"{key}.{name}",
                message,
                f"set {key}.protocol to SSL or SASL_SSL, or leave the key out",
            )
    pair = {f"{key}.cert_file": security.cert_file, f"{key}.key_file": security.key_file}
    yield from one_alone(pair)
    yield from unusable_pair(pair)
    yield from unusable_authorities(f"{key}.ca_file", security.ca_file)


def _files(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    for name in ("password_file", "token_file", "client_secret_file"):
        yield from _unusable_secret(f"{key}.{name}", getattr(security, name))


def _unusable_secret(key: str, file: Path | None) -> Iterator[Conflict]:
    """The file can't be read, or there is nothing in it."""
    conflicts = list(unreadable(key, file))
    if file is not None and not conflicts and _is_empty(file):
        conflicts.append(Conflict(key, f"{file} is empty", "write the secret into it"))
    yield from conflicts


def _is_empty(file: Path) -> bool:
    with open_file(file) as opened:
        return not opened.read(_ENOUGH).strip()
