"""The persons of a sandbox: who has which distinct ids and properties, what set them, what was
merged, and what the service warns about.

Invariants: every distinct id of a project belongs to exactly one person; a person has at least
one, and its main one is among them; a merged person never comes back, since its distinct ids have
an owner from then on. A person's id is derived from its project and the distinct id that created
it, so that the same arrivals create the same persons; its `changed` is the last arrival that
created it or changed something of it: its properties, its distinct ids, that it is identified.

Only a merge identifies: `$identify` with `$anon_distinct_id`, `$create_alias` and
`$merge_dangerously`, also one that is refused because the other person is identified. A merge goes
into the person of the event's distinct id; an id without a person is added to the other's. The
contract makes `alias` the main distinct id of a `$create_alias`, which the service doesn't have.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/ingestion/common/persons/person-merge-service.ts` (ee17309) and
`person-merge-postgres.ts` (193e09f) the merges and their warnings, `person-create-service.ts`
(03330ef) and `person-property-service.ts` (03330ef, the warning about case in a later version)
what creates and changes a person,
`nodejs/src/ingestion/common/steps/event-processing/create-event.ts` (01bf1ef) what an event has of
its person.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import EllipsisType
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from forwarder.sandbox.store.meaning import (
    EventWarning,
    Meaning,
    Merge,
    WarningType,
    dump,
)
from forwarder.sandbox.store.person_changes import OPERATIONS, PersonChanges
from forwarder.sandbox.store.stored_records import ListingPage, PersonFilter, WarningFilter

PERSON_NAMESPACE: Final = UUID("6b2b9f6e-6d0b-5c0e-9d53-3a2a1d1f8c11")
INGESTED: Final = "coalesce(versions.properties, ingested.properties), had.differs"
"""The columns of a person's properties as an event was ingested with them, and whether the event's
own `$set` has something else (`meaning.ingested_properties` then adds it).
"""
INGESTED_JOINS: Final = """
    LEFT JOIN event_persons AS had ON had.event = events.id
    LEFT JOIN persons AS ingested ON ingested.id = had.person AND ingested.version = had.version
    LEFT JOIN person_versions AS versions
        ON versions.person = had.person AND versions.version = had.version
"""
"""What `INGESTED` needs beside `events`."""
_COLUMNS: Final = (
    "id, uuid, api_key, distinct_id, properties, created_at, is_identified, changed, created, "
    "sources, version"
)
_PERSON: Final = f"SELECT {_COLUMNS} FROM persons WHERE "  # noqa: S608 - constants
_THESE: Final = f"{_PERSON}id IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
_INSERT: Final = (
    # S608: constants.
    f"INSERT INTO persons ({_COLUMNS}) "  # noqa: S608
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE persons SET distinct_id = ?, properties = ?, created_at = ?, is_identified = ?, "
    "changed = ?, sources = ?, version = ? WHERE id = ?"
)
_ADD_ID: Final = "INSERT INTO distinct_ids VALUES (NULL, ?, ?, ?)"
_EVENTS: Final = (
    "SELECT id, uuid, event, distinct_id, timestamp FROM events "
    "WHERE id IN (SELECT value FROM json_each(?))"
)
_WARNING: Final = """
    SELECT
        warnings.id, warnings.type, warnings.details, events.api_key, events.id, events.uuid,
        events.event, events.distinct_id, events.timestamp, persons.uuid
    FROM warnings
    JOIN events ON events.id = warnings.event
    LEFT JOIN persons ON persons.id = warnings.person
    WHERE """
_MERGES: Final = (
    "SELECT event, outcome, source, target, merged FROM merges WHERE person = ? ORDER BY id"
)
_GROUPS: Final = (
    "SELECT group_type, group_key, event FROM person_groups WHERE person = ? "
    "ORDER BY group_type, group_key"
)


class MergeOutcome(StrEnum):
    """What became of two distinct ids."""

    MERGED = "merged"
    """Two persons became one."""
    ATTACHED = "attached"
    """An id without a person was added to the other's, or both to a new one."""


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


@dataclass(frozen=True, slots=True)
class PersonEvent:
    """The event that did something to a person. `timestamp` is ISO 8601 in UTC."""

    arrival: int
    uuid: str
    event: str
    distinct_id: str
    timestamp: str


@dataclass(frozen=True, slots=True)
class PropertySource:
    """Where the value of a property comes from: the event that set it, in the person that had it
    before a merge.
    """

    event: PersonEvent
    operation: str
    """`$set` or `$set_once`."""
    lifted: bool
    """Whether the service took it from the event's other properties."""


