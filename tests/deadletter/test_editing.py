"""Editing events by jq: what the expression doesn't touch stays, to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.deadletter.editing import Edit, NotEditable, Replacement, UnreadableEvent

NUMBERS = (
    b'{"a":12345678901234567890,"b":1.0,"c":3.10,"d":100000000000000000000.5,"e":-0.0,"f":0.1}'
)


@pytest.mark.parametrize(
    "expression",
    [
        ".",
        "del(.x)",
        "with_entries(.)",
        '.x = "new" | del(.x)',
        ". # as it is",
        "def same: .; same",
    ],
)
def test_numbers_keep_their_digits(expression: str) -> None:
    """Numbers too large or too exact for a double, and those that are only written unusually, stay
    as they were written.
    """
    assert Edit(expression).apply(NUMBERS) == NUMBERS


def test_only_the_notation_changes() -> None:
    """White space goes, exponents and escapes are written in jq's way, and the last of two equal
    keys stays.
    """
    event = rb'{ "a" : 1e2, "b": "\u00e9\/", "c": 1, "c": 2, "d": "\ud83d\ude00" }'
    assert Edit(".").apply(event) == '{"a":1E+2,"b":"é/","c":2,"d":"😀"}'.encode()


def test_an_edit() -> None:
    """What the expression says is changed, and nothing else."""
    assert Edit('.properties.plan = "free" | .n += 1').apply(
        b'{"uuid":"u","n":1,"properties":{"big":12345678901234567890}}'
    ) == (b'{"uuid":"u","n":2,"properties":{"big":12345678901234567890,"plan":"free"}}')


@pytest.mark.parametrize(
    ("expression", "event", "why"),
    [
        (".a", NUMBERS, "no object"),
        ("[.]", NUMBERS, "no object"),
        ("empty", NUMBERS, "0 results"),
        (".,.", NUMBERS, "2 results"),
        ('error("no")', NUMBERS, "jq: no"),
        (".a.b", NUMBERS, "jq: "),
        (".", b'{"a":"\\ud800"}', "surrogate"),
        (".", b"\xff", "jq: "),
        (".", b"", "jq: "),
        (".", b"{} {}", "jq: "),
    ],
)
def test_edits_that_make_no_event_are_rejected(expression: str, event: bytes, why: str) -> None:
    """A result that isn't exactly one object is refused, and so is text that jq can't read."""
    with pytest.raises(NotEditable, match=why):
        Edit(expression).apply(event)


@pytest.mark.parametrize("expression", ["", "nonsense", ".a |", ".a) , (.b", '"'])
def test_an_invalid_expression_is_reported_first(expression: str) -> None:
    """It is said before any event is looked at, also what would be one only within ours."""
    with pytest.raises(ConfigurationError, match="--edit"):
        Edit(expression)


@pytest.mark.parametrize("event", [b"\xff", b"", b'{"cut', b"{} {}"])
def test_unreadable_and_uneditable_letters_have_different_errors(event: bytes) -> None:
    """It has to be repaired in another way; an expression that fails isn't the event's fault."""
    with pytest.raises(UnreadableEvent):
        Edit(".").apply(event)
    with pytest.raises(NotEditable) as reported:
        Edit('error("no")').apply(b"{}")
    assert not isinstance(reported.value, UnreadableEvent)


def test_a_file_takes_an_events_place(tmp_path: Path) -> None:
    """As it is, but for white space around it; whatever the event was."""
    path = tmp_path / "event.json"
    path.write_bytes(b' {"n": 1.0,\n "m": 12345678901234567890}\n')
    assert Replacement(path).apply(b'{"cut') == b'{"n": 1.0,\n "m": 12345678901234567890}'


@pytest.mark.parametrize("content", [b"", b"[]", b'{"cut', b"{} {}", b'{"a":"\xff"}', None])
def test_a_file_that_holds_no_object(tmp_path: Path, content: bytes | None) -> None:
    """It is said before anything is changed, and so is one that isn't there."""
    path = tmp_path / "event.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="--with: "):
        Replacement(path)
