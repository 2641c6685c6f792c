"""The preflight: of single events, of raw events, and of a whole source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import (
    BrokenSource,
    RecordBlock,
    RecordLocation,
    SourceFile,
)
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.conversion import EventFilters, EventFinisher, FinishPolicy
from forwarder.sources.imports.format import (
    ChosenFormat,
    NativeEvents,
    RecordRefused,
)
from forwarder.sources.imports.formats.mixpanel import MixpanelConverter
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import RefusalExample
from forwarder.sources.imports.preflight import (
    EXAMPLES,
    PLACES,
    Preflight,
    PreflightBlock,
    PreflightTerms,
    run_preflight,
)
from forwarder.sources.imports.preflight_report import (
    KeyCount,
    OutOfOrder,
    PreflightReport,
    TimeKind,
)
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.times import SECOND
from tests.daemon.imports import FIRST_DAY, line, write
from tests.sources.imports.preflights import (
    DAY,
    NOW,
    OLD,
    TERMS,
    PreflightRecord,
    ahead,
    body,
    event,
    preflight,
    refused,
    report,
    seen,
)
from tests.support.cases import cases

TIMES = st.one_of(
    st.integers(OLD, OLD + 3 * DAY), st.integers(NOW - 3 * DAY, NOW + DAY), st.integers(0, DAY)
)
EVENTS = st.builds(
    lambda number, time, name, properties: event(
        number, time=time, event=name, properties=dict.fromkeys(properties, Raw(b"{}"))
    ),
    st.integers(0, 9),
    TIMES,
    st.sampled_from(["seen", "bought", "$identify", "$create_alias"]),
    st.sets(st.sampled_from(["$set", "$set_once", "$unset", "$anon_distinct_id"])),
)
GOOD = st.builds(
    lambda events, file, record: seen(*events, file=file, record=record),
    st.lists(EVENTS, max_size=3),
    st.sampled_from(["a.json", "b.json"]),
    st.sampled_from([b'{"timestamp":1700000000}', b'{"timestamp":"2023-11-14T22:13:20"}', b"{}"]),
)
BAD = st.builds(
    refused,
    st.sampled_from(Reason),
    st.sampled_from(["", "the id 'null' is one that many share"]),
    st.integers(1, 100),
)
STREAMS = st.lists(st.one_of(GOOD, BAD), max_size=30)


@settings(deadline=None, max_examples=50)
@given(STREAMS, st.lists(st.integers(0, 30), max_size=4))
def test_parts_of_a_stream_add_up_to_the_whole(
    stream: list[PreflightRecord], cuts: list[int]
) -> None:
    """Wherever the stream is cut, and a report made of what came so far, the report at the end is
    the same.
    """
    whole = preflight(stream)
    parted = Preflight(TERMS, ("timestamp",))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        for record in stream[start:end]:
            parted.add(*record)
        assert parted.report() == report(stream[:end])
    assert parted.report() == whole.report()


@settings(deadline=None, max_examples=50)
@given(STREAMS)
def test_figures_add_up(stream: list[PreflightRecord]) -> None:
    """Records are refused, silent or make events; events are to be sent or left out; names and
    days each add up to what is to be sent.
    """
    made = report(stream)
    assert made.records == len(stream)
    assert made.refused_records == sum(
        isinstance(record.outcome, RecordRefused) for record in stream
    )
    assert made.events == made.volume.events + made.times.after_until
    assert sum(key_count.count for key_count in made.names) + made.other_names == made.volume.events
    assert sum(day_count.events for day_count in made.days) + made.other_days == made.volume.events
    assert sum(day_count.bytes for day_count in made.days) == made.volume.bytes
    assert made.order.late_in_file <= made.order.late <= made.volume.events


@settings(deadline=None, max_examples=30)
@given(STREAMS)
def test_only_the_order_depends_on_the_order(stream: list[PreflightRecord]) -> None:
    """The same records in another order give the same counts, times, repeats, persons
    and volume.
    """
    one = report(stream)
    other = report(stream[::-1])
    for name in (
        "volume",
        "names",
        "days",
        "times",
        "repeats",
        "uuids",
        "persons",
        "illegal_ids",
        "silent",
    ):
        assert getattr(one, name) == getattr(other, name)
    assert {refusal.reason: refusal.records for refusal in one.refused} == {
        refusal.reason: refusal.records for refusal in other.refused
    }


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """However many names, ids, days, uuids and bad records come, no container grows
    past its bound.
    """
    looking = Preflight(TERMS, keys=500)
    for number in range(40_000):
        one = event(
            number, event=f"name-{number}", distinct_id=f"id-{number}", time=number * DAY % OLD
        )
        looking.add(*seen(one, line=number, file=f"file-{number}"))
        looking.add(*refused(Reason.ILLEGAL_DISTINCT_ID, f"the id 'n{number}'"))
        shared = event(number, distinct_id="\u00a0" * (number % 1_500) + "null", time=0)
        looking.add(*seen(shared, line=number))
    bounds = {
        "names": 8000,
        "days": 36_600,
        "illegal_ids": 1000,
        "repeats": 500,
        "uuids": 500,
        "distinct_ids": 500,
    }
    assert {
        name: len(getattr(looking, name))
        for name, bound in bounds.items()
        if len(getattr(looking, name)) > bound
    } == {}
    made = looking.report()
    assert sum(len(refusal.first) for refusal in made.refused) == PLACES
    assert len(made.examples) == EXAMPLES
    assert len(made.names) == 1000
    assert (
        sum(key_count.count for key_count in made.names) + made.other_names
        == made.volume.events
        == 80_000
    )
    assert abs(made.persons.distinct_ids.keys - 40_000) < 8000
    assert made.persons.distinct_ids.scale == 128


def test_times_by_where_they_lie() -> None:
    """Future, younger than 48 h, not before `until` and January 1970 are distinguished
    to the microsecond.
    """
    times = [NOW + 1, NOW, NOW - 2 * DAY, NOW - 2 * DAY - 1, 31 * DAY, 31 * DAY - 1, 0]
    stream = [seen(event(number, time=time)) for number, time in enumerate(times)]
    made = report(stream)
    assert (
        made.times.future,
        made.times.recent,
        made.times.after_until,
        made.times.january_1970,
    ) == (1, 0, 3, 2)
    assert (made.times.first, made.times.last) == (
        "1970-01-01T00:00:00.000Z",
        "2026-05-28T20:26:40.000001Z",
    )
    assert made.times.until == "2026-05-26T20:26:40.000Z"
    later = report(stream, until=NOW)
    assert (later.times.future, later.times.recent, later.times.after_until) == (1, 1, 2)
    assert (made.volume.events, later.volume.events) == (4, 5)
    assert report(stream, until=OLD).times.after_until == 4


def test_how_times_are_written_is_counted_by_record() -> None:
    """One look a record, whatever it makes; refused and silent records don't count."""
    kinds = report(
        [
            seen(event(1), event(2), record=b'{"timestamp":1700000000}'),
            seen(event(3), record=b'{"timestamp":1700000000000}'),
            seen(event(4), record=b'{"timestamp":"2023-11-14"}'),
            seen(record=b'{"timestamp":"2023-11-14"}'),
            refused(Reason.MISSING_DISTINCT_ID),
        ]
    ).times.kinds
    assert kinds == {TimeKind.NO_ZONE: 1, TimeKind.SECONDS: 1, TimeKind.MILLISECONDS: 1}


