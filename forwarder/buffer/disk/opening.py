"""Opens a buffer's directory: readable data is continued, unreadable data is quarantined whole and
logged, nothing is deleted.

The log continues behind its last record, or in a new segment if something there can't be read:
nothing is overwritten. On a disk that can't be written the backlog is delivered all the same; new
events are rejected until it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from forwarder.buffer.disk.backlog import WINDOW
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.buffer.disk.log import Log, sync_files
from forwarder.buffer.disk.quarantine import Quarantine
from forwarder.buffer.disk.reading import SegmentScan
from forwarder.buffer.disk.recovery import RecoveredLog, recover
from forwarder.buffer.disk.segment import Segment, open_segment
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import Fate, Ordering
from forwarder.core.segments import largest_event, segment_size
from forwarder.storage import failpoints
from forwarder.storage.committer import Committer
from forwarder.storage.directory import ASIDE, LOG
from forwarder.storage.private import make_directory, sync_directory
from forwarder.telemetry.labels import lane_label

FEWEST_SEGMENTS: Final = 4
"""Least number of segments, however low the limit: if older records don't fit the limit's
segments, all are as large as theirs.
"""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OpenPolicy:
    """`max_bytes` bounds everything that the log has on disk; `window` the
    memory for loaded events.
    """

    max_bytes: int
    ordering_of: Callable[[Lane], Ordering]
    window: int = WINDOW
    sync: Callable[[set[int]], None] = sync_files


class DeadLetterIndex(Protocol):
    """What the opening needs to know of the dead letters."""

    def places(self) -> Collection[tuple[int, int]]:
        """The events of the log that are dead letters, by sequence and index."""

    def forget(self, numbers: Collection[int]) -> None:
        """These dead letters are in the log again: remove them."""

    def gone(self, lane: Lane) -> int:
        """Events of the log that are or were dead letters: stored or dropped ones, without those
        that never were in the log.
        """

    def lanes(self) -> Collection[Lane]:
        """The lanes of dead letters."""


def open_buffer(
    directory: Path,
    committer: Committer,
    clock: Clock,
    policy: OpenPolicy,
    dead_letters: DeadLetterIndex,
) -> DiskBuffer:
    """Open the buffer of one worker, whose lock is held. Start its committer afterwards.

    Raises `ConfigurationError` if the directory can't be used at all.
    """
    log_directory = directory / LOG
    try:
        make_directory(log_directory)
        recovered = recover(log_directory, dead_letters.places())
    except OSError as error:
        raise ConfigurationError(
            f"buffer.path: {error.filename or log_directory} can't be read: {error_text(error)}",
            hint="Set `buffer.path` to a directory that this user may read and write.",
        ) from error
    if failpoints.ARMED:
        failpoints.hit("opening.read")
    quarantine = Quarantine(directory / ASIDE, clock.now)
    _quarantine_problems(recovered, quarantine)
    size = _size(policy.max_bytes, recovered)
    most = max(FEWEST_SEGMENTS, policy.max_bytes // size)
    log = Log(log_directory, size=size, most=most, now=clock.now, sync=policy.sync)
    window = min(policy.window, policy.max_bytes)
    buffer = DiskBuffer(
        log,
        committer,
        clock,
        max_bytes=policy.max_bytes,
        ordering_of=policy.ordering_of,
        window=window,
        quarantine=quarantine,
    )
    _continue_log(buffer, recovered)
    dead_letters.forget(recovered.origins)
    _balance(buffer, recovered, dead_letters)
    try:
        log.make_spare()
    except OSError as error:
        _log.warning("there is no room for a spare file of the buffer", why=error_text(error))
    buffer.commits.begin()
    return buffer


def _size(max_bytes: int, recovered: RecoveredLog) -> int:
    """The size of segments: that of the limit, or that of older segments
    whose records wouldn't fit.
    """
    size = segment_size(max_bytes)
    largest = largest_event(max_bytes)
    for scan in recovered.segments:
        if scan.live and max(scan.lengths, default=0) > largest:
            size = max(size, scan.header.size)
    return size


def _quarantine_problems(recovered: RecoveredLog, quarantine: Quarantine) -> None:
    generations = {
        scan.path: scan.header.generation for scan in (*recovered.segments, *recovered.free)
    }
    for problem in recovered.problems:
        if problem.whole_file:
            quarantine.move(problem.path, problem.what)
        elif problem.damage is not None and problem.path in generations:
            quarantine.copy(problem.path, generations[problem.path], problem.damage)
        else:
            _log.error(
                "the buffer's files aren't complete", file=str(problem.path), what=problem.what
            )


def _continue_log(buffer: DiskBuffer, recovered: RecoveredLog) -> None:
    """Continue the log that was read."""
    log = buffer.log
    for scan in recovered.segments:
        segment = _segment(scan)
        segment.end = scan.end
        segment.live = scan.live
        segment.holes = scan.holes
        log.in_use.append(segment)
        buffer.segments[segment.generation] = segment
    log.given_up = list(recovered.given_up)
    log.void = list(recovered.void.items())
    last = log.in_use[-1] if log.in_use else None
    if (
        _give_up(log, recovered)
        and last is not None
        and not recovered.segments[-1].ended
        and last.size == log.size
        and not last.read_only
    ):
        log.tail = last
    elif last is not None and not recovered.segments[-1].complete:
        log.give_up(last.generation, last.generation)
    for scan in recovered.free:
        if scan.header.size == log.size:
            log.free.append(_segment(scan))
        else:  # the limit was changed, and the size of segments with it
            _remove(scan.path)
    for path in recovered.unfinished:
        _remove(path)
    durable = _sync(log)
    buffer.commits.held_back = not durable  # until a group has synced it
    for segment in log.release(keep=bool(recovered.dead_lettered) or not durable):
        del buffer.segments[segment.generation]
    # where the limit was lowered there may be more segments than it allows: what is delivered of
    # them must be written down all the same
    log.most = max(log.most, len(log.in_use) + 1)
    log.books = recovered.books
    log.next_generation = recovered.next_generation
    log.next_number = 1 + max(
        (int(path.stem) for path in log.directory.iterdir() if path.stem.isdigit()), default=0
    )
    log.next_sequence = recovered.next_sequence
    for lane, runs in recovered.runs.items():
        holding = buffer.holding(lane)
        holding.runs.extend(runs)
        holding.events = sum([run.events for run in runs])
        holding.bytes = sum([run.bytes for run in runs])
        buffer.used += holding.bytes


def _give_up(log: Log, recovered: RecoveredLog) -> bool:
    """Record segments without an end and missing ones, which were reported, for the next
    checkpoint. Return whether all were known.
    """
    known = True
    for scan, following in zip(recovered.segments, recovered.segments[1:], strict=False):
        first = scan.header.generation + scan.complete
        last = following.header.generation - 1
        if last >= first and not any(
            begin <= first and last <= end for begin, end in recovered.given_up
        ):
            log.give_up(first, last)
            known = False
    return known


def _remove(path: Path) -> None:
    """Delete an unused file; on a disk that can't be written it stays."""
    try:
        path.unlink()
    except OSError as error:
        _log.debug(
            "a file that isn't needed can't be deleted", file=str(path), why=error_text(error)
        )