@dataclass(frozen=True, slots=True)
class PersonMerge:
    """One merge of two distinct ids."""

    event: PersonEvent
    outcome: MergeOutcome
    source: str
    """The distinct id that the event names."""
    target: str
    """The event's own."""
    merged_person: str | None
    """The id of the person that is no more; None if it is `attached`."""


@dataclass(frozen=True, slots=True)
class PersonGroup:
    """A group of a person's events."""

    group_type: str
    group_key: str
    event: PersonEvent
    """The last one to arrive."""


@dataclass(frozen=True, slots=True)
class StoredWarning:
    """What the service warns about: an event that was accepted, and what it didn't do."""

    id: int
    """Counts up in the order of arrival."""
    type: WarningType
    details: Mapping[str, Any]
    """The members that the service's warning has."""
    api_key: str
    event: PersonEvent
    person: str | None
    """The id of the event's person, if it has one."""


@dataclass(frozen=True, slots=True)
class PersonDetails:
    """A person, and how it became so."""

    person: StoredPerson
    created_by: PersonEvent
    sources: Mapping[str, PropertySource]
    """Of each property."""
    merges: Sequence[PersonMerge]
    """In the order of arrival, those of merged persons among them."""
    groups: Sequence[PersonGroup]
    warnings: Sequence[StoredWarning]


class ArrivedEvent(NamedTuple):
    """What of an arrival matters to its person."""

    arrival: int
    api_key: str
    distinct_id: str
    timestamp: str


@dataclass(slots=True)
class _Person:
    """A person while arrivals are folded in: its row, read as far as it is needed."""

    id: int
    uuid: str
    api_key: str
    distinct_id: str
    text: str
    """The JSON of its properties as long as `dirty_properties` is false."""
    created_at: str
    is_identified: bool
    changed: int
    created: int
    sources_text: str
    version: int
    held: dict[str, Any] | None = None
    dirty: bool = False
    """Whether the row has changed."""
    dirty_properties: bool = False
    sources: dict[str, int] | None = None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> _Person:
        """The person of a row of `_COLUMNS`."""
        number, uuid, api_key, distinct_id, text, created_at, identified, *rest = row
        return cls(number, uuid, api_key, distinct_id, text, created_at, bool(identified), *rest)

    @property
    def properties(self) -> dict[str, Any]:
        """Its properties; never changed in place."""
        if self.held is None:
            self.held = json.loads(self.text)
        return self.held

    def all_sources(self) -> dict[str, int]:
        """Of each property the arrival that set it and the index of how, as one number."""
        if self.sources is None:
            self.sources = json.loads(self.sources_text)
        return self.sources

    def json(self) -> str:
        """Its properties as JSON."""
        if self.dirty_properties:
            self.text = dump(self.held)
            self.dirty_properties = False
        return self.text

    def replace(self, properties: dict[str, Any], sources: dict[str, int]) -> None:
        """Give it other properties."""
        self.held = properties
        self.sources = sources
        self.dirty_properties = True

    def touch(self, arrival: int) -> None:
        """Note that the arrival changed it."""
        self.changed = arrival
        self.dirty = True

    def row(self) -> tuple[Any, ...]:
        """The values of `_COLUMNS`."""
        return (
            *(self.id, self.uuid, self.api_key, self.distinct_id, self.json()),
            *(self.created_at, self.is_identified, self.changed, self.created),
            *(self._sources_json(), self.version),
        )

    def change(self) -> tuple[Any, ...]:
        """The parameters of `_UPDATE`."""
        return (
            *(self.distinct_id, self.json(), self.created_at, self.is_identified),
            *(self.changed, self._sources_json(), self.version, self.id),
        )

    def _sources_json(self) -> str:
        return self.sources_text if self.sources is None else json.dumps(self.sources)


