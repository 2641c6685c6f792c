"""Reads a disk buffer's files, with or without a daemon that uses them: lanes, damage, quarantined
files, and the unsettled records.

Invariants: nothing is changed, and no lock is taken. Beside a running daemon a log is read while
it is written: damage is reported only if several reads agree on it. Records are yielded only if
their segment was still the same after the read. If it was reused meanwhile, its records are
settled or were copied forward: the next pass looks for them among what was unsettled at first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from forwarder.buffer.disk.backlog import BacklogRun
from forwarder.buffer.disk.format import SEGMENT_HEADER_SIZE, decode_segment_header
from forwarder.buffer.disk.reading import FileProblem
from forwarder.buffer.disk.recovery import RecoveredLog, UnsettledRecord, recover
from forwarder.buffer.disk.segment import open_segment, read_at
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.inspect.state_files import holder
from forwarder.storage.directory import ASIDE, LOG, is_locked
from forwarder.telemetry.labels import lane_label

READS: Final = 4
"""How often the log of a running daemon is read before apparent damage is reported."""

_NOTES: Final = "README"
"""The file that describes the quarantined files beside it."""

PAUSE: Final = 0.25
"""Seconds between two reads: far longer than a commit takes."""


@dataclass(frozen=True, slots=True)
class LaneContent:
    """A lane's buffered events. `bytes` is what they count for against the limit; `oldest` is
    wall-clock seconds.
    """

    label: str
    historical: bool
    events: int
    bytes: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class Flaw:
    """Damage in `file`: `size` bytes from `offset` on (0 and 0: the whole file), with this many
    events in it.
    """

    file: Path
    what: str
    offset: int = 0
    size: int = 0
    events: int = 0
    known: bool = False
    """Whether a daemon has found it already, and quarantined a copy."""


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """A damaged file that a daemon quarantined, or a copy of damage. `what`:
    the daemon's description.
    """

    file: Path
    size: int
    at: float
    what: str = ""


@dataclass(frozen=True, slots=True)
class BufferContent:
    """One worker's buffer. `process` is the process that uses it, if any (0: an unknown one)."""

    directory: Path
    process: int | None
    lanes: tuple[LaneContent, ...]
    flaws: tuple[Flaw, ...]
    aside: tuple[QuarantinedFile, ...]

    @property
    def damaged(self) -> bool:
        """Whether there is damage that no daemon has handled."""
        return any(not flaw.known for flaw in self.flaws)

    @property
    def events(self) -> int:
        """Events in all lanes."""
        return sum(lane.events for lane in self.lanes)

    @property
    def bytes(self) -> int:
        """What they count for against the limit."""
        return sum(lane.bytes for lane in self.lanes)


def read_contents(directory: Path, pause: Callable[[float], None] = time.sleep) -> BufferContent:
    """The contents of a worker's directory. Raises `ConfigurationError` if its files can't be read
    at all.
    """
    recovered = read_log(directory, pause)
    lanes = [_content(lane, recovered) for lane in recovered.runs]
    aside = _aside(directory)
    generations = {
        scan.path: scan.header.generation for scan in (*recovered.segments, *recovered.free)
    }
    flaws = tuple(
        _flaw(finding, generations.get(finding.path, 0), aside) for finding in recovered.problems
    )
    return BufferContent(
        directory, process_of(directory), tuple(lane for lane in lanes if lane.events), flaws, aside
    )


def read_log(
    directory: Path,
    pause: Callable[[float], None] = time.sleep,
    dead_letters: Collection[tuple[int, int]] = (),
) -> RecoveredLog:
    """A worker's log as it is now; `dead_letters` are the log positions of events that are dead
    letters, and settled by that.

    Raises `ConfigurationError` if its files can't be read at all.
    """
    try:
        recovered = recover(directory / LOG, dead_letters)
        reads = 1
        while recovered.problems and is_locked(directory) and reads < READS:
            pause(PAUSE)
            again = recover(directory / LOG, dead_letters)
            again.problems = [
                finding for finding in again.problems if finding in recovered.problems
            ]
            recovered = again
            reads += 1
    except OSError as error:
        raise unreadable(directory, error) from error
    return recovered


