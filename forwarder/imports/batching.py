"""When which batch of an import is sent: in the order of the source, one chunk a batch, at the pace of the job, and no two days in one.

Batches are cut by day before they arrive here (`sources.imports.day_batches`), so nothing is joined. One may overtake another only if they
share no distinct_id: delivery names the ids that are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.ack import Ack
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Batch, Chunk, Lane, Where
from forwarder.core.lanes import LaneQueue
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.pacing import ImportPace
from forwarder.sources.imports.times import SECOND, when
from forwarder.wire.envelope import cut_at, cut_by_size, envelope_size

SOURCE = "import"
Settled = Callable[[Sequence[FinishedEvent], str], None]
"""Told of events of one day that are settled, and their fate."""
Finds = Callable[[FinishedEvent], Where]
"""Where an event is in the source."""
LOOK_AHEAD: Final = 16
"""How many chunks that may not go yet are searched past for another."""


class ImportChunk(Chunk):
    """Neighbouring events of one batch, all of one UTC day. A part of it is another one."""

    __slots__ = ("finds", "finished", "on_settled")

    def __init__(  # noqa: PLR0917 - as `Chunk`
        self,
        lane: Lane,
        data: bytes,
        finished: Sequence[FinishedEvent],
        ids: frozenset[str],
        received_at: float,
        on_settled: Settled,
        finds: Finds,
    ) -> None:
        super().__init__(lane, data, len(finished), ids, received_at, SOURCE, _ChunkAck(finished, on_settled))
        self.finished = finished
        self.on_settled = on_settled
        self.finds = finds

    @property
    def day(self) -> int:
        """The UTC day of its events, counted from 1970."""
        return self.finished[0].day

    def part(self, data: bytes, count: int, ids: frozenset[str], at: int) -> ImportChunk:
        """See `Chunk.part`."""
        return ImportChunk(self.lane, data, self.finished[at : at + count], ids, self.received_at, self.on_settled, self.finds)

    def where(self, index: int) -> Where:
        """See `Chunk.where`."""
        return self.finds(self.finished[index])


class _ChunkAck(Ack):
    """Tells of a chunk's events when they are settled, all at once. Nobody waits for it in another way."""

    __slots__ = ("_finished", "_on_settled")

    def __init__(self, finished: Sequence[FinishedEvent], on_settled: Settled) -> None:
        super().__init__(len(finished), _ignore)
        self._finished, self._on_settled = finished, on_settled

    def settle(self, events: int, data: bytes = b"", fate: str = "") -> None:
        """See `Ack.settle`."""
        super().settle(events, data, fate)
        self._on_settled(self._finished, fate)


def _ignore(_error: object) -> None:
    """What becomes of all of them together does not matter."""


