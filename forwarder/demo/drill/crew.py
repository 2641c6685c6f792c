"""The two processes of the drill, and where they keep their files.

Invariant: at most one sandbox and one forwarder run at a time; whichever was started is gone when the block of `crew` ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from forwarder.demo.demo import Ports
from forwarder.demo.drill.children import Child, child
from forwarder.demo.drill.looking import Look


@dataclass(frozen=True, slots=True)
class Place:
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


class Crew:
    """Starts them, again and again, at the same addresses and on the same files. `sandbox` and `forwarder` are the ones started last."""

    def __init__(self, place: Place, ports: Ports, look: Look, children: contextlib.AsyncExitStack) -> None:
        self._place = place
        self._ports = ports
        self._look = look
        self._children = children
        self.sandbox: Child
        self.forwarder: Child

    async def start_sandbox(self, *api_keys: str) -> None:
        """The upstream, which knows these project keys and answers as the real service does. Raises `DrillFailed` if it doesn't come up."""
        keys = [word for key in api_keys for word in ("--api-key", key)]
        place = ["--listen", f"127.0.0.1:{self._ports.sandbox}", "--database", str(self._place.database)]
        self.sandbox = await self._start("sandbox", *place, "--strict", *keys)
        await self._look.up(self.sandbox, self._look.sandbox, "/livez")

    async def start_forwarder(self) -> None:
        """The daemon; returns when it takes events. Raises `DrillFailed` if it doesn't come up."""
        self.forwarder = await self._start("run", "--config", str(self._place.configuration))
        await self._look.up(self.forwarder, self._look.admin, "/readyz")

    async def _start(self, *arguments: str) -> Child:
        return await self._children.enter_async_context(child(arguments, self._place.directory / f"{arguments[0]}.log"))


@contextlib.asynccontextmanager
async def crew(place: Place, ports: Ports, look: Look) -> AsyncIterator[Crew]:
    """A crew that hasn't started anything yet; what it has by the end of the block is killed."""
    place.configuration.write_text(configuration(place, ports))
    async with contextlib.AsyncExitStack() as children:
        yield Crew(place, ports, look, children)


def configuration(place: Place, ports: Ports) -> str:
    """The forwarder's configuration: what a sidecar needs, with addresses of its own and a buffer on disk."""
    return (
        f"upstream: {{url: 'http://127.0.0.1:{ports.sandbox}'}}\n"
        f"sources: {{http: {{listen: '127.0.0.1:{ports.ingestion}'}}}}\n"
        f"admin: {{listen: '127.0.0.1:{ports.admin}'}}\n"
        f"buffer: {{kind: disk, path: '{place.buffer}'}}\n"
    )
