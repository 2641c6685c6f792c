"""The persons of a sandbox: their distinct ids and properties, what set each property, what was
merged, and the service's warnings.

An arrival is one event as the store received it; its number is `events.id`. Within this module a
person's `id` is the number of its row, and its `uuid` is the id that queries and answers show.

Invariants: every distinct id of a project belongs to exactly one person, its owner. A person has
at least one distinct id, and its main one is among them. A person that was merged into another is
deleted and never comes back, because its distinct ids have another owner from then on. A person's
UUID is derived from its project and the distinct id that created it, so the same arrivals always
create the same persons. `changed` is the last arrival that created the person, or changed its
properties or its distinct ids, or identified it.

A person is identified only by an event that names two distinct ids: `$identify` with
`$anon_distinct_id`, `$create_alias` or `$merge_dangerously`. This holds even if the merge is
refused because the other person is identified already. The person of the event's distinct id
survives a merge. If only one of the two ids has a person, that person gets the other id. After
`$create_alias`, `alias` is the main distinct id: the contract says so, the service has no main id.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/ingestion/common/persons/person-merge-service.ts` (ee17309) and
`person-merge-postgres.ts` (193e09f) the merges and their warnings, `person-create-service.ts`
(03330ef) and `person-property-service.ts` (03330ef, the warning about case in a later version)
what creates and changes a person,
`nodejs/src/ingestion/common/steps/event-processing/create-event.ts` (01bf1ef) which properties of
its person an event keeps.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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

INGESTED_PROPERTIES: Final = (
    "coalesce(superseded.properties, latest.properties), event_persons.differs"
)
"""Two columns of an event: its person's properties as they were after the event, and whether the
event's own `$set` has values that these lack (`meaning.ingested_properties` then adds them).
"""
INGESTED_PROPERTIES_JOINS: Final = """
    LEFT JOIN event_persons ON event_persons.event = events.id
    LEFT JOIN persons AS latest
        ON latest.id = event_persons.person AND latest.version = event_persons.version
    LEFT JOIN person_versions AS superseded
        ON superseded.person = event_persons.person AND superseded.version = event_persons.version
"""
"""The joins that `INGESTED_PROPERTIES` needs in a query of `events`."""
_PERSON_NAMESPACE: Final = UUID("6b2b9f6e-6d0b-5c0e-9d53-3a2a1d1f8c11")
"""Stays as it is: with another one, all persons would get other UUIDs."""
_PERSON_COLUMNS: Final = (
    "id, uuid, api_key, distinct_id, properties, created_at, is_identified, changed, created, "
    "sources, version"
)
# S608: the columns are constants.
_SELECT_PERSON: Final = f"SELECT {_PERSON_COLUMNS} FROM persons WHERE "  # noqa: S608
_INSERT_PERSON: Final = (
    f"INSERT INTO persons ({_PERSON_COLUMNS}) "  # noqa: S608
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_PERSON: Final = (
    "UPDATE persons SET distinct_id = ?, properties = ?, created_at = ?, is_identified = ?, "
    "changed = ?, sources = ?, version = ? WHERE id = ?"
)
_INSERT_DISTINCT_ID: Final = "INSERT INTO distinct_ids VALUES (NULL, ?, ?, ?)"
_IN_JSON: Final = "id IN (SELECT value FROM json_each(?))"
"""The ids as one JSON list, because the number of placeholders in a statement has a limit."""
_SELECT_EVENTS: Final = (
    # S608: the condition is a constant.
    f"SELECT id, uuid, event, distinct_id, timestamp FROM events WHERE {_IN_JSON}"  # noqa: S608
)
_SELECT_WARNING: Final = """
    SELECT
        warnings.id, warnings.type, warnings.details, events.api_key, events.id, events.uuid,
        events.event, events.distinct_id, events.timestamp, persons.uuid
    FROM warnings
    JOIN events ON events.id = warnings.event
    LEFT JOIN persons ON persons.id = warnings.person
    WHERE """
_SELECT_MERGES: Final = (
    "SELECT event, outcome, source, target, merged FROM merges WHERE person = ? ORDER BY id"
)
_SELECT_GROUPS: Final = (
    "SELECT group_type, group_key, event FROM person_groups WHERE person = ? "
    "ORDER BY group_type, group_key"
)


class MergeOutcome(StrEnum):
    """What a merge did, which depends on how many of its two distinct ids had a person."""

    MERGED = "merged"
    """Both had one: the two persons became one."""
    ATTACHED = "attached"
    """One had one, which got the other id; or neither had, and a new person got both."""


@dataclass(frozen=True, slots=True)
class StoredPerson:
    """One person. `id` is a UUID, times are ISO 8601 in UTC."""

    id: str
    api_key: str
    distinct_id: str
    """The main one of `distinct_ids`."""
    distinct_ids: Sequence[str]
    """In the order in which the person got them."""
    properties: Mapping[str, Any]
    created_at: str
    """The timestamp of the event that created the person. A merge keeps the earlier one."""
    is_identified: bool


@dataclass(frozen=True, slots=True)
class PersonEvent:
    """An event to which a person's details or a warning refer. `timestamp` is ISO 8601 in UTC."""

    arrival: int
    uuid: str
    event: str
    """Its name."""
    distinct_id: str
    timestamp: str


