"""Amplitude's export: JSON lines in a ZIP of gzip files (wire facts: Migrations, "Amplitude export").

A record is one event, and it may bring others before it: an `$identify` the first time that its user is seen with its device, and a
`$groupidentify` the first time that a group is seen with its properties. What the event's own properties say wins over what is read from
the record's other fields.

Those first times are state over the source: they follow from the records before, in the source's order, whatever became of those afterwards
(filters of names, repeats); records from before `since` aren't among them, for what they bring is left out with them. So an import that is
resumed converts its source from the start with a new `AmplitudeConverter`, and passes over what it has delivered. What is remembered is
bounded. A pair that was forgotten gets a second `$identify`, which changes nothing for the service: time and uuid are of that later record,
so it is never the same uuid at another time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import astuple

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    RefusalReason,
    key_uuid,
    place_uuid,
)
from forwarder.sources.imports.times import parse_time
from forwarder.sources.imports.values import check_id, is_blank, is_illegal, items, nested, text_or_number_of, written

FORMAT: Final = "amplitude"
DROPPED_EVENTS: Final = frozenset({"session_start"})
EVENT_NAMES: Final = {
    "[Amplitude] Page Viewed": "$pageview",
    "[Amplitude] Element Clicked": "$autocapture",
    "[Amplitude] Element Changed": "$autocapture",
}
PAGE: Final = {
    "[Amplitude] Page URL": "$current_url",
    "[Amplitude] Page Domain": "$host",
    "[Amplitude] Page Path": "$pathname",
}
"""Event properties that get another name, unless there is one with that name already."""
_PAGE: Final = tuple(PAGE.items())
_NULL: Final = Raw(b"null")
RENAMED: Final = {
    "os_name": "$browser",
    "os_version": "$browser_version",
    "device_type": "$os",
    "ip_address": "$ip",
    "city": "$geoip_city_name",
    "region": "$geoip_subdivision_1_name",
    "country": "$geoip_country_name",
}
"""Fields of the record that become properties: the first after those that are read in other ways."""
_FIRST_KEPT: Final = "amplitude_id"
_IDENTIFY: Final = "$identify"
_GROUP_IDENTIFY: Final = "$groupidentify"
_is_uuid: Final = re.compile(r"(?![0-]+$)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}").fullmatch
_encode: Final = msgspec.json.Encoder().encode
_DIGEST_BYTES: Final = 12
"""Two of a million keys have one digest once in a hundred million billion times."""


class _AmplitudeRecord(Struct, gc=False):
    """The fields that are read. What else a record has is Amplitude's own notes of receipt and project."""

    event_type: str | None = None
    user_id: Raw = _NULL
    device_id: Raw = _NULL
    uuid: Any = None
    event_time: str | int | float | None = None
    client_event_time: str | int | float | None = None
    server_received_time: str | int | float | None = None
    event_properties: dict[str, Raw] | None = None
    user_properties: Raw = _NULL
    groups: dict[str, Raw] | None = None
    group_properties: Raw = _NULL

    os_name: Any = None
    os_version: Any = None
    device_type: Any = None
    ip_address: Any = None
    city: Any = None
    region: Any = None
    country: Any = None

    amplitude_id: Any = None
    session_id: Any = None
    event_id: Any = None
    insert_id: Any = field(name="$insert_id", default=None)
    platform: Any = None
    language: Any = None
    version_name: Any = None
    start_version: Any = None
    library: Any = None
    device_family: Any = None
    device_brand: Any = None
    device_manufacturer: Any = None
    device_model: Any = None
    device_carrier: Any = None
    dma: Any = None
    location_lat: Any = None
    location_lng: Any = None
    adid: Any = None
    idfa: Any = None
    paying: Any = None
    user_creation_time: Any = None


_FIELDS: Final = _AmplitudeRecord.__struct_fields__


KEPT: Final = {name: f"amplitude_{name.removeprefix('amplitude_')}" for name in _FIELDS[_FIELDS.index(_FIRST_KEPT) :]}
"""Fields that the service has no name for, and that say something of the event or its person."""


_TARGETS: Final = (*RENAMED.values(), *KEPT.values())


_SOURCES: Final = slice(_FIELDS.index(next(iter(RENAMED))), None)
"""The fields of `RENAMED` and `KEPT` in a record, in their order: all fields at once are got faster than some."""


