"""Our own JSON lines: one event a line in any classic shape, or a batch body (`{"batch": […]}`),
or an array of events.

Most records are complete events, whose bytes are kept. An incomplete event is repaired
(`_repair`), which keeps the bytes of the properties and adds only what follows from the record and
its place; what can't be repaired is refused, since a wrong guess couldn't be undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from forwarder.core.error_text import error_text
from forwarder.core.event import split_events
from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock
from forwarder.sources.imports.format import (
    EventSink,
    ImportFormat,
    NativeEvents,
    NoOptions,
    PersonProperties,
    RecordRefused,
    place_uuid,
)
from forwarder.sources.imports.times import AFTER_LAST, EPOCH, micros_of, parse_time
from forwarder.sources.imports.values import (
    ELEMENTS,
    EXPORT_MARKS,
    EXPORTED_ELEMENTS,
    are_deep,
    check_utf8,
    is_deep,
)
from forwarder.wire.identity import ABSENT, canonical_id, first_byte, id_text
from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers
from forwarder.wire.shapes import MALFORMED, is_utf8
from forwarder.wire.timestamps import format_timestamp, read_time

_UNFIT: Final = (*MALFORMED, UnicodeDecodeError)
"""What decoding raises for a text that isn't of the form that is looked for."""
_PROPERTIES: Final = (b',"properties":{"', b', "properties": {"')
"""How properties with members begin, as most writers write them."""
_KNOWN_IDS: Final = 20_000
"""So many checked ids are remembered: neighbouring events share theirs."""
_HYPHENATED: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_is_usual_uuid: Final = re.compile(_HYPHENATED).fullmatch
_is_uuid: Final = re.compile(
    rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-f]{{32}}"
).fullmatch
_NULL: Final = b"null"
_NOT_OURS: Final = ("offset", "token", "$token", "api_key")
_ADDED: Final = ("$geoip_disable", "$import_job_id")
_CHANGED: Final[Mapping[PersonProperties, Sequence[str]]] = {
    "none": ("$set", "$unset", "$set_once"),
    "newest": ("$set", "$unset", "$set_once"),
    "oldest": ("$set", "$unset"),
    "history": ("$set", "$unset"),
}
"""Which members about persons finishing changes, in the properties and beside them, by policy; of
`history` when a repaired record is sent later, as with `oldest`.
"""


class _Object(Struct, gc=False):
    """Any properties."""


class _ClassicEvent(Struct, kw_only=True, gc=False):
    event: str
    distinct_id: str
    uuid: str
    timestamp: str
    properties: _Object


def _without(base: type[Any], names: Sequence[str], **fields: type) -> type[Any]:
    """The same, but a member of one of these names doesn't fit, whatever its value; `fields` have
    another type.
    """
    unfit = (
        (name.replace("$", "dollar_"), UnsetType, field(name=name, default=UNSET)) for name in names
    )
    return msgspec.defstruct(
        base.__name__, [*fields.items(), *unfit], bases=(base,), kw_only=True, gc=False
    )


_COMPLETE: Final[type[_ClassicEvent]] = _without(
    _ClassicEvent, ("batch", EXPORTED_ELEMENTS, *_NOT_OURS)
)
"""The events that need no repair."""
_PLAIN: Final[Mapping[PersonProperties, type[_ClassicEvent]]] = {
    policy: _without(_COMPLETE, names, properties=_without(_Object, (*_ADDED, *names)))
    for policy, names in _CHANGED.items()
}
"""The events to which finishing only adds, by policy."""


class _Body(Struct, gc=False):
    batch: Raw = ABSENT


class _OwnId(Struct, gc=False):
    distinct_id: Raw = ABSENT


_decode_complete: Final = msgspec.json.Decoder(_COMPLETE).decode
_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decode_own_id: Final = msgspec.json.Decoder(_OwnId).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_time: Final = msgspec.json.Decoder(datetime).decode
_encode: Final = msgspec.json.Encoder().encode


