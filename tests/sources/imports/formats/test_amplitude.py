"""What each field of an Amplitude record becomes, rule by rule, which events a record brings, and
which records are refused.
"""

from __future__ import annotations

import gzip
import io
import json
import uuid as uuids
import zipfile
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.first_seen import FirstSeenKeys
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.amplitude import KEPT, AmplitudeConverter
from tests.sources.imports.preflights import ahead
from tests.sources.imports.samples.amplitude import archive, sample
from tests.support.cases import cases

FILE = SourceFile("12345_2024-03-01_10#0.json.gz", "c0ffee")
UUID = "6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02"
MICROS = 1_709_288_430_456_789
DEVICE = {"$amplitude_device_id": "d1", "$device_id": "d1"}
RECORD = {
    "event_type": "Bought",
    "device_id": "d1",
    "uuid": UUID,
    "event_time": "2024-03-01 10:20:30.456789",
}
SIGNED_IN = {**RECORD, "user_id": "u1"}
ACME = {"groups": {"company": "acme"}, "group_properties": {"company": {"plan": "pro"}}}


def convert(
    record: dict[str, Any] | bytes, amplitude: AmplitudeConverter | None = None, place: int = 0
) -> list[ImportedEvent]:
    """The events of a record, of a converter that has seen none before unless one is given."""
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return list(
        (amplitude or AmplitudeConverter()).convert(
            RecordBlock(FILE, place, [data], [place + 1]), 0
        )
    )


def one(record: dict[str, Any], amplitude: AmplitudeConverter | None = None) -> ImportedEvent:
    """A record's own event, which comes last."""
    return convert(record, amplitude)[-1]


def plain(event: ImportedEvent) -> Any:
    """An event's properties as JSON values."""
    return json.loads(msgspec.json.encode(event.properties))


def names(record: dict[str, Any], amplitude: AmplitudeConverter | None = None) -> list[str]:
    """The names of the events of a record."""
    return [event.event for event in convert(record, amplitude)]


@cases(
    ("fields", "properties"),
    [
        ({"os_name": "Chrome"}, {"$browser": "Chrome"}),
        ({"os_version": "120"}, {"$browser_version": 120}),
        ({"device_type": "Mac"}, {"$os": "Mac", "$device_type": "Desktop"}),
        ({"device_type": 7, "os_name": ["x"], "os_version": {}}, {}),
        ({"ip_address": "203.0.113.9"}, {"$ip": "203.0.113.9"}),
        (
            {"city": "Berlin"},
            {"$geoip_city_name": "Berlin", "$set": {"$geoip_city_name": "Berlin"}},
        ),
        (
            {"event_properties": {"[Amplitude] Page URL": "https://x.example/p"}},
            {"$current_url": "https://x.example/p"},
        ),
        ({"event_properties": {"[Amplitude] Page Domain": "x.example"}}, {"$host": "x.example"}),
        ({"event_properties": {"[Amplitude] Page Path": "/p"}}, {"$pathname": "/p"}),
        (
            {"event_properties": {"[Amplitude] Page Title": "P", "total": 1.5, "none": None}},
            {"[Amplitude] Page Title": "P", "total": 1.5, "none": None},
        ),
        ({"event_properties": {"$browser": "mine"}, "os_name": "Chrome"}, {"$browser": "mine"}),
        (
            {"event_properties": {"$host": "mine", "[Amplitude] Page Domain": "x"}},
            {"$host": "mine", "[Amplitude] Page Domain": "x"},
        ),
        ({"user_properties": {"plan": "pro"}}, {"$set": {"plan": "pro"}}),
        ({"user_properties": {}}, {}),
        (
            {
                "user_properties": None,
                "groups": None,
                "event_properties": None,
                "group_properties": None,
            },
            {},
        ),
        ({"groups": {"company": "acme"}}, {"$groups": {"company": "acme"}}),
        (
            {"groups": {"company": ["acme", "other"], "team": 7, "no": ""}},
            {"$groups": {"company": "acme", "team": "7"}},
        ),
        ({"session_id": "1709288430000"}, {"$amplitude_session_id": "1709288430000"}),
        ({"amplitude_id": 2**62 + 1}, {"amplitude_id": 2**62 + 1}),
        ({"$insert_id": "i1"}, {"amplitude_insert_id": "i1"}),
        (
            {"paying": False, "location_lat": 0},
            {"amplitude_paying": False, "amplitude_location_lat": 0},
        ),
        ({"os_name": None, "city": "", "dma": None}, {}),
        (
            {
                "app": 12345,
                "$schema": 13,
                "data": {"a": 1},
                "processed_time": "x",
                "server_upload_time": "x",
                "sample_rate": 1,
            },
            {},
        ),
    ],
)
def test_each_field_becomes_its_property(
    fields: dict[str, Any], properties: dict[str, Any]
) -> None:
    """The event's own properties win; nothing stands for null or an empty text; notes of receipt
    aren't brought along.
    """
    assert plain(one({**RECORD, **fields})) == {**DEVICE, **properties}


