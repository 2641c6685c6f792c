"""Compaction: copies the unsettled rest of the oldest segment forward, so that an old event can't
pin a segment for ever.

A thread reads the segment and cuts out its unsettled events; on the loop, those settled meanwhile
are left out, and the rest is written with the next group, each piece with the generation of the
segment that it comes from. Then the segment holds nothing more.

Invariant: while a segment is `busy`, nothing begins to read it, and it isn't freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import structlog

from forwarder.buffer.disk.backlog import BacklogRun, DiskHolding, Loader, cost, wanted_of
from forwarder.buffer.disk.format import (
    HISTORICAL,
    SEGMENT_HEADER_SIZE,
    RecordKind,
    decode_meta,
    lane_of,
)
from forwarder.buffer.disk.log import RESERVE, Log, Placement
from forwarder.buffer.disk.quarantine import Quarantine
from forwarder.buffer.disk.reading import (
    Damage,
    FoundRecord,
    Ranges,
    overlap,
    records,
    remaining,
    slices,
)
from forwarder.buffer.disk.segment import Segment, read_at
from forwarder.core.event import Lane
from forwarder.storage import failpoints

SLACK: Final = 2
"""Segments that may be in use beyond twice what is live, before the oldest is compacted."""

_log = structlog.get_logger()


class CompactedBuffer(Protocol):
    """The part of the disk buffer that compaction needs."""

    log: Log
    loader: Loader
    holdings: dict[Lane, DiskHolding]
    segments: dict[int, Segment]

    @property
    def closing(self) -> bool:
        """Whether nothing more may be written."""

    def copy_forward(self, segment: Segment, pieces: list[MovedPiece]) -> None:
        """Write what is left of a segment again, with the next group."""

    def read_failed(self, error: Exception) -> None:
        """The disk can't be read now."""

    def close_run(self, lane: Lane, holding: DiskHolding, run: BacklogRun) -> None:
        """All of a run was read; what is left of its figures couldn't be."""


