"""Imports with a scripted service, under a clock that a test turns: all parts
are real but the way out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import msgspec

from forwarder.core.event import Batch, Lane
from forwarder.core.outcome import Reply
from forwarder.daemon import imports
from forwarder.daemon.import_dead_letters import DeadLetterReplays, ImportDeadLetters
from forwarder.daemon.imports import ImportPipeline
from forwarder.deadletter.schema import open_readable
from forwarder.delivery.batching import BatchPolicy
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import FileSource, open_source
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock, source_blocks
from forwarder.sources.imports.checkpoint import (
    ImportCheckpoint,
    ImportJob,
    StateFolder,
    read_checkpoint,
)
from forwarder.sources.imports.conversion import Conversion, EventFilters, FinishPolicy
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.job import contents_of
from forwarder.sources.imports.pacing import ImportPace, QuietHours, RateLine
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.source import ImportLedger, ImportProgress
from forwarder.sources.imports.times import DAY, SECOND, when
from forwarder.storage import failpoints
from forwarder.storage.directory import DEAD_LETTERS
from tests.support.clock import FakeClock
from tests.support.waiting import TICK, pause

LANE: Final = Lane("phc_imports12345678", historical=True)
JOB: Final = ImportJob("0190a0a0-1111-5222-8333-444455556666", "native", "a.jsonl")
OK: Final = Reply(200, "application/json", body=b'{"status":"Ok"}')
BUSY: Final = Reply(503, retry_after=1.0, body=b"later")
FIRST_DAY: Final = 19_000
LONG: Final = 100_000.0
MAX_EVENT: Final = 1_000_000

Answer = Callable[[Batch], Reply | None]
"""What the service says to a request; None: nothing, ever."""


def uuid_of(number: int) -> str:
    """The uuid of the event with that number."""
    return str(UUID(int=number + 1, version=4))


def line(
    number: int, day: int = 0, person: str = "", name: str = "seen", **properties: Any
) -> bytes:
    """An event as it stands in a native file."""
    time = when((FIRST_DAY + day) * DAY + number * SECOND)
    event = {
        "event": name,
        "distinct_id": person or f"p{number}",
        "uuid": uuid_of(number),
        "timestamp": time,
    }
    return msgspec.json.encode({**event, "properties": {"n": number, **properties}})


def write(path: Path, lines: Iterable[bytes]) -> Path:
    """A file of such lines."""
    path.write_bytes(b"".join(raw_line + b"\n" for raw_line in lines))
    return path


def events_in(batch: Batch) -> list[dict[str, Any]]:
    """A batch's events, decoded."""
    return [msgspec.json.decode(event) for chunk in batch.chunks for event in chunk.events()]


class ScriptedSink:
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


