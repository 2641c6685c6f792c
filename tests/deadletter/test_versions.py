"""Files of an older version: written by what was there before, read and brought up to date by what
is there now.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Final
from uuid import UUID

from isal.isal_zlib import crc32
from structlog.testing import capture_logs

from forwarder.core.ports import Reason
from forwarder.deadletter.schema import VERSION, open_readable, open_writable
from forwarder.deadletter.selection import DeadLetterFilter, content_of, mark_for_drop, summaries
from forwarder.storage.directory import ASIDE, DEAD_LETTERS
from tests.deadletter.rig import LANE, StoreRig, event_letter, query, started

EVENT: Final = b'{"event":"old"}'

VERSION_1: Final = """
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    CREATE TABLE letters (number INTEGER PRIMARY KEY AUTOINCREMENT, reason TEXT NOT NULL, api_key \
TEXT, historical INTEGER NOT NULL,
        at REAL NOT NULL, why TEXT NOT NULL, source TEXT NOT NULL, coordinates TEXT NOT NULL, \
sequence INTEGER, idx INTEGER,
        receipt INTEGER NOT NULL, cost INTEGER NOT NULL, event TEXT, distinct_id TEXT, uuid TEXT, \
crc INTEGER NOT NULL, mark TEXT,
        rate REAL, note TEXT, data BLOB NOT NULL, replacement BLOB);
    CREATE UNIQUE INDEX letters_by_place ON letters (sequence, idx) WHERE sequence IS NOT NULL;
    CREATE INDEX letters_by_mark ON letters (mark, number) WHERE mark IS NOT NULL;
    CREATE INDEX letters_by_uuid ON letters (uuid) WHERE uuid IS NOT NULL;
    CREATE TABLE counters (api_key TEXT NOT NULL, historical INTEGER NOT NULL, kind TEXT NOT \
NULL, name TEXT NOT NULL,
        count INTEGER NOT NULL, PRIMARY KEY (api_key, historical, kind, name)) WITHOUT ROWID;
    PRAGMA user_version = 1;
