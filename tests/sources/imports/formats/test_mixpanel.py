"""Mixpanel's exports of events and profiles, and the clock of a project."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.mixpanel import (
    MixpanelConverter,
    MixpanelExport,
    MixpanelProfilesConverter,
    project_time,
)
from tests.sources.imports.samples.mixpanel import (
    STRANGE,
    as_json,
    block,
    event_export,
    profile_export,
)
from tests.support.cases import cases

TIME = 1_704_067_200_345_000
GERMANY = {"$geoip_country_code": "DE", "$geoip_country_name": "Germany"}
BEFORE = "$distinct_id_before_identity"


def ahead(minutes: int) -> tzinfo:
    """A clock that is always so far ahead of UTC."""
    return timezone(timedelta(minutes=minutes))


def converted(record: object, clock: tzinfo | None = None) -> ImportedEvent:
    """What becomes of one record."""
    (event,) = MixpanelConverter(clock).convert(block(record), 0)
    return event


def record(event: str = "Purchase", /, **properties: Any) -> dict[str, Any]:
    """A record with a time and an id, unless others are given; without what is given as `...`."""
    given = {"time": TIME // 1000, "distinct_id": "u1", "$insert_id": "i1"} | properties
    return {
        "event": event,
        "properties": {name: value for name, value in given.items() if value is not ...},
    }


def properties(event: ImportedEvent) -> dict[str, Any]:
    """An event's properties, as they would be sent."""
    read: dict[str, Any] = json.loads(msgspec.json.encode(event.properties))
    return read


@cases(
    ("given", "becomes"),
    [
        ("$mp_web_page_view", "$pageview"),
        ("Purchase", "Purchase"),
        ("$identify", "$identify"),
        ("$session_start", "$session_start"),
    ],
)
def test_the_event_name(given: str, becomes: str) -> None:
    """A page view has the service's name for it; every other event keeps its own."""
    assert converted(record(given)).event == becomes


@cases(
    ("time", "micros"),
    [
        (1_704_067_200, 1_704_067_200_000_000),
        (1_704_067_200_345, 1_704_067_200_345_000),
        (1_704_067_200.345678, 1_704_067_200_345_678),
        (10_000_000_000, 10_000_000_000_000_000),
        (10_000_000_001, 10_000_000_001_000),
        ("1704067200", 1_704_067_200_000_000),
    ],
)
def test_the_time(time: object, micros: int) -> None:
    """An epoch above 1e10 counts milliseconds, any other seconds; nothing is cut to seconds."""
    assert converted(record(time=time)).time == micros


@cases(
    ("own", "before", "becomes"),
    [
        ("u1", ..., "u1"),
        ("u1", "u0", "u1"),
        (..., "u0", "u0"),
        (None, "u0", "u0"),
        ("", "u0", "u0"),
        (" ", "u0", "u0"),
        ("$device:d1", "u0", "u0"),
        ("$device:d1", ..., "$device:d1"),
        ("$device:d1", "anonymous", "$device:d1"),
        ("$device:d1", "", "$device:d1"),
        ("A1-B2", "u0", "A1-B2"),
        ("A1-b2", "u0", "A1-b2"),
        (4, ..., "4"),
        (12345678901234567890, ..., "12345678901234567890"),
        (..., 17, "17"),
    ],
)
def test_the_id(own: object, before: object, becomes: str) -> None:
    """The record's id, or the one before the merge where that id is missing or a device's, unless
    that one means no one.
    """
    assert converted(record(distinct_id=own, **{BEFORE: before})).distinct_id == becomes


@cases(
    ("own", "before", "becomes", "counted"),
    [
        ("A1-B2", "u0", "u0", 1),
        ("12345", "u0", "u0", 1),
        (12345, "u0", "u0", 1),
        ("A1-B2", ..., "A1-B2", 0),
        ("A1-B2", "A1-B2", "A1-B2", 0),
        ("A1-B2", "null", "A1-B2", 0),
        ("A1-b2", "u0", "A1-b2", 0),
        ("A1-B2\n", "u0", "A1-B2\n", 0),
        ("$device:D1", "u0", "u0", 0),
    ],
)
def test_ids_of_capitals_digits_and_hyphens(
    own: object, before: object, becomes: str, counted: int
) -> None:
    """They are replaced only when the option says so; off or on, the converter counts the events
    that it touches.
    """
    one = block(record(distinct_id=own, **{BEFORE: before}))
    off = MixpanelConverter()
    on = MixpanelConverter(replace_upper_case_ids=True)
    assert off.convert(one, 0)[0].distinct_id == (becomes if not counted else str(own))
    assert on.convert(one, 0)[0].distinct_id == becomes
    assert off.upper_case_ids == on.upper_case_ids == counted


