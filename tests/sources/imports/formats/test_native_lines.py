"""Whole lines at once: they become what each of them becomes by itself, and no line is mended by its neighbours."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Final

import pytest

from forwarder.sources.files.records import LineRecords, RecordBlock, SourceFile
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.joined_texts import JoinedTexts
from forwarder.sources.imports.policy import FinishPolicy
from forwarder.sources.imports.raw_events import RawEvents
from forwarder.sources.imports.raw_finishing import RawEventFinisher
from tests.sources.imports.samples.native import as_json, complete_events

FINISH: Final = FinishPolicy("set_once", geoip=False, job_id="5a5a5a5a-0000-5000-8000-000000000000")
GOOD: Final = [as_json(event) for event in complete_events(40, seed=4) if "{" not in event["event"]]


def convert(*lines: bytes) -> RawEvents:
    """What becomes of lines."""
    text = b"".join(line + b"\n" for line in lines)
    return NativeConverter("set_once").convert_block(
        RecordBlock(SourceFile("a", "5eed"), 0, LineRecords(text, [*BytesIO(text)]), range(len(lines)))
    )


def alone(*lines: bytes) -> RawEvents:
    """What becomes of the same records where they aren't lines."""
    return NativeConverter("set_once").convert_block(RecordBlock(SourceFile("a", "5eed"), 0, list(lines), range(len(lines))))


def finished(events: RawEvents, max_bytes: int | None = None) -> list[object]:
    """Events as they are sent; what is refused as its words."""
    return [each if isinstance(each, bytes) else str(each) for each in RawEventFinisher(FINISH, max_bytes).finish(events)]


def columns(events: RawEvents) -> tuple[object, ...]:
    """All that is known of events."""
    events.apart()
    refused = [(part.record, part.text, part.why.why, str(part.why), part.member) for part in events.refused]
    texts = events.names, events.distinct_ids, events.times, events.uuids, events.texts
    return events.records, *texts, events.gaps, events.as_found, refused


def test_lines_that_are_all_good_are_taken_whole() -> None:
    """They have the same values, and the same bytes are sent."""
    assert convert(*GOOD).whole is not None
    assert columns(convert(*GOOD)) == columns(alone(*GOOD))
    assert finished(convert(*GOOD)) == finished(alone(*GOOD))
    assert isinstance(RawEventFinisher(FINISH).finish(convert(*GOOD)), JoinedTexts)


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
    "no id": (changed(distinct_id="null"),),
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


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_one_line_that_is_not_changes_nothing_for_the_others(odd: tuple[bytes, ...]) -> None:
    """Whatever it is, and wherever it stands: all become what they become one by one."""
    for lines in ((*odd, *GOOD), (*GOOD[:20], *odd, *GOOD[20:]), (*GOOD, *odd), odd):
        assert columns(convert(*lines)) == columns(alone(*lines))
        assert finished(convert(*lines)) == finished(alone(*lines))


def test_spaces_after_commas_and_colons() -> None:
    """As Python writes them."""
    lines = [json.dumps(json.loads(line)).encode() for line in GOOD]
    assert convert(*lines).whole is not None
    assert columns(convert(*lines)) == columns(alone(*lines))
    assert finished(convert(*lines)) == finished(alone(*lines))


def test_events_that_become_too_large_are_refused_one_by_one() -> None:
    """At the same size."""
    sizes = sorted(len(text) for text in finished(alone(*GOOD)) if isinstance(text, bytes))
    for limit in (sizes[0], sizes[-1] - 1, sizes[-1], sizes[-1] + 1):
        assert finished(convert(*GOOD), limit) == finished(alone(*GOOD), limit)


def test_some_of_them() -> None:
    """In any order, each with its text."""
    indexes = [30, 2, 7]
    assert columns(convert(*GOOD).only(indexes)) == columns(alone(*GOOD).only(indexes))