"""


def old_file(directory: Path, letters: int = 3) -> Path:
    """A file of version 1 with letters in it, as a daemon of that version leaves it."""
    path = directory / DEAD_LETTERS
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(VERSION_1)
        row = ("refused", LANE.api_key, 0, 12.5, "400: no", "http", "", 0, 500, crc32(EVENT), EVENT)
        columns = (
            "reason, api_key, historical, at, why, source, coordinates, receipt, cost, crc, data"
        )
        for _ in range(letters):
            connection.execute(
                f"INSERT INTO letters ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row
            )
        connection.execute(
            "INSERT INTO counters VALUES (?, 0, 'received', 'http', ?)", (LANE.api_key, letters)
        )
    return path


OLD_LETTERS: Final = (
    ("refused", "http", "", 0, b'{"n":1,"uuid":"x"}', True),
    ("gave_up", "kafka", "", 0, b'{"n":2}', True),
    ("undelivered_at_exit", "http", "", 0, b'{"n":3}', True),
    ("lane_halted", "kafka", "", 0, b'{"n":4}', True),
    ("too_large", "http", "", 0, b'{"n":5}', True),
    ("too_large", "http", "", 1, b'{"n":6}', False),
    ("too_large", "kafka", "c/t/0/7", 0, b'{"n":7}', False),
    ("missing_event", "http", "", 1, b'{"n":8}', False),
    ("missing_event", "http", "", 1, b'{"n":8}', False),
    ("rule_failed", "kafka", "", 0, b'{"n":9}', False),
)
"""Reason, source, coordinates, whether at receipt, bytes; and whether rules were applied."""


def version_2(directory: Path, number: int = 0) -> Path:
    """A file of version 2 with letters of every kind, numbered behind `number`."""
    directory.mkdir(exist_ok=True)
    path = directory / DEAD_LETTERS
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(VERSION_1)
        connection.execute("ALTER TABLE letters ADD COLUMN attributes TEXT NOT NULL DEFAULT ''")
        connection.execute("PRAGMA user_version = 2")
        for at, (reason, source, coordinates, receipt, data, _) in enumerate(OLD_LETTERS, 1):
            connection.execute(
                "INSERT INTO letters (number, reason, api_key, historical, at, why, source, "
                "coordinates, receipt, cost, crc, data) VALUES (?, ?, ?, 0, 12.5, '', ?, ?, ?, "
                "500, ?, ?)",
                (
                    number + at,
                    reason,
                    LANE.api_key,
                    source,
                    coordinates,
                    receipt,
                    crc32(data),
                    data,
                ),
            )
    return path


def test_old_letters_are_brought_up_to_what_a_replay_has_to_know(tmp_path: Path) -> None:
    """Whether rules were applied, and a uuid for each event that was never stamped: the same in
    the files of all destinations, however often the file is opened.
    """
    columns = "SELECT ruled, sender_key, new_uuid FROM letters ORDER BY number"
    path = version_2(tmp_path)
    with contextlib.closing(open_readable(path)) as connection:
        read = connection.execute(columns).fetchall()
    open_writable(path).close()
    rows = query(tmp_path, columns)
    assert [row[:2] for row in rows] == [(int(letter[-1]), None) for letter in OLD_LETTERS]
    assert [row[:2] for row in read] == [row[:2] for row in rows]
    uuids = [uuid for ruled, _, uuid in rows if not ruled]
    assert len({UUID(uuid) for uuid in uuids}) == len(uuids)
    assert {uuid for ruled, _, uuid in rows if ruled} == {""}
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 2")
    other = version_2(tmp_path / "other", 100)
    for database in (path, other):
        open_writable(database).close()
    assert query(tmp_path, columns) == query(other.parent, columns) == rows


def version(directory: Path) -> int:
    """The version of the file."""
    return int(query(directory, "PRAGMA user_version")[0][0])


async def test_an_old_file_is_brought_up_to_date_in_place(tmp_path: Path) -> None:
    """The store continues with its letters, its numbers and its books, and keeps new ones with all
    that is known of them.
    """
    old_file(tmp_path)
    async with started(tmp_path) as rig:
        assert rig.store.statistics().dead_letters == 3
        assert rig.store.accounts()[LANE].dead_lettered == {Reason.REFUSED: 3}
        rig.store.add([event_letter(b'{"event":"new"}', attributes='{"offset":7}')])
        await rig.commit()
    assert version(tmp_path) == VERSION
    assert query(tmp_path, "SELECT number, data, attributes FROM letters") == [
        *[(number, EVENT, "") for number in (1, 2, 3)],
        (4, b'{"event":"new"}', '{"offset":7}'),
    ]
    assert not (tmp_path / ASIDE).exists()


def test_an_old_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Commands that only look change nothing."""
    path = old_file(tmp_path)
    with contextlib.closing(open_readable(path)) as connection:
        letters = summaries(connection, DeadLetterFilter(reason="refused"), 2)
        assert [(letter.number, letter.attributes) for letter in letters] == [(3, ""), (2, "")]
        content = content_of(connection, 1)
    assert content is not None
    assert (content.data, content.intact) == (EVENT, True)
    assert version(tmp_path) == 1


def test_a_migrated_file_stays_migrated_beside_an_older_daemon(tmp_path: Path) -> None:
    """Also beside a daemon of the older version, which keeps writing, and says again which
    version it has.
    """
    path = old_file(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as older:
        with contextlib.closing(open_writable(path)) as connection:
            assert mark_for_drop(connection, [1]) == [1]
        older.execute("UPDATE letters SET note = 'seen' WHERE number = 2")
        older.execute("PRAGMA user_version = 1")
        older.commit()
    for _ in range(2):
        open_writable(path).close()
    assert version(tmp_path) == VERSION
    assert query(tmp_path, "SELECT mark, note, attributes FROM letters") == [
        ("drop", None, ""),
        (None, "seen", ""),
        (None, None, ""),
    ]


def test_an_old_file_that_cant_be_written_is_read(tmp_path: Path) -> None:
    """By a daemon, too: its letters count, and it is brought up to date once that can be done."""
    path = old_file(tmp_path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # somebody else writes, and doesn't end
    with capture_logs(), contextlib.closing(other):
        rig = StoreRig(tmp_path)
        try:
            assert (
                rig.store.statistics().dead_letters,
                rig.store.accounts()[LANE].dead_lettered,
            ) == (
                3,
                {Reason.REFUSED: 3},
            )
            assert rig.store.statistics().failing
        finally:
            rig.store.close()
    open_writable(path).close()
    assert version(tmp_path) == VERSION


def test_a_damaged_old_file_is_saved_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    """Into a new one of the version of now."""
    path = old_file(tmp_path, letters=2000)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)
    with capture_logs():
        rig = StoreRig(tmp_path)
    try:
        assert 1500 < rig.store.statistics().dead_letters < 2000
    finally:
        rig.store.close()
    assert version(tmp_path) == VERSION
    shutil.rmtree(tmp_path / ASIDE)
