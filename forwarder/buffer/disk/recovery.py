"""Reads a log at the start, or beside a running daemon: what is in it, what is unsettled, and what
is damaged. Changes nothing.

Two passes: the first reads every record and collects the marks, the second builds **runs** of the
unsettled ones: stretches of a segment that hold a lane's records in the order of their sequences.
So nothing is kept for each record afterwards.

Invariants: of a record and its copies one is used: the copies if together they have all that is
unsettled of it, else the record, as far as it can be read. No sequence that any record or mark
names is used again.
"""

from __future__ import annotations

import itertools
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from forwarder.buffer.disk.backlog import BacklogRun, cost, wanted_of
from forwarder.buffer.disk.format import ALL, RecordKind, decode_meta, lane_of
from forwarder.buffer.disk.log_books import LogBooks
from forwarder.buffer.disk.reading import (
    Damage,
    FileProblem,
    FoundRecord,
    Ranges,
    SegmentScan,
    events_of,
    find_segments,
    overlap,
    read_segment,
    records,
    remaining,
    slices,
)
from forwarder.core.event import Lane


@dataclass(frozen=True, slots=True)
class UnsettledRecord:
    """Unsettled events of one record, for commands that read a buffer."""

    lane: Lane
    sequence: int
    first: int
    events: list[bytes]
    received_at: float
    source: str


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was read."""

    directory: Path
    segments: list[SegmentScan] = field(default_factory=list)
    """Those that are needed, in order."""
    free: list[SegmentScan] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    """Files whose creation was not finished."""
    runs: dict[Lane, list[BacklogRun]] = field(default_factory=dict)
    books: LogBooks = field(default_factory=LogBooks)
    problems: list[FileProblem] = field(default_factory=list)
    next_sequence: int = 1
    next_generation: int = 1
    given_up: list[tuple[int, int]] = field(default_factory=list)
    """Generations, from and to, that a failing disk left without an end, or without content."""
    void: dict[int, int] = field(default_factory=dict)
    """The offset in a generation from which on a failed group may have written: its content was
    rejected, or written again elsewhere.
    """
    origins: set[int] = field(default_factory=set)
    """The dead letters that were replayed by records that are still here."""
    closed: bool = False
    """Whether the last process shut down cleanly."""
    lanes: dict[Lane, int] = field(default_factory=dict)
    """The lanes that the scans number."""
    settled: set[int] = field(default_factory=set)
    """The sequences of records that are settled as a whole."""
    parts: dict[int, Ranges] = field(default_factory=dict)
    """What is settled of others."""
    dead_lettered: list[tuple[Lane, int, int]] = field(default_factory=list)
    """Events by (lane, sequence, index) that are dead letters, and not marked as settled."""
    copies: dict[tuple[int, int], int] = field(default_factory=dict)
    """Copied records by (sequence, generation of the original): the generation of the last copy.
    There are more if writing one failed.
    """
    homes: dict[int, int] = field(default_factory=dict)
    """The generation in which a record is used, by its sequence, if there are copies of it."""

    def events(self, lane: Lane) -> int:
        """Unsettled events of a lane."""
        return sum(run.events for run in self.runs.get(lane, ()))

    def records(self) -> Iterator[UnsettledRecord]:
        """The unsettled events, in the order of each lane. Reads the files again.
        Raises `OSError`.
        """
        scans = {scan.header.generation: scan for scan in self.segments}
        for lane, runs in self.runs.items():
            for run in runs:
                yield from _records_of(scans[run.generation], lane, run)


def recover(directory: Path, dead_letters: Collection[tuple[int, int]] = ()) -> RecoveredLog:
    """Read the log in `directory` (the `log` folder of a worker). Raises `OSError` if a file can't
    be read at all.

    `dead_letters`: events, by sequence and index, that are dead letters: they are settled, even if
    a crash came before their marks.
    """
    recovered = RecoveredLog(directory)
    files = find_segments(directory)
    recovered.unfinished = files.unfinished
    recovered.problems = files.problems
    if files.used:
        recovered.next_generation = files.used[-1].header.generation + 1
        _read_all(recovered, files.used)
    recovered.free += files.unused
    _mark_dead_lettered(recovered, dead_letters)
    _choose_homes(recovered)
    _make_runs(recovered)
    return recovered


def _read_all(recovered: RecoveredLog, scans: list[SegmentScan]) -> None:
    """Find the last checkpoint, and read from its oldest generation on."""
    oldest = 0
    base = 0
    for scan in reversed(scans):
        checkpoint = _checkpoint(scan)
        if checkpoint is not None:
            oldest = checkpoint["oldest"]
            base = scan.header.generation
            recovered.given_up = [(first, last) for first, last in checkpoint.get("given_up", ())]
            recovered.void = dict(checkpoint.get("void", ()))
            break
    for scan in scans:
        if recovered.void.get(scan.header.generation) == 0:
            recovered.free.append(scan)
        elif scan.header.generation >= oldest:
            recovered.segments.append(scan)
        elif scan.garbled:  # its last use is unknown: only records of an earlier one are readable
            recovered.problems.append(
                FileProblem(
                    scan.path, "its header and its last records can't be read", whole_file=True
                )
            )
        else:
            recovered.free.append(scan)
    for scan in recovered.segments:
        _read_segment(recovered, scan, counts=scan.header.generation >= base)
    _check_ends(recovered, base)


def _check_ends(recovered: RecoveredLog, base: int) -> None:
    """Report segments before the last checkpoint that have no end or no next one, and weren't
    given up.
    """
    for scan, following in zip(recovered.segments, recovered.segments[1:], strict=False):
        generation = scan.header.generation
        next_one = following.header.generation
        known = [
            number
            for number in range(generation, next_one)
            if any(first <= number <= last for first, last in recovered.given_up)
        ]
        missing = next_one - generation - 1 - sum(number > generation for number in known)
        if missing and next_one <= base:
            recovered.problems.append(
                FileProblem(following.path, f"{missing} segments before it are missing")
            )
        if (
            not scan.complete
            and scan.end < scan.header.size
            and generation not in known
            and generation < base
        ):
            damage = Damage(scan.end, scan.header.size - scan.end, "the segment's last records")
            recovered.problems.append(FileProblem(scan.path, damage.what, damage))


def _checkpoint(scan: SegmentScan) -> dict[str, Any] | None:
    """The checkpoint at a segment's begin, if it can be read."""
    first = next(records(read_segment(scan), scan.header.generation), None)
    if not isinstance(first, FoundRecord) or first.header.kind != RecordKind.CHECKPOINT:
        return None
    plain: dict[str, Any] = msgspec.json.decode(first.body)
    return plain


