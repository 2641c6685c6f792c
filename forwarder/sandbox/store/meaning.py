"""What an event does to persons and groups, read from its bytes alone (interface document: Events).

An event is identified by default; `$process_person_profile: false` makes it anonymous, and an
anonymous event changes no person. A group is not a person, so `$groupidentify` always applies.
`$set`, `$set_once` and `$unset` can be in the properties and beside them; beside them takes
precedence, as in the real service.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from forwarder.sandbox.protocol.json_scanner import JsonScanner

LONGEST_DISTINCT_ID: Final = 200
SURVEY_EVENTS: Final = frozenset({"survey sent", "survey shown", "survey dismissed"})
FEATURE: Final = "$feature/"
_MEANING: Final = SURVEY_EVENTS | {
    "$identify",
    "$create_alias",
    "$merge_dangerously",
    "$groupidentify",
    "$feature_flag_called",
}
_MAY_MEAN: Final = re.compile(
    rb"\$(?:set|unset|groups|process_person_profile|feature\\?/)|\\u00"
).search
"""Finds every key that means something, also one that hides a letter behind an escape, or its
slash (PHP's encoder writes `\\/`).
"""
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


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a person's properties: `once` where none is yet, then `always`, then
    `never` goes.
    """

    always: Mapping[str, Any] = field(default_factory=dict)
    once: Mapping[str, Any] = field(default_factory=dict)
    never: tuple[str, ...] = ()

    def applied_to(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties afterwards."""
        changed = {**self.once, **properties, **self.always}
        return {name: value for name, value in changed.items() if name not in self.never}

    def __bool__(self) -> bool:
        return bool(self.always or self.once or self.never)


@dataclass(frozen=True, slots=True)
class Merge:
    """Two distinct ids of one person: what `merged` had goes to `surviving`,
    whose own properties win.
    """

    merged: str
    surviving: str
    becomes_main: bool = False
    """Whether `surviving` becomes the person's main distinct id even where the person has another.
    """
    even_identified: bool = True
    """Whether a person that was identified before may be merged away."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A group that is to exist, with these properties set."""

    group_type: str
    group_key: str
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one event does beside being recorded."""

    anonymous: bool = False
    identifies: bool = False
    changes: Changes = field(default_factory=Changes)
    merge: Merge | None = None
    group: GroupChange | None = None
    marks: tuple[Mark, ...] = ()


_NOTHING: Final = Meaning()


def meaning_of(event: str, distinct_id: str, raw: bytes) -> Meaning:
    """What an ingested event means; `raw` is its JSON text. One that says nothing of the kind is
    not even read.
    """
    if event not in _MEANING and not _MAY_MEAN(raw):
        return _NOTHING
    content = read_mapping(raw.decode())
    properties = _object(content.get("properties"))
    marks = tuple(_marks(event, properties))
    group = _group(properties) if event == "$groupidentify" else None
    if properties.get("$process_person_profile") is False:
        return Meaning(anonymous=True, group=group, marks=marks)
    return Meaning(
        identifies=event == "$identify",
        changes=_changes(content, properties),
        merge=_merge(event, distinct_id, properties),
        group=group,
        marks=marks,
    )


def read_mapping(text: str) -> dict[str, Any]:
    """The JSON text of an object, read; empty if it is something else. A number that no double
    holds is infinite.
    """
    try:
        return _object(json.loads(text))
    except ValueError:  # an integer with more digits than Python converts unasked
        scanner = JsonScanner(text)
        return _object(scanner.value(scanner.first())[0])


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
        for group_type, group_key in _object(properties.get("$groups")).items()
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


def _changes(content: Mapping[str, Any], properties: Mapping[str, Any]) -> Changes:
    always = {**_object(properties.get("$set")), **_object(content.get("$set"))}
    once = {**_object(properties.get("$set_once")), **_object(content.get("$set_once"))}
    never = [*_names(properties.get("$unset")), *_names(content.get("$unset"))]
    return Changes(always, once, tuple(never))


def _merge(event: str, distinct_id: str, properties: Mapping[str, Any]) -> Merge | None:
    merge: Merge | None = None
    if event == "$identify" and (anonymous := _distinct_id(properties.get("$anon_distinct_id"))):
        merge = Merge(anonymous, distinct_id, even_identified=False)
    elif event == "$create_alias" and (alias := _distinct_id(properties.get("alias"))):
        merge = Merge(distinct_id, alias, becomes_main=True)
    elif event == "$merge_dangerously" and (alias := _distinct_id(properties.get("alias"))):
        merge = Merge(alias, distinct_id)
    return merge if merge and merge.merged != merge.surviving else None


def _distinct_id(value: Any) -> str | None:
    text = as_id(value)
    return None if text is None else text[:LONGEST_DISTINCT_ID]


def _group(properties: Mapping[str, Any]) -> GroupChange | None:
    group_type = as_id(properties.get("$group_type"))
    group_key = as_id(properties.get("$group_key"))
    if group_type is None or group_key is None:
        return None
    return GroupChange(group_type, group_key, _object(properties.get("$group_set")))


def _marks(event: str, properties: Mapping[str, Any]) -> Iterator[Mark]:
    for group_type, group_key in groups_of(properties).items():
        yield Mark("group", group_type, group_key)
    for name, value in properties.items():
        if name.startswith(FEATURE):
            yield Mark("feature", storable(name.removeprefix(FEATURE)), dump(value))
    if event == "$feature_flag_called" and (flag := as_id(properties.get("$feature_flag"))):
        yield Mark("called", flag, dump(properties.get("$feature_flag_response")))
    if event in SURVEY_EVENTS and (survey := as_id(properties.get("$survey_id"))):
        yield Mark("survey", survey, dump(properties.get("$survey_response")))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(value: Any) -> list[str]:
    return (
        [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []
    )


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
