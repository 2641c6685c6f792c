"""What every SDK is tried on: a sandbox, a forwarder before it as a process of its own, and the
program that uses the SDK.

The sandbox keeps everything in a file, so that it can be stopped and started again on the same
address, and asked after all is over.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from forwarder.admin.status import parse
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot, UpstreamState
from tests.sdks.installing import folder
from tests.support.commands import Running, running
from tests.support.waiting import tick

KEY: Final = "phc_realRealSdksKey0123456789"
SECRET: Final = "phx_realRealPersonalKey012345"
LIMIT: Final = 120.0
"""Seconds that a program may take: several times what it does."""

ENV: Final[Mapping[str, str]] = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    "FORWARDER_LOG__FORMAT": "json",
    "FORWARDER_BATCH__MAX_AGE": "100ms",
    "FORWARDER_DELIVERY__RETRY__INITIAL": "50ms",
    "FORWARDER_DELIVERY__RETRY__MAX": "200ms",
}
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "python": ("venv/bin/python", "program.py"),
    "node": ("node", "program.mjs"),
    "otel-python": ("venv/bin/python", "program.py"),
    "otel-node": ("node", "program.mjs"),
    "go": ("./program",),
    "java": ("java", "-XX:TieredStopAtLevel=1", "-cp", "classes:lib/*", "Program"),
}
"""How each program is started, from its folder."""


class SdkSandbox:
    """A sandbox that can be stopped, and started again where it was with what it held."""

    def __init__(self, database: Path) -> None:
        self._options = SandboxOptions(database=database)
        self._sandbox: Sandbox | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen: the first time on any port, afterwards on the same."""
        if self.url:
            self._options = SandboxOptions(
                database=self._options.database, listen=self.url.removeprefix("http://")
            )
        self._sandbox = await Sandbox(self._options).__aenter__()
        self.url = self._sandbox.url

    async def stop(self) -> None:
        """Listen no more; connections are refused."""
        sandbox = self._sandbox
        self._sandbox = None
        if sandbox is not None:
            await sandbox.__aexit__(None, None, None)

    async def close(self) -> None:
        """Stop for good."""
        await self.stop()

    @property
    def sandbox(self) -> Sandbox:
        """What listens."""
        assert self._sandbox is not None
        return self._sandbox


class Chain:
    """Forwarder before a sandbox: what an application's SDK is pointed at, and what can be asked
    of both.
    """

    def __init__(
        self, service: SdkSandbox, command: Running, line: str, client: aiohttp.ClientSession
    ) -> None:
        listening = json.loads(line)
        self.service = service
        self.command = command
        self.host = f"http://{listening['ingestion'][0]}"
        self._admin = f"http://{listening['admin']}"
        self.client = client

    async def snapshot(self) -> Snapshot:
        """Forwarder's state, and its books."""
        async with self.client.get(
            f"{self._admin}/status", headers={"Accept": "application/json"}
        ) as response:
            return parse(await response.read())

    async def holding(self, count: int) -> Snapshot:
        """Wait until forwarder holds at least so many events and knows that the upstream is down.
        The test's own limit ends the wait.
        """
        return await self._until(
            lambda snapshot: (
                _buffered(snapshot) >= count and snapshot.upstream.state is UpstreamState.DOWN
            )
        )

    async def emptied(self) -> Snapshot:
        """Wait until forwarder holds nothing any more. The test's own limit ends the wait."""
        return await self._until(lambda snapshot: _buffered(snapshot) == 0)

    async def finish(self, sender: Program, count: int) -> list[dict[str, Any]]:
        """Let a program come to its end; its journal. One that waits until its events have left is
        notified when they have.
        """
        if sender.waits_to_end:
            await self._until(
                lambda snapshot: sum(lane.total_received for lane in snapshot.lanes) >= count
            )
            sender.go_on()
        return await sender.ended()

    async def _until(self, so: Callable[[Snapshot], bool]) -> Snapshot:
        while not so(snapshot := await self.snapshot()):
            await tick()
        return snapshot

    async def ask(self, query: str) -> Any:
        """What the sandbox says at `/sandbox/…`."""
        return await asked(self.client, self.service.url, query)


def _buffered(snapshot: Snapshot) -> int:
    return sum(lane.buffered for lane in snapshot.lanes)


async def asked(client: aiohttp.ClientSession, url: str, query: str) -> Any:
    """What a sandbox says at `/sandbox/…`."""
    async with client.get(f"{url}/sandbox/{query}") as response:
        assert response.status == 200, f"{query}: {response.status} {await response.text()}"
        return await response.json()


@asynccontextmanager
async def chain(
    database: Path, service: SdkSandbox | None = None, **settings: str
) -> AsyncIterator[Chain]:
    """A chain that listens; all of it is gone at the end. `settings` are environment
    variables for forwarder.
    """
    service = service or SdkSandbox(database)
    await service.start()
    try:
        env = {**ENV, "FORWARDER_UPSTREAM__URL": service.url, **settings}
        async with running("run", env=env) as command, aiohttp.ClientSession() as client:
            yield Chain(service, command, await command.line('"event": "listening"'), client)
    finally:
        await service.close()


class Program:
    """A program that uses an SDK, as it runs."""

    def __init__(
        self, process: asyncio.subprocess.Process, journal: Path, *, waits_to_end: bool = False
    ) -> None:
        self.waits_to_end = waits_to_end
        self._process = process
        self._journal = journal
        self._errors = asyncio.ensure_future(self._read_errors())
        self.errors = ""

    async def said(self) -> dict[str, Any]:
        """What it says at the end of its next part."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await self._process.stdout.readline()
        assert line, f"it ended: {await self._errors}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go_on(self) -> None:
        """Let it do its next part."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def ended(self) -> list[dict[str, Any]]:
        """Wait for its end, which is to be a good one; its journal."""
        async with asyncio.timeout(LIMIT):
            self.errors = await self._errors
            code = await self._process.wait()
        assert code == 0, f"exit code {code}: {self.errors}"
        return read_journal(self._journal)

    async def close(self) -> None:
        """End it if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()
        await asyncio.gather(self._errors, return_exceptions=True)

    async def _read_errors(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode(errors="replace")


@asynccontextmanager
async def program(
    sdk: str, host: str, journal: Path, *options: str, count: int, **env: str
) -> AsyncIterator[Program]:
    """A program at work; it is gone at the end."""
    arguments = (
        "--host",
        host,
        "--key",
        KEY,
        "--count",
        str(count),
        "--journal",
        str(journal),
        *options,
    )
    process = await asyncio.create_subprocess_exec(
        *COMMANDS[sdk],
        *arguments,
        cwd=folder(sdk),
        env={**os.environ, **env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    started = Program(process, journal, waits_to_end=sdk == "java")
    try:
        yield started
    finally:
        await started.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """What a program says that it sent, one event a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]
