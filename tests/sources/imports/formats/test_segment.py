"""What each of Segment's calls becomes, rule by rule, and which records are refused."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.segment import CALLS, SegmentConverter, SegmentExport
from tests.sources.imports.preflights import ahead
from tests.sources.imports.samples.segment import sample
from tests.support.cases import cases

FILE = SourceFile("2024-03-01.json.gz", "c0ffee")
TIME = "2024-03-01T10:20:30.456Z"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS = 1_709_288_430_456_000
WHO = {"userId": "u1", "anonymousId": "a1"}
TRACK = {"type": "track", "event": "Bought", "messageId": "m1", "timestamp": TIME, **WHO}
CONTEXT = {
    "ip": "203.0.113.9",
    "userAgent": "Browser/1",
    "library": {"name": "analytics.js", "version": "2.1"},
    "page": {
        "url": "https://example.com/p",
        "path": "/p",
        "referrer": "https://example.org/",
        "title": "P",
        "search": "?q",
    },
    "campaign": {"name": "spring"},
    "locale": "de",
}
SERVER_PAGE = {"url": "https://example.com/s", "path": "/s", "referrer": None, "title": "S", "n": 1}
AROUND = {
    "$ip": "203.0.113.9",
    "$raw_user_agent": "Browser/1",
    "$lib": "analytics.js",
    "$lib_version": "2.1",
    "$current_url": "https://example.com/p",
    "$pathname": "/p",
    "$referrer": "https://example.org/",
    "$title": "P",
    "utm_campaign": "spring",
    "$locale": "de",
}


def one(
    record: dict[str, Any] | bytes, converter: SegmentConverter | None = None, first: int = 0
) -> ImportedEvent:
    """The event of a record."""
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    (event,) = (converter or SegmentConverter()).convert(
        RecordBlock(FILE, first, [data], [first + 1]), 0
    )
    return event


def plain(event: ImportedEvent) -> Any:
    """An event's properties as JSON values."""
    return json.loads(msgspec.json.encode(event.properties))


def refusal(record: dict[str, Any] | bytes) -> RecordRefused:
    """Why a record is refused."""
    with pytest.raises(RecordRefused) as refused:
        one(record)
    return refused.value


def outcome(converter: SegmentConverter, block: RecordBlock, index: int) -> ImportedEvent | Reason:
    """The event of a record, or why it is refused."""
    try:
        (event,) = converter.convert(block, index)
    except RecordRefused as refused:
        return refused.why
    return event


def call(kind: str, **fields: Any) -> dict[str, Any]:
    """A record of a call, of a user with an anonymous id."""
    return {"type": kind, "messageId": "m1", "timestamp": TIME, **WHO, **fields}


GOLDEN: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("track", call("track", event="Bought", properties={"n": 1}), "Bought", {"n": 1}),
    ("track without properties", call("track", event="Bought"), "Bought", {}),
    (
        "track with null properties",
        call("track", event="Bought", properties=None, context=None),
        "Bought",
        {},
    ),
    ("context", call("track", event="Bought", context=CONTEXT), "Bought", AROUND),
    (
        "null in context",
        call(
            "track", event="Bought", context={"ip": None, "library": {"name": None}, "page": None}
        ),
        "Bought",
        {},
    ),
    (
        "odd context",
        call("track", event="Bought", context={"library": "own", "page": 1, "ip": "::1"}),
        "Bought",
        {"$ip": "::1"},
    ),
    ("context of another type", call("track", event="Bought", context="none"), "Bought", {}),
    (
        "own properties win",
        call("track", event="B", properties={"$ip": "::1"}, context={"ip": "::2"}),
        "B",
        {"$ip": "::1"},
    ),
    ("page", call("page", context=CONTEXT), "$pageview", AROUND),
    (
        "page with a name",
        call("page", name="Home", category="Docs"),
        "$pageview",
        {"name": "Home", "category": "Docs"},
    ),
    (
        "page named twice",
        call("page", name="Home", properties={"name": "Own"}),
        "$pageview",
        {"name": "Own"},
    ),
    (
        "page of a server",
        call("page", properties=SERVER_PAGE),
        "$pageview",
        SERVER_PAGE | {"$current_url": "https://example.com/s", "$pathname": "/s", "$title": "S"},
    ),
    (
        "context.page before the page's properties",
        call(
            "page",
            properties={"url": "https://example.com/s"},
            context={"page": {"url": "https://example.com/c"}},
        ),
        "$pageview",
        {"url": "https://example.com/s", "$current_url": "https://example.com/c"},
    ),
    (
        "screen",
        call("screen", name="Cart", category="Shop"),
        "$screen",
        {"$screen_name": "Cart", "name": "Cart", "category": "Shop"},
    ),
    (
        "screen named in properties",
        call("screen", properties={"name": "Cart"}),
        "$screen",
        {"$screen_name": "Cart", "name": "Cart"},
    ),
    ("screen without a name", call("screen", name=None), "$screen", {}),
    (
        "identify",
        call("identify", traits={"plan": "pro"}),
        "$identify",
        {"$set": {"plan": "pro"}, "$anon_distinct_id": "a1"},
    ),
    (
        "identify without traits",
        call("identify", traits=None),
        "$identify",
        {"$anon_distinct_id": "a1"},
    ),
    (
        "identify with its own $set",
        call("identify", properties={"$set": 1}),
        "$identify",
        {"$set": 1, "$anon_distinct_id": "a1"},
    ),
    (
        "identify of nobody new",
        call("identify", anonymousId="u1", traits={"a": 1}),
        "$identify",
        {"$set": {"a": 1}},
    ),
    (
        "identify of a user only",
        call("identify", anonymousId=None, traits={"a": 1}),
        "$identify",
        {"$set": {"a": 1}},
    ),
    (
        "identify of an anonymous one",
        call("identify", userId=None, traits={"a": 1}),
        "$set",
        {"$set": {"a": 1}},
    ),
    (
        "group",
        call("group", groupId="g1", traits={"size": 5}),
        "$groupidentify",
        {"$group_type": "segment_group", "$group_key": "g1", "$group_set": {"size": 5}},
    ),
    (
        "group without traits",
        call("group", groupId=7),
        "$groupidentify",
        {"$group_type": "segment_group", "$group_key": "7"},
    ),
    ("alias", call("alias", previousId="old"), "$create_alias", {"alias": "old"}),
]


