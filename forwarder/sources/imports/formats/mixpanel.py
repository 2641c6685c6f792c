"""Mixpanel's raw exports of events and of profiles, both JSON lines (wire facts: Migrations).

An event is `{"event": …, "properties": {…}}`. Properties keep the bytes of the record, except for
the few that are renamed or dropped. Raw exports have repeats: Mixpanel distinguishes events by
name, time, id and `$insert_id`, and so do uuids here, with the id that the record has, whichever
the event gets. What merges persons in Mixpanel does so in the service: its `$identify`, `$merge`
and `$create_alias` (docs.mixpanel.com, "Identifying Users (Original)"; mixpanel/docs 079e4f9), and
in newer projects the first event that has both a `$device_id` and a `$user_id` ("Identifying Users
(Simplified)"), before which an `$identify` is sent. Projects from before 2023 export times of their
own zone, in epoch seconds too (`project_time`).

A profile is `{"$distinct_id": …, "$properties": {…}}` and becomes an `$identify` with `$set`. Its
time is `$last_seen`, when the profile was last changed. A profile without it is refused, unless a
time is given for those: with today's time in its place a second run would bring other events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock
from forwarder.sources.imports.countries import COUNTRIES
from forwarder.sources.imports.first_seen import FirstSeenKeys
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    RecordConverter,
    RecordRefused,
    natural_key,
    option,
    place_uuid,
)
from forwarder.sources.imports.times import (
    AFTER_LAST,
    LAST_SECONDS,
    MINUTE,
    SECOND,
    ahead_of_utc,
    parse_time,
    repeated_by,
)
from forwarder.sources.imports.values import (
    decode_record,
    is_blank,
    is_shared,
    is_shared_key,
    items,
    nested,
    optional_text,
    text_or_number,
    wrong_type,
)
from forwarder.wire.identity import ABSENT

EVENT_NAMES: Final = {"$mp_web_page_view": "$pageview"}
RENAMED: Final = {
    "$city": "$geoip_city_name",
    "$region": "$geoip_subdivision_1_name",
    "mp_country_code": "$geoip_country_code",
    "current_url_path": "$pathname",
    "current_domain": "$host",
    "mp_lib": "$lib",
}
"""Unless there is a property with the new name already."""
_PROCESSED: Final = "mp_processing_time_ms"
_RECEIVED: Final = "$mp_api_timestamp_ms"
DROPPED: Final = ("$mp_api_endpoint", _PROCESSED, "$geo_source", _RECEIVED)
"""What Mixpanel notes of its own receipt."""
_LEFT: Final = (*DROPPED, "token")
"""Mixpanel's key of its project too: the service may take it for a key of its own (wire facts: How
the service decodes).
"""
_DEVICE: Final = "$device:"
_JOINED: Final = 2048
_LONGEST_ID: Final = 200
"""Characters of a device's id: a longer one isn't remembered as it is written."""
_BEFORE: Final = "$distinct_id_before_identity"
_only_upper_case = re.compile("[A-Z0-9-]+").fullmatch
_A_MINUTE_AHEAD: Final = timezone(timedelta(minutes=1))
RENAMED_OF_PROFILES: Final = {
    **RENAMED,
    "$country_code": "$geoip_country_code",
    "$email": "email",
}
"""Profiles have a name of their own for the country."""
_encode: Final = msgspec.json.Encoder().encode
_COUNTRY_NAMES: Final = {_encode(code): Raw(_encode(name)) for code, name in COUNTRIES.items()}
IDENTIFY: Final = "$identify"
MERGE: Final = "$merge"
ALIAS: Final = "$create_alias"
_MERGING: Final = frozenset({IDENTIFY, MERGE})
_IDS_OF_IDENTIFY: Final = ("$anon_distinct_id", "$anon_id", "$identified_id")
_MILLISECOND_DIGITS: Final = 13
"""An epoch of more digits isn't one of seconds or milliseconds."""
_EARLY: Final = 300 * SECOND
"""How far a sender's clock may be ahead."""


