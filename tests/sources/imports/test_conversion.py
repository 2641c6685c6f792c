"""Records as they become finished events: filters, repeats, limits, refusals."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.conversion import (
    LEFT_OUT,
    NO_EVENT,
    OF_EVENTS,
    REPEATED,
    Conversion,
    ConvertedRecords,
    EventFilters,
    FilterReason,
    FinishPolicy,
    ImportDeadLetter,
    left_out,
)
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordConverter,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import FateKind
from forwarder.sources.imports.repeats import Repeats
from tests.support.cases import cases

FINISH = FinishPolicy("oldest", False, "0190a0a0-1111-5222-8333-444455556666")
FILE = SourceFile("a.jsonl", "ab" * 20)
SLOTS = 1 << 10
"""Of an index of repeats: a test has a few events, and a property opens some hundred of them."""
WANTED = EventFilters(exclude_events=frozenset({"unwanted"}))


def words(record: bytes) -> list[str]:
    """Those of a record. Raises `RecordRefused`."""
    spellings = record.decode().split()
    if "!" in spellings:
        raise RecordRefused(Reason.MISSING_TIMESTAMP, "there is no time")
    return spellings


class SpelledFormat(RecordConverter[list[str]]):
    """A format: a record is a list of events as `name:key`, `!` refuses it, and a `nan` is refused
    only when it is finished.
    """

    def __init__(self) -> None:
        super().__init__(words, words)

    def events_of(self, record: list[str], _: RecordBlock, __: int) -> Sequence[ImportedEvent]:
        return [self._event(word) for word in record]

    @staticmethod
    def _event(word: str) -> ImportedEvent:
        name, _, key = word.partition(":")
        uuid = f"0190a0a0-1111-4222-8333-{int(key or 0):012}"
        return ImportedEvent(
            name, "ann", 1_000_000, uuid, {"n": "\ud800" if name == "nan" else 1.0}, keyed=True
        )


def native(number: int, name: str = "seen", size: int = 0) -> bytes:
    """An event of the native format."""
    uuid = f"0190a0a0-1111-4222-8333-{number:012}"
    event: dict[str, Any] = {
        "event": name,
        "distinct_id": "ann",
        "uuid": uuid,
        "timestamp": "1970-01-01T00:00:01Z",
    }
    return msgspec.json.encode({**event, "properties": {"pad": "x" * size}})


def block(*records: bytes, first: int = 0) -> RecordBlock:
    """Neighbouring records, one a line."""
    return RecordBlock(FILE, first, records, range(first + 1, first + 1 + len(records)))


OPEN: list[Repeats] = []
"""What the tests have opened."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Nothing stays open after a test."""
    yield
    while OPEN:
        OPEN.pop().close()


def repeats_in(folder: Path) -> Repeats:
    """Of a folder that is there."""
    folder.mkdir(exist_ok=True)
    OPEN.append(Repeats(folder, SLOTS))
    return OPEN[-1]


def record_conversion(folder: Path, filters: EventFilters = WANTED) -> Conversion:
    """Of the spelled format."""
    return Conversion(SpelledFormat(), FINISH, 1000, filters, repeats_in(folder))


def raw_conversion(
    folder: Path, filters: EventFilters = WANTED, max_event: int = 1000
) -> Conversion:
    """Of the native format."""
    return Conversion(NativeConverter("oldest"), FINISH, max_event, filters, repeats_in(folder))


def shown(made: ConvertedRecords) -> list[Any]:
    """Of each record how many events it sends, or why none, and whether one of it was refused."""
    return [
        f"{count}{' partly' if at in made.partly else ''}"
        if count
        else f"{made.fates[at].kind} {made.fates[at].reason}".strip()
        for at, count in enumerate(made.counts)
    ]


