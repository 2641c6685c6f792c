"""Signals to an import."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from typer.testing import CliRunner

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_run import stopped_by_signals, termination_interrupts
from forwarder.cli.imports import app
from tests.support.waiting import eventually


async def test_the_second_signal_ends_it_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The first one asks it to stop; after the second the terminal is tidied up first."""
    heard: list[object] = []
    with stopped_by_signals(asyncio.get_running_loop(), lambda: heard.append("stop"), lambda: heard.append("tidy"), heard.append):
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: heard == ["stop"])
        os.kill(os.getpid(), signal.SIGINT)
        await eventually(lambda: heard == ["stop", "tidy", ExitCode.INTERRUPTED])
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("SIGTERM: reading stops")
    assert said[1].startswith("Stopped at once")


def test_an_interruption_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, and words instead of a traceback."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forwarder.cli.import_request.request_of", interrupt)
    ended = CliRunner().invoke(app, ["native", "x"])
    assert ended.exit_code == ExitCode.INTERRUPTED
    assert ended.stderr.startswith("Interrupted. Nothing is in flight")


def test_before_it_sends_sigterm_is_what_ctrl_c_is() -> None:
    """And afterwards what it was."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