@cases(
    ("given", "becomes"),
    [
        ({"$city": "Berlin"}, {"$geoip_city_name": "Berlin"}),
        ({"$region": "Land Berlin"}, {"$geoip_subdivision_1_name": "Land Berlin"}),
        ({"mp_country_code": "DE"}, GERMANY),
        (
            {"$city": "Berlin", "$geoip_city_name": "Bonn"},
            {"$city": "Berlin", "$geoip_city_name": "Bonn"},
        ),
        ({"$mp_api_endpoint": "api.mixpanel.com"}, {}),
        ({"mp_processing_time_ms": 1}, {}),
        ({"$geo_source": "ip_lookup"}, {}),
        ({"$mp_api_timestamp_ms": 1}, {}),
        ({"token": "0123"}, {}),
        ({BEFORE: "u0"}, {BEFORE: "u0"}),
        ({"$browser": "Chrome", "a b": None}, {"$browser": "Chrome", "a b": None}),
    ],
)
def test_the_properties(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    """Places are renamed, Mixpanel's own notes and its token dropped; time and id are the event's,
    everything else stays.
    """
    assert properties(converted(record(**given))) == {"$insert_id": "i1", **becomes}


def test_an_id_that_was_replaced_stays_a_property() -> None:
    """The id of the device isn't lost when the event has the user's."""
    event = converted(record(distinct_id="$device:d1", **{BEFORE: "u0"}))
    assert properties(event) == {"$insert_id": "i1", "distinct_id": "$device:d1", BEFORE: "u0"}


def test_values_keep_their_bytes() -> None:
    """Large numbers, spellings of numbers, escapes and spaces inside values are continued as they
    were written.
    """
    value = b'{ "n" : 12345678901234567890123, "x": 1.10e2, "s":"\\u00e9\\/", "o": [ 1 ] }'
    line = b'{"event":"e","properties":{"time":1704067200,"distinct_id":"u1","v":' + value + b"}}"
    assert bytes(converted(line).properties["v"]) == value


def test_the_natural_key() -> None:
    """Name, time, the record's own id and `$insert_id` tell events apart, and the uuid follows
    from them.
    """
    event = converted(record("$mp_web_page_view", distinct_id="$device:d1", **{BEFORE: "u0"}))
    key = '["mixpanel","$mp_web_page_view",1704067200345000,"$device:d1","i1"]'
    assert event.keyed
    assert event.uuid == derived_uuid(key) == "21b3778a-1fac-58f4-81e5-07376c1f3778"


@cases("other", [{"time": 1_704_067_200_346}, {"distinct_id": "u2"}, {"$insert_id": "i2"}])
def test_each_part_of_the_natural_key_counts(other: dict[str, Any]) -> None:
    """Records that differ in one part of the key are two events."""
    assert len({converted(one).uuid for one in (record(), record(**other), record("Refund"))}) == 3


def test_a_repeat_has_the_same_key_whatever_else_differs() -> None:
    """A raw export's repeat is known by its key, though Mixpanel's own notes differ."""
    first = converted(record(mp_processing_time_ms=1))
    again = converted(record(mp_processing_time_ms=2))
    assert (first.keyed, first.uuid) == (True, again.uuid)


@cases("insert_id", [..., None, "", "undefined"])
def test_without_an_insert_id_the_place_counts(insert_id: object) -> None:
    """Without a usable `$insert_id` nothing tells repeats: the uuid follows from the file's
    content and the record's number.
    """
    one = record(**{"$insert_id": insert_id})
    first, second = (
        MixpanelConverter().convert(block(one, one, first=100), index)[0] for index in (0, 1)
    )
    assert first.keyed is second.keyed is False
    assert first.uuid == derived_uuid(f'["mixpanel","{"5eed" * 16}",100]') != second.uuid
    assert MixpanelConverter().convert(block(one, first=101), 0)[0].uuid == second.uuid


def test_a_fixed_offset() -> None:
    """A project whose clock is two hours ahead of UTC had the event two hours earlier."""
    assert converted(record(), ahead(120)).time == TIME - 7_200_000_000


@cases(("line", "why"), STRANGE)
def test_strange_records(line: bytes, why: Reason | None) -> None:
    """Each is refused for its reason, or becomes an event."""
    if why is None:
        assert converted(line).distinct_id
        return
    with pytest.raises(RecordRefused) as refused:
        converted(line)
    assert refused.value.why is why


def test_a_profile_among_events_is_named_as_such() -> None:
    """Who imports a profile export as events reads which format it is of."""
    with pytest.raises(RecordRefused, match="mixpanel-profiles"):
        converted({"$distinct_id": "u1", "$properties": {}})


def test_deep_nesting_is_refused() -> None:
    """A record nested deeper than can be read is refused like any other that can't be."""
    with pytest.raises(RecordRefused) as refused:
        converted(
            b'{"event":"e","properties":{"time":1,"distinct_id":"u1","deep":'
            + b"[" * 100_000
            + b"]" * 100_000
            + b"}}"
        )
    assert refused.value.why is Reason.UNDECODABLE


def joins(*records: dict[str, Any], **options: Any) -> list[tuple[str, str, str]]:
    """What the events of some records, one after the other, join: the name of the event, its id
    and the other one.
    """
    converter = MixpanelConverter(**options)
    one = block(*(json.dumps({"event": "e", "properties": values}).encode() for values in records))
    events = [event for index in range(len(records)) for event in converter.convert(one, index)]
    pairs = ((event, plain(event)) for event in events)
    return [
        (event.event, event.distinct_id, says["$anon_distinct_id"])
        for event, says in pairs
        if "$anon_distinct_id" in says
    ]


def plain(event: ImportedEvent) -> Any:
    """An event's properties as JSON values."""
    return json.loads(msgspec.json.encode(event.properties))


BOTH: dict[str, Any] = {"distinct_id": "u1", "$user_id": "u1", "$device_id": "d1", "time": 2}


def test_a_device_is_joined_with_its_first_user() -> None:
    """By the first event that has both, before it; another device is joined, too, another user of
    the same device is someone else.
    """
    joined = joins(BOTH, BOTH, {**BOTH, "$device_id": "d2"}, {**BOTH, "distinct_id": "u2"}, BOTH)
    assert joined == [
        ("$identify", "u1", "$device:d1"),
        ("$identify", "u1", "$device:d2"),
    ]


@cases("blank", [None, "", " "])
def test_a_blank_user_is_none(blank: object) -> None:
    """Such events say, too, how ids of devices are written."""
    before: dict[str, Any] = {"distinct_id": "d1", "$device_id": "d1", "time": 1}
    assert joins({**before, "$user_id": blank}, BOTH) == joins(before, BOTH)
    assert joins(before, BOTH) == [("$identify", "u1", "d1")]


def test_the_devices_id_is_that_of_events_without_a_user() -> None:
    """Newer projects write `$device:` before it, others don't; of a source that has both, both."""
    anonymous = {"distinct_id": "d1", "$device_id": "d1", "time": 1}
    prefixed = {**anonymous, "distinct_id": "$device:d1"}
    assert joins(anonymous, BOTH) == [("$identify", "u1", "d1")]
    assert joins(prefixed, BOTH) == [("$identify", "u1", "$device:d1")]
    assert joins(anonymous, prefixed, BOTH) == [
        ("$identify", "u1", "$device:d1"),
        ("$identify", "u1", "d1"),
    ]


@cases(
    "change",
    [
        {"distinct_id": "d1"},
        {"distinct_id": "$device:d1"},
        {"$user_id": None},
        {"$user_id": "undefined"},
        {"$device_id": ["d1"]},
    ],
)
def test_what_has_no_two_ids_joins_nothing(change: dict[str, Any]) -> None:
    """Nor does an id that many share."""
    assert joins({**BOTH, **change}) == []


def test_events_from_before_since_join_nothing() -> None:
    """They are left out with all that they bring: the first one after them brings it."""
    joined = joins(BOTH, {**BOTH, "time": 4}, {**BOTH, "time": 5}, since=3_000_000)
    assert joined == [("$identify", "u1", "$device:d1")]


def test_a_merge_of_more_than_two_ids_is_an_event_for_each() -> None:
    """At one time, with uuids of their own, the same in each run."""
    record = {
        "event": "$merge",
        "properties": {"time": 1, "distinct_id": "a", "$distinct_ids": ["a", "b", 7]},
    }
    data = json.dumps(record).encode()
    events = list(MixpanelConverter().convert(block(data), 0))
    assert [(event.event, event.distinct_id) for event in events] == [
        ("$merge_dangerously", "a")
    ] * 2
    assert [plain(event)["alias"] for event in events] == ["b", "7"]
    assert len({event.uuid for event in events}) == 2
    assert [event.uuid for event in MixpanelConverter().convert(block(data), 0)] == [
        event.uuid for event in events
    ]


def test_the_sample() -> None:
    """Two thousand records and more: only the strange ones are refused, and a second run makes the
    same events of the rest.
    """
    export = event_export()
    one = block(*export)
    assert len(export) >= 2_000
    assert export == event_export()

    def run() -> tuple[list[ImportedEvent], Counter[Reason]]:
        converter = MixpanelConverter()
        events = list[ImportedEvent]()
        refused = Counter[Reason]()
        for index in range(len(export)):
            try:
                events.extend(converter.convert(one, index))
            except RecordRefused as error:
                refused[error.why] += 1
        assert converter.upper_case_ids > 100
        return events, refused

    events, refused = run()
    assert refused == Counter(why for _, why in STRANGE if why is not None)
    joined = [event for event in events if event.properties.keys() == {"$anon_distinct_id"}]
    assert len(events) - len(joined) + refused.total() == len(export)
    assert len({event.uuid for event in joined}) == len(joined) > 50
    assert (events, refused) == run()
    keys = [event.uuid for event in events if event.keyed]
    assert len(keys) - len(set(keys)) > 20
    assert len({event.uuid for event in events}) == len(set(keys)) + sum(
        not event.keyed for event in events
    )


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=50)
@given(
    st.text(min_size=1).filter(str.strip),
    st.dictionaries(st.text(alphabet="abc$_ é").map(lambda name: f"p{name}"), _values),
)
def test_what_is_not_renamed_or_dropped_comes_through(name: str, given: dict[str, Any]) -> None:
    """Any event name and any other properties are the same after as before."""
    event = converted(as_json(record(name, **given)))
    assert (event.event, event.distinct_id, event.time) == (name, "u1", TIME)
    assert properties(event) == {"$insert_id": "i1", **given}


