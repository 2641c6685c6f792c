"""An import as a source of the pipeline: what is counted and saved when blocks are settled, and
what reading waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from forwarder.core.ack import AckCallback
from forwarder.core.errors import BufferFull, ConfigurationError, DeadLettersFull
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.core.record_intake import AcceptedBatch
from forwarder.sources.files.record_blocks import BrokenSource, RecordLocation, SourceFile
from forwarder.sources.imports import source
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock
from forwarder.sources.imports.checkpoint import (
    ImportCheckpoint,
    ImportJob,
    SourceChanged,
    SpoolIndex,
    StateFolder,
    read_checkpoint,
)
from forwarder.sources.imports.columns import EventColumns, EventKey, FinishedEvent
from forwarder.sources.imports.conversion import ConvertedRecords, ImportDeadLetter
from forwarder.sources.imports.import_books import FateKind, RecordBooks, RecordFate
from forwarder.sources.imports.source import SHARE, ImportLedger, ImportSource, SendChunks
from tests.support.clock import FakeClock, settle
from tests.support.waiting import eventually

LANE: Final = Lane("phc_sources12345678", historical=True)
JOB: Final = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
FILES: Final = {0: SourceFile("a.jsonl", "abc")}
LIMITS: Final = ChunkLimits(1_000, 10)


def event(number: int) -> FinishedEvent:
    """An event that is all of its record."""
    return FinishedEvent(
        number,
        f"p{number}",
        "seen",
        str(UUID(int=number)),
        b'{"n":%d}' % number,
        0,
        number + 1,
        number,
    )


def block(first: int, count: int = 2, refused: int | None = None) -> ImportBlock:
    """Neighbouring records; the format refuses one."""
    sent = [number for number in range(first, first + count) if number != refused]
    counts = [int(number in sent) for number in range(first, first + count)]
    made = ConvertedRecords(counts, events=EventColumns.of(list(map(event, sent))), first=first)
    if refused is not None:
        made.fates[refused - first] = RecordFate(FateKind.REFUSED, "missing_timestamp")
        place = RecordLocation("a.jsonl", refused + 1)
        made.refused.append(
            ImportDeadLetter(place, 0, refused, 0, b"{}", Reason.MISSING_TIMESTAMP, "there is none")
        )
    block = ImportBlock(FILES, file=0)
    block.take(made, LIMITS)
    return block


class ScriptedIntake:
    """An intake where everything is settled when a test says so."""

    def __init__(self) -> None:
        self.full: Exception = BufferFull("the buffer is full", retry_after=5.0)
        self.room = 1_000
        """How many blocks it accepts."""
        self.offered = 0
        self.accepted: list[tuple[Sequence[Chunk], Sequence[DeadLetter], AckCallback]] = []

    def accept_events(
        self, chunks: Sequence[Chunk], letters: Sequence[DeadLetter], callback: AckCallback
    ) -> AcceptedBatch | None:
        self.offered += 1
        if len(self.accepted) == self.room:
            raise self.full
        self.accepted.append((chunks, letters, callback))
        return _Accepted() if chunks or letters else None

    def settle(self, *which: int) -> None:
        """What was accepted at these turns is settled."""
        for turn in which:
            self.accepted[turn][2](None)

    @property
    def events(self) -> list[bytes]:
        """All that were accepted."""
        return [
            event for chunks, _, _ in self.accepted for chunk in chunks for event in chunk.events()
        ]


class _Accepted:
    at = 0.0
    lanes = (LANE,)


class NoReplays:
    """Dead letters of which these chunks are sent."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.sent: list[bool] = []
        self.saves = 0

    async def run(self, send: SendChunks, on_counted: Callable[[], None]) -> None:
        if self.chunks:
            self.sent.append(await send(self.chunks))
            on_counted()

    def saved(self) -> None:
        self.saves += 1


