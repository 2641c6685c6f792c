"""Stamps one event of any form. `ReadingRules` hold for all requests and records, `StampContext` is
what is known of one of them.

What an event lacks is inserted at its beginning; what is null, empty or invalid is replaced in
place. A key that is present is never repeated: the service refuses a second `timestamp`, and one
bad `uuid` fails the whole request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.ports import Reason
from forwarder.core.stamps import is_uuid, new_uuid7, time_text
from forwarder.wire.identity import ABSENT, canonical_id, first_byte, id_text, second_texts
from forwarder.wire.splice import Edits, Locator
from forwarder.wire.timestamps import TextTime, at, format_timestamp, read_time, shifted
from forwarder.wire.v1_event import MALFORMED_EVENT

EventName: TypeAlias = str
"""The names of events that the fast ways accept (`stamp.py`, `intake/record_reader.py`). A bound on
names goes here and in `_name_problem`.
"""


class ReceiptReason(NamedTuple):
    """A reason to reject an event at receipt."""

    why: str
    """What its dead letter says."""
    detail: str
    """What the result of a v1 event says: the service's word where it has one."""
    droppable: bool = False
    """Whether the service itself answers 200 to such an event and does not ingest it: then its
    dead letter may be dropped.
    """


AT_RECEIPT: Final = {
    Reason.MISSING_EVENT: ReceiptReason(
        "the event has no name", "missing_event_name", droppable=True
    ),
    Reason.MISSING_DISTINCT_ID: ReceiptReason(
        "the event has no distinct_id", "missing_distinct_id", droppable=True
    ),
    Reason.INVALID_EVENT: ReceiptReason(
        "the event is no object, or its name no string", MALFORMED_EVENT, droppable=True
    ),
    Reason.LONE_SURROGATE: ReceiptReason("a lone surrogate is no text", "lone_surrogate"),
    Reason.TOO_LARGE: ReceiptReason("the event is over upstream.max_event", "event_too_big"),
    Reason.MISSING_TIMESTAMP: ReceiptReason(
        "neither the event nor its record has a time", "missing_timestamp"
    ),
}
"""Every reason of `stamp_event` and `stamp`."""

NOT_INGESTED: Final = frozenset(reason for reason, text in AT_RECEIPT.items() if text.droppable)

_OBJECT: Final = b"{"
_NULL: Final = b"null"
_NO_NAME: Final = (b"", _NULL)
_NUMBER_STARTS: Final = b"-0123456789"
FALSY: Final = (b"", b"false", b"null")
_decode_any = msgspec.json.Decoder().decode


class LooseHead(Struct, gc=False):
    """Any JSON object."""

    event: Raw = ABSENT
    distinct_id: Raw = ABSENT
    dollar_distinct_id: Raw = field(name="$distinct_id", default=ABSENT)
    uuid: Raw = ABSENT
    timestamp: Raw = ABSENT
    offset: Raw = ABSENT
    properties: Raw = ABSENT


class LooseProperties(Struct, gc=False):
    """What is read of any event's properties."""

    distinct_id: Raw = ABSENT
    ip: Raw = field(name="$ip", default=ABSENT)
    geoip_disable: Raw = field(name="$geoip_disable", default=ABSENT)
    ignore_sent_at: Raw = field(name="$ignore_sent_at", default=ABSENT)
    alias: Raw = ABSENT
    anonymous: Raw = field(name="$anon_distinct_id", default=ABSENT)


_NO_PROPERTIES: Final = LooseProperties()
_decode_loose: Final = msgspec.json.Decoder(LooseHead).decode
_decode_loose_properties: Final = msgspec.json.Decoder(LooseProperties).decode


class ReadingRules(NamedTuple):
    """What holds for all requests and records: limits in bytes and events, `clock_skew_tolerance`
    in seconds.
    """

    max_body: int = sys.maxsize
    max_event: int = sys.maxsize
    max_events: int = sys.maxsize
    clock_skew_tolerance: float = 0.0
    ordered: tuple[bool, bool] = (False, False)
    """Whether live lanes, and historical ones, keep order by id, so that the ids of their events
    are collected.
    """