def _sync(log: Log) -> bool:
    """Sync what was read, and the names of the files and of their directories: after a failed group
    or a crash neither may ever have been synced, and they count from now on. Return whether that
    was possible: if not, no older file may be used again, for what it has may be durable nowhere
    else.
    """
    found = {segment.fd for segment in log.in_use}

    def sync() -> None:
        log.sync(found)
        for directory in (log.directory, *log.directory.parents[:2]):
            sync_directory(directory)

    try:
        sync()
    except OSError as error:
        _log.error("what was found on disk can't be synced", why=error_text(error))
        log.sync_found = sync
        return False
    return True


def _segment(scan: SegmentScan) -> Segment:
    try:
        return Segment(scan.path, open_segment(scan.path), scan.header.size, scan.header.generation)
    except OSError:  # a disk that can't be written
        fd = open_segment(scan.path, read_only=True)
        return Segment(scan.path, fd, scan.header.size, scan.header.generation, read_only=True)


def _balance(buffer: DiskBuffer, recovered: RecoveredLog, dead_letters: DeadLetterIndex) -> None:
    """Finish what a crash interrupted, and make the books match the buffer."""
    for lane, sequence, index in recovered.dead_lettered:
        buffer.commits.marks.of(lane, Fate.DEAD_LETTERED).add(sequence, index, 1, whole=False)
    books = buffer.log.books
    for lane in {
        *recovered.runs,
        *(lane for lane in books.lanes if lane is not None),
        *dead_letters.lanes(),
    }:
        account = books.lanes[lane]
        received = sum(account.received.values())
        missing = (
            received
            - account.delivered
            - sum(account.dropped.values())
            - buffer.count(lane)
            - dead_letters.gone(lane)
        )
        if missing > 0:
            _log.error(
                "events of the buffer are missing; they count as dropped",
                lane=lane_label(lane),
                events=missing,
            )
            buffer.commits.drop_damaged(lane, missing)
        elif missing < 0:
            _log.warning(
                "events of the buffer are not in the books; they count as received",
                lane=lane_label(lane),
                events=-missing,
            )
            buffer.commits.receive_recovered(lane, -missing)
