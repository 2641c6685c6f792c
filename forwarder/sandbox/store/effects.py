"""Persons and groups: a fold over the arrivals in their order, done soon after they came, and
before a query of them is answered.

Invariants: `progress` names the last arrival that is folded in, and moves in the same transaction.
Only new arrivals count: duplicates and conflicts change nothing, since one uuid is one event.
Times do not count: a later arrival wins, historical or not, as in the service. What an event means
is in `meaning`, what it does to persons in `persons`. There is one group for each project, type
and key, created and changed by `$groupidentify` alone; the contract names no limit of types (the
real service keeps five a project).

Folding apart from ingestion, in time that is free (see `thread`), keeps ingestion fast, and a query
costs only the arrivals since. Everything here blocks and belongs to the store's thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from forwarder.sandbox.store.meaning import GroupChange, Meaning, dump, meaning_of
from forwarder.sandbox.store.persons import ArrivedEvent, PersonTable
from forwarder.sandbox.store.schema import EFFECT_TABLES
from forwarder.sandbox.store.stored_records import GroupFilter, ListingPage

STEP: Final = 250
"""Arrivals of one step, 10 to 30 milliseconds, so that requests run between steps."""
STEP_BYTES: Final = 4_000_000
"""Bytes of events after which a step ends early: large events are slow to read, and all of a
step's are held at once.
"""
_NEXT: Final = """
    SELECT
        events.id, kind, events.api_key, event, events.distinct_id, timestamp, raw, received_at,
        person, version
    FROM events
    JOIN requests ON requests.id = events.request
    LEFT JOIN distinct_ids AS ids
        ON ids.api_key = events.api_key AND ids.distinct_id = events.distinct_id
    LEFT JOIN persons ON persons.id = ids.person
    WHERE events.id > ? ORDER BY events.id LIMIT ?
"""
_GROUP: Final = (
    "SELECT group_type, group_key, api_key, properties, created_at, updated_at FROM groups WHERE "
)
_GROUP_TYPES: Final = """
    WITH RECURSIVE types (name) AS (
        SELECT min(group_type) FROM groups WHERE api_key = :key
        UNION ALL
        SELECT (SELECT min(group_type) FROM groups WHERE api_key = :key AND group_type > name)
        FROM types WHERE name IS NOT NULL
    )
    SELECT name FROM types WHERE name IS NOT NULL ORDER BY (
        SELECT id FROM groups WHERE api_key = :key AND group_type = name ORDER BY id LIMIT 1
    )
