"""Forwarder processes that read one Kafka topic together: members of a group, that are killed,
stopped for a while and replaced.

Each has a directory of its own in the test's, with its configuration, its log and its files, which
stay for anyone who looks into a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from forwarder.core.errors import ForwarderError
from forwarder.core.processes import send_signal
from tests.support.admin import Admin
from tests.support.commands import LIMIT, command_line, environment
from tests.support.waiting import eventually, pause

Section = Mapping[str, Any]

LOOK_EVERY: Final = 0.02
"""Seconds between two looks at the books."""
HURRIED: Final = (sys.executable, "-m", "tests.support.hurried", "run")
"""The program that looks at the cluster again and again, where the command waits for many seconds.
"""

DEFAULTS: Final[Mapping[str, Section]] = {
    "upstream": {"verify_keys": False},
    "admin": {"listen": "127.0.0.1:0"},
    "log": {"format": "json"},
    "batch": {"max_age": "20ms"},
    "delivery": {"retry": {"initial": "20ms", "max": "200ms"}},
    "shutdown": {"drain_timeout": "15s"},
}


class RunningMember(Admin):
    """One of them, which runs. `program` starts it in place of the command."""

    def __init__(
        self,
        home: Path,
        process: asyncio.subprocess.Process,
        client: aiohttp.ClientSession,
        log_from: int,
    ) -> None:
        super().__init__("", client)
        self.process = process
        self.home = home
        self._read_to = log_from
        self._said: list[dict[str, Any]] = []
        self._looked_at = 0

    async def logged(self, event: str, limit: float = LIMIT) -> dict[str, Any]:
        """The next line of its log of that name, after the last that was asked for. Fails when it
        ends first, or after `limit` seconds.
        """
        await eventually(
            lambda: self._find(event) or self.process.returncode is not None,
            limit,
            explain=lambda: self._explain(event),
        )
        line = self._find(event)
        assert line is not None, self._explain(event)
        self._looked_at = self._said.index(line) + 1
        return line

    def said(self) -> list[dict[str, Any]]:
        """All lines of its log until now."""
        with (self.home / "log").open("rb") as file:
            file.seek(self._read_to)
            more = file.read()
        whole = more[: more.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._said += map(_line, whole.splitlines())
        return self._said

    def send(self, number: int) -> None:
        """Send it a signal."""
        send_signal(self.process, number)

    async def kill(self) -> None:
        """Kill it, whatever it is about."""
        send_signal(self.process, signal.SIGKILL)
        assert await self.process.wait() == -signal.SIGKILL

    async def stop(self) -> int:
        """Tell it to end in good order; its exit code."""
        send_signal(self.process, signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(LIMIT):
            return await self.process.wait()

    def _find(self, event: str) -> dict[str, Any] | None:
        return next(
            (line for line in self.said()[self._looked_at :] if line.get("event") == event), None
        )

    def _explain(self, event: str) -> str:
        return f"no line {event!r} came from {self.home.name}:\n" + "\n".join(
            map(str, self.said()[-40:])
        )


def _line(raw: bytes) -> dict[str, Any]:
    """A line of a log; what is no JSON object, such as a part of a traceback, is its text alone."""
    try:
        line = json.loads(raw)
    except ValueError:
        line = None
    return line if isinstance(line, dict) else {"event": raw.decode("utf-8", "replace")}


class Members:
    """Starts members in a directory, all of which are gone at its end.

    `sections` is the configuration that they share, on top of `DEFAULTS`; `kafka` are the keys of
    its one cluster.
    """

    def __init__(self, root: Path, kafka: Section, **sections: Section) -> None:
        self._root = root
        self._kafka = kafka
        self._sections = merged(DEFAULTS, sections)
        self._running = contextlib.AsyncExitStack()
        self._client = aiohttp.ClientSession()
        self.all: list[RunningMember] = []
        self.problems: list[str] = []
        """What was wrong with their books."""
        self.looks = 0

    async def __aenter__(self) -> Members:
        await self._running.enter_async_context(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    async def spawn(
        self,
        name: str,
        *,
        program: Sequence[str] | None = None,
        kafka: Section | None = None,
        **sections: Any,
    ) -> RunningMember:
        """Start one under a name, whose files are those of the last one of that name; it needn't
        listen yet.
        """
        home = self._root / name
        home.mkdir(exist_ok=True)
        state = str(home / "state")
        sources = {"http": {"listen": "127.0.0.1:0"}, "kafka": [{**self._kafka, **(kafka or {})}]}
        own = {"dead_letters": {"path": state}, "buffer": {"path": state}, "sources": sources}
        (home / "forwarder.yaml").write_text(
            yaml.safe_dump(merged(merged(self._sections, own), sections))
        )
        member = await self._running.enter_async_context(
            _spawned(home, program or command_line(("run",)), self._client)
        )
        self.all.append(member)
        return member

    async def start(self, name: str, **more: Any) -> RunningMember:
        """Start one as `spawn` does, and wait until it listens."""
        member = await self.spawn(name, **more)
        member.admin = (await member.logged("listening"))["admin"]
        return member

    async def watch(self) -> None:
        """Look at the books of all that run, again and again until cancelled; what was wrong goes
        to `problems`.
        """
        while True:
            for member in [
                running
                for running in self.all
                if running.admin and running.process.returncode is None
            ]:
                try:
                    self.looks += 1
                    await member.status()
                except AssertionError as error:
                    self.problems.append(str(error))
                except (aiohttp.ClientError, ForwarderError, OSError, TimeoutError):
                    pass  # it was killed or stopped meanwhile
            await pause(LOOK_EVERY)


@contextlib.asynccontextmanager
async def _spawned(
    home: Path, program: Sequence[str], client: aiohttp.ClientSession
) -> AsyncIterator[RunningMember]:
    with (home / "log").open("ab") as log:
        log_from = log.tell()
        process = await asyncio.create_subprocess_exec(
            *program,
            "--config",
            str(home / "forwarder.yaml"),
            env=environment({}),
            stdout=log,
            stderr=log,
        )
    try:
        yield RunningMember(home, process, client, log_from)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def merged(below: Section, above: Section) -> dict[str, Any]:
    """Both, one key within the other: where both have a section its keys are put together, else
    `above` has its way.
    """
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return {
        key: merged(value, {}) if isinstance(value, Mapping) else value
        for key, value in both.items()
    }
