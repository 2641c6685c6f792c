"""The native format: records by themselves, and among others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.conversion import EventFinisher, FinishPolicy
from forwarder.sources.imports.format import (
    ImportedEvent,
    NativeEvents,
    PersonProperties,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import uuid_hash
from forwarder.sources.imports.times import when
from tests.sources.imports.preflights import ahead
from tests.sources.imports.samples.native import STRANGE, as_json, block, complete_events, sample
from tests.support.cases import cases

UUID = "0198c3c0-1111-7222-8333-444455556666"
MICROS = 1_714_557_600_123_000
EVENT = {
    "event": "e",
    "distinct_id": "u1",
    "uuid": UUID,
    "timestamp": "2024-05-01T10:00:00.123Z",
    "properties": {"a": 1},
}
PLACE = '["native","' + "5eed" * 16 + '",%s]'


class Refused(NamedTuple):
    """A record, or the part of one, that is refused."""

    record: int
    text: bytes
    why: RecordRefused
    member: int | None


class Converted:
    """The events of a block, in columns (`EventSink`)."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.columns: list[list[Any]] = [[] for _ in NativeEvents._fields]
        self.names, self.distinct_ids, self.times, self.uuids, self.texts, self.gaps, self.found = (
            self.columns
        )
        self.refused: list[Refused] = []

    def __len__(self) -> int:
        return len(self.names)

    def add(self, records: Sequence[int], events: Sequence[ImportedEvent]) -> None:
        """Not of this format."""
        raise NotImplementedError(records, events)

    def extend(self, records: Sequence[int], events: NativeEvents) -> None:
        self.records += records
        for column, more in zip(self.columns, events, strict=True):
            column.extend(more)

    def refuse(
        self, record: int, why: RecordRefused, text: bytes | None = None, member: int | None = None
    ) -> None:
        self.refused.append(Refused(record, text or b"", why, member))


def converted(converter: NativeConverter, block: RecordBlock) -> Converted:
    """What a converter makes of a block."""
    converter.convert_block(block, events := Converted())
    return events


def convert(
    *records: bytes | object,
    policy: PersonProperties = "none",
    time_offset: int = 0,
    first: int = 0,
) -> Converted:
    """What becomes of records."""
    return converted(
        NativeConverter(policy, ahead(time_offset) if time_offset else None),
        block(*records, first=first),
    )


def one(record: bytes | object, time_offset: int = 0) -> dict[str, Any]:
    """The event that a record becomes."""
    events = convert(record, time_offset=time_offset)
    assert events.refused == []
    assert len(events) == 1
    event: dict[str, Any] = json.loads(events.texts[0])
    return event


def without(*names: str, **others: object) -> dict[str, Any]:
    """An event without some members, and with others."""
    return {key: value for key, value in EVENT.items() if key not in names} | others


def test_complete_events_keep_their_bytes() -> None:
    """An event with all that it needs continues as it stands, with its columns."""
    records = [as_json(event) for event in complete_events(50, 3)]
    events = convert(*records)
    assert events.texts == records
    assert [json.loads(text)["uuid"] for text in records] == events.uuids
    assert [json.loads(text)["event"] for text in records] == events.names
    assert [json.loads(text)["distinct_id"] for text in records] == events.distinct_ids
    assert events.records == list(range(50))
    assert events.refused == []


@pytest.mark.parametrize("record", [as_json(EVENT), json.dumps(EVENT).encode()])
def test_the_gap_is_behind_the_brace_of_the_properties(record: bytes) -> None:
    """Where members can be put is reported for events that were written with spaces,
    and without.
    """
    events = convert(record)
    assert record[: events.gaps[0]].endswith(b"{")
    answer = json.loads(record[: events.gaps[0]] + b'"new":2,' + record[events.gaps[0] :])
    assert answer["properties"] == {"new": 2, "a": 1}
    assert (events.times, events.uuids, events.distinct_ids) == ([MICROS], [UUID], ["u1"])


@cases(
    "record",
    [
        as_json(without(properties={})),
        as_json({"$set": {"properties": {"a": 1}}, **EVENT}),
        as_json({"x": {"y": 1, "properties": {"a": 1}}, **EVENT}),
        as_json({**EVENT, "event": '{,"properties":{"'}),
        as_json(without(properties={"a": 1, "$set": {"b": 2}})),
        as_json(without(properties={"a": 1, "$geoip_disable": None})),
        as_json(without(properties={"a": 1, "$import_job_id": "another"})),
        as_json(EVENT).replace(b'"properties"', b'"\\u0070roperties"'),
        as_json(without(properties={"a": 1, "$set": 1})).replace(b"$set", b"\\u0024set"),
    ],
)
def test_there_is_no_gap_where_finishing_has_to_look(record: bytes) -> None:
    """Without members, with members that finishing changes, or where a nested name could be meant,
    nothing is put in blindly.
    """
    assert convert(record).gaps == [0]