@cases(("record", "event", "properties"), [pytest.param(*row[1:], id=row[0]) for row in GOLDEN])
def test_calls(record: dict[str, Any], event: str, properties: dict[str, Any]) -> None:
    """Each call becomes the event of its kind, with what its record and its context say."""
    made = one(record)
    assert (made.event, plain(made)) == (event, properties)
    assert (made.time, made.keyed, made.uuid) == (MICROS, True, derived_uuid('["segment","m1"]'))


def test_what_segment_added_is_left_out() -> None:
    """The keys, times and switches of Segment's delivery are no properties,
    whatever the switches say.
    """
    added = {
        "writeKey": "w",
        "projectId": "p",
        "integrations": {"All": False},
        "channel": "client",
        "receivedAt": TIME,
        "sentAt": TIME,
    }
    assert plain(one({**TRACK, **added, "version": 2})) == {}


@cases(
    ("ids", "distinct_id"),
    [
        ({"userId": "u1", "anonymousId": "a1"}, "u1"),
        ({"userId": None, "anonymousId": "a1"}, "a1"),
        ({"userId": "", "anonymousId": "a1"}, "a1"),
        ({"userId": " ", "anonymousId": "a1"}, "a1"),
        ({"userId": 12345678901234567890123, "anonymousId": None}, "12345678901234567890123"),
        ({"userId": "u1", "anonymousId": "null"}, "u1"),
        ({"userId": 'ü\n"1', "anonymousId": None}, 'ü\n"1'),
    ],
)
def test_ids(ids: dict[str, Any], distinct_id: str) -> None:
    """The user's id is taken, else the anonymous one; numbers are written as in JSON."""
    assert one({**TRACK, **ids}).distinct_id == distinct_id


def test_the_corrected_time_precedes_the_original() -> None:
    """`timestamp` is corrected for the sender's clock; `originalTimestamp` is
    taken where that is missing.
    """
    original = {"originalTimestamp": "2024-03-01T10:20:30.456789Z"}
    assert one({**TRACK, **original}).time == MICROS
    assert one({**TRACK, **original, "timestamp": None}).time == MICROS + 789
    assert one({**TRACK, **original, "timestamp": ""}).time == MICROS + 789


def test_times_without_a_zone_are_of_the_clock_that_was_said() -> None:
    """They are UTC unless the options say how far ahead that clock is."""
    record = {**TRACK, "timestamp": TIME.removesuffix("Z")}
    assert one(record).time == MICROS
    assert one(record, SegmentConverter(clock=ahead(90))).time == MICROS - 90 * 60_000_000


def test_uuids_follow_from_the_message_id() -> None:
    """The same call in another file is the same event; without a message id the place in the file
    tells calls apart.
    """
    assert one(TRACK).uuid == one(TRACK, first=9).uuid == derived_uuid('["segment","m1"]')
    for nothing in (" ", "undefined", None, 0):
        assert one({**TRACK, "messageId": nothing}).keyed is False
    bare = {**TRACK, "messageId": " "}
    assert one(bare, first=9).uuid == derived_uuid('["segment","c0ffee",9]')
    assert len({one(bare).uuid, one(bare, first=1).uuid, one(TRACK).uuid}) == 3


