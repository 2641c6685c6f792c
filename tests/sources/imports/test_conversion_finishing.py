"""Events as they are sent: what is added, what stays, what is refused; one by
one and in whole blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import EventFinisher, FinishPolicy
from forwarder.sources.imports.format import (
    ImportedEvent,
    PersonProperties,
    RecordRefused,
)
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.times import DAY
from tests.sources.imports.samples.native import as_json, block
from tests.support.cases import cases

UUID = "0198c3c0-1111-7222-8333-444455556666"
JOB = "5a5a5a5a-0000-5000-8000-000000000000"
TIME = 1_735_689_600_000_000  # 2025-01-01


def event(properties: Mapping[str, Any] | None = None, time: int = TIME) -> ImportedEvent:
    """An event with these properties."""
    return ImportedEvent("signed up", "person", time, UUID, dict(properties or {}))


def finish(
    made: ImportedEvent,
    policy: PersonProperties = "oldest",
    *,
    geoip: bool = False,
    max_bytes: int | None = None,
) -> bytes:
    """The bytes of an event."""
    finisher = EventFinisher(FinishPolicy(policy, geoip, JOB), max_bytes)
    (data,), refused = finisher.finish(
        [msgspec.structs.replace(made, properties=dict(made.properties))]
    )
    for why in refused.values():
        raise why
    return data


def properties_of(made: ImportedEvent, policy: PersonProperties = "oldest") -> dict[str, Any]:
    """The properties as the service reads them, without what each event has."""
    properties: dict[str, Any] = json.loads(finish(made, policy))["properties"]
    return {
        key: value
        for key, value in properties.items()
        if key not in ("$geoip_disable", "$import_job_id")
    }


def raw(text: str) -> Raw:
    """A value as it stands in a record."""
    return Raw(text.encode())


def test_the_bytes_of_an_event() -> None:
    """Members have one order; raw values keep their bytes, white space and digits too."""
    made = event(
        {
            "plan": "é",
            "price": raw("1.50"),
            "list": raw("[ 1,2.0 ]"),
            "big": raw("12345678901234567890123"),
        }
    )
    assert finish(made).decode() == (
        '{"event":"signed up","distinct_id":"person","uuid":"'
        + UUID
        + '","timestamp":"2025-01-01T00:00:00Z",'
        '"properties":{"plan":"é","price":1.50,"list":[ 1,2.0 ],"big":12345678901234567890123,'
        '"$geoip_disable":true,"$import_job_id":"' + JOB + '"}}'
    )


def test_too_deep_nesting_is_rejected_by_every_parser() -> None:
    """The bound is a number, not what a decoder's stack has left: every run says the same.
    Brackets in texts are none.
    """
    deep = raw("[" * 119 + "]" * 119)
    assert b"[" * 118 in finish(
        event({"shallow": raw("[" * 118 + "]" * 118), "text": '\\"[{' * 2000})
    )
    with pytest.raises(RecordRefused, match="nested too deep") as refused:
        finish(event({"deep": deep}))
    assert refused.value.why is Reason.UNDECODABLE


@cases(
    ("time", "text"),
    [
        (TIME, "2025-01-01T00:00:00Z"),
        (TIME + 1, "2025-01-01T00:00:00.000001Z"),
        (TIME + 120_000, "2025-01-01T00:00:00.120000Z"),
        (TIME - 1, "2024-12-31T23:59:59.999999Z"),
        (0, "1970-01-01T00:00:00Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_times_are_exact(time: int, text: str) -> None:
    """Every microsecond of the calendar is written as it is; a whole second without a fraction."""
    assert json.loads(finish(event(time=time)))["timestamp"] == text


def test_what_is_added_stands_once() -> None:
    """A record that says `$geoip_disable` or is of another import gets what this import says, and
    no second member of the name.
    """
    data = finish(event({"$geoip_disable": False, "$import_job_id": raw('"other"'), "a": 1}))
    assert data.endswith(
        b'"properties":{"$geoip_disable":true,"$import_job_id":"%b","a":1}}' % JOB.encode()
    )


def test_with_geoip_the_service_may_look_it_up() -> None:
    """Nothing is added then; what the record itself says stays."""
    assert b"geoip" not in finish(event(), geoip=True)
    assert b'"$geoip_disable":true' in finish(event({"$geoip_disable": raw("true")}), geoip=True)


@cases(
    ("policy", "left"),
    [
        ("history", {"$set": {"a": 1, "b": 2}, "$set_once": {"b": 3}, "$unset": ["c"], "d": 4}),
        ("oldest", {"$set_once": {"b": 3, "a": 1}, "d": 4}),
        ("none", {"d": 4}),
    ],
)
@cases("is_raw", [True, False])
def test_properties_of_persons_follow_the_policy(
    policy: PersonProperties, left: dict[str, Any], is_raw: bool
) -> None:
    """`$set` becomes `$set_once`, whose own values win; nothing is unset. `none` takes all away,
    `set` nothing; others stay.
    """
    values: dict[str, Any] = {
        "$set": {"a": 1, "b": 2},
        "$set_once": {"b": 3},
        "$unset": ["c"],
        "d": 4,
    }
    if is_raw:
        values = {key: raw(json.dumps(value)) for key, value in values.items()}
    assert properties_of(event(values), policy) == left


@cases(
    ("values", "left"),
    [
        ({"$set": "[1]"}, {}),
        ({"$set": "null", "$set_once": '{"a":1}'}, {"$set_once": {"a": 1}}),
        ({"$set": '{"a":1}', "$set_once": "null"}, {"$set_once": {"a": 1}}),
        ({"$set": "{}"}, {"$set_once": {}}),
        ({"$unset": '"a"'}, {}),
        ({"$set_once": '"odd"'}, {"$set_once": "odd"}),
    ],
)
def test_what_is_no_object_sets_nothing(values: dict[str, str], left: dict[str, Any]) -> None:
    """`$set` with another value is taken away, and doesn't disturb `$set_once`."""
    assert properties_of(event({key: raw(text) for key, text in values.items()})) == left


