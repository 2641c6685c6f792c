"""`forwarder run` and `forwarder sandbox` as processes of their own, as a user starts them.

Invariants: a process belongs to the drill from the moment it exists, and is killed and reaped when its block ends, however that ends (only
a drill that is itself killed with -9 leaves it behind); it hears no signal of the terminal, or a Ctrl-C would race with the drill's own
end; its output goes to a file beside the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from forwarder.core.clock import Clock
from forwarder.core.errors import ForwarderError
from forwarder.workers.workers import launch

END_SECONDS: Final = 40.0
"""How long an orderly end may take: more than the default `shutdown.drain_timeout`."""

WORDS: Final = 12
"""Lines of a process' output that are quoted when it fails."""


class DrillFailed(ForwarderError):
    """The drill can't go on: a process ended unasked, or never came up."""

    code = "drill_failed"


class Child:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def words(self) -> str:
        """The last lines that it wrote, for people."""
        lines = self._log.read_text(errors="replace").splitlines()[-WORDS:]
        return "\n".join(f"  {line}" for line in lines)

    async def kill(self) -> None:
        """kill -9; returns when it is gone. Cancellation leaves it to end by itself, which it does at once."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait; the exit code, -9 if it had to be killed after `END_SECONDS`. Cancellation ends the wait."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            await self.kill()
            return self._process.returncode or 0


@contextlib.asynccontextmanager
async def child(arguments: Sequence[str], log: Path) -> AsyncIterator[Child]:
    """`forwarder` with `arguments`; its output is appended to `log`. At the end it is killed if it still runs."""
    how = launch(arguments)
    environment = {name: value for name, value in how.environment.items() if not name.startswith("FORWARDER_")}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *how.command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
        )
    finally:
        os.close(descriptor)
    running = Child(arguments[0], process, log)
    try:
        yield running
    finally:
        await running.kill()


async def pause(clock: Clock, running: Child, seconds: float) -> None:
    """Let a moment pass while `running` gets on. Raises `DrillFailed` if it has ended; cancellation ends the wait."""
    if running.code is not None:
        raise DrillFailed(f"`forwarder {running.name}` ended with {running.code}:\n{running.words()}", hint="Its last lines are above.")
    await clock.sleep(seconds)
