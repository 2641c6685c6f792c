"""Text of others on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.cli.output import as_json, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J", r"a\u001b[2J"),
        ("\n\t\x00", r"\u000a\u0009\u0000"),
        ("\x9b\u202e\ud83d", r"\u009b\u202e\ud83d"),
        ("ä 漢 😀 [b]", "ä 漢 😀 [b]"),
    ],
)
def test_what_a_terminal_would_obey_is_an_escape(text: str, shown: str) -> None:
    """Controls of both kinds, marks of direction and halves of characters; all else is as it was."""
    assert visible(text) == shown


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_is_the_same_value(value: object) -> None:
    """On one line or on several, whatever the texts hold; and it can always be encoded."""
    for indent in (None, 2):
        text = as_json(value, indent=indent)
        assert json.loads(text) == value
        text.encode()
    assert "\n" not in as_json(value)