@cases(
    ("times", "files", "late", "in_file", "furthest"),
    [
        ([1, 2, 2, 3], "aaaa", 0, 0, 0),
        ([3, 1, 2], "aaa", 2, 2, 2),
        ([2, 3, 0, 1], "aabb", 2, 0, 3),
        ([2, 3, 1, 0], "aabb", 2, 1, 3),
        ([5, 1, 6, 2], "abab", 2, 0, 4),
    ],
)
def test_how_far_from_sorted(
    times: Sequence[int], files: str, late: int, in_file: int, furthest: int
) -> None:
    """Late is what is older than the latest before it: in all, and within one file."""
    events = [
        seen(event(time=time * SECOND), file=file) for file, time in zip(files, times, strict=True)
    ]
    assert report(events).order == OutOfOrder(late, in_file, furthest)


def test_requests_are_of_one_day_each() -> None:
    """A day takes as many requests as its events or its bytes need, whichever
    is more; days share none.
    """
    sizes = [(0, 10), (1, 10), (2, 10), (DAY, 95), (DAY, 95), (2 * DAY, 1)]
    stream = [
        PreflightRecord(RecordLocation("a.json", 1), b"{}", [event(time=time)], [b"x" * size])
        for time, size in sizes
    ]
    assert report(stream, batch_events=2, batch_bytes=100).volume.requests == 2 + 2 + 1


