"""Where one event is: in the files of a disk buffer, among the dead letters, or in the memory of a
running daemon.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from forwarder.admin.event_lookup import DEAD_LETTER, SENDING, WAITING, Sighting, WantedUuid
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.proposals import proposed
from forwarder.deadletter.schema import UnreadableDatabase, open_readable
from forwarder.inspect.buffer_contents import unsettled
from forwarder.inspect.state_files import WorkerFiles
from forwarder.telemetry.labels import UNDECODABLE, lane_label

_MEANINGS: Final = {
    WAITING: "buffered, not yet sent",
    SENDING: "buffered, in a request that is in flight or will be retried",
    DEAD_LETTER: "dead letter in memory only",
}

_PLAIN_UUID: Final = (
    "replace(replace(replace(replace(lower(uuid), '-', ''), 'urn:uuid:', ''), '{', ''), '}', '')"
)
_LETTERS: Final = f"""SELECT number, reason, api_key, historical, at, why, mark, data FROM letters
    WHERE uuid IS NULL OR {_PLAIN_UUID} = ? ORDER BY number"""  # noqa: S608 - a constant


@dataclass(frozen=True, slots=True)
class Trace:
    """A copy of an event. `since` is wall-clock seconds; `note` says what
    to do, or what is unknown.
    """

    where: str
    lane: str
    since: float
    reason: str = ""
    why: str = ""
    note: str = ""


def parse_traces(answer: bytes) -> list[Trace]:
    """The traces in a daemon's answer to `/explain`; none if it isn't such an answer."""
    try:
        found = msgspec.json.decode(answer, type=list[Sighting])
    except msgspec.DecodeError:
        return []
    return [Trace(_meaning(each), each.lane, each.since, each.reason, each.why) for each in found]


def _meaning(sighting: Sighting) -> str:
    meaning = _MEANINGS.get(sighting.where, sighting.where)
    return f"{meaning}, for {sighting.destination}" if sighting.destination else meaning


def search_files(wanted: WantedUuid, workers: Iterable[WorkerFiles]) -> Iterator[Trace]:
    """Every copy in the buffers and dead letters of these workers. Raises `ConfigurationError` if
    they can't be read.
    """
    for files in workers:
        if files.log is not None:
            yield from _in_buffer(wanted, files.log)
        if files.dead_letters is not None:
            yield from _in_letters(wanted, files.dead_letters)


def _in_buffer(wanted: WantedUuid, directory: Path) -> Iterator[Trace]:
    note = f"in {directory}; its files don't show whether it is being sent now"
    for record in unsettled(directory):
        for event in record.events:
            if wanted.is_of(event):
                yield Trace("buffered", lane_label(record.lane), record.received_at, note=note)


def _in_letters(wanted: WantedUuid, file: Path) -> Iterator[Trace]:
    try:
        with contextlib.closing(open_readable(file)) as connection:
            rows = connection.execute(_LETTERS, (wanted.text.replace("-", ""),))
            yield from (_letter(row, file) for row in rows if wanted.may_be_in(row[-1]))
    except (sqlite3.Error, UnreadableDatabase, OSError) as error:
        raise unreadable_letters(file, error) from error


def unreadable_letters(file: Path, error: Exception) -> ConfigurationError:
    """The error for a dead letters' file that can't be read."""
    return ConfigurationError(
        f"{file} can't be read: {error_text(error)}",
        hint="Run this as the user that forwarder runs as.",
    )


def _letter(row: Sequence[Any], file: Path) -> Trace:
    number, reason, api_key, historical, at, why, mark, _ = row
    lane = UNDECODABLE if api_key is None else lane_label(Lane(api_key, bool(historical)))
    wish = f", marked: {mark}" if mark else ""
    return Trace(
        f"dead letter {number}",
        lane,
        at,
        reason,
        why,
        f"in {file}{wish}; `{proposed(f'dead-letters show {number}')}` shows it",
    )
