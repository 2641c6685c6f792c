"""A directory that one process at a time may write in.

The lock is `flock` on a file of its own, so that readers (`forwarder buffer ls`) need none, and the kernel lets go of it when the process
dies, however it does.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from forwarder.core.errors import ConfigurationError

LOCK: Final = "lock"
OWNER_ONLY: Final = 0o700


class Locked(ConfigurationError):
    """Another process has the directory."""

    code = "locked"


class LockedDirectory:
    """The lock of a directory, from `acquire` to `release`."""

    def __init__(self, path: Path, descriptor: int, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        """Whether nothing can be written there: the file system says so."""
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, key: str) -> LockedDirectory:
        """Make the directory if it isn't there, and take its lock. `key` is the setting that names it.

        Raises `Locked` if another process has it, `ConfigurationError` if it can't be made or used.
        """
        try:
            path.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
            descriptor, read_only = _open(path / LOCK)
        except OSError as error:
            raise _unusable(path, key, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise _unusable(path, key, error) from error
            raise Locked(
                f"{key}: {path} is in use by another forwarder" + (f" (process {holder})" if holder else ""),
                hint=f"Stop that one, or give this one a directory of its own with `{key}`.",
            ) from error
        if not read_only:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return cls(path, descriptor, read_only=read_only)

    def release(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def _open(lock: Path) -> tuple[int, bool]:
    """The lock file, and whether it could only be opened for reading."""
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), False
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not lock.exists():
            raise
    return os.open(lock, os.O_RDONLY | os.O_CLOEXEC), True


def is_locked(path: Path) -> bool:
    """Whether a process has the directory's lock now."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _unusable(path: Path, key: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{key}: {path} can't be used: {error.strerror or error}",
        hint=f"Set `{key}` to a directory that this user may write in.",
    )
