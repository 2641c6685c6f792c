"""The last state of groups, against a model that remembers everything."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.sources.imports.groups import GroupStates

SAID = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=3)
EVENTS = st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 5), SAID), max_size=30)


def raw(said: dict[str, Any]) -> Raw | None:
    """As a format reads it."""
    return Raw(json.dumps(said).encode()) if said else None


def sent(states: GroupStates, events: list[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    """What the service has of each group that was sent, in the order of the events."""
    service: dict[str, Any] = {}
    for name, time, said in events:
        if (change := states.change("company", name, time, raw(said))) is not None:
            group = service.setdefault(name, {})
            group.update(json.loads(bytes(change)) if bytes(change) else {})
    return service


def test_a_group_ends_in_a_state_that_it_had_before() -> None:
    """Gold, silver, gold ends as gold; what says nothing new is sent once."""
    states = GroupStates()
    said = [{"tier": tier} for tier in ("gold", "gold", "silver", "gold", "gold")]
    changes = [states.change("c", "acme", at, raw(state)) for at, state in enumerate(said)]
    assert [
        None if change is None else json.loads(bytes(change))["tier"] for change in changes
    ] == [
        "gold",
        None,
        "silver",
        "gold",
        None,
    ]


def test_a_group_without_properties_is_sent_once() -> None:
    """It is there then; saying nothing of it later changes nothing."""
    states = GroupStates()
    assert states.change("c", "acme", 1, None) == Raw(b"")
    assert states.change("c", "acme", 2, None) is None
    assert states.change("c", "acme", 3, raw({"tier": 1})) is not None
    assert states.change("c", "acme", 4, None) is None


@given(EVENTS)
def test_every_group_ends_with_the_newest_values(
    events: list[tuple[str, int, dict[str, Any]]],
) -> None:
    """In the order of time each property has its last value of all that come in order; an older
    state that comes late changes none of the values of the last one.
    """
    ordered = sorted(events, key=lambda event: event[1])
    model: dict[str, dict[str, Any]] = {}
    for name, _, said in ordered:
        model.setdefault(name, {}).update(said)
    assert sent(GroupStates(), ordered) == model
    late = sent(GroupStates(), events)
    assert late.keys() == model.keys()


@given(EVENTS)
def test_what_is_forgotten_is_sent_again(events: list[tuple[str, int, dict[str, Any]]]) -> None:
    """With no memory every state is sent, and in order the groups end alike."""
    ordered = sorted(events, key=lambda event: event[1])
    assert sent(GroupStates(memory=0), ordered) == sent(GroupStates(), ordered)


def test_a_late_state_changes_nothing_of_the_last_one() -> None:
    """It adds only what the group doesn't have."""
    states = GroupStates()
    events: list[tuple[str, int, dict[str, Any]]] = [
        ("x", 1, {"tier": "gold"}),
        ("x", 3, {"tier": "silver"}),
        ("x", 2, {"tier": "bronze", "size": 5}),
    ]
    assert sent(states, events) == {"x": {"tier": "silver", "size": 5}}