@dataclass(slots=True)
class StampContext:
    """What is known of a request when its events are stamped."""

    now: float
    """When it was received, seconds since 1970; a source's record has a time of its own."""
    timeless: bool = False
    """Whether there is no such time: then an event without a timestamp is rejected."""
    has_sent_at: bool = False
    """Whether its sender said when it was sent; then an event's timestamp counts before its offset.
    """
    skew: float = 0.0
    """By how many seconds the sender's clock is ahead, if that is to be corrected."""
    offset_base: float | None = None
    """The time from which `offset` counts, seconds since 1970; None: from `now`."""
    ip: bytes | None = None
    """The address to stamp as `$ip`, as JSON text."""
    ordered: bool = False
    """Whether the lane keeps order, so that ids are collected."""
    max_event: int = 1_000_000
    """Bytes that an event may have."""
    max_events: int = sys.maxsize
    """Events that a lane could hold: an array of more is rejected before each is stamped."""
    effort: int = sys.maxsize
    """Events that may be stamped one by one: with more, `TooMuchWork` is raised."""
    reports_changes: bool = False
    """Whether the sender gets to know which of its uuids and timestamps were replaced."""
    uuid_of: Callable[[int], bytes] | None = None
    """The uuid of the event with an index among those that are stamped together, if it has none;
    None: a new one.
    """
    distinct_id: str = ""
    """That of an event without one, if its source knows it."""
    event: bytes = b""
    """The name of an event that has none, as JSON text; empty if such an event is invalid."""


class StampedEvent(NamedTuple):
    """A valid event, and the ids that it is ordered with."""

    data: bytes
    ids: tuple[str, ...]
    new_uuid: bytes = b""
    """The uuid in place of an invalid one, or of none."""
    new_timestamp: bool = False
    """Whether its sender gave it no valid time."""


def stamp_event(data: bytes, context: StampContext, index: int = 0) -> StampedEvent | Reason:
    """Validate and stamp an event; the reason if it is rejected. `index`: its own among those that
    are stamped together.
    """
    try:
        head = _decode_loose(data)
    except msgspec.ValidationError:
        return Reason.INVALID_EVENT
    properties = (
        _decode_loose_properties(head.properties)
        if first_byte(head.properties) == _OBJECT
        else _NO_PROPERTIES
    )
    named = (
        id_text(head.distinct_id)
        or id_text(head.dollar_distinct_id)
        or id_text(properties.distinct_id)
    )
    own = named or canonical_id(context.distinct_id)
    nameless = bool(context.event) and bytes(head.event) in _NO_NAME
    reason = (None if nameless else _name_problem(head.event)) or (
        None if own else Reason.MISSING_DISTINCT_ID
    )
    if reason:
        return reason
    time = own_time(head.timestamp, context.now)
    if context.timeless and time is None:
        return Reason.MISSING_TIMESTAMP
    uuid = b"" if _is_valid_uuid(head.uuid) else _new_uuid(context, index)
    new = _New(
        uuid,
        b"" if named else msgspec.json.encode(context.distinct_id),
        time,
        context.event if nameless else b"",
    )
    stamped = _edited(data, head, properties, context, new)
    if len(stamped) > context.max_event:
        return Reason.TOO_LARGE
    second = second_texts(properties) if context.ordered else ()
    return StampedEvent(stamped, (own, *second), uuid, context.reports_changes and time is None)


def _name_problem(name: Raw) -> Reason | None:
    if bytes(name) in (b"", _NULL, b'""'):
        return Reason.MISSING_EVENT
    return None if first_byte(name) == b'"' else Reason.INVALID_EVENT


def _new_uuid(context: StampContext, index: int) -> bytes:
    return new_uuid7(context.now) if context.uuid_of is None else context.uuid_of(index)


class _New(NamedTuple):
    """What an event lacks; empty what it has."""

    uuid: bytes
    distinct_id: bytes
    """As JSON text."""
    own_time: TextTime | None
    """The event's own: parsing it again would take as long as all else."""
    event: bytes
    """As JSON text."""


