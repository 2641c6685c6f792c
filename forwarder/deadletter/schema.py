"""The dead letters' database, `dead-letters.db`: an SQLite file whose `user_version` is the
version of this format.

`letters`: one row an event.
- `number`: never used twice, so that a record in the log may name the dead letter that it replays;
  `place` (`sequence`, `idx`): the event's position in the log, unique, so that no event is buried
  twice; NULL where there was no log.
- `data`: the event's bytes as received; `crc`: their CRC-32, which detects damage by the disk.
- `attributes`: what the source knows of it beside its position (`coordinates`), as the text of a
  JSON object, or ''. Since version 2.
- Since version 3, what a replay has to know: `ruled`, 1 if the rules for events were applied to it;
  `sender_key`, the project key that its sender used, or '' if that is `api_key` (NULL: an older
  version didn't note it); `new_uuid`, the uuid that a replay gives it if it has none, or ''.
- `event`, `distinct_id`, `uuid`: read from `data` where possible, for searching only.
- `receipt`: 1 if it was rejected at receipt. `cost`: what it counts for against
  `dead_letters.max_bytes`.
- `mark`: what an operator wants done with it (`drop` or `replay`; NULL: nothing), with
  `replacement` (an edited event to send instead) and `rate` (events a second). The daemon does it.
  `note`: why a replay failed.

`counters`: what rows that are removed, or that no log knows, add to the books, changed in the
transactions that change the rows: `received` (by source) of dead letters without a place,
`dropped` (by reason) with the source of each (`name` is `reason/source`). An `api_key` of '' is
the unknown lane.

A file of an older version is upgraded when it is opened for writing; a reader sees it as one of
this version. Of its letters `ruled` follows from the reason, and `new_uuid` from what the letters
of an event have in common at all destinations.

Write-ahead log, synchronous: a commit that has returned is on the disk. Free pages are returned to
the file system.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from forwarder.core.error_text import error_text
from forwarder.core.uuids import uuid5
from forwarder.storage.private import open_file

VERSION: Final = 3
_OLDEST: Final = 1
"""The oldest version that is read."""

BUSY_SECONDS: Final = 2.0
"""Seconds that a writer waits for another one: the daemon and the commands
write in short transactions.
"""

_LARGEST_IDLE_WAL: Final = 4 << 20
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_SIZE: Final = 100
_VERSION_AT: Final = 60

_ADDED: Final = {
    "attributes": "TEXT NOT NULL DEFAULT ''",
    "ruled": "INTEGER NOT NULL DEFAULT 0",
    "sender_key": "TEXT",
    "new_uuid": "TEXT NOT NULL DEFAULT ''",
}
"""The columns that version 1 hasn't."""

_OLD_RULED: Final = """
    reason IN ('refused', 'gave_up', 'undelivered_at_exit', 'lane_halted')
    OR (reason = 'too_large' AND NOT receipt AND coordinates = '')
"""
"""Whether rules were applied to a letter of an older version: whatever had been in the buffer.
Records that are too large have coordinates.
"""

_OLD_NAMESPACE: Final = bytes.fromhex("c1c5cf4e9d1f4c0b8a3e7b62d90f54a7")
"""The namespace of the uuids of older letters. It never changes: each destination has a file of
its own.
"""

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
        attributes TEXT NOT NULL DEFAULT '',
        ruled INTEGER NOT NULL DEFAULT 0,
        sender_key TEXT,
        new_uuid TEXT NOT NULL DEFAULT ''
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


class UnreadableDatabase(Exception):
    """The file is no dead letters' database that this version can read; the message says why."""


