"""The dead letters' file: an SQLite database, `dead-letters.db`, whose `user_version` is the version of this format.

`letters`: one row an event.
- `number`: never used twice, so that a record in the log may name the letter that it replays; `place` (`sequence`, `idx`): where in the log
  the event was, unique, so that no event is buried twice; NULL where there was no log.
- `data`: the event's bytes as they were received, `crc` their CRC-32, for a disk may change what it keeps.
- `event`, `distinct_id`, `uuid`: read from `data` as far as that can be done, for searching only.
- `receipt`: 1 if it was refused at receipt. `cost`: what it counts for against `dead_letters.max_bytes`.
- `mark`: what somebody wants done with it (`drop` or `replay`; NULL: nothing), with `replacement` (an edited event to send in its place)
  and `rate` (events a second). The daemon does it. `note`: why a replay came to nothing.

`counters`: what rows that are gone, or that no log knows, add to the books, changed in the transactions that change the rows:
`received` (by source) of letters without a place, `dropped` (by reason) with the source of each (`name` is `reason/source`). An `api_key`
of '' is the lane that couldn't be told.

Write-ahead log, synchronous: a commit that has returned is on the disk. Pages that are free are given back to the file system.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

VERSION: Final = 1
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
        replacement BLOB
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
    """A connection that writes, with the tables made if the file is new.

    Raises `Garbled` for a file of another kind or version, and `sqlite3.Error` or `OSError` if it can't be used now.
    """
    _look_at_header(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        made = _is_made(connection)
        if not made:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_WAL}")
        if not made:
            _make(connection)
    except BaseException as error:
        connection.close()
        raise as_garbled(error) from error
    return connection


def open_readable(path: Path) -> sqlite3.Connection:
    """A connection that only reads. Raises as `open_writable` does, and `Garbled` also for an empty file."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True, check_same_thread=False)
    try:
        made = _is_made(connection)
    except BaseException as error:
        connection.close()
        raise as_garbled(error) from error
    if not made:
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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # SQLite would let everybody read it
    try:
        header = os.pread(descriptor, _HEADER_SIZE, 0)
    finally:
        os.close(descriptor)
    if header and not header.startswith(_MAGIC):
        raise Garbled("it is not a database")
    version = int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big")
    if version not in (0, VERSION):
        raise Garbled(_other_version(version))


def _other_version(version: int) -> str:
    return f"it is of version {version} of the format; this forwarder reads version {VERSION}"


def _is_made(connection: sqlite3.Connection) -> bool:
    """Whether the tables are there. Raises `Garbled` for another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == VERSION:
        return True
    if version or tables:
        raise Garbled(_other_version(version))
    return False


def _make(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
