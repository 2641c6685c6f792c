"""Which events are taken."""

from __future__ import annotations

import pytest

from forwarder.sources.imports.events import ImportedEvent
from forwarder.sources.imports.filters import FilterReason, left_out
from forwarder.sources.imports.making import EventSelection, NoRepeats
from forwarder.sources.imports.policy import EventFilters


def event(name: str = "a", time: int = 0) -> ImportedEvent:
    """An event with a name and a time."""
    return ImportedEvent(name, "person", time, "00000000-0000-0000-0000-000000000000", {})


@pytest.mark.parametrize(
    ("filters", "name", "time", "why"),
    [
        (EventFilters(), "a", 0, None),
        (EventFilters(since=10), "a", 9, FilterReason.BEFORE_SINCE),
        (EventFilters(since=10), "a", 10, None),
        (EventFilters(until=10), "a", 9, None),
        (EventFilters(until=10), "a", 10, FilterReason.FROM_UNTIL_ON),
        (EventFilters(events={"a"}), "a", 0, None),
        (EventFilters(events={"a"}), "A", 0, FilterReason.OTHER_EVENT),
        (EventFilters(exclude_events={"a"}), "a", 0, FilterReason.EXCLUDED_EVENT),
        (EventFilters(exclude_events={"a"}), "b", 0, None),
        (EventFilters(events={"a"}, exclude_events={"a"}), "a", 0, FilterReason.EXCLUDED_EVENT),
        (EventFilters(since=10, events={"b"}), "a", 9, FilterReason.BEFORE_SINCE),
        (EventFilters(limit=0), "a", 0, None),
    ],
)
def test_an_event_is_left_out_for_the_first_reason(filters: EventFilters, name: str, time: int, why: FilterReason | None) -> None:
    """`since` belongs to the range and `until` doesn't; names are compared as they are; what is excluded is so whatever else is said."""
    assert left_out(event(name, time), filters) is why


def fates(choice: EventSelection, names: str) -> list[str | None]:
    """Why each of these events isn't taken; None of those that are."""
    found = [choice.against(event(name)) for name in names]
    return [None if fate is None else fate.reason for fate in found]


def test_the_limit_counts_what_is_taken() -> None:
    """Events that are left out for another reason don't use the limit up, and are told by reason."""
    choice = EventSelection(EventFilters(exclude_events={"b"}, limit=2), NoRepeats())
    assert fates(choice, "abaab") == [None, FilterReason.EXCLUDED_EVENT, None, FilterReason.OVER_LIMIT, FilterReason.EXCLUDED_EVENT]
    assert choice.is_full


def test_without_a_limit_it_is_never_full() -> None:
    """Without a limit, everything is taken."""
    choice = EventSelection(EventFilters(), NoRepeats())
    assert fates(choice, "a" * 10) == [None] * 10
    assert not choice.is_full


def test_a_limit_of_none_takes_none() -> None:
    """A limit of 0 is full from the start."""
    choice = EventSelection(EventFilters(limit=0), NoRepeats())
    assert choice.is_full
    assert fates(choice, "a") == [FilterReason.OVER_LIMIT]
