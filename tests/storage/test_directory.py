"""The lock of a state directory."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from forwarder.storage.directory import LOCK, Locked, LockedDirectory, is_locked


def test_a_full_disk_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is buffered there is delivered, and that makes room; only who holds the lock isn't
    known then.
    """

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    lock = LockedDirectory.acquire(tmp_path / "worker-0", "buffer.path")
    assert is_locked(lock.path)
    with pytest.raises(Locked, match=r"is in use by another forwarder$"):
        LockedDirectory.acquire(lock.path, "buffer.path")
    lock.release()


def test_the_process_that_holds_a_lock_is_named(tmp_path: Path) -> None:
    """By its number, whatever the file said before."""
    (tmp_path / LOCK).write_text("1234567890\n")
    lock = LockedDirectory.acquire(tmp_path, "buffer.path")
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    with pytest.raises(Locked, match=rf"\(process {os.getpid()}\)"):
        LockedDirectory.acquire(tmp_path, "buffer.path")
    lock.release()
    assert not is_locked(tmp_path)