def test_fields_without_a_name_of_the_service_keep_their_own() -> None:
    """Each of them with `amplitude_` before it, once."""
    assert set(KEPT.values()) == {f"amplitude_{name.removeprefix('amplitude_')}" for name in KEPT}
    assert plain(one({**RECORD, "platform": "Web", "version_name": "4.2"})) == {
        **DEVICE,
        "amplitude_platform": "Web",
        "amplitude_version_name": "4.2",
    }


@cases(
    ("theirs", "ours"),
    [
        ("[Amplitude] Page Viewed", "$pageview"),
        ("[Amplitude] Element Clicked", "$autocapture"),
        ("[Amplitude] Element Changed", "$autocapture"),
        ("[Amplitude] Form Submitted", "[Amplitude] Form Submitted"),
        ("$identify", "$set"),
        ("Grüße", "Grüße"),
    ],
)
def test_each_name_becomes_its_name(theirs: str, ours: str) -> None:
    """Page views and clicks get the service's names, and a device's `$identify` one that
    identifies no one; others keep theirs.
    """
    assert names({**RECORD, "event_type": theirs}) == [ours]


def test_a_session_start_stands_for_no_event() -> None:
    """Nor for the first time of its pair: the next event brings the identify. Its end is dropped,
    too.
    """
    amplitude = AmplitudeConverter()
    assert convert({**SIGNED_IN, "event_type": "session_start"}, amplitude) == []
    assert convert({**SIGNED_IN, "event_type": "session_end"}, amplitude) == []
    assert convert({"event_type": "session_start"}, amplitude) == []
    assert names(SIGNED_IN, amplitude) == ["$identify", "Bought"]


@cases(
    ("ids", "distinct_id"),
    [
        ({"user_id": "u1"}, "u1"),
        ({"user_id": 4711}, "4711"),
        ({"user_id": 1.5}, "1.5"),
        ({"user_id": None}, "d1"),
        ({"user_id": " "}, "d1"),
        ({"user_id": "u1", "device_id": None}, "u1"),
        ({"user_id": "u1", "device_id": "null"}, "u1"),
    ],
)
def test_the_user_else_the_device_is_the_person(ids: dict[str, Any], distinct_id: str) -> None:
    """A blank user is none; a number is its text."""
    assert one({**RECORD, **ids}).distinct_id == distinct_id


@cases(
    ("times", "micros"),
    [
        ({"event_time": "2024-03-01 10:20:30.456789"}, MICROS),
        ({"event_time": "2024-03-01 10:20:30"}, MICROS - 456_789),
        ({"event_time": "2024-03-01T10:20:30.456Z"}, MICROS - 789),
        ({"event_time": "2024-03-01T10:20:30.456789+00:00"}, MICROS),
        ({"event_time": "2024-03-01T10:20:30.456789"}, MICROS),
        (
            {
                "client_event_time": "2020-01-01 00:00:00",
                "server_received_time": "2020-01-01 00:00:00",
            },
            MICROS,
        ),
        (
            {
                "event_time": None,
                "client_event_time": "2024-03-01 10:20:30.456789",
                "server_received_time": "2020-01-01",
            },
            MICROS,
        ),
        (
            {
                "event_time": "",
                "client_event_time": "",
                "server_received_time": "2024-03-01T10:20:30.456789Z",
            },
            MICROS,
        ),
    ],
)
def test_the_first_time_that_is_there_counts(times: dict[str, Any], micros: int) -> None:
    """In both forms, to the microsecond, as UTC."""
    assert one({**RECORD, **times}).time == micros


