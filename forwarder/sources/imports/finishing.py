"""Events as they are sent: JSON bytes with the properties that every imported event gets.

Invariants: the same event and the same policy give the same bytes. Values that are `Raw` keep their bytes, and the properties of a raw
event keep theirs apart from what is inserted at their beginning, unless the person's properties change. What would be written differently
than it was meant (half a surrogate pair, NaN) or isn't UTF-8 is refused, since nothing has checked raw values before; so are numbers that
overflow a double. With any policy except `set`, nothing overwrites or removes a property of a person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, repeat
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.imports.columns import JoinedTexts
from forwarder.sources.imports.format import ImportedEvent, PersonProperties, RawEvents, RecordRefused, RefusalReason, WholeLines
from forwarder.sources.imports.times import EPOCH
from forwarder.sources.imports.values import SHALLOW_BYTES, is_deep
from forwarder.wire.identity import ABSENT, first_byte
from forwarder.wire.splice import Locator
from forwarder.wire.strict import may_overflow, overflow_of

_SAFE: Final = frozenset({Raw, str, int, bool, type(None)})
"""Types of values that hold no float."""
_TOO_DEEP: Final = "it is nested too deep"
_encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_PERSON_KEYS: Final = ("$set", "$set_once", "$unset")
_TRUE: Final = Raw(b"true")
_NULL: Final = Raw(b"null")
_OBJECT: Final = b"{"
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode


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
    """Makes the bytes of events by one policy. `max_bytes` is what an event may have (`upstream.max_event`); None: any size.

    `of_records`: all events come from a converter, whose decoders accept neither what JSON has no number for nor what isn't UTF-8
    (`Converter`), so they aren't checked again. They aren't used afterwards either: what is added goes into their own properties. Both
    together save a third of the cost.
    """

    def __init__(self, policy: FinishPolicy, max_bytes: int | None = None, *, of_records: bool = False) -> None:
        self._add: dict[str, Any] = {} if policy.geoip else {"$geoip_disable": True}
        self._add["$import_job_id"] = policy.job_id
        self._about_person = _PERSON_POLICIES[policy.person_properties]
        self._max_bytes = max_bytes
        self._looks = not of_records

    def finish(self, event: ImportedEvent) -> bytes:
        """The JSON of an event, which stays as it is unless it is `of_records`. What is added takes the place of a property of that name.

        Raises `RecordRefused`.
        """
        properties = event.properties.copy() if self._looks else event.properties
        properties.update(self._add)
        if "$set" in properties or "$set_once" in properties or "$unset" in properties:
            self._about_person(properties)
        if self._looks and not _SAFE.issuperset(map(type, properties.values())) and _holds_no_number(properties):
            raise RecordRefused(RefusalReason.NOT_JSON, "a number in it is NaN or infinite")
        try:
            data = _encode(_SentEvent(event.event, event.distinct_id, event.uuid, EPOCH + timedelta(0, 0, event.time), properties))
            if self._looks and not data.isascii():
                data.decode()
        except (UnicodeError, RecursionError) as error:
            raise RecordRefused(RefusalReason.NOT_JSON, _why_not(error)) from None
        if len(data) > SHALLOW_BYTES and is_deep(data):
            raise RecordRefused(RefusalReason.NOT_JSON, _TOO_DEEP)
        if (overflow := overflow_of(data)) is not None:
            raise RecordRefused(RefusalReason.NOT_JSON, f"it has {overflow}")
        if self._max_bytes is not None and len(data) > self._max_bytes:
            raise RecordRefused(RefusalReason.TOO_LARGE, f"the event has {len(data):,} bytes, {self._max_bytes:,} are allowed")
        return data


def _why_not(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    return "a string in it holds half a surrogate pair" if isinstance(error, UnicodeEncodeError) else "it isn't UTF-8"


def _holds_no_number(value: Any) -> bool:
    """Whether there is a float in a value that JSON has no number for; the encoder would make null of it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float):
            if not math.isfinite(each):
                return True
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple):
            waiting.extend(each)
    return False


def _keep(_: dict[str, Any]) -> None:
    """Policy `set`: all of it stays."""


def _drop_person_changes(properties: dict[str, Any]) -> None:
    """Policy `none`."""
    for key in ("$set", "$set_once", "$unset"):
        properties.pop(key, None)