def test_values_that_move_keep_their_bytes() -> None:
    """A `$set` that becomes `$set_once` is the same text; merged, each value is."""
    assert b'"$set_once":{ "a": 1.50 }' in finish(event({"$set": raw('{ "a": 1.50 }')}))
    assert b'"$set_once":{"b":2.0,"a":1.50}' in finish(
        event({"$set": raw('{"a":1.50,"b":1}'), "$set_once": raw('{"b":2.0}')})
    )


@pytest.mark.parametrize(
    "value", ["\ud800", {"a": ["\udc00"]}], ids=["surrogate", "deep surrogate"]
)
def test_what_json_cant_say_is_refused(value: Any) -> None:
    """Nothing is sent otherwise than it was: no replacement for half a character."""
    with pytest.raises(RecordRefused) as refused:
        finish(event({"a": value}))
    assert refused.value.why is Reason.UNDECODABLE


@cases(
    ("number", "words"),
    [
        ("1e400", "a number too large for a double"),
        ("-12E+0999", "a number too large for a double"),
        ("9" * 250 + "e99", "a number too large for a double"),
        ("7" * 400, "an integer of more than 308 digits"),
    ],
)
def test_numbers_that_overflow_are_refused(number: str, words: str) -> None:
    """A double can't hold them, and strict parsers refuse the whole request; what only looks like
    one in a text is not a number.
    """
    for value in (raw(number), [{"a": raw(f"[1,{number} ]")}]):
        with pytest.raises(RecordRefused, match=f"it has {words}") as refused:
            finish(event({"a": value}))
        assert refused.value.why is Reason.UNDECODABLE
    assert number.encode() in finish(event({"a": f"[{number}]", "b": raw("1e308"), "c": 2**80}))


