"""What a commit does to the dead letters' file, on the commit thread: letters in, letters out, counters, all in one transaction.

Invariants: a job that is run again after a failure, even one that came after its transaction was committed, changes nothing twice: a letter
has its number before it is written, and what is counted is what a statement really changed. A letter whose place is taken by the same
event is that event, buried before; by another one (a log that was begun anew), it is kept without a place.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from isal.isal_zlib import crc32

from forwarder.core.ack import AckCallback
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, DropReason, Reason
from forwarder.deadletter.file import LetterFile
from forwarder.deadletter.records import cost_of
from forwarder.deadletter.schema import VERSION
from forwarder.storage import failpoints

DROPPED_AT_ONCE: Final = 1000
MARKED_BYTES: Final = 2 << 20
"""Bytes of marked letters that are read at once, or one letter."""

_LONGEST_TEXT: Final = 200
"""Characters of a name or an id that are kept for searching."""

_FREED_PAGES: Final = 256
"""Pages given back to the file system in a transaction that removes letters."""

_INSERT: Final = """INSERT OR IGNORE INTO letters (number, reason, api_key, historical, at, why, source, coordinates, sequence, idx,
    receipt, cost, event, distinct_id, uuid, crc, data, attributes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_COUNT: Final = """INSERT INTO counters (api_key, historical, kind, name, count) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (api_key, historical, kind, name) DO UPDATE SET count = count + excluded.count"""
_GONE: Final = "SELECT number, reason, api_key, historical, source, receipt, cost FROM letters WHERE "


_MARKED: Final = """SELECT number, reason, api_key, historical, at, rate, coalesce(replacement, data), crc, replacement IS NOT NULL,
    coordinates, attributes, (SELECT count(*) FROM letters AS other WHERE other.sequence = letters.sequence)
    FROM letters WHERE mark = 'replay' ORDER BY number"""


class _Head(msgspec.Struct, gc=False):
    event: Any = None
    distinct_id: Any = None
    uuid: Any = None


_decode_head = msgspec.json.Decoder(_Head).decode


class Entry(NamedTuple):
    """A letter that is to be written."""

    number: int
    letter: DeadLetter
    receipt: bool


class Marked(NamedTuple):
    """A letter that is to be replayed. `data` is what is to be sent: the event, or what it was edited to."""

    number: int
    reason: Reason
    lane: Lane | None
    at: float
    rate: float | None
    data: bytes
    intact: bool
    """Whether the bytes are those that were written."""
    edited: bool
    coordinates: str = ""
    attributes: str = ""
    together: int = 1
    """How many letters there are of the same record, this one too; one without a place is alone."""


class Gone(NamedTuple):
    """A letter that was removed."""

    number: int
    reason: Reason
    lane: Lane | None
    source: str
    receipt: bool
    cost: int


@dataclass(slots=True)
class Job:
    """See `storage.committer.CommitJob`. What is asked for comes first; the rest is what came of it, right once `run` has returned."""

    file: LetterFile
    logged: bool
    """Whether what is received is counted by a log; else by the letters alone."""
    letters: list[Entry] = field(default_factory=list)
    removals: list[int] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    """Letters whose mark is taken away, and why."""
    probe: bool = False
    """Whether to write in any case, to see if that can be done."""
    marked_wanted: int = 0
    """How many of the letters marked for a replay are wanted; with any, those marked to be dropped are dropped."""
    busy: frozenset[int] = frozenset()
    """Letters that are being replayed."""
    waiting: list[AckCallback] = field(default_factory=list)

    known: list[Entry] = field(default_factory=list)
    """Letters that were there already."""
    removed: list[Gone] = field(default_factory=list)
    dropped: list[Gone] = field(default_factory=list)
    marked: list[Marked] = field(default_factory=list)
    wanted: int = 0
    """Letters that have a mark still."""

    def run(self, *, alone: bool) -> None:  # noqa: ARG002 - nothing is committed before it
        """See `storage.committer.CommitJob.run`."""
        if self.letters and failpoints.ARMED:
            failpoints.hit("dead_letters.begin")
        connection = self.file.writable()
        drops = self.marked_wanted > 0 and _any_marked(connection, "drop")
        if drops or self.letters or self.removals or self.notes or self.probe:
            self._commit(connection, drops=drops)
        if self.letters and failpoints.ARMED:
            failpoints.hit("dead_letters.committed")
        if self.marked_wanted:
            self._read_marked(connection)

    def _commit(self, connection: sqlite3.Connection, *, drops: bool) -> None:
        self.known, self.removed, self.dropped = [], [], []
        connection.execute("BEGIN IMMEDIATE")
        try:
            for entry in self.letters:
                self._insert(connection, entry)
            self._remove(connection)
            for number, note in self.notes.items():
                connection.execute("UPDATE letters SET mark = NULL, replacement = NULL, note = ? WHERE number = ?", (_text(note), number))
            if drops:
                self._drop(connection)
            if self.probe:
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        if self.removed or self.dropped:
            connection.execute(f"PRAGMA incremental_vacuum({_FREED_PAGES})").fetchall()

    def _insert(self, connection: sqlite3.Connection, entry: Entry) -> None:
        letter = entry.letter
        row = _row(entry)
        inserted = connection.execute(_INSERT, row).rowcount > 0
        if not inserted and letter.place is not None and not _is_there(connection, entry.number):
            at_its_place = connection.execute("SELECT data FROM letters WHERE sequence = ? AND idx = ?", letter.place).fetchone()
            if at_its_place is not None and at_its_place[0] == letter.data:
                self.known.append(entry)
                return
            connection.execute(_INSERT, (*row[:8], None, None, *row[10:]))
        elif inserted and letter.place is None:
            count(connection, letter.lane, "received", letter.source, 1)

    def _remove(self, connection: sqlite3.Connection) -> None:
        for number in self.removals:
            self.removed += remove(connection, "number = ?", (number,))
        if not self.logged:
            for (lane, source), events in Counter((gone.lane, gone.source) for gone in self.removed).items():
                count(connection, lane, "received", source, -events)

    def _drop(self, connection: sqlite3.Connection) -> None:
        busy = ",".join(map(str, self.busy))
        where = f"number IN (SELECT number FROM letters WHERE mark = 'drop' AND number NOT IN ({busy}) LIMIT {DROPPED_AT_ONCE})"  # noqa: S608 - numbers
        self.dropped = drop(connection, where, ())

    def _read_marked(self, connection: sqlite3.Connection) -> None:
        self.marked, size = [], 0
        for row in connection.execute(_MARKED):
            if row[0] in self.busy:
                continue
            if len(self.marked) >= self.marked_wanted or size > MARKED_BYTES:
                break
            self.marked.append(_marked(row))
            size += len(row[6])
        (self.wanted,) = connection.execute("SELECT count(*) FROM letters WHERE mark IS NOT NULL").fetchone()


def remove(connection: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[Gone]:
    """Remove the letters that `where` names, within a transaction; which those were."""
    gone = [gone_of(row) for row in connection.execute(_GONE + where, values)]
    connection.executemany("DELETE FROM letters WHERE number = ?", [(each.number,) for each in gone])
    return gone


def drop(connection: sqlite3.Connection, where: str, values: Sequence[Any]) -> list[Gone]:
    """Remove letters because an operator says so, and count them, within a transaction; which those were."""
    gone = remove(connection, where, values)
    for (lane, source), events in Counter((each.lane, each.source) for each in gone).items():
        count(connection, lane, "dropped", f"{DropReason.OPERATOR.value}/{source}", events)
    return gone


def count(connection: sqlite3.Connection, lane: Lane | None, kind: str, name: str, events: int) -> None:
    """Add to a counter, within a transaction."""
    api_key, historical = (lane.api_key, int(lane.historical)) if lane else ("", 0)
    connection.execute(_COUNT, (api_key, historical, kind, name, events))


def gone_of(row: Sequence[Any]) -> Gone:
    """A row of the columns that `Gone` needs."""
    number, reason, api_key, historical, source, receipt, cost = row
    return Gone(number, Reason(reason), lane_of(api_key, historical), source, bool(receipt), cost)


def lane_of(api_key: str | None, historical: int) -> Lane | None:
    """The lane that a row is of."""
    return None if api_key is None else Lane(api_key, bool(historical))


def _marked(row: Sequence[Any]) -> Marked:
    number, reason, api_key, historical, at, rate, data, crc, edited, coordinates, attributes, together = row
    lane, intact = lane_of(api_key, historical), bool(edited) or crc32(data) == crc
    return Marked(number, Reason(reason), lane, at, rate, data, intact, bool(edited), coordinates, attributes, max(1, together))


def _any_marked(connection: sqlite3.Connection, mark: str) -> bool:
    return connection.execute("SELECT 1 FROM letters WHERE mark = ? LIMIT 1", (mark,)).fetchone() is not None


def _is_there(connection: sqlite3.Connection, number: int) -> bool:
    return connection.execute("SELECT 1 FROM letters WHERE number = ?", (number,)).fetchone() is not None


def _row(entry: Entry) -> tuple[Any, ...]:
    number, letter, receipt = entry
    lane = letter.lane
    return (
        number,
        letter.reason.value,
        None if lane is None else lane.api_key,
        int(lane is not None and lane.historical),
        letter.at,
        _text(letter.why),
        _text(letter.source),
        _text(letter.coordinates),
        *(letter.place or (None, None)),
        int(receipt),
        cost_of(letter),
        *names_of(letter.data),
        crc32(letter.data),
        letter.data,
        _text(letter.attributes),
    )


def names_of(data: bytes) -> Iterable[str | None]:
    """The event's name, distinct_id and uuid, as far as they can be read."""
    try:
        head = _decode_head(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return (None, None, None)
    return (_name(head.event), _name(head.distinct_id), _name(head.uuid))


def _name(value: Any) -> str | None:
    return _text(value)[:_LONGEST_TEXT] if isinstance(value, str) else None


def _text(text: str) -> str:
    """The text as SQLite takes it: half a surrogate pair would make every attempt to write it fail."""
    return text.encode("utf-8", "replace").decode()