def project_time(
    value: Raw | bytes, clock: tzinfo | None, processed: Raw | bytes | None = None
) -> int:
    """The microseconds since 1970, UTC, of a JSON value on a project's clock (None: UTC); texts
    with a zone of their own need none.

    Of an hour that comes twice in autumn the first is meant (`ahead_of_utc`), unless it was
    `processed`, in milliseconds since 1970, UTC, in the second or later: then that one is nearer.
    Raises `RecordRefused` (`MISSING_TIMESTAMP`).
    """
    digits = bytes(value)
    if clock is None and digits.isdigit() and len(digits) <= _MILLISECOND_DIGITS:  # as most are
        number = int(digits)
        return number * (1_000_000 if number <= LAST_SECONDS else 1000)
    micros = parse_time(value)
    if clock is None or _says_zone(bytes(value), micros):
        return micros
    minute = micros // MINUTE
    micros -= ahead_of_utc(clock, minute)
    if processed is not None and bytes(processed).isdigit():
        again = repeated_by(clock, minute)
        if again and int(bytes(processed)) * 1000 >= micros + again - _EARLY:
            micros += again
    if not 0 <= micros < AFTER_LAST:
        raise RecordRefused(
            Reason.MISSING_TIMESTAMP, "the time isn't of the years 1970 to 9999, once it is UTC"
        )
    return micros


def _says_zone(value: bytes, micros: int) -> bool:
    """Whether a time is a text (and not an epoch's digits) that no offset moves."""
    if value[:1] != b'"' or value.strip(b'" ').replace(b".", b"", 1).isdigit():
        return False
    return parse_time(value, _A_MINUTE_AHEAD) == micros


@dataclass(frozen=True, slots=True)
class MixpanelExport:
    """What a user may say about an export of events."""

    replace_upper_case_ids: bool = option(
        False,
        (
            "Take ids of capitals, digits and hyphens alone for devices': the id from before a "
            "merge counts. Users' ids may look so, too."
        ),
    )
    group_keys: Set[str] = option(
        frozenset(),
        "A group key of the project, and the type of its groups: company_id=company.",
        flag="group-key",
        metavar="KEY=TYPE",
    )

    def __post_init__(self) -> None:
        """Raises `ValueError` if group keys are incomplete or contradict each other."""
        for written in sorted(self.group_keys):
            if not all(map(str.strip, _key_and_type(written))):
                raise ValueError(
                    f"--group-key {written!r} has to be a property and a type: company_id=company"
                )
        for names, what in ((self.types_by_key, "key"), (self.keys_by_type, "type")):
            if len(names) < len(self.group_keys):
                raise ValueError(f"two --group-key have the same {what}: one has to go")

    @property
    def types_by_key(self) -> dict[str, str]:
        """The type of the groups of each group key. Its order is always the same."""
        return dict(map(_key_and_type, sorted(self.group_keys)))

    @property
    def keys_by_type(self) -> dict[str, str]:
        """The group key of each type."""
        return {kind: key for key, kind in map(_key_and_type, self.group_keys)}


def _key_and_type(written: str) -> tuple[str, str]:
    """A property, and the type of the groups whose ids it has; alone it is the type, too."""
    key, is_typed, kind = written.rpartition("=")
    return (key, kind) if is_typed else (kind, kind)


@dataclass(frozen=True, slots=True)
class MixpanelProfiles:
    """What a user may say about an export of profiles."""

    default_time: str = option(
        "",
        "The time of profiles without $last_seen, on the project's clock: that of the export.",
        metavar="TIME",
        flag="default-time",
    )

    def time(self, clock: tzinfo | None) -> int | None:
        """It in microseconds since 1970; None if it isn't given. Raises `ConfigurationError`."""
        try:
            return parse_time(self.default_time, clock) if self.default_time else None
        except RecordRefused as error:
            raise ConfigurationError(
                f"--default-time: {error.detail}", hint="Write it as 2024-05-01T12:00:00Z."
            ) from error


_Value = str | bool | float | list[Raw] | dict[str, Raw] | None


class _MixpanelRecord(Struct, gc=False):
    event: _Value = None
    properties: _Value = None
    profile_id: Raw = field(name="$distinct_id", default=ABSENT)


class _MixpanelProfile(Struct, gc=False):
    distinct_id: Raw = field(name="$distinct_id", default=ABSENT)
    properties: Raw = field(name="$properties", default=ABSENT)
    event: Raw = ABSENT


