"""What an event does to persons and groups, read from its bytes alone (interface document: Events;
where that is silent, the service's ingestion).

An event is identified by default; `$process_person_profile: false` makes it anonymous: it creates
no person and changes none. The service drops an anonymous `$identify`, `$create_alias`,
`$merge_dangerously` and `$groupidentify`; here such an event is kept, without any effect, and has
the warning. Errors, heatmaps and events of language models are read-only: they carry the
properties of a person that exists.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/common/persons/person-utils.ts` (3d14ff4) has the ids that are never merged and what
`$process_person_profile` may be,
`nodejs/src/ingestion/common/persons/person-merge-service.ts` (ee17309) what is merged,
`nodejs/src/ingestion/common/steps/event-processing/normalize-process-person-flag-step.ts` (86ed480)
what is dropped, `process-groups-step.ts` (0f2595d) beside it the groups,
`strip-person-update-properties-step.ts` (6126fcd) and `fetch-person-batch-step.ts` (10c24c4) the
read-only events, `nodejs/src/ingestion/common/ingestion-warning-types.ts` (0f2595d) the warnings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from forwarder.sandbox.protocol.json_scanner import JsonScanner
from forwarder.sandbox.store.person_changes import PersonChanges, as_object, person_changes

LONGEST_DISTINCT_ID: Final = 200
SURVEY_EVENTS: Final = frozenset({"survey sent", "survey shown", "survey dismissed"})
FEATURE: Final = "$feature/"
_LONGEST_MERGED: Final = 400
"""The service's column of distinct ids has that many characters."""
_PERSON_ONLY: Final = frozenset(
    {"$identify", "$create_alias", "$merge_dangerously", "$groupidentify"}
)
_READ_ONLY: Final = frozenset({"$exception", "$$heatmap"})
_READ_ONLY_PREFIX: Final = "$ai_"
_IN_ANY_CASE: Final = (
    *("anonymous", "guest", "distinctid", "distinct_id", "id", "not_authenticated", "email"),
    *("undefined", "true", "false"),
)
_AS_WRITTEN: Final = ("[object Object]", "NaN", "None", "none", "null", "0", "undefined")
_QUOTES: Final = ("", "'", '"')
_ILLEGAL_IN_ANY_CASE: Final = frozenset(f"{q}{text}{q}" for text in _IN_ANY_CASE for q in _QUOTES)
_ILLEGAL_AS_WRITTEN: Final = frozenset(f"{q}{text}{q}" for text in _AS_WRITTEN for q in _QUOTES)
_LARGEST_INTEGER: Final = 2**53
_NOTHING_CHANGES: Final = PersonChanges()
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_ASCII: Final = json.JSONEncoder(allow_nan=False)
_PLAIN: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class Mark(NamedTuple):
    """Something to find an event by: `group` (type, key), `feature` (flag, value), `called` (flag,
    response), `survey` (id, response).

    Values and responses are JSON text.
    """

    mark: str
    name: str
    value: str


class WarningType(StrEnum):
    """The service's warnings about an event that was accepted (those of persons and groups)."""

    ALREADY_IDENTIFIED = "cannot_merge_already_identified"
    """Two persons stay two: the one that would go is identified."""
    ILLEGAL_ID = "cannot_merge_with_illegal_distinct_id"
    """An id that is never merged, as programs send it by mistake."""
    DROPPED_ANONYMOUS = "invalid_event_when_process_person_profile_is_false"
    """The event is about persons and says that it is about none: the service drops it."""
    INVALID_ANONYMITY = "invalid_process_person_profile"
    """`$process_person_profile` is neither true nor false, and counts as true."""
    INVALID_GROUP_SET = "invalid_group_set"
    """`$group_set` is no object: the group stays as it was."""