def test_names_and_ids_have_to_be_text_too() -> None:
    """Half a surrogate pair in a name is refused as one in a property is."""
    with pytest.raises(RecordRefused, match="half a surrogate pair"):
        finish(ImportedEvent("\udfff", "person", TIME, UUID, {}))


def test_values_without_end_are_refused() -> None:
    """A value that is nested too deep to be written is refused, not a crash."""
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    try:
        with pytest.raises(RecordRefused, match="too deep"):
            finish(event({"a": value}))
    finally:
        while value:
            value = value[0]


@pytest.mark.parametrize("text", ['{"a":1', '{"a":"\\ud800"}'])
def test_an_object_that_cant_be_merged_is_refused(text: str) -> None:
    """A `$set` that has to be merged with `$set_once` is read; what can't be is refused."""
    with pytest.raises(RecordRefused) as refused:
        finish(event({"$set": raw(text), "$set_once": {"b": 1}}))
    assert refused.value.why is Reason.UNDECODABLE


def test_the_largest_event() -> None:
    """An event may have exactly `max_bytes`; all of what is sent counts."""
    size = len(finish(event({"a": "x"})))
    assert len(finish(event({"a": "x"}), max_bytes=size)) == size
    with pytest.raises(RecordRefused) as refused:
        finish(event({"a": "xy"}), max_bytes=size)
    assert (refused.value.why, refused.value.detail) == (
        Reason.TOO_LARGE,
        f"the event has {size + 1} bytes, {size} are allowed",
    )


def test_the_day_of_an_event() -> None:
    """Days are counted from 1970 in UTC, and end with their last microsecond."""
    assert [
        FinishedEvent(time, "a", "seen", "uuid", b"{}", 0, 1, 0).day
        for time in (0, DAY - 1, DAY, TIME)
    ] == [0, 0, 1, 20_089]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(
        st.text() | st.sampled_from(["$set", "$set_once", "$unset"]), VALUES, max_size=6
    ),
    st.booleans(),
)
def test_nothing_but_the_policy_changes_a_value(values: dict[str, Any], is_raw: bool) -> None:
    """With `set`, properties arrive as they are, raw or not; with `set_once` there is neither
    `$set` nor `$unset` in what is sent.
    """
    written = (
        {key: Raw(msgspec.json.encode(value)) for key, value in values.items()}
        if is_raw
        else values
    )
    expected = {
        key: value
        for key, value in values.items()
        if key not in ("$geoip_disable", "$import_job_id")
    }
    assert properties_of(event(written), "history") == expected
    assert not {"$set", "$unset"} & properties_of(event(written)).keys()
    assert not {"$set", "$unset", "$set_once"} & properties_of(event(written), "none").keys()


HEAD = {"event": "e", "distinct_id": "u1", "uuid": UUID, "timestamp": "2024-05-01T00:00:00Z"}
ADDED = {"$geoip_disable": True, "$import_job_id": JOB}


def finish_raw(
    record: bytes | object, policy: PersonProperties = "oldest", *, geoip: bool = False
) -> bytes:
    """The bytes of the event of a record."""
    converted = NativeConverter(policy).convert_event(block(record))
    (text,), _ = EventFinisher(FinishPolicy(policy, geoip, JOB)).finish_texts(
        converted.texts, converted.gaps
    )
    return text


def test_the_bytes_of_a_raw_event() -> None:
    """What is added stands first among the properties; nothing else is changed by a byte."""
    record = (
        as_json(HEAD)[:-1]
        + b', "properties": {"big":12345678901234567890123, "n": 1.50}, "x":[ 1 ]}'
    )
    new = b'"$geoip_disable":true,"$import_job_id":"' + JOB.encode() + b'",'
    assert finish_raw(record) == record.replace(b'{"big"', b"{" + new + b'"big"')
    assert finish_raw(record, geoip=True) == record.replace(
        b'{"big"', b'{"$import_job_id":"' + JOB.encode() + b'","big"'
    )


