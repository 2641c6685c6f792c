"""What the commands write into a dead letters' file: marks, and, where no daemon has it, what an operator drops.

Invariants: short transactions, so that a running daemon hardly waits; a letter's own bytes are never changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from forwarder.deadletter.selection import AT_ONCE
from forwarder.deadletter.writing import drop

T = TypeVar("T")


def mark_for_replay(
    connection: sqlite3.Connection, letters: Iterable[tuple[int, bytes | None]], rate: float | None, told: Callable[[int], None]
) -> list[int]:
    """Mark letters (number, and what is to be sent in its place); which were there. `told` hears how many are done."""
    marked: list[int] = []
    statement = "UPDATE letters SET mark = 'replay', replacement = ?, rate = ?, note = NULL WHERE number = ?"
    for group in _groups(letters):
        with _transaction(connection):
            marked += [number for number, data in group if connection.execute(statement, (data, rate, number)).rowcount]
        told(len(group))
    return marked


def mark_for_drop(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[int]:
    """Mark letters that the daemon is to drop; which were there."""
    marked: list[int] = []
    statement = "UPDATE letters SET mark = 'drop', replacement = NULL WHERE number = ?"
    for group in _groups(numbers):
        with _transaction(connection):
            marked += [number for number in group if connection.execute(statement, (number,)).rowcount]
    return marked


def drop_now(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Drop letters and count them, where this process has the directory's lock; how many were there."""
    dropped = 0
    for group in _groups(numbers):
        with _transaction(connection):
            dropped += len(drop(connection, f"number IN ({','.join(map(str, group))})", ()))
    connection.execute("PRAGMA incremental_vacuum").fetchall()
    return dropped


def still_marked(connection: sqlite3.Connection, mark: str, numbers: set[int]) -> set[int]:
    """Which of the letters still have the mark."""
    return {row[0] for row in connection.execute("SELECT number FROM letters WHERE mark = ?", (mark,))} & numbers


def notes_of(connection: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Why letters could not be replayed, of those that have such a note."""
    found: dict[int, str] = {}
    for group in _groups(numbers):
        where = f"number IN ({','.join(map(str, group))})"
        found.update(connection.execute(f"SELECT number, note FROM letters WHERE note IS NOT NULL AND mark IS NULL AND {where}"))  # noqa: S608 - numbers
    return found


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _groups(items: Iterable[T]) -> Iterator[list[T]]:
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) >= AT_ONCE:
            yield group
            group = []
    if group:
        yield group
