"""Ctrl-C of commands, of those that run until they are stopped and of those that end by
themselves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.stop_requests import STOP_SIGNALS, StopRequests

T = TypeVar("T")


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; returns what it returns. Ctrl-C cancels it and raises
    `KeyboardInterrupt` here, at once: asyncio's own loop would see a signal that comes just before
    it waits, or in another thread, only when something else wakes it.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT or SIGTERM of the running loop; a second one, at least a
    second later, ends the process at once.
    """
    loop = asyncio.get_running_loop()
    requests = StopRequests()

    def signalled() -> None:
        request = requests.count()
        if request == 1:
            stop()
        elif request:
            os._exit(ExitCode.INTERRUPTED)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signalled)