def test_a_record_sends_its_events_or_has_a_fate(tmp_path: Path) -> None:
    """No event, left out, a repeat, refused by the format, or refused when it is finished."""
    made = record_conversion(tmp_path).convert(
        block(b"a:1 b:2", b"", b"unwanted:3", b"a:1", b"!", b"nan:5", b"unwanted:6 a:7"), 4, 0
    )
    assert shown(made) == [
        "2",
        "left_out no_event_of_it",
        "left_out excluded_event",
        "repeat",
        "refused missing_timestamp",
        "refused undecodable",
        "1",
    ]
    assert [
        (event.event, event.file, event.line, event.number, event.part) for event in made.events
    ] == [
        ("a", 4, 1, 0, 0),
        ("b", 4, 1, 0, 1),
        ("a", 4, 7, 6, 0),
    ]
    assert [
        (letter.place.line, letter.file_number, letter.number, letter.part, letter.data, letter.why)
        for letter in made.refused
    ] == [
        (5, 4, 4, 0, b"!", Reason.MISSING_TIMESTAMP),
        (6, 4, 5, 0, b"nan:5", Reason.UNDECODABLE),
    ]
    assert made.fates[4].example is not None
    assert made.fates[1] is NO_EVENT
    assert made.fates[2] is LEFT_OUT[FilterReason.EXCLUDED_EVENT]
    assert made.fates[3] is REPEATED


def test_a_record_of_which_one_event_can_t_be_finished_sends_none(tmp_path: Path) -> None:
    """It is one dead letter, whole, so that repairing it brings all of it."""
    made = record_conversion(tmp_path).convert(block(b"a:1 nan:2"), 0, 0)
    assert shown(made) == ["refused undecodable"]
    assert not made.events


def test_columns_have_the_same_fates(tmp_path: Path) -> None:
    """Repeats, what is left out, and what the format or its size refuses."""
    records = (native(1), native(2, "unwanted"), native(1), b"{", native(5, size=900), native(6))
    made = raw_conversion(tmp_path).convert(block(*records), 2, 0)
    assert shown(made) == [
        "1",
        "left_out excluded_event",
        "repeat",
        "refused undecodable",
        "refused too_large",
        "1",
    ]
    assert [(letter.number, letter.part, letter.why) for letter in made.refused] == [
        (3, 0, Reason.UNDECODABLE),
        (4, OF_EVENTS, Reason.TOO_LARGE),
    ]
    assert [(event.number, event.line, event.file) for event in made.events] == [
        (0, 1, 2),
        (5, 6, 2),
    ]


def test_a_record_with_several_events_may_have_them_all(tmp_path: Path) -> None:
    """What is good is sent; what isn't is refused one by one, and the record counts as refused."""
    members = [
        native(1),
        native(1),
        native(2, "unwanted"),
        b'{"event":"x"}',
        native(4, size=900),
        native(5),
    ]
    body = b'{"batch":[' + b",".join(members) + b"]}"
    made = raw_conversion(tmp_path).convert(block(native(0), body, first=10), 0, 0)
    assert shown(made) == ["1", "2 partly"]
    assert [(event.number, event.part) for event in made.events] == [(10, 0), (11, 0), (11, 2)]
    assert sorted((letter.number, letter.part, letter.data) for letter in made.refused) == [
        (11, 4, members[3]),
        (11, OF_EVENTS + 1, members[4]),
    ]


def test_what_is_refused_of_a_record_is_the_same_wherever_a_run_begins(tmp_path: Path) -> None:
    """Its part tells a dead letter from others of its record: buried again,
    it must be the same one.
    """
    body = b'{"batch":[' + b",".join([native(1), b'{"event":"x"}', native(2, size=900)]) + b"]}"
    records = (
        body.replace(b"000000000001", b"000000000011").replace(b"000000000002", b"000000000012"),
        body,
    )
    whole = raw_conversion(tmp_path).convert(block(*records), 0, 0)
    rest = raw_conversion(tmp_path).convert(block(*records), 0, 1)
    assert [letter for letter in whole.refused if letter.number == 1] == rest.refused


def test_what_was_settled_is_noticed_and_not_made(tmp_path: Path) -> None:
    """A repeat of it is one; nothing of it is finished or refused again."""
    for conversion, records in (
        (record_conversion(tmp_path / "1"), (b"a:1", b"!", b"a:1", b"b:2")),
        (raw_conversion(tmp_path / "2"), (native(1), b"{", native(1), native(2))),
    ):
        made = conversion.convert(block(*records), 0, 2)
        assert shown(made) == ["repeat", "1"]
        assert not made.refused
        assert [event.number for event in made.events] == [3]


