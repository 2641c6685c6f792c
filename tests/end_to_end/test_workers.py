"""Several workers under one supervisor: real processes, real signals, one address for senders and
one for the operator.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.admin import total
from tests.support.commands import forwarder, invoked
from tests.support.supervised import ENVIRONMENT, Supervised, is_there, supervised, worker
from tests.support.upstream import Answer, Upstream, plain
from tests.support.waiting import eventually


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A service that takes everything."""
    async with Upstream() as server:
        yield server


def processes(daemon: Supervised, *workers: int | None) -> list[int]:
    """The supervisor and those workers."""
    return [daemon.command.process.pid, *(process for process in workers if process)]


async def test_two_workers_share_one_address(upstream: Upstream) -> None:
    """Both take events that are sent to one address; one admin address shows their sum, whose books
    balance however often they are read under load; SIGTERM drains both and ends with 0.
    """
    async with supervised(upstream.url) as daemon:
        sending = asyncio.create_task(daemon.spread(60))
        looks = 0
        while looks < 10 or not sending.done():
            await daemon.status()  # which wants the books to balance
            looks += 1
        names = await sending
        shown = await daemon.until(lambda now: total(now, "delivered") == len(names))
        assert [worker.name for worker in shown.workers] == ["worker-0", "worker-1"]
        assert all(worker.received for worker in shown.workers)
        assert (
            sum(worker.received for worker in shown.workers)
            == total(shown, "total_received")
            == len(names)
        )
        assert shown.http_requests[("/batch", 200)] == len(names)
        assert 'forwarder_worker_up{worker="worker-1"} 1.0' in await daemon.metrics()
        daemon.command.send(signal.SIGTERM)
        assert await daemon.command.ended() == 0
    assert sorted(upstream.delivered) == sorted(names)


async def test_they_share_a_unix_socket(upstream: Upstream, tmp_path: Path) -> None:
    """A Unix socket is bound once and inherited; its file is gone when the daemon has ended."""
    path = tmp_path / "in.sock"
    async with supervised(upstream.url, unix=path) as daemon:
        assert len(await daemon.spread(5)) == 5
        await daemon.until(lambda now: total(now, "delivered") == 5)
        daemon.command.send(signal.SIGINT)
        assert await daemon.command.ended() == 0
    assert not path.exists()


async def test_a_worker_that_dies_comes_back(upstream: Upstream) -> None:
    """After kill -9 of one the other takes events; the one comes back, which is said in the log,
    the status and the metrics.
    """
    async with supervised(upstream.url) as daemon:
        victim = worker(await daemon.status(), "worker-1").process
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        assert "SIGKILL" in (await daemon.logged("a worker ended"))["why"]
        assert await daemon.send("meanwhile") == 200
        back = worker(
            await daemon.until(lambda now: worker(now, "worker-1").state == "running"), "worker-1"
        )
        assert back.restarts == 1
        assert back.process != victim
        assert 'forwarder_worker_restarts_total{worker="worker-1"} 1.0' in await daemon.metrics()
        await daemon.until(lambda now: total(now, "delivered") == 1)
        await daemon.spread()
        assert all(worker.received for worker in (await daemon.status()).workers)
        daemon.command.send(signal.SIGTERM)
        assert await daemon.command.ended() == 0


async def test_a_stopped_worker_holds_up_no_new_sender(upstream: Upstream) -> None:
    """While one of two is stopped, every new connection is answered; it is named everywhere, and
    takes its part again when it continues.
    """
    async with supervised(upstream.url) as daemon:
        names = await daemon.spread()
        stopped = worker(await daemon.status(), "worker-1").process
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        try:
            names += await daemon.spread(200)
            line = await daemon.logged("a worker doesn't respond")
            assert (line["worker"], line["process"]) == ("worker-1", stopped)
            shown = await daemon.status()
            assert shown.ready
            assert (
                worker(shown, "worker-0").silent_since,
                worker(shown, "worker-1").silent_since is None,
            ) == (None, False)
            assert any(
                warning.startswith("worker-1 hasn't responded for ") for warning in shown.warnings
            )
            assert (
                'forwarder_worker_unresponsive_seconds{worker="worker-0"} 0.0'
                in await daemon.metrics()
            )
            assert (
                'forwarder_worker_unresponsive_seconds{worker="worker-1"} 0.0'
                not in await daemon.metrics()
            )
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert (await daemon.logged("a worker responds again"))["worker"] == "worker-1"
        before = worker(await daemon.status(), "worker-1").received
        names += await daemon.spread()
        shown = await daemon.until(lambda now: total(now, "delivered") == len(names))
        assert worker(shown, "worker-1").received - before > 10
        assert total(shown, "total_received") == len(names)
        assert [worker.restarts for worker in shown.workers] == [0, 0]
        daemon.command.send(signal.SIGTERM)
        assert await daemon.command.ended() == 0
    assert sorted(upstream.delivered) == sorted(names)


