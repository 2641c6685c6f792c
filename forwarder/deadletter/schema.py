"""The dead letters' database, `dead-letters.db`: an SQLite file whose `user_version` is the
version of this format.

`dead_letters`: one row an event.
- `number`: never used twice, so that a record in the log may name the dead letter that it replays;
  `place` (`sequence`, `idx`): the event's position in the log, unique, so that no event is
  dead-lettered twice; NULL where there was no log.
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

from forwarder.core.stamps import uuid5
from forwarder.storage.database import DatabaseFormat, UnreadableDatabase
from forwarder.storage.private import open_file

VERSION: Final = 3
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
        `UnreadableDatabase`.
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


def open_writable(path: Path, *, check: bool = False) -> sqlite3.Connection:
    """A connection that writes. Creates a missing file, and upgrades one of an older version.
    Raises as `DatabaseFormat` says.
    """
    os.close(open_file(path, os.O_RDWR))  # SQLite would create it readable for all
    return FORMAT.open_writable(path, check=check)


def open_readable(path: Path, *, check: bool = False) -> sqlite3.Connection:
    """A connection that only reads. Raises as `DatabaseFormat` says, and `UnreadableDatabase` also
    for an empty file.
    """
    return FORMAT.open_readable(path, check=check)


def name_old_dead_letters(connection: sqlite3.Connection) -> None:
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
    if not FORMAT.version(connection):
        raise UnreadableDatabase("it is empty")
    values = {"attributes": "''", "ruled": _OLD_RULED, "sender_key": "NULL", "new_uuid": "''"}
    added = ", ".join([f"{values[name]} AS {name}" for name in _missing(connection)])
    if added:
        # A temporary view hides the table of the same name. The columns are constants.
        view = f"SELECT *, {added} FROM main.letters"  # noqa: S608
        connection.execute(f"CREATE TEMP VIEW letters AS {view}")


def _upgrade(connection: sqlite3.Connection) -> None:
    for name in _missing(connection):
        connection.execute(f"ALTER TABLE letters ADD COLUMN {name} {_ADDED[name]}")
    # the condition is a constant
    older = f"sender_key IS NULL AND ({_OLD_RULED})"
    connection.execute(f"UPDATE letters SET ruled = 1 WHERE {older}")  # noqa: S608
    name_old_dead_letters(connection)


FORMAT: Final = DatabaseFormat(
    oldest=1,
    newest=VERSION,
    tables=_SCHEMA,
    busy_seconds=2.0,
    pragma="PRAGMA auto_vacuum = INCREMENTAL",
    upgrade=_upgrade,
    present=_show_as_new,
)
"""The daemon and the commands write in short transactions: no writer waits long for another."""
