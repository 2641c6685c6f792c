"""The dead letters' file: an SQLite database, `dead-letters.db`, whose `user_version` is the version of this format.

`letters`: one row an event.
- `number`: never used twice, so that a record in the log may name the letter that it replays; `place` (`sequence`, `idx`): where in the log
  the event was, unique, so that no event is buried twice; NULL where there was no log.
- `data`: the event's bytes as they were received, `crc` their CRC-32, for a disk may change what it keeps.
- `attributes`: what its source knows of it beside its place (`coordinates`), as the text of a JSON object; '' if nothing. Since version 2.
- `event`, `distinct_id`, `uuid`: read from `data` as far as that can be done, for searching only.
- `receipt`: 1 if it was refused at receipt. `cost`: what it counts for against `dead_letters.max_bytes`.
- `mark`: what somebody wants done with it (`drop` or `replay`; NULL: nothing), with `replacement` (an edited event to send in its place)
  and `rate` (events a second). The daemon does it. `note`: why a replay came to nothing.

`counters`: what rows that are gone, or that no log knows, add to the books, changed in the transactions that change the rows:
`received` (by source) of letters without a place, `dropped` (by reason) with the source of each (`name` is `reason/source`). An `api_key`
of '' is the lane that couldn't be told.

A file of version 1 becomes one of version 2 when it is opened to be written; one that is only read is read as if it were.

Write-ahead log, synchronous: a commit that has returned is on the disk. Pages that are free are given back to the file system.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from forwarder.storage.private import open_file

VERSION: Final = 2
_OLDEST: Final = 1
"""The oldest version that is read."""

BUSY_SECONDS: Final = 2.0
"""How long a writer waits for another one: the daemon and the commands write in short transactions."""

_LARGEST_IDLE_WAL: Final = 4 << 20
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_SIZE: Final = 100
_VERSION_AT: Final = 60

_SCHEMA: Final = (
    """CREATE TABLE letters (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        reason TEXT NOT NULL,
        api_key TEXT,
        historical INTEGER NOT NULL,
        at REAL NOT NULL,
        why TEXT NOT NULL,
        source TEXT NOT NULL,
        coordinates TEXT NOT NULL,
        sequence INTEGER,
        idx INTEGER,
        receipt INTEGER NOT NULL,
        cost INTEGER NOT NULL,
        event TEXT,
        distinct_id TEXT,
        uuid TEXT,
        crc INTEGER NOT NULL,
        mark TEXT,
        rate REAL,
        note TEXT,
        data BLOB NOT NULL,
        replacement BLOB,
        attributes TEXT NOT NULL DEFAULT ''
    )""",
    "CREATE UNIQUE INDEX letters_by_place ON letters (sequence, idx) WHERE sequence IS NOT NULL",
    "CREATE INDEX letters_by_mark ON letters (mark, number) WHERE mark IS NOT NULL",
    "CREATE INDEX letters_by_uuid ON letters (uuid) WHERE uuid IS NOT NULL",
    """CREATE TABLE counters (
        api_key TEXT NOT NULL,
        historical INTEGER NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (api_key, historical, kind, name)
    ) WITHOUT ROWID""",
)


class Garbled(Exception):
    """The file can't be read as what it should be; the text says why."""


def open_writable(path: Path) -> sqlite3.Connection:
    """A connection that writes, with the tables made if the file is new, and brought up to date if it is of an older version.

    Raises `Garbled` for a file of another kind or version, and `sqlite3.Error` or `OSError` if it can't be used now.
    """
    _look_at_header(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        version = _version(connection)
        if not version:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_WAL}")
        if version < VERSION:
            _bring_up_to_date(connection)
    except BaseException as error:
        connection.close()
        raise as_garbled(error) from error
    return connection


def open_readable(path: Path) -> sqlite3.Connection:
    """A connection that only reads. Raises as `open_writable` does, and `Garbled` also for an empty file."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True, check_same_thread=False)
    try:
        version = _version(connection)
        if version == _OLDEST:
            connection.execute("CREATE TEMP VIEW letters AS SELECT *, '' AS attributes FROM main.letters")  # stands before the table
    except BaseException as error:
        connection.close()
        raise as_garbled(error) from error
    if not version:
        connection.close()
        raise Garbled("it is empty")
    return connection


def check(connection: sqlite3.Connection) -> None:
    """Look at every page. Raises `Garbled`, or `sqlite3.Error` if that can't be done now."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise as_garbled(error) from error
    if found != "ok":
        raise Garbled(str(found).replace("\n", " "))


def as_garbled(error: BaseException) -> BaseException:
    """The error as it should be raised: `Garbled` if it says that the file isn't what it should be."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return Garbled(str(error))
    return error


def _look_at_header(path: Path) -> None:
    """Make the file if it isn't there. Raises `Garbled` before SQLite, which would change it, opens one that isn't ours."""
    descriptor = open_file(path, os.O_RDWR)  # SQLite would let everybody read it
    try:
        header = os.pread(descriptor, _HEADER_SIZE, 0)
    finally:
        os.close(descriptor)
    if header and not header.startswith(_MAGIC):
        raise Garbled("it is not a database")
    version = int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big")
    if version and not _OLDEST <= version <= VERSION:
        raise Garbled(_other_version(version))


def _other_version(version: int) -> str:
    return f"it is of version {version} of the format; this forwarder reads {_OLDEST} to {VERSION}"


def _version(connection: sqlite3.Connection) -> int:
    """The version of the tables that are there; 0: there are none. Raises `Garbled` for one that isn't known."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (version or tables) and not _OLDEST <= version <= VERSION:
        raise Garbled(_other_version(version))
    return int(version)


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the tables, or give them what they haven't, all or nothing. Another process may have done it since."""
    connection.execute("BEGIN IMMEDIATE")
    if not _version(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
    elif "attributes" not in [row[1] for row in connection.execute("PRAGMA table_info(letters)")]:
        connection.execute("ALTER TABLE letters ADD COLUMN attributes TEXT NOT NULL DEFAULT ''")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