"""
"""Looks up each type once: a project can have many groups, and every `/decide` asks for this."""
_FIND: Final = (
    "SELECT id, properties FROM groups WHERE api_key = ? AND group_type = ? AND group_key = ?"
)


class _Arrival(NamedTuple):
    """A new arrival, what it means, and the owner of its distinct id before the step."""

    event: ArrivedEvent
    meaning: Meaning
    owner: int | None
    version: int | None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> _Arrival:
        """The arrival of a row of `_NEXT`."""
        arrival, _, api_key, event, distinct_id, timestamp, raw, received_at, owner, version = row
        meaning = meaning_of(event, distinct_id, raw, (timestamp, received_at))
        return cls(ArrivedEvent(arrival, api_key, distinct_id, timestamp), meaning, owner, version)


class Effects:
    """The fold over a database's arrivals; transactions are the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.persons = PersonTable(connection)
        self.groups = GroupTable(connection)

    def advance(self, end: int | None = None) -> bool:
        """Fold in up to `STEP` arrivals more, and say whether some are left until the arrival
        `end` (None: until the last).
        """
        rows, more = self._next()
        if not rows:
            return False
        arrivals = [_Arrival.of_row(row) for row in rows if row[1] == "new"]
        marks = [(*mark, it.event.arrival) for it in arrivals for mark in it.meaning.marks]
        persons = PersonTable(self._connection)
        persons.preload(
            [(it.event.api_key, it.event.distinct_id, it.owner, it.version) for it in arrivals],
            {it.owner for it in arrivals if it.owner is not None and it.meaning.changes_person},
        )
        for it in arrivals:
            persons.apply(it.event, it.meaning)
            if it.meaning.group is not None:
                self.groups.apply(it.event.api_key, it.event.timestamp, it.meaning.group)
        persons.flush()
        self._connection.executemany("INSERT OR IGNORE INTO marks VALUES (?, ?, ?, ?)", marks)
        self._connection.execute("UPDATE progress SET arrival = ?", (rows[-1][0],))
        return more and (end is None or int(rows[-1][0]) < end)

    def folded(self) -> int:
        """The last arrival that is folded in; 0: none."""
        return int(self._connection.execute("SELECT arrival FROM progress").fetchone()[0])

    def finish(self) -> None:
        """Fold in all arrivals."""
        while self.advance():
            continue

    def forget(self) -> None:
        """Start again from the first arrival."""
        for table in EFFECT_TABLES:
            self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are constants
        self._connection.execute("UPDATE progress SET arrival = 0")

    def _next(self) -> tuple[list[Sequence[Any]], bool]:
        """The arrivals of the next step, and whether there may be more after them."""
        done = self.folded()
        rows = list[Sequence[Any]]()
        size = 0
        with closing(self._connection.execute(_NEXT, (done, STEP))) as cursor:
            for row in cursor:
                rows.append(row)
                size += len(row[6])
                if size >= STEP_BYTES:
                    break
        return rows, len(rows) == STEP or size >= STEP_BYTES


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One group; times are ISO 8601 in UTC."""

    group_type: str
    group_key: str
    api_key: str
    properties: Mapping[str, Any]
    created_at: str
    """The time of the event that made it."""
    updated_at: str
    """The time of the event that was the last to arrive."""


class GroupTable:
    """The groups in a database; transactions are the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def apply(self, api_key: str, timestamp: str, change: GroupChange) -> None:
        """Make a group, or set properties of one that is there."""
        row = self._execute(_FIND, (api_key, change.group_type, change.group_key)).fetchone()
        if row is None:
            self._execute(
                "INSERT INTO groups VALUES (NULL, ?, ?, ?, ?, ?, ?)",
                (
                    api_key,
                    change.group_type,
                    change.group_key,
                    dump(change.properties),
                    timestamp,
                    timestamp,
                ),
            )
            return
        properties = dump({**json.loads(row[1]), **change.properties})
        self._execute(
            "UPDATE groups SET properties = ?, updated_at = ? WHERE id = ?",
            (properties, timestamp, row[0]),
        )

    def types(self, api_key: str) -> list[str]:
        """The types of a project's groups, in the order in which the first of each was made."""
        return [group_type for (group_type,) in self._execute(_GROUP_TYPES, {"key": api_key})]

    def count(self) -> int:
        """How many there are."""
        return int(self._execute("SELECT count(*) FROM groups").fetchone()[0])

    def listing(self, wanted: GroupFilter, page: ListingPage) -> tuple[int, list[StoredGroup]]:
        """The number of groups that match the filter, and a page of them, in the order
        of creation.
        """
        condition, parameters = wanted.condition()
        count = self._execute(
            # S608: the condition is made of fixed clauses, its values have placeholders.
            f"SELECT count(*) FROM groups WHERE {condition}",  # noqa: S608
            parameters,
        ).fetchone()[0]
        rows = self._execute(
            _GROUP + condition + page.ordered("id"), [*parameters, *page.bounds()]
        ).fetchall()
        return int(count), [_stored_group(row) for row in rows]


def _stored_group(row: Sequence[Any]) -> StoredGroup:
    group_type, group_key, api_key, properties, created_at, updated_at = row
    return StoredGroup(
        group_type, group_key, api_key, json.loads(properties), created_at, updated_at
    )
