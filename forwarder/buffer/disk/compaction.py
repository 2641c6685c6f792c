"""Compaction of the log in use: which segment, when, and what becomes of the buffer's accounts. `moving.py` does the reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from forwarder.buffer.disk.aside import Aside
from forwarder.buffer.disk.commits import Commits
from forwarder.buffer.disk.loading import Loader
from forwarder.buffer.disk.log import RESERVE, Log, Placement
from forwarder.buffer.disk.moving import Cycle, MovedPiece, Plan, moved_runs, read_pieces, unsettled_of
from forwarder.buffer.disk.reading import Damage
from forwarder.buffer.disk.runs import Run
from forwarder.buffer.disk.segment import Segment
from forwarder.buffer.disk.stored import DiskHolding
from forwarder.core.event import Lane
from forwarder.storage import failpoints

_log = structlog.get_logger()


class Buffer(Protocol):
    """Whose log is compacted."""

    log: Log
    commits: Commits
    loader: Loader
    holdings: dict[Lane, DiskHolding]
    segments: dict[int, Segment]

    def not_read(self, error: Exception) -> None:
        """The disk can't be read now."""

    def close_run(self, lane: Lane, holding: DiskHolding, run: Run) -> None:
        """All of a run was read; what is left of its figures couldn't be."""


class Compaction:
    """Copies the oldest segment's rest forward, one segment at a time."""

    def __init__(self, buffer: Buffer, aside: Aside) -> None:
        self._buffer = buffer
        self._aside = aside
        self._cycle = Cycle()

    def settled(self, length: int) -> None:
        """A record of so many bytes was settled."""
        self._cycle.settled += length

    def begin(self) -> None:
        """Begin with the oldest segment, if it is time to."""
        log = self._buffer.log
        in_use = log.in_use
        if not in_use or in_use[0] is log.tail or not self._cycle.is_due(in_use, available=log.available(), reserve=RESERVE):
            return
        segment = in_use[0]
        segment.busy = True
        runs = {
            lane: found
            for lane, holding in self._buffer.holdings.items()
            if (found := [run for run in holding.runs if run.generation == segment.generation])
        }
        plan = Plan(segment, unsettled_of(segment), runs, segment.holes)
        self._buffer.loader.run(partial(read_pieces, plan), partial(self._read, segment))

    def _read(self, segment: Segment, result: tuple[list[MovedPiece], list[Damage]] | None, error: Exception | None) -> None:
        if result is None or self._buffer.commits.closing:
            self.not_moved(segment)
            if error is not None:
                self._buffer.not_read(error)
            return
        pieces, damages = result
        for damage in damages:
            self._aside.keep(segment.path, segment.generation, damage)
        self._buffer.commits.move(segment, sorted(pieces, key=lambda piece: (not piece.at_hand, piece.lane)))

    def moved(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        """What was left of a segment is durable elsewhere: the segment holds nothing any more."""
        if failpoints.ARMED:
            failpoints.hit("compaction.moved")
        for _, placement in moved:
            self._buffer.segments[placement.segment.generation] = placement.segment
        self._move_stored(segment, [(piece, placement) for piece, placement in moved if piece.at_hand])
        self._move_runs(segment, [(piece, placement) for piece, placement in moved if not piece.at_hand])
        for _, placement in moved:
            placement.segment.dead_in = max(placement.segment.dead_in, segment.dead_in)
        segment.live = 0
        segment.dead_in = self._buffer.log.groups
        segment.busy = False

    def not_moved(self, segment: Segment) -> None:
        """There is no room for what is left of a segment: it stays there."""
        segment.busy = False
        self._cycle.had_no_room(self._buffer.log.available())

    def _move_stored(self, segment: Segment, moved: Sequence[tuple[MovedPiece, Placement]]) -> None:
        places: dict[int, tuple[Segment, int]] = {}
        for piece, placement in moved:
            places[piece.sequence] = placement.segment, places.get(piece.sequence, (segment, 0))[1] + placement.length
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
            before, holding.runs = holding.runs, deque()
            holding.spilling = False
            for run in before:
                if run.generation == segment.generation:
                    new = moved_runs(run, pieces.get(lane, []))
                    holding.runs.extend(new)
                    run.events -= sum([each.events for each in new])
                    run.bytes -= sum([each.bytes for each in new])
                    self._buffer.close_run(lane, holding, run)
                else:
                    holding.runs.append(run)
