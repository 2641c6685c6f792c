"""Bringing events back from the disk, a stretch of a run at a time, when their lane's turn to send comes near."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from forwarder.buffer.disk.format import Kind, decode_meta, lane_of
from forwarder.buffer.disk.reading import Damage, Found, Ranges, read_records, slices
from forwarder.buffer.disk.runs import Run, wanted_of
from forwarder.buffer.disk.segment import Segment
from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, NO_IDS, Lane, split_events
from forwarder.wire.identity import ids_of

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
class Stretch:
    """What was read of a run: `end` is where the rest of it begins."""

    records: list[LoadedRecord]
    damages: list[Damage]
    end: int
    last: int
    """The sequence of the last record that was read."""


def read_stretch(segment: Segment, lane: Lane, run: Run, *, room: int, ordered: bool, holes: dict[int, Ranges | None]) -> Stretch:
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
    return Stretch(loaded, damages, at, last)


def _is_wanted(item: Found, lane: Lane, run: Run) -> bool:
    header = item.header
    if header.kind != Kind.DATA or not run.first <= header.sequence <= run.last:
        return False
    return lane_of(decode_meta(item.meta)[1], header.flags) == lane


def _loaded(item: Found, *, ordered: bool, holes: dict[int, Ranges | None]) -> list[LoadedRecord]:
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

    def loaded(self, lane: Lane, run: Run, stretch: Stretch) -> None:
        """A stretch of the lane's first run was read."""

    def not_loaded(self, lane: Lane, error: Exception) -> None:
        """It can't be read now."""


class Loader:
    """Reads on a thread of its own, one stretch after the other."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._tasks: set[asyncio.Future[None]] = set()

    def load(self, segment: Segment, lane: Lane, run: Run, *, room: int, ordered: bool) -> None:
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

    def _read(self, segment: Segment, lane: Lane, run: Run, stretch: Stretch | None, error: Exception | None) -> None:
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