class EventWarning(NamedTuple):
    """A warning, and the service's details of it."""

    type: WarningType
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Merge:
    """The person of `source` becomes the person of the event's distinct id, whose own properties
    win.
    """

    source: str
    even_identified: bool = False
    """Whether a person that was identified before may be merged away."""
    becomes_main: bool = False
    """Whether `source` becomes the main distinct id, even where the person has another."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group that is to exist, with these properties set."""

    group_type: str
    group_key: str
    properties: Mapping[str, Any]


class Meaning(NamedTuple):
    """What one event does beside being recorded."""

    anonymous: bool = False
    read_only: bool = False
    """Whether it only reads its person."""
    changes: PersonChanges = _NOTHING_CHANGES
    merge: Merge | None = None
    group: GroupChange | None = None
    groups: Mapping[str, str] = {}
    """The groups that it belongs to, type to key."""
    marks: tuple[Mark, ...] = ()
    warnings: tuple[EventWarning, ...] = ()

    @property
    def of_person(self) -> bool:
        """Whether it may change its person."""
        return self.merge is not None or bool(self.changes)


def meaning_of(event: str, distinct_id: str, raw: bytes, times: tuple[str, str]) -> Meaning:
    """What an ingested event means; `raw` is its JSON text, `times` are its own and that of its
    receipt.
    """
    content = read_mapping(raw.decode())
    properties = as_object(content.get("properties"))
    groups = groups_of(properties)
    # The name of a flag is in the bytes, unless a letter of it hides behind an escape.
    flags = properties if b"$feature/" in raw or b"\\" in raw else {}
    marks = tuple(_marks(event, properties, groups, flags))
    profile = properties.get("$process_person_profile", True)
    if profile is False:
        dropped = EventWarning(WarningType.DROPPED_ANONYMOUS, {"event": event})
        return Meaning(
            anonymous=True, marks=marks, warnings=(dropped,) if event in _PERSON_ONLY else ()
        )
    warnings = [] if profile is True else [_invalid_anonymity(event, profile)]
    if event in _READ_ONLY or event.startswith(_READ_ONLY_PREFIX):
        return Meaning(read_only=True, groups=groups, marks=marks, warnings=tuple(warnings))
    merge, refused = _merge(event, distinct_id, properties)
    group, invalid = _group(properties) if event == "$groupidentify" else (None, None)
    return Meaning(
        changes=_NOTHING_CHANGES
        if event == "$groupidentify"
        else person_changes(event, content, properties, times),
        merge=merge,
        group=group,
        groups=groups,
        marks=marks,
        warnings=(*warnings, *(warning for warning in (refused, invalid) if warning is not None)),
    )


def ingested_properties(had: str, event: str, raw: bytes, times: tuple[str, str]) -> str:
    """A person's properties, as JSON text, with all that an event sets: as the service keeps them
    with the event, also where it left the person as it was.
    """
    changes = meaning_of(event, "", raw, times).changes
    return dump({**read_mapping(had), **changes.always})


def read_mapping(text: str) -> dict[str, Any]:
    """The JSON text of an object, read; empty if it is something else. A number that no double
    holds is infinite.
    """
    try:
        return as_object(json.loads(text))
    except ValueError:  # an integer with more digits than Python converts unasked
        scanner = JsonScanner(text)
        return as_object(scanner.value(scanner.first())[0])


def dump(value: Any) -> str:
    """A value as JSON text of ASCII, which any database keeps. A number that no double holds
    becomes null.
    """
    try:
        return _ASCII.encode(value)
    except ValueError:
        return _ASCII.encode(_finite(value))


def groups_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """The groups that an event says it belongs to: type to key."""
    found = {
        storable(group_type): as_id(group_key)
        for group_type, group_key in as_object(properties.get("$groups")).items()
    }
    return {
        group_type: group_key for group_type, group_key in found.items() if group_key is not None
    }


def as_id(value: Any) -> str | None:
    """What names something, as it is kept: text, what is not text as JSON;
    None where there is none.
    """
    if value is None:
        return None
    text = value if isinstance(value, str) else _PLAIN.encode(value)
    return storable(text.replace("\0", "\ufffd")) if text.strip() else None


