"""Signals for processes that asyncio has started."""

import asyncio
import contextlib
import os
import signal
import sys

from forwarder.core.processes import send_signal


async def test_a_process_that_ends_when_it_is_signalled_keeps_its_exit_code() -> None:
    """It has ended and asyncio hasn't noticed yet: asyncio's own `kill` takes the code, and says
    255 instead.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
    with contextlib.suppress(ChildProcessError):  # Python 3.11 notices in a thread
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it must wait
    send_signal(process, signal.SIGKILL)
    assert await process.wait() == 7


async def test_a_process_that_runs_gets_the_signal_and_one_that_has_ended_does_not() -> None:
    """Its number may be another process's by then."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    send_signal(process, signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM
    send_signal(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