_decode: Final = msgspec.json.Decoder(_AmplitudeRecord).decode


@dataclass(frozen=True, slots=True)
class AmplitudeOptions:
    """What an export can't say by itself."""

    offset_minutes: int = 0
    """How far ahead of UTC the clock of times without a zone is; Amplitude writes UTC."""
    since: int | None = None
    """Microseconds since 1970: records from before are left out, so they bring nothing."""
    remembered: int = 200_000
    """How many pairs of device and user, and of groups and their properties, are remembered at least: 20 MB, at most twice that."""


class AmplitudeConverter(RecordConverter):
    """The format at work on one source, from its start and in its order."""

    def __init__(self, options: AmplitudeOptions | None = None) -> None:
        options = options or AmplitudeOptions()
        self._offset_minutes, self._since = options.offset_minutes, options.since
        self._first_times = FirstSeenKeys(options.remembered)

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The event of one record, after those that it brings; none of a session's start. Raises `RecordRefused`, and then remembers
        nothing."""
        record = _read(block.records[index])
        name = record.event_type
        if name is None or is_blank(name):
            raise RecordRefused(RefusalReason.NO_EVENT, "there is no event_type, or a blank one")
        if name in DROPPED_EVENTS:
            return ()
        user, device = _user(record), text_or_number_of(record.device_id, "device_id") or ""
        distinct_id = user or _device_as_person(device)
        time = self._time(record)
        groups = list(_groups(record)) if record.groups else []
        if name == _GROUP_IDENTIFY and not groups:
            raise RecordRefused(RefusalReason.UNMAPPABLE, f"{name} without groups")
        properties = _properties(record, device, groups)
        own = record.uuid.lower() if isinstance(record.uuid, str) else ""
        keyed = _is_uuid(own) is not None
        uuid = own if keyed else place_uuid(FORMAT, block, index)
        brings = self._brought(user, device, groups) if self._since is None or time >= self._since else ()
        if not brings and name != _GROUP_IDENTIFY:
            return (ImportedEvent(EVENT_NAMES.get(name, name), distinct_id, time, uuid, properties, keyed),)
        events = []
        for brought, about, its in brings:
            events.append(ImportedEvent(brought, distinct_id, time, key_uuid(FORMAT, uuid, brought, *about), its, keyed))
        if name != _GROUP_IDENTIFY:  # Amplitude's own is about its groups alone
            events.append(ImportedEvent(EVENT_NAMES.get(name, name), distinct_id, time, uuid, properties, keyed))
        return events

    def _time(self, record: _AmplitudeRecord) -> int:
        time = record.event_time or record.client_event_time or record.server_received_time
        if not time:
            raise RecordRefused(RefusalReason.NO_TIME, "neither event_time nor client_event_time nor server_received_time")
        return parse_time(time, self._offset_minutes)

    def _brought(self, user: str, device: str, groups: list[_Group]) -> list[_SideEvent]:
        """What the record is the first to say."""
        found: list[_SideEvent] = []
        if user and device and device != user:
            new = self._first_times.is_new(f"{len(user)} {user}{device}".encode())
            if new and not is_illegal(device):
                found.append(_SideEvent(_IDENTIFY, (), {"$anon_distinct_id": device}))
        if not groups:
            return found
        new_groups = (group for group in groups if self._first_times.is_new(group.key))
        found += [_SideEvent(_GROUP_IDENTIFY, (group.type, group.name), group.properties()) for group in new_groups]
        return found


class _SideEvent(NamedTuple):
    """An event that a record brings besides its own."""

    event: str
    about: tuple[str, ...]
    """What distinguishes it from others of that name and record."""
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Group:
    type: str
    name: str
    said: Raw | None
    """Its properties, if the record has any."""

    @property
    def key(self) -> bytes:
        """What distinguishes it, and what is said of it, from others; never equal to the key of a pair."""
        return _encode((self.type, self.name, self.said))

    def properties(self) -> dict[str, Any]:
        """Of its `$groupidentify`."""
        about: dict[str, Any] = {"$group_type": self.type, "$group_key": self.name}
        return about if self.said is None else about | {"$group_set": self.said}


def _read(text: bytes) -> _AmplitudeRecord:
    try:
        if not text.isascii():
            text.decode()
        return _decode(text)
    except msgspec.ValidationError as error:
        if text.lstrip()[:1] == b"{":
            raise RecordRefused(RefusalReason.WRONG_TYPE, str(error)) from error
        raise RecordRefused(RefusalReason.NOT_JSON, "the record isn't a JSON object") from error
    except (ValueError, RecursionError) as error:  # of msgspec and of UTF-8
        raise RecordRefused(RefusalReason.NOT_JSON, f"the record isn't a JSON object: {error}") from error


def _user(record: _AmplitudeRecord) -> str:
    """The user's id; empty if there is none, and the device stands for the person."""
    found = text_or_number_of(record.user_id, "user_id")
    return "" if found is None or is_blank(found) else check_id(found)


