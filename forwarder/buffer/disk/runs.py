"""Runs: stretches of a segment that hold a lane's unsettled records in order, so that a backlog needs no memory for each record."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from forwarder.buffer.disk.reading import Ranges, remaining
from forwarder.buffer.disk.scanning import SegmentScan

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


def unsettled(scan: SegmentScan, at: int) -> tuple[int, int]:
    """Record number `at` of a segment: its unsettled events, and about what they count for."""
    sequence, count, size = scan.sequences[at], scan.counts[at], scan.bodies[at]
    if sequence in scan.holes:
        left = sum([events for _, events in wanted_of(sequence, scan.firsts[at], count, scan.holes)])
        size, count = size * left // count, left
    return count, cost(size, count) if count else 0


@dataclass(slots=True)
class Run:
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


class LaneRuns:
    """The runs of one lane while they are made, segment by segment."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._moved = False

    def add(self, scan: SegmentScan, at: int, events: int, size: int) -> None:
        """Record number `at` of the scan has unsettled events."""
        sequence, moved = scan.sequences[at], bool(scan.moved[at])
        offset = scan.offsets[at]
        end = offset + scan.lengths[at]
        run = self.runs[-1] if self.runs else None
        if run is not None and any(run.end <= broken < offset for broken in scan.broken):
            run = None  # what is damaged is never read again
        if run is None or run.generation != scan.header.generation or moved != self._moved or sequence < run.last or offset < run.end:
            self.runs.append(Run(scan.header.generation, offset, end, sequence, sequence, events, size, scan.times[at]))
            self._moved = moved
            return
        run.end, run.last = end, sequence
        run.events += events
        run.bytes += size

    @property
    def ordered(self) -> list[Run]:
        """The runs in the order of their sequences."""
        return sorted(self.runs, key=lambda run: run.first)

    @property
    def interleaved(self) -> bool:
        """Whether a run has sequences that belong between those of another."""
        runs = self.ordered
        return any(one.last > other.first for one, other in itertools.pairwise(runs))
