"""Which events are left out, and why. What is left out isn't refused: somebody asked for it."""

from __future__ import annotations

from enum import StrEnum

from forwarder.sources.imports.events import ImportedEvent
from forwarder.sources.imports.policy import EventFilters
from forwarder.sources.imports.raw_events import EventBounds


class FilterReason(StrEnum):
    """Why an event isn't taken. Where several are true, the first in this order is said."""

    BEFORE_SINCE = "before_since"
    FROM_UNTIL_ON = "from_until_on"
    """At `until`, or after it."""
    OTHER_EVENT = "other_event"
    """Names are given, and this isn't one of them."""
    EXCLUDED_EVENT = "excluded_event"
    OVER_LIMIT = "over_limit"


def left_out(event: ImportedEvent, filters: EventFilters) -> FilterReason | None:
    """Why an event is left out whatever came before it; None if it isn't."""
    if filters.since is not None and event.time < filters.since:
        return FilterReason.BEFORE_SINCE
    if filters.until is not None and event.time >= filters.until:
        return FilterReason.FROM_UNTIL_ON
    if filters.events and event.event not in filters.events:
        return FilterReason.OTHER_EVENT
    if event.event in filters.exclude_events:
        return FilterReason.EXCLUDED_EVENT
    return None


def all_pass(bounds: EventBounds, filters: EventFilters) -> bool:
    """Whether none of the events within these bounds is left out (`left_out`)."""
    return not (
        (filters.since is not None and bounds.first < filters.since)
        or (filters.until is not None and bounds.last >= filters.until)
        or (filters.events and not bounds.names.keys() <= filters.events)
        or not bounds.names.keys().isdisjoint(filters.exclude_events)
    )