def _device_as_person(device: str) -> str:
    if is_blank(device):
        raise RecordRefused(RefusalReason.NO_ID, "neither user_id nor device_id")
    return check_id(device)


def _properties(record: _AmplitudeRecord, device: str, groups: list[_Group]) -> dict[str, Any]:
    found = zip(_TARGETS, astuple(record)[_SOURCES], strict=True)
    properties: dict[str, Any] = {ours: value for ours, value in found if value is not None and value != ""}
    if device:
        properties["$device_id"] = device
    own = record.event_properties
    if own:
        for theirs, ours in _PAGE:
            if theirs in own and ours not in own:
                own[ours] = own.pop(theirs)
        properties |= own
    if _has_members(record.user_properties, "user_properties"):
        properties["$set"] = record.user_properties
    if groups:
        properties["$groups"] = written({group.type: group.name for group in reversed(groups)})  # of several of one type, the first
    return properties


def _has_members(raw: Raw, name: str) -> bool:
    """Whether a value is an object with something in it, which isn't read. Raises `RecordRefused` (`WRONG_TYPE`) if it is anything else."""
    start = bytes(raw)[:2]
    return start != b"{}" if start[:1] == b"{" else bool(nested({name: raw}, name))


def _groups(record: _AmplitudeRecord) -> Iterator[_Group]:
    """The groups of a record, each type with one name or a list of them; blank ones are none."""
    groups = record.groups or {}
    said = nested({"group_properties": record.group_properties}, "group_properties")
    for kind, names in groups.items():
        of_kind = nested(said, kind)
        for name in _names(groups, kind, names):
            found = of_kind.get(name)
            about = nested(of_kind, name) if found is not None and bytes(found)[:1] == b"{" else of_kind
            yield _Group(kind, name, Raw(_encode(about)) if about else None)


def _names(groups: Mapping[str, Raw], kind: str, names: Raw) -> list[str]:
    """Names of groups of one type. Raises `RecordRefused` for what is neither a text nor a number."""
    listed = items(groups, kind) if bytes(names)[:1] == b"[" else [names]
    found = (text_or_number_of(name, kind) for name in listed)
    return [name for name in found if name is not None and not is_blank(name)]


class FirstSeenKeys:
    """Remembers the last `remembered` keys at least, and twice as many at most: about 100 bytes each, however long they are."""

    def __init__(self, remembered: int) -> None:
        if remembered < 1:
            raise ValueError(f"at least one key has to be remembered, not {remembered}")
        self._remembered = remembered
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()
        self._last: bytes | None = None

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._recent) + len(self._older)

    def is_new(self, key: bytes) -> bool:
        """Whether a key wasn't seen before, or was forgotten; it is remembered from now on."""
        if key == self._last:
            return False  # neighbouring records share their keys; it is in `_recent`, so this changes nothing
        self._last = key
        digest = hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if digest in self._recent:
            return False
        known = digest in self._older
        self._older.discard(digest)  # it moves, or it would count twice
        if len(self._recent) == self._remembered:
            self._older, self._recent = self._recent, set()
        self._recent.add(digest)
        return not known


DESCRIPTION: Final = ImportFormat(
    name="amplitude",
    summary="Amplitude's export, as it was downloaded: a ZIP of gzip files, or what is in it.",
    example="export.zip --dry-run",
    options=AmplitudeOptions,
    make=lambda options, given: AmplitudeConverter(replace(options, offset_minutes=given.minutes, since=given.since)),
    times=lambda *_: ("event_time", "client_event_time", "server_received_time"),
    zone_said=lambda *_: True,  # Amplitude writes UTC
)
