"""What a mapping is made of: its rules as they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

ObjectRule: TypeAlias = str | Mapping[str, str]
"""An expression that gives an object, or names with an expression each."""


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """When the event happened."""

    source: str
    """Expression of the time."""
    format: str = "iso"
    """`iso`, `unix`, `unix_ms`, `unix_us`, `unix_ns`, or what strptime understands.

    Without a year, it is the latest in which the time isn't later than a
    day after the record's own.
    """
    zone: str = "UTC"
    """Zone of times that name none: a name such as Europe/Berlin, or an offset such as +02:00."""


@dataclass(frozen=True, slots=True)
class HashRule:
    """What is replaced by a keyed hash, and hashes that are added."""

    fields: tuple[str, ...]
    """Paths."""
    salt_file: Path
    """File that holds the key."""
    daily: bool = False
    """Whether the key is another one each day (UTC) of the record's time."""
    combine: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Members that are added to the record: each one hash of the values at several paths."""


@dataclass(frozen=True, slots=True)
class MappingRules:
    """How a record becomes an event. Expressions are jq; None: no such rule."""

    event: str
    """Expression of the event's name."""
    where: str | None = None
    """Condition: a record for which it is false or null is no event."""
    distinct_id: str | None = None
    """Expression of who did it."""
    timestamp: TimestampRule | None = None
    uuid: str | None = None
    """Expression of the event's own id: a UUID, or a natural key that one is derived from."""
    properties: ObjectRule | None = None
    """None: the whole record."""
    set: ObjectRule | None = None
    set_once: ObjectRule | None = None
    groups: ObjectRule | None = None
    drop: tuple[str, ...] = ()
    """Paths that are taken out of the record before any expression sees it."""
    hash: HashRule | None = None
