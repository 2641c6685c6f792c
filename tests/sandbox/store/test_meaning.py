"""What an event asks of persons and groups, read from its bytes."""

from __future__ import annotations

import json
from typing import Any

from forwarder.sandbox.store.meaning import Mark, meaning_of
from forwarder.sandbox.store.person_changes import PersonChanges
from tests.support.cases import cases

TIMES = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.000000Z")


def text(properties: dict[str, Any]) -> bytes:
    """An event's bytes."""
    return json.dumps({"event": "seen", "distinct_id": "ann", "properties": properties}).encode()


def marks(event: str, properties: dict[str, Any]) -> tuple[Mark, ...]:
    """What an event of these properties is found by."""
    return meaning_of(event, "ann", text(properties), TIMES).marks


def test_marks() -> None:
    """An event is found by its groups, its flags and its survey; values are JSON."""
    check = {
        "$feature_flag": "beta",
        "$feature_flag_response": "test",
        "$survey_id": "not a survey's event",
    }
    properties = {"$groups": {"company": "x"}, "$feature/beta": True, **check}
    assert marks("$feature_flag_called", properties) == (
        Mark("group", "company", "x"),
        Mark("feature", "beta", "true"),
        Mark("called", "beta", '"test"'),
    )
    assert marks("survey sent", {"$survey_id": "s"}) == (Mark("survey", "s", "null"),)


@cases("event", ["$identify", "$create_alias", "$merge_dangerously", "$groupidentify"])
def test_an_anonymous_event_asks_nothing_of_persons(event: str) -> None:
    """`$process_person_profile: false` wins over everything that concerns a
    person; only false does.
    """
    asked = {
        "$set": {"a": 1},
        "$anon_distinct_id": "b",
        "alias": "b",
        "$group_type": "company",
        "$group_key": "x",
        "$process_person_profile": False,
    }
    meaning = meaning_of(event, "ann", text(asked), TIMES)
    assert (meaning.anonymous, meaning.group, meaning.merge, meaning.changes) == (
        *(True, None, None),
        PersonChanges(),
    )
    odd = text({**asked, "$process_person_profile": 0})
    assert not meaning_of(event, "ann", odd, TIMES).anonymous
