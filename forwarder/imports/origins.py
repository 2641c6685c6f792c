"""What the dead letters of an import say of where they come from, so that each is there once, and can go the way of its record again.

A letter's place (`core.ports.DeadLetter.place`) is its record, as file and number in one, and the part of the record that it holds
(`ImportDeadLetter.part`). Its coordinates are `file:line`, for people. Its attributes have what both don't say: above all the file's
identity, which the uuid of a record without a natural key follows from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct, field

from forwarder.core.event import Where
from forwarder.core.ports import Reason
from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.events import RefusalReason
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.moments import day_of
from forwarder.sources.imports.planned import OF_EVENTS, ImportDeadLetter

REASONS: Final = {
    RefusalReason.NOT_JSON: Reason.UNDECODABLE,
    RefusalReason.WRONG_TYPE: Reason.INVALID_EVENT,
    RefusalReason.NO_EVENT: Reason.MISSING_EVENT,
    RefusalReason.NO_ID: Reason.MISSING_DISTINCT_ID,
    RefusalReason.NO_TIME: Reason.MISSING_TIMESTAMP,
    RefusalReason.ILLEGAL_ID: Reason.ILLEGAL_DISTINCT_ID,
    RefusalReason.TOO_LARGE: Reason.TOO_LARGE,
    RefusalReason.UNMAPPABLE: Reason.UNMAPPABLE,
}
"""The reason of a letter by the format's."""

_NUMBERS: Final = 40
"""Bits of a place for the number of a record in its file."""
_OF_MEMBERS: Final = 1 << 32
"""Among the events of a record, those that were made of single members of it after they were mended."""


class LetterOrigin(Struct, frozen=True, tag_field="holds"):
    """A letter's attributes."""

    file: int = field(name="file_number")
    """In the order of the source."""
    record: int
    """The record's number in its file, from 0."""
    identity: str = field(name="file_identity")
    """Of the file's content."""

    def where(self, name: str, line: int, part: int) -> Where:
        """All of it, as a letter has it."""
        return Where(f"{name}:{line}", (((self.file + 1) << _NUMBERS) + self.record, part), msgspec.json.encode(self).decode())


class RecordOrigin(LetterOrigin, frozen=True, tag="record"):
    """The letter holds a record as it was read, or one event of a record that holds several."""

    part: int
    why: str = field(name="refused_as")


class EventOrigin(LetterOrigin, frozen=True, tag="event"):
    """The letter holds an event as it was sent, which the service refused."""

    event: int
    """Which of the record's it is."""
    day: str
    """The UTC day under which the source has it."""


_read: Final[Callable[[str], RecordOrigin | EventOrigin]] = msgspec.json.Decoder(RecordOrigin | EventOrigin).decode


def read_origin(attributes: str) -> RecordOrigin | EventOrigin | None:
    """A letter's attributes; None if they aren't those of an import's letter."""
    try:
        return _read(attributes)
    except (msgspec.DecodeError, UnicodeError):
        return None


def where_of_record(record: ImportDeadLetter, identity: str) -> Where:
    """Where a record is that its format refused."""
    origin = RecordOrigin(record.file_number, record.number, identity, record.part, record.why.value)
    return origin.where(record.place.file, record.place.line, record.part)


def where_of_event(event: FinishedEvent, file: SourceFile) -> Where:
    """Where an event is that is sent; read if the service refuses it."""
    origin = EventOrigin(event.file, event.number, file.identity, event.part, day_of(event.time))
    return origin.where(file.name, event.line, OF_EVENTS + event.part)


def block_of(origin: RecordOrigin, file: SourceFile, line: int, data: bytes) -> RecordBlock:
    """A record, or a part of one, by itself, as its format reads it: in its old place, from which its uuid may follow."""
    return RecordBlock(file, origin.record, [data], [line], _members(origin.part))


def _members(part: int) -> list[int] | None:
    if not part:
        return None
    return [part - OF_EVENTS if part >= OF_EVENTS else part - 1]


def event_of(part: int, turn: int) -> int:
    """The part of its record (`FinishedEvent.part`) that an event is which was made of a part that is mended; no other event has it."""
    if not part:
        return turn
    return part - OF_EVENTS if part >= OF_EVENTS else _OF_MEMBERS + part - 1
