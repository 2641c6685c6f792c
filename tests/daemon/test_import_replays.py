"""Dead letters of an import that are replayed: through the format again, as they were sent, or
with a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forwarder.core.event import Chunk
from forwarder.core.ports import Reason, dead_letters_of
from forwarder.daemon.import_dead_letters import DeadLetterReplays, ImportDeadLetters
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.blocks import ChunkLimits
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, ImportJob
from forwarder.sources.imports.conversion import (
    OF_EVENTS,
    Conversion,
    EventFilters,
    FilterReason,
    FinishPolicy,
    ImportDeadLetter,
)
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.formats.segment import SegmentConverter
from forwarder.sources.imports.import_books import DayTally, ImportTotals, RecordBooks
from forwarder.sources.imports.source import ImportLedger
from tests.daemon.lettered import (
    DAY,
    FILE,
    LANE,
    bury,
    event,
    mark,
    opened,
    refused,
    refused_events,
    rows,
)
from tests.deadletter.rig import query
from tests.support.clock import FakeClock

NATIVE = (
    b'{"event":"sign up","distinct_id":"ann","timestamp":"1970-01-%02dT00:00:00Z","properties":{}}'
)
FINISH = FinishPolicy("oldest", geoip=False, job_id="0190a0a0-0000-5000-8000-000000000000")
MAX_EVENT = 1000
OTHER = SourceFile("export/b.json.gz", "cd" * 16)


@dataclass
class Job:
    """What an import keeps beside its letters, what its format makes of records, and a service."""

    conversion: Conversion
    checkpoint: ImportCheckpoint = field(init=False)
    sent: list[bytes] = field(default_factory=list)
    """Events that the service has accepted."""
    refusing: bytes = b""
    """The service refuses events with this in them; empty: none."""
    counted: int = 0
    """How often there was something to save."""

    def __post_init__(self) -> None:
        files = [
            FileCheckpoint(file.name, file.identity, RecordBooks(read=9, refused={"any": 9}), 9)
            for file in (FILE, OTHER)
        ]
        self.checkpoint = ImportCheckpoint(ImportJob("", "native", ""), 0.0, 0.0, [], files)

    @property
    def totals(self) -> ImportTotals:
        """All counts that aren't of records."""
        return self.checkpoint.totals

    @property
    def repaired(self) -> int:
        """Records that were repaired, of the file and of all files the same."""
        assert self.checkpoint.files[0].books.repaired == self.ledger.books.repaired
        return self.ledger.books.repaired

    def replays(self, letters: ImportDeadLetters) -> DeadLetterReplays:
        """The letters' way back in one run."""
        self.ledger = ImportLedger(self.checkpoint)
        return DeadLetterReplays(
            letters,
            self.ledger,
            self.conversion,
            ChunkLimits(100_000, 100),
            MAX_EVENT,
            LANE,
            FakeClock(),
        )

    async def run(
        self, letters: ImportDeadLetters, replays: DeadLetterReplays | None = None
    ) -> list[bytes]:
        """Replay what is marked; the events that the service accepts meanwhile."""
        before = len(self.sent)

        async def send(chunks: Sequence[Chunk]) -> bool:
            for chunk in chunks:
                for index, data in enumerate(chunk.events()):
                    if self.refusing and self.refusing in data:
                        assert letters.add(
                            [dead_letters_of(chunk, Reason.REFUSED, "400: no", 5.0)[index]]
                        )
                    else:
                        self.sent.append(data)
            return True

        def count() -> None:
            self.counted += 1

        await (replays or self.replays(letters)).run(send, count)
        return self.sent[before:]

    def made(self, number: int, record: bytes, file: SourceFile = FILE) -> list[bytes]:
        """The events that a record with this number would have become."""
        return list(
            self.conversion.convert(
                RecordBlock(file, number, [record], [number + 1]), 0, 0
            ).events.data
        )


def native(filters: EventFilters | None = None) -> Job:
    """An import of native events."""
    return Job(
        Conversion(NativeConverter("oldest"), FINISH, MAX_EVENT, filters or EventFilters(), None)
    )


def uuid_of(data: bytes) -> str:
    """The uuid of an event that was sent."""
    return str(msgspec.json.decode(data)["uuid"])


