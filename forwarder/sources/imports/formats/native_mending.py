"""Native records that aren't complete events: parted where they hold several, mended where they are one.

Invariants: the properties keep their bytes; nothing is added that doesn't follow from the record and its place. What can't be mended is
refused: a wrong guess couldn't be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from forwarder.core.event import split_events
from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.identifiers import check_id
from forwarder.sources.imports.jsonvalues import is_deep
from forwarder.sources.imports.times import parse_time
from forwarder.wire.identity import ABSENT, first_byte, id_text
from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers
from forwarder.wire.shapes import MALFORMED, is_utf8
from forwarder.wire.timestamps import format_timestamp

_HYPHENATED: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID: Final = re.compile(rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-f]{{32}}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NULL: Final = b"null"
_NOT_OURS: Final = ("offset", "token", "$token", "api_key")


class _Body(Struct, gc=False):
    batch: Raw = ABSENT


class _OwnId(Struct, gc=False):
    distinct_id: Raw = ABSENT


class RepairedEvent(NamedTuple):
    """An event with all that it needs."""

    text: bytes
    name: str
    distinct_id: str
    time: int
    uuid: str


_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_own_id = msgspec.json.Decoder(_OwnId).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_any = msgspec.json.Decoder().decode
_decode_time = msgspec.json.Decoder(datetime).decode
SMALL_ZONE: Final = b'z"'
"""How a time ends that names UTC by a small letter, as few services read it."""


def parts_of(text: bytes) -> list[bytes] | None:
    """The events of a readable text that is an array or a batch body; None if it is an object of another kind. Raises `RecordRefused`."""
    array: bytes | Raw = text
    start = text.lstrip()[:1]
    if start == b"{":
        array = _decode_body(text).batch
        if first_byte(array) != b"[":
            return None
    elif start != b"[":
        raise RecordRefused(RefusalReason.NOT_JSON, "the record is neither an object nor an array")
    return [bytes(raw) for raw in split_events(array)]


def readable_text(record: bytes) -> bytes:
    """The record as a text that decodes: NaN and infinite numbers are null. Raises `RecordRefused`."""
    if not (record.isascii() or is_utf8(record)):
        raise RecordRefused(RefusalReason.NOT_JSON, "it isn't UTF-8")
    if is_deep(record):
        raise RecordRefused(RefusalReason.NOT_JSON, "it is nested too deep")
    try:
        _decode_raw(record)
    except MALFORMED as error:
        return _repaired(record, error)
    return record


def _repaired(record: bytes, error: Exception) -> bytes:
    text, _ = null_non_finite_numbers(record)
    try:
        _decode_raw(text)
    except MALFORMED:
        if _decodes(mask_lone_surrogates(text)):
            raise RecordRefused(RefusalReason.NOT_JSON, "a string in it holds half a surrogate pair") from None
        raise RecordRefused(RefusalReason.NOT_JSON, str(error)) from None
    return text


def _decodes(text: bytes) -> bool:
    try:
        _decode_raw(text)
    except MALFORMED:
        return False
    return True


def repair_event(text: bytes, place_uuid: Callable[[], str], time_offset: int) -> RepairedEvent:
    """The event that a readable text is, with a uuid (its own, else the one of its place) and a time that the service reads.

    Project keys of another project don't go on, and neither does an `offset`, which the service would count from now. Raises
    `RecordRefused`.
    """
    try:
        members = _decode_members(text)
    except msgspec.ValidationError:
        raise RecordRefused(RefusalReason.NOT_JSON, "the event isn't an object") from None
    name = _name_of(members.get("event", ABSENT))
    if first_byte(members.get("properties", ABSENT)) not in {b"{", b"n", b""}:
        raise RecordRefused(RefusalReason.WRONG_TYPE, "properties aren't an object")
    distinct_id = _id_of(members)
    timestamp = members.get("timestamp", ABSENT)
    time = _time_of(timestamp, time_offset)
    uuid = _uuid_of(members.get("uuid", ABSENT)) or place_uuid()
    members["uuid"] = Raw(b'"%b"' % uuid.encode())
    if not _is_read_as(timestamp, time_offset):
        members["timestamp"] = Raw(b'"%b"' % format_timestamp(_EPOCH + timedelta(microseconds=time)))
    own = members.get("distinct_id", ABSENT)
    if own is not ABSENT and (first_byte(own) != b'"' or not id_text(own)):
        members["distinct_id"] = Raw(msgspec.json.encode(distinct_id))
    for key in _NOT_OURS:
        members.pop(key, None)
    return RepairedEvent(msgspec.json.encode(members), name, distinct_id, time, uuid)


def _name_of(raw: Raw) -> str:
    if bytes(raw) in {b"", _NULL, b'""'}:
        raise RecordRefused(RefusalReason.NO_EVENT, "it has no name")
    if first_byte(raw) != b'"':
        raise RecordRefused(RefusalReason.WRONG_TYPE, "its name isn't a string")
    return str(_decode_any(raw))


def _id_of(members: dict[str, Raw]) -> str:
    """The id that the service reads: the top level wins over the properties."""
    text = id_text(members.get("distinct_id", ABSENT)) or id_text(members.get("$distinct_id", ABSENT))
    properties = members.get("properties", ABSENT)
    if not text and first_byte(properties) == b"{":
        text = id_text(_decode_own_id(properties).distinct_id)
    if not text:
        raise RecordRefused(RefusalReason.NO_ID, "it has no distinct_id")
    return check_id(text)


def _time_of(raw: Raw, time_offset: int) -> int:
    """The time in microseconds. Forms that only the service's own parser knows (a date as in mail) are read as it does."""
    if raw is ABSENT or bytes(raw) in {_NULL, b'""'}:
        raise RecordRefused(RefusalReason.NO_TIME, "it has no timestamp")
    try:
        return parse_time(raw, time_offset)
    except RecordRefused:
        found = _mail_date(str(_decode_any(raw))) if first_byte(raw) == b'"' else None
        if found is None:
            raise
        return parse_time(found.isoformat(), time_offset)


def _mail_date(text: str) -> datetime | None:
    """A date as in mail with a time of day; without a zone if it names none. `-0000` is UTC, of a sender who doesn't say where."""
    try:
        found = parsedate_to_datetime(text) if ":" in text else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found is not None and text.rstrip().endswith("-0000") else found


def _is_read_as(raw: Raw, time_offset: int) -> bool:
    """Whether the service reads a time so as it stands: to it a time without a zone is UTC, and a small z may be no zone, and so "now"."""
    try:
        time = _decode_time(raw)
    except MALFORMED:
        return False
    return SMALL_ZONE not in bytes(raw) and (time.tzinfo is not None or not time_offset)


def _uuid_of(raw: Raw) -> str | None:
    """The event's own uuid in its own spelling, in lower case; None if it has none that is one."""
    if first_byte(raw) != b'"':
        return None
    text = str(_decode_any(raw)).lower()
    return text if _UUID.fullmatch(text) else None