@cases(
    ("name", "policies"),
    [("$set", []), ("$unset", []), ("$set_once", ["oldest", "history"])],
)
def test_what_finishing_has_to_look_at_depends_on_its_policy(
    name: str, policies: list[PersonProperties]
) -> None:
    """What a policy leaves alone doesn't keep an event from the short way, wherever in the event
    it stands.
    """
    everywhere: list[PersonProperties] = ["none", "newest", "oldest", "history"]
    for record in ({**EVENT, name: {"b": 1}}, without(properties={"a": 1, name: {"b": 1}})):
        assert [
            policy for policy in everywhere if convert(record, policy=policy).gaps != [0]
        ] == policies


GOLDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a uuid of capitals", without(uuid=UUID.upper()), EVENT),
    ("a uuid in braces", without(uuid="{" + UUID + "}"), without(uuid="{" + UUID + "}")),
    (
        "a uuid without hyphens",
        without(uuid=UUID.replace("-", "").upper()),
        without(uuid=UUID.replace("-", "")),
    ),
    ("no uuid", without("uuid"), without(uuid=derived_uuid(PLACE % 0))),
    ("an empty uuid", without(uuid=""), without(uuid=derived_uuid(PLACE % 0))),
    ("a uuid that is none", without(uuid=7), without(uuid=derived_uuid(PLACE % 0))),
    (
        "$distinct_id",
        without("distinct_id", **{"$distinct_id": "u1"}),
        without("distinct_id", **{"$distinct_id": "u1"}),
    ),
    (
        "id in properties",
        without("distinct_id", properties={"distinct_id": "u"}),
        without("distinct_id", properties={"distinct_id": "u"}),
    ),
    (
        "null above the id",
        without(distinct_id=None, properties={"distinct_id": "u1"}),
        without(properties={"distinct_id": "u1"}),
    ),
    ("a number as id", without(distinct_id=12345), without(distinct_id="12345")),
    ("seconds since 1970", without(timestamp=1714557600.123), EVENT),
    ("milliseconds since 1970", without(timestamp="1714557600123"), EVENT),
    (
        "a space for the T",
        without(timestamp="2024-05-01 10:00:00.123Z"),
        without(timestamp="2024-05-01 10:00:00.123Z"),
    ),
    (
        "minutes only",
        without(timestamp="2024-05-01T10:00+02:00"),
        without(timestamp="2024-05-01T08:00:00.000Z"),
    ),
    (
        "a date as in mail",
        without(timestamp="Wed, 01 May 2024 12:00:00 +0200"),
        without(timestamp="2024-05-01T10:00:00.000Z"),
    ),
    (
        "microseconds",
        without(timestamp="2024-05-01T10:00:00.123456+00:00"),
        without(timestamp="2024-05-01T10:00:00.123456+00:00"),
    ),
    (
        "no zone",
        without(timestamp="2024-05-01T10:00:00.123"),
        without(timestamp="2024-05-01T10:00:00.123"),
    ),
    ("keys and an offset", without(api_key="k", token="k", offset=9, **{"$token": "k"}), EVENT),
    *(
        (f"{name} alone", without(**{name: "k"}), EVENT)
        for name in ("api_key", "token", "$token", "offset")
    ),
    (
        "a token among properties",
        without(properties={"token": "k"}),
        without(properties={"token": "k"}),
    ),
    ("other members", without(library="x", type="capture"), without(library="x", type="capture")),
    ("no properties", without("properties"), without("properties")),
    ("$set at the top", without(**{"$set": {"a": 1}}), without(**{"$set": {"a": 1}})),
]


@cases(("record", "event"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN])
def test_what_a_record_becomes(record: dict[str, Any], event: dict[str, Any]) -> None:
    """Ids, times and uuids stand where the service reads them; what is another project's goes; all
    else stays.
    """
    assert one(record) == event


