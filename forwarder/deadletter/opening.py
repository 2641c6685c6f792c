"""Opens the dead letters' database, whatever state it is in.

Invariants: nothing is ever deleted. A file that can't be read is quarantined whole, and its
readable rows are copied into a new one. A file that can't be written is read, and written as soon
as that is possible.

A damaged page hides the rows on it. Rows before it are read from the one end, rows after it from
the other, and those in between one by one. A row counts as readable only if its bytes have the
checksum that they were written with.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from isal.isal_zlib import crc32

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.deadletter.schema import (
    DeadLetterDatabase,
    name_old_dead_letters,
    open_readable,
    open_writable,
)
from forwarder.storage.database import UnreadableDatabase
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.storage.quarantine import BESIDE, quarantine_database

_COLUMNS: Final = (
    "number, reason, api_key, historical, at, why, source, coordinates, sequence, idx, receipt, "
    "cost, event, distinct_id, uuid, crc, mark, rate, note, data, replacement, attributes, "
    "ruled, sender_key, new_uuid"
)

_NAMES: Final = _COLUMNS.replace(" ", "").split(",")

_SINGLY: Final = 100_000
"""Rows of a damaged stretch that are read one by one."""

_log = structlog.get_logger()


@dataclass(slots=True)
class OpenedDatabase:
    """The database, with what went wrong at its opening."""

    file: DeadLetterDatabase
    failing: str = ""
    quarantined: tuple[Path, ...] = ()
    emptied: bool = False
    """Whether the file was there, and had no byte: something has emptied it, or the process that
    created it was killed at once.
    """


def open_file(directory: Path, now: float) -> OpenedDatabase:
    """Open or create the database in `directory`. Raises `ConfigurationError` if it exists and
    can't be read or quarantined.
    """
    path = directory / DEAD_LETTERS
    emptied = path.is_file() and not path.stat().st_size
    if emptied:
        _log.error(
            "the dead letters' file is empty: what it held is gone",
            path=str(path),
            hint=(
                "Restore it from a backup while no forwarder runs, if there were dead letters, and "
                "find out what emptied it."
            ),
        )
    try:
        file = DeadLetterDatabase(path, open_writable(path, check=True))
        return OpenedDatabase(file, emptied=emptied)
    except UnreadableDatabase as error:
        return _replace_unreadable(path, error_text(error), now)
    except (sqlite3.Error, OSError) as error:
        return _read_only(path, why_of(error), now)


def why_of(error: BaseException) -> str:
    """The error in words, without paths."""
    return error_text(error)


def _replace_unreadable(path: Path, why: str, now: float) -> OpenedDatabase:
    """Quarantine the file, create a new one, and copy the readable rows."""
    try:
        damaged = quarantine_database(path, now)
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be read ({why}), and can't be quarantined: {why_of(error)}",
            hint="Move it away, or make its directory writable.",
        ) from error
    failing = ""
    saved = SalvageReport()
    file = DeadLetterDatabase(path)
    try:
        saved = _salvage(damaged, file.writable())
    except (sqlite3.Error, OSError) as error:
        failing = why_of(error)
        file.close()
    _log.error(
        "the dead letters' file can't be read; it was quarantined, and a new one was created",
        why=why,
        moved_to=str(damaged),
        letters_saved=saved.dead_letters,
        letters_unreadable=saved.unreadable,
        hint=(
            "Keep it: nothing was deleted. A forwarder of the version that wrote it, or "
            "SQLite's own tools, may read more of it."
        ),
    )
    return OpenedDatabase(file, failing, (damaged,))


def _read_only(path: Path, failing: str, now: float) -> OpenedDatabase:
    """The file for reading, if it exists."""
    try:
        if not path.exists() or path.stat().st_size == 0:
            return _reported(OpenedDatabase(DeadLetterDatabase(path), failing))
        try:
            connection = open_readable(path, check=True)
        except UnreadableDatabase:
            raise
        except (sqlite3.Error, OSError):
            connection = _copied(path)
    except UnreadableDatabase as error:
        return _replace_unreadable(path, error_text(error), now)
    except (sqlite3.Error, OSError) as error:
        raise ConfigurationError(
            f"{path} can't be read: {why_of(error)}",
            hint="Make it readable and writable for this user, or set `dead_letters.path`.",
        ) from error
    return _reported(OpenedDatabase(DeadLetterDatabase(path, connection, read_only=True), failing))


def _copied(path: Path) -> sqlite3.Connection:
    """The file's content in memory, read from a copy: SQLite must write beside a file to read it
    with its log.
    """
    import shutil  # noqa: PLC0415 - only a damaged file needs them
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / path.name
        for ending in BESIDE[:2]:
            part = path.with_name(path.name + ending)
            if part.exists():
                shutil.copyfile(part, copy.with_name(copy.name + ending))
        source = open_writable(copy, check=True)
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            source.backup(memory)
        finally:
            source.close()
    return memory


def _reported(opened: OpenedDatabase) -> OpenedDatabase:
    _log.error(
        "dead letters can't be written: lanes with refused events wait until they can be",
        why=opened.failing,
        path=str(opened.file.path),
        hint="Make room on the disk, or the directory writable; it is tried again every second.",
    )
    return opened


@dataclass(slots=True)
class SalvageReport:
    """How many rows were copied from a damaged file."""

    dead_letters: int = 0
    unreadable: int = 0
    """Rows that are lost, at least: unreadable ones, and numbers missing between readable ones."""


def _salvage(damaged: Path, fresh: sqlite3.Connection) -> SalvageReport:
    """Copy all readable rows of the file `damaged` into the tables of `fresh`, in one transaction.

    Raises `sqlite3.Error` if `fresh` can't be written; unreadable rows are counted.
    """
    try:
        source = open_readable(damaged)
    except (sqlite3.Error, OSError):
        return SalvageReport()
    salvage = SalvageReport()
    fresh.execute("BEGIN IMMEDIATE")
    try:
        for row in _rows(source, salvage):
            fresh.execute(
                # constants
                (
                    f"INSERT OR IGNORE INTO letters ({_COLUMNS}) VALUES "  # noqa: S608
                    f"({', '.join('?' * len(row))})"
                ),
                row,
            )
            salvage.dead_letters += 1
        name_old_dead_letters(fresh)
        _copy_counters(source, fresh, salvage.dead_letters)
        _keep_numbers(source, fresh)
        fresh.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            fresh.execute("ROLLBACK")
        raise
    finally:
        source.close()
    return salvage


def _rows(source: sqlite3.Connection, salvage: SalvageReport) -> Iterator[tuple[Any, ...]]:
    first = -1
    last = -1
    for row in _walk(source, "ASC"):
        first = row[0]
        if _is_sound(row):
            yield row
        else:
            salvage.unreadable += 1
    for row in _walk(source, "DESC", after=first):
        last = row[0] if last < 0 else min(last, row[0])
        if _is_sound(row):
            yield row
        else:
            salvage.unreadable += 1
    for number in range(first + 1, min(last, first + 1 + _SINGLY)):
        try:
            one = source.execute(
                # S608: the columns are a constant.
                f"SELECT {_COLUMNS} FROM letters WHERE number = ?",  # noqa: S608
                (number,),
            ).fetchone()
        except sqlite3.Error:
            salvage.unreadable += 1
            continue
        if one is not None and _is_sound(one):
            yield one
        elif one is not None:
            salvage.unreadable += 1


def _walk(source: sqlite3.Connection, order: str, after: int = -1) -> Iterator[tuple[Any, ...]]:
    """The rows from one end of the table up to the first that can't be read."""
    with contextlib.suppress(sqlite3.Error):
        # S608: the columns are a constant, and the order is one of two.
        statement = f"""
            SELECT {_COLUMNS} FROM letters WHERE number > ? ORDER BY number {order}
        """  # noqa: S608
        yield from source.execute(statement, (after,))


