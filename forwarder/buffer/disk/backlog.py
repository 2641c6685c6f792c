"""A chunk that is a record on disk, or a part of one; and what the buffer holds of a lane."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from forwarder.buffer.disk.format import RecordKind, decode_meta, lane_of
from forwarder.buffer.disk.reading import Damage, FoundRecord, Ranges, read_records, remaining, slices
from forwarder.buffer.disk.segment import Segment, StoredRecord
from forwarder.buffer.holdings import LaneHolding
from forwarder.core.ack import Ack
from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, NO_IDS, Chunk, Lane, split_events
from forwarder.core.lanes import LanePool
from forwarder.wire.identity import ids_of

WINDOW: Final = 64 << 20
"""Bytes of memory that events at hand may take together: waiting to be sent, or in flight. The others wait on disk alone."""

LEAST_SHARE: Final = 512 << 10
"""What a lane may have at hand however full the window is."""


class StoredChunk(Chunk):
    """A chunk with its record. `first` is the index of its first event in the record as it was received."""

    __slots__ = ("first", "record")

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

    @property
    def place(self) -> tuple[int, int]:
        """See `Chunk.place`."""
        return self.record.sequence, self.first

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> Chunk:
        """See `Chunk.part`."""
        return StoredChunk(
            self.lane, data, count, ids, self.received_at, self.source, self.ack, record=self.record, first=self.first + at
        )


class DiskHolding(LaneHolding):
    """What the buffer holds of a lane: `bytes` as they count against the limit, offered ones included; `queue` has what is at hand and
    waits, `runs` what waits on disk alone, oldest first; `at_hand` is the memory that chunks at hand take."""

    __slots__ = ("at_hand", "loading", "ordered", "runs", "spilling")

    def __init__(self, pool: LanePool | None = None, *, ordered: bool) -> None:
        super().__init__(pool)
        self.ordered = ordered
        self.at_hand = 0
        self.loading = False
        self.spilling = False
        """Whether the last record that came is on disk alone, and its run may grow."""
        self.runs: deque[BacklogRun] = deque()


class MemoryWindow:
    """The account of memory that chunks take, in bytes. A lane may have as much at hand as is free beside it: the more lanes there are
    with much to send, the less each gets, and none can take it all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def share(self) -> int:
        """What one lane may have at hand now."""
        return max(self.max_bytes - self.used, LEAST_SHARE)


EVENT_COST: Final = 160
"""Bytes that an event counts for beside its JSON: no less than a record's header and the mark that settles it take."""


def cost(size: int, count: int) -> int:
    """What events count for against the limit: never less than they take on disk."""
    return size + 1 + EVENT_COST * count


def wanted_of(sequence: int, first: int, count: int, holes: dict[int, Ranges | None]) -> Ranges:
    """What is unsettled of a record among a segment's holes."""
    if sequence not in holes:
        return [(first, count)]
    gone = holes[sequence]
    return [] if gone is None else remaining(first, count, gone)


@dataclass(slots=True)
class BacklogRun:
    """A stretch of a segment with a lane's unsettled records, in order; records of others, and settled ones (`holes`), are between them."""

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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """A record's unsettled events, one range of them, as they are needed for a chunk."""

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


def read_stretch(
    segment: Segment, lane: Lane, run: BacklogRun, *, room: int, ordered: bool, holes: dict[int, Ranges | None]
) -> LoadedStretch:
    """Read the lane's records from the beginning of a run, until they would take `room` bytes of memory: at least one. For a thread.

    `ordered`: with the ordering keys of their events. Raises `OSError`.
    """
    loaded: list[LoadedRecord] = []
    damages: list[Damage] = []
    at, last = run.start, run.first - 1
    for item in read_records(segment.fd, segment.generation, run.start, run.end):
        if isinstance(item, Damage):
            damages.append(item)
            at = item.offset + item.size
            continue
        if _is_wanted(item, lane, run):
            found = _loaded(item, ordered=ordered, holes=holes)
            loaded += found
            last = item.header.sequence
            room -= sum([len(each.data) + CHUNK_OVERHEAD + EVENT_OVERHEAD * each.count for each in found])
        at = item.offset + item.header.length
        if room <= 0 and loaded:
            break
    return LoadedStretch(loaded, damages, at, last)


def _is_wanted(item: FoundRecord, lane: Lane, run: BacklogRun) -> bool:
    header = item.header
    if header.kind != RecordKind.DATA or not run.first <= header.sequence <= run.last:
        return False
    return lane_of(decode_meta(item.meta)[1], header.flags) == lane


def _loaded(item: FoundRecord, *, ordered: bool, holes: dict[int, Ranges | None]) -> list[LoadedRecord]:
    header = item.header
    wanted = wanted_of(header.sequence, header.first, header.events, holes)
    full = not header.moved_from and header.sequence not in holes
    source, at, length = decode_meta(item.meta)[0], header.received_at, header.length
    loaded: list[LoadedRecord] = []
    for (first, count), data in zip(wanted, slices(bytes(item.body), header.first, header.events, wanted), strict=True):
        ids = _ids(data) if ordered else NO_IDS
        loaded.append(LoadedRecord(header.sequence, first, count, data, ids, at, source, 0 if loaded else length, full))
    return loaded


def _ids(data: bytes) -> frozenset[str]:
    """The ordering keys of all events of a chunk."""
    return frozenset().union(*[ids_of(bytes(raw)) for raw in split_events(b"[%b]" % data)])


class Buffer(Protocol):
    """Whose events are loaded."""

    def loaded(self, lane: Lane, run: BacklogRun, stretch: LoadedStretch) -> None:
        """A stretch of the lane's first run was read."""

    def not_loaded(self, lane: Lane, error: Exception) -> None:
        """It can't be read now."""


class Loader:
    """Reads on a thread of its own, one stretch after the other."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._tasks: set[asyncio.Future[None]] = set()

    def load(self, segment: Segment, lane: Lane, run: BacklogRun, *, room: int, ordered: bool) -> None:
        """Begin to read a run. The segment isn't freed meanwhile."""
        segment.readers += 1
        work = partial(read_stretch, segment, lane, replace(run), room=room, ordered=ordered, holes=segment.holes)
        self.run(work, partial(self._read, segment, lane, run))

    def run(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Do `work` on the thread, then call `done` on the loop with its result, or with what went wrong."""
        task = asyncio.ensure_future(self._work(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def _read(self, segment: Segment, lane: Lane, run: BacklogRun, stretch: LoadedStretch | None, error: Exception | None) -> None:
        segment.readers -= 1
        if stretch is not None:
            self._buffer.loaded(lane, run, stretch)
        elif error is not None:
            self._buffer.not_loaded(lane, error)

    async def close(self) -> None:
        """Return when nothing is being read any more."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()

# DOC: Runs: stretches of a segment that hold a lane's unsettled records in order, so that a backlog needs no memory for each record.

# DOC: Bringing events back from the disk, a stretch of a run at a time, when their lane's turn to send comes near.
