"""How foreign records become events: the section `mapping` of every source of them, as it is written.

An expression is text; what it means, and whether it can be read, `forwarder.mapping` knows. Nothing is set by default: a section in which
nothing is set maps nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from forwarder.config.section import Section
from forwarder.config.values import Expression, Expressions, Listed, Text


class TimestampSettings(Section):
    """When the event happened; without it, when the record says that it was made. Text in place of the section is its `from`."""

    short: ClassVar[str] = "from"

    source: Expression | None = Field(default=None, alias="from")
    """Expression of the time."""
    format: Text | None = None
    """How it is written: iso, unix, unix_ms, unix_us, unix_ns, or as strptime has it: %d/%b/%Y:%H:%M:%S %z. Not set: iso."""
    zone: Text | None = None
    """Zone of times that name none, such as Europe/Berlin or +02:00. Not set: UTC."""


class HashSettings(Section):
    """Fields of the record whose values are replaced by a keyed hash, before any expression sees them: told apart, not read."""

    field: Annotated[tuple[Text, ...], Listed()] = ()
    """Path of the field, such as .user.email, or a list of them."""
    salt_file: Path | None = None
    """File that holds the key of the hash."""


class MappingSettings(Section):
    """How foreign records become events (docs/mapping.md). Expressions are jq; plain paths such as .user.id are the quickest."""

    where: Expression | None = None
    """Condition: a record for which it is false or null is no event. Not set: every record is one."""
    event: Expression | None = None
    """Expression of the event's name."""
    distinct_id: Expression | None = None
    """Expression of who did it."""
    timestamp: TimestampSettings = TimestampSettings()
    uuid: Expression | None = None
    """Expression of the event's own id: a UUID, or a key that one is derived from. Not set: one is derived from the record's place."""
    properties: Expressions = None
    """Expression of the object of properties, or names with an expression each. Not set: the whole record."""
    set: Expressions = None
    """What is set on the person ($set); written as `properties`."""
    set_once: Expressions = None
    """What is set on the person where it isn't yet ($set_once); written as `properties`."""
    groups: Expressions = None
    """Groups that the event belongs to ($groups); written as `properties`."""
    drop: Annotated[tuple[Text, ...], Listed()] = ()
    """Paths of fields that are taken out of the record before any expression sees it, such as .user.password."""
    hash: HashSettings = HashSettings()

    @property
    def given(self) -> bool:
        """Whether anything is set."""
        return self != MappingSettings()
