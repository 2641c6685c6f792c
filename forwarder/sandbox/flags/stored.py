"""What a project's flags are decided by, in the database: flags, cohorts, surveys, early access
features, experiments, types of groups.

Invariants: a definition is a JSON object in the service's own form, kept as it came, unknown
fields too; what the form requires and the sender left out is filled in: `id` (the row's), `name`,
`active`, `deleted`, `filters`, `version`. A flag or cohort in the database can be parsed.
`definition_revisions` has a new random value for a project after each change, in the same
transaction, so that what `project_definitions` caches is never older than the database, also after
a rollback.

A flag without `filters.groups` has the older form of the service, with `properties` and
`rollout_percentage` beside each other: it is kept as one condition with these, so that
`{"active": true}` is on for everybody. With an empty list of groups it is off for everybody.
Filters of version 2 have rules instead, and no groups.

Types of groups have an index in flags (`aggregation_group_type_index`). The ones that the seed or
`PUT /sandbox/group-types` name come first, in that order; then those of `$groupidentify` events,
in the order of the first of each (`Store.group_types`).

Everything here blocks and belongs to the store's thread; transactions are the caller's.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from forwarder.sandbox.flags.definitions import (
    Cohort,
    Flag,
    InvalidDefinition,
    is_first_version,
    parse_cohort,
    parse_flag,
)
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.database import Store

_ROW: Final = (
    "SELECT id, api_key, kind, name, content, created_at, updated_at FROM definitions WHERE "
)
_LONGEST_KEY: Final = 400
"""Characters of a flag's key."""


class DefinitionKind(StrEnum):
    """What a definition is of."""

    FLAG = "flag"
    COHORT = "cohort"
    SURVEY = "survey"
    EARLY_ACCESS_FEATURE = "early_access_feature"
    EXPERIMENT = "experiment"
    GROUP_TYPE = "group_type"


class DefinitionKey(NamedTuple):
    """What names a definition: the project's key, and in it kind and name."""

    api_key: str
    kind: DefinitionKind
    name: str
    """The flag's key, the cohort's id, or what else names one of its kind."""


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """One definition. Times are ISO 8601 in UTC."""

    id: int
    api_key: str
    kind: DefinitionKind
    name: str
    content: Mapping[str, Any]
    created_at: str
    updated_at: str


@dataclass(frozen=True, slots=True)
class ProjectDefinitions:
    """A project's definitions, parsed; they are shared, so nothing in them may be changed."""

    flags: Mapping[str, Flag]
    cohorts: Mapping[int, Cohort]
    static_cohorts: Mapping[int, frozenset[str]]
    """The distinct ids in each static cohort, by its id."""
    group_types: Sequence[str]
    """Those that are named without an event."""
    surveys: Sequence[Mapping[str, Any]]
    early_access_features: Sequence[Mapping[str, Any]]
    experiments: Sequence[Mapping[str, Any]]


NO_DEFINITIONS: Final = ProjectDefinitions({}, {}, {}, (), (), (), ())


def put_definition(
    store: Store, key: DefinitionKey, content: object, now: datetime
) -> StoredDefinition:
    """Add or replace a definition. Raises `InvalidDefinition`, and changes
    nothing, if it can't be parsed.
    """
    api_key, kind, name = key
    before = find_definition(store, key)
    number = before.id if before is not None else _next_id(store)
    completed = _complete(kind, name, content, number, before)
    _check(kind, completed)
    text = json.dumps(completed)
    time = format_time(now)
    if before is None:
        store.connection.execute(
            "INSERT INTO definitions VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, api_key, kind, name, text, time, time),
        )
    else:
        store.connection.execute(
            "UPDATE definitions SET content = ?, updated_at = ? WHERE id = ?", (text, time, number)
        )
    _changed(store, api_key)
    return StoredDefinition(
        number,
        api_key,
        kind,
        name,
        completed,
        before.created_at if before is not None else time,
        time,
    )