def test_the_offset_moves_times_without_a_zone() -> None:
    """For exports that went through a tool which wrote local times."""
    moved = AmplitudeConverter(clock=ahead(60))
    assert one(RECORD, moved).time == MICROS - 3_600_000_000
    assert one({**RECORD, "event_time": "2024-03-01T10:20:30.456789Z"}, moved).time == MICROS


def test_the_uuid_is_the_records_own_in_lower_case() -> None:
    """And what tells the record from others: an hour that was exported twice is sent once."""
    event = one({**RECORD, "uuid": UUID.upper()})
    assert (event.uuid, event.keyed) == (UUID, True)
    assert one({**RECORD, "uuid": UUID.replace("-", "")}).uuid == UUID.replace("-", "")


@cases("uuid", [None, "", "not-a-uuid", 7, UUID + "0", "00000000-0000-0000-0000-000000000000"])
def test_without_one_the_uuid_follows_from_the_place(uuid: object) -> None:
    """Of the file's identity and the record's number; nothing but the place tells such a record
    from others.
    """
    record = {**SIGNED_IN, "uuid": uuid}
    identify, event = convert(record, place=17)
    assert event.uuid == derived_uuid('["amplitude","c0ffee",17]')
    assert (event.keyed, identify.keyed) == (False, False)
    assert convert(record, place=18)[-1].uuid != event.uuid


def test_the_first_event_of_a_device_with_a_user_brings_an_identify() -> None:
    """Before it, at its time, with a uuid of its own; later events bring none, nor does another
    user of the device, who is someone else; another device's first does.
    """
    amplitude = AmplitudeConverter()
    identify, event = convert(SIGNED_IN, amplitude)
    assert (identify.event, identify.distinct_id, identify.time) == ("$identify", "u1", event.time)
    assert plain(identify) == {"$anon_distinct_id": "d1"}
    assert identify.keyed
    assert identify.uuid == derived_uuid(f'["amplitude","{UUID}","$identify"]')
    assert names(SIGNED_IN, amplitude) == ["Bought"]
    assert names({**SIGNED_IN, "device_id": "d2"}, amplitude) == ["$identify", "Bought"]
    assert names({**SIGNED_IN, "user_id": "u2"}, amplitude) == ["Bought"]
    assert names({**SIGNED_IN, "device_id": "d2"}, amplitude) == ["Bought"]


@cases(
    "ids", [{"device_id": "u1"}, {"device_id": None}, {"device_id": "undefined"}, {"user_id": None}]
)
def test_no_identify_where_there_is_nothing_to_join(ids: dict[str, Any]) -> None:
    """One id alone, twice the same, or a device that is no one's: joining it would make one person
    of strangers.
    """
    assert names({**SIGNED_IN, **ids}) == ["Bought"]


def test_a_user_id_that_many_share_takes_no_device() -> None:
    """The first user with an id of his own is joined with it."""
    amplitude = AmplitudeConverter()
    assert names({**RECORD, "user_id": "0"}, amplitude) == ["Bought"]
    assert names(SIGNED_IN, amplitude) == ["$identify", "Bought"]


def test_user_properties_of_white_space_are_none() -> None:
    """The place still stands in an object."""
    record = json.dumps({**RECORD, "city": "Rome", "user_properties": {}}).encode()
    (event,) = convert(record.replace(b"{}", b"{ }"))
    assert plain(event)["$set"] == {"$geoip_city_name": "Rome"}


