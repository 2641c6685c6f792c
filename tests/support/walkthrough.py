"""Follows the steps of a page: pastes commands, keeps terminals open, interrupts them, and
compares what they show with the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.support.markdown import Step, unseen
from tests.support.shells import Shell


@dataclass
class _Terminal:
    """A command that runs, and what it has shown."""

    process: asyncio.subprocess.Process
    output: str = ""
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def read(self) -> None:
        """Read until its end."""
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(1 << 16):
            self.output += data.decode(errors="replace")
            self.changed.set()
        self.ended = True
        self.changed.set()

    async def showing(self, shows: tuple[str, ...], limit: float) -> None:
        """Return once it has shown these lines; fails when it ends before,
        or after `limit` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while unseen(shows, self.output) and not self.ended:
                    self.changed.clear()
                    await self.changed.wait()
        line = unseen(shows, self.output)
        assert not line, f"{line!r} isn't shown:\n{self.output}"


class Walkthrough:
    """Follows steps in a shell's folder. `replaced`: words of the page and what stands for them
    here, such as free ports.

    An asynchronous context manager: what still runs at its end is killed.
    """

    def __init__(self, shell: Shell, replaced: Mapping[str, str]) -> None:
        self.shell = shell
        self._replaced = dict(replaced)
        self._words = re.compile(
            "|".join(map(re.escape, sorted(replaced, key=len, reverse=True))) or r"(?!)"
        )
        self._terminals: dict[str, _Terminal] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Walkthrough:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        for terminal in self._terminals.values():
            terminal.signal(signal.SIGKILL)
            await terminal.process.wait()
        await self._tasks.__aexit__(None, None, None)

    async def follow(self, steps: Iterable[Step]) -> None:
        """Do all of it; an `AssertionError` names the line of the page on
        which something else happens.
        """
        for step in steps:
            try:
                await self._do(step)
            except (AssertionError, TimeoutError) as error:
                why = str(error) or f"it isn't over after {self.shell.limit:g} s"
                raise AssertionError(
                    f"line {step.line}: {step.text or step.name}\n{why}"
                ) from error

    async def _do(self, step: Step) -> None:
        text = self._here(step.text)
        shows = tuple(map(self._here, step.shows))
        if step.action == "save":
            (self.shell.folder / step.name).write_text(text)
        elif step.action == "start":
            terminal = self._terminals[step.name] = _Terminal(
                await self.shell.started(f"exec 2>&1\n{text}", alone=True)
            )
            self._tasks.create_task(terminal.read())
            await terminal.showing(shows, self.shell.limit)
        elif step.action == "interrupt":
            terminal = self._terminals[step.name]
            before = terminal.output
            terminal.output = ""
            terminal.signal(signal.SIGINT)
            async with asyncio.timeout(self.shell.limit):
                await terminal.process.wait()
            await terminal.showing(shows, self.shell.limit)
            terminal.output = before + terminal.output
        else:
            done = await self.shell.run(f"exec 2>&1\n{text}")
            assert done.code == step.code, done
            line = unseen(shows, done.out)
            assert not line, f"{line!r} isn't shown:\n{done.out}"

    def _here(self, text: str) -> str:
        return self._words.sub(lambda match: self._replaced[match[0]], text)
