"""Stamping one event of any form: what is missing is put at its beginning, what is null, empty or invalid is replaced where it stands.

Nothing is ever appended beside a key that is there: the service refuses a second `timestamp`, and one bad `uuid` fails its whole request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.intake.heads import LooseHead, LooseProperties, decode_loose, decode_loose_properties
from forwarder.intake.uuids import is_uuid, new_uuid7
from forwarder.wire.identity import ABSENT, canonical_id, first_byte, id_text
from forwarder.wire.splice import Edits, Locator
from forwarder.wire.timestamps import at, format_timestamp, parse_timestamp, shifted

_OBJECT: Final = b"{"
_NULL: Final = b"null"
_NO_NAME: Final = (b"", _NULL)
_NUMBER_STARTS: Final = b"-0123456789"
_FALSY: Final = (b"", b"false", b"null")
_NO_PROPERTIES: Final = LooseProperties()
_decode_any = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Receipt:
    """What is known of a request when its events are stamped."""

    now: float
    """When it was received, seconds since 1970; a source's record has a time of its own."""
    timeless: bool = False
    """Whether there is no such time: then an event without one of its own can't go on."""
    has_sent_at: bool = False
    """Whether its sender said when it was sent; then an event's timestamp counts before its offset."""
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
    """Events that a lane could hold: an array of more is refused before anything is made of each."""
    effort: int = sys.maxsize
    """Events that may be stamped one by one: with more, `TooMuchWork` is raised."""
    tells: bool = False
    """Whether the sender is told which of its uuids and timestamps were replaced."""
    uuid_of: Callable[[int], bytes] | None = None
    """The uuid of the event with an index among those that are stamped together, if it has none; None: a new one."""
    distinct_id: str = ""
    """The one of an event that has none, if its source knows it."""
    event: bytes = b""
    """The name of an event that has none, as JSON text; empty if such an event is invalid."""


class StampedEvent(NamedTuple):
    """An event that can go on, and the ids that it is ordered with."""

    data: bytes
    ids: tuple[str, ...]
    new_uuid: bytes = b""
    """The one in place of another, or of none."""
    new_timestamp: bool = False
    """Whether its sender gave it no time that can be read."""


def stamp_one(data: bytes, receipt: Receipt, index: int = 0) -> StampedEvent | Reason:
    """Validate and stamp an event; or why it can't go on. `index`: its own among those that are stamped together."""
    try:
        head = decode_loose(data)
    except msgspec.ValidationError:
        return Reason.INVALID_EVENT
    properties = decode_loose_properties(head.properties) if first_byte(head.properties) == _OBJECT else _NO_PROPERTIES
    named = id_text(head.distinct_id) or id_text(head.dollar_distinct_id) or id_text(properties.distinct_id)
    own = named or canonical_id(receipt.distinct_id)
    nameless = bool(receipt.event) and bytes(head.event) in _NO_NAME
    reason = (None if nameless else _name_problem(head.event)) or (None if own else Reason.MISSING_DISTINCT_ID)
    if reason:
        return reason
    time = _own_time(head)
    if receipt.timeless and time is None:
        return Reason.MISSING_TIMESTAMP
    uuid = b"" if _is_valid_uuid(head.uuid) else _new_uuid(receipt, index)
    new = _New(uuid, b"" if named else msgspec.json.encode(receipt.distinct_id), time, receipt.event if nameless else b"")
    stamped = _edited(data, head, properties, receipt, new)
    if len(stamped) > receipt.max_event:
        return Reason.TOO_LARGE
    second = (id_text(properties.alias), id_text(properties.anonymous)) if receipt.ordered else ()
    return StampedEvent(stamped, (own, *filter(None, second)), uuid, receipt.tells and time is None)


def _name_problem(name: Raw) -> Reason | None:
    if bytes(name) in (b"", _NULL, b'""'):
        return Reason.MISSING_EVENT
    return None if first_byte(name) == b'"' else Reason.INVALID_EVENT