class NativeConverter:
    """The native format. Times without a zone are what `clock` shows (None: UTC).

    `person_properties` is the policy that the events are finished with: which of them need a
    closer look depends on it.
    """

    def __init__(self, person_properties: PersonProperties, clock: tzinfo | None = None) -> None:
        self._plain = _PLAIN[person_properties]
        self._decode_plain = msgspec.json.Decoder(self._plain).decode
        self._clock = clock
        self._known: set[str] = set()

    def convert_block(self, block: RecordBlock, events: EventSink) -> None:
        count = len(block.records)
        self._convert(
            block, events, [*block.records], range(count), block.members or [None] * count
        )

    def convert_event(self, block: RecordBlock) -> NativeEvents:
        """The event that the one record of a block is. Raises `RecordRefused`."""
        (text,) = block.records
        member = block.members[0] if block.members else None
        return self._complete([text]) or self._repaired(text, readable_text(text), block, 0, member)

    def _convert(
        self,
        block: RecordBlock,
        events: EventSink,
        texts: list[bytes],
        records: Sequence[int],
        members: Sequence[int | None],
    ) -> None:
        """Add the events of neighbouring texts: all at once if they are complete, else by halves,
        down to the one that isn't.

        `records` are the indexes of their records, and `members` their indexes in these, if those
        hold several.
        """
        if (complete := self._complete(texts)) is not None:
            events.extend(records, complete)
        elif len(texts) == 1:
            self._convert_other(block, events, texts[0], records[0], members[0])
        else:
            half = len(texts) // 2
            for part in (slice(half), slice(half, None)):
                self._convert(block, events, texts[part], records[part], members[part])

    def _convert_other(
        self, block: RecordBlock, events: EventSink, text: bytes, record: int, member: int | None
    ) -> None:
        """Add what isn't a complete event: repair it, or split it into its parts."""
        try:
            readable = readable_text(text)
            parts = _parts_of(readable) if member is None else None
            if parts is None:
                events.extend([record], self._repaired(text, readable, block, record, member))
            elif parts:
                self._convert(block, events, parts, [record] * len(parts), range(len(parts)))
        except RecordRefused as why:
            events.refuse(record, why, text, member)

    def _complete(self, texts: Sequence[bytes]) -> NativeEvents | None:
        """Events that need no repair and whose values are good; None if one of them isn't such.
        All are checked at once.
        """
        if not texts:
            return None
        try:
            try:
                heads = [*map(self._decode_plain, texts)]
            except _UNFIT:
                heads = [*map(self._head_of, texts)]
            written = [head.timestamp for head in heads]
            moments = msgspec.convert(written, list[datetime])
        except _UNFIT:
            return None
        if "z" in "".join(written) or (
            self._clock is not None and any(moment.tzinfo is None for moment in moments)
        ):
            return None  # few services read a small z
        names = [head.event for head in heads]
        ids = [head.distinct_id for head in heads]
        uuids = [head.uuid for head in heads]
        times = [*map(micros_of, moments)]
        if not (
            min(times) >= 0
            and max(times) < AFTER_LAST
            and all(names)
            and all(map(_is_usual_uuid, uuids))
            and self._are_ids(ids)
        ):
            return None
        # the line feeds keep a character that is cut off from being completed
        joined = b"\n".join(texts)
        if not (joined.isascii() or is_utf8(joined)) or are_deep(texts):
            return None
        # What stands before an event's second brace, after a comma, is a name of its own.
        gaps = [
            gap if text.endswith(_PROPERTIES, 0, gap + 1) else 0
            for text in texts
            for gap in (text.find(b"{", 1) + 1,)
        ]
        if {*map(type, heads)} != {self._plain}:
            gaps = [
                gap if type(head) is self._plain else 0
                for gap, head in zip(gaps, heads, strict=True)
            ]
        return NativeEvents(names, ids, times, uuids, texts, gaps, texts)

    def _head_of(self, text: bytes) -> _ClassicEvent:
        try:
            return self._decode_plain(text)
        except _UNFIT:
            return _decode_complete(text)

    def _are_ids(self, ids: list[str]) -> bool:
        """Whether ids are sent as they are."""
        fresh = set(ids) - self._known
        if any(
            not identifier or identifier.isspace() or canonical_id(identifier) != identifier
            for identifier in fresh
        ):
            return False
        if len(self._known) + len(fresh) > _KNOWN_IDS:
            self._known = set()
        self._known |= fresh
        return True

    def _repaired(
        self, original: bytes, text: bytes, block: RecordBlock, index: int, member: int | None
    ) -> NativeEvents:
        """The event that a readable text is, with a uuid (its own, else the one of its place) and
        a time that the service reads.

        Keys of another project are removed, and so is an `offset`, which the service would count
        from now. An exported event's elements get to where ingestion takes them from. Raises
        `RecordRefused`.
        """
        try:
            members = _decode_members(text)
        except msgspec.ValidationError:
            raise RecordRefused(Reason.UNDECODABLE, "the event isn't an object") from None
        name = _name_of(members.get("event", ABSENT))
        if first_byte(members.get("properties", ABSENT)) not in {b"{", b"n", b""}:
            raise RecordRefused(Reason.INVALID_EVENT, "properties aren't an object")
        distinct_id = _id_of(members)
        timestamp = members.get("timestamp", ABSENT)
        time = _time_of(timestamp, self._clock)
        uuid = _uuid_of(members.get("uuid", ABSENT)) or place_uuid(
            "native", block, index, *(() if member is None else (member,))
        )
        members["uuid"] = Raw(b'"%b"' % uuid.encode())
        if not _is_read_as(timestamp, self._clock):
            members["timestamp"] = Raw(
                b'"%b"' % format_timestamp(EPOCH + timedelta(microseconds=time))
            )
        own = members.get("distinct_id", ABSENT)
        if own is not ABSENT and (first_byte(own) != b'"' or not id_text(own)):
            members["distinct_id"] = Raw(_encode(distinct_id))
        for key in _NOT_OURS:
            members.pop(key, None)
        if (elements := members.pop(EXPORTED_ELEMENTS, None)) is not None:
            _add_elements(members, elements)
        written = _encode(members)
        complete = self._complete([written])
        return NativeEvents(
            [name],
            [distinct_id],
            [time],
            [uuid],
            [written],
            [0] if complete is None else complete.gaps,
            [original],
        )


