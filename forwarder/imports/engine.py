"""One run of an import: the plan is read in a thread, batches go by the same delivery as the daemon's, checkpoints follow what is settled.

Order of the steps, so that a kill at any moment loses nothing: a refused record is a durable dead letter before it counts as read; a batch
is settled once the service has accepted it; a checkpoint is written of what is settled. What was in flight is sent again by the next run,
the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import NO_IDS, Batch, Chunk, Lane
from forwarder.core.outcome import Delivered, HaltReason
from forwarder.core.ports import DeadLetter, Ordering, Sink
from forwarder.core.ports import Fate as Ending
from forwarder.delivery.classify import classify
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.lanes import RetryPolicy
from forwarder.imports.batching import SOURCE, DayBatcher, ImportChunk
from forwarder.imports.counts import ImportCounts
from forwarder.imports.dead_letters import ImportDeadLetters
from forwarder.imports.replaying import LetterReplays
from forwarder.imports.request import ImportProgress, ReportProgress
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.books import FateKind, RecordFate, RefusalExample
from forwarder.sources.imports.checkpoint import StateFolder
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.day_batches import DayBatch, without_data
from forwarder.sources.imports.planning import (
    BatchReady,
    FileEnded,
    FileStarted,
    PlanStep,
    RecordsRead,
    SortedEventsRead,
    SortFinished,
    SortProgress,
)
from forwarder.telemetry.books import Books
from forwarder.wire.envelope import envelope_size

STOP_SECONDS: Final = 15.0
"""How long a run that is stopped waits for what is in flight."""
MAX_PENDING: Final = 300_000
"""Records and events that may be held because something before them isn't settled (`ImportCounts.pending`); then reading waits."""
MAX_WITNESS: Final = 10_000
"""Bytes of a witness, which is in each checkpoint."""
SHARE: Final = 20
"""Of the time, one part in so many goes to checkpoints at most: those of very many files are large."""
_REPORT_SECONDS: Final = 0.5
_AT_ONCE: Final = 16
"""Steps of the plan that are fetched at once, at most."""


Key = tuple[int, int, int]
"""An event: the number of its file, of its record, and which of the record's events it is."""


