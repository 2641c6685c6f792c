"""What the drill asks its two processes, over HTTP as anybody would: status, what arrived, flags.

Invariant: waiting has a limit, and ends with what was seen last, so that a claim that didn't come true is told with its figures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from forwarder.admin.status import parse
from forwarder.core.clock import Clock
from forwarder.demo.demo import Ports
from forwarder.demo.drill.children import Child, DrillFailed, pause
from forwarder.demo.drill.findings import FlagCall
from forwarder.telemetry.snapshot import Snapshot

WAIT_SECONDS: Final = 30.0
"""How long a condition may take to come true: some ten times what it does."""

LOOK_EVERY: Final = 0.05
LIMIT: Final = aiohttp.ClientTimeout(total=5.0)
PAGE: Final = 10_000
"""Events in an answer of the sandbox."""

Seen = TypeVar("Seen")


class NoAnswer(DrillFailed):
    """A process of the drill doesn't answer."""

    code = "no_answer"


class Look:
    """Asks both processes. `forwarder` and `sandbox` are those that run now."""

    def __init__(self, client: aiohttp.ClientSession, ports: Ports, clock: Clock, wait_seconds: float = WAIT_SECONDS) -> None:
        self._client = client
        self._clock = clock
        self._wait_seconds = wait_seconds
        self.ingestion = f"http://127.0.0.1:{ports.ingestion}"
        self.admin = f"http://127.0.0.1:{ports.admin}"
        self.sandbox = f"http://127.0.0.1:{ports.sandbox}"

    async def status(self) -> Snapshot:
        """The forwarder's state. Raises `NoAnswer`; cancellation ends the wait."""
        return parse((await self._get(f"{self.admin}/status"))[1])

    async def until(self, running: Child, holds: Callable[[Snapshot], bool]) -> Snapshot:
        """The forwarder's state as soon as `holds`, or the last one within the limit. Raises `DrillFailed` if the process ends."""
        return await self._wait(running, self.status, holds)

    async def up(self, running: Child, address: str, path: str) -> None:
        """Return when a process answers 200, or when the limit is over. Raises `DrillFailed` if it ends before."""
        await self._wait(running, lambda: self._code(f"{address}{path}"), lambda code: code == 200)

    async def stored(self) -> frozenset[str]:
        """The uuids of all events in the sandbox."""
        found: list[str] = []
        while True:
            page = await self._json(f"/sandbox/events?limit={PAGE}&offset={len(found)}")
            found += [event["uuid"] for event in page["results"]]
            if not page["results"] or len(found) >= page["count"]:
                return frozenset(found)

    async def conflicts(self) -> int:
        """How many events came to the sandbox again with other bytes."""
        return int((await self._json("/sandbox/summary"))["conflicts"])

    async def flags(self, api_key: str) -> FlagCall:
        """Ask for flags, as an SDK does, and see how long that takes. Cancellation ends the wait."""
        began = self._clock.monotonic()
        body = {"api_key": api_key, "distinct_id": "drill", "token": api_key}
        status: int | None = None
        try:
            async with self._client.post(f"{self.ingestion}/flags/?v=2", json=body, timeout=LIMIT) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError):
            status = None
        return FlagCall(status, self._clock.monotonic() - began)

    async def _wait(self, running: Child, look: Callable[[], Awaitable[Seen]], holds: Callable[[Seen], bool]) -> Seen:
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
            raise NoAnswer(f"the sandbox answers {code} to {path}", hint="This is a bug in forwarder.")
        return dict(msgspec.json.decode(body))

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            async with self._client.get(url, headers={"Accept": "application/json"}, timeout=LIMIT) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswer(f"{url} doesn't answer: {str(error) or type(error).__name__}", hint="Is the machine very busy?") from error
