"""Events that are taken as they stand, before the preflight."""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.preflight import Preflight
from forwarder.sources.imports.preflight_raw import preflight_items
from forwarder.sources.imports.preflight_report import PreflightReport
from forwarder.sources.imports.raw_events import RawEvents, RefusedPart
from forwarder.sources.imports.time_kinds import TimeKind
from tests.sources.imports.preflights import OLD, TERMS

TIME = b'{"timestamp":"2023-11-14T22:13:20Z"'


def report(*texts: bytes, finished: Sequence[bytes | RecordRefused] | None = None, refused: Sequence[RefusedPart] = ()) -> PreflightReport:
    """What a preflight says of a file of these events, one a line."""
    block = RecordBlock(SourceFile("a.json", "00"), 0, [*texts, b"{"], range(1, len(texts) + 2))
    events = RawEvents(
        records=[*range(len(texts))],
        texts=[*texts],
        names=[f"name-{number}" for number in range(len(texts))],
        distinct_ids=["a"] * len(texts),
        times=[OLD] * len(texts),
        uuids=[f"uuid-{number}" for number in range(len(texts))],
        refused=[*refused],
    )
    looking = Preflight(TERMS, ["timestamp"])
    for each in preflight_items(block, events, texts if finished is None else finished):
        looking.add(*each)
    return looking.report()


def test_events_with_and_without_properties() -> None:
    """Names, times and how they are written are counted, whatever the properties are."""
    made = report(TIME + b"}", TIME + b',"properties":null}', b'{"timestamp":"2023-11-14 22:13:20","properties":{"x":1}}')
    assert [(each.key, each.count) for each in made.names] == [("name-0", 1), ("name-1", 1), ("name-2", 1)]
    assert made.times.kinds == {TimeKind.ZONE: 2, TimeKind.NO_ZONE: 1}
    assert (made.volume.events, made.persons.with_set, made.persons.distinct_ids.keys) == (3, 0, 1)


def test_set_is_seen_inside_and_beside_the_properties() -> None:
    """The places where an event may set a person's properties are all looked at."""
    inside, beside = b',"properties":{"$set":{"x":1},"$unset":["y"]}}', b',"$set":{"x":1},"$set_once":{"y":1}}'
    persons = report(TIME + inside, TIME + beside, TIME + b',"$unset":["x"],"properties":{}}').persons
    assert (persons.with_set, persons.with_set_once, persons.with_unset) == (2, 1, 2)


def test_times_and_examples_are_as_they_stood_in_the_source() -> None:
    """What the format mends is judged, and shown, as it was: epochs in two units, and times without a zone, are no less there."""
    times = {"a": "1700000000", "b": "1700000000123", "c": '"2023-11-14 22:13:20"'}
    parts = [f'{{"event":"{name}","distinct_id":"u1","timestamp":{time}}}' for name, time in times.items()]
    block = RecordBlock(SourceFile("a.json", "00"), 0, [parts[0].encode(), f"[{parts[1]},{parts[2]}]".encode()], [1, 2])
    looking = Preflight(TERMS, ["timestamp"])
    events = NativeConverter("set_once", 60).convert_block(block)
    for chosen in (events, events.only([2, 1])):
        for each in preflight_items(block, chosen, [b"{}"] * len(chosen)):
            looking.add(*each)
    made = looking.report()
    assert made.times.kinds == {TimeKind.NO_ZONE: 2, TimeKind.SECONDS: 1, TimeKind.MILLISECONDS: 2}
    assert [each.record for each in made.examples] == parts


def test_what_is_refused_has_its_line() -> None:
    """Of the format and of finishing alike, each with its place."""
    finished: list[bytes | RecordRefused] = [TIME + b"}", RecordRefused(RefusalReason.TOO_LARGE, "too large")]
    made = report(
        TIME + b"}", TIME + b"}", finished=finished, refused=[RefusedPart(2, b"{", RecordRefused(RefusalReason.NOT_JSON, "cut off"))]
    )
    assert (made.records, made.volume.events) == (3, 1)
    assert {each.reason: [first.line for first in each.first] for each in made.refused} == {"not_json": [3], "too_large": [2]}
