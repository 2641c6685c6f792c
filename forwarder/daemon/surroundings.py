"""What `config check` finds on this machine, as this user: directories that can't be written,
addresses that can't be listened on.

Nothing is created, and nothing stays open. What is the configuration's fault, or this user's, is a
problem; what may be different in a moment, such as a port that is in use, is advice.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from forwarder.config.conflicts import Conflict
from forwarder.config.settings import Settings
from forwarder.core.error_text import cannot_listen, error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.users import user_name
from forwarder.sources.http.sockets import bind_tcp, parse_listen
from forwarder.storage.directory import DEAD_LETTERS, LOCK, LOG, is_locked, worker_directories
from forwarder.telemetry.readable import size

_PROCESS = "forwarder"
_OWN = "nothing to do if it is this configuration's daemon, to be reloaded; "
"""Begins a hint about what a running forwarder has, which isn't to be stopped for a reload."""


def unusable_surroundings(settings: Settings) -> Iterator[Conflict]:
    """Directories and addresses that `run` could not use as this user."""
    for key, path in _directories(settings).items():
        yield from _unwritable(key, path)
    for key, listen in _addresses(settings).items():
        where = parse_listen(listen)
        if isinstance(where, Path):
            yield from _unusable_socket(key, where)
        elif (error := _bind_error(listen)) is not None and error.errno not in (
            errno.EADDRINUSE,
            errno.EACCES,
        ):
            yield _conflict(cannot_listen(key, listen, error))


def surrounding_risks(settings: Settings) -> Iterator[Conflict]:
    """What may be different in a moment, or with systemd's sockets: ports and directories in use,
    a full disk.
    """
    for key, listen in _addresses(settings).items():
        error = None if listen.startswith("unix:") else _bind_error(listen)
        if error is not None and error.errno in (errno.EADDRINUSE, errno.EACCES):
            conflict = _conflict(cannot_listen(key, listen, error))
            own = f"{_OWN}else " if f"({_PROCESS}) listens there" in conflict.message else ""
            yield Conflict(
                key,
                "is " + conflict.message.removeprefix("can't listen on "),
                own + conflict.hint,
            )
    for key, path in _directories(settings).items():
        if any(is_locked(lock) for lock in _workers(path)):
            yield Conflict(
                key,
                f"is {path}, in use by a forwarder",
                f"{_OWN}else stop it before another is started there",
            )
        yield from _too_small(key, path, settings)


def _directories(settings: Settings) -> dict[str, Path]:
    """The configured directories by their keys; the default one of dead letters isn't among them:
    another takes its place.
    """
    named = {
        "buffer.path": settings.buffer.path if settings.buffer.kind == "disk" else None,
        "dead_letters.path": settings.dead_letters.path,
    }
    return {key: path for key, path in named.items() if path is not None}


def _addresses(settings: Settings) -> dict[str, str]:
    return {
        "sources.http.listen": settings.sources.http.listen,
        "admin.listen": settings.admin.listen,
    }


def _workers(path: Path) -> list[Path]:
    try:
        return list(worker_directories(path).values())
    except OSError:
        return []


def _unwritable(key: str, path: Path) -> Iterator[Conflict]:
    """The directory, or what a daemon has left in it, can't be written; or it can't be made."""
    try:
        above = _nearest(path)
        if not above.is_dir():
            yield Conflict(key, f"{above} is a file, and no directory", f"set {key} to a directory")
            return
        inside = [
            worker / name for worker in _workers(path) for name in ("", LOCK, LOG, DEAD_LETTERS)
        ]
        for entry in (above, *[existing for existing in inside if existing.exists()]):
            if not os.access(
                entry, os.W_OK | (os.X_OK if entry.is_dir() else 0), effective_ids=True
            ):
                yield Conflict(
                    key,
                    _denied(entry, path),
                    (
                        f"give it to the user that forwarder runs as, or set {key} to another "
                        "directory"
                    ),
                )
                return
    except OSError as error:
        yield Conflict(
            key, f"{path} can't be used: {error_text(error)}", f"set {key} to another directory"
        )


def _denied(place: Path, path: Path) -> str:
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return f"{place} is on a file system that is mounted read-only"
    missing = "" if place == path or path in place.parents else f"{path} doesn't exist, and "
    return f"{missing}{place} can't be written by user {user_name()}"


def _nearest(path: Path) -> Path:
    """The path, or what exists above it."""
    return next(
        candidate for candidate in (path.absolute(), *path.absolute().parents) if candidate.exists()
    )


def _unusable_socket(key: str, path: Path) -> Iterator[Conflict]:
    """The socket's folder doesn't exist or can't be written, or something else is in its place."""
    folder = path.parent
    give = f"give it to the user that forwarder runs as, or set {key}"
    try:
        if not folder.is_dir():
            yield Conflict(
                key,
                f"the folder {folder} doesn't exist",
                "create it; a systemd unit does so with RuntimeDirectory=",
            )
        elif path.exists() and not path.is_socket():
            yield Conflict(
                key,
                f"{path} is a file, and no socket",
                f"move it away, or set {key} to another path",
            )
        elif not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            yield Conflict(key, f"{folder} can't be written by user {user_name()}", give)
    except OSError as error:  # such as a folder that this user may not search
        yield Conflict(
            key, f"{folder} can't be used by user {user_name()}: {error_text(error)}", give
        )


def _bind_error(listen: str) -> OSError | None:
    """Why a host and port can't be bound now; None if they can."""
    where = parse_listen(listen)
    if isinstance(where, Path):
        return None
    try:
        for bound in bind_tcp(where):
            bound.close()
    except OSError as error:  # a name that doesn't resolve, too
        return error
    return None


def _too_small(key: str, path: Path, settings: Settings) -> Iterator[Conflict]:
    """The file system has less room than the directory may take."""
    limit = settings.buffer.limit if key == "buffer.path" else settings.dead_letter_limit
    name = "buffer.max_bytes" if key == "buffer.path" else "dead_letters.max_bytes"
    try:
        system = os.statvfs(_nearest(path))
        reserved = sum(
            file.stat().st_size
            for worker in _workers(path)
            for file in worker.rglob("*")
            if file.is_file()
        )
    except OSError:
        return
    free = system.f_bavail * system.f_frsize + reserved
    if free < limit:
        what = f"is {path}, where {size(free)} are free, less than {name} ({size(limit)})"
        yield Conflict(
            key, what, f"lower {name}, or free space: a full disk makes forwarder answer 503"
        )


def _conflict(error: ConfigurationError) -> Conflict:
    key, _, what = error.message.partition(": ")
    return Conflict(key, what, f"{error.hint[:1].lower()}{error.hint[1:]}")