def _new_uuid(receipt: Receipt, index: int) -> bytes:
    return new_uuid7(receipt.now) if receipt.uuid_of is None else receipt.uuid_of(index)


class _New(NamedTuple):
    """What an event gets that it hasn't; empty what it has."""

    uuid: bytes
    distinct_id: bytes
    """As JSON text."""
    own_time: datetime | None
    """The one that the event has: reading it again would take as long as all else."""
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


def _edited(data: bytes, head: LooseHead, properties: LooseProperties, receipt: Receipt, new: _New) -> bytes:
    """The event with its stamps."""
    stamps = _Stamps(data)
    if new.uuid:
        stamps.set(b"uuid", head.uuid, b'"%b"' % new.uuid)
    offset = _offset(head.offset)
    timestamp = _timestamp(new.own_time, properties, offset, receipt)
    if timestamp is not None:
        stamps.set(b"timestamp", head.timestamp, timestamp)
    if new.distinct_id:
        stamps.set(b"distinct_id", head.distinct_id, new.distinct_id)
    if new.event:
        stamps.set(b"event", head.event, new.event)
    if offset is not None:
        stamps.edits.remove_member(stamps.locator.span(head.offset))
    if receipt.ip is not None and bytes(properties.geoip_disable) in _FALSY:
        _stamp_ip(stamps, head.properties, properties, receipt.ip)
    return stamps.made()


def _stamp_ip(stamps: _Stamps, raw: Raw, properties: LooseProperties, ip: bytes) -> None:
    """Put `$ip` into the properties; those that aren't an object stay as they are, for the service to judge."""
    if raw is ABSENT or bytes(raw) == _NULL:
        stamps.set(b"properties", raw, b'{"$ip":%b}' % ip)
    elif first_byte(raw) == _OBJECT and properties.ip is ABSENT:
        stamps.edits.insert_members(stamps.locator.offset(raw), b'"$ip":%b' % ip)


def _is_valid_uuid(raw: Raw) -> bool:
    return first_byte(raw) == b'"' and is_uuid(_decode_any(raw).encode())


def _offset(raw: Raw) -> float | None:
    """How long before it was sent the event happened, in milliseconds."""
    text = bytes(raw)
    return float(text) if text[:1] and text[:1] in _NUMBER_STARTS else None  # of any size: what is too large is infinite


def _timestamp(own: datetime | None, properties: LooseProperties, offset: float | None, receipt: Receipt) -> bytes | None:
    """The event's time as JSON text, by the service's rules at receipt (wire facts: Time); None if its own stays as it is."""
    corrected = receipt.has_sent_at and bytes(properties.ignore_sent_at) in _FALSY
    if own and (corrected or offset is None or receipt.timeless):
        if not corrected or not receipt.skew:
            return None
        time = shifted(own, -receipt.skew)
    elif offset is not None:
        time = shifted(at(receipt.now if receipt.offset_base is None else receipt.offset_base), -offset / 1000)
    else:
        time = None
    return time_text(receipt.now) if time is None else b'"%b"' % format_timestamp(time)


def _own_time(head: LooseHead) -> datetime | None:
    return parse_timestamp(_decode_any(head.timestamp)) if first_byte(head.timestamp) == b'"' else None


@lru_cache(maxsize=16)
def time_text(seconds: float) -> bytes:
    """A time of receipt as JSON text; one for all events of a request, or of a record."""
    milliseconds = round(seconds * 1000)
    if milliseconds / 1000 != seconds:
        return b'"%b"' % format_timestamp(at(seconds))
    second, rest = divmod(milliseconds, 1000)
    return b'"%b.%03dZ"' % (_second_text(second), rest)


@lru_cache(maxsize=16)
def _second_text(second: int) -> bytes:
    """A whole second; neighbouring records share it."""
    return format_timestamp(at(second))[: -len(".000Z")]
