"""Directories and files that hold events and project keys: only their owner may use them, whatever the umask.

A directory that is there already is used only if nobody else can have prepared it: it is a directory and no symbolic link, it belongs to
this user, to root or to the owner of the directory that it is in, and no other users may write in it. The directory that a user names
is not checked so: where it leads, and whose it is, is the user's decision. What follows below it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_NEW: Final = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class NotPrivate(OSError):
    """A directory or file that another user may have prepared; `strerror` says what is wrong with it."""


def make_directories(path: Path, own: int = 0) -> None:
    """Make a directory, and those above it that are missing. The last `own` parts of the path are checked if they are there.

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


def make_directory(path: Path) -> None:
    """Make a directory of our own in one that is there. Raises `OSError`, and `NotPrivate` if another user may have prepared it."""
    try:
        _make(path)
    except OSError:  # which one it is for a directory that is there depends on the file system
        if not path.is_symlink() and not path.exists():
            raise
        _check(path)


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a file, which is made if it isn't there. A symbolic link is an error (`OSError`)."""
    try:
        descriptor = os.open(path, flags | _NEW | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags | _NEW, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)  # the umask may have taken something away
    return descriptor


def make_file(path: Path) -> None:
    """Make an empty file, unless there is one: what opens it next by its name gives it no other permissions."""
    with contextlib.suppress(FileExistsError):
        os.close(open_file(path, os.O_RDWR | os.O_EXCL))


def _make(path: Path) -> None:
    path.mkdir(mode=DIRECTORY_MODE)
    path.chmod(DIRECTORY_MODE)


def _check(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise NotPrivate(errno.ELOOP, "it is a symbolic link, which another user may have prepared; remove it", str(path))
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if found.st_uid not in {os.geteuid(), 0, path.parent.stat().st_uid}:
        raise NotPrivate(errno.EPERM, f"it belongs to another user (uid {found.st_uid}); remove it, or change its owner", str(path))
    # A volume's group (fsGroup in Kubernetes) may write in all of it: that is a group of this process.
    others = stat.S_IWOTH if found.st_gid in {os.getegid(), *os.getgroups()} else stat.S_IWOTH | stat.S_IWGRP
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise NotPrivate(errno.EPERM, "other users may write in it; make it private (chmod 700), if all in it is yours", str(path))
