"""What a dead letter of an import says of its record: where it stands, and how it becomes a record or an event again.

A letter's place (`core.ports.DeadLetter.place`) is its record, as file and number in one, and the part of the record that it holds
(`ImportDeadLetter.part`). Its coordinates are `file:line`, for people. Its attributes hold the rest: above all the file's identity, from
which the uuid of a record without a natural key follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from forwarder.core.event import Lane, Where
from forwarder.core.ports import DeadLetter, Reason
from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.columns import EventKey, FinishedEvent
from forwarder.sources.imports.conversion import OF_EVENTS, ImportDeadLetter
from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.times import day_of

SOURCE: Final = "import"
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
"""Among the events of a record, those that were made of single members of it after a repair."""

RecordKey = tuple[int, int]
"""A record of an import: the number of its file, and its own in its file."""


class MarkedLetter(NamedTuple):
    """A dead letter that is marked to be replayed."""

    number: int
    file: SourceFile
    line: int
    data: bytes
    origin: RecordOrigin | EventOrigin
    together: int
    """How many letters there are of its record, this one included."""

    @property
    def block(self) -> RecordBlock:
        """What it holds, by itself, as its format reads it: in its old place, from which its uuid may follow."""
        origin, members = self.origin, None
        if isinstance(origin, EventOrigin):
            members = [origin.event]
        elif origin.part:
            members = [origin.part - OF_EVENTS if origin.part >= OF_EVENTS else origin.part - 1]
        return RecordBlock(self.file, origin.record, [self.data], [self.line], members)


class LetterOrigin(Struct, frozen=True, tag_field="holds"):
    """A letter's attributes."""

    file: int = field(name="file_number")
    """In the order of the source."""
    record: int
    """The record's number in its file, from 0."""
    identity: str = field(name="file_identity")
    """Of the file's content."""

    @property
    def key(self) -> RecordKey:
        """Its record."""
        return self.file, self.record

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


def letter_of(record: ImportDeadLetter, file: SourceFile, lane: Lane, now: float) -> DeadLetter:
    """The dead letter of a record that its format refused."""
    origin = RecordOrigin(record.file_number, record.number, file.identity, record.part, record.why.value)
    where = origin.where(record.place.file, record.place.line, record.part)
    return DeadLetter(REASONS[record.why], lane, record.data, now, record.detail, SOURCE, *where)


def where_of(event: FinishedEvent, file: SourceFile) -> Where:
    """Where an event is that is sent; asked if the service refuses it."""
    origin = EventOrigin(event.file, event.number, file.identity, event.part, day_of(event.time))
    return origin.where(file.name, event.line, OF_EVENTS + event.part)


def event_key(place: tuple[int, int] | None) -> EventKey:
    """The event that a letter with this place holds, as it was sent (`where_of`)."""
    if place is None:
        raise ValueError("an event of an import has a place")
    record, part = place
    return (record >> _NUMBERS) - 1, record & ((1 << _NUMBERS) - 1), part - OF_EVENTS


def event_of(part: int, turn: int) -> int:
    """The part of its record (`FinishedEvent.part`) of an event that was made of a repaired part; no other event has it."""
    if not part:
        return turn
    return part - OF_EVENTS if part >= OF_EVENTS else _OF_MEMBERS + part - 1