@cases("version", ["9" * 5000, "1234567890123456789", "012"])
def test_a_browsers_version_that_no_number_holds_stays_text(version: str) -> None:
    """However long it is."""
    properties = plain(one({**RECORD, "os_name": "Chrome", "os_version": version}))
    assert properties["$browser_version"] == version


def test_what_is_said_once_is_said_from_since_on() -> None:
    """Records from before are left out with all that they bring: so the first one after them
    brings it, or the pair was never joined.
    """
    amplitude = AmplitudeConverter(since=MICROS)
    before = {**SIGNED_IN, **ACME, "event_time": "2024-03-01 10:20:30.456788"}
    assert names(before, amplitude) == ["Bought"]
    assert names({**SIGNED_IN, **ACME}, amplitude) == ["$identify", "$groupidentify", "Bought"]
    assert names(before, amplitude) == names({**SIGNED_IN, **ACME}, amplitude) == ["Bought"]


def test_what_comes_from_until_on_takes_no_device_and_no_group() -> None:
    """It is left out, also where it comes first."""
    amplitude = AmplitudeConverter(until=MICROS + 1)
    after = {**SIGNED_IN, **ACME, "event_time": "2024-03-01 10:20:30.456790"}
    assert names(after, amplitude) == ["Bought"]
    assert names({**SIGNED_IN, **ACME}, amplitude) == ["$identify", "$groupidentify", "Bought"]


def test_a_forgotten_device_gets_another_identify_never_the_same_uuid_at_another_time() -> None:
    """A second one changes nothing; the same uuid at two times would be two
    events that look like one.
    """
    amplitude = AmplitudeConverter(remembered=1)
    first = convert(SIGNED_IN, amplitude)[0]
    for device in ("d2", "d3"):
        convert({**SIGNED_IN, "device_id": device}, amplitude)
    again = convert(
        {**SIGNED_IN, "uuid": UUID.replace("6", "7"), "event_time": "2024-03-02 00:00:00"},
        amplitude,
    )[0]
    assert (again.event, plain(again)) == (first.event, plain(first))
    assert again.uuid != first.uuid


def test_a_sessions_id_is_a_uuid_of_version_7_at_its_start() -> None:
    """One for all events of a session, also after signing in; another for another device or
    start, however many were seen between.
    """
    session = {"session_id": 1_709_288_430_123}
    amplitude = AmplitudeConverter()
    session_id = uuids.UUID(plain(one({**RECORD, **session}, amplitude))["$session_id"])
    assert session_id.version == 7
    assert session_id.variant == uuids.RFC_4122
    assert session_id.int >> 80 == 1_709_288_430_123
    for number in range(5000):
        other = plain(one({**RECORD, "session_id": 1_709_288_430_124 + number}, amplitude))
        assert other["$session_id"] != str(session_id)
    assert plain(one({**SIGNED_IN, **session}, amplitude))["$session_id"] == str(session_id)
    assert plain(one({**RECORD, **session, "device_id": "d2"}))["$session_id"] != str(session_id)


@cases("session", [None, 0, -1, "", 1 << 48, 1.5])
def test_what_is_no_session_gets_no_id(session: object) -> None:
    """Amplitude writes -1 outside of sessions."""
    assert "$session_id" not in plain(one({**RECORD, "session_id": session}))


def test_what_came_before_of_a_device_changes_nothing_of_its_next_event() -> None:
    """Its sessions and its software are remembered: each of its records gets the same properties,
    byte for byte, as by a converter that has seen none before.
    """
    devices: list[dict[str, Any]] = [
        {},
        {"user_id": "u1"},
        {"device_id": 1},
        {"device_id": 1.0},
        {"device_id": "1"},
    ]
    devices += [{"device_id": "d" * 300}, {"user_id": "", "device_id": "d2"}]
    sessions: list[object] = [1_709_288_430_123, 1_709_288_430_123.0, 1, True, 1.0, -1, None, "1"]
    software: list[dict[str, Any]] = [{}, {"os_name": "Chrome", "os_version": "1"}]
    software += [{"os_name": "ios", "device_type": "iPhone"}, {"os_name": 1}, {"os_name": ["x"]}]
    records = [
        {**RECORD, **device, "session_id": session, **named}
        for _ in range(2)
        for session in sessions
        for named in software
        for device in devices
    ]
    amplitude = AmplitudeConverter()
    for record in records:
        known, new = one(record, amplitude), one(record)
        assert known.distinct_id == new.distinct_id
        assert msgspec.json.encode(known.properties) == msgspec.json.encode(new.properties)


