"""The disk buffer: offered events become records of the log, and can be taken for batches once
they are durable.

Invariants: an event can be taken from its lane's queue only after an fdatasync that covers its
record; it stays in memory if it is within the window (`backlog.WINDOW`), and is on disk alone
otherwise; it is loaded at most once. `used` is what all events count for, offered ones included,
and exceeds the limit only by the overhead of cut chunks. A lane's count and the books change in
one callback of the loop. While the disk refuses to write, offers are rejected, settled events are
remembered, and writing is tried again each second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from forwarder.buffer.disk.backlog import (
    BacklogRun,
    DiskHolding,
    LoadedStretch,
    Loader,
    MemoryWindow,
    StoredChunk,
    cost,
)
from forwarder.buffer.disk.commits import Commits
from forwarder.buffer.disk.compaction import Compaction, MovedPiece
from forwarder.buffer.disk.format import SEGMENT_HEADER_SIZE
from forwarder.buffer.disk.log import Log, Placement
from forwarder.buffer.disk.pending import NewRecord, Offer
from forwarder.buffer.disk.quarantine import Quarantine
from forwarder.buffer.disk.segment import Segment, StoredRecord
from forwarder.buffer.holdings import (
    BufferStatistics,
    PoolOf,
    drop_oldest,
    no_pool,
    settle_acks,
    withdraw,
)
from forwarder.core.ack import AckCallback
from forwarder.core.clock import Clock, Timer
from forwarder.core.error_text import error_text
from forwarder.core.errors import BUFFER_FULL_HINT, BufferFull, RequestTooLarge
from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, NO_IDS, Ack, Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.ports import DropCause, DropReason, Fate, Ordering
from forwarder.storage import failpoints
from forwarder.storage.committer import RETRY_SECONDS, Committer
from forwarder.telemetry.labels import lane_label
from forwarder.wire.envelope import cut_by_size

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DiskStatistics(BufferStatistics):
    """`disk_bytes`: size of the files; `write_error`: why the disk refuses to write, or empty;
    `quarantined`: how many files are; `files_full`: whether the files have no room for what was
    offered last, whatever the limit leaves.
    """

    disk_bytes: int = 0
    memory_bytes: int = 0
    write_error: str = ""
    quarantined: int = 0
    files_full: bool = False


def _nothing(*_: object) -> None:
    """The default callback."""


class DiskBuffer:
    """The buffer on disk: a `Buffer` that survives its process."""

    def __init__(
        self,
        log: Log,
        committer: Committer,
        clock: Clock,
        *,
        max_bytes: int,
        ordering_of: Callable[[Lane], Ordering],
        window: int,
        quarantine: Quarantine,
    ) -> None:
        """`window`: bytes of memory for loaded events."""
        self.log = log
        self.max_bytes = max_bytes
        self.used = 0
        self.memory = MemoryWindow(window)
        """The memory of loaded events and of those that wait for their fsync."""
        self.holdings: dict[Lane, DiskHolding] = {}
        self.pool_of: PoolOf = no_pool
        """The pool of a lane that the buffer begins to hold."""
        self.segments: dict[int, Segment] = {}
        """Those in use, by generation."""
        self.commits = Commits(log, committer, self)
        self.on_arrival: Callable[[], None] = _nothing
        """Called when events can be taken that couldn't before."""
        self.on_damaged: Callable[[Lane, int], None] = _nothing
        """Called when events of a lane can't be read: they are dropped, and
        their bytes are quarantined.
        """
        self._committer = committer
        self._clock = clock
        self._reading_again: Timer | None = None
        self._unreadable = ""
        """The last error of a read."""
        self._ordering_of = ordering_of
        self._quarantine = quarantine
        self.loader = Loader()
        self._compaction = Compaction(self, quarantine)
        self._max_record = (log.size - SEGMENT_HEADER_SIZE) // 2

    def holding(self, lane: Lane) -> DiskHolding:
        """What is held of a lane; created if missing."""
        holding = self.holdings.get(lane)
        if holding is None:
            holding = self.holdings[lane] = DiskHolding(
                self.pool_of(lane), ordered=self._ordering_of(lane) is not Ordering.NONE
            )
        return holding

    # The port

    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool:
        """What is offered with `held` is held after an fsync.

        Raises `BufferFull`, `RequestTooLarge`.
        """
        total = 0
        for chunk in chunks:
            size = len(chunk.data)
            total += cost(size, chunk.count)
            if size > self._max_record or chunk.ack is not None:
                return self._offer_unusual(chunks, held)
        self._offer(chunks, held, total)
        return held is None

    def _offer(self, chunks: Sequence[Chunk], held: AckCallback | None, total: int) -> None:
        if self.used + total > self.max_bytes:
            raise BufferFull("the buffer is full", hint=BUFFER_FULL_HINT)
        self.commits.offer((chunks, held, total))
        for chunk in chunks:
            holding = self.holdings.get(chunk.lane)
            if holding is None:
                holding = self.holding(chunk.lane)
            size = cost(len(chunk.data), chunk.count)
            holding.bytes += size
            if holding.pool is not None:
                holding.pool.bytes += size
            if held is None:
                holding.events += chunk.count
        self.used += total
        self.memory.used += total

    def _offer_unusual(self, chunks: Sequence[Chunk], held: AckCallback | None) -> bool:
        """Chunks that don't fit a record, or whose delivery is awaited."""
        chunks = [part for chunk in chunks for part in self._cut(chunk)]
        self._check_unusual(chunks)
        self._offer(chunks, held, sum(map(self.cost, chunks)))
        return held is None

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises what `offer` would raise now. Cutting a large chunk changes nothing of what its
        bytes count for.
        """
        pieces = [part for chunk in chunks for part in self._cut(chunk)]
        self._check_unusual(pieces)
        total = sum(map(self.cost, pieces))
        if self.used + total > self.max_bytes:
            raise BufferFull("the buffer is full", hint=BUFFER_FULL_HINT)
        self.commits.check(total)

    def _cut(self, chunk: Chunk) -> list[Chunk]:
        """The chunk in pieces that each fit a record."""
        return (
            [chunk]
            if len(chunk.data) <= self._max_record
            else cut_by_size(chunk, self._max_record, chunk.count)
        )

    def _check_unusual(self, chunks: Sequence[Chunk]) -> None:
        """Raise for what waiting can't change: an event larger than a segment, a lane whose
        backlog outlasts the ack's time limit.
        """
        for chunk in chunks:
            if len(chunk.data) > self.log.largest_record():
                raise RequestTooLarge("an event is larger than a segment of the buffer's files")
            if (
                chunk.ack is not None
                and (holding := self.holdings.get(chunk.lane)) is not None
                and holding.ordered
                and holding.runs
            ):
                raise BufferFull(
                    "too many events wait before these for them to be delivered in time",
                    retry_after=30.0,
                )

    def cost(self, chunk: Chunk) -> int:
        """What the chunk counts for: never less than it takes on disk."""
        return cost(len(chunk.data), chunk.count)

    def queue(self, lane: Lane) -> LaneQueue:
        """The lane's chunks in memory. Calling it starts loading more from the
        disk, if there are more.
        """
        holding = self.holdings.get(lane)
        if holding is None:
            return LaneQueue()
        if holding.runs and not holding.loading:
            self._load(lane, holding)
        return holding.queue

    @property
    def has_backlog(self) -> bool:
        """Whether events are on disk that aren't in memory."""
        return any(holding.runs for holding in self.holdings.values())

    def waiting_lanes(self) -> Collection[Lane]:
        """The lanes that have waiting chunks, in memory or on disk alone."""
        return [lane for lane, holding in self.holdings.items() if holding.queue or holding.runs]

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts`, which hold the same events, stand for `chunk`."""
        holding = self.holdings[chunk.lane]
        more = sum([self.cost(part) for part in parts]) - self.cost(chunk)
        self.used += more
        _count(holding, more)
        self._take_memory(holding, sum([part.cost for part in parts]) - chunk.cost)
        if failpoints.ARMED:
            failpoints.hit("bisect.cut")

    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropCause) -> None:
        """Forget chunks of one lane, mark them in the log, settle their acks."""
        lane = chunks[0].lane
        holding = self.holdings[lane]
        marks = self.commits.marks.of(lane, fate)
        group = self.log.groups + 1
        for chunk in chunks:
            if not isinstance(chunk, StoredChunk):
                raise TypeError("only what came from this buffer can be settled in it")
            record = chunk.record
            count = chunk.count
            marks.add(
                record.sequence, chunk.first, count, whole=record.full and count == record.count
            )
            record.segment.dead_in = group
            if record.settle(chunk.first, count):
                self._compaction.settled(record.length)
            size = cost(chunk.size, count)
            self.used -= size
            _count(holding, -size)
            holding.events -= count
            self._take_memory(holding, -chunk.cost)
            if fate is DropReason.DROP_OLDEST:
                self.commits.drop(size)
        self._forget_if_empty(lane)
        self.commits.mark_soon()
        settle_acks(chunks, fate)

    def release(self, chunks: Sequence[Chunk]) -> None:
        """Keep the events of chunks that were taken on disk alone: they are only to be settled,
        and can't be put back or cut.

        They count for no memory any more: whoever holds so many that the objects matter limits
        them. A sender that waits for the result of each event needs them until then: such chunks
        keep them.
        """
        for chunk in chunks:
            if chunk.ack is not None and chunk.ack.watch is not None:
                continue
            self._take_memory(self.holdings[chunk.lane], -chunk.cost)
            chunk.data = b""
            chunk.ids = NO_IDS
            chunk.cost = 0

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take the chunks that have one of these acks and still wait off their queues: all of them
        are in memory.
        """
        return withdraw(self.holdings, acks, lane)

    def drop_oldest(self, lane: Lane | None) -> list[Chunk]:
        """Take the chunk that has waited longest off its queue; empty if none is in memory."""
        return drop_oldest(self.holdings, lane)

    def oldest(self, lane: Lane) -> float | None:
        """When the oldest event that waits was received, wall-clock seconds; None if
        nothing waits.
        """
        holding = self.holdings.get(lane)
        if holding is None:
            return None
        times = [holding.runs[0].received_at] if holding.runs else []
        if holding.queue.oldest is not None:
            times.append(holding.queue.oldest)
        return min(times, default=None)

    def count(self, lane: Lane) -> int:
        """Events of the lane that are held, in flight or waiting."""
        holding = self.holdings.get(lane)
        return holding.events if holding else 0

    def tally(self, lane: Lane | None, source: str, reason: DropCause, count: int) -> None:
        """Record in the log's books that events were received and dropped
        without being in the buffer.
        """
        self.commits.tally(lane, source, reason, count)

    def statistics(self) -> DiskStatistics:
        """Figures for metrics, health and tests."""
        files = len(self.log.in_use) + len(self.log.free)
        events = sum([holding.events for holding in self.holdings.values()])
        on_disk = files * self.log.size
        refusing = self.commits.refusing
        return DiskStatistics(
            self.used,
            self.max_bytes,
            events,
            on_disk,
            self.memory.used,
            refusing,
            self._quarantine.files,
            self.commits.files_full,
        )

    async def close(self) -> None:
        """Write everything, and a mark of a clean shutdown. Call it before the
        committer is closed.
        """
        await self.loader.close()
        if self._reading_again is not None:
            self._reading_again.cancel()
        self.commits.closing = True
        self._committer.request()
        await self._committer.settle()
        self.log.close()

    # Called by the commits

    def record_written(self, record: NewRecord) -> None:
        """A record is durable: its events can be taken, now or once they are loaded."""
        if record.placement is None:
            raise AssertionError("a record that wasn't placed can't be kept")
        segment, _, length = record.placement
        segment.live += length
        self.segments[segment.generation] = segment
        holding = self.holdings[record.lane]
        holding.events += record.uncounted
        counts_for = cost(record.size, record.count)
        self.memory.used -= counts_for
        memory = record.size + CHUNK_OVERHEAD + EVENT_OVERHEAD * record.count
        if self._fits_in_memory(holding, memory) or record.ack is not None:
            self._keep_in_memory(
                record,
                holding,
                StoredRecord(segment, record.sequence, 0, record.count, length, full=True),
            )
        else:
            self._leave_on_disk(record, holding, counts_for, record.placement)

    def _fits_in_memory(self, holding: DiskHolding, memory: int) -> bool:
        """Whether a new record stays in memory. Behind others on disk it does only where no order
        is kept, and with room to spare.
        """
        share = self.memory.share()
        if not holding.runs:
            return holding.in_memory + memory <= share
        return not holding.ordered and holding.in_memory + memory <= (
            share * 3 // 4 if holding.spilling else share
        )

    def _keep_in_memory(
        self, record: NewRecord, holding: DiskHolding, stored: StoredRecord
    ) -> None:
        data = record.data[0] if len(record.data) == 1 else b"".join(record.data)
        chunk = StoredChunk(
            record.lane,
            data,
            record.count,
            record.ids,
            record.received_at,
            record.source,
            record.ack,
            record=stored,
            first=0,
        )
        holding.queue.append(chunk)
        holding.spilling = False
        self._take_memory(holding, chunk.cost)

    def _leave_on_disk(
        self, record: NewRecord, holding: DiskHolding, counts_for: int, placement: Placement
    ) -> None:
        run = holding.runs[-1] if holding.runs else None
        generation = placement.segment.generation
        begin = placement.offset
        end = placement.offset + placement.length
        if run is None or not holding.spilling or run.generation != generation:
            holding.runs.append(
                BacklogRun(
                    generation,
                    begin,
                    end,
                    record.sequence,
                    record.sequence,
                    record.count,
                    counts_for,
                    record.received_at,
                )
            )
        else:
            run.end = end
            run.last = record.sequence
            run.events += record.count
            run.bytes += counts_for
        holding.spilling = True

    def offer_rejected(self, offer: Offer) -> None:
        """An offer is rejected: release its room."""
        chunks, _, counts_for = offer
        self.used -= counts_for
        self.memory.used -= counts_for
        for chunk in chunks:
            _count(self.holdings[chunk.lane], -self.cost(chunk))
            self._forget_if_empty(chunk.lane)

    def group_ended(self) -> None:
        """A group ended: new events can be taken; free unused segments, or compact one."""
        self.on_arrival()
        for segment in self.log.release(keep=self.commits.held_back):
            self.segments.pop(segment.generation, None)
        if self.commits.closing:
            return
        if surplus := self.log.surplus():
            self.loader.run(partial(_remove, surplus), _nothing)
        if not self.commits.moving:
            self._compaction.begin()

    # Loading

    def _load(self, lane: Lane, holding: DiskHolding) -> None:
        run = holding.runs[0]
        segment = self.segments[run.generation]
        room = self.memory.share() // 2 - holding.in_memory
        if segment.busy or self.commits.closing or (room <= 0 and holding.in_memory):
            return
        holding.loading = True
        ids = self._ordering_of(lane) is Ordering.PER_DISTINCT_ID
        self.loader.load(
            segment, lane, run, room=room, ordered=ids, done=partial(self._loaded, lane, run)
        )

    def _loaded(
        self, lane: Lane, run: BacklogRun, stretch: LoadedStretch | None, error: Exception | None
    ) -> None:
        """The start of the lane's first run was read: its events are in memory. Or it can't be
        read now.
        """
        holding = self.holdings[lane]
        holding.loading = False
        if stretch is None:
            if error is not None:
                self.read_failed(error)
            return
        self._unreadable = ""
        segment = self.segments[run.generation]
        for record in stretch.records:
            stored = StoredRecord(
                segment,
                record.sequence,
                record.first,
                record.count,
                record.length,
                full=record.full,
            )
            chunk = StoredChunk(
                lane,
                record.data,
                record.count,
                record.ids,
                record.received_at,
                record.source,
                None,
                record=stored,
                first=record.first,
            )
            holding.queue.append(chunk)
            self._take_memory(holding, chunk.cost)
            run.events -= record.count
            run.bytes -= self.cost(chunk)
        for damage in stretch.damages:
            # until compaction the damaged bytes count as live
            self._quarantine.copy(segment.path, segment.generation, damage)
        # other pieces of the last record may follow
        run.start = stretch.end
        run.first = max(run.first, stretch.last)
        if stretch.records:
            run.received_at = stretch.records[-1].received_at
        if run.start >= run.end:
            holding.runs.popleft()
            self.close_run(lane, holding, run)
        self.on_arrival()

    def close_run(self, lane: Lane, holding: DiskHolding, run: BacklogRun) -> None:
        """All of a run was read. Its remaining figures are of unreadable
        events, or an estimate's error.
        """
        self.used -= run.bytes
        _count(holding, -run.bytes)
        if run.events:
            _log.error(
                "events on disk are damaged; they count as dropped",
                lane=lane_label(lane),
                events=run.events,
            )
            holding.events -= run.events
            self.commits.drop_damaged(lane, run.events)
            self.on_damaged(lane, run.events)
        self._forget_if_empty(lane)

    def read_failed(self, error: Exception) -> None:
        """Log it, once for each reason, and try again in a second."""
        why = error_text(error)
        if why != self._unreadable:
            unexpected = not isinstance(error, OSError)
            _log.error(
                "events on disk can't be read now; reading is tried again each second",
                why=why,
                exc_info=unexpected,
            )
        self._unreadable = why
        if self._reading_again is not None:
            self._reading_again.cancel()
        self._reading_again = self._clock.call_later(RETRY_SECONDS, self.on_arrival)

    # Called by the compaction

    @property
    def closing(self) -> bool:
        """Whether nothing more is written after the next group."""
        return self.commits.closing

    def copy_forward(self, segment: Segment, pieces: list[MovedPiece]) -> None:
        """Write what is left of a segment again, with the next group."""
        self.commits.move(segment, pieces)

    def moved(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        """What was left of a segment is durable elsewhere."""
        self._compaction.moved(segment, moved)

    def not_moved(self, segment: Segment) -> None:
        """There is no room for what is left of a segment."""
        self._compaction.not_moved(segment)

    # Accounts

    def _take_memory(self, holding: DiskHolding, size: int) -> None:
        holding.in_memory += size
        self.memory.used += size

    def _forget_if_empty(self, lane: Lane) -> None:
        holding = self.holdings.get(lane)
        if holding is not None and not holding.events and not holding.bytes:
            holding.move(None)
            del self.holdings[lane]


def _count(holding: DiskHolding, size: int) -> None:
    holding.bytes += size
    if holding.pool is not None:
        holding.pool.bytes += size


def _remove(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.remove()