async def test_the_worst_exit_code_is_the_daemons() -> None:
    """Events that one worker can't deliver make the exit code 1, although
    the other has nothing left.
    """
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        supervised(upstream.url, FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="100ms") as daemon,
    ):
        assert await daemon.send("one") == 200
        await daemon.until(lambda now: total(now, "buffered") == 1)
        daemon.command.send(signal.SIGTERM)
        assert (await daemon.logged("events were left behind"))["undelivered"] == 1
        assert await daemon.command.ended() == 1


async def test_a_second_signal_ends_their_drain(tmp_path: Path) -> None:
    """A drain that would take an hour is cut short: exit code 130, no worker is left, and what
    they held are dead letters. A signal that comes with the first changes nothing.
    """
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        supervised(
            upstream.url,
            FORWARDER_DEAD_LETTERS__PATH=str(tmp_path),
            FORWARDER_SHUTDOWN__DRAIN_TIMEOUT="1h",
        ) as daemon,
    ):
        assert await daemon.send("one") == 200
        workers = [
            worker.process
            for worker in (await daemon.until(lambda now: total(now, "buffered") == 1)).workers
        ]
        for process in processes(daemon, *workers):
            os.kill(process, signal.SIGTERM)
            os.kill(process, signal.SIGINT)
        await daemon.logged("draining")
        await daemon.command.send_until(signal.SIGTERM, '"event": "interrupted"')
        assert (await daemon.logged("events were left behind"))["undelivered"] == 1
        assert await daemon.command.ended() == 130
        await eventually(lambda: not any(map(is_there, processes(daemon, *workers))))
    assert (
        "undelivered_at_exit" in (await invoked("dead-letters", "ls", "--path", str(tmp_path))).out
    )


async def test_workers_end_with_their_supervisor() -> None:
    """A supervisor that is killed leaves no worker: each drains what it holds, and ends."""
    open_now = asyncio.Event()
    async with (
        Upstream(lambda _: Answer(when=open_now)) as upstream,
        supervised(upstream.url) as daemon,
    ):
        names = await daemon.spread(10)
        workers = [worker.process for worker in (await daemon.status()).workers]
        daemon.command.send(signal.SIGKILL)
        for _ in workers:
            await daemon.logged("the supervisor is gone: this worker stops")
        open_now.set()
        assert await daemon.command.ended() == -signal.SIGKILL
        await eventually(lambda: not any(map(is_there, processes(daemon, *workers))))
        assert sorted(upstream.delivered) == sorted(names)
        assert [
            json.loads(line)["undelivered"]
            for line in daemon.command.lines
            if '"event": "stopped"' in line
        ] == [0, 0]


async def test_hangup_reaches_the_workers(upstream: Upstream, tmp_path: Path) -> None:
    """SIGHUP has every worker read the configuration again; what needs a restart is said once."""
    keys = tmp_path / "keys"
    keys.write_text("phc_somebodyelsesomebody\n")
    async with supervised(upstream.url, FORWARDER_SOURCES__HTTP__API_KEYS_FILE=str(keys)) as daemon:
        assert await daemon.send("refused") == 401
        keys.write_text("phc_supervisedsupervised\n")
        daemon.command.send(signal.SIGHUP)
        assert (await daemon.logged("configuration read again"))["needs_restart"] == []
        in_a_row = 0
        while in_a_row < 20:
            in_a_row = in_a_row + 1 if await daemon.send("taken") == 200 else 0
        daemon.command.send(signal.SIGTERM)
        assert await daemon.command.ended() == 0


async def test_an_address_in_use_is_one_clear_error() -> None:
    """An address that someone listens on, or another forwarder shares, ends the start with 2,
    naming it once.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        env = {
            **ENVIRONMENT,
            "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9",
            "FORWARDER_SOURCES__HTTP__LISTEN": address,
        }
        done = await forwarder("run", env=env)
    assert done.code == 2
    assert address in done.err
    assert done.err.count("Error: ") == 1
    assert "Traceback" not in done.err