def test_days_past_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day that is known keeps being counted; a new one doesn't take memory."""
    monkeypatch.setattr("forwarder.sources.imports.preflight.MOST_DAYS", 2)
    made = report([seen(event(time=day * DAY)) for day in (1, 2, 3, 1, 4)], batch_events=1)
    assert [(day_count.day, day_count.events) for day_count in made.days] == [
        ("1970-01-02", 2),
        ("1970-01-03", 1),
    ]
    assert (made.other_days, made.volume.requests) == (2, 5)


def test_volume_and_how_long_it_takes() -> None:
    """Events and bytes of what is to be sent, at the rate."""
    events = [event(number) for number in range(50)]
    volume = report([seen(*events)], rate=10, batch_events=20).volume
    assert (volume.events, volume.bytes, volume.seconds) == (
        50,
        sum(len(body(imported)) for imported in events),
        5.0,
    )
    assert volume.requests == 1 + 2 + 2  # of 2, 24 and 24 hours


def test_an_event_over_the_limit_refuses_its_record() -> None:
    """Nothing of a record is sent if one of its events is too large; the
    largest that is allowed passes.
    """
    large = PreflightRecord(
        RecordLocation("a.json", 3), b"{}", [event(1), event(2)], [b"x", b"x" * 1001]
    )
    made = report(
        [large, PreflightRecord(RecordLocation("a.json", 4), b"{}", [event(3)], [b"x" * 1000])],
        max_event=1000,
    )
    assert (
        made.volume.events,
        [(refusal.reason, refusal.records) for refusal in made.refused],
    ) == (
        1,
        [("too_large", 1)],
    )
    assert made.refused[0].first == (
        RefusalExample("a.json", 3, "1,001 bytes are more than upstream.max_event"),
    )


def test_refusals_by_reason_with_their_first_places() -> None:
    """The most frequent reason first, each with five places at most, and the words cut where they
    are endless.
    """
    stream = [refused(Reason.UNDECODABLE, "cut" * 100, line) for line in range(1, 9)] + [
        refused(Reason.MISSING_DISTINCT_ID, "no id", 9)
    ]
    first, second = report(stream).refused
    assert (first.reason, first.records, [example.line for example in first.first]) == (
        "undecodable",
        8,
        [1, 2, 3, 4, 5],
    )
    assert max(len(example.detail) for example in first.first) == 200
    assert (second.reason, second.records, second.first) == (
        "missing_distinct_id",
        1,
        (RefusalExample("a.json", 9, "no id"),),
    )


