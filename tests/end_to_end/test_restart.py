"""Restarts in place, with real processes: the same process id, the same address, and no one else
in the directory meanwhile.
"""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp

from tests.daemon.test_process import daemon
from tests.support.supervised import supervised
from tests.support.upstream import Upstream, plain


def disk(path: Path) -> dict[str, str]:
    """A disk buffer."""
    return {"FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(path)}


async def test_a_restart_in_place(tmp_path: Path) -> None:
    """After SIGUSR2 the process has another program on the same sockets, with the lock and the
    backlog; connections wait meanwhile.
    """
    async with (
        Upstream(lambda _: plain(503)) as upstream,
        daemon(upstream.url, **disk(tmp_path)) as process,
    ):
        assert await process.send("before") == 200
        process.command.send(signal.SIGUSR2)
        await process.logged("stopped")
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://{process.admin}/readyz") as answer,
        ):
            assert answer.status == 200
        assert await process.send("after") == 200
        inherited = await process.logged("sockets were inherited")
        assert (inherited["ingestion"], inherited["admin"], inherited["locks"]) == (1, 1, 1)
        assert (await process.logged("events wait on disk"))["found"] == 1
        assert process.command.process.returncode is None
        process.command.send(signal.SIGTERM)
        assert (await process.logged("stopped"))["waiting"] == 2
        assert await process.command.ended() == 0


async def test_a_configuration_that_cant_be_used_changes_nothing(tmp_path: Path) -> None:
    """The new program checks the configuration before the old one stops;
    what is wrong is in the log.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text("batch: {max_events: 10}\n")
    async with Upstream() as upstream, daemon(upstream.url, "--config", str(file)) as process:
        file.write_text("batch: {max_evnts: 10}\n")
        process.command.send(signal.SIGUSR2)
        assert (
            "max_evnts"
            in (await process.logged("can't restart in place; this process continues"))["why"]
        )
        assert await process.send("sent") == 200


async def test_workers_are_restarted_with_their_supervisor(tmp_path: Path) -> None:
    """All workers make way, and those of the new program have their sockets."""
    async with (
        Upstream() as upstream,
        supervised(upstream.url, unix=None, **disk(tmp_path)) as process,
    ):
        await process.spread(4)
        process.command.send(signal.SIGUSR2)
        assert (await process.logged("sockets were inherited"))["ingestion"] == 1
        await process.spread(4)
        await upstream.until(lambda: len(upstream.delivered) == 8)
        process.command.send(signal.SIGTERM)
        assert await process.command.ended() == 0
