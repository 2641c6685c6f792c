"""Dead letters of an import on their way back: through the format again, as they were sent, or with a note."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forwarder.imports.dead_letters import ImportDeadLetters
from forwarder.imports.replaying import LetterConversion, LetterReplays
from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.books import DayTally, ImportTotals, RecordBooks
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import (
    OF_EVENTS,
    Conversion,
    EventFilters,
    EventSelection,
    FilterReason,
    ImportDeadLetter,
    open_conversion,
)
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.finishing import FinishPolicy
from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.formats.segment import SegmentConverter
from tests.deadletter.rig import query
from tests.imports.lettered import DAY, FILE, event, mark, opened, refused, refused_events, rows

NATIVE = b'{"event":"sign up","distinct_id":"ann","timestamp":"1970-01-%02dT00:00:00Z","properties":{}}'
FINISH = FinishPolicy("set_once", geoip=False, job_id="0190a0a0-0000-5000-8000-000000000000")
MAX_EVENT = 1000
LIMITS = BatchLimits(max_bytes=100_000, max_events=100)


@dataclass
class Job:
    """What an import keeps beside its letters, and what its format makes of records."""

    conversion: Conversion
    totals: ImportTotals = field(default_factory=ImportTotals)
    books: RecordBooks = field(default_factory=lambda: RecordBooks(read=9, refused={"any": 9}))

    def replays(self, letters: ImportDeadLetters) -> LetterReplays:
        """The letters' way back in one run."""
        remaking = LetterConversion(lambda block, file: self.conversion.convert(block, file, 0), LIMITS, MAX_EVENT)
        return LetterReplays(letters, self.totals, lambda *_: [self.books], remaking)


def native(filters: EventFilters | None = None) -> Job:
    """An import of native events."""
    return Job(open_conversion(NativeConverter("set_once"), FINISH, MAX_EVENT, EventSelection(filters or EventFilters(), None)))


async def sent(replays: LetterReplays) -> list[FinishedEvent]:
    """All that is marked, and can go."""
    found: list[FinishedEvent] = []
    while (batches := await replays.next()) is not None:
        found += [event for batch in batches for event in batch.events]
    return found


async def test_a_mended_record_goes_through_its_format_again(tmp_path: Path) -> None:
    """It arrives with the uuid of its old place, is counted, and is gone once that is saved."""
    job = native()
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(3), refused(4)])
        mark(tmp_path, {1: NATIVE % 2})
        replays = job.replays(letters)
        (found,) = await sent(replays)
        expected = job.conversion.convert(RecordBlock(FILE, 3, [NATIVE % 2], [4]), 0, 0).events[0]
        assert found == expected
        assert replays.owns(found._replace(data=b""))
        replays.settle([found._replace(data=b"")], delivered=True)
        assert not replays.owns(found)
        assert (job.books.mended, job.totals.replayed, job.totals.days["1970-01-02"].delivered) == (1, [1], 1)
        assert len(rows(tmp_path)) == 2
        replays.saved(replays.counted())
        assert job.totals.replayed == [1]  # until it is known to be gone
        assert await sent(replays) == []
        assert rows(tmp_path, "number") == [(2,)]
        replays.saved(replays.counted())
    assert job.totals.replayed == []


async def test_killed_before_its_removal_it_is_counted_once(tmp_path: Path) -> None:
    """The saved counts name it: the next run removes it, and sends nothing."""
    job = native()
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(3)])
        mark(tmp_path, {1: NATIVE % 2})
        replays = job.replays(letters)
        replays.settle(await sent(replays), delivered=True)
    job.totals = msgspec.json.decode(msgspec.json.encode(job.totals), type=ImportTotals)
    async with opened(tmp_path, replayed=job.totals.replayed) as letters:
        replays = job.replays(letters)
        replays.saved(replays.counted())
        assert await sent(replays) == []
        replays.saved(replays.counted())
    assert (job.books.mended, job.totals.replayed, rows(tmp_path)) == (1, [], [])


async def test_killed_before_it_was_counted_it_is_sent_again(tmp_path: Path) -> None:
    """The same bytes: the service has them once."""
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(3)])
    mark(tmp_path, {1: NATIVE % 2})
    runs = []
    for _ in range(2):
        async with opened(tmp_path) as letters:
            runs.append(await sent(native().replays(letters)))
    assert runs[0] == runs[1] != []


