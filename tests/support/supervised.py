"""A supervised daemon as a user has it: `forwarder run` with several workers, real processes and
real signals.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from forwarder.telemetry.snapshot import Snapshot, Worker
from tests.support.admin import Admin
from tests.support.commands import Running, running

KEY: Final = "phc_supervisedsupervised"
ENVIRONMENT: Final = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
    "FORWARDER_LOG__FORMAT": "json",
    "FORWARDER_BATCH__MAX_AGE": "0s",
    "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    "FORWARDER_WORKERS": "2",
}


class Supervised(Admin):
    """A daemon that runs. Each request has a connection of its own, so that the kernel spreads
    them over the workers.
    """

    def __init__(
        self,
        command: Running,
        listening: dict[str, Any],
        client: aiohttp.ClientSession,
        unix: str | None,
    ) -> None:
        self.command = command
        self.ingestion = "http://localhost" if unix else f"http://{listening['ingestion'][0]}"
        super().__init__(listening["admin"], client)
        self._sender = (
            client
            if unix is None
            else aiohttp.ClientSession(connector=aiohttp.UnixConnector(unix, force_close=True))
        )

    async def send(self, *names: str, distinct_id: str | None = "someone") -> int:
        """Send events of those names; the status code. Without `distinct_id`
        they become dead letters.
        """
        body = {
            "api_key": KEY,
            "batch": [{"event": name, "distinct_id": distinct_id} for name in names],
        }
        async with self._sender.post(f"{self.ingestion}/batch/", json=body) as response:
            return response.status

    async def spread(self, count: int = 40) -> list[str]:
        """Send so many events, one a request, all of which must be taken; their names."""
        names = [f"event-{number}" for number in range(count)]
        for name in names:
            assert await self.send(name) == 200
        return names

    async def logged(self, event: str) -> dict[str, Any]:
        """The next log line of that name."""
        return dict(json.loads(await self.command.line(f'"event": "{event}"')))

    async def close(self) -> None:
        """Close the sender's connections."""
        await self._sender.close()


@contextlib.asynccontextmanager
async def supervised(
    upstream: str, *, unix: Path | None = None, **env: str
) -> AsyncIterator[Supervised]:
    """`forwarder run`, once it listens; `unix` is the socket that it is to listen on."""
    environment = {**ENVIRONMENT, "FORWARDER_UPSTREAM__URL": upstream, **env}
    if unix is not None:
        environment["FORWARDER_SOURCES__HTTP__LISTEN"] = f"unix:{unix}"
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        running("run", env=environment) as command,
        aiohttp.ClientSession(connector=connector) as client,
    ):
        daemon = Supervised(
            command,
            json.loads(await command.line('"event": "listening"')),
            client,
            str(unix) if unix else None,
        )
        try:
            yield daemon
        finally:
            await daemon.close()


def worker(snapshot: Snapshot, name: str) -> Worker:
    """The worker of that name."""
    (named_worker,) = [worker for worker in snapshot.workers if worker.name == name]
    return named_worker


def is_there(process: int) -> bool:
    """Whether a process, not of this one's children, runs; one that waits for its parent to see
    its end doesn't.
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