class Compaction:
    """Compacts one segment at a time, the oldest one."""

    def __init__(self, buffer: CompactedBuffer, quarantine: Quarantine) -> None:
        self._buffer = buffer
        self._quarantine = quarantine
        self._cycle = CompactionCycle()

    def settled(self, length: int) -> None:
        """A record of so many bytes was settled."""
        self._cycle.settled += length

    def begin(self) -> None:
        """Begin with the oldest segment, if compaction is due."""
        log = self._buffer.log
        in_use = log.in_use
        if (
            not in_use
            or in_use[0] is log.tail
            or not self._cycle.is_due(in_use, available=log.available(), reserve=RESERVE)
        ):
            return
        segment = in_use[0]
        segment.busy = True
        runs = {
            lane: found
            for lane, holding in self._buffer.holdings.items()
            if (found := [run for run in holding.runs if run.generation == segment.generation])
        }
        plan = CompactionPlan(segment, unsettled_of(segment), runs, segment.holes)
        self._buffer.loader.run(partial(read_pieces, plan), partial(self._read, segment))

    def _read(
        self,
        segment: Segment,
        result: tuple[list[MovedPiece], list[Damage]] | None,
        error: Exception | None,
    ) -> None:
        if result is None or self._buffer.closing:
            self.not_moved(segment)
            if error is not None:
                self._buffer.read_failed(error)
            return
        pieces, damages = result
        for damage in damages:
            self._quarantine.copy(segment.path, segment.generation, damage)
        self._buffer.copy_forward(
            segment, sorted(pieces, key=lambda piece: (not piece.in_memory, piece.lane))
        )

    def moved(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        """The rest of a segment is durable elsewhere: the segment holds nothing any more."""
        if failpoints.ARMED:
            failpoints.hit("compaction.moved")
        for _, placement in moved:
            self._buffer.segments[placement.segment.generation] = placement.segment
        self._move_stored(
            segment, [(piece, placement) for piece, placement in moved if piece.in_memory]
        )
        self._move_runs(
            segment, [(piece, placement) for piece, placement in moved if not piece.in_memory]
        )
        for _, placement in moved:
            placement.segment.dead_in = max(placement.segment.dead_in, segment.dead_in)
        segment.live = 0
        segment.dead_in = self._buffer.log.groups
        segment.busy = False

    def not_moved(self, segment: Segment) -> None:
        """There is no room for the rest of a segment: it stays where it is."""
        segment.busy = False
        self._cycle.had_no_room(self._buffer.log.available())

    def _move_stored(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        places: dict[int, tuple[Segment, int]] = {}
        for piece, placement in moved:
            places[piece.sequence] = (
                placement.segment,
                places.get(piece.sequence, (segment, 0))[1] + placement.length,
            )
        for stored in list(segment.stored.values()):
            target, length = places[stored.sequence]
            places[stored.sequence] = target, 0  # a second part of the same record adds nothing
            stored.move(target, length)

    def _move_runs(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        pieces: dict[Lane, list[tuple[MovedPiece, Placement]]] = {}
        for piece, placement in moved:
            placement.segment.live += placement.length
            pieces.setdefault(piece.lane, []).append((piece, placement))
        for lane, holding in list(self._buffer.holdings.items()):
            if not any(run.generation == segment.generation for run in holding.runs):
                continue
            before = holding.runs
            holding.runs = deque()
            holding.spilling = False
            for run in before:
                if run.generation == segment.generation:
                    new = moved_runs(run, pieces.get(lane, []))
                    holding.runs.extend(new)
                    run.events -= sum([part.events for part in new])
                    run.bytes -= sum([part.bytes for part in new])
                    self._buffer.close_run(lane, holding, run)
                else:
                    holding.runs.append(run)


@dataclass(frozen=True, slots=True)
class MovedPiece:
    """Neighbouring events of a record that move to another segment."""

    segment: Segment
    """Where they are."""
    lane: Lane
    meta: bytes
    flags: int
    sequence: int
    first: int
    count: int
    data: bytes
    received_at: float
    origin: int
    in_memory: bool
    """Whether they are in memory too; else they are in a run."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is unsettled in a segment: of its records in memory by sequence, and its
    runs by lane.
    """

    segment: Segment
    stored: dict[int, Ranges]
    runs: dict[Lane, list[BacklogRun]]
    holes: dict[int, Ranges | None]


class CompactionCycle:
    """Whether the oldest segment should be compacted.

    It is due when the log is much larger than what is live in it; and when few files are left
    while the others waste more than one of them. Copying doesn't regain what large records waste
    at the ends of segments: so all segments are copied once, and then none before half a segment's
    worth of events was settled.
    """

    def __init__(self) -> None:
        self.settled = 0
        """Bytes of records that were settled, ever."""
        self._stuck: tuple[int, int] | None = None
        """The state in which there was no room for the copies: no new attempt before it changes."""
        self._until = 0
        """Segments of earlier generations are to be copied in this cycle."""
        self._settled_then = 0

    def is_due(self, segments: Sequence[Segment], *, available: int, reserve: int) -> bool:
        """`segments` are those in use, oldest first, the tail last; `available` those that are
        free or may be made.
        """
        oldest = segments[0] if len(segments) > 1 else None
        if (
            oldest is None
            or oldest.busy
            or oldest.readers
            or self._stuck == (available, self.settled)
        ):
            return False
        capacity = oldest.capacity
        live = sum([segment.live for segment in segments])
        if len(segments) > SLACK + 1 + 2 * -(-live // capacity):
            return True
        wasted = (len(segments) - 1) * capacity - live + segments[-1].live
        return (
            available <= reserve + 2
            and 4 * wasted >= 5 * capacity
            and self._continues(oldest, segments[-1], capacity)
        )

    def had_no_room(self, available: int) -> None:
        """The copies didn't fit into the remaining segments."""
        self._stuck = available, self.settled

    def _continues(self, oldest: Segment, tail: Segment, capacity: int) -> bool:
        if oldest.generation < self._until:
            return True
        if self._until and self.settled - self._settled_then < capacity // 2:
            return False
        self._until = tail.generation
        self._settled_then = self.settled
        return True


def unsettled_of(segment: Segment) -> dict[int, Ranges]:
    """The unsettled events of the records in memory, by sequence."""
    found: dict[int, Ranges] = {}
    for record in segment.stored.values():
        found.setdefault(record.sequence, []).extend(
            remaining(record.first, record.count, record.gone or [])
        )
    return found


def still_unsettled(pieces: Sequence[MovedPiece]) -> list[MovedPiece]:
    """The pieces without what was settled since they were read."""
    if not pieces:
        return []
    unsettled = unsettled_of(pieces[0].segment)
    parts: list[MovedPiece] = []
    for piece in pieces:
        if piece.in_memory:
            parts += _cut(piece, unsettled.get(piece.sequence, []))
        else:
            parts.append(piece)
    return parts


def _cut(piece: MovedPiece, unsettled: Ranges) -> list[MovedPiece]:
    wanted = overlap(piece.first, piece.count, unsettled)
    if wanted == [(piece.first, piece.count)]:
        return [piece]
    bodies = slices(piece.data, piece.first, piece.count, wanted)
    return [
        replace(piece, first=first, count=count, data=data)
        for (first, count), data in zip(wanted, bodies, strict=True)
    ]


def read_pieces(plan: CompactionPlan) -> tuple[list[MovedPiece], list[Damage]]:
    """The unsettled events of a segment, a lane's in order, and what can't be read any more. For a
    thread. Raises `OSError`.
    """
    segment = plan.segment
    pieces: list[MovedPiece] = []
    damages: list[Damage] = []
    for item in records(
        read_at(segment.fd, segment.end, 0), segment.generation, start=SEGMENT_HEADER_SIZE
    ):
        if isinstance(item, Damage):
            damages.append(item)
        elif item.header.kind == RecordKind.DATA:
            pieces += _pieces(plan, item)
    if failpoints.ARMED:
        failpoints.hit("compaction.read")
    return pieces, damages


def _pieces(plan: CompactionPlan, item: FoundRecord) -> list[MovedPiece]:
    header = item.header
    _, api_key = decode_meta(item.meta)
    lane = lane_of(api_key, header.flags)
    runs = plan.runs.get(lane, ())
    in_memory = not any(
        run.start <= item.offset < run.end and run.first <= header.sequence <= run.last
        for run in runs
    )
    if in_memory:
        wanted = overlap(header.first, header.events, plan.stored.get(header.sequence, []))
    else:
        wanted = wanted_of(header.sequence, header.first, header.events, plan.holes)
    bodies = slices(bytes(item.body), header.first, header.events, wanted)
    return [
        MovedPiece(
            plan.segment,
            lane,
            item.meta,
            header.flags & HISTORICAL,
            header.sequence,
            first,
            count,
            body,
            header.received_at,
            header.origin,
            in_memory,
        )
        for (first, count), body in zip(wanted, bodies, strict=True)
    ]


def moved_runs(run: BacklogRun, moved: Sequence[tuple[MovedPiece, Placement]]) -> list[BacklogRun]:
    """The runs that a copied run becomes: one for each segment that its records are in now."""
    runs: list[BacklogRun] = []
    for piece, (segment, offset, length) in moved:
        if not run.first <= piece.sequence <= run.last:
            continue
        if not runs or runs[-1].generation != segment.generation:
            runs.append(
                BacklogRun(
                    segment.generation,
                    offset,
                    offset,
                    piece.sequence,
                    piece.sequence,
                    0,
                    0,
                    piece.received_at,
                )
            )
        new = runs[-1]
        new.end = offset + length
        new.last = piece.sequence
        new.events += piece.count
        new.bytes += cost(len(piece.data), piece.count)
    return runs