class ImportEngine:
    """See the module. `run` once."""

    def __init__(
        self,
        plan: Iterator[PlanStep],
        counts: ImportCounts,
        letters: ImportDeadLetters,
        clock: Clock,
        *,
        replays: LetterReplays,
        folder: StateFolder,
        lane: Lane,
        window: int,
        witness: str = "",
    ) -> None:
        """`window`: bytes of events in flight at most, beside the batches that are being filled.

        `witness`: that of an earlier run (`ImportCheckpoint.witness`).
        """
        self.counts = counts
        self.broken: list[BrokenSource] = []
        self._plan = plan
        self._letters = letters
        self._replays = replays
        self._folder = folder
        self._lane = lane
        self._clock = clock
        self._buffer = MemoryBuffer(window)
        self._batcher: DayBatcher
        self._delivery: Delivery
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._refusal: tuple[str, str] = "", ""
        """Why the last letters were buried; read when their events are settled, which follows at once."""
        self._witness = witness
        self._ends: dict[Key, bytes] = {}
        """The first and the last event of each batch in flight: the next witness. One of them may be refused."""
        self._sink: Sink
        self._news = asyncio.Event()
        """Set when records are settled that the last checkpoint doesn't count, or no more are to come."""
        self._failure: asyncio.Future[None]
        """Gets errors that occur where no task awaits them."""

    @property
    def buffer(self) -> MemoryBuffer:
        """Where batches wait."""
        return self._buffer

    def connect(self, batcher: DayBatcher, sink: Sink, retry: RetryPolicy, concurrency: int | None, keys: KeyCheck | None) -> None:
        """Join it to the way out; before `run`."""
        self._batcher, self._sink = batcher, sink
        batcher.on_failure(self._fail)
        self._delivery = Delivery(
            batcher=batcher,
            buffer=self._buffer,
            sink=sink,
            dead_letters=self,
            books=Books(),
            clock=self._clock,
            retry=retry,
            concurrency=concurrency,
            ordering_of=lambda _lane: Ordering.PER_DISTINCT_ID,
            keys=keys,
        )

    def stop(self) -> None:
        """Read nothing more, begin no request, and let `run` end once what is in flight is settled, or soon. After `connect`."""
        self._batcher.hold()
        self._stopping.set()
        self._room.set()

    async def run(self, report: ReportProgress) -> None:
        """Bring all of the plan to the service, or what is of it until `stop`. Raises what the plan raises; then, too, all is saved.

        Cancelled, it drops what is in flight; what was settled is saved.
        """
        self._failure = asyncio.get_running_loop().create_future()
        self._delivery.start()
        helping = (self._save_as_it_settles(), self._report(report), self._find_who_is_at_fault())
        helpers = [self._failure, *map(asyncio.create_task, helping)]
        try:
            await self._watched(self._feed(), helpers)
            await self._watched(self._until_settled(), helpers)
            await self._watched(self._send_marked(), helpers)
        finally:
            for helper in helpers:
                helper.cancel()
            try:
                await asyncio.gather(*helpers, return_exceptions=True)
            finally:
                await self._delivery.close()  # also if it is cancelled only now
            await self._conclude()
            report(self.progress())

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """See `core.ports.DeadLetters`: why is remembered until the events are settled, which delivery does next."""
        if not self._letters.bury(letters):
            return False
        self._refusal = letters[0].reason, letters[0].why
        return True

    def progress(self) -> ImportProgress:
        """How far it is."""
        books, counts = self.counts.books, self.counts
        refused, left_out = sum(books.refused.values()), sum(books.left_out.values())
        return ImportProgress(
            books.read, books.delivered, refused, left_out, books.repeats, counts.in_flight, counts.delivered, self._waiting()
        )

    async def _conclude(self) -> None:
        """Save where it stands, if what was buried can be made durable soon. Raises `ConfigurationError` if it can't be saved."""
        durable = asyncio.create_task(self._letters.durable())
        limit = asyncio.create_task(self._clock.sleep(STOP_SECONDS))
        try:
            await asyncio.wait([durable, limit], return_when=asyncio.FIRST_COMPLETED)
            if not durable.done():
                raise ConfigurationError(
                    f"{self._folder.path}: {self._letters.waiting or 'the dead letters are not written'}",
                    hint="Make room there, and run the same command again: it resumes from the last checkpoint, and nothing is lost.",
                )
            durable.result()
            self._save()
        finally:
            durable.cancel()
            limit.cancel()
            await asyncio.gather(durable, limit, return_exceptions=True)

    async def _watched(self, work: Coroutine[None, None, None], helpers: Sequence[asyncio.Future[None]]) -> None:
        """Do it, unless a helper fails first: a run that can't save must end."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task, *helpers], return_when=asyncio.FIRST_COMPLETED)
            for each in (*helpers, task):
                if each.done():
                    each.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _feed(self) -> None:
        with ThreadPoolExecutor(1, "plan") as thread:
            loop = asyncio.get_running_loop()
            while not self._stopping.is_set():
                steps = await loop.run_in_executor(thread, _some, self._plan)
                for step in steps:
                    await self._take(step)
                    if self._stopping.is_set():
                        return
                if not steps:
                    self.counts.exhausted = not self.broken
                    self._news.set()
                    return

    async def _send_marked(self) -> None:
        """Send the dead letters that are marked for a replay: last, when all records are counted that can be."""
        while not self._stopping.is_set():
            fetching = asyncio.create_task(self._replays.next())
            try:
                await self._unless_stopped(_ended(fetching))
            finally:
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)
            batches = None if fetching.cancelled() else fetching.result()
            if batches is None:
                return
            for batch in batches:
                await self._offer(batch)
            await self._until_settled()

    async def _take(self, step: PlanStep) -> None:
        self._news.set()
        match step:
            case FileStarted():
                self.counts.take(step)
                self._letters.begin(step.number, step.file)
            case RecordsRead():
                await self._less_pending()
                if not step.refused or await self._unless_stopped(self._letters.bury_records(step.refused)):
                    self.counts.take(step)
            case SortedEventsRead():
                await self._less_pending()
                self.counts.take(step)
            case SortProgress() | SortFinished():
                self.counts.take(step)
            case BatchReady():
                await self._offer(step.batch)
            case FileEnded():
                self.counts.take(step)
                if step.broken is not None:
                    self.broken.append(step.broken)

    async def _less_pending(self) -> None:
        """Wait while memory holds too much that can't be counted yet, because of something that is in flight."""
        while self.counts.pending > MAX_PENDING and self._buffer.used and not self._stopping.is_set():
            self._room.clear()
            await self._room.wait()

    async def _unless_stopped(self, work: Coroutine[None, None, None]) -> bool:
        """Do it, unless the run is stopped first; whether it was done. Nothing of it runs when this returns, or is cancelled."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _offer(self, batch: DayBatch) -> None:
        """Hand a batch to delivery, once there is room for it. A lone one is accepted whatever its size."""
        slim = without_data(batch.events)
        chunk = ImportChunk(self._lane, batch.data, slim, batch.ids, self._clock.now(), self._settled, self._letters.where)
        while self._buffer.used and self._buffer.used + chunk.cost > self._buffer.max_bytes and not self._stopping.is_set():
            self._room.clear()
            await self._room.wait()
        if self._stopping.is_set():
            return
        self._buffer.max_bytes = max(self._buffer.max_bytes, chunk.cost)
        self._ends.update((_key(event), event.data) for event in (batch.events[0], batch.events[-1]))
        self._buffer.offer([chunk])
        self._delivery.wake()

    def _settled(self, events: Sequence[FinishedEvent], fate: str) -> None:
        self._news.set()
        try:
            self._settle(events, fate)
        except Exception as error:  # delivery would log it, and the run would wait for these events for ever
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        """Let the run end with an error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _settle(self, events: Sequence[FinishedEvent], fate: str) -> None:
        for event in (events[0], events[-1]):
            seen = self._ends.pop(_key(event), b"")
            if fate == Ending.DELIVERED and 0 < len(seen) <= MAX_WITNESS:
                self._witness = seen.decode()
        if self._replays.owns(events[0]):
            self._batcher.settled(len(events))
            self._replays.settle(events, delivered=fate == Ending.DELIVERED)
            self._room.set()
            return
        refused = None
        if fate != Ending.DELIVERED:
            reason, why = self._refusal
            example = RefusalExample(self.counts.name_of(events[0].file), events[0].line, why)
            refused = RecordFate(FateKind.REFUSED, reason, example)
        self._batcher.settled(len(events))
        self.counts.settle(events, refused)
        self._room.set()

    async def _until_settled(self) -> None:
        """Wait for all that was read; if the run is stopped, for what is in flight, and not for ever."""
        while self._buffer.used and not self._stopping.is_set():
            self._room.clear()
            await self._room.wait()
        end = self._clock.monotonic() + STOP_SECONDS
        while self._batcher.under_way and (left := end - self._clock.monotonic()) > 0 and not self._only_waits():
            self._room.clear()
            await wait_for_event(self._room, min(left, _REPORT_SECONDS), self._clock)

    def _only_waits(self) -> bool:
        """Whether nothing is on the wire: everything in flight waits to be sent again."""
        found = self._delivery.statistics()
        return not found.in_flight and bool(found.upstream.failing or found.halts or found.retries)

    async def _save_as_it_settles(self) -> None:
        """Write a checkpoint for each batch that is settled, but where writing takes long, for several: then it takes one part in `SHARE`.

        So what a kill brings back is what was in flight, and seldom more.
        """
        saved = -1, False
        while True:
            await self._news.wait()
            self._news.clear()
            await self._letters.durable()
            if (settled := (self.counts.settled + self._replays.replayed, self.counts.exhausted)) != saved:
                began = self._clock.monotonic()
                self._save()
                saved = settled
                await self._clock.sleep((self._clock.monotonic() - began) * SHARE)

    def _save(self) -> None:
        counted = self._replays.counted()
        checkpoint = self.counts.checkpoint(self._clock.now())
        checkpoint.witness = self._witness
        self._folder.save(checkpoint)
        self._replays.saved(counted)

    async def _find_who_is_at_fault(self) -> None:
        """While everything is answered 400 or 413, send an event again that was accepted before, which changes nothing.

        If it is accepted, the others are refused for themselves. At the end of a source there may be no other event left that could show
        it.
        """
        asked = -1
        while True:
            await self._clock.sleep(_REPORT_SECONDS)
            halted = self._delivery.halts.get(self._lane)
            if halted is None or halted.reason is not HaltReason.REFUSES_ALL or not self._witness:
                asked = -1
            elif halted.probes > asked:
                asked = halted.probes
                chunk = Chunk(self._lane, self._witness.encode(), 1, NO_IDS, self._clock.now(), SOURCE)
                reply = await self._sink.send(Batch(self._lane, (chunk,), envelope_size(self._lane, (chunk,))))
                if isinstance(classify(reply), Delivered):
                    self._delivery.vouch(self._lane)

    async def _report(self, report: ReportProgress) -> None:
        while True:
            report(self.progress())
            await self._clock.sleep(_REPORT_SECONDS)

    def _waiting(self) -> str:
        """Why nothing goes, if nothing does."""
        if waiting := self._letters.waiting or self.counts.doing:
            return waiting
        found = self._delivery.statistics()
        for halt in found.halts:
            return f"the service refuses: {halt.why}; {halt.hint}"
        if found.upstream.failing:
            return f"the service doesn't accept events now: {found.upstream.why}"
        for retry in found.retries:
            return f"the last request is sent again: {retry.why}"
        return self._batcher.rests()


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


def _key(event: FinishedEvent) -> Key:
    return event.file, event.number, event.part


def _some(plan: Iterator[PlanStep]) -> list[PlanStep]:
    """The next steps, up to a batch; none at the end. Nothing is sorted before all that was refused on the way there is kept."""
    found: list[PlanStep] = []
    for step in plan:
        found.append(step)
        if isinstance(step, BatchReady | SortProgress) or len(found) >= _AT_ONCE:
            break
    return found