def _add_elements(members: dict[str, Raw], elements: Raw) -> None:
    """Put the elements of an event that was exported first into its properties, unless they are
    empty, or there already.
    """
    properties = bytes(members.get("properties", ABSENT))
    inner = _decode_members(properties) if properties[:1] == b"{" else {}
    if first_byte(elements) == b'"' and bytes(elements) != b'""' and ELEMENTS not in inner:
        rest = properties.partition(b"{")[2] if inner else b"}"
        comma = b"," if inner else b""
        members["properties"] = Raw(b'{"%b":%b%b%b' % (ELEMENTS.encode(), elements, comma, rest))


def _parts_of(text: bytes) -> list[bytes] | None:
    """The events of a readable text that is an array or a batch body; None if it is an object of
    another kind. Raises `RecordRefused`.
    """
    array: bytes | Raw = text
    start = text.lstrip()[:1]
    if start == b"{":
        array = _decode_body(text).batch
        if first_byte(array) != b"[":
            return None
    elif start != b"[":
        raise RecordRefused(Reason.UNDECODABLE, "the record is neither an object nor an array")
    return [bytes(raw) for raw in split_events(array)]


def readable_text(record: bytes) -> bytes:
    """The record as a text that decodes: NaN and infinite numbers are
    null. Raises `RecordRefused`.
    """
    if not record.isascii():
        check_utf8(record)
    if is_deep(record):
        raise RecordRefused(Reason.UNDECODABLE, "it is nested too deep")
    if (error := _error_in(record)) is None:
        return record
    text, _ = null_non_finite_numbers(record)
    if _error_in(text) is None:
        return text
    is_half_pair = _error_in(mask_lone_surrogates(text)) is None
    raise RecordRefused(
        Reason.UNDECODABLE,
        "a string in it holds half a surrogate pair" if is_half_pair else error_text(error),
    )


