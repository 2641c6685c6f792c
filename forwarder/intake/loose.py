"""Stamping one event of any form: what is missing is put at its beginning, what is null, empty or invalid is replaced where it stands.

Nothing is ever appended beside a key that is there: the service refuses a second `timestamp`, and one bad `uuid` fails its whole request.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.intake.heads import LooseHead, LooseProperties, decode_loose, decode_loose_properties
from forwarder.intake.uuids import is_uuid, new_uuid7
from forwarder.wire.identity import ABSENT, first_byte, id_text
from forwarder.wire.splice import Edits, Locator
from forwarder.wire.timestamps import at, format_timestamp, parse_timestamp, shifted

_OBJECT: Final = b"{"
_NULL: Final = b"null"
_NUMBER_STARTS: Final = b"-0123456789"
_FALSY: Final = (b"", b"false", b"null")
_NO_PROPERTIES: Final = LooseProperties()
_decode_any = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Receipt:
    """What is known of a request when its events are stamped."""

    now: float
    """When it was received, seconds since 1970."""
    has_sent_at: bool = False
    """Whether its sender said when it was sent; then an event's timestamp counts before its offset."""
    skew: float = 0.0
    """By how many seconds the sender's clock is ahead, if that is to be corrected."""
    ip: bytes | None = None
    """The address to stamp as `$ip`, as JSON text."""
    ordered: bool = False
    """Whether the lane keeps order, so that ids are collected."""
    max_event: int = 1_000_000
    """Bytes that an event may have."""
    max_events: int = sys.maxsize
    """Events that a lane could hold: an array of more is refused before anything is made of each."""
    tells: bool = False
    """Whether the sender is told which of its uuids and timestamps were replaced."""


@dataclass(frozen=True, slots=True)
class StampedEvent:
    """An event that can go on, and the ids that it is ordered with."""

    data: bytes
    ids: tuple[str, ...]
    new_uuid: bytes = b""
    """The one in place of another, or of none."""
    new_timestamp: bool = False
    """Whether its sender gave it no time that can be read."""


def stamp_one(data: bytes, receipt: Receipt) -> StampedEvent | Reason:
    """Validate and stamp an event; or why it can't go on."""
    try:
        head = decode_loose(data)
    except msgspec.ValidationError:
        return Reason.INVALID_EVENT
    properties = decode_loose_properties(head.properties) if first_byte(head.properties) == _OBJECT else _NO_PROPERTIES
    own = id_text(head.distinct_id) or id_text(head.dollar_distinct_id) or id_text(properties.distinct_id)
    reason = _name_problem(head.event) or (None if own else Reason.MISSING_DISTINCT_ID)
    if reason:
        return reason
    uuid = b"" if _is_valid_uuid(head.uuid) else new_uuid7(receipt.now)
    stamped = _edited(data, head, properties, receipt, uuid)
    if len(stamped) > receipt.max_event:
        return Reason.TOO_LARGE
    second = (id_text(properties.alias), id_text(properties.anonymous)) if receipt.ordered else ()
    return StampedEvent(stamped, (own, *filter(None, second)), uuid, receipt.tells and _own_time(head) is None)


def _name_problem(name: Raw) -> Reason | None:
    if bytes(name) in (b"", _NULL, b'""'):
        return Reason.MISSING_EVENT
    return None if first_byte(name) == b'"' else Reason.INVALID_EVENT


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


def _edited(data: bytes, head: LooseHead, properties: LooseProperties, receipt: Receipt, uuid: bytes) -> bytes:
    """The event with its stamps; `uuid`: the new one, if it needs one."""
    stamps = _Stamps(data)
    if uuid:
        stamps.set(b"uuid", head.uuid, b'"%b"' % uuid)
    offset = _offset(head.offset)
    timestamp = _timestamp(head, properties, offset, receipt)
    if timestamp is not None:
        stamps.set(b"timestamp", head.timestamp, timestamp)
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


def _timestamp(head: LooseHead, properties: LooseProperties, offset: float | None, receipt: Receipt) -> bytes | None:
    """The event's time as JSON text, by the service's rules at receipt (wire facts: Time); None if its own stays as it is."""
    own = _own_time(head)
    corrected = receipt.has_sent_at and bytes(properties.ignore_sent_at) in _FALSY
    if own and (corrected or offset is None):
        if not corrected or not receipt.skew:
            return None
        time = shifted(own, -receipt.skew)
    elif offset is not None:
        time = shifted(at(receipt.now), -offset / 1000)
    else:
        time = None
    return _as_json(receipt.now) if time is None else b'"%b"' % format_timestamp(time)


def _own_time(head: LooseHead) -> datetime | None:
    return parse_timestamp(_decode_any(head.timestamp)) if first_byte(head.timestamp) == b'"' else None


@lru_cache(maxsize=16)
def _as_json(now: float) -> bytes:
    """The time of receipt as JSON text; one for all events of a request."""
    return b'"%b"' % format_timestamp(at(now))