def add_definition(store: Store, key: DefinitionKey, content: object, now: datetime) -> None:
    """Add a definition unless there is one of this kind and name. Raises `InvalidDefinition`."""
    if find_definition(store, key) is None:
        put_definition(store, key, content, now)


def delete_definition(store: Store, key: DefinitionKey) -> bool:
    """Delete a definition; whether there was one."""
    cursor = store.connection.execute(
        "DELETE FROM definitions WHERE api_key = ? AND kind = ? AND name = ?", key
    )
    if cursor.rowcount:
        _changed(store, key.api_key)
    return bool(cursor.rowcount)


def name_group_types(store: Store, api_key: str, names: Sequence[str], now: datetime) -> None:
    """Name the types of a project's groups, from index 0 on, in place of those that are named."""
    store.connection.execute(
        "DELETE FROM definitions WHERE api_key = ? AND kind = ?",
        (api_key, DefinitionKind.GROUP_TYPE),
    )
    for name in dict.fromkeys(names):
        put_definition(store, DefinitionKey(api_key, DefinitionKind.GROUP_TYPE, name), {}, now)
    _changed(store, api_key)


def find_definition(store: Store, key: DefinitionKey) -> StoredDefinition | None:
    """One definition, None if there is none."""
    rows = store.select(_ROW + "api_key = ? AND kind = ? AND name = ?", key)
    return _stored(rows[0]) if rows else None


def definition_of_row(store: Store, kind: DefinitionKind, number: int) -> StoredDefinition | None:
    """The definition in a row, None if it isn't there or of another kind."""
    rows = store.select(_ROW + "id = ? AND kind = ?", [number, kind])
    return _stored(rows[0]) if rows else None


def list_definitions(
    store: Store, kind: DefinitionKind, api_key: str | None = None
) -> list[StoredDefinition]:
    """All definitions of a kind, of one project or (None) of all, in the order of
    their creation.
    """
    rows = store.select(
        _ROW + "kind = ? AND (? IS NULL OR api_key = ?) ORDER BY id", [kind, api_key, api_key]
    )
    return [_stored(row) for row in rows]


def project_definitions(store: Store, api_key: str) -> ProjectDefinitions:
    """Everything that a project's flags are decided by, parsed once a change."""
    rows = store.select("SELECT revision FROM definition_revisions WHERE api_key = ?", [api_key])
    revision = rows[0][0] if rows else ""
    cached = store.derived.get(("definitions", api_key))
    if cached is None or cached[0] != revision:
        cached = (revision, _read(store, api_key))
        store.derived["definitions", api_key] = cached
    definitions: ProjectDefinitions = cached[1]
    return definitions


def group_types(store: Store, api_key: str, definitions: ProjectDefinitions) -> list[str]:
    """The types of a project's groups in the order of their index, with all arrivals folded in."""
    return list(dict.fromkeys((*definitions.group_types, *store.group_types(api_key))))


def _read(store: Store, api_key: str) -> ProjectDefinitions:
    contents: dict[DefinitionKind, list[StoredDefinition]] = {kind: [] for kind in DefinitionKind}
    for row in store.select(_ROW + "api_key = ? ORDER BY id", [api_key]):
        stored = _stored(row)
        contents[stored.kind].append(stored)
    cohorts = {
        int(definition.name): definition.content for definition in contents[DefinitionKind.COHORT]
    }
    return ProjectDefinitions(
        flags={
            definition.name: parse_flag(definition.content)
            for definition in contents[DefinitionKind.FLAG]
        },
        cohorts={number: parse_cohort(content) for number, content in cohorts.items()},
        static_cohorts={
            number: frozenset(content["distinct_ids"])
            for number, content in cohorts.items()
            if content.get("is_static")
        },
        group_types=[definition.name for definition in contents[DefinitionKind.GROUP_TYPE]],
        surveys=[definition.content for definition in contents[DefinitionKind.SURVEY]],
        early_access_features=[
            definition.content for definition in contents[DefinitionKind.EARLY_ACCESS_FEATURE]
        ],
        experiments=[definition.content for definition in contents[DefinitionKind.EXPERIMENT]],
    )