def test_values_keep_their_bytes() -> None:
    """Numbers and spellings come out as they came in, in properties and traits."""
    inner = b'{"price":1.50,"big":123456789012345678901234567890,"text":"\\u00e9\\/"}'
    head = json.dumps({**TRACK, "type": "identify"}).encode()[:-1]
    made = msgspec.json.encode(
        one(head + b',"traits":' + inner + b',"properties":' + inner + b"}").properties
    )
    assert made.count(inner) == 1
    assert made.startswith(inner[:-1])


def test_the_kind_of_group_can_be_said() -> None:
    """Segment doesn't know kinds of groups; the options say which they are."""
    assert (
        plain(
            one(call("group", groupId="g"), SegmentConverter(SegmentExport(group_type="company")))
        )["$group_type"]
        == "company"
    )


@cases(
    ("record", "why"),
    [
        (b'{"type":"track"', Reason.UNDECODABLE),
        (b"[]", Reason.UNDECODABLE),
        (b'{"type":"track","event":"\xff"}', Reason.UNDECODABLE),
        ({**TRACK, "type": None}, Reason.MISSING_EVENT),
        ({**TRACK, "type": 1}, Reason.INVALID_EVENT),
        ({**TRACK, "type": "delete"}, Reason.UNMAPPABLE),
        ({**TRACK, "event": ""}, Reason.MISSING_EVENT),
        ({**TRACK, "event": None}, Reason.MISSING_EVENT),
        ({**TRACK, "event": 5}, Reason.INVALID_EVENT),
        ({**TRACK, "userId": None, "anonymousId": ""}, Reason.MISSING_DISTINCT_ID),
        ({**TRACK, "userId": {"id": 1}}, Reason.INVALID_EVENT),
        (call("identify", traits=[1]), Reason.INVALID_EVENT),
        (call("group"), Reason.MISSING_DISTINCT_ID),
        (call("alias"), Reason.MISSING_DISTINCT_ID),
        ({**TRACK, "timestamp": None}, Reason.MISSING_TIMESTAMP),
        ({**TRACK, "timestamp": "soon", "originalTimestamp": TIME}, Reason.MISSING_TIMESTAMP),
        ({**TRACK, "properties": "x"}, Reason.INVALID_EVENT),
    ],
)
def test_refused_records(record: dict[str, Any] | bytes, why: Reason) -> None:
    """What can't be an event for sure is refused, and the reason says which field it was."""
    refused = refusal(record)
    assert refused.why == why
    assert refused.detail


def test_the_sample_becomes_what_it_says() -> None:
    """Each of its records becomes an event of its time, or is refused for the reason for which it
    was made; all kinds are there.
    """
    records = sample()
    converter = SegmentConverter()
    block = RecordBlock(FILE, 0, [record for record, _ in records], range(1, len(records) + 1))
    kinds: Counter[str] = Counter()
    for index, (record, expected) in enumerate(records):
        event = outcome(converter, block, index)
        if not isinstance(event, ImportedEvent):
            assert event == expected, record
            continue
        assert expected is None, record
        reported = json.loads(record)
        assert EPOCH + timedelta(microseconds=event.time) == datetime.fromisoformat(
            reported.get("timestamp") or reported["originalTimestamp"]
        )
        kinds[reported["type"]] += 1
    assert len(records) >= 2_000
    assert kinds.keys() == set(CALLS)


def test_the_same_record_gives_the_same_bytes() -> None:
    """No clock and no random value gets into an event: two readings are byte for byte the same."""
    blocks = [
        RecordBlock(FILE, 5, [record for record, why in sample(200) if why is None], range(200))
        for _ in range(2)
    ]
    first, second = (
        [
            msgspec.json.encode(SegmentConverter().convert(block, at))
            for at in range(len(block.records))
        ]
        for block in blocks
    )
    assert first == second


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
NAMES = [
    "userId",
    "anonymousId",
    "event",
    "properties",
    "traits",
    "context",
    "timestamp",
    "messageId",
    "groupId",
    "previousId",
    "name",
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(CALLS)), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_any_record_becomes_an_event_or_is_refused(kind: str, fields: dict[str, Any]) -> None:
    """Whatever stands in the fields, nothing but `RecordRefused` comes of it,
    and an event is complete.
    """
    try:
        event = one({**call(kind, event="e", groupId="g", previousId="p"), **fields})
    except RecordRefused:
        return
    assert event.event
    assert event.distinct_id.strip()
    assert event.time >= 0
    assert isinstance(plain(event), dict)
