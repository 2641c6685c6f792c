"""Persons and groups: a fold over the arrivals in their order, done soon after they came, and
before a query of them is answered.

Invariants: `progress` names the last arrival that is folded in, and moves in the same transaction.
Only new arrivals count: duplicates and conflicts change nothing, since one uuid is one event.
Times do not count: a later arrival wins, historical or not. Every distinct id of a project belongs
to exactly one person; a person has at least one, and its main one is among them; a merged person
never comes back, since its distinct ids have an owner from then on. A person's id is derived from
its project and the distinct id that created it, so that the same arrivals create the same persons;
its `changed` is the last arrival that created it or set something of it: its properties (also to
what they were), its distinct ids, that it is identified. There is one group for each project, type
and key, created and changed by `$groupidentify` alone; the contract names no limit of types (the
real service keeps five a project).

Folding apart from ingestion, in time that is free (see `thread`), keeps ingestion fast, and a query
costs only the arrivals since. Everything here blocks and belongs to the store's thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final
from uuid import UUID, uuid5

from forwarder.sandbox.store.meaning import GroupChange, Meaning, Merge, dump, meaning_of
from forwarder.sandbox.store.records import GroupFilter, ListingPage, PersonFilter
from forwarder.sandbox.store.schema import EFFECT_TABLES

STEP: Final = 1000
"""Arrivals of one step, about 20 milliseconds, so that requests run between steps."""
STEP_BYTES: Final = 4_000_000
"""Bytes of events after which a step ends early: large events are slow to read, and all of a
step's are held at once.
"""
_NEXT: Final = """
    SELECT events.id, kind, events.api_key, event, events.distinct_id, timestamp, raw, person
    FROM events
    LEFT JOIN distinct_ids AS ids
        ON ids.api_key = events.api_key AND ids.distinct_id = events.distinct_id
    WHERE events.id > ? ORDER BY events.id LIMIT ?
