"""How one cluster is consumed, and which of its topics are read. Times in seconds,
sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from forwarder.core.ack import AckLevel
from forwarder.core.errors import ConfigurationError
from forwarder.core.patterns import LinearPattern
from forwarder.sources.kafka.security import Security


class RecordMapping(Protocol):
    """From a foreign record to an event (`forwarder.mapping`)."""

    def map_record(self, data: bytes, time: float | None = None) -> bytes | None:
        """The event's JSON, or an array of events; None if the record isn't to become any. Raises
        `NotJson` and `Unmappable`.

        `time`: the record's own, seconds since 1970.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPolicy:
    """One cluster: what to read, how it becomes events, when to commit, when to wait."""

    name: str
    key: str = "sources.kafka[0]"
    """Its settings, as they are called in the configuration."""
    bootstrap_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    """In place of `topics`: a regular expression that names of topics match from their beginning.
    """
    wait_for_topics: bool = True
    """Whether missing topics are waited for; else they are an error."""
    group_id: str = "forwarder"
    group_instance_id: str | None = None
    client_id: str = "forwarder"
    from_earliest: bool = True
    """Where to begin in a partition of which nothing is committed: at its
    beginning, else at its end.
    """
    mapping: RecordMapping | None = None
    """How records become events; None: they are events, as the HTTP listener accepts them."""
    api_key: str | None = field(default=None, repr=False)
    api_key_header: str | None = None
    key_is_distinct_id: bool = False
    level: AckLevel = AckLevel.DELIVERED
    """When a record's offset may be committed."""
    commit_interval: float = 1.0
    max_in_flight: int = 32 * 1024 * 1024
    max_uncommitted: int = 100_000
    fetch_max_bytes: int = 8 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    fetch_min_bytes: int = 1
    fetch_max_wait: float = 0.5
    session_timeout: float = 30.0
    max_poll_interval: float = 300.0
    revocation_timeout: float = 5.0
    halt_after: float | None = 3600.0
    """How long a lane may be halted before its events become dead letters; None: without a limit.
    """
    read_committed: bool = True
    security: Security = field(default_factory=Security)

    @property
    def where(self) -> str:
        """The configured brokers, as text for users."""
        return ", ".join(self.bootstrap_servers)


NAMED = 5
"""Topics that are named; the others are counted."""


class TopicsMissing(ConfigurationError):
    """Topics are missing, and must not be waited for."""

    code = "topics_missing"


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics to read, and what is missing, for a person; empty if nothing is."""

    topics: frozenset[str]
    why: str = ""
    hint: str = ""


def choose_topics(policy: KafkaPolicy, seen: Collection[str]) -> TopicChoice:
    """The topics to read of those that may be seen."""
    if policy.topics_pattern is not None:
        pattern = LinearPattern(policy.topics_pattern)
        matching = frozenset(topic for topic in seen if pattern.match(topic.encode()))
        if matching:
            return TopicChoice(matching)
        hint = "Correct `topics_pattern`, or grant this user DESCRIBE on them."
        return TopicChoice(matching, f"no topic matches {policy.topics_pattern!r}", hint)
    missing = [topic for topic in policy.topics if topic not in seen]
    there = frozenset(policy.topics) - set(missing)
    if not missing:
        return TopicChoice(there)
    some = ", ".join(missing[:NAMED]) + (
        f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    )
    what = f"topic {some} isn't" if len(missing) == 1 else f"topics {some} aren't"
    hint = "Create it, correct `topics`, or grant this user DESCRIBE on it."
    return TopicChoice(there, f"{what} there, or this user may not see it", hint)
