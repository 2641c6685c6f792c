"""Several workers with disk buffers: what was answered 200 outlives any of the processes, and
their number.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from forwarder.storage.directory import LockedDirectory, worker_directory
from forwarder.telemetry.snapshot import Snapshot
from tests.support.admin import total
from tests.support.commands import forwarder, invoked
from tests.support.supervised import ENVIRONMENT, Supervised, is_there, supervised, worker
from tests.support.upstream import OK, Answer, Upstream, plain
from tests.support.waiting import eventually

DOWN = plain(503)


class StoppableService(Upstream):
    """A service that is down until it is started."""

    def __init__(self) -> None:
        super().__init__(lambda _: self.now)
        self.now: Answer = DOWN


@pytest.fixture
async def upstream() -> AsyncIterator[StoppableService]:
    """A service that is down."""
    server = StoppableService()
    async with server:
        yield server


@asynccontextmanager
async def on_disk(upstream: str, path: Path, **env: str) -> AsyncIterator[Supervised]:
    """A daemon of two workers with disk buffers under `path`, whose stop doesn't drain for long."""
    disk = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(path),
        "FORWARDER_SHUTDOWN__DRAIN_TIMEOUT": "100ms",
    }
    soon = {"FORWARDER_DELIVERY__RETRY__INITIAL": "10ms", "FORWARDER_DELIVERY__RETRY__MAX": "100ms"}
    async with supervised(upstream, unix=None, **{**disk, **soon, **env}) as daemon:
        yield daemon


async def stopped(daemon: Supervised) -> int:
    """Stop it; the exit code."""
    daemon.command.send(signal.SIGTERM)
    return await daemon.command.ended()


def reaches(acknowledged: list[str], goal: int) -> bool:
    """Whether so many were acknowledged."""
    return len(acknowledged) >= goal


def is_back(kills: int, now: Snapshot) -> bool:
    """Whether the second worker runs again after so many deaths."""
    second = worker(now, "worker-1")
    return second.restarts >= kills and second.state == "running"


async def test_nothing_acknowledged_is_lost_with_a_worker(
    upstream: StoppableService, tmp_path: Path
) -> None:
    """Under load one worker is killed twice: all that was answered 200 is delivered, and the books
    balance all the time.
    """
    acknowledged: list[str] = []
    names = count()
    async with on_disk(upstream.url, tmp_path) as daemon:
        enough = asyncio.Event()

        async def sender() -> None:
            while not enough.is_set():
                name = f"event-{next(names)}"
                try:
                    if await daemon.send(name) == 200:
                        acknowledged.append(name)
                except aiohttp.ClientError:
                    # the connection went with the worker; nothing was promised
                    continue

        senders = [asyncio.create_task(sender()) for _ in range(4)]
        for kills in (1, 2):
            goal = len(acknowledged) + 100
            await eventually(partial(reaches, acknowledged, goal))
            victim = worker(await daemon.status(), "worker-1").process
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            await daemon.until(partial(is_back, kills))
        enough.set()
        await asyncio.gather(*senders)
        upstream.now = OK
        await daemon.until(lambda now: total(now, "buffered") == 0)
        assert await stopped(daemon) == 0
    assert set(acknowledged) - set(upstream.delivered) == set()
    assert len(acknowledged) > 200


async def test_a_directory_of_a_former_worker_is_adopted(
    upstream: StoppableService, tmp_path: Path
) -> None:
    """From two workers to one: the second one's backlog is delivered. Its directory stays, and its
    books in the sum, until its dead letters are dropped, or replayed by the daemon that runs; then
    one process is enough.
    """
    async with on_disk(upstream.url, tmp_path) as daemon:
        names = await daemon.spread()
        for number in range(40):
            assert await daemon.send(f"{number}", distinct_id=None) == 200
            assert await daemon.send("", distinct_id=f"{number}") == 200
        assert all(worker.received for worker in (await daemon.status()).workers)
        assert await stopped(daemon) == 0
    upstream.now = OK
    letters = ("--path", str(tmp_path), "--yes")
    async with on_disk(upstream.url, tmp_path, FORWARDER_WORKERS="1") as daemon:
        shown = await daemon.until(
            lambda now: [worker.state for worker in now.workers] == ["running", "done"]
        )
        assert total(shown, "delivered") == len(names)
        assert total(shown, "total_dead") == 80
        assert worker_directory(tmp_path, 1).exists()
        assert sorted(upstream.delivered) == sorted(names)
        reason = ("--reason", "missing_distinct_id")
        dropped = await invoked("dead-letters", "drop", *letters, *reason)
        assert dropped.code == 0, dropped.err
        await daemon.until(
            lambda now: total(now, "total_dropped") == 40 and now.workers[1].state == "done"
        )
        assert worker_directory(tmp_path, 1).exists()
        edit = ("--all", "--edit", '.event = "named"')
        replayed = await invoked("dead-letters", "replay", *letters, *edit)
        assert replayed.code == 0, replayed.err
        assert "of former workers marked; the daemon sends them within seconds" in replayed.out
        shown = await daemon.until(
            lambda now: (
                total(now, "delivered") == len(names) + 40 and now.workers[1].state == "done"
            )
        )
        assert total(shown, "total_dead") == 0
        assert not worker_directory(tmp_path, 1).exists()
        assert await stopped(daemon) == 0
    assert sorted(upstream.delivered) == sorted(names + ["named"] * 40)
    async with on_disk(upstream.url, tmp_path, FORWARDER_WORKERS="1") as daemon:
        assert not (await daemon.status()).workers
        assert await stopped(daemon) == 0


async def test_a_directory_in_use_is_one_clear_error(tmp_path: Path) -> None:
    """One worker that can't have its directory ends the start with 2, saying once which and who
    has it.
    """
    lock = LockedDirectory.acquire(worker_directory(tmp_path, 1), "buffer.path")
    disk = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(tmp_path),
        "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9",
    }
    done = await forwarder("run", env={**ENVIRONMENT, **disk})
    lock.release()
    assert done.code == 2
    assert f"worker-1 is in use by another forwarder (process {os.getpid()})" in done.err
    assert done.err.count("Error: ") == 1


async def test_workers_leave_their_directories_when_the_supervisor_dies(
    upstream: StoppableService, tmp_path: Path
) -> None:
    """A killed supervisor's workers end at once, without draining; the next start continues with
    what they held.
    """
    async with on_disk(upstream.url, tmp_path, FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="1h") as daemon:
        names = await daemon.spread()
        workers = [worker.process for worker in (await daemon.status()).workers]
        daemon.command.send(signal.SIGKILL)
        assert await daemon.command.ended() == -signal.SIGKILL
        await eventually(lambda: not any(is_there(process) for process in workers if process))
    upstream.now = OK
    async with on_disk(upstream.url, tmp_path) as daemon:
        assert (await daemon.logged("events wait on disk"))["found"] == len(names)
        await daemon.until(lambda now: total(now, "delivered") == len(names))
        assert await stopped(daemon) == 0
    assert sorted(names) == sorted(upstream.delivered)
