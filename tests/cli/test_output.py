"""Questions, and text from outside made safe for a terminal."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.cli.output import as_json, confirm, visible
from tests.support.cases import cases


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [
        ("y\n", True),
        (" YES \n", True),
        ("n\n", False),
        ("\n", False),
        ("", False),
        ("yess\n", False),
    ],
)
def test_only_a_yes_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *, agreed: bool
) -> None:
    """Anything else, and no one there, is a no: then it is said that nothing was changed."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert confirm("Remove it?", yes=False) is agreed
    asked = capsys.readouterr()
    said = "" if agreed else "Nothing was changed. Use --yes to skip this question.\n"
    assert (asked.out, asked.err) == ("", f"Remove it? [y/N] \n{said}")


@pytest.mark.parametrize(
    ("typed", "said"),
    [("y\n", ""), ("", "\nNothing was changed. Use --yes to skip this question.\n")],
)
def test_what_follows_a_question_on_a_terminal_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, said: str
) -> None:
    """Enter has ended the question's line there; the end of input hasn't."""
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    confirm("Remove it?", yes=False)
    assert capsys.readouterr().err == f"Remove it? [y/N] {said}"


def test_who_said_yes_before_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """`--yes` continues."""
    assert confirm("Remove it?", yes=True)
    assert capsys.readouterr().err == ""


@cases(
    ("text", "shown"),
    [
        ("a\x1b[2J", r"a\u001b[2J"),
        ("\n\t\x00", r"\u000a\u0009\u0000"),
        ("\x9b\u202e\ud83d", r"\u009b\u202e\ud83d"),
        ("ä 漢 😀 [b]", "ä 漢 😀 [b]"),
    ],
)
def test_what_a_terminal_would_obey_is_an_escape(text: str, shown: str) -> None:
    """Controls of both kinds, marks of direction and halves of characters; all else is
    as it was.
    """
    assert visible(text) == shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_the_same_value(value: object) -> None:
    """On one line or on several, whatever the texts hold; and it can always be encoded."""
    for indent in (None, 2):
        text = as_json(value, indent=indent)
        assert json.loads(text) == value
        text.encode()
    assert "\n" not in as_json(value)
