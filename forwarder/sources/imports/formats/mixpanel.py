"""Mixpanel's raw exports of events and of profiles, both JSON lines (wire facts: Migrations).

An event is `{"event": …, "properties": {…}}`. Properties keep the bytes of the record, except for
the few that are renamed or dropped. Raw exports have repeats: Mixpanel distinguishes events by
name, time, id and `$insert_id`, and so do uuids here, with the id that the record has, whichever
the event gets. Projects from before 2023 export times of their own zone, in epoch seconds too
(`project_time`).

A profile is `{"$distinct_id": …, "$properties": {…}}` and becomes an `$identify` with `$set`. Its
time is `$last_seen`, when the profile was last changed. A profile without it is refused: with
today's time in its place a second run would bring other events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.format import (
    ImportedEvent,
    ImportFormat,
    NoOptions,
    RecordConverter,
    RecordRefused,
    RefusalReason,
    natural_key,
    option,
    place_uuid,
)
from forwarder.sources.imports.times import AFTER_LAST, MINUTE, ahead_of_utc, parse_time
from forwarder.sources.imports.values import (
    check_id,
    decode_record,
    is_blank,
    is_illegal,
    is_illegal_key,
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
}
"""Unless there is a property with the new name already."""
DROPPED: Final = (
    "$mp_api_endpoint",
    "mp_processing_time_ms",
    "$geo_source",
    "$mp_api_timestamp_ms",
)
"""What Mixpanel notes of its own receipt."""
_LEFT: Final = (*DROPPED, "token")
"""Mixpanel's key of its project too: the service may take it for a key of its own (wire facts: How
the service decodes).
"""
_DEVICE: Final = "$device:"
_BEFORE: Final = "$distinct_id_before_identity"
_only_upper_case = re.compile("[A-Z0-9-]+").fullmatch
_A_MINUTE_AHEAD: Final = timezone(timedelta(minutes=1))
RENAMED_OF_PROFILES: Final = {**RENAMED, "$country_code": "$geoip_country_code"}
"""Profiles have a name of their own for the country."""


def project_time(value: Raw | bytes, clock: tzinfo | None) -> int:
    """The microseconds since 1970, UTC, of a JSON value on a project's clock (None: UTC); texts
    with a zone of their own need none.

    Of an hour that comes twice in autumn the first is meant (`ahead_of_utc`). Raises
    `RecordRefused` (`NO_TIME`).
    """
    micros = parse_time(value)
    if clock is None or _says_zone(bytes(value), micros):
        return micros
    micros -= ahead_of_utc(clock, micros // MINUTE)
    if not 0 <= micros < AFTER_LAST:
        raise RecordRefused(
            RefusalReason.NO_TIME, "the time isn't of the years 1970 to 9999, once it is UTC"
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

    `replace_upper_case_ids`: whether ids of capitals, digits and hyphens alone
    count as those of devices.
    """

    def __init__(
        self, clock: tzinfo | None = None, *, replace_upper_case_ids: bool = False
    ) -> None:
        super().__init__(_decode, partial(decode_record, decode=_decode))
        self._clock = clock
        self._replace_upper_case_ids = replace_upper_case_ids
        self.upper_case_ids = 0
        """How many events so far `replace_upper_case_ids` gives another id, or would give."""

    def events_of(
        self, record: _MixpanelRecord, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The event of one record. Raises `RecordRefused`."""
        event = record.event
        fields = {} if record.properties is None else record.properties
        if event is None:
            hint = (
                ""
                if record.profile_id is ABSENT
                else ": this is a profile, of the format mixpanel-profiles"
            )
            raise RecordRefused(RefusalReason.NO_EVENT, f"the record has no event{hint}")
        if type(event) is not str:
            raise wrong_type(event, "event", "a text")
        if type(fields) is not dict:
            raise wrong_type(fields, "properties", "an object")
        if not event or event.isspace():
            raise RecordRefused(RefusalReason.NO_EVENT, "the event's name is empty")
        own = text_or_number(fields.get("distinct_id"), "distinct_id")
        distinct_id = self._identity(own, fields)
        said = fields.pop("time", None)
        if said is None:
            raise RecordRefused(RefusalReason.NO_TIME, "there is no time in the properties")
        time = project_time(said, self._clock)
        insert_id = optional_text(fields.get("$insert_id"))
        keyed = insert_id is not None and not is_illegal_key(insert_id)
        key = natural_key("mixpanel", event, time, own, insert_id) if keyed else b""
        uuid = "" if keyed else place_uuid("mixpanel", block, index)
        if own is None or own == distinct_id:
            fields.pop("distinct_id", None)  # else it stays: it is said nowhere else
        name = EVENT_NAMES.get(event, event)
        return (
            ImportedEvent(
                name, distinct_id, time, uuid, _renamed(fields, RENAMED), keyed, natural_key=key
            ),
        )

    def _identity(self, own: str | None, fields: Mapping[str, Raw]) -> str:
        """The record's `distinct_id`, or the one before Mixpanel merged, if that says more."""
        before = optional_text(fields[_BEFORE]) if _BEFORE in fields else None
        if before is not None and not is_illegal(before) and self._says_less(own, before):
            return before
        if not own or own.isspace():
            text_or_number(fields.get(_BEFORE), _BEFORE)  # of another type it would be the only one
            raise RecordRefused(
                RefusalReason.NO_ID, "there is no distinct_id in the properties, or a blank one"
            )
        check_id(own.removeprefix(_DEVICE))
        return own

    def _says_less(self, own: str | None, before: str) -> bool:
        if own is None or is_blank(own) or own.startswith(_DEVICE):
            return True
        if own == before or not _only_upper_case(own):
            return False
        self.upper_case_ids += 1
        return self._replace_upper_case_ids


class MixpanelProfilesConverter(RecordConverter[_MixpanelProfile]):
    """Profiles at work."""

    def __init__(self, clock: tzinfo | None = None) -> None:
        super().__init__(_decode_profile, partial(decode_record, decode=_decode_profile))
        self._clock = clock

    def events_of(
        self, profile: _MixpanelProfile, block: RecordBlock, index: int
    ) -> Sequence[ImportedEvent]:
        """The `$identify` of one profile. Raises `RecordRefused`."""
        distinct_id = text_or_number(profile.distinct_id, "$distinct_id")
        if distinct_id is None or is_blank(distinct_id):
            hint = "" if profile.event is ABSENT else ": this is an event, of the format mixpanel"
            raise RecordRefused(
                RefusalReason.NO_ID, f"the record has no $distinct_id, or a blank one{hint}"
            )
        check_id(distinct_id.removeprefix(_DEVICE))
        properties = nested(profile.properties, "$properties")
        seen = properties.get("$last_seen")
        if seen is None:
            raise RecordRefused(
                RefusalReason.NO_TIME,
                "the profile has no $last_seen, so there is no time in it that an event could have",
            )
        time = project_time(seen, self._clock)
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
        given.clock, replace_upper_case_ids=export.replace_upper_case_ids
    ),
    looks_like="Mixpanel's export of events",
    recognizes=_recognizes,
    times=lambda *_: ("properties.time",),
)
PROFILES_DESCRIPTION: Final = ImportFormat(
    name="mixpanel-profiles",
    summary="Mixpanel's export of profiles: JSON lines, each of which becomes an $identify.",
    example="profiles.jsonl --zone UTC",
    options=NoOptions,
    make=lambda _, given: MixpanelProfilesConverter(given.clock),
    looks_like="Mixpanel's export of profiles",
    recognizes=_recognizes_profile,
    times=lambda *_: ("$properties.$last_seen",),
    is_unsorted=True,
)
