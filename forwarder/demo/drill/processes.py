"""The drill's two processes, `forwarder run` and `forwarder sandbox`: started as a user starts
them, queried over HTTP, always cleaned up.

Invariants: a process belongs to the drill from the moment it exists, and is killed and reaped when
its block ends (only a drill that is itself killed with -9 leaves it behind); at most one sandbox
and one forwarder run at a time; they receive no signals from the terminal, so that Ctrl-C doesn't
race with the drill's own cleanup; their output goes to files beside the buffer. Every wait has a
limit and returns what it saw last, so that a failed claim is reported with its figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from forwarder.admin.status import parse
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError
from forwarder.core.processes import send_signal
from forwarder.demo.demo import Ports
from forwarder.demo.drill.checks import FlagCall
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.worker_process import launch

END_SECONDS: Final = 40.0
"""How long an orderly end may take: more than the default `shutdown.drain_timeout`."""

LOG_LINES: Final = 12
"""Lines of a process' output that are quoted when it fails."""


class DrillFailed(ForwarderError):
    """The drill can't continue: a process ended unexpectedly, or didn't start."""

    code = "drill_failed"


class ChildProcess:
    """One process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def last_lines(self) -> str:
        """The last lines that it wrote, for people."""
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines)

    async def kill(self) -> None:
        """kill -9; returns when it is gone. Cancellation leaves it to end by itself, which it does
        at once.
        """
        send_signal(self._process, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait; the exit code, -9 if it had to be killed after `END_SECONDS`.
        Cancellation ends the wait.
        """
        send_signal(self._process, signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            await self.kill()
            return self._process.returncode or 0


@contextlib.asynccontextmanager
async def child_process(arguments: Sequence[str], log: Path) -> AsyncIterator[ChildProcess]:
    """`forwarder` with `arguments`; its output is appended to `log`. At the end it is killed if it
    still runs.
    """
    how = launch(arguments)
    environment = {
        name: value for name, value in how.environment.items() if not name.startswith("FORWARDER_")
    }
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *how.command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    running = ChildProcess(arguments[0], process, log)
    try:
        yield running
    finally:
        await running.kill()


async def pause(clock: Clock, running: ChildProcess, seconds: float) -> None:
    """Wait while `running` works. Raises `DrillFailed` if it has ended; cancellation
    ends the wait.
    """
    if running.code is not None:
        ended = f"`forwarder {running.name}` ended with {running.code}"
        raise DrillFailed(f"{ended}:\n{running.last_lines()}", hint="Its last lines are above.")
    await clock.sleep(seconds)


WAIT_SECONDS: Final = 30.0
"""How long a condition may take to become true: about ten times the usual."""

LOOK_EVERY: Final = 0.05
LIMIT: Final = aiohttp.ClientTimeout(total=5.0)
PAGE: Final = 10_000
"""Events in an answer of the sandbox."""

Seen = TypeVar("Seen")


class NoAnswer(DrillFailed):
    """A process of the drill doesn't answer."""

    code = "no_answer"


class DrillProbe:
    """Queries both processes over HTTP, as any client would."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        ports: Ports,
        clock: Clock,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._wait_seconds = wait_seconds
        self.ingestion = f"http://127.0.0.1:{ports.ingestion}"
        self.admin = f"http://127.0.0.1:{ports.admin}"
        self.sandbox = f"http://127.0.0.1:{ports.sandbox}"

    async def status(self) -> Snapshot:
        """The forwarder's state. Raises `NoAnswer`; cancellation ends the wait."""
        return parse((await self._get(f"{self.admin}/status"))[1])

    async def until(self, running: ChildProcess, holds: Callable[[Snapshot], bool]) -> Snapshot:
        """The forwarder's state as soon as `holds`, or the last one within the limit. Raises
        `DrillFailed` if the process ends.
        """
        return await self._wait(running, self.status, holds)

    async def wait_until_up(self, running: ChildProcess, address: str, path: str) -> None:
        """Return when a process answers 200, or after the limit. Raises
        `DrillFailed` if it ends before.
        """
        await self._wait(running, lambda: self._code(f"{address}{path}"), lambda code: code == 200)

    async def stored(self) -> frozenset[str]:
        """The uuids of all events in the sandbox."""
        uuids: list[str] = []
        while True:
            page = await self._json(f"/sandbox/events?limit={PAGE}&offset={len(uuids)}")
            uuids += [event["uuid"] for event in page["results"]]
            if not page["results"] or len(uuids) >= page["count"]:
                return frozenset(uuids)

    async def conflicts(self) -> int:
        """How many events the sandbox received again with other bytes."""
        return int((await self._json("/sandbox/summary"))["conflicts"])

    async def flags(self, api_key: str) -> FlagCall:
        """Request flags, as an SDK does, and measure how long that takes.
        Cancellation ends the wait.
        """
        began = self._clock.monotonic()
        body = {"api_key": api_key, "distinct_id": "drill", "token": api_key}
        status: int | None = None
        try:
            async with self._client.post(
                f"{self.ingestion}/flags/?v=2", json=body, timeout=LIMIT
            ) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError):
            status = None
        return FlagCall(status, self._clock.monotonic() - began)

    async def _wait(
        self,
        running: ChildProcess,
        look: Callable[[], Awaitable[Seen]],
        holds: Callable[[Seen], bool],
    ) -> Seen:
        end = self._clock.monotonic() + self._wait_seconds
        while True:
            over = self._clock.monotonic() >= end
            try:
                seen = await look()
                if over or holds(seen):
                    return seen
            except NoAnswer:
                if over:
                    raise
            await pause(self._clock, running, LOOK_EVERY)

    async def _code(self, url: str) -> int:
        return (await self._get(url))[0]

    async def _json(self, path: str) -> dict[str, Any]:
        code, body = await self._get(f"{self.sandbox}{path}")
        if code != 200:
            raise NoAnswer(
                f"the sandbox answers {code} to {path}", hint="This is a bug in forwarder."
            )
        return dict(msgspec.json.decode(body))

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            async with self._client.get(
                url, headers={"Accept": "application/json"}, timeout=LIMIT
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            why = error_text(error)
            raise NoAnswer(
                f"{url} doesn't answer: {why}", hint="The machine may be overloaded: try again."
            ) from error


@dataclass(frozen=True, slots=True)
class DrillFiles:
    """The drill's files, all in one directory."""

    directory: Path

    @property
    def buffer(self) -> Path:
        """The forwarder's `buffer.path`."""
        return self.directory / "buffer"

    @property
    def database(self) -> Path:
        """The sandbox's."""
        return self.directory / "sandbox.db"

    @property
    def configuration(self) -> Path:
        """The forwarder's."""
        return self.directory / "forwarder.yaml"


class DrillProcesses:
    """Starts both, repeatedly, at the same addresses and on the same files. `sandbox` and
    `forwarder` are the last ones started.
    """

    def __init__(
        self,
        files: DrillFiles,
        ports: Ports,
        probe: DrillProbe,
        children: contextlib.AsyncExitStack,
    ) -> None:
        self._files = files
        self._ports = ports
        self._probe = probe
        self._children = children
        self.sandbox: ChildProcess
        self.forwarder: ChildProcess

    async def start_sandbox(self, *api_keys: str) -> None:
        """The upstream, which knows these project keys and answers as the real service does.
        Raises `DrillFailed` if it doesn't start.
        """
        keys = [word for key in api_keys for word in ("--api-key", key)]
        address = [
            "--listen",
            f"127.0.0.1:{self._ports.sandbox}",
            "--database",
            str(self._files.database),
        ]
        self.sandbox = await self._start("sandbox", *address, "--strict", *keys)
        await self._probe.wait_until_up(self.sandbox, self._probe.sandbox, "/livez")

    async def start_forwarder(self) -> None:
        """The daemon; returns when it accepts events. Raises `DrillFailed` if it doesn't start."""
        self.forwarder = await self._start("run", "--config", str(self._files.configuration))
        await self._probe.wait_until_up(self.forwarder, self._probe.admin, "/readyz")

    async def _start(self, *arguments: str) -> ChildProcess:
        return await self._children.enter_async_context(
            child_process(arguments, self._files.directory / f"{arguments[0]}.log")
        )


@contextlib.asynccontextmanager
async def drill_processes(
    files: DrillFiles, ports: Ports, probe: DrillProbe
) -> AsyncIterator[DrillProcesses]:
    """Neither process is started yet; at the end of the block both are killed."""
    files.configuration.write_text(configuration(files, ports))
    async with contextlib.AsyncExitStack() as children:
        yield DrillProcesses(files, ports, probe, children)


def configuration(files: DrillFiles, ports: Ports) -> str:
    """The forwarder's configuration: what a sidecar needs, with addresses of its own and a buffer
    on disk.
    """
    return (
        f"upstream: {{url: 'http://127.0.0.1:{ports.sandbox}'}}\n"
        f"sources: {{http: {{listen: '127.0.0.1:{ports.ingestion}'}}}}\n"
        f"admin: {{listen: '127.0.0.1:{ports.admin}'}}\n"
        f"buffer: {{kind: disk, path: '{files.buffer}'}}\n"
    )
