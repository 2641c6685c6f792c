"""Whom a request for flags is about, and the decisions: what is stored of a person and its groups,
with what the request says above it.

Of each property the request's value counts, else the one of the client's place, else the stored
one (interface document: "POST /decide?v=3"); what the request says is not stored. `distinct_id` is
a property of every person, `$group_key` of every group. Times are read in the project's zone.

Types of groups that only the request names have the indexes after the known ones, in its order: a
test can ask for a flag by companies before the first company arrives.

A request for some flags (`flag_keys_to_evaluate`) gets those on which they depend, too
(`PrecomputedDependencyGraph` of the service: rust/feature-flags/src/utils/graph_utils.rs in
PostHog/posthog).

Continuity: a flag with `ensure_experience_continuity` is decided by the distinct id that the
person had when it was decided first. A request with `$anon_distinct_id` fixes that id for all such
flags that have none, for the person of its `distinct_id` and for that of the anonymous id; while
neither exists, it counts for that request alone. The table has it for a distinct id, so it stays
with the person when persons merge. If both persons have one, that of the remaining person's main id
counts, then the oldest (`try_set_feature_flag_hash_key_overrides` in
rust/feature-flags/src/flags/flag_matching_utils.rs of PostHog/posthog, commit 031a66e3d579).

Everything here blocks and belongs to the store's thread, in one unit of work.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from forwarder.sandbox.conditions.values import json_text
from forwarder.sandbox.flags.eligible import ELIGIBLE_FOR_ALL, Eligibility
from forwarder.sandbox.flags.evaluation import Definitions, Evaluation, Subject, evaluate
from forwarder.sandbox.flags.filled import fill_in
from forwarder.sandbox.flags.stored import ProjectDefinitions, group_types, project_definitions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.meaning import storable

_PERSON: Final = """
    SELECT persons.id, persons.distinct_id, persons.properties, persons.created_at
    FROM distinct_ids AS ids JOIN persons ON persons.id = ids.person
    WHERE ids.api_key = ? AND ids.distinct_id = ?
"""
_OTHER_IDS: Final = (
    "SELECT distinct_id FROM distinct_ids WHERE person = ? AND distinct_id <> ? ORDER BY id"
)
_HASH_KEYS: Final = "SELECT flag, hash_key FROM hash_keys WHERE api_key = ? AND distinct_id = ?"
_TIMEZONE: Final = "SELECT json_extract(settings, '$.timezone') FROM projects WHERE api_token = ?"
_GROUP: Final = (
    "SELECT properties FROM groups WHERE api_key = ? AND group_type = ? AND group_key = ?"
)


@dataclass(frozen=True, slots=True)
class FlagQuestion:
    """Who asks for which flags."""

    distinct_id: str
    groups: Mapping[str, object] = field(default_factory=dict)
    """The group's key by its type. One that is no text and no number names no group."""
    person_properties: Mapping[str, Any] = field(default_factory=dict)
    group_properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Properties by type of group."""
    place: Mapping[str, str] = field(default_factory=dict)
    """GeoIP properties."""
    keys: Collection[str] | None = None
    """None: all flags."""
    eligible: Eligibility = ELIGIBLE_FOR_ALL
    """Which flags can be had at all; the others are inactive here."""
    anonymous_id: str | None = None
    """The distinct id before it was identified."""
    device_id: str | None = None


def decide(store: Store, api_key: str, question: FlagQuestion, now: datetime) -> Evaluation:
    """Decide flags by what has arrived until now. Fixes what continuity needs, if the question has
    an anonymous id.
    """
    store.effects.finish()
    project = project_definitions(store, api_key)
    types = [*group_types(store, api_key, project)]
    types += [name for name in question.groups if name not in types]
    flags = question.eligible.apply(project.flags)
    return evaluate(
        Definitions(flags, project.cohorts, types),
        _subject(store, api_key, question, project),
        now.astimezone(_timezone(store, api_key)),
        _keys(project, question),
    )


def _timezone(store: Store, api_key: str) -> ZoneInfo:
    rows = store.select(_TIMEZONE, [api_key])
    return ZoneInfo((rows and rows[0][0]) or "UTC")


def _keys(project: ProjectDefinitions, question: FlagQuestion) -> list[str] | None:
    if question.keys is None:
        return None
    return [key for key in dict.fromkeys(question.keys) if key in project.flags]


def _subject(
    store: Store, api_key: str, question: FlagQuestion, project: ProjectDefinitions
) -> Subject:
    distinct_id = storable(question.distinct_id)
    rows = store.select(_PERSON, [api_key, distinct_id])
    _, _, properties, created_at = rows[0] if rows else (None, None, "{}", None)
    ids = _ids(store, api_key, distinct_id)
    return Subject(
        distinct_id=question.distinct_id,
        person_properties=fill_in(
            {
                **json.loads(properties),
                "distinct_id": question.distinct_id,
                **question.place,
                **question.person_properties,
            }
        ),
        groups=question.groups,
        group_properties={
            **question.group_properties,
            **{
                name: _group_properties(store, api_key, name, key, question)
                for name, key in question.groups.items()
            },
        },
        hash_keys=_hash_keys(store, api_key, ids, question, project),
        request_hash_key=question.anonymous_id,
        device_id=question.device_id,
        person_metadata={} if created_at is None else {"created_at": created_at},
        static_cohorts=frozenset(
            number
            for number, members in project.static_cohorts.items()
            if not members.isdisjoint(ids or [distinct_id])
        ),
    )


def _ids(store: Store, api_key: str, distinct_id: str) -> list[str]:
    """The ids of the person who has this one, the main one first; none if there is no person."""
    rows = store.select(_PERSON, [api_key, distinct_id])
    if not rows:
        return []
    person, main, *_ = rows[0]
    others = store.select(_OTHER_IDS, [person, main])
    return [main, *(other for (other,) in others)]


def _group_properties(
    store: Store, api_key: str, group_type: str, key: object, question: FlagQuestion
) -> dict[str, Any]:
    named = isinstance(key, str | int | float)
    names = [api_key, storable(group_type), storable(json_text(key) if named else "")]
    rows = store.select(_GROUP, names)
    stored = json.loads(rows[0][0]) if rows else {}
    return {**stored, **question.group_properties.get(group_type, {}), "$group_key": key}


def _hash_keys(
    store: Store, api_key: str, ids: list[str], question: FlagQuestion, project: ProjectDefinitions
) -> dict[str, str]:
    """What the flags with continuity of the person with these ids are decided by; a new anonymous
    id is fixed first.
    """
    lasting = [key for key, flag in project.flags.items() if flag.continuity and flag.active]
    if not lasting:
        return {}
    known = _stored_hash_keys(store, api_key, ids)
    if not question.anonymous_id:
        return known
    anonymous = storable(question.anonymous_id)
    before = _ids(store, api_key, anonymous)
    if not ids:
        known = _stored_hash_keys(store, api_key, before)
    for person in (ids, before if before[:1] != ids[:1] else []):
        fixed = _stored_hash_keys(store, api_key, person)
        new = [key for key in lasting if person and key not in fixed]
        rows = [(api_key, person[0], key, anonymous) for key in new]
        store.connection.executemany("INSERT INTO hash_keys VALUES (?, ?, ?, ?)", rows)
    return {**dict.fromkeys(lasting, anonymous), **known}


def _stored_hash_keys(store: Store, api_key: str, ids: list[str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for distinct_id in ids:
        known = {**dict(store.select(_HASH_KEYS, [api_key, distinct_id])), **known}
    return known
