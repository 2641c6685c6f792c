"""Reading the unsettled records of a log, also while a daemon settles them, compacts them and uses their segments again.

Invariant: a stretch of a segment is handed out only if the segment was the same after it was read. What was in one that changed meanwhile
is settled by then, or was copied forward: it is looked for again among what was not settled at the first look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from forwarder.buffer.disk.format import SEGMENT_HEADER_SIZE, decode_segment_header
from forwarder.buffer.disk.recovery import Record, Recovered
from forwarder.buffer.disk.runs import Run
from forwarder.buffer.disk.segment import open_segment, read_at
from forwarder.core.event import Lane
from forwarder.inspect.inspection import read_log, unreadable

PASSES: Final = 5
"""How often what vanished is looked for again; each time there is less of it."""

_Missed: TypeAlias = list[tuple[Lane, int, int]]
"""Lane, first and last sequence of runs that couldn't be read."""


def unsettled(directory: Path) -> Iterator[Record]:
    """The records of a worker's log with their unsettled events, in the order of each lane.

    Raises `ConfigurationError` if its files can't be read.
    """
    try:
        missed: _Missed = []
        yield from _pass(read_log(directory), missed)
        for _ in range(PASSES):
            if not missed:
                return
            wanted, missed = missed, []
            yield from _pass(_among(read_log(directory), wanted), missed, wanted)
    except OSError as error:
        raise unreadable(directory, error) from error


def _pass(found: Recovered, missed: _Missed, wanted: _Missed | None = None) -> Iterator[Record]:
    paths = {scan.header.generation: scan.path for scan in found.segments}
    for lane, runs in found.runs.items():
        for run in runs:
            records = _read(found, lane, run, paths[run.generation])
            if records is None:
                missed.append((lane, run.first, run.last))
            else:
                yield from (record for record in records if wanted is None or _is_among(record, wanted))


def _read(found: Recovered, lane: Lane, run: Run, path: Path) -> list[Record] | None:
    """The records of one run; None if its segment isn't what it was."""
    try:
        records = list(replace(found, runs={lane: [run]}).records())
        return records if _generation(path) == run.generation else None
    except FileNotFoundError:
        return None


def _generation(path: Path) -> int | None:
    fd = open_segment(path, read_only=True)
    try:
        header = decode_segment_header(read_at(fd, SEGMENT_HEADER_SIZE, 0))
    finally:
        os.close(fd)
    return header.generation if header else None


def _among(found: Recovered, wanted: _Missed) -> Recovered:
    """The log's runs that may hold what is wanted."""
    lanes = {lane for lane, _, _ in wanted}
    runs = {lane: [run for run in runs if _overlaps(lane, run, wanted)] for lane, runs in found.runs.items() if lane in lanes}
    return replace(found, runs=runs)


def _overlaps(lane: Lane, run: Run, wanted: _Missed) -> bool:
    return any(each == lane and run.first <= last and run.last >= first for each, first, last in wanted)


def _is_among(record: Record, wanted: _Missed) -> bool:
    return any(lane == record.lane and first <= record.sequence <= last for lane, first, last in wanted)