async def test_what_the_format_refuses_again_stays(tmp_path: Path) -> None:
    """With a note, unmarked, and with its own bytes; so does what no event is made of, and what the filters leave out."""
    job = native(EventFilters(since=5 * DAY))
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(number) for number in range(4)])
        mark(tmp_path, {1: None, 2: b'{"event":"x"}', 3: NATIVE % 2, 4: b"[]"})
        replays = job.replays(letters)
        assert await sent(replays) == []
        assert replays.refused == 4
    notes = dict(rows(tmp_path, "number, note"))
    assert notes[1].startswith("not_json: ")
    assert notes[2] == "no_id: it has no distinct_id"
    assert notes[3] == f"nothing of it is sent: it is left out ({FilterReason.BEFORE_SINCE})"
    assert "nothing of it is sent" in notes[4]
    assert set(rows(tmp_path, "data, mark, replacement")) == {(b'{"cut', None, None)}
    assert (job.books.mended, job.totals.days) == (0, {})


async def test_an_event_goes_as_it_is(tmp_path: Path) -> None:
    """What the service refused keeps its bytes; edited, it is what the edit made of it."""
    job = native()
    job.totals.days["1970-01-01"] = DayTally(source=2)
    edited = event(2).data.replace(b"1970-01-01", b"1970-01-03")
    async with opened(tmp_path) as letters:
        letters.bury(refused_events(letters, [event(1), event(2)]))
        await letters.durable()
        mark(tmp_path, {1: None, 2: edited})
        replays = job.replays(letters)
        first, second = await sent(replays)
        assert first == event(1)
        assert second == event(2)._replace(data=edited, time=2 * DAY)
        replays.settle([first, second], delivered=True)
        replays.saved(replays.counted())
    assert [(day.source, day.delivered) for day in job.totals.days.values()] == [(1, 1), (1, 1)]
    assert (job.books.mended, rows(tmp_path)) == (2, [])


async def test_an_event_that_was_edited_to_none_stays(tmp_path: Path) -> None:
    """It would be stamped with now, or be nobody's, or be thrown away for its size."""
    edits = [
        event(1).data.replace(b"timestamp", b"time"),
        event(1).data.replace(b"ann", b""),
        event(1).data.replace(b"{}", b'{"x":"%b"}' % bytes(1200).replace(b"\0", b"x")),
    ]
    async with opened(tmp_path) as letters:
        letters.bury(refused_events(letters, [event(number) for number in range(3)]))
        await letters.durable()
        mark(tmp_path, dict(enumerate(edits, 1)))
        replays = native().replays(letters)
        assert await sent(replays) == []
    notes = [note for (note,) in rows(tmp_path, "note")]
    assert [note.partition(":")[0] for note in notes] == ["no_time", "no_id", "the event has 1,342 bytes, 1,000 are allowed"]


async def test_an_event_that_the_service_refuses_again_stays(tmp_path: Path) -> None:
    """The letter that it is, unmarked, with the service's words; nothing is counted."""
    job = native()
    async with opened(tmp_path) as letters:
        letters.bury(refused_events(letters, [event(1)]))
        await letters.durable()
        mark(tmp_path, {1: event(1).data.replace(b"ann", b"bob")})
        replays = job.replays(letters)
        (found,) = await sent(replays)
        assert letters.bury(refused_events(letters, [found], "400: still no"))
        replays.settle([found], delivered=False)
        replays.saved(replays.counted())
        assert (replays.refused, letters.returning) == (1, {})
    assert rows(tmp_path, "data, mark, note") == [(event(1).data, None, "the service refused it again: 400: still no")]
    assert (job.books.mended, job.totals) == (0, ImportTotals())


async def test_a_mended_record_that_the_service_refuses_is_a_letter_of_its_event(tmp_path: Path) -> None:
    """In the place of the record's: it is what has to be mended now. Replayed, the record is mended."""
    job = native()
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(3)])
        mark(tmp_path, {1: NATIVE % 2})
        replays = job.replays(letters)
        (found,) = await sent(replays)
        assert letters.bury(refused_events(letters, [found], "400: no"))
        replays.settle([found], delivered=False)
        await letters.durable()
        replays.saved(replays.counted())
        assert await sent(replays) == []
        assert rows(tmp_path, "number, data, coordinates, why") == [(2, found.data, "export/a.json.gz:4", "400: no")]
        assert (job.books.mended, job.totals.days["1970-01-02"].source) == (0, 1)
        mark(tmp_path, {2: None})
        (again,) = await sent(replays)
        replays.settle([again], delivered=True)
        replays.saved(replays.counted())
    assert again == found
    assert (job.books.mended, job.totals.days["1970-01-02"].source, rows(tmp_path)) == (1, 1, [])


