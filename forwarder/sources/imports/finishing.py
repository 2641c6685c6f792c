"""Events as they are sent: JSON bytes with the properties that every imported event gets.

Invariants: the same event and the same policy give the same bytes. Values that are `Raw` keep their bytes, and the properties of a native
event keep theirs apart from what is inserted at their beginning, unless the person's properties change. Half a surrogate pair, what is
nested too deep and numbers that overflow a double are refused. With any policy except `set`, nothing overwrites or removes a property of a
person.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.imports.format import ImportedEvent, PersonProperties, RecordRefused, RefusalReason
from forwarder.sources.imports.times import EPOCH
from forwarder.sources.imports.values import SHALLOW_BYTES, is_deep
from forwarder.wire.identity import ABSENT, first_byte
from forwarder.wire.splice import Locator
from forwarder.wire.strict import may_overflow, overflow_of

_TOO_DEEP: Final = "it is nested too deep"
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_NULL: Final = Raw(b"null")
_OBJECT: Final = b"{"


@dataclass(frozen=True, slots=True)
class FinishPolicy:
    """What every imported event gets."""

    person_properties: PersonProperties
    geoip: bool
    """Whether the service may look up where an event's `$ip` is. If not, `$geoip_disable` says so: else it gets the importer's place."""
    job_id: str
    """`$import_job_id` on each event (`job.job_id`)."""


class _SentEvent(Struct, gc=False):
    """An event's members in the order in which they are written. The encoder writes a time with microseconds if it has any."""

    event: str
    distinct_id: str
    uuid: str
    timestamp: datetime
    properties: dict[str, Any]


class EventFinisher:
    """Makes the bytes of events by one policy. `max_bytes` is what an event may have (`upstream.max_event`); None: any size."""

    def __init__(self, policy: FinishPolicy, max_bytes: int | None = None) -> None:
        self._add: dict[str, Any] = {} if policy.geoip else {"$geoip_disable": True}
        self._add["$import_job_id"] = policy.job_id
        self._add_raw = {name: Raw(_encode(value)) for name, value in self._add.items()}
        self._inlay = _encode(self._add)[1:-1] + b","
        self._change_person, self._change_native_person = _PERSON_POLICIES[policy.person_properties]
        self._max_bytes = max_bytes

    def finish(self, event: ImportedEvent) -> bytes:
        """The JSON of an event. What is added takes the place of a property of that name.

        Raises `RecordRefused`; what has too many bytes, or a number that overflows, is found by `refusals`.
        """
        properties = event.properties
        properties.update(self._add)
        if "$set" in properties or "$set_once" in properties or "$unset" in properties:
            self._change_person(properties)
        try:
            data = _encode(_SentEvent(event.event, event.distinct_id, event.uuid, EPOCH + timedelta(0, 0, event.time), properties))
        except (UnicodeError, RecursionError) as error:
            why = _TOO_DEEP if isinstance(error, RecursionError) else "a string in it holds half a surrogate pair"
            raise RecordRefused(RefusalReason.NOT_JSON, why) from None
        if len(data) > SHALLOW_BYTES and is_deep(data):
            raise RecordRefused(RefusalReason.NOT_JSON, _TOO_DEEP)
        return data

    def finish_texts(self, texts: Sequence[bytes], gaps: Sequence[int]) -> list[bytes]:
        """The same of native events (`NativeEvents`)."""
        inlay = self._inlay
        return [text[:gap] + inlay + text[gap:] if gap else self._rebuilt(text) for text, gap in zip(texts, gaps, strict=True)]

    def refusals(self, finished: Sequence[bytes]) -> dict[int, RecordRefused]:
        """Which finished events are refused for what only their bytes show, by index. All are checked at once."""
        limit = self._max_bytes
        if not finished or ((limit is None or max(map(len, finished)) <= limit) and not may_overflow(b",".join(finished))):
            return {}
        refused: dict[int, RecordRefused] = {}
        for index, data in enumerate(finished):
            if (overflow := overflow_of(data)) is not None:
                refused[index] = RecordRefused(RefusalReason.NOT_JSON, f"it has {overflow}")
            elif limit is not None and len(data) > limit:
                refused[index] = RecordRefused(RefusalReason.TOO_LARGE, f"the event has {len(data):,} bytes, {limit:,} are allowed")
        return refused

    def _rebuilt(self, text: bytes) -> bytes:
        """An event whose properties are put together anew; what is added takes the place of a property of that name."""
        head = _decode_head(text)
        properties = _decode(head.properties) if _is_object(head.properties) else {}
        is_alone = _is_object(head.properties) and head.set is head.set_once is head.unset is ABSENT
        members = {} if is_alone else _decode(text)
        self._change_native_person(members, properties)
        written = _encode({**self._add_raw, **properties, **self._add_raw})
        if is_alone:  # nothing about persons stands beside the properties
            start, end = Locator(text).span(head.properties)
            return text[:start] + written + text[end:]
        members["properties"] = Raw(written)
        return _encode(members)


def _keep(*_: dict[str, Any]) -> None:
    """Policy `set`: all of it stays."""


def _drop_person_changes(*objects: dict[str, Any]) -> None:
    """Policy `none`: of an event's properties, and of what stands beside them."""
    for each in objects:
        for key in ("$set", "$set_once", "$unset"):
            each.pop(key, None)


def _turn_into_set_once(properties: dict[str, Any]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect."""
    properties.pop("$unset", None)
    values = properties.pop("$set", None)
    if not _is_object(values):
        return
    once = properties.get("$set_once")
    if _is_object(once):
        kept = _members_of(once)
        values = {**kept, **_members_of(values), **kept}
    properties["$set_once"] = values


def _is_object(value: Any) -> bool:
    return first_byte(value) == _OBJECT if isinstance(value, Raw) else isinstance(value, dict)


def _members_of(value: Any) -> dict[str, Any]:
    """The members of an object; their values keep their bytes. Raises `RecordRefused`."""
    if isinstance(value, dict):
        return value
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RecordRefused(RefusalReason.NOT_JSON, "$set or $set_once can't be read") from None


class _PersonFields(Struct, gc=False):
    """Where an event's properties stand, and what about persons stands beside them."""

    properties: Raw = ABSENT
    set: Raw = field(name="$set", default=ABSENT)
    set_once: Raw = field(name="$set_once", default=ABSENT)
    unset: Raw = field(name="$unset", default=ABSENT)


_decode_head: Final = msgspec.json.Decoder(_PersonFields).decode


def _turn_native_into_set_once(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect.

    The event's top level wins over its properties, and all comes to stand in the properties. Without a `$set`, all stays where it is.
    """
    properties.pop("$unset", None)
    members.pop("$unset", None)
    objects = [value for value in (properties.pop("$set", _NULL), members.pop("$set", _NULL)) if _is_object(value)]
    if not objects:
        return
    objects += [value for value in (properties.pop("$set_once", _NULL), members.pop("$set_once", _NULL)) if _is_object(value)]
    merged: dict[str, Raw] = {}
    for each in objects:
        merged.update(_decode(each))
    properties["$set_once"] = objects[0] if len(objects) == 1 else Raw(_encode(merged))


_PERSON_POLICIES: Final[dict[str, tuple[Callable[..., None], Callable[..., None]]]] = {
    "none": (_drop_person_changes, _drop_person_changes),
    "set_once": (_turn_into_set_once, _turn_native_into_set_once),
    "set": (_keep, _keep),
}
"""What changes the properties of an event; and the members and the properties of a native one."""