class PersonTable:
    """The persons in a database; transactions are the caller's, and so is `flush` after the last
    `apply` of one.

    `apply` caches what it reads and changes until then, so that many events of one person cost
    one write.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._owners: dict[tuple[str, str], int | None] = {}
        self._versions: dict[int, int] = {}
        self._held: dict[int, _Person] = {}
        self._new: list[_Person] = []
        self._log = _PersonLog(connection)
        self._last = 0

    def expect(
        self, owners: Iterable[tuple[str, str, int | None, int | None]], read: set[int]
    ) -> None:
        """Cache the owners of these project keys and distinct ids (None: no owner) with their
        versions, and the persons `read`, before the first `apply`.
        """
        for api_key, distinct_id, person, version in owners:
            self._owners[api_key, distinct_id] = person
            if person is not None and version is not None:
                self._versions[person] = version
        # The number of placeholders has a limit, JSON has none.
        rows = self._execute(_THESE, [json.dumps(sorted(read))])
        self._held = {row[0]: _Person.of_row(row) for row in rows}
        self._last = int(self._execute("SELECT coalesce(max(id), 0) FROM persons").fetchone()[0])

    def apply(self, event: ArrivedEvent, meaning: Meaning) -> None:
        """Apply an event: create its person, merge it, then change its properties."""
        warnings = list(meaning.warnings)
        owner = self._owner(event.api_key, event.distinct_id)
        if meaning.anonymous or (meaning.read_only and owner is None):
            pass
        elif owner is not None and (meaning.read_only or not meaning.of_person):
            self._note(event, owner, meaning)
        else:
            owner = self._change(event, meaning, warnings)
        for warning in warnings:
            self._log.warnings.append(
                (owner, event.arrival, warning.type, dump(dict(warning.details)))
            )

    def flush(self) -> None:
        """Write the cached changes, and empty the cache."""
        self._write_new()
        changes = [person.change() for person in self._held.values() if person.dirty]
        self._connection.executemany(_UPDATE, changes)
        self._log.write()
        self._owners.clear()
        self._versions.clear()
        self._held.clear()

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
        return int(count), [self._stored(_Person.of_row(row)) for row in rows]

    def details(self, uuid: str) -> PersonDetails | None:
        """A person with where everything of it comes from; None if there is none of that id. Costs
        what it shows, however many events there are.
        """
        row = self._execute(_PERSON + "uuid = ?", [uuid]).fetchone()
        if row is None:
            return None
        person = _Person.of_row(row)
        merges = self._execute(_MERGES, [person.id]).fetchall()
        groups = self._execute(_GROUPS, [person.id]).fetchall()
        sources = {
            name: divmod(source, len(OPERATIONS)) for name, source in person.all_sources().items()
        }
        arrivals = {person.created, *(arrival for arrival, _ in sources.values())}
        arrivals.update(merge[0] for merge in merges)
        events = self._events({*arrivals, *(group[2] for group in groups)})
        _, warnings = self.warnings(WarningFilter(person=uuid), ListingPage(limit=None))
        return PersonDetails(
            self._stored(person),
            events[person.created],
            {
                name: PropertySource(events[arrival], *OPERATIONS[operation])
                for name, (arrival, operation) in sources.items()
            },
            [PersonMerge(events[one], MergeOutcome(kind), *rest) for one, kind, *rest in merges],
            [PersonGroup(kind, key, events[arrival]) for kind, key, arrival in groups],
            warnings,
        )

    def warnings(self, wanted: WarningFilter, page: ListingPage) -> tuple[int, list[StoredWarning]]:
        """The number of warnings that match the filter, and a page of them, in the order of
        arrival.
        """
        condition, parameters = wanted.condition()
        rows = self._execute(
            _WARNING + condition + page.ordered("warnings.id"), [*parameters, *page.bounds()]
        ).fetchall()
        # S608: the condition is made of fixed clauses, its values have placeholders.
        count = self._execute(
            f"SELECT count(*) FROM ({_WARNING}{condition})",  # noqa: S608
            parameters,
        ).fetchone()[0]
        return int(count), [_stored_warning(row) for row in rows]

    def _change(self, event: ArrivedEvent, meaning: Meaning, warnings: list[EventWarning]) -> int:
        """The number of the event's person, once the event has done its work."""
        person = self._merge(event, meaning.merge, warnings) if meaning.merge else None
        if person is None:
            owner = self._owner(event.api_key, event.distinct_id)
            if owner is None:
                warnings.extend(self._case_collision(event))
            person = self._make(event) if owner is None else self._person(owner)
        differs = self._set(event, person, meaning.changes) if meaning.changes else False
        self._versions[person.id] = person.version
        self._note(event, person.id, meaning, differs=differs)
        return person.id

    def _case_collision(self, event: ArrivedEvent) -> Iterator[EventWarning]:
        """The warning about a new person whose distinct id has, in lower case, another one."""
        lower = event.distinct_id.lower()
        twin = None if lower == event.distinct_id else self._owner(event.api_key, lower)
        if twin is not None:
            ids = {"distinctId": event.distinct_id, "existingDistinctId": lower}
            person = self._person(twin).uuid
            yield EventWarning(WarningType.CASE_COLLISION, {**ids, "personId": person})

    def _note(
        self, event: ArrivedEvent, person: int, meaning: Meaning, *, differs: bool = False
    ) -> None:
        """Keep which person the event has, as it is now, and the groups."""
        version = self._versions.get(person)
        if version is None:
            version = self._versions[person] = self._person(person).version
        self._log.events.append((event.arrival, person, version, differs))
        if meaning.groups:
            self._log.groups.extend(
                (person, group_type, group_key, event.arrival)
                for group_type, group_key in meaning.groups.items()
            )

    def _set(self, event: ArrivedEvent, person: _Person, changes: PersonChanges) -> bool:
        """Change a person's properties; whether the event's `$set` has something else."""
        update = changes.update(person.properties)
        if update.set or update.unset:
            properties = {**person.properties, **update.set}
            sources = dict(person.all_sources())
            for name, how in update.operations.items():
                sources[name] = event.arrival * len(OPERATIONS) + how
            for name in update.unset:
                del properties[name]
                sources.pop(name, None)
            self._replace(event.arrival, person, properties, sources)
        return update.differs

    def _replace(
        self,
        arrival: int,
        person: _Person,
        properties: dict[str, Any],
        sources: dict[str, int],
    ) -> None:
        """Give a person other properties; events before this one keep the old ones."""
        if person.version != arrival:
            self._log.supersede(person)
            person.version = arrival
        person.replace(properties, sources)
        person.touch(arrival)

    def _merge(self, event: ArrivedEvent, merge: Merge, warnings: list[EventWarning]) -> _Person:
        """The person that the event's distinct id has afterwards."""
        target = self._owner(event.api_key, event.distinct_id)
        source = self._owner(event.api_key, merge.source)
        if target is None or source is None:
            person = self._attach(event, merge, target if source is None else source)
        elif target == source:
            person = self._person(target)
        else:
            person = self._person(target)
            other = self._person(source)
            if other.is_identified and not merge.even_identified:
                self._identify(event, person)
                warnings.append(_already_identified(event, merge, person, other))
                return person
            self._swallow(event, merge, person, other)
        if merge.becomes_main:
            person.distinct_id = merge.source
            person.dirty = True
        self._identify(event, person)
        return person

    def _attach(self, event: ArrivedEvent, merge: Merge, owner: int | None) -> _Person:
        """Give a person the id without an owner; a new one, if neither has one, gets both. A person
        that was not identified before gets the event's id as its main one.
        """
        person = self._make(event) if owner is None else self._person(owner)
        self._write_new()
        added = merge.source
        if self._owner(event.api_key, event.distinct_id) is None:
            added = event.distinct_id
            if not person.is_identified:
                person.distinct_id = event.distinct_id
        self._execute(_ADD_ID, (event.api_key, added, person.id))
        self._owners[event.api_key, added] = person.id
        person.touch(event.arrival)
        self._log.merge(event, person, MergeOutcome.ATTACHED, merge.source)
        return person

    def _swallow(self, event: ArrivedEvent, merge: Merge, person: _Person, other: _Person) -> None:
        """Let a person have everything of another one, which is no more."""
        self._write_new()
        self._log.supersede(other)
        self._replace(
            event.arrival,
            person,
            {**other.properties, **person.properties},
            {**other.all_sources(), **person.all_sources()},
        )
        person.created_at = min(person.created_at, other.created_at)
        self._log.move(other.id, person.id)
        self._log.merge(event, person, MergeOutcome.MERGED, merge.source, other.uuid)
        self._execute("UPDATE distinct_ids SET person = ? WHERE person = ?", (person.id, other.id))
        self._execute("DELETE FROM persons WHERE id = ?", (other.id,))
        del self._held[other.id]
        self._versions.pop(other.id, None)
        self._owners.clear()

    def _identify(self, event: ArrivedEvent, person: _Person) -> None:
        if not person.is_identified:
            person.is_identified = True
            person.touch(event.arrival)

    def _make(self, event: ArrivedEvent) -> _Person:
        """A new person, which `_write_new` writes."""
        self._last += 1
        person = _Person(
            id=self._last,
            uuid=str(uuid5(PERSON_NAMESPACE, f"{event.api_key}\0{event.distinct_id}")),
            api_key=event.api_key,
            distinct_id=event.distinct_id,
            text="{}",
            created_at=event.timestamp,
            is_identified=False,
            changed=event.arrival,
            created=event.arrival,
            sources_text="{}",
            version=event.arrival,
        )
        self._owners[event.api_key, event.distinct_id] = person.id
        self._held[person.id] = person
        self._new.append(person)
        return person

    def _write_new(self) -> None:
        """Write the new persons, each with the id that made it."""
        if not self._new:
            return
        self._connection.executemany(_INSERT, [person.row() for person in self._new])
        ids = [(person.api_key, person.distinct_id, person.id) for person in self._new]
        self._connection.executemany(_ADD_ID, ids)
        for person in self._new:
            person.dirty = False
        self._new.clear()

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

    def _person(self, number: int) -> _Person:
        held = self._held.get(number)
        if held is None:
            row = self._execute(_PERSON + "id = ?", (number,)).fetchone()
            self._held[number] = held = _Person.of_row(row)
        return held

    def _stored(self, person: _Person) -> StoredPerson:
        ids = self._execute(
            "SELECT distinct_id FROM distinct_ids WHERE person = ? ORDER BY id", (person.id,)
        ).fetchall()
        return StoredPerson(
            person.uuid,
            person.api_key,
            person.distinct_id,
            [one[0] for one in ids],
            person.properties,
            person.created_at,
            person.is_identified,
        )

    def _events(self, arrivals: set[int]) -> dict[int, PersonEvent]:
        rows = self._execute(_EVENTS, [json.dumps(sorted(arrivals))])
        return {row[0]: PersonEvent(*row) for row in rows}


