"""The `forwarder` command as a user has it: a process of its own, whose output is waited for with
a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

from forwarder.cli.main import main
from forwarder.core.processes import send_signal
from forwarder.core.proposals import use_configuration

LIMIT: Final = 90.0
"""Seconds that a command may take: far more than it does, on a machine that is busy."""

COMMAND: Final = (sys.executable, "-m", "forwarder")
AGAIN: Final = 0.2
"""Seconds between two signals of `Running.send_until`."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs; its lines of both outputs in the order in which they came."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, *texts: str) -> str:
        """The next line that holds all of `texts`. Fails when the process ends first, or after
        `LIMIT` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                while line := await self._next():
                    if all(text in line for text in texts):
                        return line
        raise AssertionError(f"no line with {texts} came:\n" + "\n".join(self.lines))

    async def _next(self) -> str:
        assert self.process.stdout is not None
        raw = await self.process.stdout.readline()
        self.lines.append(raw.decode().rstrip("\n"))
        return raw.decode()

    def send(self, signal: int) -> None:
        """Send the process a signal."""
        send_signal(self.process, signal)

    async def send_until(self, signal: int, *texts: str) -> str:
        """Send it again and again, until a line holds all of `texts`; that line. A stop that
        follows another within a second is none of its own.
        """
        line = asyncio.create_task(self.line(*texts))
        while not (await asyncio.wait({line}, timeout=AGAIN))[0]:
            self.send(signal)
        return await line

    async def ended(self) -> int:
        """The exit code; the rest of the output goes to `lines`."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            rest = await self.process.stdout.read()
            self.lines += rest.decode().splitlines()
            return await self.process.wait()


async def forwarder(
    *args: str, env: Mapping[str, str] | None = None, limit: float = LIMIT
) -> Finished:
    """Run `forwarder` with `args` to its end, within `limit` seconds; of the surroundings'
    `FORWARDER_…` variables it sees those of `env` alone.
    """
    process = await asyncio.create_subprocess_exec(
        *command_line(args),
        env=environment(env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit):
            out, err = await process.communicate()
    finally:
        await _end(process)
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())


async def invoked(*args: str, env: Mapping[str, str] | None = None) -> Finished:
    """The same in this process, in a thread: for a command that ends by itself and not by a
    signal. A process spends most of its time on imports.

    Another thread's output is the command's as well: not for tests whose own parts log.
    """
    return await asyncio.to_thread(invoke, *args, env=env)


def invoke(*args: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run `forwarder` with `args` in this thread."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (sys, "argv", ["forwarder", *args]),
            (sys, "stdin", io.StringIO()),
            (sys, "stdout", out),
            (sys, "stderr", err),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(patch.dict(os.environ, environment(env), clear=True))
        stack.callback(use_configuration, None)
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return Finished(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@contextlib.asynccontextmanager
async def running(
    *args: str,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    stdin: int | None = None,
) -> AsyncIterator[Running]:
    """`forwarder` with `args` in the background, both outputs in one; killed at the end if it
    still runs. `command`: what stands for it; `stdin`: as asyncio has it.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        *args,
        env=environment(env),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Running(process)
    finally:
        await _end(process)


def command_line(args: Sequence[str]) -> list[str]:
    """How `forwarder` is started with `args`."""
    return [*COMMAND, *args]


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """What a command sees: the surroundings without their `FORWARDER_…` variables, and `env`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
    }
    return {**inherited, "COLUMNS": "200", **(env or {})}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.communicate()
