"""How far long work has come."""

from __future__ import annotations

import sys

import pytest

from forwarder.cli.tables import EVERY, EventProgress


def test_a_line_every_few_seconds_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Events, rate and time left; nothing for what is soon done, and nothing on standard output."""
    now = 100.0
    with EventProgress("exporting", 1000, now=lambda: now) as progress:
        progress.advance(100)
        now += EVERY
        progress.advance(150)
        now += EVERY / 2
        progress.advance(50)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "exporting: 250 of 1,000 events, 50 a second, 15s left\n")
    assert progress.done == 300


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes away with the work."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with EventProgress("draining", 10) as progress:
        progress.advance(10)
    assert "draining" in capsys.readouterr().err