_decode: Final = msgspec.json.Decoder(_MixpanelRecord).decode
_decode_profile: Final = msgspec.json.Decoder(_MixpanelProfile).decode


class MixpanelConverter(RecordConverter[_MixpanelRecord]):
    """Raw events at work. A time that can't be read, an id that many share or none at all: refused.

    `replace_upper_case_ids`: whether ids of capitals, digits and hyphens alone count as those of
    devices. `group_types`: of each property that is a group key, the type of its groups.

    Records from before `since` (microseconds), and from `until` on, are left out, so they join
    nothing. So many devices of users are `remembered` at least, at most twice that: 20 MB.
    """

    def __init__(
        self,
        clock: tzinfo | None = None,
        since: int | None = None,
        until: int | None = None,
        remembered: int = 200_000,
        *,
        replace_upper_case_ids: bool = False,
        group_types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_decode, partial(decode_record, decode=_decode))
        self._clock = clock
        self._since = 0 if since is None else since
        self._until = AFTER_LAST if until is None else until
        self._first_times = FirstSeenKeys(remembered)
        self._most_joined = min(_JOINED, remembered)
        """No more than devices, so that none of theirs is forgotten before."""
        self._joined: set[bytes] = set()
        """Devices that have had their user, as they are written: the answer for most records
        without reading them. When there are too many, all are forgotten.
        """
        self._has_bare_devices = False
        """Whether events without a user have had the id of their device as it is."""
        self._has_devices = False
        """Whether any have had it behind `$device:`, as in newer projects."""
        self._replace_upper_case_ids = replace_upper_case_ids
        self._group_types = group_types or {}
        self.upper_case_ids = 0
        """How many events so far `replace_upper_case_ids` gives another id, or would give."""

    def events_of(
        self, record: _MixpanelRecord, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one record, after those that join persons. Raises `RecordRefused`."""
        event = record.event
        fields = {} if record.properties is None else record.properties
        if event is None:
            hint = (
                ""
                if record.profile_id is ABSENT
                else ": this is a profile, of the format mixpanel-profiles"
            )
            raise RecordRefused(Reason.MISSING_EVENT, f"the record has no event{hint}")
        if type(event) is not str:
            raise wrong_type(event, "event", "a text")
        if type(fields) is not dict:
            raise wrong_type(fields, "properties", "an object")
        if not event or event.isspace():
            raise RecordRefused(Reason.MISSING_EVENT, "the event's name is empty")
        own = text_or_number(fields.get("distinct_id"), "distinct_id")
        named = _named_ids(event, fields) if event in _MERGING else []
        distinct_id = named[-1] if named and is_blank(own) else self._identity(own, fields)
        said = fields.pop("time", None)
        if said is None:
            raise RecordRefused(Reason.MISSING_TIMESTAMP, "there is no time in the properties")
        clock = self._clock
        processed = None if clock is None else fields.get(_PROCESSED) or fields.get(_RECEIVED)
        time = project_time(said, clock, processed)
        insert_id = optional_text(fields.get("$insert_id"))
        keyed = insert_id is not None and not is_shared_key(insert_id)
        key = natural_key("mixpanel", event, time, own, insert_id) if keyed else b""
        uuid = "" if keyed else place_uuid("mixpanel", block, index)
        if own is None or own == distinct_id:
            fields.pop("distinct_id", None)  # else it stays: it is said nowhere else
        _add_groups(fields, self._group_types)
        name = EVENT_NAMES.get(event, event)
        made = ImportedEvent(
            name, distinct_id, time, uuid, _renamed(fields, RENAMED), keyed, natural_key=key
        )
        joined: Sequence[str] = ()
        if "$device_id" in fields and time < self._until:
            if is_blank(optional_text(fields.get("$user_id"))):
                self._see_device(own or "", fields["$device_id"])
            elif time >= self._since and bytes(fields["$device_id"]) not in self._joined:
                joined = self._joined_devices(distinct_id, fields)
        if event == ALIAS:
            alias = optional_text(fields.get("alias"))
            if alias is not None:  # the service passes over one that is a number
                fields["alias"] = Raw(_encode(alias))
        if not (joined or named):
            return (made,)
        others = [other for other in named if other != distinct_id]
        before = [_joins(made, other) for other in joined if other not in others]
        return (*before, *_merging(made, others))

    def _see_device(self, own: str, device: Raw) -> None:
        """Note how an event without a user is named after its device."""
        if own.startswith(_DEVICE):
            self._has_devices = True
        elif not self._has_bare_devices and len(device) == len(own) + len(b'""'):
            self._has_bare_devices = optional_text(device) == own

    def _joined_devices(self, distinct_id: str, fields: Mapping[str, Raw]) -> list[str]:
        """The ids of a record's device that its user has had until now, if this is the first time
        that it is seen with one.
        """
        user = optional_text(fields["$user_id"])
        device = optional_text(fields["$device_id"])
        if user is None or device is None or is_shared(user) or is_shared(device):
            return []
        bare = device.removeprefix(_DEVICE)
        known = _DEVICE + bare
        if distinct_id in (bare, known):
            return []
        if len(self._joined) >= self._most_joined:
            self._joined.clear()
        if len(device) <= _LONGEST_ID:
            self._joined.add(bytes(fields["$device_id"]))
        if not self._first_times.is_new_device(bare):
            return []
        if not self._has_bare_devices:
            return [known]
        return [known, bare] if self._has_devices else [bare]

    def _identity(self, own: str | None, fields: Mapping[str, Raw]) -> str:
        """The record's `distinct_id`, or the one before Mixpanel merged, if that says more."""
        before = optional_text(fields[_BEFORE]) if _BEFORE in fields else None
        if before is not None and not is_shared(before) and self._says_less(own, before):
            return before
        if not own or own.isspace():
            text_or_number(fields.get(_BEFORE), _BEFORE)  # of another type it would be the only one
            raise RecordRefused(
                Reason.MISSING_DISTINCT_ID,
                "there is no distinct_id in the properties, or a blank one",
            )
        return own

    def _says_less(self, own: str | None, before: str) -> bool:
        if own is None or is_blank(own) or own.startswith(_DEVICE) or is_shared(own):
            return True
        if own == before or not _only_upper_case(own):
            return False
        self.upper_case_ids += 1
        return self._replace_upper_case_ids


def _add_groups(fields: dict[str, Raw], types: Mapping[str, str]) -> None:
    """Add the groups whose ids a record has, unless it says its groups itself; one of each type:
    of several the first. An id that many share is none.
    """
    groups = {}
    for key, kind in types.items():
        said = fields.get(key, ABSENT)
        names = items(said, key) if bytes(said)[:1] == b"[" else [said]
        texts = [text for name in names if (text := optional_text(name)) and not is_shared(text)]
        if texts:
            groups[kind] = texts[0]
    if groups and "$groups" not in fields:
        fields["$groups"] = Raw(_encode(groups))


def _named_ids(event: str, fields: Mapping[str, Raw]) -> list[str]:
    """The ids that a record of Mixpanel's merges names, each once: the last is the user's."""
    raws = (
        items(fields.get("$distinct_ids"), "$distinct_ids")
        if event == MERGE
        else [fields[name] for name in _IDS_OF_IDENTIFY if name in fields]
    )
    texts = [text for raw in raws if (text := optional_text(raw)) is not None]
    return [text for text in dict.fromkeys(texts) if not is_shared(text.removeprefix(_DEVICE))]


def _merging(made: ImportedEvent, others: Sequence[str]) -> Sequence[ImportedEvent]:
    """A record's event, which merges another id into its own, and an event for each further id.
    Mixpanel's `$merge` joins users, too, which the service's `$identify` refuses.
    """
    if not others:
        return (made,)
    name, member = (
        ("$merge_dangerously", "alias") if made.event == MERGE else (IDENTIFY, "$anon_distinct_id")
    )
    made.event = name
    made.properties[member] = others[0]
    return (made, *(_joins(made, other, name, member) for other in others[1:]))


def _joins(
    made: ImportedEvent, other: str, name: str = IDENTIFY, member: str = "$anon_distinct_id"
) -> ImportedEvent:
    """An event that joins another id with the person of a record's own event, at its time."""
    about = made.natural_key.decode() if made.keyed else made.uuid
    key = natural_key("mixpanel", about, name, other)
    return ImportedEvent(
        name, made.distinct_id, made.time, "", {member: other}, made.keyed, natural_key=key
    )


class MixpanelProfilesConverter(RecordConverter[_MixpanelProfile]):
    """Profiles at work. `default_time`: of those that have no time, in microseconds since 1970."""

    def __init__(self, clock: tzinfo | None = None, default_time: int | None = None) -> None:
        super().__init__(_decode_profile, partial(decode_record, decode=_decode_profile))
        self._clock = clock
        self._default_time = default_time

    def events_of(
        self, profile: _MixpanelProfile, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The `$identify` of one profile. Raises `RecordRefused`."""
        distinct_id = text_or_number(profile.distinct_id, "$distinct_id")
        if distinct_id is None or is_blank(distinct_id):
            hint = "" if profile.event is ABSENT else ": this is an event, of the format mixpanel"
            raise RecordRefused(
                Reason.MISSING_DISTINCT_ID, f"the record has no $distinct_id, or a blank one{hint}"
            )
        properties = nested(profile.properties, "$properties")
        seen = properties.get("$last_seen")
        if seen is not None:
            time = project_time(seen, self._clock)
        elif self._default_time is not None:
            time = self._default_time
        else:
            raise RecordRefused(
                Reason.MISSING_TIMESTAMP,
                "the profile has no $last_seen, so there is no time in it that an event could "
                "have; --default-time gives it one",
            )
        # A profile that was exported twice, unchanged, is one event; once it changed, it is
        # another.
        key = natural_key(
            "mixpanel_profiles", distinct_id, sha256(block.records[index]).hexdigest()
        )
        person = _renamed(properties, RENAMED_OF_PROFILES)
        return (
            ImportedEvent(
                "$identify", distinct_id, time, "", {"$set": person}, keyed=True, natural_key=key
            ),
        )


def _renamed(fields: dict[str, Raw], names: Mapping[str, str]) -> dict[str, Raw]:
    """The same properties under the service's names, without Mixpanel's own
    notes; changes them in place.
    """
    for name in _LEFT:
        fields.pop(name, None)
    for name, new in names.items():
        if name in fields and new not in fields:
            fields[new] = fields.pop(name)
    if "$geoip_country_code" in fields and "$geoip_country_name" not in fields:
        country = _COUNTRY_NAMES.get(bytes(fields["$geoip_country_code"]))
        if country is not None:
            fields["$geoip_country_name"] = country
    return fields


def _recognizes(members: Mapping[str, Raw]) -> bool:
    if "event" not in members or not members.keys().isdisjoint(
        {"timestamp", "distinct_id", "$distinct_id", "type"}
    ):
        return False
    try:
        fields = nested(members.get("properties"), "properties").keys()
    except RecordRefused:
        return False
    return "time" in fields or "$insert_id" in fields or "mp_lib" in fields


def _recognizes_profile(members: Mapping[str, Raw]) -> bool:
    return "$distinct_id" in members and "$properties" in members and "event" not in members


DESCRIPTION: Final = ImportFormat(
    name="mixpanel",
    summary="Mixpanel's raw export of events: JSON lines.",
    example="export/*.json.gz --zone America/Los_Angeles --dry-run",
    options=MixpanelExport,
    make=lambda export, given: MixpanelConverter(
        given.clock,
        given.since,
        given.until,
        replace_upper_case_ids=export.replace_upper_case_ids,
        group_types=export.types_by_key,
    ),
    looks_like="Mixpanel's export of events",
    recognizes=_recognizes,
    times=lambda *_: ("properties.time",),
    receipts=(f"properties.{_PROCESSED}", f"properties.{_RECEIVED}"),
    shifts_epochs=True,
)
PROFILES_DESCRIPTION: Final = ImportFormat(
    name="mixpanel-profiles",
    summary="Mixpanel's export of profiles: JSON lines, each of which becomes an $identify.",
    example="profiles.jsonl --zone UTC",
    options=MixpanelProfiles,
    make=lambda export, given: MixpanelProfilesConverter(given.clock, export.time(given.clock)),
    looks_like="Mixpanel's export of profiles",
    recognizes=_recognizes_profile,
    times=lambda *_: ("$properties.$last_seen",),
    is_unsorted=True,
)
