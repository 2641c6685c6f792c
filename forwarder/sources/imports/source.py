"""An import as a source of the pipeline: blocks go to the intake, are settled in any order, and
are counted in theirs; checkpoints follow.

Order of the steps, so that a kill at any moment loses nothing: a block is settled once each of its
events has arrived or is a durable dead letter, and so is each of its records that the format
refused; it is counted when everything before it is settled; a checkpoint is written of what is
counted. What was in flight is sent again by the next run, the same bytes; it sends from the
position of each file on, so nothing is counted twice. Of a sorted import the position is the
number of sorted events before the first unsettled one; a record with several events is counted
with the last of them.

Invariant: memory holds the buffer's limit of events, and of the blocks behind an unsettled one at
most `MAX_PENDING` records or events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.errors import Backpressure
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter
from forwarder.core.record_intake import EventIntake
from forwarder.sources.files.record_blocks import BrokenSource, SourceFile
from forwarder.sources.hand_over import Span, Watermark
from forwarder.sources.imports.blocks import ImportBlock, dead_letter_of
from forwarder.sources.imports.checkpoint import (
    FileCheckpoint,
    ImportCheckpoint,
    SortedFile,
    SourceChanged,
    SpoolCheckpoint,
    SpoolIndex,
    StateFolder,
)
from forwarder.sources.imports.columns import EventKey
from forwarder.sources.imports.import_books import (
    FateKind,
    RecordBooks,
    RecordFate,
    RefusalExample,
    count_kind,
)

MAX_PENDING: Final = 300_000
"""Records or events that may be held because something before them isn't
settled; then reading waits.
"""
LETTER_BYTES: Final = 200
"""So many bytes of dead letters count as a record there: they wait in memory for the disk."""
SHARE: Final = 20
"""Of the time, one part in so many goes to checkpoints at most: those of very many files are large.
"""


class ImportLedger:
    """What is settled, as `checkpoint` says it, which is to be saved at any moment: the position
    of each file, and all counts up to there.

    Blocks are added in the order of the source, each once everything before it is settled.
    """

    def __init__(self, checkpoint: ImportCheckpoint) -> None:
        """It continues counting in what an earlier run has saved, or in an empty checkpoint."""
        self.checkpoint = checkpoint
        self.totals = checkpoint.totals
        self.books = checkpoint.books
        """Of all records that are settled."""
        self.broken: list[BrokenSource] = []
        self.delivered = 0
        """Events that have arrived in this run."""
        self._files = {state.name: state for state in checkpoint.files}
        self._sorted: dict[str, SortedFile] = {}
        self._refused = (
            {}
            if checkpoint.spool is None
            else {(file, number): why for file, number, why in checkpoint.spool.refused}
        )

    def count_repaired(self, name: str, line: int) -> None:
        """Count a refused record of a file, of which no dead letter is left."""
        self.totals.mark_repaired(name, line)
        books = self._files[name].books, self.books
        if all(file_books.unrepaired > 0 for file_books in books):
            for file_books in books:
                file_books.repaired += 1

    def add(self, block: ImportBlock) -> None:
        """Everything of a block is settled, and of all blocks before it. Raises `SourceChanged` if
        what was sorted again is different.
        """
        if block.sorted is not None:
            self._begin_sorted(block.sorted)
        for number, books in block.books.items():
            self._count(self._state(block.files[number]), books)
        for reason, example in block.examples:
            self.totals.example(reason, example)
        for day, count in block.days.items():
            self.totals.day(day).add(count.source, count.delivered, int(count.uuids, 16))
            self.delivered += count.delivered
        self.totals.named(+block.names)  # without those of which every event was refused
        if block.last >= 0:
            self.totals.spans(block.first, block.last)
        if block.entries:
            self._pass_entries(block)
        elif block.file >= 0:
            state = self._state(block.files[block.file])
            if block.digest:
                state.digested = state.books.read
                state.digest = block.digest
            state.complete = block.ended
            if block.broken is not None:
                self.broken.append(block.broken)

    def _state(self, file: SourceFile | SortedFile) -> FileCheckpoint:
        state = self._files.get(file.name)
        if state is None:
            state = self._files[file.name] = FileCheckpoint(
                file.name, file.identity, RecordBooks(), 0
            )
            self.checkpoint.files.append(state)
        return state

    def _count(self, state: FileCheckpoint, books: RecordBooks) -> None:
        state.books.add(books)
        self.books.add(books)
        state.read = max(state.read, state.books.read)

    def _begin_sorted(self, index: SpoolIndex) -> None:
        """All is sorted. What is settled without being sent counts from now on; a spool that was
        begun before is continued.
        """
        spool = self.checkpoint.spool
        if spool is None or spool.is_settled:
            self.checkpoint.spool = SpoolCheckpoint(index.entries, index.digest, 0, index.before)
            for file in index.files:
                self._count(self._state(file), file.books)
            for reason, examples in index.examples.items():
                for example in examples:
                    self.totals.example(reason, example)
        elif index.digest != spool.digest:
            raise SourceChanged(
                (
                    "the source was sorted again, and its events aren't those that this import "
                    "began with"
                ),
                hint="Bring the source back as it was, and resume with the forwarder that "
                "began this import; or import what it is now as a "
                "job of its own, with `--state`.",
            )
        self._sorted = {file.name: file for file in index.files}
        self.broken += [
            BrokenSource(file.name, file.broken.offset, file.broken.reason)
            for file in index.files
            if file.broken
        ]
        for name in self._sorted:
            self._settle_sorted(name)

    def _pass_entries(self, block: ImportBlock) -> None:
        if (spool := self.checkpoint.spool) is None:
            raise RuntimeError("sorted events come before what sorting found")
        for key, shared in block.shared.items():
            record = key[:2]
            file = block.files[key[0]]
            fate = block.shared_refused.get(key)
            if fate is not None and not shared.reason and record not in self._refused:
                self._refused[record] = fate.reason
                if fate.example is not None:
                    self.totals.example(fate.reason, fate.example)
            if shared.is_last:
                books = RecordBooks(1, 1)
                if reason := shared.reason or self._refused.pop(record, ""):
                    books.delivered = 0
                    count_kind(books, RecordFate(FateKind.REFUSED, reason))
                if shared.reason:
                    line = next(
                        event.line for event in chain.from_iterable(block.parts) if event.key == key
                    )
                    self.totals.example(reason, RefusalExample(file.name, line, shared.detail))
                self._count(self._files[file.name], books)
        spool.settled += block.entries
        spool.refused = [(file, number, why) for (file, number), why in self._refused.items()]
        for number in {*block.books, *[key[0] for key in block.shared]}:
            self._settle_sorted(block.files[number].name)

    def _settle_sorted(self, name: str) -> None:
        """A file's running digest is known when all that was read of it is settled."""
        state = self._files[name]
        file = self._sorted[name]
        state.read = max(file.records, state.books.read)
        is_settled = state.books.read == file.records
        state.complete = is_settled and file.broken is None
        if is_settled:
            state.digested = file.records
            state.digest = file.digest


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import is."""

    read: int
    """Records, since the start of the source; those of earlier runs among them."""
    delivered: int
    """Records whose events have arrived, in all runs."""
    refused: int
    left_out: int
    repeats: int
    in_flight: int
    """Events that were read from the source and aren't settled."""
    events: int
    """Events delivered in this run."""
    waiting: str = ""
    """Why nothing is sent now; empty if something is, or could be."""
    slowed: str = ""
    """Why less is sent than could be."""