class _Stamps:
    """The changes to one event."""

    def __init__(self, data: bytes) -> None:
        self.locator = Locator(data)
        self.edits = Edits(data)
        self._missing: list[bytes] = []

    def set(self, key: bytes, old: Raw, new: bytes) -> None:
        """Give a member a value: in its place if it is there, else at the event's beginning."""
        if old is ABSENT:
            self._missing.append(b'"%b":%b' % (key, new))
        else:
            self.edits.replace(self.locator.span(old), new)

    def made(self) -> bytes:
        """The event with all changes."""
        if self._missing:
            self.edits.insert_members(0, b",".join(self._missing))
        return self.edits.made()


def _edited(
    data: bytes, head: LooseHead, properties: LooseProperties, context: StampContext, new: _New
) -> bytes:
    """The event with its stamps."""
    stamps = _Stamps(data)
    if new.uuid:
        stamps.set(b"uuid", head.uuid, b'"%b"' % new.uuid)
    offset = _offset(head.offset)
    timestamp = _timestamp(new.own_time, properties, offset, context)
    if timestamp is not None:
        stamps.set(b"timestamp", head.timestamp, timestamp)
    if new.distinct_id:
        stamps.set(b"distinct_id", head.distinct_id, new.distinct_id)
    if new.event:
        stamps.set(b"event", head.event, new.event)
    if offset is not None:
        stamps.edits.remove_member(stamps.locator.span(head.offset))
    if context.ip is not None and bytes(properties.geoip_disable) in FALSY:
        _stamp_ip(stamps, head.properties, properties, context.ip)
    return stamps.made()


def _stamp_ip(stamps: _Stamps, raw: Raw, properties: LooseProperties, ip: bytes) -> None:
    """Put `$ip` into the properties; those that are no object stay as they are, for the service to
    validate.
    """
    if raw is ABSENT or bytes(raw) == _NULL:
        stamps.set(b"properties", raw, b'{"$ip":%b}' % ip)
    elif first_byte(raw) == _OBJECT and properties.ip is ABSENT:
        stamps.edits.insert_members(stamps.locator.offset(raw), b'"$ip":%b' % ip)


def _is_valid_uuid(raw: Raw) -> bool:
    return first_byte(raw) == b'"' and is_uuid(_decode_any(raw).encode())


def _offset(raw: Raw) -> float | None:
    """How long before it was sent the event happened, in milliseconds."""
    text = bytes(raw)
    # of any size: what is too large is infinite
    return float(text) if text[:1] and text[:1] in _NUMBER_STARTS else None


def _timestamp(
    own: TextTime | None, properties: LooseProperties, offset: float | None, context: StampContext
) -> bytes | None:
    """The event's time as JSON text, by the service's rules at receipt (wire facts: Time); None if
    its own stays as it is: what the service doesn't read would become its "now".
    """
    corrected = context.has_sent_at and bytes(properties.ignore_sent_at) in FALSY
    if own and (corrected or offset is None or context.timeless):
        if corrected and context.skew:
            return corrected_time(own, context)
        return None if own.by_service else b'"%b"' % format_timestamp(own.time)
    base = context.now if context.offset_base is None else context.offset_base
    return _receipt_unless(None if offset is None else shifted(at(base), -offset / 1000), context)


def corrected_time(own: TextTime | None, context: StampContext) -> bytes:
    """An event's own time by a right clock, as JSON text; that of receipt where it has none, or
    where the calendar ends.
    """
    return _receipt_unless(None if own is None else shifted(own.time, -context.skew), context)


def _receipt_unless(time: datetime | None, context: StampContext) -> bytes:
    """A time as JSON text; that of receipt if there is none."""
    return time_text(context.now) if time is None else b'"%b"' % format_timestamp(time)


def own_time(timestamp: Raw, now: float) -> TextTime | None:
    """The time that a member stands for; None if it is absent or none."""
    return read_time(_decode_any(timestamp), now) if first_byte(timestamp) == b'"' else None