def _turn_into_set_once(properties: dict[str, Any]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect."""
    properties.pop("$unset", None)
    values = properties.pop("$set", None)
    if not _is_any_object(values):
        return
    once = properties.get("$set_once")
    if once is not None and _is_any_object(once):
        kept = _object(once)
        values = {**kept, **_object(values), **kept}
    properties["$set_once"] = values


_PERSON_POLICIES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "none": _drop_person_changes,
    "set_once": _turn_into_set_once,
    "set": _keep,
}


def _is_any_object(value: Any) -> bool:
    if isinstance(value, Raw):
        text = bytes(value)
        return text[:1] == b"{" or text.lstrip()[:1] == b"{"
    return isinstance(value, dict)


def _object(value: Any) -> dict[str, Any]:
    """The members of an object; their values keep their bytes.

    Raises `RecordRefused`.
    """
    if isinstance(value, dict):
        return value
    try:
        return _members(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RecordRefused(RefusalReason.NOT_JSON, "$set or $set_once can't be read") from None


class _PersonFields(Struct, gc=False):
    """Where an event's properties stand, and what about persons stands beside them."""

    properties: Raw = ABSENT
    set: Raw = field(name="$set", default=ABSENT)
    set_once: Raw = field(name="$set_once", default=ABSENT)
    unset: Raw = field(name="$unset", default=ABSENT)

    @property
    def has_none(self) -> bool:
        """Whether nothing about persons stands beside the properties."""
        return self.set is ABSENT and self.set_once is ABSENT and self.unset is ABSENT


_decode_head: Final = msgspec.json.Decoder(_PersonFields).decode


class RawEventFinisher:
    """Makes the bytes of events by one policy. `max_bytes` is what an event may have (`upstream.max_event`); None: any size."""

    def __init__(self, policy: FinishPolicy, max_bytes: int | None = None) -> None:
        self._add = {} if policy.geoip else {"$geoip_disable": _TRUE}
        self._add["$import_job_id"] = Raw(_encode(policy.job_id))
        self._inlay = _encode(self._add)[1:-1] + b","
        self._about_person = policy.person_properties
        self._max_bytes = max_bytes

    def finish(self, events: RawEvents) -> Sequence[bytes | RecordRefused]:
        """The JSON of each event; of one that has too many bytes, or a number that overflows a double, the refusal."""
        inlay, limit = self._inlay, self._max_bytes
        if events.whole is not None and (limit is None or max(events.whole.sizes) + len(inlay) <= limit):
            joined = self._all(events.whole)
            if joined is not None:
                return joined
        events.apart()
        pairs = zip(events.texts, events.gaps, strict=True)
        finished = [text[:gap] + inlay + text[gap:] if gap else self._rebuilt(text) for text, gap in pairs]
        if not finished or ((limit is None or max(map(len, finished)) <= limit) and not may_overflow(b",".join(finished))):
            return finished
        return [self._refusal_of(text) or text for text in finished]

    def _refusal_of(self, text: bytes) -> RecordRefused | None:
        limit = self._max_bytes
        if limit is not None and len(text) > limit:
            return RecordRefused(RefusalReason.TOO_LARGE, f"the event has {len(text):,} bytes, {limit:,} are allowed")
        overflow = overflow_of(text)
        return None if overflow is None else RecordRefused(RefusalReason.NOT_JSON, f"it has {overflow}")

    def _all(self, whole: WholeLines) -> JoinedTexts | None:
        """The same for all at once: their bytes are copied once, into one text. None if there may be one to refuse."""
        parts = zip(repeat(_OBJECT), whole.heads, repeat(_OBJECT + self._inlay), whole.rests)
        joined = b"".join(chain.from_iterable(parts)).replace(b"\n", b",")  # in JSON that is written in lines, each line feed is an end
        return None if may_overflow(joined) else JoinedTexts(joined, whole.sizes, len(self._inlay))

    def _rebuilt(self, text: bytes) -> bytes:
        """An event whose properties are put together anew; what is added takes the place of a property of that name."""
        head = _decode_head(text)
        properties = _decode(head.properties) if _is_raw_object(head.properties) else {}
        if head.has_none and _is_raw_object(head.properties):
            self._change_person({}, properties)
            start, end = Locator(text).span(head.properties)
            return text[:start] + _encode(self._with_added(properties)) + text[end:]
        members = _decode(text)
        self._change_person(members, properties)
        members["properties"] = Raw(_encode(self._with_added(properties)))
        return _encode(members)

    def _change_person(self, members: dict[str, Raw], properties: dict[str, Raw]) -> None:
        if self._about_person == "none":
            _drop_raw_person_changes(members, properties)
        elif self._about_person == "set_once":
            _turn_raw_into_set_once(members, properties)

    def _with_added(self, properties: dict[str, Raw]) -> dict[str, Raw]:
        return {**self._add, **properties, **self._add}


def _drop_raw_person_changes(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `none`."""
    for key in _PERSON_KEYS:
        members.pop(key, None)
        properties.pop(key, None)


def _turn_raw_into_set_once(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect.

    The event's top level wins over its properties, and all comes to stand in the properties. Without a `$set`, all stays where it is.
    """
    properties.pop("$unset", None)
    members.pop("$unset", None)
    found = [value for value in (properties.pop("$set", _NULL), members.pop("$set", _NULL)) if _is_raw_object(value)]
    if not found:
        return
    found += [value for value in (properties.pop("$set_once", _NULL), members.pop("$set_once", _NULL)) if _is_raw_object(value)]
    properties["$set_once"] = found[0] if len(found) == 1 else _merged(found)


def _merged(objects: Sequence[Raw]) -> Raw:
    """One object of several, of which later ones win; values keep their bytes."""
    members: dict[str, Raw] = {}
    for each in objects:
        members.update(_decode(each))
    return Raw(_encode(members))


def _is_raw_object(value: Raw) -> bool:
    return first_byte(value) == _OBJECT