ReportProgress = Callable[[ImportProgress], None]
"""Called about twice a second while an import runs, on the loop."""
SendChunks = Callable[[Sequence[Chunk]], Awaitable[bool]]
"""Sends events; returns once all are settled, or False when the run is stopped before."""


class ImportSource:
    """One import. `run` once."""

    def __init__(
        self,
        blocks: Generator[ImportBlock],
        ledger: ImportLedger,
        intake: EventIntake,
        clock: Clock,
        *,
        lane: Lane,
        folder: StateFolder,
        refusals: MutableMapping[EventKey, RecordFate],
        replay: Callable[[SendChunks, Callable[[], None]], Coroutine[None, None, None]],
        on_saved: Callable[[], None],
        flush: Callable[[bool], None],
    ) -> None:
        """`refusals`: of events that the service refused, once they are dead letters. `on_saved`:
        called when a checkpoint is written.

        `replay`: sends dead letters that are marked for it, and calls back when there is something
        to save.
        `flush`: called with whether batches should go as they are, because nothing comes that they
        could wait for.
        """
        self.ledger = ledger
        self.in_flight = 0
        """Events that aren't settled."""
        self._blocks = blocks
        self._intake = intake
        self._clock = clock
        self._lane = lane
        self._folder = folder
        self._refusals = refusals
        self._replay = replay
        self._on_saved = on_saved
        self._flush = flush
        self._watermark = Watermark(0)
        self._held: dict[Span, ImportBlock] = {}
        self._settlement = asyncio.Event()
        """Set when something is settled, and when the run is stopped."""
        self._news = asyncio.Event()
        """Set when something is counted that the last checkpoint doesn't count."""
        self._saved = bool(ledger.checkpoint.files)
        """Whether there is a checkpoint."""
        self._stopping = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets errors that occur where no task awaits them."""

    def stop(self) -> None:
        """Read nothing more, and let `run` end; what is in flight is settled or not, as delivery
        goes on.
        """
        self._stopping = True
        self._settlement.set()

    def fail(self, error: Exception) -> None:
        """Let `run` end with an error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> None:
        """Bring everything of the source to the service, and then the dead letters that are marked
        for it; or what is of it until `stop`.

        Raises what reading raises. Checkpoints are written meanwhile, but not
        the last one: see `save`.
        """
        saving = asyncio.create_task(self._save_as_it_settles())
        work = asyncio.create_task(self._bring())
        try:
            await asyncio.wait([work, saving, self._failure], return_when=asyncio.FIRST_COMPLETED)
            for running in (self._failure, saving, work):
                if running.done():
                    running.result()
        finally:
            for task in (saving, work):
                task.cancel()
            await asyncio.gather(saving, work, return_exceptions=True)
            self._failure.cancel()
            self._blocks.close()

    def note(self, waiting: str, *, save: bool) -> None:
        """Why nothing is sent now: for the next checkpoint; `save`: if it is something new, that
        is written now.
        """
        if waiting != self.ledger.checkpoint.waiting:
            self.ledger.checkpoint.waiting = waiting
            if save or self._saved:
                self._news.set()

    def progress(self, waiting: str, slowed: str = "") -> ImportProgress:
        """How far it is."""
        books = self.ledger.books
        refused = sum(books.refused.values())
        left_out = sum(books.left_out.values())
        return ImportProgress(
            books.read,
            books.delivered,
            refused,
            left_out,
            books.repeats,
            self.in_flight,
            self.ledger.delivered,
            waiting,
            slowed,
        )

    def save(self) -> None:
        """Write a checkpoint of what is settled now. Raises
        `ConfigurationError` if it can't be written.
        """
        self._news.clear()
        self._saved = True
        self.ledger.checkpoint.written_at = self._clock.now()
        self._folder.save(self.ledger.checkpoint)
        self._on_saved()

    async def _bring(self) -> None:
        with ThreadPoolExecutor(1, "import") as thread:
            loop = asyncio.get_running_loop()
            while not self._stopping and (
                block := await loop.run_in_executor(thread, next, self._blocks, None)
            ):
                await self._take(block)
        if not self._stopping:
            self._flush(True)
            await self._until(lambda: not self._watermark.outstanding)
        if not self._stopping:
            self.ledger.checkpoint.exhausted = not self.ledger.broken
            self._news.set()
            await self._or_stop(self._replay(self.submit, self._news.set))

    async def _take(self, block: ImportBlock) -> None:
        if block.sorted is not None:
            await self._until(lambda: not self._watermark.outstanding)
        if self._watermark.window > MAX_PENDING:
            self._flush(True)
            await self._until(lambda: self._watermark.window <= MAX_PENDING)
            self._flush(False)
        if self._stopping:
            return
        now = self._clock.now()
        dead_letters = [
            dead_letter_of(record, block.files[record.file_number], self._lane, now)
            for record in block.dead_letters
        ]
        block.dead_letters = []
        held = (
            max(block.records, sum(map(len, block.parts)))
            + sum([len(dead_letter.data) for dead_letter in dead_letters]) // LETTER_BYTES
        )
        span = self._watermark.open(self._watermark.read, self._watermark.read + 1, held)
        self._held[span] = block
        await self._submit(block.chunks(self._lane, now), dead_letters, lambda: self._settled(span))

    async def submit(self, chunks: Sequence[Chunk]) -> bool:
        """Bring events that belong to no block; returns once they are settled, or False when the
        run is stopped before.
        """
        settled = asyncio.Event()
        await self._submit(chunks, (), settled.set)
        await self._until(settled.is_set)
        return settled.is_set()

    async def _submit(
        self,
        chunks: Sequence[Chunk],
        dead_letters: Sequence[DeadLetter],
        settled: Callable[[], None],
    ) -> None:
        """Hand over events and dead letters as soon as there is room for them; `settled` is called
        when they are.
        """
        events = sum([chunk.count for chunk in chunks])

        def callback(_: Backpressure | None) -> None:
            self.in_flight -= events
            try:
                settled()
            except Exception as failure:
                # whoever calls back would log it, and the run would wait for ever
                self.fail(failure)
            self._settlement.set()

        while not self._stopping:
            self._settlement.clear()
            try:
                waits = self._intake.accept_events(chunks, dead_letters, callback)
            except Backpressure as full:
                # until something is settled; where nothing is in flight, until the room may have
                # come from elsewhere
                await wait_for_event(self._settlement, full.retry_after, self._clock)
                continue
            self.in_flight += events
            if waits is None:
                callback(None)
            return

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so, or the run is stopped; it is looked at
        whenever something is settled.
        """
        while not reached() and not self._stopping:
            self._settlement.clear()
            await self._settlement.wait()

    async def _or_stop(self, work: Coroutine[None, None, None]) -> None:
        """Do it, unless the run is stopped first; nothing of it runs when this returns."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._settlement.set())
        try:
            await self._until(task.done)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _settled(self, span: Span) -> None:
        for passed in self._watermark.settle(span):
            block = self._held.pop(passed)
            block.refuse(self._refusals)
            self.ledger.add(block)
            # not while a source is sorted
            if block.file >= 0 or block.sorted is not None or block.entries:
                self._news.set()

    async def _save_as_it_settles(self) -> None:
        """Write a checkpoint for each block that is settled, but where writing takes long, for
        several: then it takes one part in `SHARE`.

        So what a kill brings back is what was in flight, and seldom more.
        """
        while True:
            await self._news.wait()
            began = self._clock.monotonic()
            self.save()
            await self._clock.sleep((self._clock.monotonic() - began) * SHARE)