class _PersonLog:
    """What is only ever added: which person an event had, superseded properties, merges, warnings,
    groups. Cached until `write`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.events: list[tuple[int, int, int, bool]] = []
        self.warnings: list[tuple[int | None, int, str, str]] = []
        self.groups: list[tuple[int, str, str, int]] = []
        self._versions: list[tuple[int, int, str]] = []
        self._merges: list[tuple[int, int, str, str, str, str | None]] = []

    def supersede(self, person: _Person) -> None:
        """Keep the properties that events up to now have of a person."""
        self._versions.append((person.id, person.version, person.json()))

    def merge(
        self,
        event: ArrivedEvent,
        person: _Person,
        outcome: MergeOutcome,
        source: str,
        merged: str | None = None,
    ) -> None:
        """Keep that an event merged distinct ids."""
        self._merges.append((person.id, event.arrival, outcome, source, event.distinct_id, merged))

    def move(self, source: int, target: int) -> None:
        """Give one person what another had; its events keep the properties they had."""
        self.write()
        for statement in (
            "UPDATE merges SET person = ? WHERE person = ?",
            "UPDATE warnings SET person = ? WHERE person = ?",
            "INSERT INTO person_groups SELECT ?, group_type, group_key, event FROM person_groups "
            "WHERE person = ? ON CONFLICT DO UPDATE SET event = max(event, excluded.event)",
        ):
            self._connection.execute(statement, (target, source))
        self._connection.execute("DELETE FROM person_groups WHERE person = ?", (source,))

    def write(self) -> None:
        """Write everything, and empty the cache."""
        many = self._connection.executemany
        many("INSERT INTO event_persons VALUES (?, ?, ?, ?)", self.events)
        many("INSERT INTO person_versions VALUES (?, ?, ?)", self._versions)
        many("INSERT INTO merges VALUES (NULL, ?, ?, ?, ?, ?, ?)", self._merges)
        many("INSERT INTO warnings VALUES (NULL, ?, ?, ?, ?)", self.warnings)
        many("INSERT OR REPLACE INTO person_groups VALUES (?, ?, ?, ?)", self.groups)
        for pending in (self.events, self._versions, self._merges, self.warnings, self.groups):
            pending.clear()


def _already_identified(
    event: ArrivedEvent, merge: Merge, person: _Person, other: _Person
) -> EventWarning:
    return EventWarning(
        WarningType.ALREADY_IDENTIFIED,
        {
            "sourcePersonDistinctId": merge.source,
            "targetPersonDistinctId": event.distinct_id,
            "personId": person.uuid,
            "otherPersonId": other.uuid,
        },
    )


def _stored_warning(row: Sequence[Any]) -> StoredWarning:
    number, kind, details, api_key, *event, person = row
    return StoredWarning(
        number, WarningType(kind), json.loads(details), api_key, PersonEvent(*event), person
    )