@cases("number", ["1e400", "-1E+999", "9" * 400])
def test_numbers_that_overflow_are_refused_alone(number: str) -> None:
    """What strict parsers refuse is refused before it is sent; the events beside it continue."""
    records = [as_json({**HEAD, "properties": {"n": value}}) for value in ("good", "bad", "better")]
    records[1] = records[1].replace(b'"bad"', number.encode())
    converted = NativeConverter("oldest").convert_event(block(records[0]))
    _, refusals = EventFinisher(FinishPolicy("oldest", False, JOB)).finish_texts(
        records, [converted.gaps[0]] * 3
    )
    assert list(refusals) == [1]
    refused = refusals[1]
    assert refused.why is Reason.UNDECODABLE
    assert "308 digits" in refused.detail or "too large for a double" in refused.detail


@cases("members", [{}, {"properties": None}, {"properties": {}}])
def test_events_without_properties(members: dict[str, Any]) -> None:
    """They get some, with what every imported event has."""
    assert json.loads(finish_raw({**HEAD, **members})) == {**HEAD, "properties": ADDED}


def test_values_keep_their_bytes_where_properties_are_put_together_anew() -> None:
    """Digits and white space within values stay, also of those that move from one name
    to another.
    """
    record = (
        as_json(HEAD)[:-1]
        + b',"properties":{"n":1.50,"list":[ 1, 2.0 ],"$set":{"big": 12345678901234567890123}}}'
    )
    assert b'"n":1.50,"list":[ 1, 2.0 ],"$set_once":{"big": 12345678901234567890123}' in finish_raw(
        record
    )


def test_added_properties_replace_existing_ones() -> None:
    """A job's id from before, and a wish to be located, give way; with geoip,
    an event's own wish stays.
    """
    record = {**HEAD, "properties": {"$geoip_disable": False, "a": 1, "$import_job_id": "another"}}
    assert json.loads(finish_raw(record))["properties"] == {"a": 1, **ADDED}
    assert json.loads(finish_raw(record, geoip=True))["properties"] == {
        "$geoip_disable": False,
        "a": 1,
        "$import_job_id": JOB,
    }
    assert finish_raw(record).count(b"$import_job_id") == 1


PERSON: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("$set in properties", {"$set": {"a": 1}}, {}, {"$set_once": {"a": 1}}),
    ("$set at the top", {}, {"$set": {"a": 1}}, {"$set_once": {"a": 1}}),
    (
        "both: the top wins",
        {"$set": {"a": 1, "b": 1}},
        {"$set": {"a": 2}},
        {"$set_once": {"a": 2, "b": 1}},
    ),
    (
        "$set_once wins",
        {"$set": {"a": 1, "b": 1}, "$set_once": {"a": 2}},
        {},
        {"$set_once": {"a": 2, "b": 1}},
    ),
    (
        "$set_once at the top wins",
        {"$set": {"a": 1}, "$set_once": {"a": 2}},
        {"$set_once": {"a": 3}},
        {"$set_once": {"a": 3}},
    ),
    (
        "$set_once below wins over $set at the top",
        {"$set_once": {"a": 2}},
        {"$set": {"a": 1}},
        {"$set_once": {"a": 2}},
    ),
    ("no object", {"$set": None}, {"$set": 7}, {}),
    ("no object beside one", {"$set": "x", "$set_once": {"a": 1}}, {}, {"$set_once": {"a": 1}}),
    ("$unset goes", {"$unset": ["a"]}, {"$unset": ["b"]}, {}),
]


