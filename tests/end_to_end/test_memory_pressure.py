"""Near its limit of memory forwarder rejects new events, says so, and accepts them again."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.end_to_end.test_process import DaemonProcess, daemon
from tests.support.confined import CONFINED, GROUP, SPEED, cgroup
from tests.support.fake_memory import FakeMemory
from tests.support.listening import RawConnection, chunked, post
from tests.support.upstream import OK, Upstream, plain
from tests.support.waiting import eventually, pause
from tests.support.whole import Whole, accepted, batch, events

MB = 1_000_000
LARGE = 900_000
"""Bytes of the properties of an event in a request of 1 MB."""


async def test_new_events_are_503_until_memory_is_free() -> None:
    """Whatever the request looks like, on connections that stay open; calls without events pass.
    What was accepted before is delivered, and then events are accepted again.
    """
    memory = FakeMemory(limit=1000)
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, memory=memory) as whole,
    ):
        sent = events(3, "before")
        await whole.take(sent)
        memory.amount = 950
        await eventually(lambda: whole.snapshot.memory_short)
        known = post("/batch/", batch(events(3, "late")))
        large = post("/batch/", batch(events(300, "late", padding=1000)))
        for request in (known, large, chunked(b"{}"), known):
            reply = await whole.send(request)
            assert (reply.status, reply.headers["retry-after"]) == (503, "2")
            assert b"emory is short" in reply.body
            assert reply.headers.get("connection") != "close"
        snapshot = whole.snapshot
        assert not snapshot.ready
        assert snapshot.not_ready == ("memory is short: senders get 503",)
        assert "memory is short" in snapshot.warnings[0]
        assert (snapshot.memory_bytes, snapshot.memory_limit_bytes) == (950, 1000)
        assert snapshot.rejected_requests == {("/batch", "memory_short"): 4}
        assert snapshot.http_requests["/batch", 503] == 4
        memory.amount = 700
        await eventually(lambda: not whole.snapshot.memory_short)
        upstream.answer = lambda _: OK
        sent += (later := events(3, "after"))
        await whole.take(later)
        await whole.emptied()
        assert whole.snapshot.ready
        assert accepted(upstream) == dict.fromkeys(sent, 1)


async def test_an_empty_buffer_accepts_whatever_memory_is_used() -> None:
    """What others take, or what is never given back, stops nothing for good."""
    memory = FakeMemory(limit=1000, amount=999)
    async with Upstream() as upstream, Whole(upstream.url, memory=memory) as whole:
        await whole.take(events(2))
        await whole.emptied()
        await eventually(lambda: whole.snapshot.ready)
        await whole.take(events(2, "more"))
        await whole.emptied()
        assert len(accepted(upstream)) == 4


async def test_a_request_whose_body_is_coming_in_gets_503_too() -> None:
    """Its head came before memory was short; the whole of it is received, and nothing accepted."""
    memory = FakeMemory(limit=1000)
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        Whole(upstream.url, memory=memory) as whole,
    ):
        await whole.take(events(1))
        request = post("/batch/", batch(events(100, padding=1000)))
        client = await whole.connect()
        client.writer.write(request[:50_000])
        await eventually(lambda: whole.pipeline._parts.listener.statistics().receiving_bytes)
        memory.amount = 950
        await eventually(lambda: whole.snapshot.memory_short)
        assert (await client.ask(request[50_000:])).status == 503
        assert sum(lane.total_received for lane in whole.snapshot.lanes) == 1
        await client.close()


@dataclass
class Senders:
    """Senders of requests of 1 MB, who repeat each until it is accepted."""

    address: str
    names: list[str] = field(default_factory=list)
    """Of the events that were answered 200."""
    answers: Counter[int | bytes] = field(default_factory=Counter)
    """By status, and by text where it was 503."""
    peak: int = 0
    """Bytes of anonymous memory that the daemon had at most."""
    done: bool = False
    """Whether to stop after the next answer."""

    async def send(self, name: str) -> None:
        """Send one event after the other, until `done`."""
        host, _, port = self.address.rpartition(":")
        client = RawConnection(
            *await asyncio.open_connection(host.removeprefix("http://"), int(port))
        )
        try:
            number = 0
            while not self.done:
                request = post("/batch/", batch(events(1, f"{name}-{number}-", padding=LARGE)))
                reply = await client.ask(request)
                self.answers[reply.status] += 1
                if reply.status == 200:
                    self.names.append(f"{name}-{number}-0")
                    number += 1
                else:
                    self.answers[reply.body] += 1
                    await pause(0.005)
        finally:
            client.writer.transport.abort()


def anonymous(process: int) -> int:
    """Bytes of anonymous memory of a process."""
    text = Path(f"/proc/{process}/status").read_text("ascii")
    return int(re.findall(r"RssAnon:\s+(\d+)", text)[0]) * 1024


async def status(forwarder: DaemonProcess) -> dict[str, Any]:
    """What `/status` says."""
    document: dict[str, Any] = json.loads((await forwarder.read("/status"))[1])
    return document


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
@pytest.mark.parametrize(
    ("limit", "buffer", "rejected"),
    [
        pytest.param(160 * MB, 16 * MB, 300, id="a buffer that fits", marks=pytest.mark.long),
        pytest.param(80 * MB, 256 * MB, 100, id="a buffer that doesn't fit"),
    ],
)
async def test_an_outage_with_large_requests_is_survived(
    limit: int, buffer: int, rejected: int
) -> None:
    """While the service is down and senders push on, a process stays below its limit of memory.
    Nothing that was answered 200 is lost, and when the outage is over all is accepted again.
    """
    env = {
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
        "FORWARDER_LOG__LEVEL": "info",
        "FORWARDER_BUFFER__MAX_BYTES": str(buffer),
        "FORWARDER_LIMITS__MEMORY": str(limit),
    }
    async with Upstream(lambda _: plain(503)) as upstream, daemon(upstream.url, **env) as forwarder:
        async with pushing(forwarder) as senders:
            await eventually(lambda: senders.answers[503] >= rejected)
            if buffer > limit:
                assert senders.answers[b"Memory is short.\n"]
                while not (shown := await status(forwarder))["memory_short"]:
                    await pause(0.05)
                assert shown["memory_limit_bytes"] == limit
                assert shown["not_ready"] == ["memory is short: senders get 503"]
            await over(senders, upstream)
        assert senders.peak < limit
        await all_delivered(forwarder, senders, upstream)


HOUR: Final = 3600


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
async def test_an_hour_without_upstream_is_survived_in_160_mb() -> None:
    """By the daemon's clock, with as many requests as senders can make meanwhile. The kernel kills
    what takes more; where no cgroup can be made, the peak is compared.
    """
    limit = 160 * MB
    with cgroup(limit) as group:
        env = {
            "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
            "FORWARDER_UPSTREAM__TIMEOUT": "10m",  # seconds of a clock that hurries
            "FORWARDER_LOG__LEVEL": "info",
            "FORWARDER_BUFFER__MAX_BYTES": "16MB",
            SPEED: "200",
            **({"FORWARDER_LIMITS__MEMORY": str(limit)} if group is None else {GROUP: str(group)}),
        }
        async with (
            Upstream(lambda _: plain(503)) as upstream,
            daemon(upstream.url, CONFINED, **env) as forwarder,
        ):
            async with pushing(forwarder) as senders:
                while (shown := await status(forwarder))["now"] < shown["started_at"] + HOUR:
                    assert shown["memory_limit_bytes"] == pytest.approx(limit, rel=0.01)
                    await pause(0.2)
                assert senders.answers[503]
                await over(senders, upstream)
            assert senders.peak < limit
            await all_delivered(forwarder, senders, upstream)


@asynccontextmanager
async def pushing(forwarder: DaemonProcess) -> AsyncIterator[Senders]:
    """Senders that push on until the block is left."""
    senders = Senders(forwarder.ingestion)
    process = forwarder.command.process.pid

    async def watch() -> None:
        while not senders.done:
            senders.peak = max(senders.peak, anonymous(process))
            await pause(0.02)

    tasks = [asyncio.create_task(senders.send(f"s{number}")) for number in range(4)]
    tasks.append(asyncio.create_task(watch()))
    try:
        yield senders
    finally:
        senders.done = True
        await asyncio.gather(*tasks)


async def over(senders: Senders, upstream: Upstream) -> None:
    """End the outage, and wait until senders get 200 again."""
    held = len(senders.names)
    upstream.answer = lambda _: OK
    await eventually(lambda: len(senders.names) >= held + 20, explain=lambda: senders.answers)


async def all_delivered(forwarder: DaemonProcess, senders: Senders, upstream: Upstream) -> None:
    """All that was answered 200 arrives, and the daemon is ready."""
    while (await status(forwarder))["buffer_bytes"]:
        await pause(0.05)
    assert set(senders.names) <= set(upstream.delivered)
    assert (await forwarder.read("/readyz"))[0] == 200
