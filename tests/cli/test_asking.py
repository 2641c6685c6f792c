"""Asking before something is gone."""

from __future__ import annotations

import io

import pytest

from forwarder.cli.asking import may


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False), ("", False), ("yess\n", False)]
)
def test_only_a_yes_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, *, agreed: bool) -> None:
    """Anything else, and nobody there, is a no: then it is said that nothing was changed."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert may("Remove it?", yes=False) is agreed
    asked = capsys.readouterr()
    assert (asked.out, asked.err.startswith("Remove it? [y/N] "), "Nothing was changed" in asked.err) == ("", True, not agreed)


def test_who_said_yes_before_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """`--yes` goes on."""
    assert may("Remove it?", yes=True)
    assert capsys.readouterr().err == ""