def test_a_device_is_joined_once_however_many_come_between() -> None:
    """Also after so many that it isn't among the senders that are remembered."""
    amplitude = AmplitudeConverter()
    assert names(SIGNED_IN, amplitude) == ["$identify", "Bought"]
    for number in range(5000):
        convert({**SIGNED_IN, "device_id": f"other-{number}"}, amplitude)
    assert names(SIGNED_IN, amplitude) == ["Bought"]


def test_without_person_properties_user_properties_are_not_read() -> None:
    """They are dropped later, whatever is in them."""
    record = {**RECORD, "city": "Berlin", "user_properties": {"$set": {"a": 1}}}
    properties = plain(one(record, AmplitudeConverter(persons=False)))
    assert properties["$set"] == record["user_properties"]


def test_a_groups_properties_are_sent_when_they_are_new() -> None:
    """Once for a group and its properties, no matter who's event it is; again when they
    are others.
    """
    amplitude = AmplitudeConverter()
    group, event = convert({**RECORD, **ACME}, amplitude)
    assert (group.event, group.distinct_id, group.time) == ("$groupidentify", "d1", event.time)
    assert plain(group) == {
        "$group_type": "company",
        "$group_key": "acme",
        "$group_set": {"plan": "pro"},
    }
    assert group.keyed
    assert group.uuid == derived_uuid(f'["amplitude","{UUID}","$groupidentify","company","acme"]')
    assert names({**RECORD, **ACME, "device_id": "d2"}, amplitude) == ["Bought"]
    assert names(
        {**RECORD, **ACME, "group_properties": {"company": {"plan": "free"}}}, amplitude
    ) == ["$groupidentify", "Bought"]


@cases(
    ("groups", "said", "sent"),
    [
        ({"company": "a"}, None, {"a": None}),
        ({"company": "a"}, {"company": {"a": {"x": 1}}}, {"a": {"x": 1}}),
        ({"company": "a"}, {"company": {"x": {"y": 1}}}, {"a": {"x": {"y": 1}}}),
        (
            {"company": ["a", "b"]},
            {"company": {"a": {"x": 1}, "b": {"x": 2}}},
            {"a": {"x": 1}, "b": {"x": 2}},
        ),
        ({"company": ["a", "a", " ", None]}, {"other": {"x": 1}}, {"a": None}),
    ],
)
def test_properties_of_groups_come_by_type_or_by_type_and_name(
    groups: Any, said: Any, sent: dict[str, Any]
) -> None:
    """Both forms are read; a group without properties is sent without; blank names are
    no groups.
    """
    events = convert({**RECORD, "groups": groups, "group_properties": said})[:-1]
    assert {plain(event)["$group_key"]: plain(event).get("$group_set") for event in events} == sent
    assert len(events) == len(sent) == len({event.uuid for event in events})


def test_amplitudes_own_group_identify_is_about_its_groups_alone() -> None:
    """It would be an event without a group otherwise; without groups it is refused."""
    own = {**RECORD, "event_type": "$groupidentify"}
    amplitude = AmplitudeConverter()
    assert names({**own, **ACME}, amplitude) == ["$groupidentify"]
    assert names({**own, **ACME}, amplitude) == []
    with pytest.raises(RecordRefused) as refused:
        convert(own)
    assert refused.value.why is Reason.UNMAPPABLE