@cases(("record", "why"), STRANGE)
def test_strange_records(record: bytes, why: Reason | None) -> None:
    """What can't be an event is refused with its reason, and its neighbours aren't."""
    events = convert(EVENT, record, EVENT)
    assert [(part.record, part.text, part.why.why) for part in events.refused] == (
        [] if why is None else [(1, record, why)]
    )
    assert events.records == ([0, 1, 2] if why is None else [0, 2])


def test_a_small_z_is_written_large_beside_complete_events() -> None:
    """A service that doesn't know it would take "now": such an event is written anew, its
    neighbours keep their bytes.
    """
    neighbour = as_json(EVENT | {"event": "quiz"})
    events = convert(neighbour, EVENT | {"timestamp": "2024-05-01T10:00:00.123z"}, neighbour)
    assert events.texts[::2] == [neighbour, neighbour]
    assert json.loads(events.texts[1])["timestamp"] == EVENT["timestamp"]
    assert events.times == [MICROS] * 3


def test_times_without_a_zone_are_of_the_clock_that_was_named() -> None:
    """With an offset they are written anew in UTC; without one they are UTC, and keep their bytes;
    zones of their own win.
    """
    bare = without(timestamp="2024-05-01T10:00:00.123")
    assert convert(bare, EVENT).times == [MICROS, MICROS]
    assert one(bare, time_offset=120)["timestamp"] == "2024-05-01T08:00:00.123Z"
    assert convert(bare, EVENT, bare, time_offset=120).times == [
        MICROS - 7_200_000_000,
        MICROS,
        MICROS - 7_200_000_000,
    ]


@cases(
    ("text", "hour"),
    [
        ("Wed, 01 May 2024 10:00:00", 8),
        ("Wed, 01 May 2024 10:00:00 GMT", 10),
        ("1 May 2024 10:00:00 +0200", 8),
        ("1 May 2024 10:00:00 -0000", 10),
    ],
)
def test_a_date_as_in_mail_without_a_zone_is_of_that_clock_too(text: str, hour: int) -> None:
    """What names a zone, `-0000` for UTC among them, says for itself when it was."""
    assert (
        one(without(timestamp=text), time_offset=120)["timestamp"]
        == f"2024-05-01T{hour:02}:00:00.000Z"
    )


@cases("blank", ["", " ", None])
def test_an_id_in_the_properties_replaces_a_blank_one(blank: str | None) -> None:
    """The service may not look further than the top, where a blank id is none."""
    event = one(without(distinct_id=blank, properties={"distinct_id": "u2"}))
    assert (event["distinct_id"], event["properties"]["distinct_id"]) == ("u2", "u2")


@pytest.mark.parametrize(
    "shape", [lambda events: events, lambda events: {"batch": events, "api_key": "k"}]
)
def test_records_with_several_events(shape: Any) -> None:
    """Each event of an array or a batch body is taken by itself: one that is bad is refused alone,
    and uuids follow from places.
    """
    bad = without("timestamp")
    events = convert(EVENT, shape([EVENT, bad, without("uuid"), 5]), EVENT, first=10)
    assert events.records == [0, 1, 1, 2]
    assert events.uuids == [UUID, UUID, derived_uuid(PLACE % "11,2"), UUID]
    assert [(part.record, part.text, part.why.why) for part in events.refused] == [
        (1, as_json(bad), Reason.MISSING_TIMESTAMP),
        (1, b"5", Reason.UNDECODABLE),
    ]


def test_a_record_without_events() -> None:
    """An empty batch and an empty array hold none, and nothing is wrong with them."""
    events = convert({"batch": []}, [], EVENT)
    assert (events.records, events.refused) == ([2], [])


def test_two_broken_records_arent_good_together() -> None:
    """Lines that were cut where together they would be an event are both refused."""
    text = as_json(without(properties={"a": [{"b": 1}, {"c": 2}]}))
    half = text.index(b',{"c"')
    events = convert(text[:half], text[half + 1 :], EVENT)
    assert [part.record for part in events.refused] == [0, 1]
    whole = as_json(without(event="é"))
    cut = whole.index(b"\xa9")
    assert [part.record for part in convert(whole[:cut], whole[cut:], EVENT).refused] == [0, 1]


def test_ids_are_written_as_the_service_stores_them() -> None:
    """The column has what order is kept by: 200 characters, NUL replaced; the event keeps its
    bytes' meaning.
    """
    events = convert(without(distinct_id="x" * 300), without(distinct_id="a\0b"))
    assert events.distinct_ids == ["x" * 200, "a\ufffdb"]
    assert json.loads(events.texts[0])["distinct_id"] == "x" * 300


