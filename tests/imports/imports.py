"""Imports with a scripted service, under a clock that a test turns: all parts are real but the way out and the dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from forwarder.core.event import Batch, Lane, Where
from forwarder.core.outcome import Reply
from forwarder.core.ports import DeadLetter
from forwarder.delivery.lanes import RetryPolicy
from forwarder.delivery.sink import HttpSink
from forwarder.imports.batching import DayBatcher
from forwarder.imports.counts import ImportCounts, SourceOrderCounts
from forwarder.imports.dead_letters import ImportDeadLetters, where_of_event
from forwarder.imports.engine import ImportEngine
from forwarder.imports.job import contents_of
from forwarder.imports.replaying import LetterReplays
from forwarder.imports.request import ImportProgress
from forwarder.imports.target import PacedSink
from forwarder.sources.files.records import ReadOptions, SourceFile
from forwarder.sources.files.source import FileSource, open_source
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, StateFolder, read_checkpoint
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import Conversion, EventFilters, EventSelection, ImportDeadLetter, open_conversion
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.finishing import FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.pacing import ImportPace, OwnLine
from forwarder.sources.imports.planning import PlanStep, plan_steps
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.times import DAY, SECOND, when
from tests.support.clock import FakeClock
from tests.support.waiting import TICK, pause

LANE: Final = Lane("phc_imports12345678", historical=True)
JOB: Final = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
OK: Final = Reply(200, "application/json", body=b'{"status":"Ok"}')
FIRST_DAY: Final = 19_000
LONG: Final = 100_000.0

Answer = Callable[[Batch], Reply | None]
"""What the service says to a request; None: nothing, ever."""


def uuid_of(number: int) -> str:
    """The uuid of the event with that number."""
    return str(UUID(int=number + 1, version=4))


def line(number: int, day: int = 0, person: str = "", name: str = "seen", **properties: Any) -> bytes:
    """An event as it stands in a native file."""
    time = when((FIRST_DAY + day) * DAY + number * SECOND)
    event = {"event": name, "distinct_id": person or f"p{number}", "uuid": uuid_of(number), "timestamp": time}
    return msgspec.json.encode({**event, "properties": {"n": number, **properties}})


def write(path: Path, lines: Iterable[bytes]) -> Path:
    """A file of such lines."""
    path.write_bytes(b"".join(each + b"\n" for each in lines))
    return path


def events_in(batch: Batch) -> list[dict[str, Any]]:
    """A batch's events, decoded."""
    return [msgspec.json.decode(event) for chunk in batch.chunks for event in chunk.events()]


class Service:
    """A sink that answers by a function, and remembers what it was sent and what it took."""

    def __init__(self, answer: Answer = lambda _: OK, clock: FakeClock | None = None) -> None:
        self.answer = answer
        self.clock = clock
        self.sent: list[list[bytes]] = []
        self.times: list[float] = []
        self.taken: list[bytes] = []
        """In the order in which they were taken; what was taken twice is here twice."""
        self.busy = 0
        self.days_at_once: set[frozenset[str]] = set()
        self._days: Counter[str] = Counter()

    async def send(self, batch: Batch) -> Reply:
        """See `core.ports.Sink`."""
        events = [event for chunk in batch.chunks for event in chunk.events()]
        days = {str(msgspec.json.decode(event)["timestamp"])[:10] for event in events}
        self.sent.append(events)
        if self.clock is not None:
            self.times.append(self.clock.monotonic())
        self.busy += 1
        self._days.update(days)
        self.days_at_once.add(frozenset(+self._days))
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            reply = self.answer(batch)
            if reply is None:
                await asyncio.get_running_loop().create_future()
                raise AssertionError("it never answers")
        finally:
            self.busy -= 1
            self._days.subtract(days)
        if reply.status == 200:
            self.taken += events
        return reply

    @property
    def uuids(self) -> list[str]:
        """Of all that was taken."""
        return [str(msgspec.json.decode(event)["uuid"]) for event in self.taken]


class Letters:
    """Dead letters in memory, told apart by their places; `blocked` says why they can't be written, if they can't."""

    def __init__(self, clock: FakeClock) -> None:
        self.blocked = ""
        self.kept: dict[tuple[int, int], str] = {}
        self.lines: dict[str, str] = {}
        """Why, by file and line."""
        self._clock = clock
        self._fresh: list[DeadLetter] = []
        self._files: dict[int, SourceFile] = {}

    @property
    def waiting(self) -> str:
        """See `engine.Letters`."""
        return self.blocked

    def begin(self, number: int, file: SourceFile) -> None:
        """See `engine.Letters`."""
        self._files[number] = file

    def where(self, event: FinishedEvent) -> Where:
        """See `engine.Letters`."""
        return where_of_event(event, self._files[event.file])

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """See `engine.Letters`."""
        if self.blocked:
            return False
        self._fresh += letters
        return True

    async def bury_records(self, records: Sequence[ImportDeadLetter]) -> None:
        """See `engine.Letters`."""
        await self._writable()
        for record in records:
            self.kept[(record.file_number << 40) + record.number, record.part] = record.detail
            self.lines[f"{record.place.file}:{record.place.line}"] = record.why

    async def durable(self) -> None:
        """See `engine.Letters`."""
        await self._writable()
        for letter in self._fresh:
            assert letter.place is not None
            self.kept[letter.place] = letter.why
            self.lines[letter.coordinates] = letter.reason
        self._fresh.clear()

    def crash(self) -> None:
        """What wasn't durable is gone."""
        self._fresh.clear()

    async def _writable(self) -> None:
        while self.blocked:
            await self._clock.sleep(1.0)


