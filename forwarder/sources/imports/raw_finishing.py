"""Raw events as they are sent: their own bytes with what every imported event has.

Invariants: the same events and the same policy give the same bytes. Values keep their bytes, and so do whole properties but for what is put
at their beginning, unless a person's properties change with them. With any policy but `set`, nothing overwrites a property of a person,
and nothing takes one away.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.joined_texts import JoinedTexts
from forwarder.sources.imports.policy import FinishPolicy
from forwarder.sources.imports.raw_events import RawEvents, WholeLines
from forwarder.wire.identity import ABSENT, first_byte
from forwarder.wire.splice import Locator
from forwarder.wire.strict import may_overflow, overflow_of

_ABOUT_PERSON: Final = ("$set", "$set_once", "$unset")
_TRUE: Final = Raw(b"true")
_NULL: Final = Raw(b"null")
_OBJECT: Final = b"{"


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


_encode: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(_PersonFields).decode
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode


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
        properties = _decode(head.properties) if _is_object(head.properties) else {}
        if head.has_none and _is_object(head.properties):
            self._change_person({}, properties)
            start, end = Locator(text).span(head.properties)
            return text[:start] + _encode(self._with_added(properties)) + text[end:]
        members = _decode(text)
        self._change_person(members, properties)
        members["properties"] = Raw(_encode(self._with_added(properties)))
        return _encode(members)

    def _change_person(self, members: dict[str, Raw], properties: dict[str, Raw]) -> None:
        if self._about_person == "none":
            _take_away(members, properties)
        elif self._about_person == "set_once":
            _set_once(members, properties)

    def _with_added(self, properties: dict[str, Raw]) -> dict[str, Raw]:
        return {**self._add, **properties, **self._add}


def _take_away(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `none`."""
    for key in _ABOUT_PERSON:
        members.pop(key, None)
        properties.pop(key, None)


def _set_once(members: dict[str, Raw], properties: dict[str, Raw]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect.

    The event's top level wins over its properties, and all comes to stand in the properties. Without a `$set`, all stays where it is.
    """
    properties.pop("$unset", None)
    members.pop("$unset", None)
    found = [value for value in (properties.pop("$set", _NULL), members.pop("$set", _NULL)) if _is_object(value)]
    if not found:
        return
    found += [value for value in (properties.pop("$set_once", _NULL), members.pop("$set_once", _NULL)) if _is_object(value)]
    properties["$set_once"] = found[0] if len(found) == 1 else _merged(found)


def _merged(objects: Sequence[Raw]) -> Raw:
    """One object of several, of which later ones win; values keep their bytes."""
    members: dict[str, Raw] = {}
    for each in objects:
        members.update(_decode(each))
    return Raw(_encode(members))


def _is_object(value: Raw) -> bool:
    return first_byte(value) == _OBJECT
