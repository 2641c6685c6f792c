"""What was chosen for an import, beside its format and its source: how events are finished, and which of them are taken."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

PersonProperties = Literal["none", "set_once", "set"]
"""`set` overwrites what live events set since: the service ignores an event's time there (wire facts: What the service does not tell)."""


@dataclass(frozen=True, slots=True)
class FinishPolicy:
    """What every imported event gets."""

    person_properties: PersonProperties
    geoip: bool
    """Whether the service may look up where an event's `$ip` is. If not, `$geoip_disable` says so: else it gets the importer's place."""
    job_id: str
    """`$import_job_id` on each event (`job.job_id`)."""


@dataclass(frozen=True, slots=True)
class EventFilters:
    """Which events are taken."""

    since: int | None = None
    """Microseconds since 1970, UTC: events from then on."""
    until: int | None = None
    """Events before then."""
    events: Set[str] = frozenset()
    """Only events with these names; empty: all."""
    exclude_events: Set[str] = frozenset()
    """These are left out, even if `events` has them."""
    limit: int | None = None
    """How many events are taken at most, in the order in which they come."""