class NothingMarked:
    """No dead letter is to be replayed."""

    replayed = 0

    def __init__(self) -> None:
        self.readable = asyncio.Event()
        """Whether it can be told that nothing is marked."""
        self.readable.set()

    async def next(self) -> None:
        """See `LetterReplays.next`."""
        await self.readable.wait()

    def owns(self, event: FinishedEvent) -> bool:
        """See `LetterReplays.owns`."""
        return False

    def counted(self) -> Sequence[int]:
        """See `LetterReplays.counted`."""
        return ()

    def saved(self, counted: Sequence[int]) -> None:
        """See `LetterReplays.saved`."""


class Mortal(StateFolder):
    """A state folder of a process that can be killed: then nothing is written any more."""

    dead = False

    def save(self, checkpoint: ImportCheckpoint) -> None:
        """See `StateFolder.save`."""
        if not self.dead:
            super().save(checkpoint)


@dataclass
class Setting:
    """An import's parts that outlive a run."""

    paths: Sequence[Path]
    state: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(turns=8))
    service: Service = field(default_factory=Service)
    letters: Letters = field(init=False)
    filters: EventFilters = field(default_factory=EventFilters)
    limits: BatchLimits = field(default_factory=lambda: BatchLimits(100_000, 5))
    reading: ReadOptions = field(default_factory=lambda: ReadOptions(block_bytes=1500))
    pace: ImportPace = field(default_factory=lambda: ImportPace(1e9, line=OwnLine()))
    window: int = 20_000
    concurrency: int = 3
    max_body: int = 1_000_000
    alone: bool = False
    told: list[ImportProgress] = field(default_factory=list)
    replays: NothingMarked = field(default_factory=NothingMarked)
    engine: ImportEngine = field(init=False)
    folder: Mortal = field(init=False)

    def __post_init__(self) -> None:
        self.letters = Letters(self.clock)

    @property
    def saved(self) -> ImportCheckpoint | None:
        """The checkpoint."""
        return read_checkpoint(self.state)

    async def run(self, during: Callable[[Setting], Awaitable[None]] | None = None, seconds: float = LONG) -> None:
        """One run to its end, time passing by itself; `during` is called again and again meanwhile."""
        source = open_source([str(path) for path in self.paths], self.reading)
        self.folder = Mortal(self.state)
        try:
            with source, Repeats(self.state) as repeats:
                conversion = open_conversion(
                    NativeConverter("set_once"), FinishPolicy("set_once", False, JOB.id), 1_000_000, EventSelection(self.filters, repeats)
                )
                counts, plan = self.planned(source, conversion)
                self.engine = ImportEngine(
                    plan,
                    counts,
                    cast(ImportDeadLetters, self.letters),
                    self.clock,
                    replays=cast(LetterReplays, self.replays),
                    folder=self.folder,
                    lane=LANE,
                    window=self.window,
                    witness="" if self.saved is None else self.saved.witness,
                )
                batcher = DayBatcher(self.engine.buffer, self.pace, self.clock, max_body=self.max_body, one_day_at_a_time=self.alone)
                sink = PacedSink(cast(HttpSink, self.service), self.pace, self.clock)
                self.engine.connect(batcher, sink, RetryPolicy(), self.concurrency, None)
                try:
                    await self._driven(asyncio.create_task(self.engine.run(self.told.append)), during, seconds)
                finally:
                    plan.close()
        finally:
            self.folder.close()

    def planned(self, source: FileSource, conversion: Conversion) -> tuple[ImportCounts, Generator[PlanStep]]:
        """The counts, and the plan that goes on from them."""
        counts = SourceOrderCounts(JOB, self.clock.now(), contents_of(source), self.saved)
        return counts, plan_steps(source, conversion, counts.saved(), self.limits)

    async def _driven(self, task: asyncio.Task[None], during: Callable[[Setting], Awaitable[None]] | None, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        try:
            while not (task.done() or self.folder.dead):
                assert self.clock.monotonic() < end, f"it doesn't end: {self.engine.progress()}"
                if during is not None:
                    await during(self)
                await pause(TICK / 4)
                await self.clock.advance(0.3)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not self.folder.dead:
            task.result()

    def kill(self) -> None:
        """As `kill -9` does: nothing more is written, also no letter."""
        self.folder.dead = True
        self.letters.crash()


def by_file(checkpoint: ImportCheckpoint) -> Mapping[str, int]:
    """How many records of each file are settled, by the file's own name."""
    return {Path(state.name).name: state.books.read for state in checkpoint.files}
