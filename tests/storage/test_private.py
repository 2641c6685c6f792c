"""Directories and files for their owner alone."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.storage.directory import LockedDirectory
from forwarder.storage.private import (
    NotPrivate,
    atomic_file,
    make_directories,
    make_directory,
    make_file,
    open_file,
)
from tests.support.cases import cases

UMASKS = ("0o000", "0o022", "0o077", "0o277", "0o777")
MAKE = """
import os, sys
from pathlib import Path
from forwarder.storage.directory import LockedDirectory
from forwarder.storage.private import atomic_file, make_file
os.umask(int(sys.argv[2], 8))
state = Path(sys.argv[1])
LockedDirectory.acquire(state / "deep" / "state" / "worker-0", "buffer.path", own=1).release()
make_file(state / "deep" / "state" / "worker-0" / "database")
with atomic_file(state / "deep" / "state" / "worker-0" / "whole", replace=False) as file:
    file.write(b"text")
"""


def mode(path: Path) -> int:
    """The permissions of what is there, whether or not it is a link."""
    return stat.S_IMODE(path.lstat().st_mode)


@cases("umask", UMASKS)
def test_the_umask_changes_nothing(tmp_path: Path, umask: str) -> None:
    """Each directory that is made is 0700 and each file 0600: the missing ones above as well, and
    with any umask.
    """
    # a umask is a process's
    subprocess.run([sys.executable, "-c", MAKE, str(tmp_path), umask], check=True, timeout=180)
    modes = {str(path.relative_to(tmp_path)): oct(mode(path)) for path in tmp_path.rglob("*")}
    directories = dict.fromkeys(("deep", "deep/state", "deep/state/worker-0"), "0o700")
    assert modes == directories | {
        f"deep/state/worker-0/{name}": "0o600" for name in ("lock", "database", "whole")
    }


def test_a_prepared_link_is_rejected(tmp_path: Path) -> None:
    """Nothing is made where a symbolic link in a state directory leads; the error
    names the link.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "worker-0"
    link.symlink_to(elsewhere)
    with pytest.raises(
        ConfigurationError, match=rf"buffer\.path: {link} can't be used: it is a symbolic link"
    ):
        LockedDirectory.acquire(link, "buffer.path", own=1)
    assert list(elsewhere.iterdir()) == []


def test_a_link_to_nothing_is_rejected(tmp_path: Path) -> None:
    """A symbolic link whose target is missing isn't followed either."""
    (tmp_path / "worker-0").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotPrivate, match="symbolic link"):
        make_directory(tmp_path / "worker-0")
    assert not (tmp_path / "nowhere").exists()


def test_a_link_further_up_is_rejected(tmp_path: Path) -> None:
    """Each part that is ours is checked, not only the last one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "imports").symlink_to("elsewhere")
    with pytest.raises(NotPrivate, match="symbolic link"):
        make_directories(tmp_path / "imports" / "job", own=2)
    make_directories(tmp_path / "imports" / "job", own=1)


def test_the_users_own_link_is_followed(tmp_path: Path) -> None:
    """A state directory that is a symbolic link is the user's choice."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to("disk")
    LockedDirectory.acquire(tmp_path / "state" / "worker-0", "buffer.path", own=1).release()
    assert (tmp_path / "disk" / "worker-0" / "lock").is_file()


@cases(("permissions", "ok"), [(0o700, True), (0o755, True), (0o777, False), (0o1777, True)])
def test_a_directory_that_others_may_write_in_is_rejected(
    tmp_path: Path, permissions: int, *, ok: bool
) -> None:
    """Other users could have put anything there, unless it is sticky."""
    directory = tmp_path / "worker-0"
    directory.mkdir()
    directory.chmod(permissions)
    if ok:
        make_directory(directory)
    else:
        with pytest.raises(NotPrivate, match="other users may write in it"):
            make_directory(directory)


def test_a_volumes_group_may_write(tmp_path: Path) -> None:
    """An orchestrator that lets a group of this process write in all of a volume doesn't stop the
    next start.
    """
    directory = tmp_path / "worker-0"
    directory.mkdir()
    os.chown(directory, -1, os.getegid())
    directory.chmod(0o2770)
    make_directory(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_another_users_directory_is_rejected(tmp_path: Path) -> None:
    """A directory that another user made is not used; one whose owner has the state directory as
    well is.
    """
    directory = tmp_path / "worker-0"
    directory.mkdir()
    os.chown(directory, 12345, -1)
    with pytest.raises(NotPrivate, match=r"another user \(uid 12345\)"):
        make_directory(directory)
    os.chown(tmp_path, 12345, -1)
    make_directory(directory)


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    """A file is not a directory."""
    (tmp_path / "worker-0").touch()
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "worker-0")


def test_a_linked_file_is_not_opened(tmp_path: Path) -> None:
    """A file that is a symbolic link isn't written through."""
    (tmp_path / "target").write_text("untouched")
    (tmp_path / "pace").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        open_file(tmp_path / "pace", os.O_RDWR | os.O_TRUNC)
    assert (tmp_path / "target").read_text() == "untouched"


def test_a_file_that_is_there_keeps_its_content(tmp_path: Path) -> None:
    """Making a file that is there does nothing."""
    (tmp_path / "file").write_text("text")
    make_file(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "text"


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Until then nothing has its name; then it can be read by this user alone,
    and nothing else is left.
    """
    target = tmp_path / "out"
    with atomic_file(target, replace=False) as file:
        file.write(b"all of it")
        assert not target.exists()
    assert target.read_bytes() == b"all of it"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_what_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    """An exception in the block leaves the directory as it was."""

    def write_some() -> None:
        with atomic_file(tmp_path / "out", replace=True) as file:
            file.write(b"half of i")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_some()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    """One that is there, or that someone made meanwhile, stays."""
    target = tmp_path / "out"
    with (
        pytest.raises(ConfigurationError, match="already exists") as caught,
        atomic_file(target, replace=False),
    ):
        target.write_text("somebody else's")
    assert "--force" in caught.value.hint
    with (
        pytest.raises(ConfigurationError, match="already exists"),
        atomic_file(target, replace=False),
    ):
        pytest.fail("it doesn't even begin")
    assert target.read_text() == "somebody else's"
    with atomic_file(target, replace=True) as file:
        file.write(b"ours")
    assert target.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    """The error names the file."""
    with (
        pytest.raises(ConfigurationError, match=r"none/out can't be written: No such file"),
        atomic_file(tmp_path / "none" / "out", replace=False),
    ):
        pytest.fail("it doesn't even begin")


def test_names_of_new_directories_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is synced in the directory that holds it, unless that may not be listed."""
    synced = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()),
    )
    make_directories(tmp_path / "state" / "buffer")
    make_directory(tmp_path / "state" / "buffer" / "worker-0")
    assert synced == [tmp_path, tmp_path / "state", tmp_path / "state" / "buffer"]

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    make_directory(tmp_path / "unlisted")
    assert (tmp_path / "unlisted").is_dir()


@cases("make", [make_directories, make_directory])
def test_a_name_that_cannot_be_synced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """A disk that makes the directory, and not its name durable, hasn't made it."""

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        make(tmp_path / "state")