class SlowFolder(StateFolder):
    """A state folder on a disk that may be slow, or full."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path)
        self.saves: list[int] = []
        self.slow = 0.0
        self.full = False
        self._clock = clock

    def save(self, checkpoint: ImportCheckpoint) -> None:
        if self.full:
            raise ConfigurationError("the state can't be written: no space left on device")
        self.saves.append(checkpoint.books.read)
        self._clock._monotonic += round(self.slow * 1e9)
        super().save(checkpoint)


@dataclass
class ImportSourceRig:
    """A source that reads some blocks."""

    folder: SlowFolder
    clock: FakeClock
    blocks: Iterable[ImportBlock]
    intake: ScriptedIntake = field(default_factory=ScriptedIntake)
    replays: NoReplays = field(default_factory=NoReplays)
    refusals: dict[EventKey, RecordFate] = field(default_factory=dict)
    read: int = 0
    """Blocks that were asked for."""
    exhausted: bool = False
    """Whether nothing is to wait for more."""
    source: ImportSource = field(init=False)
    task: asyncio.Task[None] = field(init=False)

    def start(self) -> None:
        """Begin to read."""
        self.source = ImportSource(
            self._blocks(),
            ImportLedger(ImportCheckpoint(JOB, 0.0, 0.0, [])),
            self.intake,
            self.clock,
            lane=LANE,
            folder=self.folder,
            refusals=self.refusals,
            replay=self.replays.run,
            on_saved=self.replays.saved,
            flush=self._flush,
        )
        self.task = asyncio.create_task(self.source.run())

    def _blocks(self) -> Generator[ImportBlock]:
        for next_block in self.blocks:
            self.read += 1
            yield next_block

    def _flush(self, now: bool) -> None:
        self.exhausted = now

    @property
    def saved(self) -> RecordBooks:
        """What the checkpoint counts."""
        checkpoint = read_checkpoint(self.folder.path)
        return RecordBooks() if checkpoint is None else checkpoint.books


@contextlib.asynccontextmanager
async def reading(
    folder: Path, blocks: Iterable[ImportBlock], room: int = 1_000
) -> AsyncIterator[ImportSourceRig]:
    """A source at work, where there is room for so many blocks; it is ended with the test."""
    clock = FakeClock()
    rig = ImportSourceRig(SlowFolder(folder, clock), clock, blocks)
    rig.intake.room = room
    rig.start()
    try:
        yield rig
    finally:
        rig.task.cancel()
        await asyncio.gather(rig.task, return_exceptions=True)
        rig.folder.close()


async def test_blocks_are_counted_in_their_order_in_whichever_they_are_settled(
    tmp_path: Path,
) -> None:
    """A checkpoint says what is settled before the first that isn't, as soon as that is so; the
    end of the source is known before.
    """
    async with reading(tmp_path, [block(0), block(2), block(4)]) as rig:
        await eventually(lambda: rig.exhausted)
        assert rig.source.progress("").in_flight == 6
        rig.intake.settle(1)
        await settle()
        assert (rig.saved.read, rig.folder.saves, rig.source.progress("").in_flight) == (0, [], 4)
        rig.intake.settle(0)
        await eventually(lambda: rig.folder.saves)
        assert rig.saved == RecordBooks(4, 4)
        rig.intake.settle(2)
        await rig.task
        rig.source.save()
        assert rig.saved == RecordBooks(6, 6)
        assert rig.source.ledger.checkpoint.exhausted
        progress = rig.source.progress("it waits")
        assert (
            progress.read,
            progress.delivered,
            progress.in_flight,
            progress.events,
            progress.waiting,
        ) == (6, 6, 0, 6, "it waits")
        assert rig.replays.saves == len(rig.folder.saves)


async def test_what_the_format_refused_is_settled_with_its_block(tmp_path: Path) -> None:
    """It is handed over with the events, as a dead letter with its place; before it is durable,
    its record doesn't count.
    """
    async with reading(tmp_path, [block(0, 3, refused=1), block(3, 1, refused=3)]) as rig:
        await eventually(lambda: rig.exhausted)
        ((letter,), (alone,)) = [letters for _, letters, _ in rig.intake.accepted]
        assert (letter.coordinates, letter.why, alone.coordinates) == (
            "a.jsonl:2",
            "there is none",
            "a.jsonl:4",
        )
        assert rig.intake.events == [b'{"n":0}', b'{"n":2}']
        assert rig.saved.read == 0
        rig.intake.settle(1, 0)
        await rig.task
        assert rig.saved == RecordBooks(4, 2, {"missing_timestamp": 2})


async def test_what_the_service_refused_is_counted_as_that(tmp_path: Path) -> None:
    """By the event; what is of a block that isn't settled stays known."""
    async with reading(tmp_path, [block(0), block(2)]) as rig:
        await eventually(lambda: rig.exhausted)
        rig.refusals.update(
            dict.fromkeys([(0, 1, 0), (0, 3, 0)], RecordFate(FateKind.REFUSED, "refused"))
        )
        rig.intake.settle(0)
        await eventually(lambda: rig.folder.saves)
        assert rig.saved == RecordBooks(2, 1, {"refused": 1})
        assert list(rig.refusals) == [(0, 3, 0)]
        rig.intake.settle(1)
        await rig.task
        assert (rig.saved, rig.refusals) == (RecordBooks(4, 2, {"refused": 2}), {})