@dataclass(frozen=True, slots=True)
class PropertySource:
    """Which event set the value of a property. A merge doesn't change it."""

    event: PersonEvent
    operation: str
    """`$set` or `$set_once`."""
    lifted: bool
    """Whether the service took the value from the event's other properties, such as `$browser`."""


@dataclass(frozen=True, slots=True)
class PersonMerge:
    """One merge of two distinct ids."""

    event: PersonEvent
    outcome: MergeOutcome
    source: str
    """The distinct id in the event's `$anon_distinct_id` or `alias`."""
    target: str
    """The event's own distinct id."""
    merged_person: str | None
    """The id of the person that was deleted; None if `outcome` is `attached`."""


@dataclass(frozen=True, slots=True)
class PersonGroup:
    """A group that a person's events name in `$groups`."""

    group_type: str
    group_key: str
    event: PersonEvent
    """The last arrival that names it."""


@dataclass(frozen=True, slots=True)
class StoredWarning:
    """A warning of the service about an event that it accepted."""

    id: int
    """Counts up in the order of arrival."""
    type: WarningType
    details: Mapping[str, Any]
    """Named as in the service's warning."""
    api_key: str
    event: PersonEvent
    person: str | None
    """The id of the event's person, if it has one."""


@dataclass(frozen=True, slots=True)
class PersonDetails:
    """A person and its history."""

    person: StoredPerson
    created_by: PersonEvent
    sources: Mapping[str, PropertySource]
    """By the name of the property."""
    merges: Sequence[PersonMerge]
    """In the order of arrival, including those of persons that were merged into this one."""
    groups: Sequence[PersonGroup]
    warnings: Sequence[StoredWarning]


class ArrivedEvent(NamedTuple):
    """The fields of an arrival that `PersonTable.apply` needs."""

    arrival: int
    api_key: str
    distinct_id: str
    timestamp: str