def _stored(row: Sequence[Any]) -> StoredDefinition:
    number, api_key, kind, name, content, created_at, updated_at = row
    return StoredDefinition(
        number, api_key, DefinitionKind(kind), name, json.loads(content), created_at, updated_at
    )


def _next_id(store: Store) -> int:
    """A row's number that no definition has had."""
    return int(
        store.select(
            "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'definitions'", []
        )[0][0]
    )


def _changed(store: Store, api_key: str) -> None:
    store.connection.execute(
        "INSERT OR REPLACE INTO definition_revisions VALUES (?, ?)",
        (api_key, secrets.token_hex(16)),
    )


def check_definition(kind: DefinitionKind, name: str, content: object) -> None:
    """Raise `InvalidDefinition` if a definition of this name can't be stored."""
    _check(kind, _complete(kind, name, content, 1, None))


def _check(kind: DefinitionKind, completed: Mapping[str, Any]) -> None:
    if kind is DefinitionKind.FLAG:
        parse_flag(completed)
    elif kind is DefinitionKind.COHORT:
        parse_cohort(completed)


def _complete(
    kind: DefinitionKind, name: str, content: object, number: int, before: StoredDefinition | None
) -> dict[str, Any]:
    """The content with what its form requires."""
    if not isinstance(content, dict):
        raise InvalidDefinition("", "must be an object")
    if kind is DefinitionKind.FLAG:
        return _complete_flag(name, content, number, before)
    if kind is DefinitionKind.COHORT:
        return _complete_cohort(name, content)
    return {"id": number, **content}


def _complete_flag(
    key: str, content: Mapping[str, Any], number: int, before: StoredDefinition | None
) -> dict[str, Any]:
    if not key or len(key) > _LONGEST_KEY:
        raise InvalidDefinition("key", f"a key has 1 to {_LONGEST_KEY} characters")
    if content.get("key", key) != key:
        raise InvalidDefinition("key", f"this is not {key!r}, under which the flag is stored")
    filters = content.get("filters")
    filters = {} if filters is None else filters
    if not isinstance(filters, dict):
        raise InvalidDefinition("filters", "must be an object")
    if is_first_version(filters) and filters.get("groups") is None:
        rollout = content.get("rollout_percentage", filters.get("rollout_percentage"))
        filters = {
            **filters,
            "groups": [
                {"properties": filters.get("properties") or [], "rollout_percentage": rollout}
            ],
        }
    defaults = {
        "id": number if before is None else before.content["id"],
        "key": key,
        "name": "",
        "active": True,
        "deleted": False,
        "ensure_experience_continuity": False,
        "version": 1 if before is None else _following(before.content["version"]),
    }
    given = {
        field: value
        for field, value in content.items()
        if value is not None or field not in defaults
    }
    return {**defaults, **given, "filters": filters}


def _following(version: object) -> int:
    return version + 1 if isinstance(version, int) else 1


def _complete_cohort(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    number = int(name)
    if number < 1:
        raise InvalidDefinition("id", "must be a number from 1 on")
    if content.get("id", number) != number:
        raise InvalidDefinition("id", f"this is not {number}, under which the cohort is stored")
    members = content.get("distinct_ids")
    if members is not None and not (
        isinstance(members, list) and all(isinstance(member, str) for member in members)
    ):
        raise InvalidDefinition("distinct_ids", "this is not a list of distinct ids")
    static = content.get("is_static", members is not None)
    defaults: dict[str, Any] = {"id": number, "name": f"Cohort {number}", "deleted": False}
    # A cohort in another form has its conditions elsewhere.
    if not {"filters", "groups", "values"} & content.keys():
        defaults["filters"] = {"properties": {"type": "OR", "values": []}}
    return {
        **defaults,
        **content,
        "is_static": static,
        **({"distinct_ids": members or []} if static else {}),
    }