def test_a_refused_record_is_not_remembered() -> None:
    """What it would have brought comes with the next record that is taken."""
    amplitude = AmplitudeConverter()
    wrongs: list[dict[str, Any]] = [
        {"event_time": "?"},
        {"groups": {"a": {}}},
        {"event_type": "$groupidentify"},
        {"user_properties": 1},
    ]
    for wrong in wrongs:
        with pytest.raises(RecordRefused):
            convert({**SIGNED_IN, **ACME, "groups": {}, **wrong}, amplitude)
    assert names({**SIGNED_IN, **ACME}, amplitude) == ["$identify", "$groupidentify", "Bought"]


def test_values_keep_their_bytes() -> None:
    """Of events, persons and groups: digits that a float would lose, and the form of numbers."""
    values = b'{"n":1.10,"big":123456789012345678901234567890,"e":1E2,"t":"\\u00e9"}'
    record = json.dumps({**RECORD, "groups": {"g": "k"}}).encode()[:-1]
    record += b',"event_properties":%b,"user_properties":%b,"group_properties":{"g":%b}}' % (
        values,
        values,
        values,
    )
    group, event = convert(record)
    assert values[1:-1] in msgspec.json.encode(event.properties)
    assert bytes(event.properties["$set"]) == values
    assert bytes(group.properties["$group_set"]) == values


@cases(
    ("record", "why", "words"),
    [
        (b"", Reason.UNDECODABLE, ""),
        (b'{"event_type":"a"', Reason.UNDECODABLE, ""),
        (b'["event_type"]', Reason.UNDECODABLE, "isn't a JSON object"),
        (b'{"event_type":"a","city":"\xff"}', Reason.UNDECODABLE, "UTF-8"),
        (b'{"event_type":"a","unread":"\xff"}', Reason.UNDECODABLE, "UTF-8"),
        (b'{"city":' + b"[" * 100_000, Reason.UNDECODABLE, ""),
        ({"event_type": None}, Reason.MISSING_EVENT, ""),
        ({"event_type": " "}, Reason.MISSING_EVENT, ""),
        ({"event_type": 5}, Reason.INVALID_EVENT, "event_type"),
        ({"device_id": None}, Reason.MISSING_DISTINCT_ID, ""),
        ({"device_id": "", "user_id": " "}, Reason.MISSING_DISTINCT_ID, ""),
        ({"user_id": True}, Reason.INVALID_EVENT, "user_id"),
        ({"device_id": []}, Reason.INVALID_EVENT, "device_id"),
        ({"event_time": None}, Reason.MISSING_TIMESTAMP, "event_time"),
        (
            {"event_time": "yesterday", "client_event_time": "2024-01-01"},
            Reason.MISSING_TIMESTAMP,
            "yesterday",
        ),
        ({"event_time": {}}, Reason.INVALID_EVENT, "event_time"),
        ({"event_properties": "{}"}, Reason.INVALID_EVENT, "event_properties"),
        ({"user_properties": "{}"}, Reason.INVALID_EVENT, "user_properties"),
        ({"groups": []}, Reason.INVALID_EVENT, "groups"),
        ({"groups": {"company": {"a": 1}}}, Reason.INVALID_EVENT, "company"),
        (
            {"groups": {"company": "a"}, "group_properties": []},
            Reason.INVALID_EVENT,
            "group_properties",
        ),
    ],
)
def test_what_cant_be_an_event_is_refused(
    record: dict[str, Any] | bytes, why: Reason, words: str
) -> None:
    """With the reason, and the field where there is one; a time that can't be read isn't replaced
    by another.
    """
    with pytest.raises(RecordRefused) as refused:
        convert(record if isinstance(record, bytes) else {**RECORD, **record})
    assert refused.value.why is why
    assert words in refused.value.detail


