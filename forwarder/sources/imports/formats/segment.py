"""Segment's log of calls in S3: track, page, screen, identify, group and alias (wire facts: Migrations, "Segment log records").

A record is one call, and one event. What the record's own `properties` say wins over what is read from its surroundings, except for what
makes the event what it is (`$set`, `$anon_distinct_id`, `$group_…`, `alias`). What Segment's delivery added (`writeKey`, `integrations`,
`receivedAt`, …) isn't brought along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    RefusalReason,
    key_uuid,
    option,
    place_uuid,
)
from forwarder.sources.imports.times import parse_time
from forwarder.sources.imports.values import check_id, is_blank, is_illegal

FORMAT: Final = "segment"

_ABSENT: Final = Raw(b"")
_NULL: Final = b"null"
_NULL_LENGTH: Final = 4

_Custom = str | bool | float | list[Raw] | None
"""What stands where the vendor has an object. No event depends on a context: it is passed over."""


class _PageContext(Struct, gc=False):
    """The page that a call was made on: in its context, or in the properties of a page call."""

    url: Raw = _ABSENT
    path: Raw = _ABSENT
    referrer: Raw = _ABSENT
    title: Raw = _ABSENT


class _LibraryContext(Struct, gc=False):
    """What sent the call."""

    name: Raw = _ABSENT
    version: Raw = _ABSENT


class _CallContext(Struct, gc=False, rename="camel"):
    """What is read of a call's surroundings."""

    ip: Raw = _ABSENT
    user_agent: Raw = _ABSENT
    library: _LibraryContext | _Custom = None
    page: _PageContext | _Custom = None


class _SegmentCall(Struct, gc=False, rename="camel"):
    """What is read of a call."""

    type: str | None = None
    event: str | None = None
    user_id: Raw = _ABSENT
    anonymous_id: Raw = _ABSENT
    group_id: Raw = _ABSENT
    previous_id: Raw = _ABSENT
    message_id: Raw = _ABSENT
    timestamp: str | int | float | None = None
    """Corrected for the sender's clock."""
    original_timestamp: str | int | float | None = None
    """As the sender wrote it."""
    name: Raw = _ABSENT
    category: Raw = _ABSENT
    context: _CallContext | _Custom = None
    properties: dict[str, Raw] | None = None
    traits: Raw = _ABSENT


PAGE: Final = ("$current_url", "$pathname", "$referrer", "$title")
"""What the fields of `_PageContext` are called in events, in their order."""
SURROUNDINGS: Final = ("$ip", "$raw_user_agent", "$lib", "$lib_version", *PAGE)
"""What is read of a `_CallContext`."""

_decode = msgspec.json.Decoder(_SegmentCall).decode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """What an export can't say by itself."""

    group_type: str = option("segment_group", "The kind of group that group calls are about: Segment doesn't know kinds.")
    offset_minutes: int = 0
    """How far ahead of UTC the clock of times without a zone is."""


class SegmentConverter(RecordConverter):
    """The format at work on one source."""

    def __init__(self, options: SegmentOptions | None = None) -> None:
        self._options = options or SegmentOptions()

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The event of one call. Raises `RecordRefused`."""
        record = _record(block.records[index])
        make = _maker(record.type)
        user = _id(record.user_id, "userId")
        distinct_id = user or _id(record.anonymous_id, "anonymousId")
        if not distinct_id:
            raise RecordRefused(RefusalReason.NO_ID, "neither userId nor anonymousId")
        time = _time(record, self._options.offset_minutes)
        properties = _surroundings(record.context)
        if record.properties:
            properties |= record.properties
        event = make(record, user, properties, self._options)
        message = _text(record.message_id, "messageId")
        keyed = not is_illegal(message)  # many would share it, and all but one be lost
        uuid = key_uuid(FORMAT, message) if keyed else place_uuid(FORMAT, block, index)
        return (ImportedEvent(event, distinct_id, time, uuid, properties, keyed),)


CallConverter = Callable[[_SegmentCall, str, dict[str, Any], SegmentOptions], str]


def _track(record: _SegmentCall, _user: str, _properties: dict[str, Any], _options: SegmentOptions) -> str:
    event = record.event
    if event is None or is_blank(event):
        raise RecordRefused(RefusalReason.NO_EVENT, "a track call without event")
    return event


def _page(record: _SegmentCall, _user: str, properties: dict[str, Any], _options: SegmentOptions) -> str:
    """Servers that call page have no page around them: there the call's properties say which it was."""
    _add_name_and_category(record, properties)
    for ours, theirs in zip(PAGE, _PageContext.__struct_fields__, strict=True):
        if ours not in properties and theirs in properties:
            _add(properties, ours, properties[theirs])
    return "$pageview"


def _screen(record: _SegmentCall, _user: str, properties: dict[str, Any], _options: SegmentOptions) -> str:
    _add_name_and_category(record, properties)
    if "$screen_name" not in properties:
        _add(properties, "$screen_name", properties.get("name", _ABSENT))
    return "$screen"


def _identify(record: _SegmentCall, user: str, properties: dict[str, Any], _options: SegmentOptions) -> str:
    """Two ids that are there are one person from now on: so an anonymous id that many share is refused here too."""
    _add_traits(record, properties, "$set")
    anonymous = _id(record.anonymous_id, "anonymousId") if user else ""
    if anonymous and anonymous != user:
        properties["$anon_distinct_id"] = anonymous
    return "$identify"