@cases(("inside", "above", "expected"), [row[1:] for row in PERSON], ids=[row[0] for row in PERSON])
def test_set_becomes_set_once(
    inside: dict[str, Any], above: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Nothing of the past overwrites a person's property, and nothing takes one away, wherever it
    stood in the event.
    """
    sent_event = json.loads(finish_raw({**HEAD, **above, "properties": {"x": 1, **inside}}))
    assert sent_event == {**HEAD, "properties": {"x": 1, **expected, **ADDED}}


def test_set_once_alone_stays_where_it_is() -> None:
    """Without a `$set` there is nothing to merge."""
    sent_event = json.loads(
        finish_raw({**HEAD, "$set_once": {"a": 1}, "properties": {"x": 1, "$set_once": {"a": 2}}})
    )
    assert sent_event["$set_once"] == {"a": 1}
    assert sent_event["properties"] == {"x": 1, "$set_once": {"a": 2}, **ADDED}


def test_other_policies() -> None:
    """`none` takes all away that is about the person; `set` leaves it as it is."""
    about = {"$set": {"a": 1}, "$set_once": {"b": 1}, "$unset": ["c"]}
    record = {**HEAD, **about, "properties": {"x": 1, **about}}
    assert json.loads(finish_raw(record, "none")) == {**HEAD, "properties": {"x": 1, **ADDED}}
    assert json.loads(finish_raw(record, "history")) == {
        **record,
        "properties": {"x": 1, **about, **ADDED},
    }


def test_events_that_are_too_large() -> None:
    """Only the one that has too many bytes when it is finished is refused, in its place."""
    small = {**HEAD, "properties": {"a": 1}}
    large = {**HEAD, "properties": {"a": "x" * 200}}
    converted = [
        NativeConverter("oldest").convert_event(block(record)) for record in (small, large, small)
    ]
    texts = [native_event.texts[0] for native_event in converted]
    gaps = [native_event.gaps[0] for native_event in converted]
    size = len(finish_raw(large))
    policy = FinishPolicy("oldest", geoip=False, job_id=JOB)
    _, refusals = EventFinisher(policy, size - 1).finish_texts(texts, gaps)
    assert [(index, refused.why) for index, refused in refusals.items()] == [(1, Reason.TOO_LARGE)]
    assert EventFinisher(policy, size).finish_texts(texts, gaps)[1] == {}


BAD: Mapping[str, object] = {
    "half a surrogate pair": "\ud800",
    "too deep": raw("[" * 121 + "]" * 121),
    "too large a number": raw("1e400"),
}


@pytest.mark.parametrize("bad", BAD)
def test_of_many_events_only_the_bad_one_is_refused(bad: str) -> None:
    """Also beside events whose values take several lines, which are as they are alone."""
    made = [event({"n": at, "list": raw("[1,\n 2.50]") if at == 3 else []}) for at in range(40)]
    alone = [finish(imported) for imported in made]
    made[20].properties["bad"] = BAD[bad]
    finished, refused = EventFinisher(FinishPolicy("oldest", False, JOB)).finish(made)
    assert [*refused] == [20]
    assert refused[20].why is Reason.UNDECODABLE
    assert finished[:20] + finished[21:] == alone[:20] + alone[21:]


RAW_VALUES = (
    st.none()
    | st.integers(-9, 9)
    | st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)
)
NAMES = st.sampled_from(
    ["$set", "$set_once", "$unset", "$geoip_disable", "$import_job_id", "a", "b"]
)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(NAMES, RAW_VALUES, max_size=5),
    st.sampled_from(["none", "oldest", "history"]),
    st.booleans(),
)
def test_raw_events_and_events_are_finished_alike(
    properties: dict[str, Any], policy: PersonProperties, geoip: bool
) -> None:
    """What one finisher makes of an event's properties, the other makes of their bytes."""
    time = 1_714_521_600_000_000
    other = finish(ImportedEvent("e", "u1", time, UUID, properties), policy, geoip=geoip)
    assert json.loads(
        finish_raw({**HEAD, "properties": properties}, policy, geoip=geoip)
    ) == json.loads(other)
