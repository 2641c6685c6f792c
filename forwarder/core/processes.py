"""Signals for processes that asyncio has started."""

from __future__ import annotations

import asyncio
import contextlib
import os


def send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send it to the process; one that has ended is left alone.

    Not by its own `send_signal`, `terminate` and `kill`: before Python 3.13 they look first whether
    it has ended, which takes its exit code from asyncio's watcher, and a process that ends in that
    moment then has the code 255 (CPython issue 87744, "waitpid race while calling send_signal").
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
