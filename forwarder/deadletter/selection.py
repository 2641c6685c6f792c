"""Choosing letters in a dead letters' file, for the commands: by number, uuid, reason, event, lane and time. It only reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from isal.isal_zlib import crc32

from forwarder.core.event import Lane
from forwarder.deadletter.writing import lane_of
from forwarder.telemetry.labels import UNDECODABLE, lane_label

_COLUMNS: Final = (
    "number, reason, api_key, historical, at, why, source, coordinates, event, distinct_id, uuid, length(data), mark, rate, note, cost,"
    " attributes"
)
_PLAIN_UUID: Final = "replace(lower(uuid), '-', '')"
AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which letters are meant; what is empty excludes none. Of `numbers` and `uuids` a letter needs one."""

    numbers: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    """32 hexadecimal digits each."""
    reason: str = ""
    event: str = ""
    lane: str = ""
    """A label."""
    since: float | None = None
    """Wall-clock seconds."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A letter without its bytes. `size` is theirs."""

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
    """What its source knows of it, as the text of a JSON object; empty if nothing."""

    @property
    def label(self) -> str:
        """Its lane's label."""
        return label_of(self.lane)


@dataclass(frozen=True, slots=True)
class Content:
    """A letter's bytes, and what somebody put in their place."""

    data: bytes
    replacement: bytes | None
    intact: bool
    """Whether the bytes have the checksum that they were written with."""


def label_of(lane: Lane | None) -> str:
    """How a letter's lane is shown."""
    return UNDECODABLE if lane is None else lane_label(lane)


def count_of(connection: sqlite3.Connection, criteria: Criteria) -> int:
    """How many letters are meant."""
    where, values = _where(connection, criteria)
    found: int = connection.execute(f"SELECT count(*) FROM letters WHERE {where}", values).fetchone()[0]  # noqa: S608 - placeholders
    return found


def numbers_of(connection: sqlite3.Connection, criteria: Criteria, limit: int | None = None) -> list[int]:
    """The numbers of the letters that are meant, the oldest first."""
    where, values = _where(connection, criteria)
    statement = f"SELECT number FROM letters WHERE {where} ORDER BY number LIMIT ?"  # noqa: S608 - placeholders
    return [row[0] for row in connection.execute(statement, (*values, -1 if limit is None else limit))]


def summaries(connection: sqlite3.Connection, criteria: Criteria, limit: int | None = None) -> list[Summary]:
    """The letters that are meant, the newest first."""
    where, values = _where(connection, criteria)
    statement = f"SELECT {_COLUMNS} FROM letters WHERE {where} ORDER BY number DESC LIMIT ?"  # noqa: S608 - placeholders
    return [_summary(row) for row in connection.execute(statement, (*values, -1 if limit is None else limit))]


def marked_of(connection: sqlite3.Connection) -> int:
    """How many letters are marked to be replayed."""
    found: int = connection.execute("SELECT count(*) FROM letters WHERE mark = 'replay'").fetchone()[0]
    return found


def first_source(connection: sqlite3.Connection) -> str:
    """Where the file's first letter came from; empty if there is none."""
    row = connection.execute("SELECT source FROM letters ORDER BY number LIMIT 1").fetchone()
    return "" if row is None else str(row[0])


def content_of(connection: sqlite3.Connection, number: int) -> Content | None:
    """A letter's bytes; None if it is gone."""
    row = connection.execute("SELECT data, replacement, crc FROM letters WHERE number = ?", (number,)).fetchone()
    return None if row is None else Content(row[0], row[1], crc32(row[0]) == row[2])


def contents(connection: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """The bytes of these letters, as far as they are still there."""
    for number in numbers:
        content = content_of(connection, number)
        if content is not None:
            yield number, content.data


def _summary(row: Sequence[Any]) -> Summary:
    number, reason, api_key, historical, *rest = row
    return Summary(number, reason, lane_of(api_key, historical), *rest)


def _where(connection: sqlite3.Connection, criteria: Criteria) -> tuple[str, list[Any]]:
    """The condition, with the values of its placeholders."""
    parts: list[str] = []
    values: list[Any] = []
    if criteria.numbers or criteria.uuids:
        numbers, uuids = ("?," * len(each) for each in (criteria.numbers, criteria.uuids))
        parts.append(f"(number IN ({numbers[:-1]}) OR {_PLAIN_UUID} IN ({uuids[:-1]}))")
        values += [*criteria.numbers, *criteria.uuids]
    for condition, value in (("reason = ?", criteria.reason), ("event = ?", criteria.event)):
        if value:
            parts.append(condition)
            values.append(value)
    if criteria.since is not None:
        parts.append("at >= ?")
        values.append(criteria.since)
    if criteria.lane:
        rows = connection.execute("SELECT DISTINCT api_key, historical FROM letters")
        lanes = [row for row in rows if label_of(lane_of(*row)) == criteria.lane]
        parts.append("(" + " OR ".join(["(api_key IS ? AND historical = ?)"] * len(lanes) or ["0"]) + ")")
        values += [each for row in lanes for each in row]
    return " AND ".join(parts) or "1", values