"""
PERSON_NAMESPACE: Final = UUID("6b2b9f6e-6d0b-5c0e-9d53-3a2a1d1f8c11")
_PERSON: Final = (
    "SELECT id, uuid, api_key, distinct_id, properties, created_at, is_identified FROM "
    "persons WHERE "
)
_IDENTIFIED: Final = "UPDATE persons SET is_identified = 1 WHERE id = ? AND NOT is_identified"
_ADD_ID: Final = "INSERT INTO distinct_ids VALUES (NULL, ?, ?, ?)"
_EARLIER: Final = (
    "UPDATE persons SET created_at = min(created_at, (SELECT created_at FROM persons WHERE id "
    "= ?)) WHERE id = ?"
)
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
        persons = PersonTable(self._connection)
        marks = list[tuple[str, str, str, int]]()
        persons.expect((row[2], row[4], row[7]) for row in rows)
        for arrival, kind, api_key, event, distinct_id, timestamp, raw, _ in rows:
            if kind != "new":
                continue
            meaning = meaning_of(event, distinct_id, raw)
            marks.extend((*mark, arrival) for mark in meaning.marks)
            if not meaning.anonymous:
                persons.apply(arrival, api_key, distinct_id, timestamp, meaning)
            if meaning.group is not None:
                self.groups.apply(api_key, timestamp, meaning.group)
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
        with closing(self._connection.execute(_NEXT, (done, STEP))) as found:
            for row in found:
                rows.append(row)
                size += len(row[6])
                if size >= STEP_BYTES:
                    break
        return rows, len(rows) == STEP or size >= STEP_BYTES


@dataclass(frozen=True, slots=True)
class StoredPerson:
    """One person. `id` is a UUID, times are ISO 8601 in UTC."""

    id: str
    api_key: str
    distinct_id: str
    """The main one."""
    distinct_ids: Sequence[str]
    """All of them, in the order in which they came to it."""
    properties: Mapping[str, Any]
    created_at: str
    """The time of the first event that made it, or one merged into it."""
    is_identified: bool


class PersonTable:
    """The persons in a database; transactions are the caller's, and so is `flush` after the last
    `apply` of one.

    `apply` caches what it reads and changes until then, so that many events of
    one person cost one write.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._owners: dict[tuple[str, str], int | None] = {}
        self._held: dict[int, dict[str, Any]] = {}
        self._changed: set[int] = set()
        self._arrivals: dict[int, int] = {}
        self._made: dict[int, tuple[str, str, str, int]] = {}
        self._last = self._arrival = 0

    def expect(self, owners: Iterable[tuple[str, str, int | None]]) -> None:
        """Cache the owners of these project keys and distinct ids (None: no owner), before the
        first `apply`.
        """
        self._owners = {(api_key, distinct_id): person for api_key, distinct_id, person in owners}
        self._last = int(self._execute("SELECT coalesce(max(id), 0) FROM persons").fetchone()[0])

    def apply(
        self, arrival: int, api_key: str, distinct_id: str, timestamp: str, meaning: Meaning
    ) -> None:
        """Apply an identified event: create its person, merge it, then change its properties."""
        self._arrival = arrival
        person = self._merge(api_key, meaning.merge, timestamp) if meaning.merge else None
        if person is None:
            person = self._owner(api_key, distinct_id) or self._make(
                api_key, distinct_id, timestamp
            )
        if meaning.identifies:
            self._write_made()
            self._identify(person)
        if meaning.changes:
            self._write(person, meaning.changes.applied_to(self._properties(person)))

    def flush(self) -> None:
        """Write the cached changes, and empty the cache."""
        self._write_made()
        rows = [
            (dump(self._held[person]), self._arrivals.pop(person), person)
            for person in self._changed
        ]
        self._connection.executemany(
            "UPDATE persons SET properties = ?, changed = ? WHERE id = ?", rows
        )
        others = [(arrival, person) for person, arrival in self._arrivals.items()]
        self._connection.executemany("UPDATE persons SET changed = ? WHERE id = ?", others)
        self._arrivals.clear()
        self._owners.clear()
        self._held.clear()
        self._changed.clear()

    def count(self) -> int:
        """How many there are."""
        return int(self._execute("SELECT count(*) FROM persons").fetchone()[0])

    def listing(self, wanted: PersonFilter, page: ListingPage) -> tuple[int, list[StoredPerson]]:
        """The number of persons that match the filter, and a page of them,
        in the order of creation.
        """
        condition, parameters = wanted.condition()
        count = self._execute(
            # S608: the condition is made of fixed clauses, its values have placeholders.
            f"SELECT count(*) FROM persons WHERE {condition}",  # noqa: S608
            parameters,
        ).fetchone()[0]
        rows = self._execute(
            _PERSON + condition + page.ordered("id"), [*parameters, *page.bounds()]
        ).fetchall()
        return int(count), [self._stored(row) for row in rows]

    def _merge(self, api_key: str, merge: Merge, timestamp: str) -> int | None:
        """The person of both ids afterwards; None if they must not be merged."""
        self._write_made()
        surviving = self._owner(api_key, merge.surviving)
        merged = self._owner(api_key, merge.merged)
        if merged is None or surviving is None:
            person = surviving or merged or self._make(api_key, merge.surviving, timestamp)
            self._write_made()
            self._claim(api_key, merge, person, made_by_it=surviving is None)
        elif surviving == merged:
            person = surviving
        elif not merge.even_identified and self._is_identified(merged):
            return None
        else:
            person = surviving
            self._swallow(person, merged)
        if merge.becomes_main:
            self._make_main(person, merge.surviving)
        self._identify(person)
        return person

    def _claim(self, api_key: str, merge: Merge, person: int, *, made_by_it: bool) -> None:
        """Give a person the ids without an owner."""
        for distinct_id in (merge.surviving, merge.merged):
            if self._owner(api_key, distinct_id) is None:
                self._add_id(api_key, distinct_id, person)
        if made_by_it and not self._is_identified(person):
            self._make_main(person, merge.surviving)

    def _swallow(self, surviving: int, merged: int) -> None:
        self._write(surviving, {**self._properties(merged), **self._properties(surviving)})
        self._changed.discard(merged)
        self._arrivals.pop(merged, None)
        self._execute(_EARLIER, (merged, surviving))
        self._execute("UPDATE distinct_ids SET person = ? WHERE person = ?", (surviving, merged))
        self._execute("DELETE FROM persons WHERE id = ?", (merged,))
        self._owners.clear()

    def _make(self, api_key: str, distinct_id: str, timestamp: str) -> int:
        """A new person, which `_write_made` writes."""
        self._last += 1
        self._owners[api_key, distinct_id] = self._last
        self._made[self._last] = (api_key, distinct_id, timestamp, self._arrival)
        self._held[self._last] = {}
        return self._last

    def _write_made(self) -> None:
        made = [
            (person, uuid5(PERSON_NAMESPACE, f"{one[0]}\0{one[1]}"), one)
            for person, one in self._made.items()
        ]
        rows = [(person, str(uuid), *one) for person, uuid, one in made]
        self._connection.executemany("INSERT INTO persons VALUES (?, ?, ?, ?, '{}', ?, 0, ?)", rows)
        ids = [(api_key, distinct_id, person) for person, _, (api_key, distinct_id, *_) in made]
        self._connection.executemany(_ADD_ID, ids)
        self._made.clear()

    def _add_id(self, api_key: str, distinct_id: str, person: int) -> None:
        self._execute(_ADD_ID, (api_key, distinct_id, person))
        self._owners[api_key, distinct_id] = person
        self._arrivals[person] = self._arrival

    def _identify(self, person: int) -> None:
        if self._execute(_IDENTIFIED, (person,)).rowcount:
            self._arrivals[person] = self._arrival

    def _make_main(self, person: int, distinct_id: str) -> None:
        self._execute("UPDATE persons SET distinct_id = ? WHERE id = ?", (distinct_id, person))

    def _owner(self, api_key: str, distinct_id: str) -> int | None:
        known = self._owners.get((api_key, distinct_id), ...)
        if not isinstance(known, EllipsisType):
            return known
        row = self._execute(
            "SELECT person FROM distinct_ids WHERE api_key = ? AND distinct_id = ?",
            (api_key, distinct_id),
        ).fetchone()
        self._owners[api_key, distinct_id] = person = None if row is None else int(row[0])
        return person

    def _is_identified(self, person: int) -> bool:
        return bool(
            self._execute("SELECT is_identified FROM persons WHERE id = ?", (person,)).fetchone()[0]
        )

    def _properties(self, person: int) -> dict[str, Any]:
        held = self._held.get(person)
        if held is None:
            statement = "SELECT properties FROM persons WHERE id = ?"
            (properties,) = self._execute(statement, (person,)).fetchone()
            self._held[person] = held = json.loads(properties)
        return held

    def _write(self, person: int, properties: dict[str, Any]) -> None:
        """Cache a person's new properties, without comparing them with the old ones: in Python
        `1 == True == 1.0`, in JSON they differ.
        """
        self._held[person] = properties
        self._changed.add(person)
        self._arrivals[person] = self._arrival

    def _stored(self, row: Sequence[Any]) -> StoredPerson:
        person, uuid, api_key, distinct_id, properties, created_at, is_identified = row
        ids = self._execute(
            "SELECT distinct_id FROM distinct_ids WHERE person = ? ORDER BY id", (person,)
        ).fetchall()
        return StoredPerson(
            uuid,
            api_key,
            distinct_id,
            [one[0] for one in ids],
            json.loads(properties),
            created_at,
            bool(is_identified),
        )


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
