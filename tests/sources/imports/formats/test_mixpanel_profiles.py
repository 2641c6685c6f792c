"""What Mixpanel's profiles become."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason, derived_uuid
from forwarder.sources.imports.formats.mixpanel_clock import ProjectClock
from forwarder.sources.imports.formats.mixpanel_profiles import MixpanelProfilesConverter
from tests.sources.imports.samples.mixpanel import block, profile_export

SEEN = {"$last_seen": "2024-01-01T00:00:00"}
NEW_YEAR = 1_704_067_200_000_000


def converted(record: object, clock: ProjectClock | None = None) -> ImportedEvent:
    """What becomes of one profile."""
    (event,) = MixpanelProfilesConverter(clock).convert(block(record), 0)
    return event


def person(event: ImportedEvent) -> Any:
    """What is set, as it would be sent."""
    assert event.properties.keys() == {"$set"}
    return json.loads(msgspec.json.encode(event.properties["$set"]))


def test_a_profile_is_an_identify() -> None:
    """A profile becomes an `$identify` of its id at the time when it was last changed, and sets what it says."""
    event = converted({"$distinct_id": "u1", "$properties": {**SEEN, "$email": "u1@example.com", "plan": "pro"}})
    assert (event.event, event.distinct_id, event.time) == ("$identify", "u1", NEW_YEAR)
    assert person(event) == {**SEEN, "$email": "u1@example.com", "plan": "pro"}


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"$city": "Berlin"}, {"$geoip_city_name": "Berlin"}),
        ({"$region": "Land Berlin"}, {"$geoip_subdivision_1_name": "Land Berlin"}),
        ({"$country_code": "DE"}, {"$geoip_country_code": "DE"}),
        ({"mp_country_code": "DE"}, {"$geoip_country_code": "DE"}),
        ({"$geo_source": "reverse_geocoding"}, {}),
        ({"n": 12345678901234567890, "none": None}, {"n": 12345678901234567890, "none": None}),
    ],
)
def test_the_properties(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    """Places are renamed as in events, and how Mixpanel found them is dropped; everything else stays."""
    assert person(converted({"$distinct_id": "u1", "$properties": {**SEEN, **given}})) == {**SEEN, **becomes}


@pytest.mark.parametrize(("given", "becomes"), [("u1", "u1"), (4, "4"), ("$device:d1", "$device:d1")])
def test_the_id(given: object, becomes: str) -> None:
    """The id is the profile's, a number's its JSON text."""
    assert converted({"$distinct_id": given, "$properties": SEEN}).distinct_id == becomes


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"$properties": SEEN}, RefusalReason.NO_ID),
        ({"event": "Purchase", "properties": {"time": 1, "distinct_id": "u1"}}, RefusalReason.NO_ID),
        ({"$distinct_id": None, "$properties": SEEN}, RefusalReason.NO_ID),
        ({"$distinct_id": " ", "$properties": SEEN}, RefusalReason.NO_ID),
        ({"$distinct_id": "null", "$properties": SEEN}, RefusalReason.ILLEGAL_ID),
        ({"$distinct_id": "$device:null", "$properties": SEEN}, RefusalReason.ILLEGAL_ID),
        ({"$distinct_id": ["u1"], "$properties": SEEN}, RefusalReason.WRONG_TYPE),
        ({"$distinct_id": "u1", "$properties": "all"}, RefusalReason.WRONG_TYPE),
        ({"$distinct_id": "u1"}, RefusalReason.NO_TIME),
        ({"$distinct_id": "u1", "$properties": {"$created": "2024-01-01T00:00:00"}}, RefusalReason.NO_TIME),
        ({"$distinct_id": "u1", "$properties": {"$last_seen": None}}, RefusalReason.NO_TIME),
        ({"$distinct_id": "u1", "$properties": {"$last_seen": "never"}}, RefusalReason.NO_TIME),
        (b'{"$distinct_id":"u1"', RefusalReason.NOT_JSON),
        (b'{"$distinct_id":"u1","$properties":{"n":"\xe9"}}', RefusalReason.NOT_JSON),
    ],
)
def test_what_is_refused(record: object, why: RefusalReason) -> None:
    """Without an id, or without a time of its own, a profile is refused: there is no other time that would be the same tomorrow."""
    with pytest.raises(RecordRefused) as refused:
        converted(record)
    assert refused.value.why is why


def test_the_project_clock_counts() -> None:
    """`$last_seen` has no zone: it is on the project's clock, as event times are."""
    assert converted({"$distinct_id": "u1", "$properties": SEEN}, ProjectClock(-60)).time == NEW_YEAR + 3_600_000_000


def test_the_same_profile_is_one_event_and_a_changed_one_another() -> None:
    """A profile that two files have alike is known as a repeat; one that changed is not, though its time is the same."""
    first, again = (converted({"$distinct_id": "u1", "$properties": {**SEEN, "plan": "pro"}}) for _ in range(2))
    changed = converted({"$distinct_id": "u1", "$properties": {**SEEN, "plan": "free"}})
    assert first.natural_key == again.natural_key != changed.natural_key
    assert first.uuid == again.uuid != changed.uuid
    assert first.uuid == derived_uuid(first.natural_key or "")


def test_the_sample() -> None:
    """Of the sample's profiles, those without `$last_seen` are refused and all others become events, the same in every run."""
    export = profile_export()
    assert len(export) >= 2_000
    one, refused = block(*export), Counter[RefusalReason]()
    events = list[ImportedEvent]()
    for index in range(len(export)):
        try:
            events.extend(MixpanelProfilesConverter().convert(one, index))
        except RecordRefused as error:
            refused[error.why] += 1
    assert refused == {RefusalReason.NO_TIME: len(export) // 10}
    assert len({event.uuid for event in events}) == len(events) == len(export) - refused.total()
    assert events[0] == MixpanelProfilesConverter().convert(one, 0)[0]