@cases("skip", [0, 1, 3])
def test_a_limit_counts_what_was_settled_too(tmp_path: Path, skip: int) -> None:
    """It is a limit of the import, not of a run; what can't be finished counts, so that it is the
    same in each.
    """
    filters = EventFilters(limit=2)
    for conversion, records in (
        (record_conversion(tmp_path / "1", filters), (b"nan:1", b"a:2", b"a:3", b"a:4")),
        (
            raw_conversion(tmp_path / "2", filters),
            (native(1, size=900), native(2), native(3), native(4)),
        ),
    ):
        assert not conversion.is_full
        made = conversion.convert(block(*records), 0, skip)
        assert conversion.is_full
        whole = [
            made.fates[at].reason if not count else "sent" for at, count in enumerate(made.counts)
        ]
        assert whole[-1] == FilterReason.OVER_LIMIT
        assert len([fate for fate in whole if fate == "sent"]) == (1 if skip < 2 else 0)


@given(
    st.lists(
        st.sampled_from(
            [
                b"a:1",
                b"a:2 b:2",
                b"",
                b"!",
                b"nan:3",
                b"unwanted:4",
                b"a:1 !",
                b"c:5 a:1 unwanted:6",
            ]
        ),
        max_size=8,
    )
)
def test_a_resumed_run_creates_what_one_run_would_have(records: list[bytes]) -> None:
    """From every record on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filters = EventFilters(limit=5, exclude_events=frozenset({"unwanted"}))
        whole = record_conversion(folder, filters).convert(block(*records), 0, 0)
        for skip in range(len(records) + 1):
            rest = record_conversion(folder, filters).convert(block(*records), 0, skip)
            assert rest.counts == whole.counts[skip:]
            assert list(rest.events) == [event for event in whole.events if event.number >= skip]
            assert rest.refused == [letter for letter in whole.refused if letter.number >= skip]
            assert rest.fates == {at - skip: fate for at, fate in whole.fates.items() if at >= skip}
            assert all(count or at in rest.fates for at, count in enumerate(rest.counts))


def test_refused_is_what_a_record_with_a_repeat_and_a_refusal_is(tmp_path: Path) -> None:
    """Of fates that exclude each other the worst is reported: someone has to look at it."""
    body = b'{"batch":[' + native(1) + b',{"event":"x"}]}'
    made = raw_conversion(tmp_path).convert(block(native(1), body), 0, 0)
    assert made.fates[1].kind is FateKind.REFUSED


@cases(
    ("filters", "name", "time", "why"),
    [
        (EventFilters(), "a", 0, None),
        (EventFilters(since=10), "a", 9, FilterReason.BEFORE_SINCE),
        (EventFilters(since=10), "a", 10, None),
        (EventFilters(until=10), "a", 9, None),
        (EventFilters(until=10), "a", 10, FilterReason.FROM_UNTIL_ON),
        (EventFilters(events={"a"}), "a", 0, None),
        (EventFilters(events={"a"}), "A", 0, FilterReason.OTHER_EVENT),
        (EventFilters(exclude_events={"a"}), "a", 0, FilterReason.EXCLUDED_EVENT),
        (EventFilters(exclude_events={"a"}), "b", 0, None),
        (EventFilters(events={"a"}, exclude_events={"a"}), "a", 0, FilterReason.EXCLUDED_EVENT),
        (EventFilters(since=10, events={"b"}), "a", 9, FilterReason.BEFORE_SINCE),
        (EventFilters(limit=0), "a", 0, None),
    ],
)
def test_an_event_is_left_out_for_the_first_reason(
    filters: EventFilters, name: str, time: int, why: FilterReason | None
) -> None:
    """`since` belongs to the range and `until` doesn't; names are compared as they are; what is
    excluded is so whatever else is said.
    """
    assert left_out(name, time, filters) is why


def alone(filters: EventFilters) -> Conversion:
    """Of the spelled format, for records of which nothing is known that came before."""
    return Conversion(SpelledFormat(), FINISH, 1000, filters, None)


def fates(conversion: Conversion, names: str) -> list[str | None]:
    """Why each of these events isn't taken; None of those that are."""
    made = conversion.convert(block(*[name.encode() for name in names]), 0, 0)
    return [made.fates[at].reason if at in made.fates else None for at in range(len(names))]


