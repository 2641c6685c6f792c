"""Dead letters of an import under a clock that stands still, with their file looked into by
another connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason, dead_letters_of
from forwarder.daemon.import_dead_letters import ImportDeadLetters
from forwarder.deadletter.schema import open_writable
from forwarder.deadletter.selection import mark_for_replay
from forwarder.sources.files.record_blocks import RecordLocation, SourceFile
from forwarder.sources.imports.blocks import ImportChunk, dead_letter_of
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import ImportDeadLetter
from forwarder.storage.directory import DEAD_LETTERS
from tests.deadletter.rig import query
from tests.support.clock import FakeClock

LANE = Lane("phc_imports12345678", historical=True)
FILE = SourceFile("export/a.json.gz", "ab" * 16)
DAY = 86_400_000_000
UUID = "0190a0a0-1111-7222-8333-44445555%04d"
DATA = (
    b'{"event":"sign '
    b'up","distinct_id":"ann","uuid":"%b","timestamp":"1970-01-%02dT00:00:00Z","properties":{}}'
)


@contextlib.asynccontextmanager
async def opened(
    state: Path,
    max_bytes: int = 1 << 20,
    *,
    clock: FakeClock | None = None,
    replayed: Sequence[int] = (),
) -> AsyncIterator[ImportDeadLetters]:
    """Letters that are written."""
    letters = ImportDeadLetters.open_in(state, clock or FakeClock(), max_bytes, replayed)
    letters.start()
    try:
        yield letters
    finally:
        await letters.end()


def refused(
    number: int, data: bytes = b'{"cut', part: int = 0, why: Reason = Reason.UNDECODABLE
) -> ImportDeadLetter:
    """A record of the file that its format refused."""
    return ImportDeadLetter(
        RecordLocation(FILE.name, number + 1), 0, number, part, data, why, f"{why} it is"
    )


def offer(letters: ImportDeadLetters, records: Sequence[ImportDeadLetter]) -> bool:
    """Keep records that the format refused, as the intake does: all, or none if there
    is no room.
    """
    made = [
        dead_letter_of(record, SourceFile(record.place.file, FILE.identity), LANE, 5.0)
        for record in records
    ]
    reserved = letters.reserve(sum(len(letter.data) for letter in made), len(made))
    if reserved is None:
        return False
    letters.add_reserved(made, reserved)
    return True


async def bury(letters: ImportDeadLetters, records: Sequence[ImportDeadLetter]) -> None:
    """The same, until they are durable."""
    assert offer(letters, records)
    await letters.durable()


def event(number: int, part: int = 0, day: int = 0) -> FinishedEvent:
    """An event of a record of the file, as it is sent."""
    uuid = UUID % number
    return FinishedEvent(
        day * DAY,
        "ann",
        "sign up",
        uuid,
        DATA % (uuid.encode(), day + 1),
        0,
        number + 1,
        number,
        part,
    )


def chunk_of(events: Sequence[FinishedEvent]) -> ImportChunk:
    """Events of the file that are sent together."""
    columns = EventColumns.of(events)
    return ImportChunk(LANE, b",".join(columns.data), columns.ids(), 0.0, columns, {0: FILE})


def refused_events(events: Sequence[FinishedEvent], why: str = "400: no") -> list[DeadLetter]:
    """What delivery makes of events that the service refuses."""
    return dead_letters_of(chunk_of(events), Reason.REFUSED, why, 5.0)


def rows(state: Path, columns: str = "coordinates, data") -> list[Any]:
    """What is in the file."""
    return query(state, f"SELECT {columns} FROM letters ORDER BY number")


def mark(state: Path, letters: Mapping[int, bytes | None]) -> None:
    """What `forwarder dead-letters replay` does: number, and what is to be sent in its place."""
    with contextlib.closing(open_writable(state / DEAD_LETTERS)) as connection:
        mark_for_replay(connection, letters.items(), None, lambda _: None)
