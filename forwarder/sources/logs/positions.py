"""The positions of log files in `logs.db`, an SQLite file whose `user_version` is the version of
this format.

`positions`: one row for each file's content, whatever the file is called and wherever it was moved.
- `source`, `identity`, `generation`: which content it is; part of the uuids of its events, so a
  row never gets another content.
- `fingerprint`: the digest of its first line; `device`, `inode`, `path`: where it is or was;
  `modified`: nanoseconds since 1970.
- `position`: all before it is settled (an offset in the decompressed content); `tail`: the digest
  of the bytes before it (`contents.py`).
- `anchor`, `anchor_tail`: an offset beyond that, up to which the content is known, too, and the
  digest of the bytes before it.
- `state`: bits. 1: a compressed file that was read to its end. 2: it was renamed or copied. 4: the
  content was replaced in its file, and wasn't found in another one. 8: the file was removed, or
  renamed so that it no longer matches, and was read to its end. 16: it is compressed. 32: it
  doesn't match any more, because it was renamed.
- `seen`: when it was last there (seconds since 1970). Rows that were not seen for 30 days are
  removed.

`times`: when the records of a row in offsets from `first` to before `end` were read for the first
time, for sources whose events get that time. Removed when they are settled. `sources`: when each
source was started for the first time.

Write-ahead log, synchronous: what `save` has returned for is on the disk, all of it or, after an
error, nothing.

A damaged file is quarantined, and its readable rows are copied into a new one. A position needs no
checksum for that: `tail` shows whether it is right. Files without a row are read from the beginning
then, also where `read_from` is `end`: what was written since is among it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import structlog

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.storage.database import (
    DatabaseFormat,
    OtherVersion,
    UnreadableDatabase,
)
from forwarder.storage.private import make_file
from forwarder.storage.quarantine import quarantine_database

FILE: Final = "logs.db"
VERSION: Final = 1
KEPT_SECONDS: Final = 30 * 86400.0
FAILURES: Final = (sqlite3.Error, OSError)
"""What storing and looking up raise when the disk is full, or fails."""

DONE = 1
RENAMED = 2
REPLACED = 4
GONE = 8
PACKED = 16
LEFT = 32
CUT = 64
"""Bits of `StoredPosition.state`."""

_MEANING: Final = (
    "Log files whose position is lost are read again from the beginning. Events that were "
    "delivered before have the same uuids."
)
_COLUMNS: Final = (
    "identity, generation, fingerprint, device, inode, path, position, tail, anchor, "
    "anchor_tail, size, modified, state, seen"
)
_SCHEMA: Final = (
    """CREATE TABLE positions (
        source TEXT NOT NULL,
        identity TEXT NOT NULL,
        generation INTEGER NOT NULL,
        fingerprint TEXT NOT NULL,
        device INTEGER NOT NULL,
        inode INTEGER NOT NULL,
        path BLOB NOT NULL,
        position INTEGER NOT NULL,
        tail BLOB NOT NULL,
        anchor INTEGER NOT NULL,
        anchor_tail BLOB NOT NULL,
        size INTEGER NOT NULL,
        modified INTEGER NOT NULL,
        state INTEGER NOT NULL,
        seen REAL NOT NULL,
        PRIMARY KEY (source, identity, generation)
    ) WITHOUT ROWID""",
    "CREATE INDEX positions_by_fingerprint ON positions (source, fingerprint)",
    "CREATE INDEX positions_by_file ON positions (source, device, inode)",
    """CREATE TABLE times (
        source TEXT NOT NULL,
        identity TEXT NOT NULL,
        generation INTEGER NOT NULL,
        first INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (source, identity, generation, first)
    ) WITHOUT ROWID""",
    "CREATE TABLE sources (name TEXT PRIMARY KEY, started REAL NOT NULL) WITHOUT ROWID",
)
_FORMAT: Final = DatabaseFormat(oldest=VERSION, newest=VERSION, tables=_SCHEMA, busy_seconds=5.0)


_ROWS: Final[Sequence[tuple[str, str, Sequence[type]]]] = (
    (
        "positions",
        "source, identity, generation",
        (str, str, int, str, int, int, bytes, int, bytes, int, bytes, int, int, int, float),
    ),
    ("times", "source, identity, generation, first", (str, str, int, int, int, float)),
    ("sources", "name", (str, float)),
)
"""Of each table its key, and what a row consists of."""

_log = structlog.get_logger()


class PositionsDamaged(ConfigurationError):
    """The file's content isn't what was written."""

    code = "positions_damaged"


class StoredPosition(NamedTuple):
    """A row; its columns are described above."""

    identity: str
    generation: int
    fingerprint: str
    device: int
    inode: int
    path: str
    position: int
    tail: bytes
    anchor: int
    anchor_tail: bytes
    size: int
    modified: int
    state: int
    seen: float


class ReadTime(NamedTuple):
    """Records in offsets from `first` to before `end` were read for the first time at the
    wall-clock time `at`.
    """

    first: int
    end: int
    at: float


class PositionStore:
    """The positions of all log sources, in one database. Any thread may use it. Its methods raise
    one of `FAILURES`.
    """

    def __init__(self, path: Path) -> None:
        """Open it, or create it. Raises `PositionsDamaged`, and `ConfigurationError` if it is of
        another version, or can't be used.
        """
        self.path = path
        self.warning = ""
        """What was lost of it before it was opened; empty if nothing was."""
        self._lock = threading.Lock()
        try:
            make_file(path)
            self._connection = _FORMAT.open_writable(path, check=True)
        except FAILURES as error:
            raise _unusable(path, error) from error

    @classmethod
    def open(cls, path: Path, now: float, sources: Collection[str]) -> Self:
        """Open or create it, and quarantine a damaged file. `now`: seconds since 1970; `sources`:
        those that may have had rows. Raises `ConfigurationError` if it can't be used.
        """
        emptied = path.is_file() and not path.stat().st_size
        try:
            store = cls(path)
        except PositionsDamaged as error:
            return cls._replacing(path, error.message, now, sources)
        if emptied:
            store._begin_again(sources, now)
            store.warning = f"the positions of log files in {path} were gone: the file was empty"
            _log.error(
                "logs: positions are gone: their file is empty",
                path=str(path),
                meaning=_MEANING,
            )
        return store

    @classmethod
    def _replacing(cls, path: Path, why: str, now: float, sources: Collection[str]) -> Self:
        """The store with what can be read of a damaged file, which is quarantined."""
        try:
            moved = quarantine_database(path, now)
        except OSError as error:
            raise ConfigurationError(
                f"{why}; and the file can't be quarantined: {error_text(error)}",
                hint="Move it away, or make its directory writable.",
            ) from error
        store = cls(path)
        try:
            saved = store._salvage(moved)
            store._begin_again(sources, now)
        except FAILURES as error:
            store.close()
            raise _unusable(path, error) from error
        store.warning = (
            f"the positions of log files couldn't be read, and were quarantined as {moved}"
        )
        _log.error(
            "logs: positions can't be read; their file was quarantined",
            why=why,
            moved_to=str(moved),
            positions_saved=saved,
            meaning=_MEANING,
        )
        return store

    def _salvage(self, damaged: Path) -> int:
        """Copy the readable rows of a damaged file; how many positions there are then."""
        self._connection.execute("BEGIN IMMEDIATE")
        for table, row in _readable_rows(damaged):
            # S608: the table is one of ours, the values have placeholders.
            places = ", ".join("?" * len(row))
            self._connection.execute(
                f"INSERT OR IGNORE INTO {table} VALUES ({places})",  # noqa: S608
                row,
            )
        self._connection.execute("COMMIT")
        ((count,),) = self._all("SELECT count(*) FROM positions")
        return int(count)

    def _begin_again(self, sources: Collection[str], now: float) -> None:
        """Have these sources not be new, whatever was known of them."""
        self._connection.executemany(
            "INSERT OR IGNORE INTO sources VALUES (?, ?)", [(name, now) for name in sources]
        )

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def is_new(self, source: str) -> bool:
        """Whether nothing was ever saved for the source."""
        return not self._all("SELECT 1 FROM sources WHERE name = ?", source)

    def in_file(self, source: str, device: int, inode: int) -> StoredPosition | None:
        """The content that this file had when it was seen last."""
        where = (
            "INDEXED BY positions_by_file WHERE source = ? AND device = ? AND inode = ? AND "
            f"NOT state & {REPLACED} ORDER BY seen DESC"
        )
        return next(iter(self._rows(where, source, _signed(device), _signed(inode))), None)

    def alike(self, source: str, fingerprint: str) -> list[StoredPosition]:
        """All contents with this first line."""
        return self._rows(
            "INDEXED BY positions_by_fingerprint WHERE source = ? AND fingerprint = ?",
            source,
            fingerprint,
        )

    def present(self, source: str) -> list[StoredPosition]:
        """The contents whose files were there when they were seen last."""
        return self._rows(f"WHERE source = ? AND NOT state & {REPLACED | GONE}", source)

    def times(self, source: str, identity: str, generation: int) -> list[ReadTime]:
        """The times of a content's records, in the order of their offsets."""
        rows = self._all(
            (
                'SELECT first, "end", at FROM times WHERE source = ? AND identity = ? AND '
                "generation = ? ORDER BY first"
            ),
            *(source, identity, generation),
        )
        return [ReadTime(*moment) for moment in rows]

    def save(
        self,
        source: str,
        rows: Collection[StoredPosition],
        times: Collection[tuple[str, int, ReadTime]] = (),
        now: float = 0.0,
    ) -> None:
        """Store rows, and times by identity and generation, durably and all together; times before
        a row's position are removed.
        """
        stored = [
            (
                source,
                *row[:3],
                _signed(row.device),
                _signed(row.inode),
                os.fsencode(row.path),
                *row[6:],
            )
            for row in rows
        ]
        with self._lock:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (source, now))
                places = ", ".join("?" * 15)
                # S608: what is put into the statement is placeholders.
                statement = f"INSERT OR REPLACE INTO positions VALUES ({places})"  # noqa: S608
                connection.executemany(statement, stored)
                connection.executemany(
                    "INSERT OR REPLACE INTO times VALUES (?, ?, ?, ?, ?, ?)",
                    [(source, identity, generation, *time) for identity, generation, time in times],
                )
                connection.executemany(
                    (
                        "DELETE FROM times WHERE source = ? AND identity = ? AND generation = ? "
                        'AND "end" <= ?'
                    ),
                    [(source, row.identity, row.generation, row.position) for row in rows],
                )
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def forget(self, source: str, before: float) -> None:
        """Remove the rows that were last seen before this wall-clock time."""
        with self._lock:
            self._connection.execute(
                "DELETE FROM positions WHERE source = ? AND seen < ?", (source, before)
            )
            self._connection.execute(
                """
                DELETE FROM times WHERE source = ? AND NOT EXISTS (
                    SELECT 1 FROM positions AS p
                    WHERE p.source = times.source AND p.identity = times.identity
                        AND p.generation = times.generation
                )
                """,
                (source,),
            )

    def _rows(self, where: str, *values: object) -> list[StoredPosition]:
        # S608: the columns are a constant, the condition has placeholders for its values.
        rows = self._all(f"SELECT {_COLUMNS} FROM positions {where}", *values)  # noqa: S608
        return [_row(columns) for columns in rows]

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, closing(self._connection.execute(statement, values)) as cursor:
            return cursor.fetchall()


