"""Opening the dead letters' file, whatever state it is in.

Invariants: nothing is ever deleted: a file that can't be read is moved aside whole, and what can still be read of it is copied into a new
one; a file that can't be written is read all the same, and written as soon as it can be.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.errors import ConfigurationError
from forwarder.deadletter.file import LetterFile
from forwarder.deadletter.salvage import Salvaged, salvage
from forwarder.deadletter.schema import Garbled, check, open_readable, open_writable
from forwarder.storage.directory import ASIDE, DEAD_LETTERS
from forwarder.storage.private import make_directory, sync_directory

BESIDE: Final = ("", "-wal", "-shm")
"""What SQLite keeps beside a file, too."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Opened:
    """How the opening went."""

    file: LetterFile
    failing: str = ""
    moved_aside: tuple[Path, ...] = ()


def open_file(directory: Path, now: float) -> Opened:
    """Open or make the file in `directory`. Raises `ConfigurationError` if it is there and can't even be read."""
    path = directory / DEAD_LETTERS
    try:
        return Opened(LetterFile(path, _checked(open_writable(path))))
    except Garbled as error:
        return _begin_anew(path, str(error), now)
    except (sqlite3.Error, OSError) as error:
        return _read_only(path, why_of(error), now)


def why_of(error: BaseException) -> str:
    """What went wrong, without paths."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _checked(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _begin_anew(path: Path, why: str, now: float) -> Opened:
    """Move the file aside, make a new one, and copy what can be read."""
    try:
        aside = _move_aside(path, now)
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be read ({why}), and can't be moved aside: {why_of(error)}", hint="Move it away, or make its directory writable."
        ) from error
    failing, saved = "", Salvaged()
    file = LetterFile(path)
    try:
        saved = salvage(aside, file.writable())
    except (sqlite3.Error, OSError, Garbled) as error:
        failing = why_of(error)
        file.close()
    _log.error(
        "the dead letters' file can't be read; it was moved aside, and a new one was begun",
        why=why,
        moved_to=str(aside),
        letters_saved=saved.letters,
        letters_unreadable=saved.unreadable,
        hint="Keep it: nothing was deleted. A forwarder of the version that wrote it, or SQLite's own tools, may read more of it.",
    )
    return Opened(file, failing, (aside,))


def _move_aside(path: Path, now: float) -> Path:
    """Move the file with all that belongs to it; where it is now. Raises `OSError`."""
    directory = path.parent / ASIDE
    make_directory(directory)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    number = 0
    while True:
        target = directory / (f"{path.stem}-{stamp}" + (f"-{number}" if number else "") + path.suffix)
        if not target.exists():
            break
        number += 1
    # the database last: while it is there the next opening moves the rest
    for ending in reversed(BESIDE):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.rename(target.with_name(target.name + ending))
    for changed in (directory, path.parent):
        sync_directory(changed)
    return target


def _read_only(path: Path, failing: str, now: float) -> Opened:
    """The file for reading, as far as it is there."""
    try:
        if not path.exists() or path.stat().st_size == 0:
            return _told(Opened(LetterFile(path), failing))
        try:
            connection = _checked(open_readable(path))
        except (sqlite3.Error, OSError):
            connection = _copied(path)
    except Garbled as error:
        return _begin_anew(path, str(error), now)
    except (sqlite3.Error, OSError) as error:
        raise ConfigurationError(
            f"{path} can't be read: {why_of(error)}", hint="Make it readable and writable for this user, or set `dead_letters.path`."
        ) from error
    return _told(Opened(LetterFile(path, connection, read_only=True), failing))


def _copied(path: Path) -> sqlite3.Connection:
    """The file's content in memory, by way of a copy: SQLite has to write beside a file to read it with its log."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / path.name
        for ending in BESIDE[:2]:
            part = path.with_name(path.name + ending)
            if part.exists():
                shutil.copyfile(part, copy.with_name(copy.name + ending))
        source = _checked(open_writable(copy))
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            source.backup(memory)
        finally:
            source.close()
    return memory


def _told(opened: Opened) -> Opened:
    _log.error(
        "dead letters can't be written: lanes with refused events wait until they can be",
        why=opened.failing,
        path=str(opened.file.path),
        hint="Make room on the disk, or the directory writable; it is tried again every second.",
    )
    return opened
