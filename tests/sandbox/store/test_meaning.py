"""What an event asks of persons and groups, read from its bytes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.store.meaning import Changes, Mark, meaning_of
from tests.support.cases import cases

KEYS = [
    "$set",
    "$set_once",
    "$unset",
    "$groups",
    "$process_person_profile",
    "$feature/beta",
    "plain",
]
VALUES = st.sampled_from([{"a": 1}, ["a"], False, "x", None, 7])


def text(properties: dict[str, Any], *, escaped: int | None = None) -> bytes:
    """An event's bytes; of each key the letter at `escaped` is written as an escape."""
    pairs = []
    for key, value in properties.items():
        at = None if escaped is None else escaped % len(key)
        spelled = "".join(
            f"\\u{ord(letter):04x}" if index == at else letter for index, letter in enumerate(key)
        )
        pairs.append(f'"{spelled}":{json.dumps(value)}')
    return f'{{"event":"seen","distinct_id":"ann","properties":{{{",".join(pairs)}}}}}'.encode()


@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.integers(0, 30))
def test_a_letter_may_be_an_escape(properties: dict[str, Any], escaped: int) -> None:
    """However a key is spelled, it means the same; so what is looked at
    before reading misses nothing.
    """
    assert meaning_of("seen", "ann", text(properties, escaped=escaped)) == meaning_of(
        "seen", "ann", text(properties)
    )


def test_a_slash_may_be_escaped() -> None:
    """`$feature\\/beta`, as PHP's encoder writes it, is the flag beta."""
    sent = text({"$feature/beta": "test"}).replace(b"/", b"\\/")
    assert meaning_of("seen", "ann", sent).marks == (Mark("feature", "beta", '"test"'),)


def test_marks() -> None:
    """An event is found by its groups, its flags and its survey; values are JSON."""
    check = {
        "$feature_flag": "beta",
        "$feature_flag_response": "test",
        "$survey_id": "not a survey's event",
    }
    properties = {"$groups": {"company": "x"}, "$feature/beta": True, **check}
    assert meaning_of("$feature_flag_called", "ann", text(properties)).marks == (
        Mark("group", "company", "x"),
        Mark("feature", "beta", "true"),
        Mark("called", "beta", '"test"'),
    )
    assert meaning_of("survey sent", "ann", text({"$survey_id": "s"})).marks == (
        Mark("survey", "s", "null"),
    )


@cases("event", ["$identify", "$create_alias", "$merge_dangerously", "$groupidentify"])
def test_an_anonymous_event_asks_nothing_of_persons(event: str) -> None:
    """`$process_person_profile: false` wins over everything that concerns a
    person; only false does.
    """
    asked = {
        "$set": {"a": 1},
        "$anon_distinct_id": "b",
        "alias": "b",
        "$process_person_profile": False,
    }
    meaning = meaning_of(event, "ann", text(asked))
    assert (meaning.anonymous, meaning.identifies, meaning.merge, meaning.changes) == (
        True,
        False,
        None,
        Changes(),
    )
    assert not meaning_of(event, "ann", text({**asked, "$process_person_profile": 0})).anonymous
