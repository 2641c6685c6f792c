"""What the disk buffer holds of a lane: chunks in memory, within a window, and a backlog on disk,
which is loaded again in stretches.

The backlog of a lane is a list of **runs**: stretches of a segment that hold the lane's unsettled
records in order. So a backlog needs no memory for each record. Runs are loaded when their lane's
turn to send comes near.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from forwarder.buffer.disk.format import RecordKind, decode_meta, lane_of
from forwarder.buffer.disk.reading import (
    Damage,
    FoundRecord,
    Ranges,
    read_records,
    remaining,
    slices,
)
from forwarder.buffer.disk.segment import Segment, StoredRecord
from forwarder.buffer.holdings import LaneHolding
from forwarder.core.event import (
    CHUNK_OVERHEAD,
    EVENT_OVERHEAD,
    NO_IDS,
    Ack,
    Chunk,
    Lane,
    split_events,
)
from forwarder.core.lane_queue import LanePool
from forwarder.wire.identity import ids_of

WINDOW: Final = 64 << 20
"""Bytes of memory for events that are loaded: waiting to be sent, or in flight. The others are on
disk alone.
"""

LEAST_SHARE: Final = 512 << 10
"""Bytes that a lane may have in memory however full the window is."""

EVENT_COST: Final = 160
"""Bytes that an event counts for beside its JSON: at least what a record's header and the mark
that settles it take.
"""

T = TypeVar("T")


class StoredChunk(Chunk):
    """A chunk with its record. `first` is the index of its first event in the record as it was
    received.

    `size` is that of its events, also once they were released
    (`DiskBuffer.release`) and `data` is empty.
    """

    __slots__ = ("first", "record", "size")

    def __init__(  # noqa: PLR0917 - as in its base
        self,
        lane: Lane,
        data: bytes,
        count: int,
        ids: frozenset[str],
        received_at: float,
        source: str,
        ack: Ack | None,
        *,
        record: StoredRecord,
        first: int,
    ) -> None:
        super().__init__(lane, data, count, ids, received_at, source, ack)
        self.record = record
        self.first = first
        self.size = len(data)

    @property
    def place(self) -> tuple[int, int]:
        return self.record.sequence, self.first

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        return StoredChunk(
            self.lane,
            data,
            count,
            ids,
            self.received_at,
            self.source,
            self.ack,
            record=self.record,
            first=self.first + at,
        )


class DiskHolding(LaneHolding):
    """What the buffer holds of a lane: `bytes` as they count against the limit, offered ones
    included; `queue` has the waiting chunks in memory, `runs` what is on disk alone, oldest first;
    `in_memory` is the memory that chunks take.
    """

    __slots__ = ("in_memory", "loading", "ordered", "runs", "spilling")

    def __init__(self, pool: LanePool | None = None, *, ordered: bool) -> None:
        super().__init__(pool)
        self.ordered = ordered
        self.in_memory = 0
        self.loading = False
        self.spilling = False
        """Whether the latest record is on disk alone, and its run may grow."""
        self.runs: deque[BacklogRun] = deque()


class MemoryWindow:
    """How much memory chunks take, in bytes. A lane may have as much in memory as is free beside
    it: the more lanes have a backlog, the less each gets, and none can take it all.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def share(self) -> int:
        """What one lane may have in memory now."""
        return max(self.max_bytes - self.used, LEAST_SHARE)


def cost(size: int, count: int) -> int:
    """What events count for against the limit: at least what they take on disk."""
    return size + 1 + EVENT_COST * count


def wanted_of(sequence: int, first: int, count: int, holes: dict[int, Ranges | None]) -> Ranges:
    """The unsettled events of a record, by its segment's holes."""
    if sequence not in holes:
        return [(first, count)]
    gone = holes[sequence]
    return [] if gone is None else remaining(first, count, gone)


@dataclass(slots=True)
class BacklogRun:
    """A stretch of a segment with a lane's unsettled records, in order; records of others, and
    settled ones (`holes`), are between them.
    """

    generation: int
    start: int
    end: int
    first: int
    """The sequence of its first record."""
    last: int
    events: int
    bytes: int
    """What its events count for."""
    received_at: float


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """One range of a record's unsettled events, as a chunk needs them."""

    sequence: int
    first: int
    count: int
    data: bytes
    ids: frozenset[str]
    received_at: float
    source: str
    length: int
    """Bytes of the record; of several ranges of one the first has them all."""
    full: bool


