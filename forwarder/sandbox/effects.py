"""What the arrivals did to persons and groups: a fold over them in the order of arrival, done when somebody asks.

`progress` names the last arrival that is folded in; it moves in the transaction of what it stands for. Only new arrivals count: a
duplicate and a conflict change nothing, since one uuid is one event. Times don't count: what arrives later wins, historical or not.
Folding when asked keeps ingestion as fast as it is without persons, and asking again costs only what came since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from forwarder.sandbox.groups import Groups
from forwarder.sandbox.meaning import meaning_of
from forwarder.sandbox.persons import Persons
from forwarder.sandbox.schema import EFFECT_TABLES

STEP: Final = 1000
"""Arrivals that are folded in at once, some 20 milliseconds, so that requests get their turn in between."""
STEP_BYTES: Final = 4_000_000
"""Bytes of events after which a step ends early: large events are slow to read, and all of a step's are held at once."""
_NEXT: Final = """
SELECT events.id, kind, events.api_key, event, events.distinct_id, timestamp, raw, person FROM events
LEFT JOIN distinct_ids AS ids ON ids.api_key = events.api_key AND ids.distinct_id = events.distinct_id
WHERE events.id > ? ORDER BY events.id LIMIT ?"""


class Effects:
    """The fold over a database's arrivals; transactions are the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.persons = Persons(connection)
        self.groups = Groups(connection)

    def advance(self, end: int | None = None) -> bool:
        """Fold in up to `STEP` arrivals more, and say whether some are left until the arrival `end` (None: until the last)."""
        rows, more = self._next()
        if not rows:
            return False
        persons, marks = Persons(self._connection), list[tuple[str, str, str, int]]()
        persons.expect((row[2], row[4], row[7]) for row in rows)
        for arrival, kind, api_key, event, distinct_id, timestamp, raw, _ in rows:
            if kind != "new":
                continue
            meaning = meaning_of(event, distinct_id, raw)
            marks.extend((*mark, arrival) for mark in meaning.marks)
            if not meaning.anonymous:
                persons.apply(api_key, distinct_id, timestamp, meaning)
            if meaning.group is not None:
                self.groups.apply(api_key, timestamp, meaning.group)
        persons.flush()
        self._connection.executemany("INSERT OR IGNORE INTO marks VALUES (?, ?, ?, ?)", marks)
        self._connection.execute("UPDATE progress SET arrival = ?", (rows[-1][0],))
        return more and (end is None or int(rows[-1][0]) < end)

    def finish(self) -> None:
        """Fold in everything that arrived."""
        while self.advance():
            continue

    def forget(self) -> None:
        """Begin anew, from the first arrival."""
        for table in EFFECT_TABLES:
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are constants
        self._connection.execute("UPDATE progress SET arrival = 0")

    def _next(self) -> tuple[list[Sequence[Any]], bool]:
        """The arrivals of the next step, and whether there may be more after them."""
        done = int(self._connection.execute("SELECT arrival FROM progress").fetchone()[0])
        rows, size = list[Sequence[Any]](), 0
        with closing(self._connection.execute(_NEXT, (done, STEP))) as found:
            for row in found:
                rows.append(row)
                size += len(row[6])
                if size >= STEP_BYTES:
                    break
        return rows, len(rows) == STEP or size >= STEP_BYTES