def test_the_sample() -> None:
    """Of 2,000 lines of events in every shape all come through but those that are known to be bad,
    whatever the blocks; twice the same.
    """
    lines, refusals = sample()
    once = convert(*lines)
    assert min(len(lines), len(once)) >= 2_000
    assert Counter(part.why.why for part in once.refused) == Counter(refusals)
    native = NativeConverter("none")
    texts = []
    uuids = []
    for first in range(0, len(lines), 37):
        events = converted(native, block(*lines[first : first + 37], first=first))
        texts += events.texts
        uuids += events.uuids
    assert (texts, uuids) == (once.texts, once.uuids)
    assert [json.loads(text)["uuid"] for text in texts] == uuids


TEXTS = st.text(alphabet=st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('ap{}"\\$é', max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["properties", "$set", "$set_once", "$geoip_disable", "x", "{", '"', "batch "]
)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.dictionaries(NAMES.filter("properties".__ne__), VALUES, max_size=3),
    st.sampled_from([",", ", "]),
    st.booleans(),
)
def test_members_go_to_the_events_own_properties(
    properties: dict[str, Any], around: dict[str, Any], comma: str, ascii_only: bool
) -> None:
    """Wherever else the same text stands in an event, what is put at the gap becomes a member of
    its own properties.
    """
    record = json.dumps(
        {**around, **EVENT, "properties": properties},
        separators=(comma, ": "),
        ensure_ascii=ascii_only,
    ).encode()
    events = convert(record)
    assert events.texts == [record]
    gap = events.gaps[0]
    if gap:
        extended = json.loads(record[:gap] + b'"$new":2,' + record[gap:])
        assert extended == json.loads(record) | {
            "properties": {"$new": 2, **json.loads(record)["properties"]}
        }
        assert not {"$set", "$set_once"} & {*properties, *around}
        assert "$geoip_disable" not in properties


ODD_VALUES: Final = st.sampled_from(
    (
        *(
            "null",
            "true",
            "0",
            "-1",
            "1e400",
            "1e-400",
            "9" * 40,
            "NaN",
            "1 2",
            "[]",
            "{}",
            "[[]]",
            '{"a":1}',
            '""',
            '" "',
            '"null"',
        ),
        *(
            '"\\ud83d"',
            '"9999-12-31T23:59:59-12:00"',
            '"0001-01-01T00:00:00Z"',
            '"2024-02-30"',
            '"12:00"',
            '"1 2 3:4"',
        ),
        '"Fri, 31 Dec 9999 23:59:59 -1200"',
    )
)


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from([*EVENT, "$distinct_id", "$set", "$unset", "batch", "offset"]), ODD_VALUES
    ),
    st.integers(-720, 720),
)
def test_any_record_becomes_an_event_or_is_refused(
    members: dict[str, str], time_offset: int
) -> None:
    """Whatever stands in an event, nothing is raised, and what is taken is complete."""
    whole = {key: json.dumps(value) for key, value in EVENT.items()} | members
    text = ",".join(f'"{key}":{value}' for key, value in whole.items())
    events = convert(b"{%b}" % text.encode(), time_offset=time_offset)
    assert len(events) + len(events.refused) == 1 or "batch" in members
    for name, distinct_id, time, uuid in zip(
        events.names, events.distinct_ids, events.times, events.uuids, strict=True
    ):
        assert name
        assert distinct_id.strip()
        assert when(time) <= "9999-12-31T23:59:59.999999Z"
        uuid_hash(uuid)


FINISH: Final = FinishPolicy("oldest", geoip=False, job_id="5a5a5a5a-0000-5000-8000-000000000000")
GOOD: Final = [as_json(event) for event in complete_events(40, seed=4) if "{" not in event["event"]]


def together(*lines: bytes) -> Converted:
    """What becomes of neighbouring lines."""
    return converted(
        NativeConverter("oldest"),
        RecordBlock(SourceFile("a", "5eed"), 0, lines, range(len(lines))),
    )


def alone(*lines: bytes) -> Converted:
    """What becomes of the same lines, each in a block of its own."""
    native = NativeConverter("oldest")
    whole = Converted()
    for number, line in enumerate(lines):
        one = converted(native, RecordBlock(SourceFile("a", "5eed"), number, [line], [number]))
        whole.extend([number for _ in one.records], NativeEvents(*one.columns))
        whole.refused += [refusal._replace(record=number) for refusal in one.refused]
    return whole


