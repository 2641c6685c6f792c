"""Ctrl-C of commands that run until they are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from forwarder.cli.exit_codes import ExitCode


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT or SIGTERM of the running loop; a second one ends the
    process at once.
    """
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def signalled(number: signal.Signals) -> None:
        seen.append(number)
        if len(seen) > 1:
            os._exit(ExitCode.INTERRUPTED)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled, number)
