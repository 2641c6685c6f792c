"""The daemon that is killed: a real `forwarder run`, started again and again in one directory, at
one address.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from benchmarks.processes import free_ports
from forwarder.core.processes import send_signal
from tests.crash.load_plan import LANES

ENDS_WITHIN: Final = 40.0
"""Seconds that a process which was asked to end may take."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are in the directory of a run."""

    root: Path
    ingestion: int
    admin: int

    @classmethod
    def choose(cls, root: Path) -> Places:
        """Two free ports."""
        return cls(root, *free_ports(2))

    @property
    def buffer(self) -> Path:
        """`buffer.path`."""
        return self.root / "state"

    @property
    def before(self) -> Path:
        """What the state was before the last start, for anyone who looks into a failure."""
        return self.root / "before"

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.root / "forwarder.yaml"

    @property
    def journal(self) -> Path:
        """The sender's journal."""
        return self.root / "journal"

    @property
    def log(self) -> Path:
        """What the daemons and the children say."""
        return self.root / "output.log"

    @property
    def hits(self) -> Path:
        """The failpoints that were hit, one a line."""
        return self.root / "failpoints.log"


def write_config(places: Places, upstream: str, max_bytes: str, **http: object) -> None:
    """A configuration in which everything happens often: small segments,
    small batches, short waits.
    """
    http |= {
        "listen": f"127.0.0.1:{places.ingestion}",
        "api_keys": sorted({lane.api_key for lane in LANES}),
    }
    settings = {
        "upstream": {
            "url": upstream,
            "timeout": "400ms",
            "max_body": "1MB",
            "max_event": "100KB",
            "compression": "none",
        },
        "sources": {"http": http},
        "buffer": {
            "kind": "disk",
            "ack": "disk",
            "ack_timeout": "2s",
            "path": str(places.buffer),
            "max_bytes": max_bytes,
        },
        "batch": {"max_bytes": "200KB", "max_events": 400, "max_age": "20ms"},
        "delivery": {"retry": {"initial": "10ms", "max": "100ms"}},
        "shutdown": {"drain_timeout": "10s"},
        "admin": {"listen": f"127.0.0.1:{places.admin}"},
        "log": {"format": "json", "level": "info"},
    }
    places.config.write_text(yaml.safe_dump(settings))


class CrashVictim:
    """One life of the daemon."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.began = time.monotonic()

    @classmethod
    async def start(cls, places: Places, failpoints: str = "") -> CrashVictim:
        """Start it, with failpoints armed; the state is copied before."""
        if places.buffer.exists():
            shutil.rmtree(places.before, ignore_errors=True)
            shutil.copytree(places.buffer, places.before)
        armed = (
            {"FORWARDER_FAILPOINTS": failpoints, "FORWARDER_FAILPOINTS_LOG": str(places.hits)}
            if failpoints
            else {}
        )
        return cls(await _spawn(places, ["run"], armed=armed))

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    async def killed(self) -> int:
        """Kill it, whatever it is about; its exit code, which is not -9 if it had ended before."""
        send_signal(self._process, signal.SIGKILL)
        return await self._process.wait()

    async def ends(self, within: float) -> int | None:
        """Its exit code, if it ends by itself within so many seconds."""
        try:
            async with asyncio.timeout(within):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def stopped(self) -> int | None:
        """Tell it to end in good order; its exit code, None if it didn't."""
        send_signal(self._process, signal.SIGTERM)
        return await self.ends(ENDS_WITHIN)


async def command(places: Places, *arguments: str) -> tuple[int, str]:
    """Run another `forwarder` command with the run's configuration to its end; its exit code and
    its standard output.
    """
    process = await _spawn(places, arguments, out=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(ENDS_WITHIN):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            send_signal(process, signal.SIGKILL)
            await process.communicate()
    return process.returncode or 0, out.decode()


async def _spawn(
    places: Places,
    arguments: Sequence[str],
    *,
    armed: Mapping[str, str] | None = None,
    out: int | None = None,
) -> asyncio.subprocess.Process:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
    }
    line = [sys.executable, "-m", "forwarder", *arguments, "--config", str(places.config)]
    with places.log.open("ab") as log:
        environment |= armed or {}
        return await asyncio.create_subprocess_exec(
            *line, env=environment, stdout=log if out is None else out, stderr=log
        )
