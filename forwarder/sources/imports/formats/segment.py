"""Segment's and RudderStack's logs of calls: track, page, screen, identify, group and alias (wire
facts: Migrations, "Segment log records").

A record is one call, and one event. What the record's own `properties` say wins over what is read
from its surroundings, except for what makes the event what it is (`$set`, `$anon_distinct_id`,
`$group_…`, `alias`). What Segment's delivery added (`writeKey`, `integrations`, `receivedAt`, …)
isn't brought along.

What the surroundings are called in events is RudderStack's own table
(rudderlabs/rudder-transformer, `src/v0/destinations/posthog/data/PHPropertiesConfig.json`, 40ef637,
and `transform.ts`, 0bf4318): also that a person's traits stand in `context.traits` of any call, for
an identify of RudderStack's SDKs has them nowhere else. Only an identify call joins two ids; one
without a `userId` sets properties and identifies no one, so it becomes a `$set`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    natural_key,
    option,
    place_uuid,
    text_in,
)
from forwarder.sources.imports.sessions import SessionIds
from forwarder.sources.imports.times import parse_moment
from forwarder.sources.imports.values import (
    decode_record,
    first_time,
    is_blank,
    is_shared,
    is_shared_key,
    optional_id,
    optional_text,
    wrong_type,
)
from forwarder.wire.identity import ABSENT

CALLS: Final = ("track", "page", "screen", "identify", "group", "alias")
PAGE: Final = ("$current_url", "$pathname", "$referrer", "$title")
"""What the fields of `_PageContext` are called in events, in their order."""
OS: Final = {"name": "$os", "version": "$os_version"}
DEVICE: Final = {
    "id": "$device_id",
    "manufacturer": "$device_manufacturer",
    "model": "$device_model",
    "name": "$device_name",
    "type": "$device_type",
}
SCREEN: Final = {
    "width": "$screen_width",
    "height": "$screen_height",
    "density": "$screen_density",
}
APP: Final = {
    "name": "$app_name",
    "version": "$app_version",
    "build": "$app_build",
    "namespace": "$app_namespace",
}
NETWORK: Final = {"carrier": "$network_carrier"}
SURROUNDINGS: Final = (
    *("$ip", "$raw_user_agent", "$lib", "$lib_version", *PAGE),
    *(ours for part in (OS, DEVICE, SCREEN, APP, NETWORK) for ours in part.values()),
    *("utm_source", "utm_campaign", "$timezone", "$locale", "$groups", "$session_id"),
)
"""What is read of a `_CallContext`."""
_IN_SECONDS: Final = 100_000_000_000
"""The start of a session below it counts seconds, as those of RudderStack's mobile SDKs do."""

_NULL: Final = b"null"
_NULL_LENGTH: Final = len(_NULL)

_Custom = str | bool | float | list[Raw] | None
"""What stands where the vendor has an object. No event depends on a context: it is passed over."""


class _PageContext(Struct, gc=False):
    """The page that a call was made on: in its context, or in the properties of a page call."""

    url: Raw = ABSENT
    path: Raw = ABSENT
    referrer: Raw = ABSENT
    title: Raw = ABSENT


class _LibraryContext(Struct, gc=False):
    """What sent the call."""

    name: Raw = ABSENT
    version: Raw = ABSENT


class _CallContext(Struct, gc=False, rename="camel"):
    """What is read of a call's surroundings."""

    ip: Raw = ABSENT
    user_agent: Raw = ABSENT
    library: _LibraryContext | _Custom = None
    page: _PageContext | _Custom = None
    campaign: dict[str, Raw] | _Custom = None
    os: dict[str, Raw] | _Custom = None
    device: dict[str, Raw] | _Custom = None
    screen: dict[str, Raw] | _Custom = None
    app: dict[str, Raw] | _Custom = None
    network: dict[str, Raw] | _Custom = None
    timezone: Raw = ABSENT
    locale: Raw = ABSENT
    group_id: Raw = ABSENT
    session_id: Any = None
    traits: Raw = ABSENT


class _SegmentCall(Struct, gc=False, rename="camel"):
    """What is read of a call."""

    type: str | None = None
    event: Any = None
    """Of track calls alone."""
    user_id: Raw = ABSENT
    anonymous_id: Raw = ABSENT
    group_id: Raw = ABSENT
    previous_id: Raw = ABSENT
    message_id: Raw = ABSENT
    timestamp: Any = None
    """Corrected for the sender's clock."""
    original_timestamp: Any = None
    """As the sender wrote it."""
    name: Raw = ABSENT
    category: Raw = ABSENT
    context: _CallContext | _Custom = None
    request_ip: Raw = msgspec.field(name="request_ip", default=ABSENT)
    properties: dict[str, Raw] | None = None
    traits: Raw = ABSENT