def _group(record: _SegmentCall, _user: str, properties: dict[str, Any], options: SegmentOptions) -> str:
    properties["$group_type"] = options.group_type
    properties["$group_key"] = _needed_id(record.group_id, "groupId", "a group call")
    _add_traits(record, properties, "$group_set")
    return "$groupidentify"


def _alias(record: _SegmentCall, _user: str, properties: dict[str, Any], _options: SegmentOptions) -> str:
    properties["alias"] = _needed_id(record.previous_id, "previousId", "an alias call")
    return "$create_alias"


CALLS: Final[Mapping[str, CallConverter]] = {
    "track": _track,
    "page": _page,
    "screen": _screen,
    "identify": _identify,
    "group": _group,
    "alias": _alias,
}
"""What adds to a call's properties, and names its event."""


def _record(data: bytes) -> _SegmentCall:
    """Raw values aren't checked for UTF-8, so the whole record is."""
    try:
        if not data.isascii():
            data.decode()
        return _decode(data)
    except msgspec.ValidationError as error:
        why = RefusalReason.WRONG_TYPE if data.lstrip().startswith(b"{") else RefusalReason.NOT_JSON
        raise RecordRefused(why, f"the record isn't one of Segment's: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordRefused(RefusalReason.NOT_JSON, f"the record isn't a JSON object: {error}") from error


def _maker(call: str | None) -> CallConverter:
    if call is None:
        raise RecordRefused(RefusalReason.NO_EVENT, "there is no type, so the call is unknown")
    make = CALLS.get(call)
    if make is None:
        raise RecordRefused(RefusalReason.UNMAPPABLE, f"type {call[:80]!r} is none of {', '.join(CALLS)}")
    return make


def _text(raw: Raw, name: str) -> str:
    """A text, or a number as it is written; empty where there is none."""
    if not raw:
        return ""
    try:
        text = _decode_text(raw)  # most are
    except msgspec.ValidationError:
        value = bytes(raw)
    else:
        return "" if text.isspace() else text
    if value == _NULL:
        return ""
    if value[0] not in b"-0123456789":
        raise RecordRefused(RefusalReason.WRONG_TYPE, f"{name} is neither a text nor a number")
    return value.decode()


def _id(raw: Raw, name: str) -> str:
    found = _text(raw, name)
    return check_id(found) if found else ""


def _needed_id(raw: Raw, name: str, who: str) -> str:
    found = _id(raw, name)
    if not found:
        raise RecordRefused(RefusalReason.NO_ID, f"{who} without {name}")
    return found


def _time(record: _SegmentCall, offset_minutes: int) -> int:
    time = record.timestamp
    if time is None or time == "":
        time = record.original_timestamp
    if time is None or time == "":
        raise RecordRefused(RefusalReason.NO_TIME, "neither timestamp nor originalTimestamp")
    return parse_time(time, offset_minutes)


def _surroundings(context: _CallContext | _Custom) -> dict[str, Any]:
    """Value by value, most of them longer than `null`: a loop over them takes three times as long."""
    found: dict[str, Any] = {}
    if type(context) is not _CallContext:
        return found
    library, page = context.library, context.page
    if len(raw := context.ip) > _NULL_LENGTH or _is_there(raw):
        found["$ip"] = raw
    if len(raw := context.user_agent) > _NULL_LENGTH or _is_there(raw):
        found["$raw_user_agent"] = raw
    if type(library) is _LibraryContext:
        if len(raw := library.name) > _NULL_LENGTH or _is_there(raw):
            found["$lib"] = raw
        if len(raw := library.version) > _NULL_LENGTH or _is_there(raw):
            found["$lib_version"] = raw
    if type(page) is _PageContext:
        if len(raw := page.url) > _NULL_LENGTH or _is_there(raw):
            found["$current_url"] = raw
        if len(raw := page.path) > _NULL_LENGTH or _is_there(raw):
            found["$pathname"] = raw
        if len(raw := page.referrer) > _NULL_LENGTH or _is_there(raw):
            found["$referrer"] = raw
        if len(raw := page.title) > _NULL_LENGTH or _is_there(raw):
            found["$title"] = raw
    return found


def _is_there(raw: Raw) -> bool:
    """Whether there is a value, and it isn't null."""
    return len(raw) > _NULL_LENGTH or (len(raw) > 0 and bytes(raw) != _NULL)


def _add(properties: dict[str, Any], name: str, raw: Raw) -> None:
    if _is_there(raw):
        properties[name] = raw


def _add_name_and_category(record: _SegmentCall, properties: dict[str, Any]) -> None:
    """Libraries write both into the properties too, but servers needn't."""
    if "name" not in properties:
        _add(properties, "name", record.name)
    if "category" not in properties:
        _add(properties, "category", record.category)


def _add_traits(record: _SegmentCall, properties: dict[str, Any], name: str) -> None:
    traits = bytes(record.traits)
    if traits[:1] == b"{":
        properties[name] = record.traits
    elif traits and traits != _NULL:
        raise RecordRefused(RefusalReason.WRONG_TYPE, "traits are no object")


DESCRIPTION: Final = ImportFormat(
    name="segment",
    summary="Segment's S3 logs: JSON lines of track, page, screen, identify, group and alias calls.",
    example="s3://logs/segment-logs/ --group-type company --store region=eu-central-1",
    options=SegmentOptions,
    make=lambda options, given: SegmentConverter(replace(options, offset_minutes=given.minutes)),
    times=lambda *_: ("timestamp", "originalTimestamp"),
)
