"""Our own JSON lines: one event a line in any classic shape, or a batch body (`{"batch": […]}`), or an array of events.

Most lines are complete events: they are decoded in one typed pass, and their bytes are kept. An incomplete event is repaired
(`repair_event`) and then decoded again. A repair keeps the bytes of the properties and adds only what follows from the record and its
place; what can't be repaired is refused, since a wrong guess couldn't be undone.

There are two paths. Where all lines of a block are complete and written in the usual form, they are processed all at once
(`_all_at_once`). Otherwise the block is processed record by record (`_take`), with the same result. Broken records that would be valid when
joined are never accepted: on the first path `_cut` excludes them, on the second each is decoded by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from forwarder.core.event import split_events
from forwarder.sources.files.records import LineRecords, RecordBlock
from forwarder.sources.imports.format import (
    PACKED,
    EventBounds,
    ImportFormat,
    NoOptions,
    PersonProperties,
    RawEvents,
    RecordRefused,
    RefusalReason,
    RefusedPart,
    WholeLines,
    derived_uuid,
)
from forwarder.sources.imports.times import AFTER_LAST, parse_time
from forwarder.sources.imports.values import SHALLOW_BYTES, are_deep, check_id, is_deep, none_illegal
from forwarder.wire.identity import ABSENT, canonical_id, first_byte, id_text
from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers
from forwarder.wire.shapes import MALFORMED, is_utf8
from forwarder.wire.timestamps import format_timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_UNFIT: Final = (*MALFORMED, UnicodeDecodeError)
"""What decoding raises for a text that isn't of the form that is looked for."""
_SPELLED: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
"""How long a UUID is, and where its hyphens are."""
_PROPERTIES: Final = (b',"properties":{"', b', "properties": {"')
"""How properties with members begin, as most writers write them."""
_NAMED: Final = (b',"properties":', b', "properties": ')
"""And what stands before their brace."""
_BRACE: Final = b"{"
_QUOTE: Final = ord('"')
_END: Final = b"}\n"
_KNOWN_IDS: Final = 20_000
"""So many checked ids are remembered: neighbouring events share theirs."""
_HYPHENATED: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID: Final = re.compile(rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-f]{{32}}")
_NULL: Final = b"null"
_NOT_OURS: Final = ("offset", "token", "$token", "api_key")
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_any = msgspec.json.Decoder().decode
_decode_time = msgspec.json.Decoder(datetime).decode
SMALL_ZONE: Final = b'z"'
"""How a time ends that names UTC by a small letter, as few services read it."""


class _Object(Struct, gc=False):
    """Any properties."""


class _Unfinished(_Object, gc=False):
    """Properties without what is added to all: a member of a name that is listed here doesn't fit, whatever its value."""

    geoip_disable: UnsetType = field(name="$geoip_disable", default=UNSET)
    import_job_id: UnsetType = field(name="$import_job_id", default=UNSET)


class _Harmless(_Unfinished, gc=False):
    """And without what overwrites a property of a person."""

    set: UnsetType = field(name="$set", default=UNSET)
    unset: UnsetType = field(name="$unset", default=UNSET)


class _Impersonal(_Harmless, gc=False):
    """And without anything about a person."""

    set_once: UnsetType = field(name="$set_once", default=UNSET)


class _CompleteEvent(Struct, kw_only=True, gc=False):
    """An event that needs no repair."""

    event: str
    distinct_id: str
    uuid: str
    timestamp: str
    """A time that `_moments` reads."""
    properties: _Object
    batch: UnsetType = UNSET
    offset: UnsetType = UNSET
    token: UnsetType = UNSET
    api_key: UnsetType = UNSET
    dollar_token: UnsetType = field(name="$token", default=UNSET)


class _ForSet(_CompleteEvent, kw_only=True, gc=False):
    """One to which finishing only adds: with the policy `set`."""

    properties: _Unfinished


