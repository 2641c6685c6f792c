"""Processes of the crash test's own that outlive the daemon: each obeys commands, one line of JSON
each, and answers each with one.

A child ends when its standard input does, so that none outlives the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from forwarder.core.processes import send_signal
from tests.support.repository import ROOT

Message: TypeAlias = dict[str, Any]

LIMIT: Final = 60.0
"""Seconds that an answer may take."""


class Child:
    """A child, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, log: Path, *arguments: str) -> Child:
        """Start `python -m module`; what it says on its standard error goes to the file `log`."""
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                cwd=ROOT,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
            )
        return cls(process)

    async def ask(self, do: str, **more: object) -> Message:
        """Give a command; the answer. Raises `AssertionError` if the child has ended,
        `TimeoutError` if it doesn't answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        async with asyncio.timeout(LIMIT):
            line = await self._process.stdout.readline()
        assert line, f"a process of the test has ended while it should {do}; its log says why"
        answer: Message = json.loads(line)
        return answer

    async def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await self._process.wait()
        if self._process.returncode is None:
            send_signal(self._process, signal.SIGKILL)
        await self._process.communicate()


async def obey(handle: Callable[[Message], Awaitable[Message]]) -> None:
    """In the child: answer commands until there are no more."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        answer = await handle(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    transport.close()