_decode: Final = msgspec.json.Decoder(_SegmentCall).decode


@dataclass(frozen=True, slots=True)
class SegmentExport:
    """What an export can't say by itself."""

    group_type: str = option(
        "segment_group", "The kind of group that group calls are about: Segment doesn't know kinds."
    )


class SegmentConverter(RecordConverter[_SegmentCall]):
    """The format at work on one source. Times without a zone are what `clock` shows (None: UTC)."""

    def __init__(self, export: SegmentExport | None = None, clock: tzinfo | None = None) -> None:
        super().__init__(
            _decode,
            partial(decode_record, decode=_decode, wrong="the record isn't one of Segment's: "),
        )
        self._group_type = (export or SegmentExport()).group_type
        self._clock = clock
        self._sessions = SessionIds()

    def events_of(
        self, call: _SegmentCall, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one call. Raises `RecordRefused`."""
        if call.type is None:
            raise RecordRefused(Reason.MISSING_EVENT, "there is no type, so the call is unknown")
        if call.type not in CALLS:
            raise RecordRefused(
                Reason.UNMAPPABLE, f"type {call.type[:80]!r} is none of {', '.join(CALLS)}"
            )
        user = optional_id(call.user_id, "userId")
        distinct_id = user or optional_id(call.anonymous_id, "anonymousId")
        if not distinct_id:
            raise RecordRefused(Reason.MISSING_DISTINCT_ID, "neither userId nor anonymousId")
        written = call.timestamp  # most have it
        if not written or type(written) is not str:
            written = first_time(
                ("timestamp", call.timestamp), ("originalTimestamp", call.original_timestamp)
            )
        if written is None:
            raise RecordRefused(Reason.MISSING_TIMESTAMP, "neither timestamp nor originalTimestamp")
        time, moment = parse_moment(written, self._clock)
        properties = _surroundings(call.context)
        if type(call.context) is _CallContext and (
            call.context.group_id is not ABSENT or call.context.session_id is not None
        ):
            self._add_memberships(properties, call.context, call.anonymous_id, distinct_id)
        if call.request_ip is not ABSENT:
            _add(properties, "$ip", call.request_ip)
        if call.properties:
            properties |= call.properties
        event = self._event(call, user, properties)
        message = optional_text(call.message_id)
        # Many events would share an illegal key, and all but one of them be lost.
        keyed = message is not None and not is_shared_key(message)
        if keyed:
            key = natural_key("segment", message)
            return (ImportedEvent(event, distinct_id, time, "", properties, keyed, moment, key),)
        return (
            ImportedEvent(
                event,
                distinct_id,
                time,
                place_uuid("segment", block, index),
                properties,
                keyed,
                moment,
            ),
        )

    def _add_memberships(
        self, properties: dict[str, Any], context: _CallContext, anonymous: Raw, distinct_id: str
    ) -> None:
        """Add the group and the session of a call. A session is that of a device, so signing in
        doesn't end it.
        """
        group = optional_text(context.group_id)
        if group is not None and not is_blank(group) and not is_shared(group):
            properties["$groups"] = {self._group_type: group}
        start = context.session_id
        if type(start) is int:
            start *= 1000 if start < _IN_SECONDS else 1
            session = self._sessions.of(optional_text(anonymous) or distinct_id, start)
            if session is not None:
                properties["$session_id"] = session

    def _event(self, call: _SegmentCall, user: str, properties: dict[str, Any]) -> str:
        """The name of a call's event, after what its kind adds to the
        properties. Raises `RecordRefused`.
        """
        if call.type == "track":  # most are
            name = call.event
            if name is None or (type(name) is str and (not name or name.isspace())):
                raise RecordRefused(Reason.MISSING_EVENT, "a track call without event")
            if type(name) is not str:
                raise wrong_type(name, "event", "a text")
            return name
        # libraries write both into the properties too, but servers needn't
        if call.type in ("page", "screen"):
            _add(properties, "name", call.name)
            _add(properties, "category", call.category)
        match call.type:
            case "page":
                # Calls of servers have no page around them.
                for ours, theirs in zip(PAGE, _PageContext.__struct_fields__, strict=True):
                    _add(properties, ours, properties.get(theirs, ABSENT))
                return "$pageview"
            case "screen":
                _add(properties, "$screen_name", properties.get("name", ABSENT))
                if type(call.event) is str and call.event:  # RudderStack's name of a screen
                    properties.setdefault("$screen_name", call.event)
                return "$screen"
            case "identify":
                _add_traits(call, properties, "$set")
                anonymous = optional_text(call.anonymous_id) if user else None
                if anonymous is not None and not is_blank(anonymous) and anonymous != user:
                    properties["$anon_distinct_id"] = anonymous
                return "$identify" if user else "$set"
            case "group":
                properties["$group_type"] = self._group_type
                properties["$group_key"] = _needed_id(call.group_id, "groupId", "a group call")
                _add_traits(call, properties, "$group_set")
                return "$groupidentify"
        properties["alias"] = _needed_id(call.previous_id, "previousId", "an alias call")
        return "$create_alias"


def _needed_id(raw: Raw, name: str, who: str) -> str:
    text_id = optional_id(raw, name)
    if not text_id:
        raise RecordRefused(Reason.MISSING_DISTINCT_ID, f"{who} without {name}")
    return text_id


def _surroundings(context: _CallContext | _Custom) -> dict[str, Any]:
    """Value by value, most of them longer than `null`: a loop over them takes three
    times as long.
    """
    members: dict[str, Any] = {}
    if type(context) is not _CallContext:
        return members
    library = context.library
    page = context.page
    if len(raw := context.ip) > _NULL_LENGTH or _is_there(raw):
        members["$ip"] = raw
    if len(raw := context.user_agent) > _NULL_LENGTH or _is_there(raw):
        members["$raw_user_agent"] = raw
    if type(library) is _LibraryContext:
        if len(raw := library.name) > _NULL_LENGTH or _is_there(raw):
            members["$lib"] = raw
        if len(raw := library.version) > _NULL_LENGTH or _is_there(raw):
            members["$lib_version"] = raw
    if type(page) is _PageContext:
        if len(raw := page.url) > _NULL_LENGTH or _is_there(raw):
            members["$current_url"] = raw
        if len(raw := page.path) > _NULL_LENGTH or _is_there(raw):
            members["$pathname"] = raw
        if len(raw := page.referrer) > _NULL_LENGTH or _is_there(raw):
            members["$referrer"] = raw
        if len(raw := page.title) > _NULL_LENGTH or _is_there(raw):
            members["$title"] = raw
    if _details(context) != _NO_DETAILS:
        _add_details(members, context)
    return members


_DETAILS: Final = (
    *("os", "device", "screen", "app", "network", "campaign"),
    *("timezone", "locale", "traits"),
)
_details: Final = attrgetter(*_DETAILS)
_NO_DETAILS: Final = _details(_CallContext())


def _add_details(members: dict[str, Any], context: _CallContext) -> None:
    """Add what fewer calls have: system, device, screen, app, campaign, place and traits."""
    for part, names in (
        (context.os, OS),
        (context.device, DEVICE),
        (context.screen, SCREEN),
        (context.app, APP),
        (context.network, NETWORK),
    ):
        if part is not None and type(part) is dict:
            for theirs, ours in names.items():
                _add(members, ours, part.get(theirs, ABSENT))
    if context.campaign is not None and type(context.campaign) is dict:
        for theirs, raw in context.campaign.items():
            _add(members, "utm_campaign" if theirs == "name" else f"utm_{theirs}", raw)
    if context.timezone is not ABSENT:
        _add(members, "$timezone", context.timezone)
    if context.locale is not ABSENT:
        _add(members, "$locale", context.locale)
    if context.traits is not ABSENT and _is_filled(context.traits):
        members["$set"] = context.traits


def _is_filled(value: Raw) -> bool:
    """Whether a value is an object that has members."""
    return bytes(value)[:1] == b"{" and bytes(value)[1:].lstrip()[:1] != b"}"


def _is_there(raw: Raw) -> bool:
    """Whether there is a value, and it isn't null."""
    return len(raw) > _NULL_LENGTH or (len(raw) > 0 and bytes(raw) != _NULL)


def _add(properties: dict[str, Any], name: str, raw: Raw) -> None:
    if name not in properties and _is_there(raw):
        properties[name] = raw


def _add_traits(call: _SegmentCall, properties: dict[str, Any], name: str) -> None:
    if bytes(call.traits)[:1] == b"{":
        if _is_filled(call.traits) or name not in properties:
            properties[name] = call.traits
    elif _is_there(call.traits):
        raise RecordRefused(Reason.INVALID_EVENT, "traits are no object")


def _recognizes(members: Mapping[str, Raw]) -> bool:
    ids = {
        "messageId",
        "userId",
        "anonymousId",
        "originalTimestamp",
        "receivedAt",
        "previousId",
        "groupId",
    }
    return text_in(members, "type") in CALLS and not members.keys().isdisjoint(ids)


DESCRIPTION: Final = ImportFormat(
    name="segment",
    summary=(
        "Segment's and RudderStack's logs: JSON lines of track, page, screen, identify, group and "
        "alias calls."
    ),
    example="s3://logs/segment-logs/ --group-type company --store region=eu-central-1",
    options=SegmentExport,
    make=lambda export, given: SegmentConverter(export, given.clock),
    looks_like="Segment's logs",
    recognizes=_recognizes,
    times=lambda *_: ("timestamp", "originalTimestamp"),
    receipts=("receivedAt",),
)
