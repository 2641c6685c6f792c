"""Ctrl-C of commands that run until they are stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.stop_requests import STOP_SIGNALS, StopRequests


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
