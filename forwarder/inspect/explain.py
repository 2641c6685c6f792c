"""Where one event is: in the files of a disk buffer, among the dead letters, or in the memory of a
running daemon.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from forwarder.admin.event_lookup import DEAD_LETTER, SENDING, WAITING, Sighting, WantedUuid
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.proposals import proposed
from forwarder.core.secrets import mask_secrets
from forwarder.deadletter.schema import open_readable
from forwarder.inspect.buffer_contents import unsettled
from forwarder.inspect.dead_letters import WorkerDeadLetters, dead_letter_files
from forwarder.inspect.state_files import WorkerFiles
from forwarder.storage.directory import destination_of
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
    """A copy of an event. `since` is wall-clock seconds; `note` says what to do, or what is
    unknown; `destination` is empty if there is only one.
    """

    where: str
    lane: str
    since: float
    reason: str = ""
    why: str = ""
    note: str = ""
    destination: str = ""


def parse_traces(answer: bytes) -> list[Trace]:
    """The traces in a daemon's answer to `/explain`; none if it isn't such an answer."""
    try:
        sightings = msgspec.json.decode(answer, type=list[Sighting])
    except msgspec.DecodeError:
        return []
    return [
        Trace(
            _MEANINGS.get(sighting.where, sighting.where),
            sighting.lane,
            sighting.since,
            sighting.reason,
            sighting.why,
            destination=sighting.destination,
        )
        for sighting in sightings
    ]


def search_files(
    wanted: WantedUuid, workers: Sequence[WorkerFiles], path: Path | None = None
) -> Iterator[Trace]:
    """Every copy in the buffers and dead letters of these workers, which are those in `path` or of
    the configuration. Raises `ConfigurationError` if they can't be read.
    """
    dead_letters = dead_letter_files(
        [files.dead_letters for files in workers if files.dead_letters]
    )
    options = () if path is None else ("--path", path)
    for files in workers:
        if files.log is not None:
            yield from _in_buffer(wanted, files.log)
    for file in dead_letters:
        yield from _in_dead_letters(wanted, file, options)


def _in_buffer(wanted: WantedUuid, directory: Path) -> Iterator[Trace]:
    note = f"in {directory}; its files don't show whether it is being sent now"
    for record in unsettled(directory):
        for event in record.events:
            if wanted.is_of(event):
                yield Trace(
                    "buffered",
                    lane_label(record.lane),
                    record.received_at,
                    note=note,
                    destination=destination_of(directory),
                )


def _in_dead_letters(
    wanted: WantedUuid, file: WorkerDeadLetters, options: Sequence[object]
) -> Iterator[Trace]:
    try:
        with contextlib.closing(open_readable(file.path)) as connection:
            rows = connection.execute(_LETTERS, (wanted.text.replace("-", ""),))
            yield from (
                _dead_letter(row, file, options) for row in rows if wanted.may_be_in(row[-1])
            )
    except (sqlite3.Error, OSError) as error:
        raise unreadable_dead_letters(file.path, error) from error


def unreadable_dead_letters(file: Path, error: Exception) -> ConfigurationError:
    """The error for a dead letters' file that can't be read."""
    return ConfigurationError(
        f"{file} can't be read: {error_text(error)}",
        hint="Run this as the user that forwarder runs as.",
    )


def _dead_letter(row: Sequence[Any], file: WorkerDeadLetters, options: Sequence[object]) -> Trace:
    number, reason, api_key, historical, at, why, mark, _ = row
    lane = None if api_key is None else Lane(api_key, bool(historical))
    name = file.name(number)
    wish = f", marked: {mark}" if mark else ""
    return Trace(
        f"dead letter {name}",
        UNDECODABLE if lane is None else lane_label(lane),
        at,
        reason,
        mask_secrets(why, api_key or ""),
        f"in {file.path}{wish}; `{proposed('dead-letters show', name, *options)}` shows it",
        destination_of(file.path.parent),
    )
