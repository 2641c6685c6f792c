"""Directories and files that hold events and project keys: only their owner may use them, whatever
the umask.

An existing directory is used only if no other user can have prepared it: it is a directory and no
symbolic link, it belongs to this user, to root or to the owner of the directory that it is in, and
no other users may write in it. The directory that a user names is not checked: where it leads, and
who owns it, is the user's decision. Those below it are.

`atomic_file` writes a file that exists complete or not at all: it is written under another name,
made durable, and then renamed. `locked_file` opens a file that several processes change in place,
one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_NEW: Final = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class NotPrivate(OSError):
    """A directory or file that another user may have prepared; `strerror`
    says what is wrong with it.
    """


def make_directories(path: Path, own: int = 0) -> None:
    """Create a directory and its missing parents. The last `own` parts of the path are checked if
    they exist.

    Raises `OSError`, and `NotPrivate` for a part that another user may have prepared.
    """
    if own:
        make_directories(path.parent, own - 1)
        make_directory(path)
    elif not path.is_dir():
        if path.parent != path:
            make_directories(path.parent)
        try:
            _make(path)
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            sync_directory(path.parent)  # without its name all in it would be lost


def make_directory(path: Path) -> None:
    """Create a private directory in an existing one. Raises `OSError`, and `NotPrivate` if another
    user may have prepared it.
    """
    try:
        _make(path)
    except OSError:  # which one it is for a directory that is there depends on the file system
        if not path.is_symlink() and not path.exists():
            raise
        _check(path)
    else:
        sync_directory(path.parent)


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file, which is created if it is missing. A symbolic link
    is an error (`OSError`).
    """
    try:
        descriptor = os.open(path, flags | _NEW | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags | _NEW, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)  # the umask may have removed some
    return descriptor


def make_file(path: Path) -> None:
    """Create an empty file if it is missing: a library that opens it next by its
    name keeps its permissions.
    """
    with contextlib.suppress(FileExistsError):
        os.close(open_file(path, os.O_RDWR | os.O_EXCL))


@contextlib.contextmanager
def atomic_file(target: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `target`, durably, when the block ends without an
    exception: readers see all of it or nothing.

    Only this user can read it. Raises `ConfigurationError` if it can't be written, or if `target`
    exists and `replace` isn't set.
    """
    if not replace and target.exists():
        raise _exists(target)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        descriptor = open_file(part, os.O_WRONLY | os.O_EXCL)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with open(descriptor, "wb", buffering=1 << 20) as file:  # noqa: PTH123 - a descriptor
            yield file
            file.flush()
            os.fsync(file.fileno())
        _publish(part, target, replace=replace)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """A descriptor to read and write a file, created if it is missing; no other process has it
    meanwhile. Blocks; raises OSError.
    """
    descriptor = open_file(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # which releases the lock


def sync_directory(directory: Path) -> None:
    """Make names in a directory durable. One that this user may write in, but not list, can't be
    opened for that, and is left to the system. Raises `OSError`.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    path.mkdir(mode=DIRECTORY_MODE)
    path.chmod(DIRECTORY_MODE)


def _check(path: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise NotPrivate(
            errno.ELOOP,
            "it is a symbolic link, which another user may have prepared; remove it",
            str(path),
        )
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if status.st_uid not in {os.geteuid(), 0, path.parent.stat().st_uid}:
        raise NotPrivate(
            errno.EPERM,
            f"it belongs to another user (uid {status.st_uid}); remove it, or change its owner",
            str(path),
        )
    # A volume's group (fsGroup in Kubernetes) may write in all of it: that is a group of this
    # process.
    others = (
        stat.S_IWOTH
        if status.st_gid in {os.getegid(), *os.getgroups()}
        else stat.S_IWOTH | stat.S_IWGRP
    )
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        raise NotPrivate(
            errno.EPERM,
            "other users may write in it; make it private (chmod 700), if all in it is yours",
            str(path),
        )


def _publish(part: Path, target: Path, *, replace: bool) -> None:
    if replace:
        part.replace(target)
    else:
        try:
            # unlike a rename, this fails if the file was created meanwhile
            target.hardlink_to(part)
        except FileExistsError:
            raise _exists(target) from None
    sync_directory(target.parent)


def _exists(target: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{target} already exists", hint="Name another file, or replace it with --force."
    )


def _unwritable(target: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{target} can't be written: {error_text(error)}",
        hint="Name a file in a directory with room.",
    )