class DayBatcher:
    """See `delivery.ports.Batcher`. `one_day_at_a_time`: the receiver may join batches, so no two days are in flight at once."""

    def __init__(self, buffer: MemoryBuffer, pace: ImportPace, clock: Clock, *, max_body: int, one_day_at_a_time: bool = False) -> None:
        self._buffer = buffer
        self._pace = pace
        self._clock = clock
        self._max_body = max_body
        self._alone = one_day_at_a_time
        self._day: int | None = None
        """Of what is in flight."""
        self.under_way = 0
        """Events that are in flight."""
        self._stuck = False
        """Whether nothing can be sent before something in flight is settled."""
        self._booked = 0
        """How many events the pace was asked for that haven't gone."""
        self._going_from = 0.0
        """From when these may go, monotonic."""
        self._held = False
        self._failed: Callable[[Exception], None] | None = None
        self._asked = 0.0, 0.0
        """The wall-clock time of the last question, and the monotonic time then."""

    def lanes(self) -> Sequence[Lane]:
        """The one lane, if something waits."""
        return list(self._buffer.waiting_lanes())

    def due_at(self, lane: Lane, now: float) -> float | None:
        """When the next batch may go, wall-clock seconds; None if nothing is pending, or only behind what is in flight."""
        queue = self._buffer.queue(lane)
        if not queue or self._held or self._stuck or self._is_barred(next(iter(queue))):
            return None
        try:
            wait = self._wait(next(iter(queue)).count, now)
        except OSError as error:
            self._cannot_pace(error)
            return None
        return now + wait

    def next(
        self,
        lane: Lane,
        now: float,
        *,
        blocked: AbstractSet[str],
        max_body: int | None,
        flush: bool,  # noqa: ARG002 - an import's batches wait for nothing but their time
        max_events: int | None = None,
    ) -> Batch | None:
        """See `delivery.ports.Batcher`."""
        queue = self._buffer.queue(lane)
        due = self.due_at(lane, now)
        if due is None or due > now:
            return None
        limit = min(self._max_body, max_body or self._max_body) - envelope_size(lane, ())
        chunk = self._first(queue, blocked, limit, max_events)
        if chunk is None:
            self._stuck = True
            return None
        self._goes(chunk)
        return Batch(lane, (chunk,), envelope_size(lane, (chunk,)))

    def settled(self, events: int) -> None:
        """So many events that were in flight are settled."""
        self.under_way -= events
        self._stuck = False

    def hold(self) -> None:
        """From now on nothing goes that hasn't gone."""
        self._held = True

    def on_failure(self, failed: Callable[[Exception], None]) -> None:
        """Called when no batch can be sent any more."""
        self._failed = failed

    def rests(self) -> str:
        """Why nothing is sent now though something could be; empty if nothing keeps it."""
        now, wall = self._clock.monotonic(), self._clock.now()
        rest = self._pace.resting_until(now, wall) - now
        return f"nothing is sent until {when(int(wall + rest) * SECOND)}: quiet hours, or the service asked for it" if rest > 0 else ""

    def _goes(self, chunk: Chunk) -> None:
        self._booked -= chunk.count  # below zero, if another one goes than the first: it is made up for by the next
        self.under_way += chunk.count
        if isinstance(chunk, ImportChunk):
            self._day = chunk.day

    def _is_barred(self, chunk: Chunk) -> bool:
        return self._alone and self.under_way > 0 and isinstance(chunk, ImportChunk) and chunk.day != self._day

    def _wait(self, events: int, wall: float) -> float:
        """Seconds until the pace lets so many events go. Raises OSError if the line can't be used in which all processes stand."""
        now = self._monotonic(wall)
        rest = self._pace.resting_until(now, wall) - now
        if rest > 0:
            return rest
        if self._booked < events:
            self._going_from = self._pace.book(events - self._booked, now)
            self._booked = events
        return max(0.0, self._going_from - now)

    def _cannot_pace(self, error: OSError) -> None:
        if self._failed is not None:
            self._failed(
                ConfigurationError(
                    f"{error.filename or 'the file of the rate'} can't be used: {error.strerror or error}",
                    hint="Processes that import to the same project share their rate by this small file: make it writable, or its folder.",
                )
            )

    def _monotonic(self, wall: float) -> float:
        """The time of a question by the pace's clock, the same for all questions of one time: if a batch became due between one that asks
        for it and one that asks when it is due, neither would wait for it."""
        if self._asked[0] != wall:
            self._asked = wall, self._clock.monotonic()
        return self._asked[1]

    def _first(self, queue: LaneQueue, blocked: Collection[str], limit: int, max_events: int | None) -> Chunk | None:
        """Take the first chunk off the queue that may go, or as much of it as fits a body."""
        passed: list[Chunk] = []
        held: set[str] = set(blocked)
        found: Chunk | None = None
        while queue and len(passed) < LOOK_AHEAD:
            chunk = queue.popleft()
            if self._is_barred(chunk):
                passed.append(chunk)
                break
            if held.isdisjoint(chunk.ids):
                found, *rest = self._fitting(chunk, limit, max_events)
                passed += rest
                break
            held |= chunk.ids
            passed.append(chunk)
        queue.put_back(passed)
        return found

    def _fitting(self, chunk: Chunk, limit: int, max_events: int | None) -> Sequence[Chunk]:
        """The chunk in pieces that each fit a body; `max_events` is for the first of them alone."""
        if max_events is not None and chunk.count > max_events:
            pieces: Sequence[Chunk] = cut_at(chunk, max_events)
        elif len(chunk.data) > limit:
            pieces = cut_by_size(chunk, limit, chunk.count)
        else:
            return [chunk]
        if len(pieces) > 1:
            self._buffer.replace(chunk, pieces)
        return pieces if len(pieces) > 1 else [chunk]
