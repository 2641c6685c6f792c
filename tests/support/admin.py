"""What a daemon's admin server says, for tests: its status, whose books must balance each time,
and its metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from forwarder.admin.status import parse
from forwarder.telemetry.snapshot import Snapshot, balanced
from tests.support.waiting import LIMIT, Looks


class Admin:
    """A client of an admin server at `host:port`."""

    def __init__(self, address: str, client: aiohttp.ClientSession) -> None:
        self.admin = address
        self._client = client

    async def status(self) -> Snapshot:
        """What the admin address shows; its books balance."""
        snapshot = parse(await self._read("status"))
        assert balanced(snapshot), snapshot
        return snapshot

    async def metrics(self) -> str:
        """The metrics as text."""
        return (await self._read("metrics")).decode()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 if there is none."""
        families = text_string_to_metric_families(await self.metrics())
        samples = [
            sample for family in families for sample in family.samples if sample.name == name
        ]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def reaches(self, name: str, value: float, limit: float = LIMIT) -> None:
        """Wait until the samples of a metric sum up to `value`."""
        looks = Looks()
        current = await self.metric(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while current != value:
                    await looks.pause()
                    current = await self.metric(name)
        assert current == value, f"{name} is {current:g} after {limit:g} s, not {value:g}"

    async def ready(self) -> int:
        """The status code of `/readyz`."""
        async with self._client.get(f"http://{self.admin}/readyz") as response:
            return response.status

    async def until(self, holds: Callable[[Snapshot], object], limit: float = LIMIT) -> Snapshot:
        """Wait until what is shown is so; fails after `limit` seconds."""
        looks = Looks()
        last = await self.status()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while not holds(last):
                    await looks.pause()
                    last = await self.status()
                return last
        raise AssertionError(f"not so after {limit:g} s: {last}")

    async def _read(self, path: str) -> bytes:
        async with self._client.get(f"http://{self.admin}/{path}") as response:
            return await response.read()


def total(snapshot: Snapshot, figure: str) -> int:
    """A figure of all lanes together."""
    return sum(getattr(lane, figure) for lane in snapshot.lanes)


def dropped(snapshot: Snapshot, reason: str) -> int:
    """Events of all lanes that were dropped for a reason."""
    return sum(lane.dropped.get(reason, 0) for lane in snapshot.lanes)


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
        * 1024
    )
