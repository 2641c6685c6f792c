"""What a run selects, against a plain model; records as they were sent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import methodcaller
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sandbox.exports import export_records
from forwarder.sandbox.exports.export_records import ExportRecord, RecordReader
from forwarder.sandbox.exports.jobs import ExportJob, ExportMisconfigured, Selection
from forwarder.sandbox.store.thread import StoreThread
from tests.sandbox.shipped import KEY, at, folder, holding, job, request, stored, uuid_of
from tests.support.cases import cases


async def read(work: ExportJob, thread: StoreThread, after: int = 0) -> list[dict[str, Any]]:
    """The records of a job, by column."""
    with ThreadPoolExecutor(1) as executor:
        reader = RecordReader(work, thread, executor)
        records = [record async for page in reader.pages(after) for record in page]
        if after == 0:
            assert await reader.count() == len(records)
    return [_named(reader, record) for record in records]


def _named(reader: RecordReader, record: ExportRecord) -> dict[str, Any]:
    return dict(zip(reader.columns, record.values, strict=True))


TIMES = st.none() | st.integers(0, 12).map(at)
ARRIVAL_NUMBERS = st.integers(0, 31)
SELECTIONS = st.builds(Selection, TIMES, TIMES, ARRIVAL_NUMBERS, TIMES, ARRIVAL_NUMBERS)


def selects(selection: Selection, time: str, arrival: int) -> bool:
    """Whether a run exports what happened then, and arrived as this one."""
    inside = (selection.since is None or time >= selection.since) and (
        selection.before is None or time < selection.before
    )
    done = (
        selection.done_before is not None
        and time < selection.done_before
        and arrival <= selection.done_arrival
    )
    return inside and arrival <= selection.arrival and not done


@dataclass(frozen=True)
class Arrived:
    """An event of the model."""

    number: int
    minute: int
    api_key: str


KEYS = st.sampled_from([KEY, KEY, KEY, "phc_other"])
ARRIVALS = st.lists(
    st.builds(Arrived, number=st.integers(0, 8), minute=st.integers(0, 11), api_key=KEYS),
    max_size=30,
)


@settings(max_examples=50)
@given(ARRIVALS, SELECTIONS, st.integers(1, 9), st.integers(1, 9))
async def test_events_are_selected_as_a_list_would_be(
    arrivals: list[Arrived], selection: Selection, page: int, window: int
) -> None:
    """Whatever interval and whatever an earlier run had: distinct events of the project in the
    order of arrival, however pages are cut.
    """
    first = dict[tuple[int, str], int]()
    for number, one in enumerate(arrivals, 1):
        first.setdefault((one.number, one.api_key), number)
    expected = [
        uuid_of(one.number)
        for number, one in enumerate(arrivals, 1)
        if one.api_key == KEY
        and first[one.number, KEY] == number
        and selects(selection, at(one.minute), number)
    ]
    with patch.object(export_records, "PAGE", page), patch.object(export_records, "WINDOW", window):
        async with holding() as thread:
            for one in arrivals:
                sent_request = request([stored(one.number, one.minute)], api_key=one.api_key)
                await thread.run(methodcaller("add", sent_request))
            records = await read(job(selection=selection), thread)
    assert [record["uuid"] for record in records] == expected


@dataclass(frozen=True)
class PersonSetEvent:
    """An event about a person, in a minute."""

    minute: int
    distinct_id: str
    changes: bool


SAID = st.lists(
    st.builds(
        PersonSetEvent,
        minute=st.integers(0, 11),
        distinct_id=st.sampled_from("abc"),
        changes=st.booleans(),
    ),
    max_size=15,
)


@settings(max_examples=50)
@given(SAID, SELECTIONS)
async def test_persons_are_selected_by_their_last_change(
    said: list[PersonSetEvent], selection: Selection
) -> None:
    """By when the arrival that made it or set its properties was received, and which
    one that was.
    """
    last = dict[str, tuple[int, int]]()
    for number, one in enumerate(said, 1):
        if one.changes or one.distinct_id not in last:
            last[one.distinct_id] = (number, one.minute)
    expected = [
        distinct_id
        for distinct_id, (number, minute) in last.items()
        if selects(selection, at(minute), number)
    ]
    async with holding() as thread:
        for number, one in enumerate(said, 1):
            properties = json.dumps({"$set": {"n": number}} if one.changes else {})
            sent_request = request(
                [stored(number, 90, distinct_id=one.distinct_id, properties=properties)],
                received=one.minute,
            )
            await thread.run(methodcaller("add", sent_request))
        records = await read(job(model="persons", selection=selection), thread)
    assert [record["distinct_id"] for record in records] == expected


AS_SENT = (
    '{"z": 1.0, "a": 12345678901234567890123, "b": 1e-400, "a": "\\ud83d\\u0041", "list": [1, '
    "2.50]}"
)


async def test_properties_are_as_they_were_sent() -> None:
    """Digits, order, repeated keys and escapes; only line ends become blanks, and what is no
    object is an empty one.
    """
    events = [
        stored(1, properties=AS_SENT),
        stored(2, properties='{\n "a":\r\n1}', beside=',\n"$set": {"n":\n1.00}, "$unset": ["x"]'),
        stored(3, properties="[]"),
        stored(4, properties='{"$set": {"inside": 1}}'),
        stored(5, beside=', "\\u0024set_once": {"hidden": 1}'),
    ]
    async with holding(events) as thread:
        records = await read(job(), thread)
    assert [one["properties"] for one in records] == [
        AS_SENT,
        '{  "a":  1}',
        "{}",
        '{"$set": {"inside": 1}}',
        "{}",
    ]
    beside = [(one["$set"], one["$set_once"], one["$unset"]) for one in records]
    nothing = (None, None, None)
    assert beside == [
        nothing,
        ('{"n": 1.00}', None, '["x"]'),
        nothing,
        nothing,
        (None, '{"hidden": 1}', None),
    ]


async def test_what_an_event_says_of_itself() -> None:
    """Its resolved time, its project, the time of receipt, and its person where it has one."""
    anonymous = stored(2, distinct_id="nobody", properties='{"$process_person_profile": false}')
    async with holding([stored(1, 3, event='"é"'), anonymous]) as thread:
        first, second = await read(job(), thread)
        [person] = await read(job(model="persons"), thread)
    assert (first["uuid"], first["event"], first["distinct_id"], first["timestamp"]) == (
        uuid_of(1),
        '"é"',
        "u1",
        at(3),
    )
    assert (first["team_id"], first["created_at"], first["person_id"]) == (
        7,
        at(0),
        person["person_id"],
    )
    assert second["person_id"] is None


async def test_person_properties_are_as_ingested() -> None:
    """An event is exported, and filtered, with the properties that its person had then and that it
    set itself, also where these changed no one; an anonymous one has none.
    """
    events = [
        stored(1, properties='{"$set": {"plan": "free"}, "$browser": "X"}'),
        stored(2, properties='{"$browser": "Y"}'),
        stored(3, properties='{"$process_person_profile": false}'),
        stored(4, properties='{"$set": {"plan": "pro"}}'),
    ]
    free = {"key": "plan", "operator": "exact", "value": "free", "type": "person"}
    async with holding(events) as thread:
        person_properties = [
            json.loads(one["person_properties"]) for one in await read(job(), thread)
        ]
        chosen = await read(job(filters=[free]), thread)
    first = {"plan": "free", "$browser": "X", "$initial_browser": "X"}
    assert person_properties == [first, {**first, "$browser": "Y"}, {}, {**first, "plan": "pro"}]
    assert [one["uuid"] for one in chosen] == [uuid_of(1), uuid_of(2)]


async def test_a_person_has_a_record_for_each_distinct_id() -> None:
    """All say the same person; a merge counts as a change of both."""
    async with holding([stored(1, distinct_id="anon"), stored(2, distinct_id="other")]) as thread:
        merging = '{"$anon_distinct_id": "anon", "$set": {"plan": "pro"}}'
        identified = stored(3, 5, event="$identify", distinct_id="known", properties=merging)
        await thread.run(lambda store: store.add(request([identified], received=7)))
        records = await read(job(model="persons", selection=Selection(at(6), at(8), 3)), thread)
        everyone = await read(job(model="persons"), thread)
    assert [one["distinct_id"] for one in records] == ["anon", "known"]
    assert {one["person_id"] for one in records} != {one["person_id"] for one in everyone}
    assert len({one["person_id"] for one in records}) == 1
    known = {
        name: value
        for name, value in records[1].items()
        if name not in ("person_id", "distinct_id")
    }
    assert known == {
        "team_id": 7,
        "properties": '{"plan": "pro"}',
        "person_version": 3,
        "person_distinct_id_version": 3,
        "created_at": at(0),
        "is_identified": True,
        "is_deleted": False,
    }


async def test_filters_are_applied() -> None:
    """All of them; on properties of the event, and of its person."""
    of_person = stored(4, distinct_id="u2", properties='{"$set": {"plan": "pro"}, "os": "Mac"}')
    events = [
        stored(1, properties='{"os": "Mac"}'),
        stored(2, properties='{"os": "Linux"}'),
        stored(3),
        of_person,
    ]
    on_os = {"key": "os", "operator": "exact", "value": ["Mac"], "type": "event"}
    on_plan = {"key": "plan", "operator": "exact", "value": "pro", "type": "person"}
    async with holding(events) as thread:
        tried: list[Any] = [
            [],
            {},
            None,
            [on_os],
            [on_plan],
            [on_os, on_plan],
            [{**on_os, "value": "BeOS"}],
        ]
        chosen = [
            [one["uuid"] for one in await read(job(filters=filters), thread)] for filters in tried
        ]
        people = [
            one["distinct_id"]
            for one in await read(job(model="persons", filters=[on_plan]), thread)
        ]
    everything = [uuid_of(number) for number in (1, 2, 3, 4)]
    assert chosen == [
        everything,
        everything,
        everything,
        [uuid_of(1), uuid_of(4)],
        [uuid_of(4)],
        [uuid_of(4)],
        [],
    ]
    assert people == ["u2"]


async def test_events_by_their_names() -> None:
    """Those that the destination's config includes, without those that it
    excludes; persons know none.
    """
    events = [stored(number, event=name) for number, name in enumerate(("a", "b", "c"))]
    tried = [
        {"include_events": ["a", "b"]},
        {"exclude_events": ["a"]},
        {"include_events": ["a", "b"], "exclude_events": ["b"]},
        {},
    ]
    nothing: dict[str, Any] = {"include_events": [], "exclude_events": None}
    async with holding(events) as thread:
        chosen = [
            [one["event"] for one in await read(job(folder(**config)), thread)]
            for config in [*tried, nothing]
        ]
        people = await read(job(folder(include_events=["x"]), model="persons"), thread)
    assert chosen == [["a", "b"], ["b", "c"], ["a"], ["a", "b", "c"], ["a", "b", "c"]]
    assert len(people) == 1


@cases(
    ("changes", "message"),
    [
        ({"model": "sessions"}, "Models are: events, persons"),
        (
            {"destination": folder(include_events="a")},
            "include_events of the destination is not a list of names",
        ),
        (
            {"destination": folder(exclude_events=[1])},
            "exclude_events of the destination is not a list of names",
        ),
        ({"filters": {"a": 1}}, "list of property conditions"),
        ({"filters": "os"}, "list of property conditions"),
        ({"filters": [{"value": 1}]}, r"filters\[0\] can't be applied: a condition has no key"),
        (
            {"filters": [{"key": "a", "value": 1, "type": "cohort"}]},
            "has an unknown type. Set it to one of: event, person",
        ),
        (
            {"filters": [{"key": "a", "value": 1, "type": "event"}], "model": "persons"},
            "Set it to one of: person",
        ),
        (
            {"filters": [{"key": "a", "operator": "sounds_like", "value": 1}]},
            r"filters\[0\] can't be applied: .*sounds_like",
        ),
        ({"filters": ["os"]}, r"filters\[0\] is not a property condition"),
    ],
)
async def test_what_cant_be_selected(changes: dict[str, Any], message: str) -> None:
    """The run fails by its configuration, and says what there is."""
    async with holding([stored(1)]) as thread:
        with pytest.raises(ExportMisconfigured, match=message):
            await read(job(**changes), thread)


async def test_a_page_of_large_events_is_short() -> None:
    """So that memory holds a few of them."""
    text = json.dumps({"text": "x" * 1_500_000})
    async with holding([stored(number, properties=text) for number in range(5)]) as thread:
        with ThreadPoolExecutor(1) as executor:
            assert [len(page) async for page in RecordReader(job(), thread, executor).pages(0)] == [
                3,
                2,
            ]