def columns(events: Converted) -> tuple[object, ...]:
    """All that is known of events."""
    return (
        events.records,
        events.columns,
        [
            (refusal.record, refusal.text, refusal.why.why, str(refusal.why), refusal.member)
            for refusal in events.refused
        ],
    )


def finished(events: Converted) -> list[bytes]:
    """Events as they are sent."""
    return EventFinisher(FINISH).finish_texts(events.texts, events.gaps)[0]


def changed(**members: object) -> bytes:
    """A good event with other members."""
    return as_json({**json.loads(GOOD[0]), **members})


CUT: Final = GOOD[0].index(b'"properties":{') + len(b'"properties":{')
NESTED: Final = GOOD[1][:CUT] + b'"list":['
"""A line that goes on within a list."""
ODD: Final = {
    "one event on two lines, and two on one": (NESTED, b"{}]}}" + GOOD[2] + GOOD[3]),
    "the same where each line begins as an event does": (NESTED, GOOD[2] + b"]}}" + GOOD[3]),
    "the same with a comma": (NESTED + GOOD[2] + b",", GOOD[3] + b"]}}" + GOOD[4]),
    "the same in a member": (GOOD[1][:CUT] + b'"a":', GOOD[2] + b"}}" + GOOD[3]),
    "two on one line": (GOOD[1] + GOOD[2],),
    "half a line": (GOOD[1][: len(GOOD[1]) // 2],),
    "spaces around": (b" " + GOOD[1] + b" ",),
    "not UTF-8": (GOOD[1][:CUT] + b'"\xff":1,' + GOOD[1][CUT:],),
    "half a character each": (GOOD[1][:CUT] + b'"a":"\xc3"}}', b"\xa9" + GOOD[2]),
    "other properties within": (changed(properties={"x": 1, "properties": {"a": 1}}),),
    "an object before": (b'{"x":{"properties":{"a":1}},' + GOOD[1][1:],),
    "an object before, written alike": (b'{"x":{"a":1,"properties":{"a":1}},' + GOOD[1][1:],),
    "no properties": (changed(properties={}),),
    "two of them": (GOOD[1][:-1] + b',"properties":{"a":1}}',),
    "text for properties": (changed(properties="{"),),
    "a person's properties": (changed(properties={"$set": {"a": 1}}),),
    "and beside them": (changed(**{"$set": {"a": 1}}),),
    "what is added": (changed(properties={"$geoip_disable": False}),),
    "no id": (changed(distinct_id=" "),),
    "a long id": (changed(distinct_id="x" * 300),),
    "braces in a name": (changed(event="{braces}"),),
    "no name": (changed(event=""),),
    "another uuid": (changed(uuid=json.loads(GOOD[0])["uuid"].upper()),),
    "a uuid with a space": (changed(uuid=json.loads(GOOD[0])["uuid"][:-1] + " "),),
    "hyphens elsewhere": (changed(uuid="0198c3c01-111-7222-8333-444455556666"),),
    "no time": (changed(timestamp="yesterday"),),
    "a small z": (changed(timestamp="2024-05-01T10:00:00z"),),
    "a time before all": (changed(timestamp="1969-05-01T10:00:00Z"),),
    "nested too deep": (GOOD[1][:CUT] + b'"a":' + b"[" * 600 + b"]" * 600 + b"," + GOOD[1][CUT:],),
    "a number too large": (GOOD[1][:CUT] + b'"a":1e400,' + GOOD[1][CUT:],),
    "an integer too long": (GOOD[1][:CUT] + b'"a":' + b"9" * 400 + b"," + GOOD[1][CUT:],),
    "a body": (b'{"batch":[' + GOOD[1] + b"]}",),
    "another value": (b"7",),
}


@cases("odd", ODD.values(), ids=ODD.keys())
def test_one_line_that_is_not_changes_nothing_for_the_others(odd: tuple[bytes, ...]) -> None:
    """Whatever it is, and wherever it stands: all become what they become one by one."""
    for lines in ((*odd, *GOOD), (*GOOD[:20], *odd, *GOOD[20:]), (*GOOD, *odd), odd):
        assert columns(together(*lines)) == columns(alone(*lines))
        assert finished(together(*lines)) == finished(alone(*lines))


def test_spaces_after_commas_and_colons() -> None:
    """As Python writes them."""
    lines = [json.dumps(json.loads(line)).encode() for line in GOOD]
    assert 0 not in together(*lines).gaps
    assert columns(together(*lines)) == columns(alone(*lines))