async def test_a_repaired_record_goes_through_its_format_again(tmp_path: Path) -> None:
    """It arrives with the uuid of its old place, is counted, and is gone once that is saved."""
    job = native()
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(3), refused(4)])
        mark(tmp_path, {1: NATIVE % 2})
        replays = job.replays(letters)
        assert await job.run(letters, replays) == job.made(3, NATIVE % 2)
        assert (
            job.repaired,
            job.totals.replayed,
            job.totals.days["1970-01-02"].delivered,
            job.counted,
        ) == (1, [1], 1, 1)
        assert len(rows(tmp_path)) == 2
        replays.saved()
        assert job.totals.replayed == [1]  # until it is known to be gone
        assert await job.run(letters, replays) == []
        assert rows(tmp_path, "number") == [(2,)]
        replays.saved()
    assert job.totals.replayed == []


async def test_killed_before_its_removal_it_is_counted_once(tmp_path: Path) -> None:
    """The saved counts name it: the next run removes it, and sends nothing."""
    job = native()
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(3)])
        mark(tmp_path, {1: NATIVE % 2})
        assert len(await job.run(letters)) == 1
    job.checkpoint = msgspec.json.decode(msgspec.json.encode(job.checkpoint), type=ImportCheckpoint)
    async with opened(tmp_path, replayed=job.totals.replayed) as letters:
        replays = job.replays(letters)
        replays.saved()
        assert job.totals.replayed == [1]
        assert await job.run(letters, replays) == []
        replays.saved()
    assert (job.repaired, job.totals.replayed, rows(tmp_path)) == (1, [], [])


async def test_killed_before_it_was_counted_it_is_sent_again(tmp_path: Path) -> None:
    """The same bytes: the service has them once."""
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(3)])
    mark(tmp_path, {1: NATIVE % 2})
    runs = []
    for _ in range(2):
        async with opened(tmp_path) as letters:
            runs.append(await native().run(letters))
    assert runs[0] == runs[1] != []


async def test_events_in_flight_at_a_stop_are_not_counted(tmp_path: Path) -> None:
    """Neither if sending says so, nor if it is cancelled: what the service refuses then stays the
    letter that it is.
    """
    job = native()
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(1)]))
        await letters.durable()
        letters.refusals.clear()
        mark(tmp_path, {1: None})
        sending = asyncio.Event()

        async def never(_: Sequence[Chunk]) -> bool:
            sending.set()
            await asyncio.Event().wait()
            return True

        run = asyncio.create_task(job.replays(letters).run(never, lambda: None))
        await sending.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        assert letters.add(refused_events([event(1)], "400: still no"))
    assert rows(tmp_path, "mark, note") == [(None, "the service refused it again: 400: still no")]
    mark(tmp_path, {1: None})
    async with opened(tmp_path) as letters:

        async def stopped(_: Sequence[Chunk]) -> bool:
            return False

        await job.replays(letters).run(stopped, lambda: None)
    assert ImportDeadLetters.marked_in(tmp_path) == 1
    assert (job.repaired, job.totals) == (0, ImportTotals())


async def test_letters_that_the_format_refuses_again_stay(tmp_path: Path) -> None:
    """With a note, unmarked, and with its own bytes; so does what no event is made of, and what
    the filters leave out.
    """
    job = native(EventFilters(since=5 * DAY))
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(number) for number in range(4)])
        mark(tmp_path, {1: None, 2: b'{"event":"x"}', 3: NATIVE % 2, 4: b"[]"})
        assert await job.run(letters) == []
    notes = dict(rows(tmp_path, "number, note"))
    assert notes[1].startswith("undecodable: ")
    assert notes[2] == "missing_distinct_id: it has no distinct_id"
    assert notes[3] == f"nothing of it is sent: it is left out ({FilterReason.BEFORE_SINCE})"
    assert "nothing of it is sent" in notes[4]
    assert set(rows(tmp_path, "data, mark, replacement")) == {(b'{"cut', None, None)}
    assert (job.repaired, job.totals.days) == (0, {})


