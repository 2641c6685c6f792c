"""The books of a daemon that is down, computed from its files.

The log has what was received, delivered and dropped; the dead-letter file has its letters and
counts that only it knows. Buffered events are counted, not derived, so that the equation is a
check. Between two commits the same event may be in both files: a dead letter is durable before the
mark that settles its event, and a replayed one is in the log before it leaves the dead letters.
Their log positions identify both, as at the next start.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from forwarder.buffer.disk.log_books import LaneTotals
from forwarder.buffer.disk.recovery import RecoveredLog
from forwarder.core.event import Lane
from forwarder.deadletter.room import DeadLetterTotals
from forwarder.deadletter.schema import open_readable
from forwarder.deadletter.table import read_lane_totals, read_places
from forwarder.inspect.buffer_contents import read_log
from forwarder.inspect.explain import unreadable_dead_letters
from forwarder.inspect.state_files import WorkerFiles
from forwarder.storage.directory import LOG, destination_of
from forwarder.telemetry.labels import OTHER, UNDECODABLE, lane_label
from forwarder.telemetry.snapshot import LaneSnapshot, by_label

K = TypeVar("K")


def books_of(workers: Iterable[WorkerFiles]) -> tuple[LaneSnapshot, ...]:
    """The books of all lanes over these workers. Raises `ConfigurationError` if their files can't
    be read.
    """
    return by_label([lane for files in workers for lane in _named(files)])


def _named(files: WorkerFiles) -> list[LaneSnapshot]:
    """The books of one worker and destination; each lane says of which destination it is, as in
    the status of a daemon.
    """
    directory = files.log or (files.dead_letters and files.dead_letters.parent)
    name = destination_of(directory) if directory else ""
    lanes = _of_worker(files)
    return [lane.at_destination(name) for lane in lanes] if name else lanes


def _of_worker(files: WorkerFiles) -> list[LaneSnapshot]:
    if files.dead_letters is None:
        return _lanes(_log(files, ()), {})
    try:
        with contextlib.closing(open_readable(files.dead_letters)) as connection:
            recovered = _log(files, read_places(connection, 0))
            return _lanes(
                recovered,
                read_lane_totals(
                    connection, logged=files.log is not None, without=sorted(recovered.origins)
                ),
            )
    except (sqlite3.Error, OSError) as error:
        raise unreadable_dead_letters(files.dead_letters, error) from error


def _log(files: WorkerFiles, places: Sequence[tuple[int, int]]) -> RecoveredLog:
    return (
        RecoveredLog(Path(LOG)) if files.log is None else read_log(files.log, dead_letters=places)
    )


def _lanes(
    recovered: RecoveredLog, dead_letters: Mapping[Lane | None, DeadLetterTotals]
) -> list[LaneSnapshot]:
    logged = recovered.books.lanes
    others = recovered.books.others
    lanes = [
        _lane(
            lane,
            logged.get(lane, LaneTotals()),
            dead_letters.get(lane, DeadLetterTotals()),
            recovered.events(lane) if lane else 0,
        )
        for lane in dict.fromkeys([*logged, *dead_letters, *recovered.runs])
    ]
    return (
        [*lanes, LaneSnapshot(OTHER, others.received, others.delivered, 0, {}, others.dropped)]
        if others.received
        else lanes
    )


def _lane(
    lane: Lane | None, log: LaneTotals, dead_letters: DeadLetterTotals, buffered: int
) -> LaneSnapshot:
    return LaneSnapshot(
        UNDECODABLE if lane is None else lane_label(lane),
        _sum(log.received, dead_letters.received),
        log.delivered,
        buffered,
        {reason.value: count for reason, count in dead_letters.dead_lettered.items() if count},
        _sum(log.dropped, {reason.value: count for reason, count in dead_letters.dropped.items()}),
    )


def _sum(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    total = Counter(one)
    total.update(other)
    return dict(total)
