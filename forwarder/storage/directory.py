"""A state directory (`buffer.path`, `dead_letters.path`): where things are in it, and the lock
that one process at a time holds.

`<path>/worker-<n>/`: `lock`, the log's segments in `log/`, what could not be read in `aside/`, and
`dead-letters.db`. Of a destination with a name it is `<path>/worker-<n>-<name>/`.

The lock is `flock` on a file of its own, so that readers (`forwarder buffer ls`) need none, and
the kernel releases it when the process dies, however it does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.users import user_name
from forwarder.storage.private import NotPrivate, make_directories, open_file

LOCK: Final = "lock"
LOG: Final = "log"
ASIDE: Final = "aside"
DEAD_LETTERS: Final = "dead-letters.db"

_WORKER: Final = re.compile(r"worker-(\d{1,4})(?:-([a-z0-9][a-z0-9_-]*))?")


class Locked(ConfigurationError):
    """Another process holds the lock."""

    code = "locked"


class LockedDirectory:
    """The lock of a directory, from `acquire` to `release`."""

    def __init__(self, path: Path, descriptor: int, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        """Whether nothing can be written there: the file system says so."""
        self._descriptor = descriptor

    @classmethod
    def acquire(
        cls, path: Path, key: str, own: int = 0, inherited: int | None = None
    ) -> LockedDirectory:
        """Create the directory if it is missing, and lock it. `key` is the setting that names it.

        The last `own` parts of the path are not of the setting: they are checked
        (`forwarder.storage.private`). `inherited`: a descriptor that holds this lock already, from
        before a restart in place. Raises `Locked` if another process holds the lock,
        `ConfigurationError` if the directory can't be created or used.
        """
        try:
            make_directories(path, own)
            descriptor, read_only = (
                _open(path / LOCK) if inherited is None else _adopted(path / LOCK, inherited)
            )
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
                f"{key}: {path} is in use by another forwarder"
                + (f" (process {holder})" if holder else ""),
                hint=f"Stop that one, or give this one a directory of its own with `{key}`.",
            ) from error
        if not read_only:
            _note_holder(descriptor)
        return cls(path, descriptor, read_only=read_only)

    def duplicate(self) -> int:
        """Another descriptor of the lock, with which it outlives `release`."""
        return os.dup(self._descriptor)

    def release(self) -> None:
        """Release the lock, unless a duplicate of it is open."""
        os.close(self._descriptor)


def _open(lock: Path) -> tuple[int, bool]:
    """The lock file, and whether it could only be opened for reading."""
    try:
        return open_file(lock, os.O_RDWR), False
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not lock.exists():
            raise
    return os.open(lock, os.O_RDONLY | os.O_CLOEXEC), True


def _note_holder(descriptor: int) -> None:
    """Write the process's number into the lock file, for people: in place, and not at all where the
    disk is full. The lock holds without it.
    """
    number = b"%d\n" % os.getpid()
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, number, 0)
        os.ftruncate(descriptor, len(number))


def _adopted(lock: Path, inherited: int) -> tuple[int, bool]:
    """An inherited descriptor, if it is still this lock file's; else a new one."""
    if lock.exists() and os.path.samestat(os.fstat(inherited), lock.stat()):
        return inherited, fcntl.fcntl(inherited, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    os.close(inherited)
    return _open(lock)


def is_locked(path: Path) -> bool:
    """Whether a process holds the directory's lock."""
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
    where = error.filename if isinstance(error, NotPrivate | IsADirectoryError) else path
    hint = f"Set `{key}` to a directory that this user may write in."
    if isinstance(error, IsADirectoryError):
        hint = "Move it away: a file has that name."
    elif isinstance(error, PermissionError):
        hint = (
            f"Set `{key}` to a directory that user {user_name()} may write in, or run "
            "forwarder as the user that it belongs to."
        )
    elif error.errno == errno.ENOSPC:
        hint = f"Free space there, or set `{key}` to a directory on another file system."
    return ConfigurationError(f"{key}: {where} can't be used: {error_text(error)}", hint=hint)


def worker_directory(path: Path, number: int, destination: str = "") -> Path:
    """The directory of worker `number` for a destination; empty: the one without a name."""
    return path / (f"worker-{number}-{destination}" if destination else f"worker-{number}")


def worker_directories(path: Path) -> dict[tuple[int, str], Path]:
    """The existing workers' directories by number and destination."""
    matches = [
        (match, entry)
        for entry in path.iterdir()
        if (match := _WORKER.fullmatch(entry.name)) and entry.is_dir()
    ]
    return dict(sorted(((int(match[1]), match[2] or ""), entry) for match, entry in matches))


def name_directory(
    path: Path, number: int, destination: str, key: str, inherited: int | None = None
) -> None:
    """Make the worker's directory without a name that of a destination, unless that has one. For
    `LockedDirectory.acquire`'s parameters and errors see there.
    """
    old = worker_directory(path, number)
    new = worker_directory(path, number, destination)
    if new.exists() or not old.is_dir():
        if inherited is not None:
            os.close(inherited)
        return
    lock = LockedDirectory.acquire(old, key, own=1, inherited=inherited)
    try:
        old.rename(new)
    except OSError as error:
        raise _unusable(old, key, error) from error
    finally:
        lock.release()


def state_directories(environment: Mapping[str, str], *, is_root: bool) -> Iterator[Path]:
    """Where this user's daemons keep their state, by default: the best first."""
    if given := environment.get("STATE_DIRECTORY"):
        yield Path(given.split(":")[0])
    state_home = environment.get("XDG_STATE_HOME")
    if state_home:
        yield Path(state_home) / "forwarder"
    elif is_root:
        yield Path("/var/lib/forwarder")
    elif home := environment.get("HOME"):
        yield Path(home) / ".local/state/forwarder"


def worker_number(directory: Path) -> int | None:
    """The number of the worker that owns the directory, by its name; None if
    the name is no worker's.
    """
    match = _WORKER.fullmatch(directory.resolve().name)
    return int(match[1]) if match else None


def destination_of(directory: Path) -> str:
    """The destination that the directory belongs to, by its name; empty if it has none."""
    match = _WORKER.fullmatch(directory.resolve().name)
    return (match[2] or "") if match else ""