def process_of(directory: Path) -> int | None:
    """The process that uses the directory; 0 if it is unknown, None if there is none."""
    return (holder(directory) or 0) if is_locked(directory) else None


def unreadable(directory: Path, error: OSError) -> ConfigurationError:
    """The error for files that can't be read."""
    where = error.filename or directory
    return ConfigurationError(
        f"{where} can't be read: {error_text(error)}",
        hint="Run this as the user that forwarder runs as.",
    )


def _content(lane: Lane, recovered: RecoveredLog) -> LaneContent:
    runs = recovered.runs[lane]
    oldest = min((run.received_at for run in runs if run.events), default=None)
    return LaneContent(
        lane_label(lane),
        lane.historical,
        recovered.events(lane),
        sum(run.bytes for run in runs),
        oldest,
    )


def _flaw(finding: FileProblem, generation: int, aside: Sequence[QuarantinedFile]) -> Flaw:
    damage = finding.damage
    if damage is None:
        return Flaw(finding.path, finding.what)
    copy = f"-segment-{generation}-at-{damage.offset}.bytes"
    known = any(quarantined.file.name.endswith(copy) for quarantined in aside)
    return Flaw(finding.path, finding.what, damage.offset, damage.size, damage.events, known)


def _aside(directory: Path) -> tuple[QuarantinedFile, ...]:
    folder = directory / ASIDE
    try:
        files = [
            (file, file.stat())
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file != folder / _NOTES
        ]
        lines = (
            (folder / _NOTES).read_text("utf-8", "replace").splitlines()
            if (folder / _NOTES).is_file()
            else []
        )
    except OSError as error:
        raise unreadable(folder, error) from error
    notes = {name: what for name, _, what in (line.partition(": ") for line in lines)}
    return tuple(
        QuarantinedFile(file, stat.st_size, stat.st_mtime, notes.get(file.name, ""))
        for file, stat in files
    )


PASSES: Final = 5
"""How often missed runs are searched for again; each time there are fewer."""

_Missed: TypeAlias = list[tuple[Lane, int, int]]
"""Lane, first and last sequence of runs that couldn't be read."""


def unsettled(directory: Path) -> Iterator[UnsettledRecord]:
    """The records of a worker's log with their unsettled events, in the order of each lane.

    Raises `ConfigurationError` if its files can't be read.
    """
    try:
        missed: _Missed = []
        yield from _pass(read_log(directory), missed)
        for _ in range(PASSES):
            if not missed:
                return
            wanted = missed
            missed = []
            yield from _pass(_among(read_log(directory), wanted), missed, wanted)
    except OSError as error:
        raise unreadable(directory, error) from error


def _pass(
    recovered: RecoveredLog, missed: _Missed, wanted: _Missed | None = None
) -> Iterator[UnsettledRecord]:
    paths = {scan.header.generation: scan.path for scan in recovered.segments}
    for lane, runs in recovered.runs.items():
        for run in runs:
            records = _read(recovered, lane, run, paths[run.generation])
            if records is None:
                missed.append((lane, run.first, run.last))
            else:
                yield from (
                    record for record in records if wanted is None or _is_among(record, wanted)
                )


def _read(
    recovered: RecoveredLog, lane: Lane, run: BacklogRun, path: Path
) -> list[UnsettledRecord] | None:
    """The records of one run; None if its segment has changed."""
    try:
        records = list(replace(recovered, runs={lane: [run]}).records())
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


def _among(recovered: RecoveredLog, wanted: _Missed) -> RecoveredLog:
    """The log's runs that may contain missed records."""
    lanes = {lane for lane, _, _ in wanted}
    runs = {
        lane: [run for run in runs if _overlaps(lane, run, wanted)]
        for lane, runs in recovered.runs.items()
        if lane in lanes
    }
    return replace(recovered, runs=runs)


def _overlaps(lane: Lane, run: BacklogRun, wanted: _Missed) -> bool:
    return any(
        other == lane and run.first <= last and run.last >= first for other, first, last in wanted
    )


def _is_among(record: UnsettledRecord, wanted: _Missed) -> bool:
    return any(
        lane == record.lane and first <= record.sequence <= last for lane, first, last in wanted
    )
