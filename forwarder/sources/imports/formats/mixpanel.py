"""Mixpanel's raw event export: JSON lines of `{"event": …, "properties": {…}}` (wire facts: Migrations).

Properties keep the bytes of the record, but for the few that are renamed or dropped. Raw exports have repeats: Mixpanel tells events apart
by name, time, id and `$insert_id`, and so do uuids here, with the id that the record has, whichever the event gets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason, derived_uuid
from forwarder.sources.imports.format import FormatContext, ImportFormat, option
from forwarder.sources.imports.formats.mixpanel_clock import ProjectClock, ProjectZone
from forwarder.sources.imports.identifiers import check_id, is_blank, is_illegal
from forwarder.sources.imports.jsonvalues import nested, object_of, text, text_or_number

EVENT_NAMES: Final = {"$mp_web_page_view": "$pageview"}
RENAMED: Final = {
    "$city": "$geoip_city_name",
    "$region": "$geoip_subdivision_1_name",
    "mp_country_code": "$geoip_country_code",
}
"""Unless there is a property with the new name already."""
DROPPED: Final = ("$mp_api_endpoint", "mp_processing_time_ms", "$geo_source", "$mp_api_timestamp_ms")
"""What Mixpanel notes of its own receipt."""
_TOKEN: Final = "token"  # noqa: S105 - the property's name
"""Mixpanel's key of its project: in properties, the service may take it for a key of its own (wire facts: How the service decodes)."""
_LEFT: Final = (*DROPPED, _TOKEN)
_DEVICE: Final = "$device:"
_BEFORE: Final = "$distinct_id_before_identity"

_only_upper_case = re.compile("[A-Z0-9-]+").fullmatch


@dataclass(frozen=True, slots=True)
class MixpanelOptions:
    """What has to be known of the Mixpanel project."""

    clock: ProjectClock = field(default_factory=ProjectClock)
    """Projects from before 2023 export times of their own zone."""
    replace_upper_case_ids: bool = False
    """Whether ids of capitals, digits and hyphens alone count as those of devices. Numeric ids of users look the same, so it is off."""


class _MixpanelRecord(Struct, gc=False):
    event: str
    properties: dict[str, Raw]


_decode = msgspec.json.Decoder(_MixpanelRecord).decode
_encode = msgspec.json.Encoder().encode


class MixpanelConverter:
    """Raw events at work. A time that can't be read, an id that many share or none at all: refused."""

    def __init__(self, options: MixpanelOptions | None = None) -> None:
        self._options = options or MixpanelOptions()
        self._clock = self._options.clock
        self.upper_case_ids = 0
        """How many events so far `replace_upper_case_ids` gives another id, or would give."""

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The event of one record. Raises `RecordRefused`."""
        event, fields = _read(block.records[index])
        own = text_or_number(fields, "distinct_id")
        distinct_id = self._identity(own, fields)
        said = fields.pop("time", None)
        if said is None:
            raise RecordRefused(RefusalReason.NO_TIME, "there is no time in the properties")
        time = self._clock.utc(said)
        insert_id = text_or_number(fields, "$insert_id")
        if insert_id is None or is_illegal(insert_id):
            natural_key = None
            uuid = derived_uuid(_encode(("mixpanel", block.file.identity, block.first + index)).decode())
        else:
            natural_key = _encode(("mixpanel", event, time, own, insert_id)).decode()
            uuid = derived_uuid(natural_key)
        if own is None or own == distinct_id:
            fields.pop("distinct_id", None)  # else it stays: it is said nowhere else
        return (ImportedEvent(EVENT_NAMES.get(event, event), distinct_id, time, uuid, renamed(fields), natural_key),)

    def _identity(self, own: str | None, fields: Mapping[str, Raw]) -> str:
        """The record's `distinct_id`, or the one before Mixpanel merged, if that says more."""
        before = text_or_number(fields, _BEFORE) if _BEFORE in fields else None
        if before is not None and not is_illegal(before) and self._says_less(own, before):
            return before
        if own is None or is_blank(own):
            raise RecordRefused(RefusalReason.NO_ID, "there is no distinct_id in the properties, or a blank one")
        check_id(own.removeprefix(_DEVICE))
        return own

    def _says_less(self, own: str | None, before: str) -> bool:
        if own is None or is_blank(own) or own.startswith(_DEVICE):
            return True
        if own == before or not _only_upper_case(own):
            return False
        self.upper_case_ids += 1
        return self._options.replace_upper_case_ids


def renamed(fields: dict[str, Raw], names: Mapping[str, str] = RENAMED) -> dict[str, Raw]:
    """The same properties under the service's names, without Mixpanel's own notes; changes them in place."""
    for name in _LEFT:
        fields.pop(name, None)
    for name, new in names.items():
        if name in fields and new not in fields:
            fields[new] = fields.pop(name)
    return fields


def _read(record: bytes) -> tuple[str, dict[str, Raw]]:
    """The name and the properties; on the fast way both are what they should be."""
    try:
        if not record.isascii():
            record.decode()
        read = _decode(record)
    except (ValueError, RecursionError):
        event, properties = _read_strange(record)
    else:
        event, properties = read.event, read.properties
    if is_blank(event):
        raise RecordRefused(RefusalReason.NO_EVENT, "the event's name is empty")
    return event, properties


def _read_strange(record: bytes) -> tuple[str, dict[str, Raw]]:
    """The same, or what is wrong with it."""
    fields = object_of(record)
    event = text(fields, "event")
    if event is None:
        hint = ": this is a profile, of the format mixpanel-profiles" if "$distinct_id" in fields else ""
        raise RecordRefused(RefusalReason.NO_EVENT, f"the record has no event{hint}")
    return event, nested(fields, "properties")


@dataclass(frozen=True, slots=True)
class MixpanelExport(ProjectZone):
    """What a user may say about an export of events."""

    replace_upper_case_ids: bool = option(
        False,
        "Take ids of capitals, digits and hyphens alone for devices': the id from before a merge counts. Users' ids may look so, too.",
    )


def _made(export: MixpanelExport, given: FormatContext) -> MixpanelConverter:
    return MixpanelConverter(MixpanelOptions(export.clock(given), export.replace_upper_case_ids))


DESCRIPTION: Final = ImportFormat(
    name="mixpanel",
    summary="Mixpanel's raw export of events: JSON lines.",
    example="export/*.json.gz --zone America/Los_Angeles --dry-run",
    options=MixpanelExport,
    make=_made,
    times=lambda *_: ("properties.time",),
    zone_said=lambda export, given: export.is_said(given),
)