def _error_in(text: bytes) -> Exception | None:
    try:
        _decode_raw(text)
    except MALFORMED as error:
        return error
    return None


def _name_of(raw: Raw) -> str:
    if bytes(raw) in {b"", _NULL, b'""'}:
        raise RecordRefused(Reason.MISSING_EVENT, "it has no name")
    if first_byte(raw) != b'"':
        raise RecordRefused(Reason.INVALID_EVENT, "its name isn't a string")
    return str(_decode_any(raw))


def _id_of(members: dict[str, Raw]) -> str:
    """The id that the service reads: the top level wins over the properties. What is no text is
    written as it stands, so that large numbers keep their digits.
    """
    text = _as_written(members.get("distinct_id", ABSENT)) or _as_written(
        members.get("$distinct_id", ABSENT)
    )
    properties = members.get("properties", ABSENT)
    if not text and first_byte(properties) == b"{":
        text = _as_written(_decode_own_id(properties).distinct_id)
    if not text:
        raise RecordRefused(Reason.MISSING_DISTINCT_ID, "it has no distinct_id")
    return text


def _as_written(raw: Raw) -> str:
    if first_byte(raw) in (b"", b'"') or bytes(raw) == _NULL:
        return id_text(raw)
    return canonical_id(bytes(raw).decode("utf-8", "replace"))


def _time_of(raw: Raw, clock: tzinfo | None) -> int:
    """The time in microseconds. Other forms that the service's parser knows (a date as in mail, a
    day with AM or PM) are read as it does, if they are whole.
    """
    if raw is ABSENT or bytes(raw) in {_NULL, b'""'}:
        raise RecordRefused(Reason.MISSING_TIMESTAMP, "it has no timestamp")
    try:
        return parse_time(raw, clock)
    except RecordRefused:
        read = read_time(str(_decode_any(raw))) if first_byte(raw) == b'"' else None
        if read is None:
            raise
        time = read.time if read.has_zone else read.time.replace(tzinfo=None)
        return parse_time(time.isoformat(), clock)


def _is_read_as(raw: Raw, clock: tzinfo | None) -> bool:
    """Whether the service reads a time so as it stands: to it a time without a zone is UTC, and a
    small z may be no zone, and so "now".
    """
    try:
        time = _decode_time(raw)
    except MALFORMED:
        return False
    return b'z"' not in bytes(raw) and (time.tzinfo is not None or clock is None)


def _uuid_of(raw: Raw) -> str | None:
    """The event's own uuid in its own spelling, in lower case; None if it has none that is one."""
    if first_byte(raw) != b'"':
        return None
    text = str(_decode_any(raw)).lower()
    return text if _is_uuid(text) else None


def _recognizes(members: Mapping[str, Raw]) -> bool:
    if first_byte(members.get("batch", ABSENT)) == b"[":
        return True
    if "event" not in members or not members.keys().isdisjoint(
        {"messageId", "anonymousId", "userId", *EXPORT_MARKS}
    ):
        return False
    return "timestamp" in members or not members.keys().isdisjoint({"distinct_id", "$distinct_id"})


DESCRIPTION: Final = ImportFormat(
    name="native",
    summary=(
        "Our own JSON lines: events in any classic shape, arrays of them, and bodies of batches."
    ),
    example="events-2024.jsonl.gz --upstream https://us.i.example.com --api-key phc_…",
    options=NoOptions,
    make=lambda _, given: NativeConverter(given.person_properties, given.clock),
    looks_like="events as forwarder's own JSON lines",
    recognizes=_recognizes,
    times=lambda *_: ("timestamp",),
)
