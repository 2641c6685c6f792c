"""Mixpanel's profile export: JSON lines of `{"$distinct_id": …, "$properties": {…}}`, each of which becomes an `$identify` with `$set`.

An event needs a time, and there is one in the record that fits: `$last_seen`, when the profile was last changed. A profile without it is
refused: with today's time in its place a second run would bring other events.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason, derived_uuid
from forwarder.sources.imports.format import ImportFormat
from forwarder.sources.imports.formats.mixpanel import RENAMED, renamed
from forwarder.sources.imports.formats.mixpanel_clock import ProjectClock, ProjectZone
from forwarder.sources.imports.identifiers import check_id, is_blank
from forwarder.sources.imports.jsonvalues import nested, object_of, text_or_number

RENAMED_OF_PROFILES: Final = {**RENAMED, "$country_code": "$geoip_country_code"}
"""Profiles have a name of their own for the country."""


class MixpanelProfilesConverter:
    """Profiles at work."""

    def __init__(self, clock: ProjectClock | None = None) -> None:
        self._clock = clock or ProjectClock()

    def convert(self, block: RecordBlock, index: int) -> Sequence[ImportedEvent]:
        """The `$identify` of one profile. Raises `RecordRefused`."""
        record = block.records[index]
        fields = object_of(record)
        distinct_id = text_or_number(fields, "$distinct_id")
        if distinct_id is None or is_blank(distinct_id):
            hint = ": this is an event, of the format mixpanel" if "event" in fields else ""
            raise RecordRefused(RefusalReason.NO_ID, f"the record has no $distinct_id, or a blank one{hint}")
        check_id(distinct_id.removeprefix("$device:"))
        properties = nested(fields, "$properties")
        seen = properties.get("$last_seen")
        if seen is None:
            raise RecordRefused(RefusalReason.NO_TIME, "the profile has no $last_seen, so there is no time in it that an event could have")
        time = self._clock.utc(seen)
        # A profile that was exported twice, unchanged, is one event; once it changed, it is another.
        natural_key = msgspec.json.encode(("mixpanel_profiles", distinct_id, sha256(record).hexdigest())).decode()
        person = renamed(properties, RENAMED_OF_PROFILES)
        return (ImportedEvent("$identify", distinct_id, time, derived_uuid(natural_key), {"$set": person}, natural_key),)


DESCRIPTION: Final = ImportFormat(
    name="mixpanel-profiles",
    summary="Mixpanel's export of profiles: JSON lines, each of which becomes an $identify.",
    example="profiles.jsonl --time-offset 0",
    options=ProjectZone,
    make=lambda export, given: MixpanelProfilesConverter(export.clock(given)),
    times=lambda *_: ("$properties.$last_seen",),
    zone_said=lambda export, given: export.is_said(given),
    is_unsorted=True,
)