def test_a_zone_with_summer_time() -> None:
    """A project's zone is one of the options, for years in which its offset changed."""
    clock = ZoneInfo("America/Los_Angeles")
    assert (
        converted(record(time=1_704_067_200), clock).time == (1_704_067_200 + 8 * 3600) * 1_000_000
    )
    assert (
        converted(record(time=1_719_792_000), clock).time == (1_719_792_000 + 7 * 3600) * 1_000_000
    )


HOUR = 3_600_000_000
NEW_YEAR = 1_704_067_200_000_000
ZONES = [
    ZoneInfo(name)
    for name in (
        "America/Los_Angeles",
        "Europe/Berlin",
        "Asia/Kolkata",
        "Australia/Lord_Howe",
        "UTC",
    )
]


@cases(
    "value",
    [
        b"1704067200",
        b"1704067200000",
        b'"1704067200"',
        b'"2024-01-01T00:00:00"',
        b'"2024-01-01 00:00:00"',
    ],
)
@cases(
    ("minutes", "micros"),
    [(0, NEW_YEAR), (90, NEW_YEAR - HOUR * 3 // 2), (-480, NEW_YEAR + 8 * HOUR)],
)
def test_an_offset_moves_epochs_and_texts_alike(value: bytes, minutes: int, micros: int) -> None:
    """What the project's clock showed is reckoned to UTC, however it is written."""
    assert project_time(value, ahead(minutes)) == micros


@cases("clock", [None, ahead(90), ZONES[0]])
def test_a_text_with_a_zone_is_not_moved(clock: tzinfo | None) -> None:
    """A time that says its own zone isn't the project's clock's."""
    assert (
        project_time(b'"2024-01-01T01:00:00+01:00"', clock)
        == project_time(b'"2024-01-01T00:00:00Z"', clock)
        == NEW_YEAR
    )


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(ZONES), st.integers(NEW_YEAR // 1000, NEW_YEAR // 1000 + 2 * 365 * 86_400_000)
)
def test_what_a_zone_shows_comes_back(zone: ZoneInfo, moment: int) -> None:
    """Whatever moment the project's clock showed is found again to the millisecond; of an hour
    shown twice, the first.
    """
    shown = datetime.fromtimestamp(moment / 1000, zone)
    export = round(shown.replace(tzinfo=UTC).timestamp() * 1000)
    first = round(shown.replace(fold=0).timestamp() * 1000)
    assert project_time(str(export).encode(), zone) == first * 1000
    assert shown.fold or first == moment


@cases(
    ("minutes", "value"),
    [(60, b"3599"), (-60, b"253402300799999999"), (-60, b'"9999-12-31T23:00:00"')],
)
def test_a_time_outside_of_1970_to_9999_is_refused(minutes: int, value: bytes) -> None:
    """A clock ahead of UTC can't bring a time before the epoch, and one behind it none that no
    calendar has.
    """
    with pytest.raises(RecordRefused) as refused:
        project_time(value, ahead(minutes))
    assert refused.value.why is Reason.MISSING_TIMESTAMP


SEEN = {"$last_seen": "2024-01-01T00:00:00"}


def converted_profile(record: object, clock: tzinfo | None = None) -> ImportedEvent:
    """What becomes of one profile."""
    (event,) = MixpanelProfilesConverter(clock).convert(block(record), 0)
    return event


def person(event: ImportedEvent) -> Any:
    """What is set, as it would be sent."""
    assert event.properties.keys() == {"$set"}
    return json.loads(msgspec.json.encode(event.properties["$set"]))


def test_a_profile_is_an_identify() -> None:
    """A profile becomes an `$identify` of its id at the time when it was last changed, and sets
    what it says.
    """
    event = converted_profile(
        {"$distinct_id": "u1", "$properties": {**SEEN, "$email": "u1@example.com", "plan": "pro"}}
    )
    assert (event.event, event.distinct_id, event.time) == ("$identify", "u1", NEW_YEAR)
    assert person(event) == {**SEEN, "email": "u1@example.com", "plan": "pro"}


@cases(
    ("given", "becomes"),
    [
        ({"$city": "Berlin"}, {"$geoip_city_name": "Berlin"}),
        ({"$region": "Land Berlin"}, {"$geoip_subdivision_1_name": "Land Berlin"}),
        ({"$country_code": "DE"}, GERMANY),
        ({"mp_country_code": "DE"}, GERMANY),
        ({"$geo_source": "reverse_geocoding"}, {}),
        ({"n": 12345678901234567890, "none": None}, {"n": 12345678901234567890, "none": None}),
    ],
)
def test_the_properties_of_a_profile(given: dict[str, Any], becomes: dict[str, Any]) -> None:
    """Places are renamed as in events, and how Mixpanel found them is
    dropped; everything else stays.
    """
    assert person(converted_profile({"$distinct_id": "u1", "$properties": {**SEEN, **given}})) == {
        **SEEN,
        **becomes,
    }


@cases(("given", "becomes"), [("u1", "u1"), (4, "4"), ("$device:d1", "$device:d1")])
def test_the_id_of_a_profile(given: object, becomes: str) -> None:
    """The id is the profile's, a number's its JSON text."""
    assert converted_profile({"$distinct_id": given, "$properties": SEEN}).distinct_id == becomes


@cases(
    ("record", "why"),
    [
        ({"$properties": SEEN}, Reason.MISSING_DISTINCT_ID),
        (
            {"event": "Purchase", "properties": {"time": 1, "distinct_id": "u1"}},
            Reason.MISSING_DISTINCT_ID,
        ),
        ({"$distinct_id": None, "$properties": SEEN}, Reason.MISSING_DISTINCT_ID),
        ({"$distinct_id": " ", "$properties": SEEN}, Reason.MISSING_DISTINCT_ID),
        ({"$distinct_id": ["u1"], "$properties": SEEN}, Reason.INVALID_EVENT),
        ({"$distinct_id": "u1", "$properties": "all"}, Reason.INVALID_EVENT),
        ({"$distinct_id": "u1"}, Reason.MISSING_TIMESTAMP),
        (
            {"$distinct_id": "u1", "$properties": {"$created": "2024-01-01T00:00:00"}},
            Reason.MISSING_TIMESTAMP,
        ),
        ({"$distinct_id": "u1", "$properties": {"$last_seen": None}}, Reason.MISSING_TIMESTAMP),
        ({"$distinct_id": "u1", "$properties": {"$last_seen": "never"}}, Reason.MISSING_TIMESTAMP),
        (b'{"$distinct_id":"u1"', Reason.UNDECODABLE),
        (b'{"$distinct_id":"u1","$properties":{"n":"\xe9"}}', Reason.UNDECODABLE),
    ],
)
def test_what_is_refused(record: object, why: Reason) -> None:
    """Without an id, or without a time of its own, a profile is refused: there is no other time
    that would be the same tomorrow.
    """
    with pytest.raises(RecordRefused) as refused:
        converted_profile(record)
    assert refused.value.why is why


def test_the_project_clock_counts() -> None:
    """`$last_seen` has no zone: it is on the project's clock, as event times are."""
    assert (
        converted_profile({"$distinct_id": "u1", "$properties": SEEN}, ahead(-60)).time
        == NEW_YEAR + 3_600_000_000
    )


def test_the_same_profile_is_one_event_and_a_changed_one_another() -> None:
    """A profile that two files have alike is known as a repeat; one that changed is not, though
    its time is the same.
    """
    first, again = (
        converted_profile({"$distinct_id": "u1", "$properties": {**SEEN, "plan": "pro"}})
        for _ in range(2)
    )
    changed = converted_profile({"$distinct_id": "u1", "$properties": {**SEEN, "plan": "free"}})
    assert first.keyed
    assert first.uuid == again.uuid != changed.uuid
    assert first.uuid == again.uuid != changed.uuid


def test_the_sample_of_profiles() -> None:
    """Of the sample's profiles, those without `$last_seen` are refused and all others become
    events, the same in every run.
    """
    export = profile_export()
    assert len(export) >= 2_000
    one = block(*export)
    refused = Counter[Reason]()
    events = list[ImportedEvent]()
    for index in range(len(export)):
        try:
            events.extend(MixpanelProfilesConverter().convert(one, index))
        except RecordRefused as error:
            refused[error.why] += 1
    assert refused == {Reason.MISSING_TIMESTAMP: len(export) // 10}
    assert len({event.uuid for event in events}) == len(events) == len(export) - refused.total()
    assert events[0] == MixpanelProfilesConverter().convert(one, 0)[0]


@cases(
    ("properties", "groups"),
    [
        ({"company_id": "acme"}, {"company": "acme"}),
        ({"company_id": 7, "team": ["", "red", "blue"]}, {"company": "7", "team": "red"}),
        ({"company_id": "null", "team": []}, None),
        ({"company_id": {"id": 1}, "team": None}, None),
        ({"company_id": "acme", "$groups": {"company": "own"}}, {"company": "own"}),
    ],
)
def test_group_keys_become_groups(properties: dict[str, Any], groups: object) -> None:
    """Of the types that were said; the properties stay."""
    export = MixpanelExport(group_keys=frozenset({"company_id=company", "team"}))
    converter = MixpanelConverter(group_types=export.types_by_key)
    (event,) = converter.convert(block(record(**properties)), 0)
    parsed = json.loads(msgspec.json.encode(event.properties))
    assert parsed.get("$groups") == groups
    assert {name: parsed[name] for name in properties} == properties


@cases(
    ("written", "why"),
    [
        ({"company_id="}, "'company_id='"),
        ({"=company"}, "'=company'"),
        ({""}, "''"),
        ({"a=x", "a=y"}, "the same key"),
        ({"a=x", "b=x"}, "the same type"),
    ],
)
def test_group_keys_that_say_nothing_or_two_things(written: set[str], why: str) -> None:
    """An error says which."""
    with pytest.raises(ValueError, match=why):
        MixpanelExport(group_keys=frozenset(written))


def test_a_device_is_joined_once_however_many_come_between() -> None:
    """Also after so many that it isn't among those that are remembered as they are written, and no
    matter who uses it then .
    """
    converter = MixpanelConverter()

    def names(device: str, user: str = "u1") -> list[str]:
        said = record(**{"$device_id": device, "$user_id": user, "distinct_id": user})
        return [event.event for event in converter.convert(block(said), 0)]

    assert names("d1") == ["$identify", "Purchase"]
    assert names("d1") == names("d1", "u2") == ["Purchase"]
    for number in range(3000):
        assert names(f"other-{number}") == ["$identify", "Purchase"]
    assert names("d1") == names("d1", "u2") == ["Purchase"]
    assert names("d" * 300) == ["$identify", "Purchase"]
    assert names("d" * 300) == ["Purchase"]
