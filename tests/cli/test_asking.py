"""Asking before something is gone."""

from __future__ import annotations

import io

import pytest

from forwarder.cli.output import confirm


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False), ("", False), ("yess\n", False)]
)
def test_only_a_yes_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *, agreed: bool) -> None:
    """Anything else, and nobody there, is a no: then it is said that nothing was changed."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert confirm("Remove it?", yes=False) is agreed
    asked = capsys.readouterr()
    said = "" if agreed else "Nothing was changed. Use --yes to skip this question.\n"
    assert (asked.out, asked.err) == ("", f"Remove it? [y/N] \n{said}")


@pytest.mark.parametrize(("typed", "said"), [("y\n", ""), ("", "\nNothing was changed. Use --yes to skip this question.\n")])
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
    """`--yes` goes on."""
    assert confirm("Remove it?", yes=True)
    assert capsys.readouterr().err == ""
