"""What the commands do in the dead letters' database: select by number, uuid, reason, event, lane
and time; mark; drop.

Invariants: transactions are short, so that a running daemon hardly waits; an event's own bytes are
never changed. Only `drop_now` removes rows, and needs the directory's lock.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from isal.isal_zlib import crc32

from forwarder.core.event import Lane
from forwarder.deadletter.table import drop, lane_of
from forwarder.telemetry.labels import UNDECODABLE, lane_label

_COLUMNS: Final = (
    "number, reason, api_key, historical, at, why, source, coordinates, event, distinct_id, uuid, "
    "length(data), mark, rate, note, cost, attributes"
)
_PLAIN_UUID: Final = "replace(lower(uuid), '-', '')"
GROUP_SIZE: Final = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions of a selection; an empty one excludes nothing. `numbers` and
    `uuids` are alternatives.
    """

    numbers: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    """32 hexadecimal digits each."""
    reason: str = ""
    event: str = ""
    lanes: tuple[str, ...] = ()
    """Labels, each an alternative."""
    since: float | None = None
    """Wall-clock seconds."""


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter without its bytes, whose number is `size`."""

    number: int
    reason: str
    lane: Lane | None
    at: float
    why: str
    source: str
    coordinates: str
    event: str | None
    distinct_id: str | None
    uuid: str | None
    size: int
    mark: str | None
    rate: float | None
    note: str | None
    cost: int
    attributes: str
    """What its source knows of it, as the text of a JSON object, or empty."""

    @property
    def label(self) -> str:
        """Its lane's label."""
        return label_of(self.lane)


@dataclass(frozen=True, slots=True)
class DeadLetterContent:
    """A dead letter's bytes, and an operator's replacement."""

    data: bytes
    replacement: bytes | None
    intact: bool
    """Whether the bytes have the checksum that they were written with."""


def label_of(lane: Lane | None) -> str:
    """The label of a dead letter's lane."""
    return UNDECODABLE if lane is None else lane_label(lane)


def count_of(connection: sqlite3.Connection, criteria: DeadLetterFilter) -> int:
    """How many dead letters are selected."""
    where, values = _where(connection, criteria)
    # S608: the condition has placeholders for its values.
    statement = f"SELECT count(*) FROM letters WHERE {where}"  # noqa: S608
    count: int = connection.execute(statement, values).fetchone()[0]
    return count


def numbers_of(
    connection: sqlite3.Connection, criteria: DeadLetterFilter, limit: int | None = None
) -> list[int]:
    """The numbers of the selected dead letters, oldest first."""
    where, values = _where(connection, criteria)
    # S608: the condition has placeholders for its values.
    statement = f"SELECT number FROM letters WHERE {where} ORDER BY number LIMIT ?"  # noqa: S608
    return [
        row[0] for row in connection.execute(statement, (*values, -1 if limit is None else limit))
    ]


def summaries(
    connection: sqlite3.Connection, criteria: DeadLetterFilter, limit: int | None = None
) -> list[DeadLetterSummary]:
    """The selected dead letters, newest first."""
    where, values = _where(connection, criteria)
    # S608: the condition has placeholders for its values.
    statement = f"""
        SELECT {_COLUMNS} FROM letters WHERE {where} ORDER BY number DESC LIMIT ?
    """  # noqa: S608
    rows = connection.execute(statement, (*values, -1 if limit is None else limit))
    return [_summary(row) for row in rows]


def marked_of(connection: sqlite3.Connection) -> int:
    """How many dead letters are marked for replay."""
    statement = "SELECT count(*) FROM letters WHERE mark = 'replay'"
    count: int = connection.execute(statement).fetchone()[0]
    return count


def has_marks(connection: sqlite3.Connection) -> bool:
    """Whether dead letters are marked, for replay or to be dropped."""
    statement = "SELECT EXISTS (SELECT 1 FROM letters WHERE mark IS NOT NULL)"
    return bool(connection.execute(statement).fetchone()[0])


def first_source(connection: sqlite3.Connection) -> str:
    """The source of the first dead letter; empty if there is none."""
    row = connection.execute("SELECT source FROM letters ORDER BY number LIMIT 1").fetchone()
    return "" if row is None else str(row[0])