def test_the_limit_counts_accepted_records() -> None:
    """Events that are left out for another reason don't use the limit up, and are reported
    by reason.
    """
    choice = alone(EventFilters(exclude_events={"b"}, limit=2))
    assert fates(choice, "abaab") == [
        None,
        FilterReason.EXCLUDED_EVENT,
        None,
        FilterReason.OVER_LIMIT,
        FilterReason.EXCLUDED_EVENT,
    ]
    assert choice.is_full


def test_without_a_limit_it_is_never_full() -> None:
    """Without a limit, everything is taken."""
    choice = alone(EventFilters())
    assert fates(choice, "a" * 10) == [None] * 10
    assert not choice.is_full


def test_a_limit_of_none_takes_none() -> None:
    """A limit of 0 is full from the start."""
    choice = alone(EventFilters(limit=0))
    assert choice.is_full
    assert fates(choice, "a") == [FilterReason.OVER_LIMIT]


OTHER_FILE = SourceFile("a.json", "ab" * 16)
SET_ONCE = FinishPolicy("oldest", geoip=False, job_id="0190a0a0-0000-5000-8000-000000000000")
GOOD = b'{"event":"seen","distinct_id":"ann","timestamp":"2024-01-01T00:00:00Z","properties":{}}'
LARGE = GOOD.replace(b"{}", b'{"x":"%b"}' % (b"x" * 1000))
NAMELESS = b'{"distinct_id":"ann","timestamp":"2024-01-01T00:00:00Z"}'
RECORDS = [
    b"{cut",
    b"[%b,%b,%b,%b]" % (GOOD, NAMELESS, LARGE, NAMELESS),
    LARGE,
    b"[%b,%b]" % (LARGE, GOOD),
]


def conversion() -> Conversion:
    """The way of native records, from the start of a source."""
    return Conversion(NativeConverter("oldest"), SET_ONCE, 1000, EventFilters(), None)


def block_of_parts(
    records: list[bytes], members: list[int] | None = None, first: int = 0
) -> RecordBlock:
    """Neighbouring records."""
    return RecordBlock(
        OTHER_FILE, first, records, [*range(first + 1, first + len(records) + 1)], members
    )


def parts(refused: list[ImportDeadLetter]) -> list[tuple[int, int]]:
    """Which parts of which records those are."""
    return sorted((letter.number, letter.part) for letter in refused)


def test_each_has_a_number_of_its_own() -> None:
    """A whole record, what it holds at an index, and the events that were made
    of it and are too large.
    """
    made = conversion().convert(block_of_parts(RECORDS), 0, 0)
    expected = [(0, 0), (1, 2), (1, 4), (1, OF_EVENTS + 1), (2, OF_EVENTS), (3, OF_EVENTS)]
    assert parts(made.refused) == expected


def test_a_resumed_run_rejects_the_same_parts() -> None:
    """Wherever it continues in a block."""
    whole = parts(conversion().convert(block_of_parts(RECORDS), 0, 0).refused)
    for skip in range(1, len(RECORDS)):
        made = conversion().convert(block_of_parts(RECORDS), 0, skip)
        assert parts(made.refused) == [part for part in whole if part[0] >= skip]


def test_a_member_by_itself_is_what_it_was_in_its_record() -> None:
    """It gets the uuid of its index, and isn't taken apart, whatever it holds."""
    whole = (
        conversion()
        .convert(block_of_parts([b"[%b,%b]" % (NAMELESS, GOOD)], first=7), 0, 0)
        .events[0]
    )
    (alone,) = conversion().convert(block_of_parts([GOOD], [1], first=7), 0, 0).events
    assert alone.uuid == whole.uuid == derived_uuid(f'["native","{OTHER_FILE.identity}",7,1]')
    (with_batch,) = (
        conversion().convert(block_of_parts([GOOD[:-1] + b',"batch":[]}'], [1]), 0, 0).events
    )
    assert b'"batch":[]' in with_batch.data
