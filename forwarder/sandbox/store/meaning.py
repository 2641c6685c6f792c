"""What an event does to persons and groups, read from its bytes alone (interface document: Events;
where that is silent, the service's ingestion).

An event is identified by default; `$process_person_profile: false` makes it anonymous: it creates
no person and changes none. What the service drops is kept here, without any effect, and has the
warning: an anonymous `$identify`, `$create_alias`, `$merge_dangerously` and `$groupidentify`, one
of the first three with an id to merge that isn't text, and a key of a group that is too long.
Errors, heatmaps and events of language models are read-only: they carry the properties of a person
that exists; errors do so whatever `$process_person_profile` says.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/common/persons/person-utils.ts` (3d14ff4) has the ids that are never merged
(`forwarder.core.unmerged_ids`) and what `$process_person_profile` may be,
`nodejs/src/ingestion/common/persons/person-merge-service.ts` (ee17309) what is merged,
`nodejs/src/ingestion/common/steps/event-preprocessing/validate-event-properties.ts` (2ae3efa) and
`../event-processing/normalize-process-person-flag-step.ts` (86ed480) what is dropped,
`process-groups-step.ts` (0f2595d) beside the latter the groups,
`strip-person-update-properties-step.ts` (6126fcd) and `fetch-person-batch-step.ts` (10c24c4) the
read-only events, `nodejs/src/ingestion/pipelines/errortracking/prepare-event-step.ts` (25eee97)
errors, `nodejs/src/ingestion/common/ingestion-warning-types.ts` (0f2595d) the warnings.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from forwarder.core.unmerged_ids import is_never_merged
from forwarder.sandbox.protocol.json_scanner import JsonScanner
from forwarder.sandbox.store.person_changes import PersonChanges, as_object, person_changes

LONGEST_DISTINCT_ID: Final = 200
SURVEY_EVENTS: Final = frozenset({"survey sent", "survey shown", "survey dismissed"})
FEATURE: Final = "$feature/"
_LONGEST_GROUP_KEY: Final = 400
"""In units of UTF-16."""
_MERGING: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously"})
_PERSON_ONLY: Final = frozenset({*_MERGING, "$groupidentify"})
_ERROR: Final = "$exception"
_HEATMAP: Final = "$$heatmap"
_READ_ONLY_PREFIX: Final = "$ai_"
_SCRIPT_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
"""What JavaScript calls the types of JSON values other than null."""
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
    INVALID_ANON_ID = "invalid_anon_distinct_id"
    """`$anon_distinct_id` isn't text: the service drops the event."""
    INVALID_ALIAS = "invalid_alias"
    """The same of `alias`."""
    CASE_COLLISION = "distinct_id_case_collision"
    """A new person has the distinct id of another one, but for upper case: they stay two."""
    INVALID_ANONYMITY = "invalid_process_person_profile"
    """`$process_person_profile` is neither true nor false, and counts as true."""
    INVALID_GROUP_SET = "invalid_group_set"
    """`$group_set` is no object: the group stays as it was."""
    GROUP_KEY_TOO_LONG = "group_key_too_long"
    """The service drops the event."""


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
    def changes_person(self) -> bool:
        """Whether it asks for a merge or for changed properties of its person."""
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
    if event == _ERROR:
        return Meaning(read_only=True, groups=groups, marks=marks)
    profile = properties.get("$process_person_profile", True)
    dropped = _dropped(event, properties)
    if dropped is not None or profile is False:
        return Meaning(anonymous=True, marks=marks, warnings=() if dropped is None else (dropped,))
    warnings = [] if profile is True else [_invalid_anonymity(event, profile)]
    if event == _HEATMAP or event.startswith(_READ_ONLY_PREFIX):
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
    by_type = {
        storable(group_type): as_id(group_key)
        for group_type, group_key in as_object(properties.get("$groups")).items()
    }
    return {
        group_type: group_key for group_type, group_key in by_type.items() if group_key is not None
    }


def as_id(value: Any) -> str | None:
    """What names something, as it is kept: text, what is not text as JSON;
    None where there is none.
    """
    if value is None:
        return None
    text = value if isinstance(value, str) else _PLAIN.encode(value)
    return storable(text.replace("\0", "\ufffd")) if text.strip() else None


def _dropped(event: str, properties: Mapping[str, Any]) -> EventWarning | None:
    """Why the service drops an event; None if it doesn't."""
    if event not in _PERSON_ONLY:
        return None
    if event == "$groupidentify":
        key = as_id(properties.get("$group_key")) or ""
        length = len(key.encode("utf-16-le")) // 2
        if length > _LONGEST_GROUP_KEY:
            details = {"event": event, "groupKeyLength": length, "maxLength": _LONGEST_GROUP_KEY}
            return EventWarning(WarningType.GROUP_KEY_TOO_LONG, details)
    else:
        for name, kind in (
            ("$anon_distinct_id", WarningType.INVALID_ANON_ID),
            ("alias", WarningType.INVALID_ALIAS),
        ):
            other = properties.get(name)
            if not (other is None or isinstance(other, str)):
                return EventWarning(
                    kind, {"event": event, "receivedType": _SCRIPT_TYPES[type(other)]}
                )
    if properties.get("$process_person_profile") is False:
        return EventWarning(WarningType.DROPPED_ANONYMOUS, {"event": event})
    return None


def _merge(
    event: str, distinct_id: str, properties: Mapping[str, Any]
) -> tuple[Merge | None, EventWarning | None]:
    """Which merge an event asks for, or why the service refuses it whoever the persons are."""
    if event == "$identify" and "$anon_distinct_id" in properties:
        anonymous = properties["$anon_distinct_id"]
        # JavaScript's text of null, which is an illegal id.
        source = "null" if anonymous is None else anonymous
    elif event in ("$create_alias", "$merge_dangerously") and properties.get("alias"):
        source = properties["alias"]
    else:
        return None, None
    if source == distinct_id:
        return None, None
    for illegal, other in ((distinct_id, source), (source, distinct_id)):
        if is_never_merged(illegal):
            details = {"illegalDistinctId": storable(illegal), "otherDistinctId": storable(other)}
            return None, EventWarning(WarningType.ILLEGAL_ID, details)
    merge = Merge(
        storable(source),
        even_identified=event == "$merge_dangerously",
        becomes_main=event == "$create_alias",
    )
    return merge, None


def _is_truthy(value: Any) -> bool:
    """As in JavaScript, for which an empty list is something."""
    return isinstance(value, dict | list) or bool(value)


def _invalid_anonymity(event: str, value: Any) -> EventWarning:
    return EventWarning(
        WarningType.INVALID_ANONYMITY, {"event": event, "$process_person_profile": value}
    )


def _group(properties: Mapping[str, Any]) -> tuple[GroupChange | None, EventWarning | None]:
    names = (properties.get("$group_type"), properties.get("$group_key"))
    group_type, group_key = (as_id(name) if _is_truthy(name) else None for name in names)
    if group_type is None or group_key is None:
        return None, None
    changes = properties.get("$group_set")
    if changes is not None and not isinstance(changes, dict):
        received = _SCRIPT_TYPES[type(changes)]
        details = {"groupType": group_type, "groupKey": group_key, "receivedType": received}
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
