"""Amplitude's export: JSON lines in a ZIP of gzip files (wire facts: Migrations, "Amplitude
export").

A record is one event, and it may bring others before it: an `$identify` the first time that its
device is seen with a user, and a `$groupidentify` when it changes a group (`groups`). What the
event's own properties say wins over what is read from the record's other fields. An `$identify`
without a user sets properties of its device's person and identifies no one: it becomes a `$set`.

The names are those of the service's own importer (PostHog/posthog,
`rust/batch-import-worker/src/parse/content/amplitude.rs`, b94a0e3), with these differences: an
operating system isn't made a browser, the page's address keeps its query string, and sessions get
an id that the service groups by (PostHog/posthog#48172, #85739). Operations on user properties
are those of Amplitude's Identify API (amplitude.com/docs/apis/analytics/identify).

Those first times are state over the source: they follow from the records before, in the source's
order, whatever became of those afterwards (filters of names, repeats); records from before `since`
and from `until` on aren't among them, for what they bring is left out with them. So an import that
is resumed converts its source from the start with a new `AmplitudeConverter`, and passes over what
it has delivered. What is remembered is bounded. A device that was forgotten gets a second
`$identify`, which changes nothing for the service: time and uuid are of that later record, so it is
never the same uuid at another time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Raw, Struct, to_builtins
from msgspec.structs import astuple, fields

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock
from forwarder.sources.imports.first_seen import FirstSeenKeys
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    NoOptions,
    RecordConverter,
    RecordRefused,
    natural_key,
    place_uuid,
)
from forwarder.sources.imports.groups import GroupStates
from forwarder.sources.imports.sessions import session_id
from forwarder.sources.imports.times import AFTER_LAST, parse_moment
from forwarder.sources.imports.values import (
    decode_record,
    first_time,
    is_blank,
    is_shared,
    items,
    nested,
    text_or_number,
    wrong_type,
)
from forwarder.wire.identity import ABSENT

DROPPED_EVENTS: Final = frozenset({"session_start", "session_end"})
EVENT_NAMES: Final = {
    "[Amplitude] Page Viewed": "$pageview",
    "[Amplitude] Element Clicked": "$autocapture",
    "[Amplitude] Element Changed": "$autocapture",
}
PAGE: Final = {
    "[Amplitude] Page Location": "$current_url",
    "[Amplitude] Page URL": "$current_url",
    "[Amplitude] Page Domain": "$host",
    "[Amplitude] Page Path": "$pathname",
    "[Amplitude] Viewport Width": "$viewport_width",
    "[Amplitude] Viewport Height": "$viewport_height",
}
"""Event properties that get another name, unless there is one with that name already. A location
has the query string, which a URL lacks.
"""
COPIED: Final = {"referrer": "$referrer", "referring_domain": "$referring_domain"}
"""Event properties that get another name too: they may be the customer's own."""
_LOCATION: Final = "[Amplitude] Page Location"
_OF_PAGE: Final = {theirs: (ours, theirs in COPIED) for theirs, ours in {**PAGE, **COPIED}.items()}
"""All of them: their other name, and whether they keep theirs too."""
_is_of_page: Final = _OF_PAGE.__contains__
RENAMED: Final = {
    "event_id": "$amplitude_event_id",
    "session_id": "$amplitude_session_id",
    "ip_address": "$ip",
    "city": "$geoip_city_name",
    "region": "$geoip_subdivision_1_name",
    "country": "$geoip_country_name",
}
"""Fields of the record that become properties."""
PLACE: Final = ("$geoip_city_name", "$geoip_subdivision_1_name", "$geoip_country_name")
"""What a person has too: the service sets it from the address of live events."""
KEPT: Final = {
    name: f"amplitude_{name.removeprefix('amplitude_')}"
    for name in (
        *(
            "amplitude_id",
            "insert_id",
            "platform",
            "language",
            "version_name",
            "start_version",
            "library",
        ),
        *(
            "device_family",
            "device_brand",
            "device_manufacturer",
            "device_model",
            "device_carrier",
            "dma",
            "location_lat",
            "location_lng",
        ),
        *("adid", "idfa", "paying", "user_creation_time"),
    )
}
"""Fields that the service has no name for, and that say something of the event or its person."""
INITIAL: Final = {
    name: f"${name}"
    for name in (
        *("initial_referrer", "initial_referring_domain"),
        *(
            f"initial_{name}"
            for name in (
                *("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", "utm_id"),
                *("dclid", "fbclid", "gbraid", "gclid", "li_fat_id", "msclkid", "ttclid"),
                *("twclid", "wbraid"),
            )
        ),
    )
}
"""User properties of a person's first visit, which are set only once."""
EMPTY: Final = "EMPTY"
"""What Amplitude's browser SDK writes into those for no value."""
SET: Final = "$set"
SET_ONCE: Final = "$setOnce"
UNSET: Final = "$unset"
OTHER_OPERATIONS: Final = frozenset(
    {
        *("$add", "$append", "$prepend", "$preInsert", "$postInsert", "$remove"),
        "$clearAll",
    }
)
"""They change a value that the export doesn't have: they stay with the event alone."""
_OPERATORS: Final = frozenset({SET, SET_ONCE, UNSET, *OTHER_OPERATIONS})
OPERATIONS: Final = "amplitude_user_property_operations"
"""The event's property for them."""
_has_meaning: Final = re.compile(rb'"(?:initial_|\$)').search
"""Whether user properties may hold names that have a meaning: else they become `$set` as they are.
"""
_SYSTEMS: Final = {
    "ios": "iOS",
    "ipados": "iPadOS",
    "tvos": "tvOS",
    "watchos": "watchOS",
    "android": "Android",
    "windows": "Windows",
    "linux": "Linux",
    "ubuntu": "Ubuntu",
    "mac os": "Mac OS X",
    "mac os x": "Mac OS X",
    "macos": "Mac OS X",
    "chrome os": "Chrome OS",
}
"""Operating systems, which stand where those of sites have their browsers."""
_DEVICE_TYPES: Final = {
    **dict.fromkeys(("windows", "linux", "ubuntu", "mac", "macintosh", "chrome os"), "Desktop"),
    **dict.fromkeys(("mac os", "mac os x", "macos"), "Desktop"),
    **dict.fromkeys(("ios", "android"), "Mobile"),
    "ipados": "Tablet",
}
_is_whole: Final = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII).fullmatch
"""Of a browser's version, as a number that a double holds."""
_APPLE: Final = re.compile("(?:apple )?i(?:phone|pod|(pad))", re.IGNORECASE)
_VERSION_BEHIND: Final = re.compile(r" [\d.]+\Z")
_IDENTIFY: Final = "$identify"
_GROUP_IDENTIFY: Final = "$groupidentify"
_is_uuid: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
).fullmatch
_NIL: Final = frozenset({"00000000-0000-0000-0000-000000000000"})
_encode: Final = msgspec.json.Encoder().encode