@dataclass(slots=True)
class _CachedPerson:
    """A person's row while arrivals are applied to it. JSON is parsed only if it is needed, and
    encoded only if it has changed.
    """

    # The first fields are those of `_PERSON_COLUMNS`, in the same order.
    id: int
    uuid: str
    api_key: str
    distinct_id: str
    properties_json: str
    """Out of date while `are_properties_dirty`."""
    created_at: str
    is_identified: bool
    changed: int
    created: int
    """The arrival that created it."""
    sources_json: str
    """Out of date once `parsed_sources` is set."""
    version: int
    """The arrival that changed its properties last."""
    parsed_properties: dict[str, Any] | None = None
    parsed_sources: dict[str, int] | None = None
    is_dirty: bool = False
    """Whether the row must be updated."""
    are_properties_dirty: bool = False

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> _CachedPerson:
        """The person of a row of `_PERSON_COLUMNS`."""
        person = cls(*row)
        person.is_identified = bool(person.is_identified)
        return person

    @property
    def properties(self) -> dict[str, Any]:
        """Must not be changed in place."""
        if self.parsed_properties is None:
            self.parsed_properties = json.loads(self.properties_json)
        return self.parsed_properties

    @property
    def sources(self) -> dict[str, int]:
        """For each property the number of `_encode_source`. Must not be changed in place."""
        if self.parsed_sources is None:
            self.parsed_sources = json.loads(self.sources_json)
        return self.parsed_sources

    def encode_properties(self) -> str:
        """The properties as JSON."""
        if self.are_properties_dirty:
            self.properties_json = dump(self.parsed_properties)
            self.are_properties_dirty = False
        return self.properties_json

    def set_properties(self, properties: dict[str, Any], sources: dict[str, int]) -> None:
        """Replace all properties and their sources."""
        self.parsed_properties = properties
        self.parsed_sources = sources
        self.are_properties_dirty = True

    def touch(self, arrival: int) -> None:
        """Note that the arrival changed the person."""
        self.changed = arrival
        self.is_dirty = True

    def insert_parameters(self) -> tuple[Any, ...]:
        """The parameters of `_INSERT_PERSON`."""
        return (
            self.id,
            self.uuid,
            self.api_key,
            self.distinct_id,
            self.encode_properties(),
            self.created_at,
            self.is_identified,
            self.changed,
            self.created,
            self._encode_sources(),
            self.version,
        )

    def update_parameters(self) -> tuple[Any, ...]:
        """The parameters of `_UPDATE_PERSON`."""
        return (
            self.distinct_id,
            self.encode_properties(),
            self.created_at,
            self.is_identified,
            self.changed,
            self._encode_sources(),
            self.version,
            self.id,
        )

    def _encode_sources(self) -> str:
        return self.sources_json if self.parsed_sources is None else json.dumps(self.parsed_sources)