class _ForSetOnce(_CompleteEvent, kw_only=True, gc=False):
    """The same with the policy `set_once`."""

    properties: _Harmless
    set: UnsetType = field(name="$set", default=UNSET)
    unset: UnsetType = field(name="$unset", default=UNSET)


class _ForNone(_ForSetOnce, kw_only=True, gc=False):
    """The same with the policy `none`."""

    properties: _Impersonal
    set_once: UnsetType = field(name="$set_once", default=UNSET)


_PLAIN: Final[dict[PersonProperties, type[_CompleteEvent]]] = {"none": _ForNone, "set_once": _ForSetOnce, "set": _ForSet}
"""The events to which finishing only adds, by policy."""


_decode_complete = msgspec.json.Decoder(_CompleteEvent).decode


class _EventTexts(NamedTuple):
    """Events as they were found, with their places."""

    texts: Sequence[bytes]
    records: Sequence[int]
    """The index in the block of the record of each."""
    members: Sequence[int] | None
    """The index of each in its record, if that holds several."""
    joined: bytes = b""
    """The texts joined by line feeds, if they are."""

    def part(self, start: int, end: int | None) -> _EventTexts:
        members = self.members
        return _EventTexts(self.texts[start:end], self.records[start:end], None if members is None else members[start:end])