class _AmplitudeRecord(Struct, gc=False):
    """The fields that are read, beside those of `RENAMED` and `KEPT`. What else a record has is
    Amplitude's own notes of receipt.
    """

    event_type: str | None = None
    user_id: Any = None
    device_id: Any = None
    uuid: Any = None
    event_time: Any = None
    client_event_time: Any = None
    server_received_time: Any = None
    event_properties: dict[str, Raw] | None = None
    user_properties: Raw = ABSENT
    groups: dict[str, Raw] | None = None
    group_properties: Raw = ABSENT
    os_name: Any = None
    os_version: Any = None
    device_type: Any = None
    platform: Any = None
    device_family: Any = None
    session_id: Any = None


_TIMES: Final = ("event_time", "client_event_time", "server_received_time")
_READ: Final = ("platform", "device_family", "session_id")
"""Fields of `_AmplitudeRecord` that are copied, too."""
_COPIED: Final = (*_READ, *(name for name in (*RENAMED, *KEPT) if name not in _READ))
_TARGETS: Final = tuple((RENAMED | KEPT)[name] for name in _COPIED)
_INSERT_ID: Final = {"insert_id": "$insert_id"}
_FIELDS: Final = sorted(
    [
        *((field.name, field.type, field.default) for field in fields(_AmplitudeRecord)),
        *((name, Any, None) for name in _COPIED if name not in _READ),
    ],
    key=lambda field: _INSERT_ID.get(field[0], field[0]),
)
"""By name, as exports have them: the decoder looks for each one behind the last."""
_WholeRecord: Final = cast(
    "type[_AmplitudeRecord]",
    msgspec.defstruct("_WholeRecord", _FIELDS, rename=_INSERT_ID, gc=False),
)
_copied: Final = itemgetter(*([name for name, *_ in _FIELDS].index(name) for name in _COPIED))
_decode: Final = msgspec.json.Decoder(_WholeRecord).decode
_Copied: Final = msgspec.defstruct(
    "_Copied",
    [
        (f"field{at}", Any, msgspec.field(default=None, name=name))
        for at, name in enumerate(_TARGETS)
    ],
    omit_defaults=True,
    gc=False,
)
"""The fields of `RENAMED` and `KEPT` under their new names, without those that are null."""