def _merge(
    event: str, distinct_id: str, properties: Mapping[str, Any]
) -> tuple[Merge | None, EventWarning | None]:
    """Which merge an event asks for, or why the service refuses it whoever the persons are."""
    if event == "$identify" and "$anon_distinct_id" in properties:
        source = _script_text(properties["$anon_distinct_id"])
    elif event in ("$create_alias", "$merge_dangerously") and _is_truthy(properties.get("alias")):
        source = _script_text(properties["alias"])
    else:
        return None, None
    if source == distinct_id:
        return None, None
    for illegal, other in ((distinct_id, source), (source, distinct_id)):
        if _is_illegal(illegal):
            details = {"illegalDistinctId": storable(illegal), "otherDistinctId": storable(other)}
            return None, EventWarning(WarningType.ILLEGAL_ID, details)
    merge = Merge(
        storable(source),
        even_identified=event == "$merge_dangerously",
        becomes_main=event == "$create_alias",
    )
    return merge, None


def _is_illegal(distinct_id: str) -> bool:
    return (
        not distinct_id.strip()
        or distinct_id.lower() in _ILLEGAL_IN_ANY_CASE
        or distinct_id in _ILLEGAL_AS_WRITTEN
        or "\0" in distinct_id
        or len(distinct_id) > _LONGEST_MERGED
    )


def _is_truthy(value: Any) -> bool:
    """As in JavaScript, for which an empty list is something."""
    return isinstance(value, dict | list) or bool(value)


def _script_text(value: Any) -> str:
    """A JSON value as JavaScript's `String` writes it, which the service makes ids with."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return ",".join("" if item is None else _script_text(item) for item in value)
    if isinstance(value, dict):
        return "[object Object]"
    if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER:
        return str(value)
    return _script_number(float(str(value)))


def _script_number(number: float) -> str:
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    text = repr(number).removesuffix(".0")
    if "e" in text and 1e-6 <= abs(number) < 1e21:
        return format(Decimal(text), "f")
    return re.sub(r"e([+-])0+", r"e\1", text)


def _invalid_anonymity(event: str, value: Any) -> EventWarning:
    return EventWarning(
        WarningType.INVALID_ANONYMITY, {"event": event, "$process_person_profile": value}
    )


def _group(properties: Mapping[str, Any]) -> tuple[GroupChange | None, EventWarning | None]:
    group_type = as_id(properties.get("$group_type"))
    group_key = as_id(properties.get("$group_key"))
    if group_type is None or group_key is None:
        return None, None
    changes = properties.get("$group_set")
    if changes is not None and not isinstance(changes, dict):
        details = {"groupType": group_type, "groupKey": group_key}
        return None, EventWarning(WarningType.INVALID_GROUP_SET, details)
    return GroupChange(group_type, group_key, as_object(changes)), None


def _marks(
    event: str, properties: Mapping[str, Any], groups: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[Mark]:
    for group_type, group_key in groups.items():
        yield Mark("group", group_type, group_key)
    for name, value in flags.items():
        if name.startswith(FEATURE):
            yield Mark("feature", storable(name.removeprefix(FEATURE)), dump(value))
    if event == "$feature_flag_called" and (flag := as_id(properties.get("$feature_flag"))):
        yield Mark("called", flag, dump(properties.get("$feature_flag_response")))
    if event in SURVEY_EVENTS and (survey := as_id(properties.get("$survey_id"))):
        yield Mark("survey", survey, dump(properties.get("$survey_response")))


def _finite(value: Any) -> Any:
    """A value without the numbers that no double holds: no JSON can say them again."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def storable(text: str) -> str:
    """A text that SQLite can keep. Half a surrogate pair can't be written as UTF-8: it becomes
    U+FFFD. The event's own bytes keep it.
    """
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)