def test_ids_that_many_share_are_counted_by_value() -> None:
    """As they stand in the events; others aren't."""
    ids = ("null", "it's", 'a "null"', " ", "Null", "null")
    summary = report(seen(event(at, distinct_id=distinct_id)) for at, distinct_id in enumerate(ids))
    assert summary.illegal_events == 4
    assert summary.illegal_ids == (KeyCount("null", 2), KeyCount(" ", 1), KeyCount("Null", 1))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from("ab"), st.booleans()),
        max_size=30,
    )
)
def test_repeats_are_those_that_are_left_out(rows: list[tuple[int, int, str, bool]]) -> None:
    """As long as the estimate is exact, it is the count of what the import itself leaves out."""
    events = [
        event(1, uuid=f"u{uuid}", time=OLD + half * DAY // 2, event=name, keyed=keyed)
        for uuid, half, name, keyed in rows
    ]
    with TemporaryDirectory() as folder, Repeats(Path(folder)) as repeats:
        rows_of = [
            (imported.event, imported.distinct_id, imported.time, imported.uuid, imported.keyed)
            for imported in events
        ]
        expected = 0
        if rows_of:
            columns: list[list[Any]] = [list(column) for column in zip(*rows_of, strict=True)]
            expected = len(repeats.among(*columns))
    estimate = report([seen(*events)]).repeats
    assert (estimate.repeats, estimate.scale) == (expected, 1)


def test_a_uuid_of_events_that_differ() -> None:
    """The same uuid at another time, of another name or person is a second event to the service."""
    differing = [
        event(1, uuid="a", time=OLD + 1),
        event(1, uuid="b", event="other"),
        event(1, uuid="c", distinct_id="other"),
    ]
    same = [event(1, uuid=uuid, time=OLD) for uuid in "abcd"]
    assert report([seen(*same, *differing, event(1, uuid="d", time=OLD))]).uuids.differing == 3


def test_what_is_done_to_persons() -> None:
    """Events that set, set once, unset and merge are counted, and whose they are."""
    stream = [
        seen(event(1, properties={"$set": Raw(b"{}"), "$set_once": Raw(b"{}")})),
        seen(
            event(
                2,
                event="$identify",
                properties={"$anon_distinct_id": Raw(b'"x"'), "$unset": Raw(b"[]")},
            )
        ),
        seen(event(8, event="$create_alias")),
        seen(event(1, event="$groupidentify", properties={"$group_set": Raw(b"{}")})),
    ]
    persons = report(stream, person_properties="none").persons
    assert (
        persons.with_set,
        persons.with_set_once,
        persons.with_unset,
        persons.merging,
        persons.with_group_set,
    ) == (1, 1, 1, 2, 1)
    assert (persons.distinct_ids.keys, persons.policy) == (2, "none")


def test_examples_are_of_different_events() -> None:
    """The first three that don't have the same name, with what would be sent for them; long
    records aren't kept.
    """
    names = ["a", "a", "b", "long", "c", "d"]
    stream = [
        seen(
            event(number, event=name), line=number, record=b"x" * (20_000 if name == "long" else 3)
        )
        for number, name in enumerate(names)
    ]
    examples = report(stream).examples
    assert [(example.line, example.record) for example in examples] == [
        (0, "xxx"),
        (2, "xxx"),
        (4, "xxx"),
    ]
    assert bytes(examples[0].events[0]) == body(event(0, event="a"))


@cases(
    ("names", "lines"),
    [("aaaaa", [0, 1, 2]), ("aabaa", [0, 2, 1]), ("aaaabc", [0, 4, 5]), ("ab", [0, 1])],
)
def test_there_are_three_examples_wherever_there_are_three_events(
    names: str, lines: list[int]
) -> None:
    """Of a source with fewer names, more than one of a name are shown."""
    stream = [seen(event(number, event=name), line=number) for number, name in enumerate(names)]
    assert [example.line for example in report(stream).examples] == lines


def test_records_without_events_are_silent() -> None:
    """A record that stands for no event is neither refused nor sent."""
    made = report([seen(), seen(event(1))])
    assert (made.records, made.silent, made.events, made.refused_records) == (2, 1, 1, 0)


def test_of_nothing_there_is_a_report_too() -> None:
    """An empty source has no times, no names and no division by zero."""
    made = report([])
    assert (made.times.first, made.refused_share, made.volume.requests, made.names) == (
        None,
        0.0,
        0,
        (),
    )


FINISH = FinishPolicy("oldest", False, "0190a0a0-1111-5222-8333-444455556666")
TIME = b'{"timestamp":"2023-11-14T22:13:20Z"'


def native_report(*texts: bytes, cut: int = 0, max_bytes: int | None = None) -> PreflightReport:
    """What a preflight says of a file of these events, one a line, and of so many lines after them
    that are cut off.
    """
    count = len(texts)
    block = RecordBlock(
        SourceFile("a.json", "00"), 0, [*texts, *[b"{"] * cut], range(1, count + cut + 1)
    )
    looking = Preflight(TERMS, ["timestamp"])
    sink = PreflightBlock(EventFinisher(FINISH, max_bytes))
    names = [f"name-{number}" for number in range(count)]
    uuids = [f"uuid-{number}" for number in range(count)]
    sink.extend(
        range(count),
        NativeEvents(names, ["a"] * count, [OLD] * count, uuids, texts, [0] * count, texts),
    )
    for number in range(cut):
        sink.refuse(count + number, RecordRefused(Reason.UNDECODABLE, "cut off"), b"{")
    sink.show(looking, block, lambda _name, _time: True)
    return looking.report()


def test_events_with_and_without_properties() -> None:
    """Names, times and how they are written are counted, whatever the properties are."""
    made = native_report(
        TIME + b"}",
        TIME + b',"properties":null}',
        b'{"timestamp":"2023-11-14 22:13:20","properties":{"x":1}}',
    )
    assert [(key_count.key, key_count.count) for key_count in made.names] == [
        ("name-0", 1),
        ("name-1", 1),
        ("name-2", 1),
    ]
    assert made.times.kinds == {TimeKind.ZONE: 2, TimeKind.NO_ZONE: 1}
    assert (made.volume.events, made.persons.with_set, made.persons.distinct_ids.keys) == (3, 0, 1)


def test_set_is_seen_inside_and_beside_the_properties() -> None:
    """The places where an event may set a person's properties are all looked at."""
    inside = b',"properties":{"$set":{"x":1},"$unset":["y"]}}'
    beside = b',"$set":{"x":1},"$set_once":{"y":1}}'
    persons = native_report(
        TIME + inside, TIME + beside, TIME + b',"$unset":["x"],"properties":{}}'
    ).persons
    assert (persons.with_set, persons.with_set_once, persons.with_unset) == (2, 1, 2)


def test_times_and_examples_are_as_they_stood_in_the_source() -> None:
    """What the format repairs is checked, and shown, as it was: epochs in two units, and times
    without a zone, are no less there.
    """
    times = {"a": "1700000000", "b": "1700000000123", "c": '"2023-11-14 22:13:20"'}
    parts = [
        f'{{"event":"{name}","distinct_id":"u1","timestamp":{time}}}'
        for name, time in times.items()
    ]
    block = RecordBlock(
        SourceFile("a.json", "00"),
        0,
        [parts[0].encode(), f"[{parts[1]},{parts[2]}]".encode()],
        [1, 2],
    )
    looking = Preflight(TERMS, ["timestamp"])
    for left in ("", "a"):
        sink = PreflightBlock(EventFinisher(FINISH))
        NativeConverter("oldest", ahead(60)).convert_block(block, sink)
        # mypy has no type for a default that binds the loop's value.
        sink.show(looking, block, lambda name, _time, left=left: name != left)  # type: ignore[misc]
    made = looking.report()
    assert made.times.kinds == {TimeKind.NO_ZONE: 2, TimeKind.SECONDS: 1, TimeKind.MILLISECONDS: 2}
    assert [example.record for example in made.examples] == parts


def test_what_is_refused_has_its_line() -> None:
    """Of the format and of finishing alike, each with its place."""
    made = native_report(TIME + b"}", TIME + b',"x":"' + b"x" * 200 + b'"}', cut=1, max_bytes=200)
    assert (made.records, made.volume.events) == (3, 1)
    assert {
        refusal.reason: [first.line for first in refusal.first] for refusal in made.refused
    } == {
        "undecodable": [3],
        "too_large": [2],
    }


NATIVE = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))
SOURCE_TERMS = PreflightTerms(
    now=(FIRST_DAY + 100) * DAY,
    max_event=1000,
    batch_events=5000,
    batch_bytes=5_000_000,
    rate=2000.0,
)


