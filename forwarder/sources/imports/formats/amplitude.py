"""Amplitude's export: JSON lines in a ZIP of gzip files (wire facts: Migrations, "Amplitude
export").

A record is one event, and it may bring others before it: an `$identify` the first time that its
user is seen with its device, and a `$groupidentify` the first time that a group is seen with its
properties. What the event's own properties say wins over what is read from the record's other
fields.

Those first times are state over the source: they follow from the records before, in the source's
order, whatever became of those afterwards (filters of names, repeats); records from before `since`
aren't among them, for what they bring is left out with them. So an import that is resumed converts
its source from the start with a new `AmplitudeConverter`, and passes over what it has delivered.
What is remembered is bounded. A pair that was forgotten gets a second `$identify`, which changes
nothing for the service: time and uuid are of that later record, so it is never the same uuid at
another time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import partial
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct, to_builtins
from msgspec.structs import astuple

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    NoOptions,
    RecordConverter,
    RecordRefused,
    RefusalReason,
    natural_key,
    place_uuid,
)
from forwarder.sources.imports.times import parse_moment
from forwarder.sources.imports.values import (
    check_id,
    checked_id,
    decode_record,
    first_time,
    is_blank,
    is_illegal,
    items,
    nested,
    optional_text,
    text_or_number,
)
from forwarder.wire.identity import ABSENT

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
_PAGE: Final = (*PAGE.items(),)
RENAMED: Final = {
    "os_name": "$browser",
    "os_version": "$browser_version",
    "device_type": "$os",
    "ip_address": "$ip",
    "city": "$geoip_city_name",
    "region": "$geoip_subdivision_1_name",
    "country": "$geoip_country_name",
}
"""Fields of the record that become properties."""
KEPT: Final = {
    name: f"amplitude_{name.removeprefix('amplitude_')}"
    for name in (
        *(
            "amplitude_id",
            "session_id",
            "event_id",
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
_IDENTIFY: Final = "$identify"
_GROUP_IDENTIFY: Final = "$groupidentify"
_is_uuid: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
).fullmatch
_NIL: Final = frozenset({"00000000-0000-0000-0000-000000000000"})
_encode: Final = msgspec.json.Encoder().encode
_DIGEST_BYTES: Final = 12
"""Two of a million keys have one digest once in a hundred million billion times."""


class _AmplitudeRecord(Struct, gc=False):
    """The fields that are read, before those of `RENAMED` and `KEPT`. What else a record has is
    Amplitude's own notes of receipt.
    """

    event_type: str | None = None
    user_id: Raw = ABSENT
    device_id: Raw = ABSENT
    uuid: Any = None
    event_time: Any = None
    client_event_time: Any = None
    server_received_time: Any = None
    event_properties: dict[str, Raw] | None = None
    user_properties: Raw = ABSENT
    groups: dict[str, Raw] | None = None
    group_properties: Raw = ABSENT


_TIMES: Final = ("event_time", "client_event_time", "server_received_time")
_COPIED: Final = slice(len(_AmplitudeRecord.__struct_fields__), None)
_TARGETS: Final = (*RENAMED.values(), *KEPT.values())
_WholeRecord: Final = cast(
    "type[_AmplitudeRecord]",
    msgspec.defstruct(
        "_WholeRecord",
        [(name, Any, None) for name in (*RENAMED, *KEPT)],
        bases=(_AmplitudeRecord,),
        rename={"insert_id": "$insert_id"},
        gc=False,
    ),
)
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


class AmplitudeConverter(RecordConverter[_AmplitudeRecord]):
    """The format at work on one source, from its start and in its order.

    Times without a zone are what `clock` shows (None: UTC). Records from before `since`
    (microseconds) are left out, so they bring nothing. So many pairs of device and user, and of
    groups and their properties, are `remembered` at least: 20 MB, at most twice that.
    """

    def __init__(
        self, clock: tzinfo | None = None, since: int | None = None, remembered: int = 200_000
    ) -> None:
        super().__init__(_decode, partial(decode_record, decode=_decode))
        self._clock = clock
        self._since = since
        self._first_times = FirstSeenKeys(remembered)

    def events_of(
        self, record: _AmplitudeRecord, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one record, after those that it brings; none of a session's start. Raises
        `RecordRefused`, and then remembers nothing.
        """
        name = record.event_type
        if not name or name.isspace():
            raise RecordRefused(RefusalReason.NO_EVENT, "there is no event_type, or a blank one")
        if name in DROPPED_EVENTS:
            return ()
        user = checked_id(record.user_id, "user_id")
        device = (
            optional_text(record.device_id)
            if user
            else text_or_number(record.device_id, "device_id")
        ) or ""
        if not user and is_blank(device):
            raise RecordRefused(RefusalReason.NO_ID, "neither user_id nor device_id")
        distinct_id = user or check_id(device)
        written = record.event_time  # most have it
        if not written or type(written) is not str:
            written = first_time(
                *((name, None if (said := getattr(record, name)) == 0 else said) for name in _TIMES)
            )
        if written is None:
            raise RecordRefused(
                RefusalReason.NO_TIME,
                "neither event_time nor client_event_time nor server_received_time",
            )
        time, moment = parse_moment(written, self._clock)
        groups = [*_groups(record)] if record.groups else []
        if name == _GROUP_IDENTIFY and not groups:
            raise RecordRefused(RefusalReason.UNMAPPABLE, f"{name} without groups")
        properties = _properties(record, device, groups)
        own = record.uuid.lower() if isinstance(record.uuid, str) else ""
        keyed = _is_uuid(own) is not None and own not in _NIL
        uuid = own if keyed else place_uuid("amplitude", block, index)
        events = []
        if self._since is None or time >= self._since:
            if (
                user
                and device
                and device != user
                and self._first_times.is_new_pair(user, device)
                and not is_illegal(device)
            ):
                key = natural_key("amplitude", uuid, _IDENTIFY)
                events.append(
                    ImportedEvent(
                        _IDENTIFY,
                        distinct_id,
                        time,
                        "",
                        {"$anon_distinct_id": device},
                        keyed,
                        moment,
                        key,
                    )
                )
            if groups:
                for about, its in self._brought(groups):
                    key = natural_key("amplitude", uuid, _GROUP_IDENTIFY, *about)
                    events.append(
                        ImportedEvent(
                            _GROUP_IDENTIFY, distinct_id, time, "", its, keyed, moment, key
                        )
                    )
        if name != _GROUP_IDENTIFY:  # Amplitude's own is about its groups alone
            events.append(
                ImportedEvent(
                    EVENT_NAMES.get(name, name), distinct_id, time, uuid, properties, keyed, moment
                )
            )
        return events

    def _brought(self, groups: list[_Group]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        """Of the groups of which the record is the first to say what it says: which each is, and
        the properties of its event.
        """
        for group in groups:
            kind, name, said = group
            if self._first_times.is_new(_encode(group)):  # never equal to the key of a pair
                about: dict[str, Any] = {"$group_type": kind, "$group_key": name}
                yield (kind, name), about if said is None else about | {"$group_set": said}


_Group = tuple[str, str, Raw | None]
"""Its type, its name, and its properties, if the record has any."""


def _properties(record: _AmplitudeRecord, device: str, groups: list[_Group]) -> dict[str, Any]:
    # a loop over the fields takes longer
    properties: dict[str, Any] = to_builtins(_Copied(*astuple(record)[_COPIED]))
    if "" in properties.values():
        properties = {ours: value for ours, value in properties.items() if value != ""}
    if device:
        properties["$device_id"] = device
    if own := record.event_properties:
        for theirs, ours in _PAGE:
            if theirs in own and ours not in own:
                own[ours] = own.pop(theirs)
        properties |= own
    if persons := record.user_properties:
        start = bytes(persons)[:2]
        # an object is kept as it is, unread
        if start != b"{}" if start[:1] == b"{" else nested(persons, "user_properties"):
            properties["$set"] = persons
    if groups:
        # Of several groups of one type, the first counts.
        properties["$groups"] = {kind: name for kind, name, _ in reversed(groups)}
    return properties


def _groups(record: _AmplitudeRecord) -> Iterator[_Group]:
    """The groups of a record, each type with one name or a list of them; blank ones are none.
    Raises `RecordRefused`.
    """
    said = nested(record.group_properties, "group_properties")
    for kind, names in (record.groups or {}).items():
        of_kind = nested(said.get(kind), kind)
        for each in items(names, kind) if bytes(names)[:1] == b"[" else [names]:
            name = text_or_number(each, kind)
            if name is not None and not is_blank(name):
                found = of_kind.get(name)
                about = (
                    nested(found, name)
                    if found is not None and bytes(found)[:1] == b"{"
                    else of_kind
                )
                yield kind, name, Raw(_encode(about)) if about else None


class FirstSeenKeys:
    """Remembers the last `remembered` keys at least, and twice as many at most: about 100 bytes
    each, however long they are.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._recent = set[bytes]()
        self._older = set[bytes]()
        self._last = b""
        self._user = ""
        self._device = ""
        self._pair_key = b"-"
        """The last pair."""

    def is_new_pair(self, user: str, device: str) -> bool:
        """The same of a user with a device."""
        if self._last is self._pair_key and user == self._user and device == self._device:
            return False
        self._user = user
        self._device = device
        self._pair_key = f"{len(user)} {user}{device}".encode()
        return self.is_new(self._pair_key)

    def is_new(self, key: bytes) -> bool:
        """Whether a key wasn't seen before, or was forgotten; it is remembered from now on."""
        if key == self._last:
            # neighbouring records share their keys; it is in `_recent`, so this changes nothing
            return False
        self._last = key
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if digest in self._recent:
            return False
        known = digest in self._older
        if len(self._recent) == self._remembered:
            self._older = self._recent
            self._recent = set()
        self._recent.add(digest)
        return not known


def _recognizes(members: Mapping[str, Raw]) -> bool:
    return "event_type" in members and not members.keys().isdisjoint(
        {"user_id", "device_id", "amplitude_id", "event_time", "$insert_id"}
    )


DESCRIPTION: Final = ImportFormat(
    name="amplitude",
    summary="Amplitude's export, as it was downloaded: a ZIP of gzip files, or what is in it.",
    example="export.zip --dry-run",
    options=NoOptions,
    make=lambda _, given: AmplitudeConverter(given.clock, given.since),
    looks_like="Amplitude's export",
    recognizes=_recognizes,
    times=lambda *_: _TIMES,
    zone_said=lambda *_: True,  # Amplitude writes UTC
)
