"""Verified keys go to the state directory's file, and come from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.daemon.key_memory import REFRESH, KeyMemory
from forwarder.intake.lane_registry import KnownKeys
from forwarder.storage.key_file import KNOWN_KEYS, merge_keys, read_keys
from tests.support.clock import FakeClock
from tests.support.waiting import eventually


def stored(directory: Path) -> int:
    """How many keys the file has."""
    keys = read_keys(directory / KNOWN_KEYS)
    return 0 if keys is None else keys.count


async def test_a_verified_key_is_known_after_a_restart(tmp_path: Path) -> None:
    """It is written at once, not at the end; and known before the next run starts."""
    known = KnownKeys()
    memory = KeyMemory(known, tmp_path, FakeClock())
    known.verify("phc_early")
    memory.start()
    known.verify("phc_a")
    await eventually(lambda: stored(tmp_path) == 2)
    known.verify("phc_b")
    await eventually(lambda: stored(tmp_path) == 3)
    await memory.close()
    again = KnownKeys()
    memory = KeyMemory(again, tmp_path, FakeClock())
    assert all(key in again for key in ("phc_early", "phc_a", "phc_b"))
    assert again.protects
    await memory.close()


async def test_keys_verified_by_another_worker_are_learned(tmp_path: Path) -> None:
    """With the next look at the file."""
    clock = FakeClock()
    known = KnownKeys()
    memory = KeyMemory(known, tmp_path, clock)
    memory.start()
    await eventually(lambda: memory._timer is not None)
    merge_keys(tmp_path / KNOWN_KEYS, ["phc_other"])
    await clock.advance(REFRESH)
    await eventually(lambda: "phc_other" in known)
    await memory.close()


async def test_a_directory_that_can_not_be_written_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported once, and tried again."""
    place = tmp_path / "gone"
    clock = FakeClock()
    known = KnownKeys()
    memory = KeyMemory(known, place, clock)
    memory.start()
    known.verify("phc_a")
    for _ in range(3):
        await eventually(lambda: memory._timer is not None and memory._task is None)
        await clock.advance(REFRESH)
    assert "phc_a" in known
    assert capsys.readouterr().out.count("can't be remembered") == 1
    place.mkdir()
    await eventually(lambda: memory._task is None)
    await clock.advance(REFRESH)
    await eventually(lambda: stored(place) == 1)
    await memory.close()
