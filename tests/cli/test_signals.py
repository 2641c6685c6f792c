"""Ctrl-C of commands that run until they are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from forwarder.cli import signals
from forwarder.cli.exit_codes import ExitCode
from forwarder.core import stop_requests
from tests.support.waiting import eventually


@pytest.mark.parametrize(("repeat", "exits"), [(0.0, [ExitCode.INTERRUPTED]), (3600.0, [])])
async def test_a_second_signal_ends_the_process_unless_it_belongs_to_the_first(
    monkeypatch: pytest.MonkeyPatch, repeat: float, exits: list[int]
) -> None:
    """Only signals that are apart are two."""
    heard: list[str] = []
    exited: list[int] = []
    monkeypatch.setattr(stop_requests, "REPEAT_SECONDS", repeat)
    monkeypatch.setattr(os, "_exit", exited.append)
    signals.stop_on_signals(lambda: heard.append("stop"))
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        await eventually(lambda: heard == ["stop"] and exited == exits)
    finally:
        for number in stop_requests.STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


def test_ctrl_c_is_seen_while_the_loop_waits() -> None:
    """Also one that another thread takes, which doesn't end the loop's waiting: the same as one in
    the moment before it waits.
    """
    woken_by_timer: list[bool] = []
    waits = threading.Event()

    def press() -> None:
        waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def silent() -> None:
        threading.Thread(target=press).start()
        loop = asyncio.get_running_loop()
        loop.call_later(10, woken_by_timer.append, True)
        loop.call_soon(waits.set)  # the last that it does before it waits
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        signals.run_to_end(silent())
    assert not woken_by_timer
