"""A sender to a sandbox, and events to send."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.store.stored_records import StoredRequest
from tests.support.waiting import tick

KEY: Final = "phc_sandbox_test_key_0001"
UUID: Final = "0190a0a0-1111-7222-8333-444455556666"


@dataclass(frozen=True, slots=True)
class SandboxReply:
    """An answer."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.text)


class SandboxClient:
    """A running sandbox with a connection to it."""

    def __init__(self, sandbox: Sandbox, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self._session = session

    async def post(self, path: str, body: Any, **headers: str) -> SandboxReply:
        """Send a body: bytes as they are, anything else as JSON. `_` in a
        header's name is a hyphen.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.ask(
            "POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    async def get(self, path: str) -> Any:
        """Read a listing."""
        return (await self.ask("GET", path)).json

    async def ask(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SandboxReply:
        """Make one request, without following redirects."""
        url = self.sandbox.url + path
        body = None if data is None else io.BytesIO(data)
        async with self._session.request(
            method, url, data=body, headers=headers, allow_redirects=False
        ) as response:
            return SandboxReply(response.status, await response.text(), response.headers)


@asynccontextmanager
async def talking(options: SandboxOptions | None = None) -> AsyncIterator[SandboxClient]:
    """A sandbox and a client, closed at the end."""
    async with (
        Sandbox(options) as sandbox,
        aiohttp.ClientSession(skip_auto_headers=["Content-Type"]) as session,
    ):
        yield SandboxClient(sandbox, session)


async def recorded(sandbox: Sandbox, count: int = 1) -> list[StoredRequest]:
    """The requests, once there are `count` of them. The test's own time limit ends the wait."""
    while len(requests := await sandbox.requests()) < count:
        await tick()
    return requests


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def event(**changes: Any) -> dict[str, Any]:
    """An event with a name and an id; a change to `...` takes a key away."""
    full = {"event": "seen", "distinct_id": "ann", "properties": {"n": 1}, **changes}
    return {key: value for key, value in full.items() if value is not ...}


def batch(*events: Any, **envelope: Any) -> dict[str, Any]:
    """A batch object."""
    return {"api_key": KEY, "batch": list(events), **envelope}
