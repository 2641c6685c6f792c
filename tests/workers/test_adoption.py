"""Directories that more workers have left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.storage.directory import LockedDirectory, worker_directory
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.adoption import leftovers, needs_supervisor, remove_if_empty
from tests.support.snapshots import FULL

EMPTY = replace(FULL, lanes=(), dead_letters_wanted=0)


def settings(path: Path, kind: str = "disk", **more: Any) -> Settings:
    """Settings with a state directory."""
    section = (
        {"buffer": {"kind": "disk", "path": str(path)}}
        if kind == "disk"
        else {"dead_letters": {"path": str(path)}}
    )
    return Settings.parse({"upstream": {"url": "https://a.example.com"}, **section, **more})


def left(path: Path, number: int) -> Path:
    """A directory as a worker with a disk buffer leaves it."""
    directory = worker_directory(path, number)
    (directory / "log").mkdir(parents=True)
    (directory / "aside").mkdir()
    for name in ("lock", "log/00000001.log", "dead-letters.db", "dead-letters.db-wal"):
        (directory / name).touch()
    return directory


def test_directories_beyond_the_last_worker_are_left_over(tmp_path: Path) -> None:
    """Those with a number that no worker has, and that hold a worker's files; a single process
    needs a supervisor then.
    """
    for number in (0, 1, 3):
        left(tmp_path, number)
    (tmp_path / "worker-9").mkdir()
    (tmp_path / "worker-x").mkdir()
    assert leftovers(settings(tmp_path), {}) == [1, 3]
    assert leftovers(settings(tmp_path, workers=2), {}) == [3]
    assert leftovers(settings(tmp_path, workers=4), {}) == []
    assert needs_supervisor(settings(tmp_path))


def test_nothing_is_left_where_nothing_is(tmp_path: Path) -> None:
    """A directory that isn't there yet holds nothing; one process is enough, two
    workers need a supervisor.
    """
    assert leftovers(settings(tmp_path / "none"), {}) == []
    assert not needs_supervisor(settings(tmp_path / "none"))
    assert needs_supervisor(settings(tmp_path / "none", workers=2))


def test_dead_letters_beside_a_memory_buffer_are_left_over_too(tmp_path: Path) -> None:
    """With a memory buffer it is the dead letters' directory that counts: the configured one, else
    the first default one that is there.
    """
    left(tmp_path / "forwarder", 2)
    assert leftovers(settings(tmp_path / "forwarder", "memory"), {}) == [2]
    alone = Settings.parse({"upstream": {"url": "https://a.example.com"}})
    assert leftovers(alone, {"STATE_DIRECTORY": str(tmp_path / "forwarder")}) == [2]


def test_an_empty_directory_is_removed(tmp_path: Path) -> None:
    """A directory of which the worker's last words say that it holds nothing goes, whole."""
    directory = left(tmp_path, 1)
    assert remove_if_empty(settings(tmp_path), {}, 1, EMPTY)
    assert not directory.exists()
    assert tmp_path.exists()


@pytest.mark.parametrize(
    "last", [FULL, replace(EMPTY, dead_letters_wanted=1)], ids=["events", "wanted letters"]
)
def test_a_directory_with_events_or_dead_letters_stays(tmp_path: Path, last: Snapshot) -> None:
    """As long as an event or a dead letter is in it, a directory stays."""
    directory = left(tmp_path, 1)
    assert not remove_if_empty(settings(tmp_path), {}, 1, last)
    assert (directory / "log" / "00000001.log").exists()


@pytest.mark.parametrize("file", ["aside/00000001.log", "notes.txt"])
def test_a_directory_with_anything_else_stays(tmp_path: Path, file: str) -> None:
    """What was quarantined, and what forwarder doesn't know, keeps a directory from
    being removed.
    """
    directory = left(tmp_path, 1)
    (directory / file).touch()
    assert not remove_if_empty(settings(tmp_path), {}, 1, EMPTY)
    assert (directory / "log" / "00000001.log").exists()


def test_a_directory_in_use_stays(tmp_path: Path) -> None:
    """A directory that another process has is left alone."""
    directory = left(tmp_path, 1)
    lock = LockedDirectory.acquire(directory, "buffer.path")
    assert not remove_if_empty(settings(tmp_path), {}, 1, EMPTY)
    lock.release()
    assert directory.exists()
