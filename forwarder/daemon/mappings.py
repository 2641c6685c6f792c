"""The configured mappings: from settings to compiled rules."""

from __future__ import annotations

from dataclasses import replace

from forwarder.config.source_settings import (
    HashSettings,
    KafkaSettings,
    LogSourceSettings,
    MappingSettings,
    TimestampSettings,
)
from forwarder.mapping import HashRule, Mapping, MappingRules, TimestampRule
from forwarder.mapping.problems import misconfigured
from forwarder.wire.repair import null_non_finite_numbers


def kafka_mapping(cluster: KafkaSettings, number: int) -> Mapping | None:
    """The mapping of the cluster that is `sources.kafka[number]`; None if its records are events.
    Raises `ConfigurationError`.
    """
    if cluster.format == "events":
        return None
    return mapping_of(cluster.mapping, cluster.name, f"sources.kafka[{number}].mapping")


def log_mapping(source: LogSourceSettings, number: int) -> Mapping:
    """The mapping of the log that is `sources.logs[number]`. Raises `ConfigurationError`."""
    return mapping_of(
        without_zone_alone(source.mapping), source.name, f"sources.logs[{number}].mapping"
    )


def without_zone_alone(settings: MappingSettings) -> MappingSettings:
    """The mapping without a zone that is for the records' own times, and not for one
    that it reads.
    """
    alone = settings.timestamp == TimestampSettings(zone=settings.timestamp.zone)
    return replace(settings, timestamp=TimestampSettings()) if alone else settings


def mapping_of(settings: MappingSettings, name: str, key: str, *, has_time: bool = True) -> Mapping:
    """The mapping of the source called `name`; `key` is the setting that holds it. Raises
    `ConfigurationError`.

    `has_time`: whether the source knows the times of its records.

    NaN and infinite numbers of a record become null, as in requests over HTTP.
    """
    return Mapping.compile(
        rules_of(settings, key),
        name,
        key,
        lambda data: null_non_finite_numbers(data)[0],
        has_time=has_time,
    )


def rules_of(settings: MappingSettings, key: str) -> MappingRules:
    """Settings as rules. Raises `ConfigurationError` for a rule of which a part is missing."""
    return MappingRules(
        event=settings.event or "",
        where=settings.where,
        distinct_id=settings.distinct_id,
        timestamp=_timestamp(settings, key),
        uuid=settings.uuid,
        properties=settings.properties,
        set=settings.set,
        set_once=settings.set_once,
        groups=settings.groups,
        drop=settings.drop,
        hash=_hash(settings, key),
    )


def _timestamp(settings: MappingSettings, key: str) -> TimestampRule | None:
    rule = settings.timestamp
    if rule.source is None:
        if rule.format is not None or rule.zone is not None:
            raise misconfigured(
                f"{key}.timestamp.from",
                "is missing: the expression of the time",
                "For example .created_at.",
            )
        return None
    return TimestampRule(rule.source, rule.format or "iso", rule.zone or "UTC")


def _hash(settings: MappingSettings, key: str) -> HashRule | None:
    rule = settings.hash
    if rule == HashSettings():
        return None
    if not rule.field and not rule.combine:
        raise misconfigured(
            f"{key}.hash.field", "is missing: what is to be hashed", "For example [.user.email]."
        )
    if rule.salt_file is None:
        hint = "Make one: openssl rand -hex 32 > salt; name it here."
        raise misconfigured(
            f"{key}.hash.salt_file", "is missing: the file that holds the key of the hashes", hint
        )
    return HashRule(rule.field, rule.salt_file, rule.daily, rule.combine or {})