class NativeConverter:
    """The native format. Times without a zone are of a clock `time_offset` minutes ahead of UTC.

    `person_properties` is the policy that the events are finished with: which of them need a closer look depends on it.
    """

    def __init__(self, person_properties: PersonProperties, time_offset: int = 0) -> None:
        self._plain = _PLAIN[person_properties]
        decoder = msgspec.json.Decoder(self._plain)
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._offset = time_offset
        self._known: set[str] = set()

    def convert_block(self, block: RecordBlock) -> RawEvents:
        """The events of a block's records, and what was refused."""
        lines = block.records
        if isinstance(lines, LineRecords) and block.members is None and (whole := self._all_at_once(lines)) is not None:
            return whole
        found, records = RawEvents(), [*lines]
        self._take(
            found, block, _EventTexts(records, range(len(records)), block.members, lines.text if isinstance(lines, LineRecords) else b"")
        )
        return found

    def _all_at_once(self, lines: LineRecords) -> RawEvents | None:
        """The events of lines that are all complete, plain and good, and written as most writers write them; None if one isn't.

        The lines are decoded as one text: see `_cut` for why no line can be completed by its neighbours.
        """
        try:
            heads = self._decode_lines(lines.text)
            moments = _moments(heads)
        except _UNFIT:
            return None
        whole = _cut(lines)
        if whole is None or len(heads) != len(lines):
            return None
        names, ids, uuids = [head.event for head in heads], [head.distinct_id for head in heads], [head.uuid for head in heads]
        times = self._times(moments)
        packed = _plain_uuids(uuids)
        if times is None or not packed or not (lines.text.isascii() or is_utf8(lines.text)):
            return None
        bounds = EventBounds.of(names, times)
        if not self._are_good(bounds, ids):
            return None
        if max(whole.sizes) > SHALLOW_BYTES and are_deep(lines.ended):
            return None
        return RawEvents([*range(len(lines))], [], [], names, ids, times, uuids, packed=packed, whole=whole, _bounds=bounds)

    def _take(self, found: RawEvents, block: RecordBlock, texts: _EventTexts) -> None:
        """Take events: neighbours that are complete together, all others one by one."""
        try:
            heads: list[_CompleteEvent] = [*map(self._decode, texts.texts)]
            _moments(heads)
        except _UNFIT:
            self._take_runs(found, block, texts)
        else:
            self._take_complete(found, block, texts, heads)

    def _take_runs(self, found: RawEvents, block: RecordBlock, texts: _EventTexts) -> None:
        start = 0
        heads: list[_CompleteEvent] = []
        for at, text in enumerate(texts.texts):
            head = self._head_of(text)
            if head is not None:
                heads.append(head)
                continue
            self._take_complete(found, block, texts.part(start, at), heads)
            self._take_other(found, block, texts.part(at, at + 1))
            start, heads = at + 1, []
        self._take_complete(found, block, texts.part(start, None), heads)

    def _add(self, found: RawEvents, record: int, event: RepairedEvent, text: bytes) -> None:
        """Add a repaired event that stood as `text` in its record."""
        head = self._head_of(event.text)
        found.as_found[len(found)] = text
        found.records.append(record)
        found.texts.append(event.text)
        found.gaps += [0] if head is None else _gaps((event.text,), (head,), self._plain)
        found.names.append(event.name)
        found.distinct_ids.append(event.distinct_id)
        found.times.append(event.time)
        found.uuids.append(event.uuid)

    def _head_of(self, text: bytes) -> _CompleteEvent | None:
        """The event, if it needs no repair; else None."""
        for decode in (self._decode, _decode_complete):
            try:
                head = decode(text)
                _moments([head])
            except _UNFIT:
                continue
            return head
        return None

    def _take_complete(self, found: RawEvents, block: RecordBlock, texts: _EventTexts, heads: list[_CompleteEvent]) -> None:
        """Take events that have all they need, if their values are good; else by halves, down to the one that isn't."""
        if not heads or self._extend(found, texts, heads):
            return
        if len(heads) == 1:
            self._take_other(found, block, texts)
            return
        half = len(heads) // 2
        self._take_complete(found, block, texts.part(0, half), heads[:half])
        self._take_complete(found, block, texts.part(half, None), heads[half:])

    def _extend(self, found: RawEvents, texts: _EventTexts, heads: list[_CompleteEvent]) -> bool:
        """Add events if all of them are good; whether they are."""
        names, ids, uuids = [head.event for head in heads], [head.distinct_id for head in heads], [head.uuid for head in heads]
        times = self._times(_moments(heads))
        if times is None or not (_plain_uuids(uuids) and _are_texts(texts.texts, texts.joined)):
            return False
        if not self._are_good(EventBounds.of(names, times), ids):
            return False
        found.records += texts.records
        found.texts += texts.texts
        found.gaps += _gaps(texts.texts, heads, self._plain)
        found.names += names
        found.distinct_ids += ids
        found.times += times
        found.uuids += uuids
        return True

    def _are_good(self, bounds: EventBounds, ids: list[str]) -> bool:
        """Whether events within these bounds and with these ids are sent as they are."""
        return 0 <= bounds.first <= bounds.last < AFTER_LAST and "" not in bounds.names and self._are_ids(ids)

    def _times(self, times: list[datetime]) -> list[int] | None:
        """Microseconds since 1970; None if there are times without a zone that aren't UTC, and so have to be written anew."""
        try:
            return [(time - _EPOCH) // _MICROSECOND for time in times]
        except TypeError:  # one has no zone
            return None if self._offset else [(time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // _MICROSECOND for time in times]

    def _are_ids(self, ids: list[str]) -> bool:
        fresh = set(ids) - self._known
        if not none_illegal(fresh) or canonical_id(longest := max(fresh, key=len, default="")) != longest or "\0" in "".join(fresh):
            return False
        if len(self._known) + len(fresh) > _KNOWN_IDS:
            self._known = set()
        self._known |= fresh
        return True

    def _take_other(self, found: RawEvents, block: RecordBlock, text: _EventTexts) -> None:
        """Add one text that isn't a complete event: repair it, or split it into its parts."""
        record, member = text.records[0], None if text.members is None else text.members[0]
        try:
            readable = readable_text(text.texts[0])
            parts = parts_of(readable) if member is None else None
            if parts is None:
                self._add(found, record, repair_event(readable, partial(_place_uuid, block, record, member), self._offset), text.texts[0])
            else:
                self._take(found, block, _EventTexts(parts, [record] * len(parts), range(len(parts))))
        except RecordRefused as why:
            found.refused.append(RefusedPart(record, text.texts[0], why, member))


def _moments(heads: Sequence[_CompleteEvent]) -> list[datetime]:
    """When the events happened, all at once. Raises `ValidationError` for what is no time, or ends in a small z: few services read it."""
    texts = [head.timestamp for head in heads]
    if "z" in "".join(texts):
        raise msgspec.ValidationError("a time ends in a small z")
    return msgspec.convert(texts, list[datetime])


def _cut(lines: LineRecords) -> WholeLines | None:
    """Cut lines at the beginnings of their properties; None if they aren't written as most writers write them.

    Every line begins with a brace and ends with one. In JSON no closing brace is followed by an opening one without a comma, and no string
    holds a line feed: so if the lines together are JSON values, no value goes over the end of a line; and if there are as many values as
    lines, each line is one.
    """
    heads: list[bytes] = []
    rests: list[bytes] = []
    add_head, add_rest = heads.append, rests.append
    for line in lines.ended:
        parts = line.split(_BRACE, 2)
        if len(parts) < 3:
            return None
        first, head, rest = parts
        if first or rest[0] != _QUOTE or rest[-2:] != _END:
            return None
        add_head(head)
        add_rest(rest)
    if not any({head[-len(name) :] for head in heads} == {name} for name in _NAMED):
        return None
    return WholeLines(lines, heads, rests, [*map(len, lines.ended)])


def _place_uuid(block: RecordBlock, record: int, member: int | None) -> str:
    """The uuid of an event that has none: of its file's content, its record's number, and its index among the record's events."""
    parts: list[str | int] = ["native", block.file.identity, block.first + record]
    return derived_uuid(msgspec.json.encode(parts if member is None else [*parts, member]).decode())


def _plain_uuids(uuids: list[str]) -> bytes:
    """Sixteen bytes of each, if all are UUIDs in the usual form and lower case, else none; in one pass, because all events come here."""
    joined, count = "".join(uuids), len(uuids)
    if [*map(len, uuids)].count(_SPELLED) != count or joined != joined.lower():
        return b""  # joined, a short one and a long one could make up for each other
    if any(joined[place::_SPELLED] != "-" * count for place in _HYPHENS):
        return b""
    try:
        packed = bytes.fromhex(joined.replace("-", ""))
    except ValueError:
        return b""
    return packed if len(packed) == PACKED * count else b""  # less: spaces, or more hyphens


def _are_texts(texts: Sequence[bytes], joined: bytes) -> bool:
    """Whether all are UTF-8 and nowhere nested too deep. The line feeds keep a character that is cut off from being completed."""
    joined = joined or b"\n".join(texts)
    if not (joined.isascii() or is_utf8(joined)):
        return False
    return not are_deep(texts)


def _gaps(texts: Sequence[bytes], heads: Sequence[_CompleteEvent], plain: type[_CompleteEvent]) -> list[int]:
    """Where members can be put into the properties of plain events; 0 of others, and where an event's beginning doesn't show it.

    What stands before its second brace, after a comma, is a name of the event's own.
    """
    gaps = [gap if text.endswith(_PROPERTIES, 0, gap + 1) else 0 for text in texts for gap in (text.find(b"{", 1) + 1,)]
    if {*map(type, heads)} != {plain}:
        return [gap if type(head) is plain else 0 for gap, head in zip(gaps, heads, strict=True)]
    return gaps


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


_decode_body = msgspec.json.Decoder(_Body).decode


_decode_own_id = msgspec.json.Decoder(_OwnId).decode


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

    Keys of another project are removed, and so is an `offset`, which the service would count from now. Raises
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


DESCRIPTION: Final = ImportFormat(
    name="native",
    summary="Our own JSON lines: events in any classic shape, arrays of them, and bodies of batches.",
    example="events-2024.jsonl.gz --upstream https://us.i.example.com --api-key phc_…",
    options=NoOptions,
    make=lambda _, given: NativeConverter(given.person_properties, given.minutes),
    times=lambda *_: ("timestamp",),
)
