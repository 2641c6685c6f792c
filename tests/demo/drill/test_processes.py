"""The drill's processes: they are gone when their block ends; the probe asks a real sandbox, and
an address where nothing listens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from forwarder.core.clock import SystemClock
from forwarder.demo.demo import Ports, choose_ports
from forwarder.demo.drill import processes
from forwarder.demo.drill.processes import (
    ChildProcess,
    DrillFailed,
    DrillProbe,
    NoAnswer,
    child_process,
    pause,
)
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support.waiting import eventually

SANDBOX = ["sandbox", "--listen", "127.0.0.1:0"]


def alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def number(running: ChildProcess) -> int:
    """The number of its process."""
    return running._process.pid


async def listening(running: ChildProcess) -> None:
    """Return when it has said that it listens."""
    await eventually(lambda: "listening" in running.last_lines(), explain=running.last_lines)


@pytest.mark.slow
async def test_it_ends_with_its_block(tmp_path: Path) -> None:
    """A process that still runs is killed."""
    async with child_process(SANDBOX, tmp_path / "log") as running:
        await listening(running)
        assert running.code is None
        assert alive(number(running))
    assert running.code == -9
    assert not alive(number(running))


@pytest.mark.slow
async def test_it_ends_with_a_cancellation(tmp_path: Path) -> None:
    """Cancelling the block kills it too."""
    started: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with child_process(SANDBOX, tmp_path / "log") as running:
            started.set_result(running)
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    running = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(number(running))


@pytest.mark.slow
async def test_an_orderly_end_has_its_exit_code(tmp_path: Path) -> None:
    """SIGTERM lets it finish, and its exit code is reported; killing it afterwards
    changes nothing.
    """
    async with child_process(SANDBOX, tmp_path / "log") as running:
        await listening(running)
        assert await running.stop() == 0
        await running.kill()
    assert running.code == 0


@pytest.mark.slow
async def test_an_unexpected_exit_is_reported_with_its_output(tmp_path: Path) -> None:
    """Waiting for a process that has ended is an error that quotes what it said."""
    async with child_process(
        ["run", "--config", str(tmp_path / "none.yaml")], tmp_path / "log"
    ) as running:
        await eventually(lambda: running.code is not None)
        with pytest.raises(DrillFailed, match=r"(?s)`forwarder run` ended with 2:\n.*none\.yaml"):
            await pause(SystemClock(), running, 0.0)


@pytest.mark.slow
async def test_settings_of_the_surroundings_dont_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FORWARDER_ variable of the user's own daemon doesn't change the drill's."""
    monkeypatch.setenv("FORWARDER_UPSTREAM__URL", "https://h.example.com")
    monkeypatch.setenv("FORWARDER_BATCH__MAX_AGE", "no duration")
    file = tmp_path / "forwarder.yaml"
    file.write_text("log: {level: info}\n")
    async with child_process(["run", "--config", str(file)], tmp_path / "log") as running:
        await eventually(lambda: running.code is not None)
        assert "upstream.url" in running.last_lines()
        assert "max_age" not in running.last_lines()


KEY = "phc_abcdefghijklmnop"


class Runs:
    """A process that runs."""

    name = "run"
    code = None


RUNNING = cast(ChildProcess, Runs())


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def test_all_events_are_seen_over_several_pages(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, each uuid is found; conflicts are counted."""
    monkeypatch.setattr(processes, "PAGE", 3)
    ports = choose_ports(0)
    events = [
        {"event": "seen", "distinct_id": "ann", "uuid": f"01890000-0000-4000-8000-{number:012x}"}
        for number in range(10)
    ]
    changed = {**events[4], "event": "changed"}
    async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox:
        probe = DrillProbe(client, ports, SystemClock())
        assert await probe.stored() == frozenset()
        for batch in (events, [changed]):
            async with client.post(
                f"{sandbox.url}/batch/", json={"api_key": KEY, "batch": batch}
            ) as response:
                assert response.status == 200
        assert await probe.stored() == {event["uuid"] for event in events}
        assert await probe.conflicts() == 1


async def test_an_unanswered_probe_times_out(client: aiohttp.ClientSession) -> None:
    """That is an error that names the address; of flags it is an answer without a status."""
    probe = DrillProbe(client, choose_ports(0), SystemClock())
    with pytest.raises(NoAnswer, match=f"{probe.admin}/status doesn't answer"):
        await probe.status()
    with pytest.raises(NoAnswer, match=f"{probe.sandbox}/sandbox/summary doesn't answer"):
        await probe.conflicts()
    assert (await probe.flags(KEY)).status is None


async def test_waiting_ends_with_the_limit(client: aiohttp.ClientSession) -> None:
    """A process that never comes up is an error once the limit is over; one that is up is seen."""
    ports = choose_ports(0)
    probe = DrillProbe(client, ports, SystemClock(), wait_seconds=0.1)
    with pytest.raises(NoAnswer):
        await probe.wait_until_up(RUNNING, probe.sandbox, "/livez")
    async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")):
        await probe.wait_until_up(RUNNING, probe.sandbox, "/livez")


async def test_an_answer_that_is_no_answer(client: aiohttp.ClientSession) -> None:
    """What the sandbox refuses is reported with its code."""
    async with Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox:
        port = int(sandbox.url.rpartition(":")[2])
        probe = DrillProbe(client, Ports(port, port, port), SystemClock())
        probe.sandbox = f"{sandbox.url}/elsewhere"
        with pytest.raises(NoAnswer, match="the sandbox answers 404"):
            await probe.conflicts()
