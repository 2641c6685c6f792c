"""Waiting for changes in directories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forwarder.core.clock import SystemClock
from forwarder.sources.logs.watching import Watch
from tests.support.clock import FakeClock, settle


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    """A watch whose poll interval doesn't end."""
    made = Watch("logs", SystemClock(), 30.0)
    yield made
    await made.close()


async def _changed(watch: Watch, folder: Path, name: str) -> set[str]:
    """Write until the directory is watched and the change is reported."""
    changed_paths: set[str] = set()
    async with asyncio.timeout(60):
        while str(folder / name) not in changed_paths:
            with (folder / name).open("a") as file:
                file.write("line\n")
            waiting = asyncio.create_task(watch.changes({str(folder), str(folder / "absent")}))
            await asyncio.wait([waiting], timeout=0.1)
            watch.wake()
            changed_paths |= await waiting or set()
    return changed_paths


async def test_a_change_is_reported(watch: Watch, tmp_path: Path) -> None:
    """By the path that changed; directories that don't exist don't matter."""
    assert await _changed(watch, tmp_path, "app.log") == {str(tmp_path / "app.log")}


async def test_changes_are_not_logged(
    watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that grows doesn't make our own log grow, which may be in a directory that
    is watched.
    """
    with caplog.at_level(logging.INFO):
        await _changed(watch, tmp_path, "app.log")
    assert not [record for record in caplog.records if record.name.startswith("watchfiles")]


async def test_other_directories(watch: Watch, tmp_path: Path) -> None:
    """The directories may change from one wait to the next."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    await _changed(watch, tmp_path / "a", "app.log")
    assert await _changed(watch, tmp_path / "b", "app.log") == {str(tmp_path / "b" / "app.log")}


async def test_every_file_is_polled_after_the_interval(tmp_path: Path) -> None:
    """After the poll interval everything has to be looked at, even if something wakes the wait
    before, again and again.
    """
    clock = FakeClock()
    watch = Watch("logs", clock, 1.0)
    waiting = asyncio.create_task(watch.changes(()))
    await clock.advance(0.5)
    watch.wake()
    assert await waiting == set()
    waiting = asyncio.create_task(watch.changes(()))
    await clock.advance(0.5)
    assert await waiting is None
    waiting = asyncio.create_task(watch.changes(()))
    await clock.advance(0.9)
    assert not waiting.done()
    waiting.cancel()
    await settle()
    await watch.close()


async def test_directories_that_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is logged once; polling continues, and it is tried again after a minute."""
    clock = FakeClock()
    attempts = 0

    def fail(_name: str) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(28, "No space left on device (os error 28) about [...]")

    monkeypatch.setattr("forwarder.sources.logs.watching.import_module", fail)
    watch = Watch("logs", clock, 1.0)
    with capture_logs() as logged:
        for _ in range(130):
            waiting = asyncio.create_task(watch.changes({str(tmp_path)}))
            await settle()
            await watch._ended.wait()
            await settle()
            await clock.advance(1.0)
            assert await waiting is None
    assert attempts == 3
    assert [entry["log_level"] for entry in logged] == ["warning"]
    assert logged[0]["why"] == "No space left on device"
    await watch.close()