def look(
    *paths: Path, filters: EventFilters | None = None, reported: list[tuple[int, int]] | None = None
) -> tuple[PreflightReport, Sequence[BrokenSource]]:
    """What is known of these files."""
    said = [] if reported is None else reported
    with open_source([str(path) for path in paths]) as source:
        return run_preflight(
            source,
            NATIVE,
            FINISH,
            filters=filters or EventFilters(),
            terms=SOURCE_TERMS,
            progress=lambda records, size: said.append((records, size)),
        )


def test_all_of_a_source_is_looked_at(tmp_path: Path) -> None:
    """Events by name and by day, what is refused, and how far it is meanwhile."""
    reported: list[tuple[int, int]] = []
    first = write(tmp_path / "a.jsonl", [line(n, day=n % 3) for n in range(30)])
    second = write(
        tmp_path / "b.jsonl", [line(30, name="other"), b'{"cut', line(31, pad="x" * 2000)]
    )
    report, broken = look(first, second, reported=reported)
    assert not broken
    assert report.records == 33
    assert sum(refusal.records for refusal in report.refused) == 2
    assert reported[-1][0] == 33
    assert reported[-1][1] == first.stat().st_size + second.stat().st_size - 33
    assert reported == sorted(reported)


def test_what_filters_leave_out_is_not_in_it(tmp_path: Path) -> None:
    """But for `--until`, of which the report says what it leaves out. A limit ends the reading."""
    path = write(
        tmp_path / "a.jsonl", [line(n, name="wanted" if n % 2 else "not") for n in range(30)]
    )
    report, _ = look(
        path,
        filters=EventFilters(events=frozenset({"wanted"}), until=FIRST_DAY * DAY + 10 * SECOND),
    )
    assert report.volume.events == 15
    report, _ = look(path, filters=EventFilters(limit=4))
    assert report.volume.events == 4