def _read_segment(recovered: RecoveredLog, scan: SegmentScan, *, counts: bool) -> None:
    """Read a segment's records; `counts`: count them in the books too, for it isn't before the
    checkpoint that these start from.
    """
    recovered.closed = False
    data = read_segment(scan)
    void = recovered.void.get(scan.header.generation, len(data))
    for item in records(data, scan.header.generation):
        if item.offset >= void:
            scan.complete = True
            break
        if isinstance(item, Damage):
            _damaged(recovered, scan, item, counts=counts)
            continue
        scan.end = item.offset + item.header.length
        kind = item.header.kind
        if kind == RecordKind.DATA:
            _data(recovered, scan, item, counts=counts)
        elif kind == RecordKind.MARKS:
            _marks(recovered, item, counts=counts)
        elif kind == RecordKind.TALLY and counts:
            recovered.books.merge(LogBooks.of_plain(msgspec.json.decode(item.body)))
        elif kind == RecordKind.CHECKPOINT:
            plain = msgspec.json.decode(item.body)
            recovered.next_sequence = max(recovered.next_sequence, plain["next"])
            if counts:
                recovered.books = LogBooks.of_plain(plain["books"])
        recovered.closed = kind == RecordKind.CLOSED
        scan.complete |= kind == RecordKind.END
    scan.ended |= scan.complete
    if len(data) < scan.header.size:
        scan.end = scan.header.size


def _damaged(recovered: RecoveredLog, scan: SegmentScan, damage: Damage, *, counts: bool) -> None:
    """Report damage. The events of a whole header count as received, and are missing."""
    recovered.problems.append(FileProblem(scan.path, damage.what, damage))
    scan.end = max(scan.end, damage.offset + damage.size)
    scan.ended = True
    scan.broken.append(damage.offset)
    header = damage.header
    if header is None or header.kind != RecordKind.DATA:
        return
    recovered.next_sequence = max(recovered.next_sequence, header.sequence + 1)
    if counts and not header.moved_from and not header.origin:
        source, api_key = decode_meta(damage.meta)
        recovered.books.receive(lane_of(api_key, header.flags), source, header.events)