_SENDERS: Final = 2048
_LONGEST_IDS: Final = 200
"""Characters of a sender's ids: of longer ones none is remembered."""
_software_of: Final = attrgetter(
    "platform", "os_name", "os_version", "device_type", "device_family"
)


class _Sender(Struct, gc=False):
    """A device with its user, and what its last record said: the next one mostly says the same."""

    user: str
    """Empty: there is none."""
    device: str
    is_paired: bool
    """Whether there is no pair that could be new."""
    software: tuple[Any, ...] = ()
    properties: dict[str, Any] = {}
    """Of its ids and its software."""
    session: int = 0
    session_id: str | None = None

    def read_software(self, software: tuple[Any, ...]) -> None:
        """Its next record says something else of browser, system and device."""
        self.software = software
        try:
            self.properties = dict(_software(*software))
        except TypeError:  # a list or an object says nothing
            self.properties = {}
        if self.user:
            self.properties["$amplitude_user_id"] = self.user
        if self.device:
            self.properties["$amplitude_device_id"] = self.device
            self.properties["$device_id"] = self.device

    def begin_session(self, start: int) -> None:
        """Its next record is of another session. Sessions are those of a device: signing in doesn't
        end them.
        """
        self.session = start
        self.session_id = session_id(self.device or self.user, start)