def test_what_until_leaves_out_does_not_count_against_the_limit(tmp_path: Path) -> None:
    """As in the import itself: four events of the first day, and what stands between them."""
    path = write(tmp_path / "a.jsonl", [line(n, day=n % 3) for n in range(30)])
    report, _ = look(path, filters=EventFilters(limit=4, until=(FIRST_DAY + 1) * DAY))
    assert report.events == 10


def test_a_broken_file_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    """It is no reason to know nothing of the rest."""
    broken = tmp_path / "a.json"
    broken.write_bytes(b"[" + line(0) + b",")
    report, failures = look(broken, write(tmp_path / "b.jsonl", [line(1)]))
    assert [error.file for error in failures] == [str(broken)]
    assert report.volume.events >= 1


def test_ids_in_upper_case_are_counted_where_they_may_matter(tmp_path: Path) -> None:
    """Of Mixpanel's exports, whose users have such ids too."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"event":"a","properties":{"time":1640995200,"distinct_id":"ABC-1","$distinct_id_before_'
        b'identity":"x","$insert_id":"i1"}}\n'
    )
    chosen = ChosenFormat("mixpanel", {}, lambda _: MixpanelConverter(), ("properties.time",))
    with open_source([str(path)]) as source:
        report, _ = run_preflight(
            source,
            chosen,
            FINISH,
            filters=EventFilters(),
            terms=SOURCE_TERMS,
            progress=lambda _records, _size: None,
        )
    assert report.persons.upper_case_ids == 1


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_source_can_be_looked_at(tmp_path: Path, count: int) -> None:
    """It has nothing."""
    report, broken = look(write(tmp_path / "a.jsonl", [line(n) for n in range(count)]))
    assert (report.records, list(broken)) == (count, [])
