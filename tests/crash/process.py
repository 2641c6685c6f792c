"""A real `forwarder` that is killed, and started again and again by the same command."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from forwarder.core.processes import send_signal
from tests.support.commands import command_line, environment

ENDS_WITHIN: Final = 40.0
"""Seconds that a process which was asked to end may take."""
LOOKS: Final = 0.02
"""Seconds between two looks at its memory."""
_HIGHEST: Final = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Killable:
    """One life of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.memory = 0
        """The most resident memory that it had, in bytes, by the last look."""
        self._looked = 0.0

    @classmethod
    @contextlib.asynccontextmanager
    async def living(cls, arguments: Sequence[str], log: Path) -> AsyncIterator[Killable]:
        """Start it; what it says goes to the file `log`. It is killed at the end if it
        still lives.
        """
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command_line(arguments), env=environment(None), stdout=output, stderr=output
            )
        killable = cls(process)
        try:
            yield killable
        finally:
            await killable.killed()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    def look(self, *, least: float = LOOKS) -> None:
        """Look how much memory it has had, unless that was seen less than `least` seconds ago."""
        if (now := time.monotonic()) - self._looked < least:
            return
        self._looked = now
        with contextlib.suppress(OSError):  # it is gone
            # the last look counts: the first may come before the new program has replaced the one
            # that started it, by `posix_spawn`
            self.memory = most_memory(self.pid) or self.memory

    async def killed(self) -> int:
        """Kill it, whatever it is about; its exit code, which is not -9 if it had ended before."""
        self.look(least=0)
        send_signal(self._process, signal.SIGKILL)
        return await self._process.wait()

    async def stopped(self) -> int:
        """Tell it to end in good order; its exit code. Raises `TimeoutError` if it doesn't."""
        send_signal(self._process, signal.SIGTERM)
        async with asyncio.timeout(ENDS_WITHIN):
            return await self._process.wait()

    async def code(self) -> int:
        """Its exit code, once it has ended."""
        return await self._process.wait()


def most_memory(pid: int) -> int:
    """The most resident memory that a process had so far, in bytes; 0 if it has ended. Raises
    `OSError` if there is none.
    """
    match = _HIGHEST.search(Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0