@dataclass(frozen=True, slots=True)
class LoadedStretch:
    """What was read of a run: `end` is where the rest of it begins."""

    records: list[LoadedRecord]
    damages: list[Damage]
    end: int
    last: int
    """The sequence of the last record that was read."""


OnLoaded: TypeAlias = Callable[[LoadedStretch | None, Exception | None], None]
"""Called with what was read, or with the error."""


def read_stretch(
    segment: Segment,
    lane: Lane,
    run: BacklogRun,
    *,
    room: int,
    ordered: bool,
    holes: dict[int, Ranges | None],
) -> LoadedStretch:
    """Read the lane's records from the start of a run, until they would take `room` bytes of
    memory; at least one. For a thread.

    `ordered`: with the ordering keys of their events. Raises `OSError`.
    """
    loaded: list[LoadedRecord] = []
    damages: list[Damage] = []
    at = run.start
    last = run.first - 1
    for item in read_records(segment.fd, segment.generation, run.start, run.end):
        if isinstance(item, Damage):
            damages.append(item)
            at = item.offset + item.size
            continue
        if _is_wanted(item, lane, run):
            chunks = _loaded(item, ordered=ordered, holes=holes)
            loaded += chunks
            last = item.header.sequence
            room -= sum(
                [
                    len(chunk.data) + CHUNK_OVERHEAD + EVENT_OVERHEAD * chunk.count
                    for chunk in chunks
                ]
            )
        at = item.offset + item.header.length
        if room <= 0 and loaded:
            break
    return LoadedStretch(loaded, damages, at, last)


def _is_wanted(item: FoundRecord, lane: Lane, run: BacklogRun) -> bool:
    header = item.header
    if header.kind != RecordKind.DATA or not run.first <= header.sequence <= run.last:
        return False
    return lane_of(decode_meta(item.meta)[1], header.flags) == lane


def _loaded(
    item: FoundRecord, *, ordered: bool, holes: dict[int, Ranges | None]
) -> list[LoadedRecord]:
    header = item.header
    wanted = wanted_of(header.sequence, header.first, header.events, holes)
    full = not header.moved_from and header.sequence not in holes
    source = decode_meta(item.meta)[0]
    at = header.received_at
    length = header.length
    loaded: list[LoadedRecord] = []
    for (first, count), data in zip(
        wanted, slices(bytes(item.body), header.first, header.events, wanted), strict=True
    ):
        ids = _ids(data) if ordered else NO_IDS
        loaded.append(
            LoadedRecord(
                header.sequence, first, count, data, ids, at, source, 0 if loaded else length, full
            )
        )
    return loaded


def _ids(data: bytes) -> frozenset[str]:
    """The ordering keys of all events of a chunk."""
    return frozenset().union(*[ids_of(bytes(raw)) for raw in split_events(b"[%b]" % data)])


class Loader:
    """Reads on a thread of its own, one stretch after another."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._tasks: set[asyncio.Future[None]] = set()

    def load(
        self,
        segment: Segment,
        lane: Lane,
        run: BacklogRun,
        *,
        room: int,
        ordered: bool,
        done: OnLoaded,
    ) -> None:
        """Read the start of a run, then call `done` on the loop. The segment isn't
        freed meanwhile.
        """
        segment.readers += 1
        work = partial(
            read_stretch,
            segment,
            lane,
            replace(run),
            room=room,
            ordered=ordered,
            holes=segment.holes,
        )
        self.run(work, partial(self._read, segment, done))

    def run(
        self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Do `work` on the thread, then call `done` on the loop with its result, or
        with its error.
        """
        task = asyncio.ensure_future(self._work(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(
        self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def _read(
        self,
        segment: Segment,
        done: OnLoaded,
        stretch: LoadedStretch | None,
        error: Exception | None,
    ) -> None:
        segment.readers -= 1
        done(stretch, error)

    async def close(self) -> None:
        """Return when nothing is being read any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()