def content_of(connection: sqlite3.Connection, number: int) -> DeadLetterContent | None:
    """A dead letter's bytes; None if it is removed."""
    row = connection.execute(
        "SELECT data, replacement, crc FROM letters WHERE number = ?", (number,)
    ).fetchone()
    return None if row is None else DeadLetterContent(row[0], row[1], crc32(row[0]) == row[2])


def contents(connection: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """The bytes of these dead letters, except removed ones."""
    for number in numbers:
        content = content_of(connection, number)
        if content is not None:
            yield number, content.data


def _summary(row: Sequence[Any]) -> DeadLetterSummary:
    number, reason, api_key, historical, *rest = row
    return DeadLetterSummary(number, reason, lane_of(api_key, historical), *rest)


def _where(connection: sqlite3.Connection, criteria: DeadLetterFilter) -> tuple[str, list[Any]]:
    """The condition, with the values of its placeholders."""
    parts: list[str] = []
    values: list[Any] = []
    if criteria.numbers or criteria.uuids:
        numbers, uuids = ("?," * len(group) for group in (criteria.numbers, criteria.uuids))
        parts.append(f"(number IN ({numbers[:-1]}) OR {_PLAIN_UUID} IN ({uuids[:-1]}))")
        values += [*criteria.numbers, *criteria.uuids]
    for condition, value in (("reason = ?", criteria.reason), ("event = ?", criteria.event)):
        if value:
            parts.append(condition)
            values.append(value)
    if criteria.since is not None:
        parts.append("at >= ?")
        values.append(criteria.since)
    if criteria.lanes:
        rows = connection.execute("SELECT DISTINCT api_key, historical FROM letters")
        lanes = [row for row in rows if label_of(lane_of(*row)) in criteria.lanes]
        parts.append(
            "(" + " OR ".join(["(api_key IS ? AND historical = ?)"] * len(lanes) or ["0"]) + ")"
        )
        values += [column for row in lanes for column in row]
    return " AND ".join(parts) or "1", values


def mark_for_replay(
    connection: sqlite3.Connection,
    replays: Iterable[tuple[int, bytes | None]],
    rate: float | None,
    progress: Callable[[int], None],
) -> list[int]:
    """Mark dead letters (number, and a replacement); return those that exist. `progress` is called
    with the size of each step.
    """
    marked: list[int] = []
    statement = (
        "UPDATE letters SET mark = 'replay', replacement = ?, rate = ?, note = NULL WHERE "
        "number = ?"
    )
    for group in _groups(replays):
        with _transaction(connection):
            marked += [
                number
                for number, data in group
                if connection.execute(statement, (data, rate, number)).rowcount
            ]
        progress(len(group))
    return marked


def mark_for_drop(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[int]:
    """Mark dead letters for the daemon to drop; return those that exist."""
    marked: list[int] = []
    statement = "UPDATE letters SET mark = 'drop', replacement = NULL WHERE number = ?"
    for group in _groups(numbers):
        with _transaction(connection):
            marked += [
                number for number in group if connection.execute(statement, (number,)).rowcount
            ]
    return marked


def drop_now(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Drop dead letters and count them, for a process that holds the directory's lock; return how
    many existed.
    """
    dropped = 0
    for group in _groups(numbers):
        with _transaction(connection):
            dropped += len(drop(connection, f"number IN ({','.join(map(str, group))})", ()))
    connection.execute("PRAGMA incremental_vacuum").fetchall()
    return dropped


def still_marked(connection: sqlite3.Connection, mark: str, numbers: set[int]) -> set[int]:
    """Which of these dead letters still have the mark."""
    return {
        row[0] for row in connection.execute("SELECT number FROM letters WHERE mark = ?", (mark,))
    } & numbers


def notes_of(connection: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Why dead letters could not be replayed, of those that have such a note."""
    notes: dict[int, str] = {}
    for group in _groups(numbers):
        # S608: what is put into the statement is numbers.
        statement = f"""
            SELECT number, note FROM letters
            WHERE note IS NOT NULL AND mark IS NULL AND number IN ({",".join(map(str, group))})
        """  # noqa: S608
        notes.update(connection.execute(statement))
    return notes


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
        if len(group) >= GROUP_SIZE:
            yield group
            group = []
    if group:
        yield group
