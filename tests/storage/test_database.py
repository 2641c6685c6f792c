"""SQLite files with a version of their format."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from forwarder.storage.database import DatabaseFormat, OtherVersion, UnreadableDatabase

FORMAT: Final = DatabaseFormat(
    oldest=1,
    newest=2,
    tables=("CREATE TABLE notes (text TEXT, at REAL)",),
    busy_seconds=0.01,
    pragma="PRAGMA auto_vacuum = INCREMENTAL",
    upgrade=lambda connection: connection.execute("ALTER TABLE notes ADD at REAL"),
    present=lambda connection: connection.execute(
        "CREATE TEMP VIEW notes AS SELECT text, 0.0 AS at FROM main.notes"
    ),
)
FIRST: Final = replace(FORMAT, newest=1, tables=("CREATE TABLE notes (text TEXT)",))


def made(path: Path, form: DatabaseFormat) -> Path:
    """A file of this format, with a note."""
    path.touch()
    with closing(form.open_writable(path)) as connection:
        connection.execute("INSERT INTO notes (text) VALUES ('one')")
    return path


def test_new_file_survives_a_crash_after_each_commit(tmp_path: Path) -> None:
    """It has a write-ahead log, and is synchronous."""
    path = made(tmp_path / "notes.db", FORMAT)
    with closing(FORMAT.open_writable(path, check=True)) as connection:
        names = ("journal_mode", "synchronous", "journal_size_limit", "auto_vacuum", "user_version")
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert pragmas == ["wal", 2, 4 << 20, 2, 2]


def test_older_file_is_upgraded_by_a_writer_and_presented_to_a_reader(tmp_path: Path) -> None:
    """A reader sees the newest tables, and changes nothing."""
    path = made(tmp_path / "notes.db", FIRST)
    with closing(FORMAT.open_readable(path)) as connection:
        assert connection.execute("SELECT text, at FROM notes").fetchall() == [("one", 0.0)]
        assert FORMAT.version(connection) == 1
    with closing(FORMAT.open_writable(path)) as connection:
        assert connection.execute("SELECT text, at FROM notes").fetchall() == [("one", None)]
        assert FORMAT.version(connection) == 2


def test_file_of_another_version_is_not_changed(tmp_path: Path) -> None:
    """The error says which versions are read."""
    path = made(tmp_path / "notes.db", FORMAT)
    before = path.read_bytes()
    with pytest.raises(OtherVersion, match=r"of version 2 of the format; this forwarder reads 1$"):
        FIRST.open_writable(path)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OtherVersion, match=r"reads 3 to 4$"):
        replace(FORMAT, oldest=3, newest=4).open_readable(path)
    assert path.read_bytes() == before


def test_tables_of_another_program_are_another_version(tmp_path: Path) -> None:
    """Nothing is added to them."""
    path = tmp_path / "notes.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(OtherVersion, match="version 0"):
        FORMAT.open_writable(path)


def test_what_is_no_database_or_a_damaged_one_is_unreadable(tmp_path: Path) -> None:
    """A damaged page is found where all are checked."""
    path = tmp_path / "notes.db"
    path.write_bytes(b"somebody's file\n" * 100)
    with pytest.raises(UnreadableDatabase, match="not a database"):
        FORMAT.open_writable(path)
    with pytest.raises(UnreadableDatabase, match="not a database"):
        FORMAT.open_readable(path)
    path.unlink()
    data = bytearray(made(path, FORMAT).read_bytes())
    data[-4096:] = b"\xff" * 4096
    path.write_bytes(data)
    FORMAT.open_readable(path).close()
    with pytest.raises(UnreadableDatabase):
        FORMAT.open_readable(path, check=True)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """Anyone who opens it creates it, with permissions of its own."""
    for opening in (FORMAT.open_writable, FORMAT.open_readable):
        with pytest.raises((sqlite3.OperationalError, FileNotFoundError)):
            opening(tmp_path / "absent.db")