def test_a_sample_becomes_events_but_for_what_is_marked_as_wrong() -> None:
    """Every record gets its events or its reason; uuids are unique, and each pair of device and
    user is identified once.
    """
    records = sample()
    assert len(records) >= 2_000
    events: list[ImportedEvent] = []
    amplitude = AmplitudeConverter()
    for place, (record, why) in enumerate(records):
        if why is None:
            events += convert(record, amplitude, place)
            continue
        with pytest.raises(RecordRefused) as refused:
            convert(record, amplitude, place)
        assert refused.value.why is why
    assert len({event.uuid for event in events}) == len(events)
    pairs = Counter(
        (event.distinct_id, plain(event)["$anon_distinct_id"])
        for event in events
        if "$anon_distinct_id" in event.properties
    )
    assert set(pairs.values()) == {1}
    assert {"$pageview", "$autocapture", "$identify", "$groupidentify", "Order Completed"} <= {
        event.event for event in events
    }


def test_reading_a_source_again_gives_the_same_bytes() -> None:
    """However its records are cut into blocks, and whatever was converted in
    between by another converter.
    """
    records = [record for record, why in sample(600) if why is None]
    lines = range(1, len(records) + 1)
    whole = AmplitudeConverter(remembered=20)
    parts = AmplitudeConverter(remembered=20)
    first = [
        msgspec.json.encode(whole.convert(RecordBlock(FILE, 0, records, lines), index))
        for index in range(len(records))
    ]
    again = [
        msgspec.json.encode(convert(record, parts, place)) for place, record in enumerate(records)
    ]
    assert first == again


def test_the_sample_is_the_same_each_time_and_its_archive_has_the_same_records() -> None:
    """A seed gives one sample; the ZIP of gzip files has all of it."""
    records = [record for record, _ in sample(200)]
    assert (
        records
        == [record for record, _ in sample(200)]
        != [record for record, _ in sample(200, seed=2)]
    )
    with zipfile.ZipFile(io.BytesIO(archive(200))) as made:
        lines = [
            line
            for name in made.namelist()
            for line in gzip.decompress(made.read(name)).splitlines()
        ]
    assert lines == records


@settings(deadline=None, max_examples=60)
@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                *KEPT,
                "event_type",
                "user_id",
                "device_id",
                "uuid",
                "event_time",
                "event_properties",
                "user_properties",
                "groups",
            ]
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(codec="utf-8")),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=3
                )
            ),
            max_leaves=4,
        ),
    )
)
def test_any_record_becomes_events_or_is_refused(changes: dict[str, Any]) -> None:
    """Nothing else happens, whatever its fields hold; and what becomes of it can be written."""
    try:
        events = convert({**SIGNED_IN, **ACME, **changes})
    except RecordRefused:
        return
    assert all(event.distinct_id and event.event and event.time >= 0 for event in events)
    json.loads(msgspec.json.encode(events))


KEYS = st.lists(st.integers(0, 12), max_size=120)


def answers(keys: list[int], remembered: int) -> list[bool]:
    """Which of the keys count as new, one after the other."""
    seen = FirstSeenKeys(remembered)
    return [seen.is_new(b"%d" % key) for key in keys]


@settings(deadline=None, max_examples=60)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_a_key_among_the_last_different_ones_is_known_and_an_unseen_one_is_new(
    keys: list[int], remembered: int
) -> None:
    """Nothing unseen is ever known; what was seen with fewer than `remembered` other keys since
    then always is.
    """
    are_new = answers(keys, remembered)
    for place, key in enumerate(keys):
        before = keys[:place]
        if key not in before:
            assert are_new[place]
        elif len(set(before[place - 1 - before[::-1].index(key) :])) <= remembered:
            assert not are_new[place]


@settings(deadline=None, max_examples=60)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_no_more_than_twice_the_number_is_remembered(keys: list[int], remembered: int) -> None:
    """However many keys came, memory stays within its bound: after so many others, each is as good
    as new.
    """
    assert all(
        answers([*keys, *range(13, 13 + 2 * remembered), *keys[:1]], remembered)[len(keys) :]
    )


@settings(deadline=None, max_examples=30)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_the_same_keys_get_the_same_answers(keys: list[int], remembered: int) -> None:
    """A source that is read again is answered as it was the first time."""
    assert answers(keys, remembered) == answers(keys, remembered)