async def test_without_room_a_block_is_offered_again_as_soon_as_something_is_settled(
    tmp_path: Path,
) -> None:
    """The same chunks, none twice; nothing more is read meanwhile."""
    async with reading(tmp_path, [block(0), block(2), block(4)], room=1) as rig:
        await eventually(lambda: rig.intake.offered > 1)
        assert rig.read == 2
        rig.intake.settle(0)
        await eventually(lambda: rig.intake.offered == 3)
        rig.intake.room = 3
        await rig.clock.advance(4.9)
        assert len(rig.intake.accepted) == 1
        await rig.clock.advance(0.2)
        await eventually(lambda: rig.exhausted)
        assert rig.intake.events == [b'{"n":%d}' % number for number in range(6)]


async def test_without_room_for_dead_letters_it_waits_and_ends_when_it_is_stopped(
    tmp_path: Path,
) -> None:
    """Nothing of the block counts."""
    async with reading(tmp_path, [block(0, refused=0)], room=0) as rig:
        rig.intake.full = DeadLettersFull("no room", retry_after=5.0)
        await eventually(lambda: rig.intake.offered)
        rig.source.stop()
        await rig.task
        rig.source.save()
        assert rig.saved == RecordBooks()
        assert not rig.exhausted


async def test_reading_waits_while_too_many_records_wait_behind_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also such as send nothing: each is held until it counts."""
    monkeypatch.setattr(source, "MAX_PENDING", 10)
    left_out = [
        ImportBlock(FILES, 4, {0: RecordBooks(4, 0, {}, {"until": 4})}, file=0) for _ in range(10)
    ]
    async with reading(tmp_path, [block(0, 2), *left_out]) as rig:
        await eventually(lambda: rig.read == 5)
        await settle()
        assert rig.read == 5  # 2 records and 3 times 4; the fifth block waits
        rig.intake.settle(0)
        await rig.task
        assert rig.saved == RecordBooks(42, 2, {}, {"until": 40})


async def test_sorted_events_come_once_everything_before_is_settled(tmp_path: Path) -> None:
    """So anyone who finds the sorted events needn't read the source for its dead letters."""
    refused = ImportBlock(FILES, 1, dead_letters=block(0, 1, refused=0).dead_letters)
    async with reading(
        tmp_path, [refused, ImportBlock(FILES, sorted=SpoolIndex(JOB, {}, 0, "ab"))]
    ) as rig:
        await eventually(lambda: rig.read == 2)
        await settle()
        assert (rig.exhausted, rig.source.ledger.checkpoint.spool) == (False, None)
        rig.intake.settle(0)
        await rig.task
        assert rig.source.ledger.checkpoint.spool is not None