async def test_an_event_goes_as_it_is(tmp_path: Path) -> None:
    """What the service refused keeps its bytes; edited, it is what the edit made of it."""
    job = native()
    job.totals.days["1970-01-01"] = DayTally(source=2)
    edited = event(2).data.replace(b"1970-01-01", b"1970-01-03")
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(1), event(2)]))
        await letters.durable()
        letters.refusals.clear()
        mark(tmp_path, {1: None, 2: edited})
        replays = job.replays(letters)
        assert await job.run(letters, replays) == [event(1).data, edited]
        replays.saved()
    assert [(day.source, day.delivered) for day in job.totals.days.values()] == [(1, 1), (1, 1)]
    assert (job.repaired, rows(tmp_path)) == (2, [])


async def test_an_event_that_was_edited_to_none_stays(tmp_path: Path) -> None:
    """It would be stamped with now, or be no one's, or be dropped for its size."""
    edits = [
        event(1).data.replace(b"timestamp", b"time"),
        event(1).data.replace(b"ann", b""),
        event(1).data.replace(b"{}", b'{"x":"%b"}' % bytes(1200).replace(b"\0", b"x")),
    ]
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(number) for number in range(3)]))
        await letters.durable()
        mark(tmp_path, dict(enumerate(edits, 1)))
        assert await native().run(letters) == []
    notes = [note for (note,) in rows(tmp_path, "note")]
    assert [note.partition(":")[0] for note in notes] == [
        "missing_timestamp",
        "missing_distinct_id",
        "the event has 1,342 bytes, 1,000 are allowed",
    ]


async def test_an_event_that_the_service_refuses_again_stays(tmp_path: Path) -> None:
    """The letter that it is, unmarked, with the service's words; nothing is counted."""
    job = native()
    job.refusing = b"bob"
    async with opened(tmp_path) as letters:
        letters.add(refused_events([event(1)]))
        await letters.durable()
        letters.refusals.clear()
        mark(tmp_path, {1: event(1).data.replace(b"ann", b"bob")})
        assert await job.run(letters) == []
        assert (letters.returning, letters.refusals) == ({}, {})
    assert rows(tmp_path, "data, mark, note") == [
        (event(1).data, None, "the service refused it again: 400: no")
    ]
    assert (job.repaired, job.totals) == (0, ImportTotals())


async def test_a_repaired_record_that_the_service_refuses_is_a_letter_of_its_event(
    tmp_path: Path,
) -> None:
    """Instead of the record's: it is what has to be repaired now.
    Replayed, the record is repaired.
    """
    job = native()
    job.refusing = b"sign up"
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(3)])
        mark(tmp_path, {1: NATIVE % 2})
        replays = job.replays(letters)
        assert await job.run(letters, replays) == []
        await letters.durable()
        replays.saved()
        assert await job.run(letters, replays) == []
        (made,) = job.made(3, NATIVE % 2)
        assert rows(tmp_path, "number, data, coordinates, why") == [
            (2, made, "export/a.json.gz:4", "400: no")
        ]
        assert (job.repaired, job.totals.days["1970-01-02"].source) == (0, 1)
        job.refusing = b""
        mark(tmp_path, {2: None})
        assert await job.run(letters, replays) == [made]
        replays.saved()
    assert (job.repaired, job.totals.days["1970-01-02"].source, rows(tmp_path)) == (1, 1, [])


async def test_events_of_one_record_keep_their_places(tmp_path: Path) -> None:
    """Of a body with many events each bad one is a letter; repaired, each has the uuid that it
    would have had, and the last one counts.
    """
    job = native()
    batch = b'{"batch":[%b,{"event":"x"},%b,{"event":"y"}]}' % (NATIVE % 1, NATIVE % 2)
    whole = b'{"batch":[%b]}' % b",".join([NATIVE % 1, NATIVE % 3, NATIVE % 2, NATIVE % 4])
    made = job.conversion.convert(RecordBlock(FILE, 5, [batch], [6]), 0, 0)
    assert [record.part for record in made.refused] == [2, 4]
    events: list[bytes] = []
    async with opened(tmp_path) as letters:
        await bury(letters, made.refused)
        replays = job.replays(letters)
        for number, day in ((1, 3), (2, 4)):
            assert job.repaired == 0
            mark(tmp_path, {number: NATIVE % day})
            # nothing is saved meanwhile: the first is there still, and doesn't count
            events += await job.run(letters, replays)
        assert job.repaired == 1
    assert [uuid_of(raw) for raw in events] == [uuid_of(raw) for raw in job.made(5, whole)[1::2]]