async def test_events_of_one_record_keep_their_places(tmp_path: Path) -> None:
    """Of a body with many events each bad one is a letter; mended, each has the uuid that it would have had, and the last one counts."""
    job = native()
    batch = b'{"batch":[%b,{"event":"x"},%b,{"event":"y"}]}' % (NATIVE % 1, NATIVE % 2)
    mended = b'{"batch":[%b]}' % b",".join([NATIVE % 1, NATIVE % 3, NATIVE % 2, NATIVE % 4])
    made = job.conversion.convert(RecordBlock(FILE, 5, [batch], [6]), 0, 0)
    assert [each.part for each in made.refused] == [2, 4]
    async with opened(tmp_path) as letters:
        await letters.bury_records(made.refused)
        replays = job.replays(letters)
        found: list[FinishedEvent] = []
        for number, day in ((1, 3), (2, 4)):
            assert job.books.mended == 0
            mark(tmp_path, {number: NATIVE % day})
            found += await sent(replays)
            replays.settle(found[-1:], delivered=True)
        assert job.books.mended == 1
    whole = job.conversion.convert(RecordBlock(FILE, 5, [mended], [6]), 0, 0).events
    assert [each.uuid for each in found] == [whole[1].uuid, whole[3].uuid]
    assert len({(each.file, each.number, each.part) for each in [*made.events, *found]}) == 4


async def test_an_event_that_was_too_large_is_made_smaller(tmp_path: Path) -> None:
    """It is refused after its format took it, and goes its way from the start."""
    job = native()
    large = (NATIVE % 1).replace(b"{}", b'{"x":"%b"}' % (b"x" * 1200))
    made = job.conversion.convert(RecordBlock(FILE, 5, [b"[%b,%b]" % (NATIVE % 2, large)], [6]), 0, 0)
    (record,) = made.refused
    assert (record.why, record.part) == (RefusalReason.TOO_LARGE, OF_EVENTS + 1)
    async with opened(tmp_path) as letters:
        await letters.bury_records([record])
        mark(tmp_path, {1: record.data.replace(b"x" * 1200, b"x")})
        (found,) = await sent(job.replays(letters))
    whole = job.conversion.convert(RecordBlock(FILE, 5, [b"[%b,%b]" % (NATIVE % 2, NATIVE % 1)], [6]), 0, 0)
    assert (found.uuid, found.part) == (whole.events[1].uuid, 1)


async def test_a_record_of_a_vendor(tmp_path: Path) -> None:
    """It is mended in the vendor's own words."""
    record = b'{"type":"track","event":"sign up","userId":"ann","timestamp":"%b","messageId":"m"}'
    job = Job(open_conversion(SegmentConverter(), FINISH, MAX_EVENT, EventSelection(EventFilters(), None)))
    made = job.conversion.convert(RecordBlock(FILE, 5, [record % b"yesterday"], [6]), 0, 0)
    async with opened(tmp_path) as letters:
        await letters.bury_records(made.refused)
        mark(tmp_path, {1: record % b"1970-01-02T00:00:00Z"})
        (found,) = await sent(job.replays(letters))
    assert (found.event, found.time, found.line, found.number) == ("sign up", DAY, 6, 5)


async def test_what_is_damaged_or_foreign_stays(tmp_path: Path) -> None:
    """The disk may have changed a letter's bytes; a letter without its origin is nobody's."""
    async with opened(tmp_path) as letters:
        await letters.bury_records([refused(1, NATIVE % 1), refused(2, NATIVE % 1)])
        query(tmp_path, "UPDATE letters SET data = ? WHERE number = 1", (NATIVE % 2,))
        query(tmp_path, "UPDATE letters SET attributes = '' WHERE number = 2")
        mark(tmp_path, {1: None, 2: None})
        assert await sent(native().replays(letters)) == []
    notes = [note for (note,) in rows(tmp_path, "note")]
    assert "the disk has changed them" in notes[0]
    assert "which record it was" in notes[1]


async def test_a_run_that_reads_no_source_knows_the_files_by_their_letters(tmp_path: Path) -> None:
    """An import that is complete has only letters to bring."""
    other = SourceFile("export/b.json.gz", "cd" * 16)
    async with opened(tmp_path) as letters:
        letters.begin(1, other)
        place = refused(3).place._replace(file=other.name)
        await letters.bury_records([ImportDeadLetter(place, 1, 3, 0, b"{", RefusalReason.NOT_JSON, "cut")])
    mark(tmp_path, {1: NATIVE % 2})
    job = native()
    async with opened(tmp_path) as letters:
        (found,) = await sent(job.replays(letters))
        assert letters.file(1) == other
    expected = job.conversion.convert(RecordBlock(other, 3, [NATIVE % 2], [4]), 1, 0).events
    assert [found] == expected