async def test_where_saving_is_slow_it_takes_a_small_part_of_the_time(tmp_path: Path) -> None:
    """A checkpoint of very many files is large: then one is written for several blocks."""
    async with reading(tmp_path, [block(2 * number) for number in range(4)]) as rig:
        await eventually(lambda: rig.exhausted)
        rig.folder.slow = 0.5
        rig.intake.settle(0)
        await eventually(lambda: rig.folder.saves == [2])
        rig.intake.settle(1)
        await rig.clock.advance(0.5 * SHARE - 0.1)
        rig.intake.settle(2)
        await settle()
        assert rig.folder.saves == [2]
        await rig.clock.advance(0.2)
        await eventually(lambda: rig.folder.saves == [2, 6])


async def test_a_checkpoint_that_can_t_be_written_ends_the_run(tmp_path: Path) -> None:
    """Sending on without one would send it all again after a kill."""
    async with reading(tmp_path, [block(0), block(2)]) as rig:
        await eventually(lambda: rig.exhausted)
        rig.folder.full = True
        rig.intake.settle(0)
        with pytest.raises(ConfigurationError, match="no space"):
            await rig.task


async def test_a_mistake_in_counting_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait indefinitely for what never counts; and anyone who settles hears
    nothing of it.
    """

    def fail(*_: object) -> None:
        raise ValueError("that can't be counted")

    async with reading(tmp_path, [block(0), block(2)]) as rig:
        await eventually(lambda: rig.exhausted)
        monkeypatch.setattr(ImportLedger, "add", fail)
        rig.intake.settle(0)
        with pytest.raises(ValueError, match="can't be counted"):
            await rig.task


async def test_a_source_that_changed_ends_the_run(tmp_path: Path) -> None:
    """What reading raises is raised; what is settled until then can be saved."""

    def changes() -> Generator[ImportBlock]:
        yield block(0)
        raise SourceChanged("a.jsonl: it shrank")

    async with reading(tmp_path, changes()) as rig:
        with pytest.raises(SourceChanged):
            await rig.task
        rig.intake.settle(0)
        rig.source.save()
        assert rig.saved == RecordBooks(2, 2)


async def test_a_broken_file_leaves_the_import_incomplete(tmp_path: Path) -> None:
    """Its readable records count."""
    broken = BrokenSource("a.jsonl", 17, "it is cut off")
    async with reading(tmp_path, [block(0), ImportBlock(FILES, file=0, broken=broken)]) as rig:
        await eventually(lambda: rig.exhausted)
        rig.intake.settle(0)
        await rig.task
        rig.source.save()
        assert (
            rig.source.ledger.broken,
            rig.saved.read,
            rig.source.ledger.checkpoint.exhausted,
        ) == ([broken], 2, False)


async def test_stopped_it_reads_no_more_and_counts_what_is_settled_later(tmp_path: Path) -> None:
    """Delivery still finishes what is in flight, which is saved at the end."""
    async with reading(tmp_path, [block(0), block(2)]) as rig:
        await eventually(lambda: rig.intake.accepted)
        rig.source.stop()
        await rig.task
        rig.intake.settle(0)
        rig.source.save()
        assert rig.saved == RecordBooks(2, 2)
        assert not rig.source.ledger.checkpoint.exhausted


async def test_dead_letters_are_sent_once_the_source_is_settled(tmp_path: Path) -> None:
    """Their events belong to no block, and are in flight like others; a stop says
    that they aren't settled.
    """
    async with reading(tmp_path, [block(0)]) as rig:
        rig.replays.chunks = block(5, 1).chunks(LANE, 0.0)
        await eventually(lambda: rig.exhausted)
        await settle()
        assert len(rig.intake.accepted) == 1
        rig.intake.settle(0)
        await eventually(lambda: len(rig.intake.accepted) == 2)
        assert rig.source.progress("").in_flight == 1
        rig.intake.settle(1)
        await rig.task
        assert rig.replays.sent == [True]
    async with reading(tmp_path, []) as rig:
        rig.replays.chunks = block(5, 1).chunks(LANE, 0.0)
        await eventually(lambda: rig.intake.accepted)
        rig.source.stop()
        await rig.task
        assert not any(rig.replays.sent)