class DeadLetterDatabase:
    """The database and its connection, which is opened again after a failure.

    Used by one thread at a time: during the opening by the loop's, from then on by the commit
    thread. `connection` is None while there is none; `read_only`: it can't write, and `writable`
    tries another one.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection | None = None, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.connection = connection
        self.read_only = read_only

    def writable(self) -> sqlite3.Connection:
        """A connection that may write. Raises `sqlite3.Error`, `OSError` or
        `schema.UnreadableDatabase`.
        """
        if self.connection is None or self.read_only:
            connection = open_writable(self.path)
            self.close()
            self.connection = connection
            self.read_only = False
        return self.connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection = self.connection
        self.connection = None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def open_writable(path: Path) -> sqlite3.Connection:
    """A connection that writes. Creates the tables of a new file, and upgrades those of an older
    version.

    Raises `UnreadableDatabase` for a file of another kind or version, and `sqlite3.Error` or
    `OSError` if it can't be used now.
    """
    _check_header(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        version = _version(connection)
        if not version:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LARGEST_IDLE_WAL}")
        if version < VERSION:
            _upgrade(connection)
    except BaseException as error:
        connection.close()
        raise _classified(error) from error
    return connection


def open_readable(path: Path) -> sqlite3.Connection:
    """A connection that only reads. Raises as `open_writable` does, and `UnreadableDatabase` also
    for an empty file.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(
        uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True, check_same_thread=False
    )
    try:
        version = _version(connection)
        if version and version < VERSION:
            _show_as_new(connection)
    except BaseException as error:
        connection.close()
        raise _classified(error) from error
    if not version:
        connection.close()
        raise UnreadableDatabase("it is empty")
    return connection


def name_old_letters(connection: sqlite3.Connection) -> None:
    """Give a uuid to the letters of an older version that were never stamped, within a
    transaction.
    """
    rows = connection.execute(
        """
        SELECT source, coordinates, at, crc, row_number() OVER (
            PARTITION BY source, coordinates, at, crc ORDER BY number
        ), number
        FROM letters WHERE sender_key IS NULL AND NOT ruled AND new_uuid = ''
        """
    ).fetchall()
    connection.executemany(
        "UPDATE letters SET new_uuid = ? WHERE number = ?",
        [(uuid5(_OLD_NAMESPACE, repr(row).encode()).decode(), number) for *row, number in rows],
    )


def _missing(connection: sqlite3.Connection) -> list[str]:
    """The columns that the table hasn't."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(letters)")}
    return [name for name in _ADDED if name not in columns]


def _show_as_new(connection: sqlite3.Connection) -> None:
    """Show a table of an older version as one of this version."""
    values = {"attributes": "''", "ruled": _OLD_RULED, "sender_key": "NULL", "new_uuid": "''"}
    added = ", ".join([f"{values[name]} AS {name}" for name in _missing(connection)])
    if added:
        # A temporary view hides the table of the same name. The columns are constants.
        view = f"SELECT *, {added} FROM main.letters"  # noqa: S608
        connection.execute(f"CREATE TEMP VIEW letters AS {view}")


def check(connection: sqlite3.Connection) -> None:
    """Check every page. Raises `UnreadableDatabase`, or `sqlite3.Error` if that can't
    be done now.
    """
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise _classified(error) from error
    if found != "ok":
        raise UnreadableDatabase(str(found).replace("\n", " "))


def _classified(error: BaseException) -> BaseException:
    """`UnreadableDatabase` if the error says that the file is corrupt or of another kind; else the
    error itself.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
    ):
        return UnreadableDatabase(error_text(error))
    return error


def _check_header(path: Path) -> None:
    """Create a missing file. Raises `UnreadableDatabase` for a foreign file before SQLite opens it
    and changes it.
    """
    descriptor = open_file(path, os.O_RDWR)  # SQLite would create it readable for all
    try:
        header = os.pread(descriptor, _HEADER_SIZE, 0)
    finally:
        os.close(descriptor)
    if header and not header.startswith(_MAGIC):
        raise UnreadableDatabase("it is not a database")
    version = int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big")
    if version and not _OLDEST <= version <= VERSION:
        raise UnreadableDatabase(_other_version(version))


def _other_version(version: int) -> str:
    return f"it is of version {version} of the format; this forwarder reads {_OLDEST} to {VERSION}"


def _version(connection: sqlite3.Connection) -> int:
    """The version of the tables; 0: there are none. Raises `UnreadableDatabase` for an
    unknown one.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (version or tables) and not _OLDEST <= version <= VERSION:
        raise UnreadableDatabase(_other_version(version))
    return int(version)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Create or upgrade the tables in one transaction. Another process may have done
    it meanwhile.
    """
    connection.execute("BEGIN IMMEDIATE")
    if not _version(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
    else:
        for name in _missing(connection):
            connection.execute(f"ALTER TABLE letters ADD COLUMN {name} {_ADDED[name]}")
        # the condition is a constant
        older = f"sender_key IS NULL AND ({_OLD_RULED})"
        connection.execute(f"UPDATE letters SET ruled = 1 WHERE {older}")  # noqa: S608
        name_old_letters(connection)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