def _data(recovered: RecoveredLog, scan: SegmentScan, item: FoundRecord, *, counts: bool) -> None:
    header = item.header
    source, api_key = decode_meta(item.meta)
    lane = lane_of(api_key, header.flags)
    scan.add(item, recovered.lanes.setdefault(lane, len(recovered.lanes)))
    if header.sequence >= recovered.next_sequence:
        recovered.next_sequence = header.sequence + 1
    if header.moved_from:
        recovered.copies[header.sequence, header.moved_from] = scan.header.generation
    if header.origin:
        recovered.origins.add(header.origin)
    elif counts and not header.moved_from:
        recovered.books.receive(lane, source, header.events)


def _marks(recovered: RecoveredLog, item: FoundRecord, *, counts: bool) -> None:
    marks = array("Q", bytes(item.body))
    for sequence, place in zip(marks[::2], marks[1::2], strict=True):
        if place == ALL:
            recovered.settled.add(sequence)
        else:
            recovered.parts.setdefault(sequence, []).append((place >> 32, place & 0xFFFFFFFF))
    # a mark may be all that is left of a record: its sequence isn't used again
    recovered.next_sequence = max(recovered.next_sequence, max(marks[::2], default=0) + 1)
    if counts:
        fate, api_key = decode_meta(item.meta)
        recovered.books.settle(lane_of(api_key, item.header.flags), fate, item.header.events)


def _mark_dead_lettered(recovered: RecoveredLog, dead_letters: Collection[tuple[int, int]]) -> None:
    """Settle events that are dead letters."""
    by_sequence: defaultdict[int, list[int]] = defaultdict(list)
    for sequence, index in dead_letters:
        by_sequence[sequence].append(index)
        recovered.next_sequence = max(recovered.next_sequence, sequence + 1)
    lanes = list(recovered.lanes)
    for scan in recovered.segments if dead_letters else ():
        for at, sequence in enumerate(scan.sequences):
            if sequence not in by_sequence or sequence in recovered.settled:
                continue
            left = remaining(scan.firsts[at], scan.counts[at], recovered.parts.get(sequence, []))
            dead_lettered = [index for index in by_sequence[sequence] if overlap(index, 1, left)]
            recovered.parts.setdefault(sequence, []).extend([(index, 1) for index in dead_lettered])
            recovered.dead_lettered += [
                (lanes[scan.lanes[at]], sequence, index) for index in dead_lettered
            ]


def _choose_homes(recovered: RecoveredLog) -> None:
    """Of each record that was copied, find where it is used: in the last copy that has all that is
    unsettled of what it was copied from.

    A copy lacks something if the crash came while it was written, or if it is damaged.
    """
    held = _ranges(recovered.segments, {sequence for sequence, _ in recovered.copies})
    incomplete = set()
    for (sequence, original), generation in sorted(
        recovered.copies.items(), key=lambda item: item[0][1]
    ):
        if recovered.homes.get(sequence, original) != original:
            continue  # an earlier one is used
        gone = [*recovered.parts.get(sequence, []), *held[sequence, generation]]
        needed = held.get((sequence, original), []) if sequence not in recovered.settled else []
        lacking = any(remaining(first, count, gone) for first, count in needed)
        recovered.homes[sequence] = original if lacking else generation
        if lacking:
            incomplete.add(generation)
    for (
        scan
    ) in recovered.segments:  # the next copy of a record may not stand beside an incomplete one
        scan.ended |= scan.header.generation in incomplete


def _ranges(scans: list[SegmentScan], sequences: set[int]) -> dict[tuple[int, int], Ranges]:
    """The events that the records of these sequences hold, by sequence and generation."""
    held: defaultdict[tuple[int, int], Ranges] = defaultdict(list)
    for scan in scans if sequences else ():
        for at, sequence in enumerate(scan.sequences):
            if sequence in sequences:
                held[sequence, scan.header.generation].append((scan.firsts[at], scan.counts[at]))
    return held


