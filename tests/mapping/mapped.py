"""Mappings for tests: rules given by name, with an event's name where the test doesn't
care for it.
"""

from __future__ import annotations

from typing import Any

from forwarder.mapping import Mapping, MappingRules


def mapping(event: str = '"e"', **rules: Any) -> Mapping:
    """A mapping of the source `src`."""
    return Mapping.compile(MappingRules(event=event, **rules), "src", "sources.kafka[0].mapping")


def mapped(record: str | bytes, event: str = '"e"', **rules: Any) -> str | None:
    """What becomes of a record."""
    made = mapping(event, **rules).map(record.encode() if isinstance(record, str) else record)
    return None if made is None else made.decode()


def properties(record: str, **rules: Any) -> str:
    """The properties of what becomes of it, as they are written."""
    made = mapped(record, **rules)
    assert made is not None
    return made.removeprefix('{"event":"e","properties":').removesuffix("}")
