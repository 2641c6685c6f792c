"""Events as they are sent: JSON bytes with what every imported event has.

Invariants: the same event and the same policy give the same bytes. Values that are `Raw` keep their bytes. What would be written otherwise
than it was meant (half a surrogate pair, NaN) or isn't UTF-8 is refused, for nothing looked into raw values before; so are numbers that
overflow a double. With any policy but `set`, nothing overwrites a property of a person, and nothing takes one away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason
from forwarder.sources.imports.jsonvalues import SHALLOW_BYTES, is_deep
from forwarder.sources.imports.moments import DAY, EPOCH
from forwarder.sources.imports.policy import FinishPolicy
from forwarder.wire.identity import ids_of
from forwarder.wire.strict import overflow_of

_SAFE: Final = frozenset({Raw, str, int, bool, type(None)})
"""Types of values that hold no float."""

_TOO_DEEP: Final = "it is nested too deep"

MERGES: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously"})
"""Events that make one person of two: each has a second id, whose order is kept too."""

_encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class FinishedEvent(NamedTuple):
    """An event on its way to a batch."""

    time: int
    """Microseconds since 1970, UTC."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    """Its JSON, as it stands in a request's `batch`."""
    file: int
    """The number of its file, in the order of the source."""
    line: int
    number: int
    """Of its record in its file, from 0: what a checkpoint counts in."""
    part: int = 0
    """Which of the events of its record this is."""
    turn: int = -1
    """Of events that are sorted: the number in the order of time, over all files, from 0."""

    @property
    def day(self) -> int:
        """The UTC day, counted from 1970."""
        return self.time // DAY

    @property
    def second_ids(self) -> frozenset[str]:
        """Of one of `MERGES`: the ids that it is ordered with, beside its own. To be asked while it has its `data`."""
        return ids_of(self.data) - {self.distinct_id}


class _SentEvent(Struct, gc=False):
    """An event's members in the order in which they are written. The encoder writes a time with microseconds if it has any."""

    event: str
    distinct_id: str
    uuid: str
    timestamp: datetime
    properties: dict[str, Any]


class EventFinisher:
    """Makes the bytes of events by one policy. `max_bytes` is what an event may have (`upstream.max_event`); None: any size.

    `of_records`: all events are a converter's, so what JSON has no number for isn't in them, and neither is what isn't UTF-8: no decoder
    let it through (`Converter`). It isn't looked for once more then. And nobody needs them afterwards: what is added is added to their own
    properties. Both together is a third of the cost.
    """

    def __init__(self, policy: FinishPolicy, max_bytes: int | None = None, *, of_records: bool = False) -> None:
        self._add: dict[str, Any] = {} if policy.geoip else {"$geoip_disable": True}
        self._add["$import_job_id"] = policy.job_id
        self._about_person = _ABOUT_PERSON[policy.person_properties]
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


def _take_away(properties: dict[str, Any]) -> None:
    """Policy `none`."""
    for key in ("$set", "$set_once", "$unset"):
        properties.pop(key, None)


def _set_once(properties: dict[str, Any]) -> None:
    """Policy `set_once`: what would be set is only set where nothing is; what is in `$set_once` already wins. No object, no effect."""
    properties.pop("$unset", None)
    values = properties.pop("$set", None)
    if not _is_object(values):
        return
    once = properties.get("$set_once")
    if once is not None and _is_object(once):
        kept = _object(once)
        values = {**kept, **_object(values), **kept}
    properties["$set_once"] = values


_ABOUT_PERSON: Final[dict[str, Callable[[dict[str, Any]], None]]] = {"none": _take_away, "set_once": _set_once, "set": _keep}


def _is_object(value: Any) -> bool:
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