def _readable_rows(damaged: Path) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What can be read from either end of each table, with the table's name."""
    with suppress(sqlite3.Error), closing(_FORMAT.open_readable(damaged)) as connection:
        for table, key, kinds in _ROWS:
            for order in (key, key.replace(",", " DESC,") + " DESC"):
                with suppress(sqlite3.Error):
                    # S608: the table and its key are constants.
                    statement = f"SELECT * FROM {table} ORDER BY {order}"  # noqa: S608
                    for row in connection.execute(statement):
                        if tuple(map(type, row)) == kinds:
                            yield table, row


def read_positions(path: Path) -> dict[str, list[StoredPosition]]:
    """All positions by source, while the file may be in use; nothing is
    written. Raises `ConfigurationError`.
    """
    try:
        with closing(_FORMAT.open_readable(path)) as connection:
            # S608: the columns are a constant.
            statement = f"SELECT source, {_COLUMNS} FROM positions"  # noqa: S608
            rows = connection.execute(statement).fetchall()
    except FAILURES as error:
        raise _unusable(path, error) from error
    by_source: dict[str, list[StoredPosition]] = {}
    for source, *row in rows:
        by_source.setdefault(source, []).append(_row(row))
    return by_source


def _row(columns: Sequence[Any]) -> StoredPosition:
    row = StoredPosition(*columns)
    return row._replace(
        path=os.fsdecode(row.path), device=row.device % 2**64, inode=row.inode % 2**64
    )


def _signed(number: int) -> int:
    """A device's or inode's number as SQLite keeps it."""
    return number if number < 2**63 else number - 2**64


def _unusable(path: Path, error: sqlite3.Error | OSError) -> ConfigurationError:
    if isinstance(error, OtherVersion):
        return ConfigurationError(
            f"{path}: {error}", hint="Run the version of forwarder that has written it."
        )
    if isinstance(error, UnreadableDatabase) or type(error) is sqlite3.DatabaseError:
        return PositionsDamaged(
            f"the positions of log files in {path} are damaged: {error_text(error)}",
            hint=(
                "The next start of the daemon quarantines the file. Without it the log files are "
                "read from the beginning; their events have the same uuids as before."
            ),
        )
    if path.is_dir():
        return ConfigurationError(
            f"the positions of log files in {path} can't be used: it is a directory",
            hint="Move the directory away.",
        )
    return ConfigurationError(
        f"the positions of log files in {path} can't be used: {error_text(error)}",
        hint="Let this user write in that directory, and see that its disk has room.",
    )
