"""Writes and reads the dead letters' tables: a commit inserts, removes, unmarks, drops and counts
in one transaction.

Invariants: a commit that is run again after a failure, even one that came after its transaction
was committed, changes nothing twice: a dead letter has its number before it is written, and the
counters count what a statement really changed. A dead letter whose place is taken by the same
event is that event, dead-lettered before; if by another one (the log was created anew), it is kept
without a place.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from isal.isal_zlib import crc32

from forwarder.core.ack import AckCallback
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, DropReason, Reason, drop_cause
from forwarder.deadletter.room import DeadLetterTotals, cost_of
from forwarder.deadletter.schema import VERSION, DeadLetterDatabase
from forwarder.storage import failpoints

DROPPED_AT_ONCE: Final = 1000
MARKED_BYTES: Final = 2 << 20
"""Bytes of marked dead letters that are read at once; at least one is read."""

_LONGEST_TEXT: Final = 200
"""Characters of a name or an id that are kept for searching."""

_FREED_PAGES: Final = 256
"""Pages returned to the file system after a transaction that removes rows."""

_INSERT: Final = """
    INSERT OR IGNORE INTO letters (
        number, reason, api_key, historical, at, why, source, coordinates, sequence, idx, receipt,
        cost, event, distinct_id, uuid, crc, data, attributes, ruled, sender_key, new_uuid
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_COUNT: Final = """
    INSERT INTO counters (api_key, historical, kind, name, count) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (api_key, historical, kind, name) DO UPDATE SET count = count + excluded.count
"""
_REMOVED: Final = (
    "SELECT number, reason, api_key, historical, source, receipt, cost FROM letters WHERE "
)


_MARKED: Final = """
    SELECT
        number, reason, api_key, historical, at, rate, coalesce(replacement, data), crc,
        replacement IS NOT NULL, coordinates, attributes,
        (SELECT count(*) FROM letters AS other WHERE other.sequence = letters.sequence),
        source, ruled, sender_key, coalesce(nullif(new_uuid, ''), uuid, '')
    FROM letters WHERE mark = 'replay' ORDER BY number
"""

K = TypeVar("K")


class _SearchFields(msgspec.Struct, gc=False):
    event: Any = None
    distinct_id: Any = None
    uuid: Any = None


_decode_search_fields = msgspec.json.Decoder(_SearchFields).decode


class NumberedDeadLetter(NamedTuple):
    """A dead letter that is to be written."""

    number: int
    dead_letter: DeadLetter
    receipt: bool


class MarkedDeadLetter(NamedTuple):
    """A dead letter that is to be replayed. `data` is what is sent: the
    event, or its replacement.
    """

    number: int
    reason: Reason
    lane: Lane | None
    at: float
    rate: float | None
    data: bytes
    intact: bool
    """Whether the bytes have the checksum that they were written with."""
    edited: bool
    coordinates: str = ""
    attributes: str = ""
    together: int = 1
    """How many dead letters are of the same record, this one included; one
    without a place is alone.
    """
    source: str = ""
    ruled: bool = False
    """Whether the rules for events were applied to it."""
    sender_key: str | None = ""
    """The project key that its sender used; empty: that of its lane. None: it isn't known."""
    uuid: str = ""
    """The one that it gets if it has none, or the event's own text in its place."""


class RemovedDeadLetter(NamedTuple):
    """What the books need of a dead letter that was removed."""

    number: int
    reason: Reason
    lane: Lane | None
    source: str
    receipt: bool
    cost: int


@dataclass(slots=True)
class DeadLetterCommit:
    """One commit of dead letters. The request comes first, then the results, which are
    valid once `run` has returned.
    """

    file: DeadLetterDatabase
    logged: bool
    """Whether the buffer's log counts what is received; else this database does."""
    dead_letters: list[NumberedDeadLetter] = field(default_factory=list)
    removals: list[int] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    """Dead letters to unmark, and why."""
    probe: bool = False
    """Whether to write in any case, to test whether that works."""
    read_marked: int = 0
    """How many of those marked for replay to read; if any, those marked `drop` are dropped."""
    busy: frozenset[int] = frozenset()
    """Dead letters that are being replayed."""
    on_durable: list[AckCallback] = field(default_factory=list)

    known: list[NumberedDeadLetter] = field(default_factory=list)
    """Dead letters that had been written before."""
    removed: list[RemovedDeadLetter] = field(default_factory=list)
    dropped: list[RemovedDeadLetter] = field(default_factory=list)
    marked: list[MarkedDeadLetter] = field(default_factory=list)
    still_marked: int = 0
    """How many are still marked."""

    def run(self, *, alone: bool) -> None:  # noqa: ARG002 - nothing is committed before it
        if self.dead_letters and failpoints.ARMED:
            failpoints.hit("dead_letters.begin")
        connection = self.file.writable()
        drops = self.read_marked > 0 and _any_marked(connection, "drop")
        if drops or self.dead_letters or self.removals or self.notes or self.probe:
            self._commit(connection, drops=drops)
        if self.dead_letters and failpoints.ARMED:
            failpoints.hit("dead_letters.committed")
        if self.read_marked:
            self._read_marked(connection)

    def _commit(self, connection: sqlite3.Connection, *, drops: bool) -> None:
        self.known = []
        self.removed = []
        self.dropped = []
        connection.execute("BEGIN IMMEDIATE")
        try:
            received = Counter(
                (entry.dead_letter.lane, entry.dead_letter.source)
                for entry in self.dead_letters
                if self._insert(connection, entry)
            )
            for (lane, source), events in received.items():
                count(connection, lane, "received", source, events)
            self._remove(connection)
            for number, note in self.notes.items():
                connection.execute(
                    "UPDATE letters SET mark = NULL, replacement = NULL, note = ? WHERE number = ?",
                    (_text(note), number),
                )
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

    def _insert(self, connection: sqlite3.Connection, entry: NumberedDeadLetter) -> bool:
        """Whether this database has to count it as received."""
        dead_letter = entry.dead_letter
        row = _row(entry)
        inserted = connection.execute(_INSERT, row).rowcount > 0
        if (
            not inserted
            and dead_letter.place is not None
            and not _is_there(connection, entry.number)
        ):
            at_its_place = connection.execute(
                "SELECT data FROM letters WHERE sequence = ? AND idx = ?", dead_letter.place
            ).fetchone()
            if at_its_place is not None and at_its_place[0] == dead_letter.data:
                self.known.append(entry)
                return False
            connection.execute(_INSERT, (*row[:8], None, None, *row[10:]))
        return inserted and dead_letter.place is None

    def _remove(self, connection: sqlite3.Connection) -> None:
        for number in self.removals:
            self.removed += remove(connection, "number = ?", (number,))
        if not self.logged:
            received = Counter((gone.lane, gone.source) for gone in self.removed)
            for (lane, source), events in received.items():
                count(connection, lane, "received", source, -events)

    def _drop(self, connection: sqlite3.Connection) -> None:
        busy = ",".join(map(str, self.busy))
        # S608: what is put into the condition is numbers.
        where = f"""number IN (
            SELECT number FROM letters
            WHERE mark = 'drop' AND number NOT IN ({busy}) LIMIT {DROPPED_AT_ONCE}
        )"""  # noqa: S608
        self.dropped = drop(connection, where, ())

    def _read_marked(self, connection: sqlite3.Connection) -> None:
        self.marked = []
        size = 0
        for row in connection.execute(_MARKED):
            if row[0] in self.busy:
                continue
            if len(self.marked) >= self.read_marked or size > MARKED_BYTES:
                break
            self.marked.append(_marked(row))
            size += len(row[6])
        (self.still_marked,) = connection.execute(
            "SELECT count(*) FROM letters WHERE mark IS NOT NULL"
        ).fetchone()


def remove(
    connection: sqlite3.Connection, where: str, values: Sequence[Any]
) -> list[RemovedDeadLetter]:
    """Remove the rows that match `where`, within a transaction; return them."""
    gone = [_removed_of(row) for row in connection.execute(_REMOVED + where, values)]
    connection.executemany(
        "DELETE FROM letters WHERE number = ?", [(dead_letter.number,) for dead_letter in gone]
    )
    return gone


def drop(
    connection: sqlite3.Connection, where: str, values: Sequence[Any]
) -> list[RemovedDeadLetter]:
    """Remove rows for an operator, and count them as dropped, within a transaction; return them."""
    gone = remove(connection, where, values)
    for (lane, source), events in Counter(
        (dead_letter.lane, dead_letter.source) for dead_letter in gone
    ).items():
        count(connection, lane, "dropped", f"{DropReason.OPERATOR.value}/{source}", events)
    return gone


def count(
    connection: sqlite3.Connection, lane: Lane | None, kind: str, name: str, events: int
) -> None:
    """Add to a counter, within a transaction."""
    api_key, historical = (lane.api_key, int(lane.historical)) if lane else ("", 0)
    connection.execute(_COUNT, (api_key, historical, kind, name, events))


def _removed_of(row: Sequence[Any]) -> RemovedDeadLetter:
    """The row of a `_REMOVED` query."""
    number, reason, api_key, historical, source, receipt, cost = row
    return RemovedDeadLetter(
        number, Reason(reason), lane_of(api_key, historical), source, bool(receipt), cost
    )


def lane_of(api_key: str | None, historical: int) -> Lane | None:
    """A row's lane; None if it is unknown."""
    return None if api_key is None else Lane(api_key, bool(historical))


def _marked(row: Sequence[Any]) -> MarkedDeadLetter:
    (
        number,
        reason,
        api_key,
        historical,
        at,
        rate,
        data,
        crc,
        edited,
        coordinates,
        attributes,
        together,
        source,
        ruled,
        sender_key,
        uuid,
    ) = row
    lane = lane_of(api_key, historical)
    intact = bool(edited) or crc32(data) == crc
    return MarkedDeadLetter(
        number,
        Reason(reason),
        lane,
        at,
        rate,
        data,
        intact,
        bool(edited),
        coordinates,
        attributes,
        max(1, together),
        source,
        bool(ruled),
        sender_key,
        uuid,
    )


def _any_marked(connection: sqlite3.Connection, mark: str) -> bool:
    return (
        connection.execute("SELECT 1 FROM letters WHERE mark = ? LIMIT 1", (mark,)).fetchone()
        is not None
    )


def _is_there(connection: sqlite3.Connection, number: int) -> bool:
    return (
        connection.execute("SELECT 1 FROM letters WHERE number = ?", (number,)).fetchone()
        is not None
    )


def _row(entry: NumberedDeadLetter) -> tuple[Any, ...]:
    number, dead_letter, receipt = entry
    lane = dead_letter.lane
    return (
        number,
        dead_letter.reason.value,
        None if lane is None else lane.api_key,
        int(lane is not None and lane.historical),
        dead_letter.at,
        _text(dead_letter.why),
        _text(dead_letter.source),
        _text(dead_letter.coordinates),
        *(dead_letter.place or (None, None)),
        int(receipt),
        cost_of(dead_letter),
        *_names_of(dead_letter.data),
        crc32(dead_letter.data),
        dead_letter.data,
        _text(dead_letter.attributes),
        int(dead_letter.ruled),
        dead_letter.sender_key,
        dead_letter.new_uuid,
    )


def _names_of(data: bytes) -> Iterable[str | None]:
    """The event's name, distinct_id and uuid; None for those that can't be read."""
    try:
        head = _decode_search_fields(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return (None, None, None)
    return (_name(head.event), _name(head.distinct_id), _name(head.uuid))


def _name(value: Any) -> str | None:
    return _text(value)[:_LONGEST_TEXT] if isinstance(value, str) else None


def _text(text: str) -> str:
    """The text as SQLite accepts it: half a surrogate pair would make every
    attempt to write it fail.
    """
    return text.encode("utf-8", "replace").decode()


class DatabaseTotals(NamedTuple):
    """Figures of the whole database."""

    dead_letters: int = 0
    cost: int = 0
    costs_at_receipt: Sequence[tuple[str, int]] = ()
    """By project key."""
    last_number: int = 0
    """The highest number that was ever used."""
    last_sequence: int = 0
    marked: int = 0


def read_totals(connection: sqlite3.Connection) -> DatabaseTotals:
    """Read the database's figures."""
    dead_letters, cost, last, sequence, marked = connection.execute(
        "SELECT count(*), coalesce(sum(cost), 0), coalesce(max(number), 0), "
        "coalesce(max(sequence), 0), count(mark) FROM letters"
    ).fetchone()
    given = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'letters'").fetchone()
    at_receipt = connection.execute(
        "SELECT coalesce(api_key, ''), sum(cost) FROM letters WHERE receipt GROUP BY 1"
    ).fetchall()
    return DatabaseTotals(
        dead_letters, cost, at_receipt, max(last, given[0] if given else 0), sequence, marked
    )


def read_places(connection: sqlite3.Connection, at_least: int) -> list[tuple[int, int]]:
    """The places of dead letters in the log, from sequence `at_least` on, in order."""
    return connection.execute(
        "SELECT sequence, idx FROM letters WHERE sequence >= ? ORDER BY sequence, idx", (at_least,)
    ).fetchall()


def read_lane_totals(
    connection: sqlite3.Connection, *, logged: bool, without: Sequence[int] = ()
) -> dict[Lane | None, DeadLetterTotals]:
    """The figures of each lane. `logged`: whether a log counts what is received; `without`: dead
    letters that are about to be removed.
    """
    accounts: dict[Lane | None, DeadLetterTotals] = {}
    _add_rows(connection, accounts, logged=logged, without=without)
    for api_key, historical, kind, name, count in connection.execute(
        "SELECT api_key, historical, kind, name, count FROM counters"
    ):
        account = accounts.setdefault(lane_of(api_key or None, historical), DeadLetterTotals())
        if kind == "dropped":
            reason, _, source = name.partition("/")
            _increase(account.dropped, drop_cause(reason), count)
            if not logged:
                _increase(account.received, source, count)
        elif logged:
            _increase(account.received, name, count)
    return accounts


def _add_rows(
    connection: sqlite3.Connection,
    accounts: dict[Lane | None, DeadLetterTotals],
    *,
    logged: bool,
    without: Sequence[int],
) -> None:
    rows = connection.execute(
        "SELECT api_key, historical, reason, source, count(*) FROM letters GROUP BY 1, 2, 3, 4"
    )
    counts = [
        (*row, -1)
        for number in without
        for row in connection.execute(
            "SELECT api_key, historical, reason, source FROM letters WHERE number = ?", (number,)
        )
    ]
    for api_key, historical, reason, source, count in [*rows, *counts]:
        account = accounts.setdefault(lane_of(api_key, historical), DeadLetterTotals())
        _increase(account.dead_lettered, Reason(reason), count)
        if not logged:
            _increase(account.received, source, count)


def _increase(mine: dict[K, int], key: K, count: int) -> None:
    mine[key] = mine.get(key, 0) + count
