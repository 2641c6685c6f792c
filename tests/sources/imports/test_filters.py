"""Which events are taken."""

from __future__ import annotations

import pytest

from forwarder.sources.imports.events import Event
from forwarder.sources.imports.filters import LeftOut, left_out
from forwarder.sources.imports.making import Choice, NoRepeats
from forwarder.sources.imports.policy import Filters


def event(name: str = "a", time: int = 0) -> Event:
    """An event with a name and a time."""
    return Event(name, "person", time, "00000000-0000-0000-0000-000000000000", {})


@pytest.mark.parametrize(
    ("filters", "name", "time", "why"),
    [
        (Filters(), "a", 0, None),
        (Filters(since=10), "a", 9, LeftOut.BEFORE_SINCE),
        (Filters(since=10), "a", 10, None),
        (Filters(until=10), "a", 9, None),
        (Filters(until=10), "a", 10, LeftOut.FROM_UNTIL_ON),
        (Filters(events={"a"}), "a", 0, None),
        (Filters(events={"a"}), "A", 0, LeftOut.OTHER_EVENT),
        (Filters(exclude_events={"a"}), "a", 0, LeftOut.EXCLUDED_EVENT),
        (Filters(exclude_events={"a"}), "b", 0, None),
        (Filters(events={"a"}, exclude_events={"a"}), "a", 0, LeftOut.EXCLUDED_EVENT),
        (Filters(since=10, events={"b"}), "a", 9, LeftOut.BEFORE_SINCE),
        (Filters(limit=0), "a", 0, None),
    ],
)
def test_an_event_is_left_out_for_the_first_reason(filters: Filters, name: str, time: int, why: LeftOut | None) -> None:
    """`since` belongs to the range and `until` doesn't; names are compared as they are; what is excluded is so whatever else is said."""
    assert left_out(event(name, time), filters) is why


def fates(choice: Choice, names: str) -> list[str | None]:
    """Why each of these events isn't taken; None of those that are."""
    found = [choice.against(event(name)) for name in names]
    return [None if fate is None else fate.reason for fate in found]


def test_the_limit_counts_what_is_taken() -> None:
    """Events that are left out for another reason don't use the limit up, and are told by reason."""
    choice = Choice(Filters(exclude_events={"b"}, limit=2), NoRepeats())
    assert fates(choice, "abaab") == [None, LeftOut.EXCLUDED_EVENT, None, LeftOut.OVER_LIMIT, LeftOut.EXCLUDED_EVENT]
    assert choice.is_full


def test_without_a_limit_it_is_never_full() -> None:
    """Without a limit, everything is taken."""
    choice = Choice(Filters(), NoRepeats())
    assert fates(choice, "a" * 10) == [None] * 10
    assert not choice.is_full


def test_a_limit_of_none_takes_none() -> None:
    """A limit of 0 is full from the start."""
    choice = Choice(Filters(limit=0), NoRepeats())
    assert choice.is_full
    assert fates(choice, "a") == [LeftOut.OVER_LIMIT]
