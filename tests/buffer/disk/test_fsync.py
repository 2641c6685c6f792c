"""What was acknowledged is on the disk: shown on a disk that forgets what wasn't synced, and by
the system calls of a real daemon.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from forwarder.core.errors import Backpressure
from forwarder.core.event import NO_IDS, Chunk, Lane
from tests.support.disk import DiskRig, LossyDisk
from tests.support.waiting import LIMIT

LANE: Final = Lane("phc_syncedsynced1234")


class HeldCallback:
    """A callback that waits until events are held."""

    def __init__(self) -> None:
        self.answers: list[Backpressure | None] = []

    def __call__(self, error: Backpressure | None) -> None:
        self.answers.append(error)


def acknowledged_and_found(directory: Path, *, syncs: bool) -> tuple[set[bytes], set[bytes]]:
    """Offer events until the power goes; those that were acknowledged, and those
    that are there afterwards.
    """
    rig = DiskRig(directory, disk=LossyDisk(syncs=syncs))
    acknowledged: set[bytes] = set()
    for number in range(30):
        event = b'{"event":"%d","p":"%b"}' % (number, b"x" * 9000)
        callback = HeldCallback()
        rig.buffer.offer([Chunk(LANE, event, 1, NO_IDS, 0.0)], callback)
        if number % 3:  # others wait for their group when the power goes
            rig.committer.pump()
        acknowledged |= {event} if callback.answers == [None] else set()
    rig.crash()
    surviving = set(rig.events(LANE))
    rig.abandon()
    return acknowledged, surviving


def test_nothing_is_acknowledged_in_files_that_were_removed(tmp_path: Path) -> None:
    """Someone deletes the log under a running daemon: what is written then would be gone with the
    process, so it isn't taken.
    """
    rig = DiskRig(tmp_path / "worker-0")
    shutil.rmtree(rig.log_directory)
    callback = HeldCallback()
    rig.buffer.offer([Chunk(LANE, b'{"event":"x"}', 1, NO_IDS, 0.0)], callback)
    rig.committer.pump()
    assert [error is None for error in callback.answers] == [False]
    assert rig.buffer.statistics().write_error
    rig.abandon()


def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """All of it is there when only synced bytes are."""
    acknowledged, surviving = acknowledged_and_found(tmp_path / "worker-0", syncs=True)
    assert len(acknowledged) > 15
    assert acknowledged <= surviving


def test_without_syncing_a_power_cut_loses_events(tmp_path: Path) -> None:
    """The same with syncing turned off loses events: the test above would notice."""
    acknowledged, surviving = acknowledged_and_found(tmp_path / "worker-0", syncs=False)
    assert len(acknowledged) > 15
    assert acknowledged - surviving


def _environment(path: Path) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
    }
    return inherited | {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(path),
        "FORWARDER_BUFFER__ACK": "disk",
        "FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9",
        "FORWARDER_UPSTREAM__VERIFY_KEYS": "false",
        "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
        "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
        "FORWARDER_LOG__FORMAT": "json",
        "FORWARDER_SHUTDOWN__DRAIN_TIMEOUT": "0s",
    }


async def _traced(strace: str, trace: Path, path: Path) -> None:
    """Run a daemon under strace, send it one event, and end it."""
    calls = "trace=fdatasync,fsync,pwritev,pwritev2,pwrite64,write,writev,sendto,sendmsg"
    process = await asyncio.create_subprocess_exec(
        strace,
        "-f",
        "-s",
        "4000",
        "-o",
        str(trace),
        "-e",
        calls,
        sys.executable,
        "-m",
        "forwarder",
        "run",
        env=_environment(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT * 2):
            await _send_one(await _address(process.stdout))
    finally:
        for child in _children(process.pid):
            os.kill(child, signal.SIGKILL)
        await process.communicate()


async def _address(output: asyncio.StreamReader | None) -> str:
    assert output is not None
    lines = []
    while line := (await output.readline()).decode():
        lines.append(line)
        if '"listening"' in line:
            return str(re.findall(r'"ingestion": ?\["([^"]+)"', line)[0])
    said = "".join(lines)
    if "ptrace" in said.lower():
        pytest.skip(f"strace may not trace here: {said.strip()}")
    raise AssertionError(said)


async def _send_one(address: str) -> None:
    body = {"api_key": LANE.api_key, "batch": [{"event": "the-traced-one", "distinct_id": "a"}]}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://{address}/batch/", json=body) as response,
    ):
        assert response.status == 200


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.exists() else []


@pytest.mark.slow
async def test_fdatasync_returns_before_the_answer_is_written(tmp_path: Path) -> None:
    """As the kernel sees it: the event's bytes are written, fdatasync of that file is called and
    returns, then 200 goes to the socket.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace isn't installed")
    trace = tmp_path / "trace"
    await _traced(strace, trace, tmp_path / "state")
    lines = trace.read_text("utf-8", "replace").splitlines()
    written = next(
        at for at, line in enumerate(lines) if "the-traced-one" in line and "pwrite" in line
    )
    answered = next(at for at, line in enumerate(lines) if "200 OK" in line and at > written)
    descriptor = lines[written].split("(", 1)[1].split(",", 1)[0]
    between = lines[written:answered]
    called = next(at for at, line in enumerate(between) if f"fdatasync({descriptor}" in line)
    returned = [
        line for line in between[called:] if "fdatasync" in line and line.rstrip().endswith("= 0")
    ]
    assert returned, "\n".join(line[:150] for line in between)
