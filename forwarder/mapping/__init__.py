"""Foreign records become events by rules that are compiled once: Kafka, logs and imports share
them.

Nothing here looks at a clock or draws a random value, and nothing knows where a record comes from:
the same record, with the same time, gives the same bytes each time it is read. What the rules say
nothing about (a missing uuid or timestamp) is left out, for the intake to derive from the record's
place and time.
"""

from __future__ import annotations

from forwarder.mapping.cases import EventMapping, MappingCases
from forwarder.mapping.mapping import EventParts, Mapping, join_parts
from forwarder.mapping.mapping_rules import HashRule, MappingRules, TimestampRule
from forwarder.mapping.problems import NotJson, Unmappable

__all__ = [
    "EventMapping",
    "EventParts",
    "HashRule",
    "Mapping",
    "MappingCases",
    "MappingRules",
    "NotJson",
    "TimestampRule",
    "Unmappable",
    "join_parts",
]
