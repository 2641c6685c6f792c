"""Directories of former workers, left behind when `workers` was lowered: which there are, and when
one can be removed.

Invariant: a directory is removed only if it is empty of data: no event, no dead letter, no
quarantined file, and no unknown file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from forwarder.config.settings import Settings
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.storage.directory import (
    ASIDE,
    DEAD_LETTERS,
    LOCK,
    LOG,
    LockedDirectory,
    state_directories,
    worker_directories,
)
from forwarder.telemetry.snapshot import Snapshot

_FILES: Final = frozenset(
    {LOCK, DEAD_LETTERS, f"{DEAD_LETTERS}-wal", f"{DEAD_LETTERS}-shm", f"{DEAD_LETTERS}-journal"}
)
_FOLDERS: Final = frozenset({LOG, ASIDE})

_log = structlog.get_logger(__name__)


def needs_supervisor(settings: Settings) -> bool:
    """Whether one process isn't enough: several workers are asked for, or were, and have left
    something behind.
    """
    return settings.workers > 1 or bool(leftovers(settings, os.environ))


def leftovers(settings: Settings, environment: Mapping[str, str]) -> list[int]:
    """The numbers of workers' directories without a worker."""
    # a directory without a name becomes the first destination's
    names = {*settings.destinations, ""}
    directories = [
        item for root in _roots(settings, environment) for item in _directories(root).items()
    ]
    return sorted(
        {
            number
            for (number, name), directory in directories
            if number >= settings.workers and name in names and _is_ours(directory)
        }
    )


def _roots(settings: Settings, environment: Mapping[str, str]) -> list[Path]:
    """The parents of workers' directories; of the default ones, the first that exists."""
    configured = settings.dead_letters.path
    if settings.buffer.kind == "disk":
        return list(dict.fromkeys([settings.buffer.path, configured or settings.buffer.path]))
    chosen = state_directories(environment, is_root=os.geteuid() == 0)
    return [configured] if configured else [root for root in chosen if root.is_dir()][:1]


def _is_ours(directory: Path) -> bool:
    """Whether it is a worker's directory."""
    return (directory / LOG).is_dir() or (directory / DEAD_LETTERS).is_file()


def remove_if_empty(
    settings: Settings, environment: Mapping[str, str], number: int, last: Snapshot
) -> bool:
    """Remove the directory of a worker that has ended with the snapshot `last`, if it is empty;
    whether it was removed.
    """
    if last.buffered or last.dead_letters_wanted or any(lane.total_dead for lane in last.lanes):
        return False
    directories = _of_worker(settings, environment, number)
    removed = [_remove(directory) for directory in directories if directory.is_dir()]
    return all(removed)


def _of_worker(settings: Settings, environment: Mapping[str, str], number: int) -> list[Path]:
    """The existing directories of a worker, of all destinations that are configured: only those
    are delivered.
    """
    directories = [
        item for root in _roots(settings, environment) for item in _directories(root).items()
    ]
    return [
        directory
        for (of, name), directory in directories
        if of == number and name in settings.destinations
    ]


def dead_letters_changed_at(settings: Settings, environment: Mapping[str, str], number: int) -> int:
    """When the dead letters of a former worker changed last, in nanoseconds since 1970; 0 if it
    has none. A change is in the write-ahead log first, and may stay there.
    """
    files = [
        directory / f"{DEAD_LETTERS}{suffix}"
        for directory in _of_worker(settings, environment, number)
        for suffix in ("", "-wal")
    ]
    return max((_changed_at(file) for file in files), default=0)


def _changed_at(file: Path) -> int:
    """0 also for an empty file: a reader of the letters creates an empty log."""
    try:
        status = file.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if status.st_size else 0


def has_marked_dead_letters(
    settings: Settings, environment: Mapping[str, str], number: int
) -> bool:
    """Whether an operator has marked dead letters of a former worker, to be sent again or dropped,
    as far as they can be read now.
    """
    # SQLite is needed only where a former worker has left letters.
    import sqlite3  # noqa: PLC0415

    from forwarder.deadletter.schema import open_readable  # noqa: PLC0415
    from forwarder.deadletter.selection import has_marks  # noqa: PLC0415

    for directory in _of_worker(settings, environment, number):
        file = directory / DEAD_LETTERS
        if not file.is_file():
            continue
        try:
            with closing(open_readable(file)) as connection:
                if has_marks(connection):
                    return True
        except (sqlite3.Error, OSError):
            continue  # its next worker reports it
    return False


def _directories(root: Path) -> dict[tuple[int, str], Path]:
    try:
        return worker_directories(root)
    except OSError:  # missing, or reported by the part that uses it
        return {}


def _remove(directory: Path) -> bool:
    try:
        lock = LockedDirectory.acquire(directory, "buffer.path", own=1)
    except ConfigurationError:
        return False
    try:
        return _is_known(directory) and _delete(directory)
    except OSError as error:
        _log.warning(
            "an empty directory can't be removed", path=str(directory), why=error_text(error)
        )
        return False
    finally:
        lock.release()


def _is_known(directory: Path) -> bool:
    entries = list(directory.iterdir())
    aside = directory / ASIDE
    known = all(entry.name in (_FOLDERS if entry.is_dir() else _FILES) for entry in entries)
    return known and not (aside.is_dir() and any(aside.iterdir()))


def _delete(directory: Path) -> bool:
    for folder in (directory / LOG, directory / ASIDE):
        if folder.is_dir():
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
    for name in _FILES:
        (directory / name).unlink(missing_ok=True)
    directory.rmdir()
    _log.info("an empty directory of a former worker was removed", path=str(directory))
    return True