async def test_a_record_is_repaired_only_when_none_of_its_letters_is_left(tmp_path: Path) -> None:
    """Of two letters of a record in one go the service refuses an event: that is one
    letter again.
    """
    job = native()
    job.refusing = b"bad"
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(5, part=1), refused(5, part=2)])
        mark(tmp_path, {1: (NATIVE % 1).replace(b"sign up", b"bad"), 2: NATIVE % 2})
        replays = job.replays(letters)
        assert len(await job.run(letters, replays)) == 1
        assert job.repaired == 0
        replays.saved()
        mark(tmp_path, {3: event(1).data})
        assert len(await job.run(letters, replays)) == 1
    assert job.repaired == 1


async def test_an_event_with_two_dead_letters_is_sent_once(tmp_path: Path) -> None:
    """A run was stopped after the service had refused a repaired record's event: the record's
    letter is there, too. One of them waits.
    """
    job = native()
    (made,) = job.made(3, NATIVE % 2)
    async with opened(tmp_path) as letters:
        await bury(letters, [refused(3)])
        letters.add(refused_events([event(3)._replace(data=made)]))
        await letters.durable()
        letters.refusals.clear()
        mark(tmp_path, {1: NATIVE % 2, 2: None})
        assert await job.run(letters) == [made]
    assert (
        "another letter of the same event is in flight" in dict(rows(tmp_path, "number, note"))[2]
    )


async def test_an_event_that_was_too_large_is_made_smaller(tmp_path: Path) -> None:
    """It is refused after its format accepted it, and goes its way from the start."""
    job = native()
    large = (NATIVE % 1).replace(b"{}", b'{"x":"%b"}' % (b"x" * 1200))
    made = job.conversion.convert(
        RecordBlock(FILE, 5, [b"[%b,%b]" % (NATIVE % 2, large)], [6]), 0, 0
    )
    (record,) = made.refused
    assert (record.why, record.part) == (Reason.TOO_LARGE, OF_EVENTS + 1)
    async with opened(tmp_path) as letters:
        await bury(letters, [record])
        mark(tmp_path, {1: record.data.replace(b"x" * 1200, b"x")})
        (raw,) = await job.run(letters)
    assert uuid_of(raw) == uuid_of(job.made(5, b"[%b,%b]" % (NATIVE % 2, NATIVE % 1))[1])


async def test_a_record_of_a_vendor(tmp_path: Path) -> None:
    """It is repaired in the vendor's own words."""
    record = b'{"type":"track","event":"sign up","userId":"ann","timestamp":"%b","messageId":"m"}'
    job = Job(Conversion(SegmentConverter(), FINISH, MAX_EVENT, EventFilters(), None))
    made = job.conversion.convert(RecordBlock(FILE, 5, [record % b"yesterday"], [6]), 0, 0)
    repaired = record % b"1970-01-02T00:00:00Z"
    async with opened(tmp_path) as letters:
        await bury(letters, made.refused)
        mark(tmp_path, {1: repaired})
        assert await job.run(letters) == job.made(5, repaired)


async def test_a_letter_says_which_file_it_is_of(tmp_path: Path) -> None:
    """A run that replays may have read no source: an import that is complete
    has only letters to bring.
    """
    job = native()
    place = refused(3).place._replace(file=OTHER.name)
    async with opened(tmp_path) as letters:
        await bury(
            letters,
            [refused(2), ImportDeadLetter(place, 1, 3, 0, b"{", Reason.UNDECODABLE, "cut")],
        )
        query(
            tmp_path,
            "UPDATE letters SET attributes = replace(attributes, ?, ?) WHERE number = 2",
            (FILE.identity, OTHER.identity),
        )
        mark(tmp_path, {1: NATIVE % 2, 2: NATIVE % 2})
        assert await job.run(letters) == [*job.made(2, NATIVE % 2), *job.made(3, NATIVE % 2, OTHER)]
    assert [file.books.repaired for file in job.checkpoint.files] == [1, 1]
