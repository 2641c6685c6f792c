"""Copying what can still be read of a dead letters' file that is damaged.

A page that can't be read hides the rows on it; those before it are found from the one end, those after it from the other, and those in
between one by one. A row counts as readable only if its bytes have the checksum that they were written with.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isal.isal_zlib import crc32

from forwarder.core.ports import Reason
from forwarder.deadletter.schema import Garbled, open_readable

COLUMNS: Final = (
    "number, reason, api_key, historical, at, why, source, coordinates, sequence, idx, receipt, cost, event, distinct_id, uuid, crc,"
    " mark, rate, note, data, replacement, attributes"
)
_NAMES: Final = COLUMNS.replace(" ", "").split(",")
_SINGLY: Final = 100_000
"""Rows in a damaged stretch that are tried one by one."""


@dataclass(slots=True)
class Salvaged:
    """What was copied."""

    letters: int = 0
    unreadable: int = 0
    """Rows that must have been there: numbers between the first and the last that can be read, at least."""


def salvage(damaged: Path, fresh: sqlite3.Connection) -> Salvaged:
    """Copy all that can be read of the file `damaged` into the tables of `fresh`, in one transaction.

    Raises `sqlite3.Error` if `fresh` can't be written; what can't be read is counted.
    """
    try:
        source = open_readable(damaged)
    except (sqlite3.Error, OSError, Garbled):
        return Salvaged()
    found = Salvaged()
    fresh.execute("BEGIN IMMEDIATE")
    try:
        for row in _rows(source, found):
            fresh.execute(f"INSERT OR IGNORE INTO letters ({COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - constants
            found.letters += 1
        _copy_counters(source, fresh, found.letters)
        _keep_numbers(source, fresh)
        fresh.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            fresh.execute("ROLLBACK")
        raise
    finally:
        source.close()
    return found


def _rows(source: sqlite3.Connection, found: Salvaged) -> Iterator[tuple[Any, ...]]:
    first, last = -1, -1
    for row in _walk(source, "ASC"):
        first = row[0]
        if _is_sound(row):
            yield row
        else:
            found.unreadable += 1
    for row in _walk(source, "DESC", after=first):
        last = row[0] if last < 0 else min(last, row[0])
        if _is_sound(row):
            yield row
        else:
            found.unreadable += 1
    for number in range(first + 1, min(last, first + 1 + _SINGLY)):
        try:
            one = source.execute(f"SELECT {COLUMNS} FROM letters WHERE number = ?", (number,)).fetchone()  # noqa: S608 - constants
        except sqlite3.Error:
            found.unreadable += 1
            continue
        if one is not None and _is_sound(one):
            yield one
        elif one is not None:
            found.unreadable += 1


def _walk(source: sqlite3.Connection, order: str, after: int = -1) -> Iterator[tuple[Any, ...]]:
    """The rows from one end of the table up to the first that can't be read."""
    with contextlib.suppress(sqlite3.Error):
        yield from source.execute(f"SELECT {COLUMNS} FROM letters WHERE number > ? ORDER BY number {order}", (after,))  # noqa: S608 - constants


def _is_sound(row: tuple[Any, ...]) -> bool:
    value = dict(zip(_NAMES, row, strict=True))
    if not (isinstance(value["number"], int) and isinstance(value["data"], bytes) and value["reason"] in list(Reason)):
        return False
    return isinstance(value["cost"], int) and crc32(value["data"]) == value["crc"]


def _copy_counters(source: sqlite3.Connection, fresh: sqlite3.Connection, letters: int) -> None:
    """The counters; if they can't be read, what the letters without a place say."""
    try:
        rows = source.execute("SELECT api_key, historical, kind, name, count FROM counters").fetchall()
    except sqlite3.Error:
        if letters:
            fresh.execute(
                "INSERT INTO counters SELECT coalesce(api_key, ''), historical, 'received', source, count(*)"
                " FROM letters WHERE sequence IS NULL GROUP BY api_key, historical, source"
            )
        return
    fresh.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?, ?)", rows)


def _keep_numbers(source: sqlite3.Connection, fresh: sqlite3.Connection) -> None:
    """Numbers go on where they were, as far as that can be read."""
    with contextlib.suppress(sqlite3.Error):
        row = source.execute("SELECT seq FROM sqlite_sequence WHERE name = 'letters'").fetchone()
        if row is not None:
            fresh.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'letters'", row)
            if fresh.execute("SELECT changes()").fetchone() == (0,):
                fresh.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('letters', ?)", row)