def _make_runs(recovered: RecoveredLog) -> None:
    made: defaultdict[int, _LaneRuns] = defaultdict(_LaneRuns)
    for scan in recovered.segments:
        for at in range(len(scan.sequences)):
            _place(recovered, scan, at, made)
    lanes = list(recovered.lanes)
    for number, lane_runs in made.items():
        recovered.runs[lanes[number]] = (
            _untangled(recovered, number) if lane_runs.interleaved else lane_runs.ordered
        )


def _place(
    recovered: RecoveredLog, scan: SegmentScan, at: int, made: defaultdict[int, _LaneRuns]
) -> None:
    """Add a record to its lane's runs, or to the holes in them."""
    sequence = scan.sequences[at]
    if (
        sequence in recovered.settled
        or recovered.homes.get(sequence, scan.header.generation) != scan.header.generation
    ):
        scan.holes[sequence] = None
        return
    if sequence in recovered.parts:
        scan.holes[sequence] = recovered.parts[sequence]
    events, size = unsettled(scan, at)
    if events:
        scan.live += scan.lengths[at]
        made[scan.lanes[at]].add(scan, at, events, size)


def _untangled(recovered: RecoveredLog, number: int) -> list[BacklogRun]:
    """The runs of a lane record by record: compaction put some of them where others' sequences lie
    between theirs.
    """
    places = [
        (scan.sequences[at], scan.firsts[at], index, at)
        for index, scan in enumerate(recovered.segments)
        for at in range(len(scan.sequences))
        if scan.lanes[at] == number and unsettled(scan, at)[0]
    ]
    made = _LaneRuns()
    for _, _, index, at in sorted(places):
        scan = recovered.segments[index]
        made.add(scan, at, *unsettled(scan, at))
    return made.runs


def _records_of(scan: SegmentScan, lane: Lane, run: BacklogRun) -> Iterator[UnsettledRecord]:
    for item in records(read_segment(scan)[: run.end], run.generation, start=run.start):
        if isinstance(item, Damage) or item.header.kind != RecordKind.DATA:
            continue
        source, api_key = decode_meta(item.meta)
        header = item.header
        if lane_of(api_key, header.flags) != lane or not run.first <= header.sequence <= run.last:
            continue
        wanted = wanted_of(header.sequence, header.first, header.events, scan.holes)
        for (first, count), body in zip(
            wanted, slices(bytes(item.body), header.first, header.events, wanted), strict=True
        ):
            yield UnsettledRecord(
                lane, header.sequence, first, events_of(body, count), header.received_at, source
            )


def unsettled(scan: SegmentScan, at: int) -> tuple[int, int]:
    """The number of unsettled events of record number `at`, and about what they count for."""
    sequence = scan.sequences[at]
    count = scan.counts[at]
    size = scan.bodies[at]
    if sequence in scan.holes:
        left = sum(
            [events for _, events in wanted_of(sequence, scan.firsts[at], count, scan.holes)]
        )
        size = size * left // count
        count = left
    return count, cost(size, count) if count else 0


class _LaneRuns:
    """Builds the runs of one lane, segment by segment."""

    def __init__(self) -> None:
        self.runs: list[BacklogRun] = []
        self._moved = False

    def add(self, scan: SegmentScan, at: int, events: int, size: int) -> None:
        """Record number `at` of the scan has unsettled events."""
        sequence = scan.sequences[at]
        moved = bool(scan.moved[at])
        offset = scan.offsets[at]
        end = offset + scan.lengths[at]
        run = self.runs[-1] if self.runs else None
        if run is not None and any(run.end <= broken < offset for broken in scan.broken):
            run = None  # damage isn't read again
        if (
            run is None
            or run.generation != scan.header.generation
            or moved != self._moved
            or sequence < run.last
            or offset < run.end
        ):
            self.runs.append(
                BacklogRun(
                    scan.header.generation,
                    offset,
                    end,
                    sequence,
                    sequence,
                    events,
                    size,
                    scan.times[at],
                )
            )
            self._moved = moved
            return
        run.end = end
        run.last = sequence
        run.events += events
        run.bytes += size

    @property
    def ordered(self) -> list[BacklogRun]:
        """The runs in the order of their sequences."""
        return sorted(self.runs, key=lambda run: run.first)

    @property
    def interleaved(self) -> bool:
        """Whether a run has sequences that belong between those of another."""
        runs = self.ordered
        return any(one.last > other.first for one, other in itertools.pairwise(runs))