class HeldCommits(SimpleQueue[Any]):
    """Commits of dead letters, which begin when a test lets them: anyone who doesn't wait for them
    loses them in a kill.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Any] | None = None

    # FBT002: the parameters are those of `SimpleQueue`.
    def put(
        self,
        item: Any,
        block: bool = True,  # noqa: FBT002
        timeout: float | None = None,
    ) -> None:
        if self._held is None:
            super().put(item, block, timeout)
        else:
            self._held.append(item)

    def hold(self) -> None:
        """From now on none begins."""
        self._held = []

    def release(self) -> None:
        """What was held, and what comes, begins."""
        held = self._held or []
        self._held = None
        for commit in held:
            super().put(commit)


class Mortal(StateFolder):
    """A state folder of a process that can be killed: then nothing is written any more."""

    dead = False

    def save(self, checkpoint: ImportCheckpoint) -> None:
        if not self.dead:
            super().save(checkpoint)


@dataclass
class Setting:
    """An import's parts that outlive a run, and those of the last one."""

    paths: Sequence[Path]
    state: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(turns=8))
    service: ScriptedSink = field(default_factory=ScriptedSink)
    filters: EventFilters = field(default_factory=EventFilters)
    reading: ReadOptions = field(default_factory=lambda: ReadOptions(block_bytes=1500))
    batches: BatchPolicy = field(default_factory=lambda: BatchPolicy(4_000, 5, 1.0, by_day=True))
    rate: float = 1e9
    line: RateLine = field(default_factory=RateLine)
    quiet: QuietHours | None = None
    concurrency: int = 3
    max_letters: int = 1 << 30
    """Bytes."""
    doing: str = ""
    reported: list[ImportProgress] = field(default_factory=list)
    pipeline: ImportPipeline = field(init=False)
    dead_letters: ImportDeadLetters = field(init=False)
    commits: HeldCommits = field(init=False)
    folder: Mortal = field(init=False)

    @property
    def saved(self) -> ImportCheckpoint | None:
        """The checkpoint."""
        return read_checkpoint(self.state)

    @property
    def letters(self) -> list[tuple[str, str]]:
        """The dead letters on the disk: file and line, and the reason."""
        if not (self.state / DEAD_LETTERS).exists():
            return []
        with closing(open_readable(self.state / DEAD_LETTERS)) as connection:
            return list(
                connection.execute("SELECT coordinates, reason FROM letters ORDER BY number")
            )

    async def run(
        self, during: Callable[[Setting], Awaitable[None]] | None = None, seconds: float = LONG
    ) -> None:
        """One run to its end, time passing by itself; `during` is called again and
        again meanwhile.
        """
        source = open_source([str(path) for path in self.paths], self.reading)
        self.folder = Mortal(self.state)
        saved = self.saved
        replayed = () if saved is None else saved.totals.replayed
        self.dead_letters = ImportDeadLetters.open_in(
            self.state, self.clock, self.max_letters, replayed
        )
        self.commits = self.dead_letters._committer._groups = HeldCommits()
        self.dead_letters.start()
        try:
            with source, Repeats(self.state) as repeats, patch.object(imports, "LEAST_WINDOW", 0):
                checkpoint = saved or ImportCheckpoint(JOB, self.clock.now(), self.clock.now(), [])
                checkpoint.contents = contents_of(source)
                checkpoint.exhausted = checkpoint.complete
                self.pipeline = self._pipeline(source, ImportLedger(checkpoint), repeats)
                await self._driven(
                    asyncio.create_task(
                        self.pipeline.run(self.reported.append, lambda: self.doing)
                    ),
                    during,
                    seconds,
                )
        finally:
            self.commits.release()
            await self.dead_letters.end()
            self.folder.close()
            if self.folder.dead:
                self.make_room()

    def _pipeline(
        self, source: FileSource, ledger: ImportLedger, repeats: Repeats
    ) -> ImportPipeline:
        limits = ChunkLimits.of_batches(self.batches.max_bytes, self.batches.max_events)
        alone = self._conversion(EventFilters(), None)
        return ImportPipeline(
            self.blocks(source, self._conversion(self.filters, repeats), ledger.checkpoint, limits),
            ledger,
            self.dead_letters,
            self.service,
            self.clock,
            lane=LANE,
            folder=self.folder,
            policy=self.batches,
            pace=ImportPace(self.rate, self.clock, line=self.line, quiet=self.quiet),
            retry=RetryPolicy(),
            concurrency=self.concurrency,
            keys=None,
            replays=DeadLetterReplays(
                self.dead_letters, ledger, alone, limits, MAX_EVENT, LANE, self.clock
            ),
        )

    @staticmethod
    def _conversion(filters: EventFilters, repeats: Repeats | None) -> Conversion:
        return Conversion(
            NativeConverter("oldest"),
            FinishPolicy("oldest", False, JOB.id),
            MAX_EVENT,
            filters,
            repeats,
        )

    def blocks(
        self,
        source: FileSource,
        conversion: Conversion,
        checkpoint: ImportCheckpoint,
        limits: ChunkLimits,
    ) -> Generator[ImportBlock]:
        """The blocks that continue from a checkpoint."""
        return source_blocks(source, conversion, checkpoint.settled, limits)

    async def _driven(
        self,
        task: asyncio.Task[None],
        during: Callable[[Setting], Awaitable[None]] | None,
        seconds: float,
    ) -> None:
        end = self.clock.monotonic() + seconds
        try:
            while not (task.done() or self.folder.dead):
                assert self.clock.monotonic() < end, f"it doesn't end: {self.reported[-1:]}"
                if during is not None:
                    await during(self)
                await self._pass()
        finally:
            task.cancel()
            while not task.done():
                await self._pass()
            await asyncio.gather(task, return_exceptions=True)
        if not self.folder.dead:
            task.result()

    async def _pass(self) -> None:
        """Some time passes; what is buried in it is written in the next."""
        await pause(TICK / 4)
        self.commits.release()
        await self.dead_letters._committer.settle()
        self.commits.hold()
        await self.clock.advance(0.3)

    def kill(self) -> None:
        """As `kill -9` does: nothing more is written, also no letter."""
        self.folder.dead = True
        self.fill_disk()

    def fill_disk(self) -> None:
        """No dead letter can be written."""
        failpoints.arm("dead_letters.begin=enospc")

    def make_room(self) -> None:
        """They can be written again."""
        failpoints.arm("")


def by_file(checkpoint: ImportCheckpoint) -> Mapping[str, int]:
    """How many records of each file are settled, by the file's own name."""
    return {Path(state.name).name: state.books.read for state in checkpoint.files}


def three_files(folder: Path, count: int = 20, days: int = 2) -> list[Path]:
    """Three files of events of some persons on a few days."""
    return [
        write(
            folder / f"{name}.jsonl",
            [line(at * count + n, day=n * days // count, person=f"p{n % 7}") for n in range(count)],
        )
        for at, name in enumerate("abc")
    ]


def refusing(*numbers: int, status: int = 400) -> Callable[[Batch], Reply]:
    """A service that refuses requests with one of these events in it."""
    return lambda batch: (
        Reply(status, body=b"no")
        if {event["properties"]["n"] for event in events_in(batch)} & set(numbers)
        else OK
    )


def times(count: int, answer: Reply | None, then: Answer = lambda _: OK) -> Answer:
    """The same answer so many times, and then another."""
    left = count

    def say(batch: Batch) -> Reply | None:
        nonlocal left
        left -= 1
        return answer if left >= 0 else then(batch)

    return say


def after(requests: int, do: Callable[[Setting], None]) -> Callable[[Setting], Awaitable[None]]:
    """Do something once so many requests were sent."""
    done = False

    async def look(setting: Setting) -> None:
        nonlocal done
        if not done and len(setting.service.sent) >= requests:
            done = True
            do(setting)

    return look


def assert_all_there(setting: Setting, count: int) -> None:
    """Each of so many events was taken or is a dead letter, and the books say so."""
    saved = setting.saved
    assert saved is not None
    assert saved.complete, saved
    assert saved.books.difference == 0
    assert saved.books.read == count
    delivered = set(setting.service.uuids)
    assert len(delivered) == saved.books.delivered
    assert len(setting.letters) == sum(saved.books.refused.values())
    assert sum(day.delivered for day in saved.totals.days.values()) == len(delivered)