class _PersonHistory:
    """What events did to persons: which version of its person each event had, superseded versions
    of properties, merges, warnings, and groups. Cached until `write`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._events: list[tuple[int, int, int, bool]] = []
        self._superseded: list[tuple[int, int, str]] = []
        self._merges: list[tuple[int, int, str, str, str, str | None]] = []
        self._warnings: list[tuple[int | None, int, str, str]] = []
        self._groups: list[tuple[int, str, str, int]] = []

    def add_event(self, arrival: int, person_id: int, version: int, *, differs: bool) -> None:
        """Record which version of which person an event had (`INGESTED_PROPERTIES`)."""
        self._events.append((arrival, person_id, version, differs))

    def add_superseded(self, person: _CachedPerson) -> None:
        """Keep a person's properties for the events that had them, before they change or the
        person is deleted.
        """
        self._superseded.append((person.id, person.version, person.encode_properties()))

    def add_merge(
        self,
        event: ArrivedEvent,
        person_id: int,
        outcome: MergeOutcome,
        source: str,
        merged_person: str | None = None,
    ) -> None:
        """Record a merge; its fields are those of `PersonMerge`."""
        self._merges.append(
            (person_id, event.arrival, outcome, source, event.distinct_id, merged_person)
        )

    def add_warning(self, arrival: int, owner: int | None, warning: EventWarning) -> None:
        """Record a warning about an event, whose distinct id has this owner."""
        self._warnings.append((owner, arrival, warning.type, dump(dict(warning.details))))

    def add_groups(self, arrival: int, person_id: int, groups: Mapping[str, str]) -> None:
        """Record the groups that an event of a person names, type to key."""
        for group_type, group_key in groups.items():
            self._groups.append((person_id, group_type, group_key, arrival))

    def move(self, source_id: int, target_id: int) -> None:
        """Give one person the merges, warnings and groups of another. Events keep the person that
        they had, and so its properties.
        """
        # Only rows can be moved, so what is cached has to be written before.
        self.write()
        for statement in (
            "UPDATE merges SET person = ? WHERE person = ?",
            "UPDATE warnings SET person = ? WHERE person = ?",
            "INSERT INTO person_groups SELECT ?, group_type, group_key, event FROM person_groups "
            "WHERE person = ? ON CONFLICT DO UPDATE SET event = max(event, excluded.event)",
        ):
            self._connection.execute(statement, (target_id, source_id))
        self._connection.execute("DELETE FROM person_groups WHERE person = ?", (source_id,))

    def write(self) -> None:
        """Write everything, and empty the cache."""
        insert = self._connection.executemany
        insert("INSERT INTO event_persons VALUES (?, ?, ?, ?)", self._events)
        insert("INSERT INTO person_versions VALUES (?, ?, ?)", self._superseded)
        insert("INSERT INTO merges VALUES (NULL, ?, ?, ?, ?, ?, ?)", self._merges)
        insert("INSERT INTO warnings VALUES (NULL, ?, ?, ?, ?)", self._warnings)
        insert("INSERT OR REPLACE INTO person_groups VALUES (?, ?, ?, ?)", self._groups)
        for rows in (self._events, self._superseded, self._merges, self._warnings, self._groups):
            rows.clear()


class PersonTable:
    """The persons in a database. The caller controls the transactions.

    To change persons, call `preload` once, then `apply` for each arrival in order, then `flush`, in
    one transaction: until `flush` the changes are cached, so that many events of one person cost
    one write. The queries (`count`, `listing`, `details`, `warnings`) read the database only.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._owners: dict[tuple[str, str], int | None] = {}
        """The owner's id for a project key and distinct id; None if the distinct id has none."""
        self._versions: dict[int, int] = {}
        """Of persons by id, so that an event that changes nothing needn't read its person."""
        self._cached: dict[int, _CachedPerson] = {}
        self._new: list[_CachedPerson] = []
        """Those of `_cached` that have no row yet."""
        self._last_id = 0
        self._history = _PersonHistory(connection)

    def preload(
        self, owners: Iterable[tuple[str, str, int | None, int | None]], person_ids: set[int]
    ) -> None:
        """Cache what the next arrivals need. `owners` are tuples of a project key, a distinct id,
        its owner's id and its owner's version (None: no owner); the persons with these ids are
        read whole.
        """
        for api_key, distinct_id, owner, version in owners:
            self._owners[api_key, distinct_id] = owner
            if owner is not None and version is not None:
                self._versions[owner] = version
        rows = self._execute(_SELECT_PERSON + _IN_JSON, [json.dumps(sorted(person_ids))])
        self._cached = {row[0]: _CachedPerson.from_row(row) for row in rows}
        self._last_id = int(self._execute("SELECT coalesce(max(id), 0) FROM persons").fetchone()[0])

    def apply(self, event: ArrivedEvent, meaning: Meaning) -> None:
        """Do what an event means for persons: create, merge or change one, or only record which
        one the event has.
        """
        warnings = list(meaning.warnings)
        owner = self._owner(event.api_key, event.distinct_id)
        is_reader = meaning.anonymous or meaning.read_only
        if not is_reader and (owner is None or meaning.changes_person):
            owner = self._change(event, meaning, warnings)
        elif owner is not None and not meaning.anonymous:
            self._record(event, owner, meaning, differs=False)
        for warning in warnings:
            self._history.add_warning(event.arrival, owner, warning)

    def flush(self) -> None:
        """Write the cached changes, and empty the cache."""
        self._insert_new()
        updates = [
            person.update_parameters() for person in self._cached.values() if person.is_dirty
        ]
        self._connection.executemany(_UPDATE_PERSON, updates)
        self._history.write()
        self._owners.clear()
        self._versions.clear()
        self._cached.clear()

    def count(self) -> int:
        """The number of persons."""
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
            _SELECT_PERSON + condition + page.ordered("id"), [*parameters, *page.bounds()]
        ).fetchall()
        return int(count), [self._stored_person(_CachedPerson.from_row(row)) for row in rows]

    def details(self, uuid: str) -> PersonDetails | None:
        """A person and its history; None if no person has this UUID. The cost depends on the
        length of the answer, not on the number of events.
        """
        row = self._execute(_SELECT_PERSON + "uuid = ?", [uuid]).fetchone()
        if row is None:
            return None
        person = _CachedPerson.from_row(row)
        sources = {name: _decode_source(source) for name, source in person.sources.items()}
        merges = self._execute(_SELECT_MERGES, [person.id]).fetchall()
        groups = self._execute(_SELECT_GROUPS, [person.id]).fetchall()
        events = self._load_events(
            {
                person.created,
                *(arrival for arrival, _ in sources.values()),
                *(arrival for arrival, *_ in merges),
                *(arrival for _, _, arrival in groups),
            }
        )
        _, warnings = self.warnings(WarningFilter(person=uuid), ListingPage(limit=None))
        return PersonDetails(
            person=self._stored_person(person),
            created_by=events[person.created],
            sources={
                name: PropertySource(events[arrival], *OPERATIONS[operation])
                for name, (arrival, operation) in sources.items()
            },
            merges=[
                PersonMerge(events[arrival], MergeOutcome(outcome), source, target, merged_person)
                for arrival, outcome, source, target, merged_person in merges
            ],
            groups=[
                PersonGroup(group_type, group_key, events[arrival])
                for group_type, group_key, arrival in groups
            ],
            warnings=warnings,
        )

    def warnings(self, wanted: WarningFilter, page: ListingPage) -> tuple[int, list[StoredWarning]]:
        """The number of warnings that match the filter, and a page of them, in the order of
        arrival.
        """
        condition, parameters = wanted.condition()
        rows = self._execute(
            _SELECT_WARNING + condition + page.ordered("warnings.id"),
            [*parameters, *page.bounds()],
        ).fetchall()
        # S608: the condition is made of fixed clauses, its values have placeholders.
        count = self._execute(
            f"SELECT count(*) FROM ({_SELECT_WARNING}{condition})",  # noqa: S608
            parameters,
        ).fetchone()[0]
        return int(count), [_stored_warning(row) for row in rows]

    def _change(self, event: ArrivedEvent, meaning: Meaning, warnings: list[EventWarning]) -> int:
        """Create, merge and change the event's person, and return its id. Adds to `warnings`."""
        if meaning.merge is None:
            person = self._find_or_create(event, warnings)
        else:
            person = self._merge(event, meaning.merge, warnings)
        differs = self._set_properties(event, person, meaning.changes) if meaning.changes else False
        self._versions[person.id] = person.version
        self._record(event, person.id, meaning, differs=differs)
        return person.id

    def _find_or_create(self, event: ArrivedEvent, warnings: list[EventWarning]) -> _CachedPerson:
        """The person of the event's distinct id. Adds a warning if the id of a new person differs
        only in case from an id that has a person.
        """
        owner = self._owner(event.api_key, event.distinct_id)
        if owner is not None:
            return self._load(owner)
        lower = event.distinct_id.lower()
        lower_owner = None if lower == event.distinct_id else self._owner(event.api_key, lower)
        if lower_owner is not None:
            details = {
                "distinctId": event.distinct_id,
                "existingDistinctId": lower,
                "personId": self._load(lower_owner).uuid,
            }
            warnings.append(EventWarning(WarningType.CASE_COLLISION, details))
        return self._create(event)

    def _record(
        self, event: ArrivedEvent, person_id: int, meaning: Meaning, *, differs: bool
    ) -> None:
        """Record which person the event has, at its current version, and the event's groups."""
        version = self._versions.get(person_id)
        if version is None:
            version = self._versions[person_id] = self._load(person_id).version
        self._history.add_event(event.arrival, person_id, version, differs=differs)
        self._history.add_groups(event.arrival, person_id, meaning.groups)

    def _set_properties(
        self, event: ArrivedEvent, person: _CachedPerson, changes: PersonChanges
    ) -> bool:
        """Change a person's properties. Returns whether the event's own `$set` has values that the
        person doesn't have afterwards.
        """
        update = changes.update(person.properties)
        if update.set or update.unset:
            properties = {**person.properties, **update.set}
            sources = dict(person.sources)
            for name, operation in update.operations.items():
                sources[name] = _encode_source(event.arrival, operation)
            for name in update.unset:
                del properties[name]
                sources.pop(name, None)
            self._replace_properties(event.arrival, person, properties, sources)
        return update.differs

    def _replace_properties(
        self,
        arrival: int,
        person: _CachedPerson,
        properties: dict[str, Any],
        sources: dict[str, int],
    ) -> None:
        """Give a person a new version of its properties, and keep the old one for earlier
        events.
        """
        # An event that merges and then sets properties makes one version, not two.
        if person.version != arrival:
            self._history.add_superseded(person)
            person.version = arrival
        person.set_properties(properties, sources)
        person.touch(arrival)

    def _merge(
        self, event: ArrivedEvent, merge: Merge, warnings: list[EventWarning]
    ) -> _CachedPerson:
        """Merge the person of `merge.source` into that of the event's distinct id, which is
        returned. If the merge is refused, adds to `warnings`.
        """
        source_owner = self._owner(event.api_key, merge.source)
        target_owner = self._owner(event.api_key, event.distinct_id)
        if source_owner is None or target_owner is None:
            owner = target_owner if source_owner is None else source_owner
            person = self._attach(event, merge, owner)
        else:
            person = self._load(target_owner)
            if source_owner != target_owner:
                other = self._load(source_owner)
                if other.is_identified and not merge.even_identified:
                    self._identify(event, person)
                    warnings.append(_already_identified(event, merge, person, other))
                    return person
                self._absorb(event, merge, person, other)
        if merge.becomes_main:
            person.distinct_id = merge.source
            # Not `touch`: exports select persons by `changed`, and don't have the main id.
            person.is_dirty = True
        self._identify(event, person)
        return person

    def _attach(self, event: ArrivedEvent, merge: Merge, owner: int | None) -> _CachedPerson:
        """Give the only person of two distinct ids the other id; if `owner` is None, give both to a
        new person. A person that was not identified before gets the event's id as its main one.
        """
        person = self._create(event) if owner is None else self._load(owner)
        # A new person's first id has to have its row before the second one: their order is kept.
        self._insert_new()
        if self._owner(event.api_key, event.distinct_id) is not None:
            added = merge.source
        else:
            added = event.distinct_id
            if not person.is_identified:
                person.distinct_id = added
        self._execute(_INSERT_DISTINCT_ID, (event.api_key, added, person.id))
        self._owners[event.api_key, added] = person.id
        person.touch(event.arrival)
        self._history.add_merge(event, person.id, MergeOutcome.ATTACHED, merge.source)
        return person

    def _absorb(
        self, event: ArrivedEvent, merge: Merge, person: _CachedPerson, other: _CachedPerson
    ) -> None:
        """Give a person everything that another one has, and delete the other one."""
        # The statements below change rows, so new persons must have theirs.
        self._insert_new()
        self._history.add_superseded(other)
        self._replace_properties(
            event.arrival,
            person,
            {**other.properties, **person.properties},
            {**other.sources, **person.sources},
        )
        person.created_at = min(person.created_at, other.created_at)
        self._history.move(other.id, person.id)
        self._history.add_merge(event, person.id, MergeOutcome.MERGED, merge.source, other.uuid)
        self._execute("UPDATE distinct_ids SET person = ? WHERE person = ?", (person.id, other.id))
        self._execute("DELETE FROM persons WHERE id = ?", (other.id,))
        del self._cached[other.id]
        self._versions.pop(other.id, None)
        # Any number of the cached distinct ids may have belonged to the other person.
        self._owners.clear()

    def _identify(self, event: ArrivedEvent, person: _CachedPerson) -> None:
        if not person.is_identified:
            person.is_identified = True
            person.touch(event.arrival)

    def _create(self, event: ArrivedEvent) -> _CachedPerson:
        """A new person without properties; `_insert_new` writes it."""
        self._last_id += 1
        person = _CachedPerson(
            id=self._last_id,
            uuid=str(uuid5(_PERSON_NAMESPACE, f"{event.api_key}\0{event.distinct_id}")),
            api_key=event.api_key,
            distinct_id=event.distinct_id,
            properties_json="{}",
            created_at=event.timestamp,
            is_identified=False,
            changed=event.arrival,
            created=event.arrival,
            sources_json="{}",
            version=event.arrival,
        )
        self._owners[event.api_key, event.distinct_id] = person.id
        self._cached[person.id] = person
        self._new.append(person)
        return person

    def _insert_new(self) -> None:
        """Write the new persons, each with the distinct id that created it."""
        if not self._new:
            return
        rows = [person.insert_parameters() for person in self._new]
        self._connection.executemany(_INSERT_PERSON, rows)
        ids = [(person.api_key, person.distinct_id, person.id) for person in self._new]
        self._connection.executemany(_INSERT_DISTINCT_ID, ids)
        for person in self._new:
            person.is_dirty = False
        self._new.clear()

    def _owner(self, api_key: str, distinct_id: str) -> int | None:
        key = (api_key, distinct_id)
        if key in self._owners:
            return self._owners[key]
        row = self._execute(
            "SELECT person FROM distinct_ids WHERE api_key = ? AND distinct_id = ?", key
        ).fetchone()
        self._owners[key] = owner = None if row is None else int(row[0])
        return owner

    def _load(self, person_id: int) -> _CachedPerson:
        person = self._cached.get(person_id)
        if person is None:
            row = self._execute(_SELECT_PERSON + "id = ?", (person_id,)).fetchone()
            self._cached[person_id] = person = _CachedPerson.from_row(row)
        return person

    def _stored_person(self, person: _CachedPerson) -> StoredPerson:
        ids = self._execute(
            "SELECT distinct_id FROM distinct_ids WHERE person = ? ORDER BY id", (person.id,)
        ).fetchall()
        return StoredPerson(
            id=person.uuid,
            api_key=person.api_key,
            distinct_id=person.distinct_id,
            distinct_ids=[distinct_id for (distinct_id,) in ids],
            properties=person.properties,
            created_at=person.created_at,
            is_identified=person.is_identified,
        )

    def _load_events(self, arrivals: set[int]) -> dict[int, PersonEvent]:
        rows = self._execute(_SELECT_EVENTS, [json.dumps(sorted(arrivals))])
        return {row[0]: PersonEvent(*row) for row in rows}


def _encode_source(arrival: int, operation: int) -> int:
    """The arrival that set a property and the index of its operation in `OPERATIONS`, as one number
    of `sources`.
    """
    return arrival * len(OPERATIONS) + operation


def _decode_source(source: int) -> tuple[int, int]:
    return divmod(source, len(OPERATIONS))


def _already_identified(
    event: ArrivedEvent, merge: Merge, person: _CachedPerson, other: _CachedPerson
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