def _is_sound(row: tuple[Any, ...]) -> bool:
    value = dict(zip(_NAMES, row, strict=True))
    if not (
        isinstance(value["number"], int)
        and isinstance(value["data"], bytes)
        and value["reason"] in list(Reason)
    ):
        return False
    return isinstance(value["cost"], int) and crc32(value["data"]) == value["crc"]


def _copy_counters(
    source: sqlite3.Connection, fresh: sqlite3.Connection, dead_letters: int
) -> None:
    """The counters; if they can't be read, the counts of dead letters without a place."""
    try:
        rows = source.execute(
            "SELECT api_key, historical, kind, name, count FROM counters"
        ).fetchall()
    except sqlite3.Error:
        if dead_letters:
            fresh.execute(
                """
                INSERT INTO counters
                SELECT coalesce(api_key, ''), historical, 'received', source, count(*)
                FROM letters WHERE sequence IS NULL GROUP BY api_key, historical, source
                """
            )
        return
    fresh.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)", rows)


def _keep_numbers(source: sqlite3.Connection, fresh: sqlite3.Connection) -> None:
    """Continue the old file's numbers, if they can be read."""
    with contextlib.suppress(sqlite3.Error):
        row = source.execute("SELECT seq FROM sqlite_sequence WHERE name = 'letters'").fetchone()
        if row is not None:
            fresh.execute(
                "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'letters'", row
            )
            if fresh.execute("SELECT changes()").fetchone() == (0,):
                fresh.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('letters', ?)", row)
