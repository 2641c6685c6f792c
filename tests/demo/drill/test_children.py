"""The drill's processes: whatever happens, they are gone when their block ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from forwarder.core.clock import SystemClock
from forwarder.demo.drill.children import Child, DrillFailed, child, pause
from tests.support.waiting import eventually

SANDBOX = ["sandbox", "--listen", "127.0.0.1:0"]


def alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def number(running: Child) -> int:
    """The number of its process."""
    return running._process.pid


async def listening(running: Child) -> None:
    """Return when it has said that it listens."""
    await eventually(lambda: "listening" in running.words(), told=running.words)


@pytest.mark.slow
async def test_it_ends_with_its_block(tmp_path: Path) -> None:
    """A process that still runs is killed."""
    async with child(SANDBOX, tmp_path / "log") as running:
        await listening(running)
        assert running.code is None
        assert alive(number(running))
    assert running.code == -9
    assert not alive(number(running))


@pytest.mark.slow
async def test_it_ends_with_a_cancellation(tmp_path: Path) -> None:
    """Cancelling the block kills it too."""
    started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with child(SANDBOX, tmp_path / "log") as running:
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
    """SIGTERM lets it finish, and its exit code is told; killing it afterwards changes nothing."""
    async with child(SANDBOX, tmp_path / "log") as running:
        await listening(running)
        assert await running.stop() == 0
        await running.kill()
    assert running.code == 0


@pytest.mark.slow
async def test_one_that_ends_unasked_is_told_with_its_words(tmp_path: Path) -> None:
    """Waiting for a process that has ended is an error that quotes what it said."""
    async with child(["run", "--config", str(tmp_path / "none.yaml")], tmp_path / "log") as running:
        await eventually(lambda: running.code is not None)
        with pytest.raises(DrillFailed, match=r"(?s)`forwarder run` ended with 2:\n.*none\.yaml"):
            await pause(SystemClock(), running, 0.0)


@pytest.mark.slow
async def test_settings_of_the_surroundings_dont_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FORWARDER_ variable of the user's own daemon doesn't change the drill's."""
    monkeypatch.setenv("FORWARDER_UPSTREAM__URL", "https://h.example.com")
    monkeypatch.setenv("FORWARDER_BATCH__MAX_AGE", "no duration")
    file = tmp_path / "forwarder.yaml"
    file.write_text("log: {level: info}\n")
    async with child(["run", "--config", str(file)], tmp_path / "log") as running:
        await eventually(lambda: running.code is not None)
        assert "upstream.url" in running.words()
        assert "max_age" not in running.words()