class AmplitudeConverter(RecordConverter[_AmplitudeRecord]):
    """The format at work on one source, from its start and in its order.

    Times without a zone are what `clock` shows (None: UTC). Records from before `since`
    (microseconds), and from `until` on, are left out, so they bring nothing. So many devices of
    users are `remembered` at least, at most twice that: 20 MB; and groups in as much memory
    (`groups`).

    `persons`: whether persons get properties; if not, user properties aren't read.
    """

    def __init__(
        self,
        clock: tzinfo | None = None,
        since: int | None = None,
        until: int | None = None,
        remembered: int = 200_000,
        *,
        persons: bool = True,
    ) -> None:
        super().__init__(_decode, partial(decode_record, decode=_decode))
        self._clock = clock
        self._since = 0 if since is None else since
        self._until = AFTER_LAST if until is None else until
        self._persons = persons
        self._first_times = FirstSeenKeys(remembered)
        self._most_senders = min(_SENDERS, remembered)
        """No more than devices, so that none of theirs is forgotten before."""
        self._senders: dict[tuple[str | None, str | None], _Sender] = {}
        """By the two ids as they are written. When there are too many, all are forgotten."""
        self._groups = GroupStates()

    def events_of(
        self, record: _AmplitudeRecord, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one record, after those that it brings; none of a session's start and end.
        Raises `RecordRefused`, and then remembers nothing.
        """
        name = record.event_type
        if not name or name.isspace():
            raise RecordRefused(Reason.MISSING_EVENT, "there is no event_type, or a blank one")
        if name in DROPPED_EVENTS:
            return ()
        try:
            sender = self._senders.get((record.user_id, record.device_id))
        except TypeError:  # a list or an object is no id
            sender = None
        if sender is None:
            sender = self._read_sender(record, block, index)
        time, moment = parse_moment(_time_of(record), self._clock)
        groups = [*_groups(record)] if record.groups else []
        if name == _GROUP_IDENTIFY and not groups:
            raise RecordRefused(Reason.UNMAPPABLE, f"{name} without groups")
        properties = _properties(record, sender)
        if record.user_properties:
            _add_person(properties, record.user_properties)
        if self._persons:
            _translate_person(properties)
        if groups:
            # Of several groups of one type, the first counts.
            properties["$groups"] = {group.kind: group.name for group in reversed(groups)}
        own = record.uuid.lower() if isinstance(record.uuid, str) else ""
        keyed = _is_uuid(own) is not None and own not in _NIL
        uuid = own if keyed else place_uuid("amplitude", block, index)
        if name == _IDENTIFY and not sender.user:
            name = "$set"
        event = ImportedEvent(
            EVENT_NAMES.get(name, name),
            sender.user or sender.device,
            time,
            uuid,
            properties,
            keyed,
            moment,
        )
        if (sender.is_paired and not groups) or not self._since <= time < self._until:
            return () if name == _GROUP_IDENTIFY else (event,)
        events = self._brought(event, sender, groups)
        if name != _GROUP_IDENTIFY:  # Amplitude's own is about its groups alone
            events.append(event)
        return events

    def _read_sender(self, record: _AmplitudeRecord, block: RecordBlock, index: int) -> _Sender:
        """Read a record's ids. Raises `RecordRefused`."""
        user, device = record.user_id, record.device_id
        if not (user is None or type(user) is str):
            user = _digits(user, "user_id", block.records[index])
        has_user = not is_blank(user)
        if not (device is None or type(device) is str):
            try:
                device = _digits(device, "device_id", block.records[index])
            except RecordRefused:
                if not has_user:
                    raise
                device = None
        if not has_user and is_blank(device):
            raise RecordRefused(Reason.MISSING_DISTINCT_ID, "neither user_id nor device_id")
        sender = _Sender(
            user if has_user else "",
            device or "",
            is_paired=not (has_user and device and device != user),
        )
        if (
            user is record.user_id  # not numbers, such as 1 and 1.0
            and device is record.device_id
            and len(sender.user) + len(sender.device) <= _LONGEST_IDS
        ):
            if len(self._senders) >= self._most_senders:
                self._senders.clear()
            self._senders[user, device] = sender
        return sender

    def _brought(
        self, event: ImportedEvent, sender: _Sender, groups: Sequence[_Group]
    ) -> list[ImportedEvent]:
        """The events that a record's own brings, which come before it."""
        events = []
        if not sender.is_paired:
            sender.is_paired = True
            user, device = sender.user, sender.device
            shared = is_shared(device) or is_shared(user)  # one of these takes no device
            if not shared and self._first_times.is_new_device(device):
                events.append(_before(event, _IDENTIFY, {"$anon_distinct_id": device}))
        for group in groups:
            change = self._groups.change(group.kind, group.name, event.time, group.properties)
            if group.gone:
                self._groups.forget(group.kind, group.name)
            elif change is None:
                continue
            about: dict[str, Any] = {"$group_type": group.kind, "$group_key": group.name}
            if change is not None and bytes(change):
                about["$group_set"] = change
            if group.gone:
                about["$group_unset"] = group.gone
            events.append(_before(event, _GROUP_IDENTIFY, about, group.kind, group.name))
        return events


def _before(
    event: ImportedEvent, name: str, properties: dict[str, Any], *about: str
) -> ImportedEvent:
    """An event that another one brings: of its person and at its time."""
    key = natural_key("amplitude", event.uuid, name, *about)
    return ImportedEvent(
        name, event.distinct_id, event.time, "", properties, event.keyed, event.moment, key
    )


def _time_of(record: _AmplitudeRecord) -> str | int | float:
    written = record.event_time  # most have it
    if written and type(written) is str:
        return written
    moment = first_time(
        *((name, None if (said := getattr(record, name)) == 0 else said) for name in _TIMES)
    )
    if moment is None:
        raise RecordRefused(
            Reason.MISSING_TIMESTAMP,
            "neither event_time nor client_event_time nor server_received_time",
        )
    return moment


class _Ids(Struct, gc=False):
    """Ids as they are written."""

    user_id: Raw = ABSENT
    device_id: Raw = ABSENT


_decode_ids: Final = msgspec.json.Decoder(_Ids).decode


def _digits(value: Any, name: str, record: bytes) -> str:
    """An id that isn't a text: a number as it is written. Raises `RecordRefused`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, name, "a text or a number")
    return text_or_number(getattr(_decode_ids(record), name), name) or ""


class _Group(NamedTuple):
    """A group of a record."""

    kind: str
    name: str
    properties: Raw | None
    """If the record has any."""
    gone: Sequence[str] = ()
    """Properties that are removed."""


def _properties(record: _AmplitudeRecord, sender: _Sender) -> dict[str, Any]:
    """The properties of a record's event, but for its groups and what is about persons."""
    # a loop over the fields takes longer
    properties: dict[str, Any] = to_builtins(_Copied(*_copied(astuple(record))))
    if "" in properties.values():
        properties = {ours: value for ours, value in properties.items() if value != ""}
    if (software := _software_of(record)) != sender.software:
        sender.read_software(software)
    properties |= sender.properties
    if type(session := record.session_id) is int:
        if session != sender.session:
            sender.begin_session(session)
        if sender.session_id is not None:
            properties["$session_id"] = sender.session_id
    if own := record.event_properties:
        if page := [*filter(_is_of_page, own)]:
            _rename_page(own, page)
        properties |= own
    return properties


@lru_cache(maxsize=4096)
def _software(
    platform: object, os_name: object, os_version: object, device_type: object, family: object
) -> dict[str, Any]:
    """What a record's fields say of browser, system and device. The same few values come
    together again and again. Not to be changed.
    """
    software: dict[str, Any] = {}
    named = _SYSTEMS.get(_VERSION_BEHIND.sub("", _folded(os_name)))
    app = named or (None if os_name else _SYSTEMS.get(_folded(platform)))
    version = os_version if isinstance(os_version, str) else ""
    apple = _APPLE.match(device_type) if isinstance(device_type, str) else None
    if app:
        software["$os"] = app
        if version:
            software["$os_version"] = version
    else:
        if os_name and isinstance(os_name, str):
            software["$browser"] = os_name
        if version:
            number = _is_whole(version) is not None
            software["$browser_version"] = int(version) if number else version
        if apple:
            software["$os"] = "iOS"
        elif device_type and isinstance(device_type, str):
            software["$os"] = device_type
    if device_type and isinstance(device_type, str) and software.get("$os") != device_type:
        software["amplitude_device_type"] = device_type
    for text in (device_type, family, platform):
        matched = _APPLE.match(text) if isinstance(text, str) else None
        kind = (
            ("Tablet" if matched[1] else "Mobile") if matched else _DEVICE_TYPES.get(_folded(text))
        )
        if kind:
            software["$device_type"] = kind
            break
    return software


def _folded(value: object) -> str:
    return value.strip().lower() if isinstance(value, str) else ""


def _rename_page(own: dict[str, Raw], page: Sequence[str]) -> None:
    """Give the properties of `page` the service's names."""
    if _LOCATION in own and _is_text(own[_LOCATION]):
        own.setdefault("$current_url", own.pop(_LOCATION))
    for theirs in page:
        ours, stays = _OF_PAGE[theirs]
        if ours not in own and theirs != _LOCATION:
            own[ours] = own[theirs] if stays else own.pop(theirs)


def _is_text(value: Raw) -> bool:
    """Whether a value is a text that isn't empty."""
    return len(value) > len(b'""') and bytes(value)[:1] == b'"'


def _add_person(properties: dict[str, Any], fields: Raw) -> None:
    """Add user properties as they are. Raises `RecordRefused`."""
    start = bytes(fields)[:2]
    if start != b"{}" if start[:1] == b"{" else nested(fields, "user_properties"):
        properties["$set"] = fields


def _translate_person(properties: dict[str, Any]) -> None:
    """Turn user properties, which are in `$set`, into what the service understands, and add the
    place.
    """
    fields: Raw = properties.pop("$set", ABSENT)
    place = {name: properties[name] for name in PLACE if name in properties}
    if _has_meaning(fields):
        person, once, gone, others = _operations(nested(fields, "user_properties"))
        if once:
            properties["$set_once"] = once
        if gone:
            properties["$unset"] = gone
        if others:
            properties[OPERATIONS] = others
        if place or person:
            properties["$set"] = {**place, **person}
    elif not place:
        if fields:
            properties["$set"] = fields
    elif fields and bytes(fields)[1:-1].strip():
        properties["$set"] = Raw(b"%b,%b" % (_encode(place)[:-1], bytes(fields).lstrip()[1:]))
    else:
        properties["$set"] = place


def _operations(
    fields: dict[str, Raw],
) -> tuple[dict[str, Raw], dict[str, Raw], list[str], dict[str, Raw]]:
    """What user properties set, set once, remove, and change in another way."""
    once: dict[str, Raw] = {}
    gone: list[str] = []
    others: dict[str, Raw] = {}
    person = {}
    for name, value in fields.items():
        if name == SET:
            person.update(nested(value, name))
        elif name == SET_ONCE:
            once.update(nested(value, name))
        elif name == UNSET:
            gone += nested(value, name)
        elif name in OTHER_OPERATIONS:
            others[name] = value
        else:
            person[name] = value
    for part in (person, once):
        for theirs in [*filter(INITIAL.__contains__, part)]:
            value = part.pop(theirs)
            if bytes(value) != _EMPTY:
                once.setdefault(INITIAL[theirs], value)
    return person, once, gone, others


_EMPTY: Final = _encode(EMPTY)


def _groups(record: _AmplitudeRecord) -> Iterator[_Group]:
    """The groups of a record, each type with one name or a list of them; blank ones are none.
    Raises `RecordRefused`.
    """
    said = nested(record.group_properties, "group_properties")
    for kind, names in (record.groups or {}).items():
        of_kind = nested(said.get(kind), kind)
        for item in items(names, kind) if bytes(names)[:1] == b"[" else [names]:
            name = text_or_number(item, kind)
            if name is not None and not is_blank(name):
                value = of_kind.get(name)
                about = (
                    nested(value, name)
                    if value is not None and bytes(value)[:1] == b"{"
                    else of_kind
                )
                gone: list[str] = []
                if not _OPERATORS.isdisjoint(about):
                    about, once, gone, _ = _operations(about)
                    about = once | about
                yield _Group(kind, name, Raw(_encode(about)) if about else None, gone)


def _recognizes(members: Mapping[str, Raw]) -> bool:
    return "event_type" in members and not members.keys().isdisjoint(
        {"user_id", "device_id", "amplitude_id", "event_time", "$insert_id"}
    )


DESCRIPTION: Final = ImportFormat(
    name="amplitude",
    summary="Amplitude's export, as it was downloaded: a ZIP of gzip files, or what is in it.",
    example="export.zip --dry-run",
    options=NoOptions,
    make=lambda _, given: AmplitudeConverter(
        given.clock, given.since, given.until, persons=given.person_properties != "none"
    ),
    looks_like="Amplitude's export",
    recognizes=_recognizes,
    times=lambda *_: _TIMES,
    receipts=("server_upload_time", "server_received_time"),
    zone_said=lambda *_: True,  # Amplitude writes UTC
)
