"""The end of a daemon that still holds events: on disk they wait for the next start, in memory
they become dead letters.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from forwarder.core.clock import SystemClock
from tests.end_to_end.test_process import DaemonProcess, daemon
from tests.support.commands import invoked
from tests.support.upstream import OK, Upstream, plain
from tests.support.waiting import eventually
from tests.support.whole import Whole, accepted, events


async def stopped(running: DaemonProcess) -> tuple[int, dict[str, Any], float]:
    """Stop a daemon: the exit code, what its last line says, and how long it took."""
    began = time.monotonic()
    running.command.send(signal.SIGTERM)
    code = await running.command.ended()
    took = time.monotonic() - began
    (last,) = [json.loads(line) for line in running.command.lines if '"event": "stopped"' in line]
    return code, last, took


async def test_a_backlog_on_disk_waits_for_the_next_start(tmp_path: Path) -> None:
    """With the upstream down nothing is waited for, whatever `shutdown.drain_timeout`; the next
    start says what it found, and delivers.
    """
    env = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(tmp_path),
        "FORWARDER_SHUTDOWN__DRAIN_TIMEOUT": "1h",
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    }
    async with Upstream(lambda _: plain(500)) as upstream:
        async with daemon(upstream.url, **env) as first:
            assert (await first.send(30))[0] == 200
            await upstream.until(lambda: bool(upstream.requests))
            code, last, _ = await stopped(first)
        assert (code, last["undelivered"], last["waiting"]) == (0, 0, 30)
        upstream.answer = lambda _: OK
        async with daemon(upstream.url, **env) as second:
            assert json.loads(await second.command.line("events wait on disk"))["found"] == 30
            await eventually(lambda: len(upstream.delivered) == 30)
            code, last, _ = await stopped(second)
        assert (code, last["waiting"]) == (0, 0)
        assert sorted(upstream.delivered) == sorted(f"e{number}" for number in range(30))


async def test_dead_letters_of_a_memory_buffer_can_be_replayed(tmp_path: Path) -> None:
    """What a drain leaves behind in memory becomes dead letters in a file, with exit code 1; the
    next daemon sends them on command.
    """
    env = {
        "FORWARDER_DEAD_LETTERS__PATH": str(tmp_path),
        "FORWARDER_SHUTDOWN__DRAIN_TIMEOUT": "100ms",
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
    }
    async with Upstream(lambda _: plain(500)) as upstream:
        async with daemon(upstream.url, **env) as first:
            assert (await first.send(30))[0] == 200
            code, last, _ = await stopped(first)
        assert (code, last["undelivered"]) == (1, 30)
        upstream.answer = lambda _: OK
        async with daemon(upstream.url, **env) as second:
            replayed = await invoked(
                "dead-letters",
                "replay",
                "--reason",
                "undelivered_at_exit",
                "--yes",
                "--path",
                str(tmp_path),
            )
            assert (replayed.code, replayed.out) == (0, "30 dead letters sent again\n")
            await eventually(lambda: len(upstream.delivered) == 30)
            assert (await invoked("audit", "--admin", second.admin)).code == 0
            assert (await stopped(second))[0] == 0
        assert sorted(upstream.delivered) == sorted(f"e{number}" for number in range(30))


async def test_a_drain_of_a_disk_buffer_delivers_what_it_can() -> None:
    """Within its time it delivers what isn't available yet, too; what is left then continues at the
    next start, none of it a dead letter.
    """
    sent = events(4000, padding=1000)
    batches = {"max_bytes": "300kB", "max_age": "1h"}
    async with Upstream() as upstream:
        await upstream.stop()
        disk = {"kind": "disk", "max_bytes": "32MiB"}
        async with Whole(
            upstream.url, SystemClock(), buffer=disk, batch=batches, window=1 << 20
        ) as whole:
            for start in range(0, len(sent), 500):
                await whole.take(sent[start : start + 500])
            whole.pipeline.stop_accepting()
            assert not await whole.pipeline.drain(0.05)
            await whole.restart()
            assert whole.left == []
            async with upstream:
                whole.pipeline.stop_accepting()
                assert await whole.pipeline.drain(20.0)
                assert accepted(upstream) == dict.fromkeys(sent, 1)
            await whole.restart()
            assert whole.total(lambda lane: lane.delivered) == len(sent)
