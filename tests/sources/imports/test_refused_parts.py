"""What is refused of one record is told apart, the same in every run: dead letters are known by it."""

from __future__ import annotations

from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.events import derived_uuid
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.making import Conversion, EventSelection, NoRepeats, open_conversion
from forwarder.sources.imports.planned import OF_EVENTS, ImportDeadLetter
from forwarder.sources.imports.policy import EventFilters, FinishPolicy

FILE = SourceFile("a.json", "ab" * 16)
FINISH = FinishPolicy("set_once", geoip=False, job_id="0190a0a0-0000-5000-8000-000000000000")
GOOD = b'{"event":"seen","distinct_id":"ann","timestamp":"2024-01-01T00:00:00Z","properties":{}}'
LARGE = GOOD.replace(b"{}", b'{"x":"%b"}' % (b"x" * 1000))
NAMELESS = b'{"distinct_id":"ann","timestamp":"2024-01-01T00:00:00Z"}'
RECORDS = [b"{cut", b"[%b,%b,%b,%b]" % (GOOD, NAMELESS, LARGE, NAMELESS), LARGE, b"[%b,%b]" % (LARGE, GOOD)]


def maker() -> Conversion:
    """The way of native records, from the start of a source."""
    return open_conversion(NativeConverter("set_once"), FINISH, 1000, EventSelection(EventFilters(), NoRepeats()))


def block(records: list[bytes], members: list[int] | None = None, first: int = 0) -> RecordBlock:
    """Neighbouring records."""
    return RecordBlock(FILE, first, records, [*range(first + 1, first + len(records) + 1)], members)


def parts(refused: list[ImportDeadLetter]) -> list[tuple[int, int]]:
    """Which parts of which records those are."""
    return sorted((each.number, each.part) for each in refused)


def test_each_has_a_number_of_its_own() -> None:
    """A whole record, what it holds at an index, and the events that were made of it and are too large."""
    made = maker().make(block(RECORDS), 0, 0)
    expected = [(0, 0), (1, 2), (1, 4), (1, OF_EVENTS + 1), (2, OF_EVENTS), (3, OF_EVENTS)]
    assert parts(made.refused) == expected


def test_a_run_that_goes_on_refuses_the_same_parts() -> None:
    """Wherever it goes on in a block."""
    whole = parts(maker().make(block(RECORDS), 0, 0).refused)
    for skip in range(1, len(RECORDS)):
        made = maker().make(block(RECORDS), 0, skip)
        assert parts(made.refused) == [each for each in whole if each[0] >= skip]


def test_a_member_by_itself_is_what_it_was_in_its_record() -> None:
    """It gets the uuid of its index, and isn't taken apart, whatever it holds."""
    whole = maker().make(block([b"[%b,%b]" % (NAMELESS, GOOD)], first=7), 0, 0).events[0]
    (alone,) = maker().make(block([GOOD], [1], first=7), 0, 0).events
    assert alone.uuid == whole.uuid == derived_uuid(f'["native","{FILE.identity}",7,1]')
    (with_batch,) = maker().make(block([GOOD[:-1] + b',"batch":[]}'], [1]), 0, 0).events
    assert b'"batch":[]' in with_batch.data
