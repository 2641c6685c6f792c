"""Dead letters of an import that are replayed: those that are marked for it, repaired or as they are.

A record that the format refused goes through the format again, in its old place, so that its uuid is what it would have been. An event that
the service refused goes again as it is. What can't go stays a letter, with a note. A letter leaves the folder in this order:

1. each of its events has arrived, or was refused by the service and is a letter of its own;
2. that is counted (`sources.imports.books.count_replayed`), and a checkpoint is written with the counts and the letter's number;
3. it is removed.

After a kill between two of them it is sent again with the same bytes, or removed without being sent: counted once in any case. An event's
letter that the service refuses again stays what it is.

To be used once all records of the source are settled: a record that isn't counted as refused can't be counted as repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.imports.dead_letters import EventOrigin, ImportDeadLetters, RecordOrigin, block_of, event_of, read_origin
from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.books import ImportTotals, RecordBooks, ReplayedLetter, count_replayed
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import ConvertedRecords
from forwarder.sources.imports.day_batches import BatchLimits, DayBatch, DayBatches
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.formats.native import NativeConverter

Key = tuple[int, int, int]
"""An event in flight: the number of its file, of its record, and which of the record's events it is."""

_FOREIGN: Final = "it doesn't say which record it was: it isn't a letter of an import"
_DAMAGED: Final = "its bytes aren't those that were written: the disk has changed them. Replay it with `--with FILE`"
_ON_ITS_WAY: Final = "another letter of the same event is in flight; replay this one again if it is still needed"


@dataclass(slots=True)
class _ReturningLetter:
    """A letter whose events are in flight."""

    number: int
    name: str
    """Of its file."""
    origin: RecordOrigin | EventOrigin
    left: int
    """Events that aren't settled."""
    arrived: list[FinishedEvent] = field(default_factory=list)
    refused: list[FinishedEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LetterConversion:
    """How letters become batches again."""

    convert: Callable[[RecordBlock, int], ConvertedRecords]
    """What the format, the filters and finishing make of a block of the file with a number. It knows no repeats, and no limit."""
    limits: BatchLimits
    max_event: int
    """Bytes that an event may have."""


class LetterReplays:
    """See the module. Used on the loop of its letters."""

    def __init__(
        self,
        letters: ImportDeadLetters,
        totals: ImportTotals,
        books_of: Callable[[int, str], Sequence[RecordBooks]],
        remaking: LetterConversion,
    ) -> None:
        """`books_of`: of a file, by its number and name, and what else sums them up."""
        self._letters = letters
        self._totals = totals
        self._books_of = books_of
        self._remaking = remaking
        self._native = NativeConverter("set")
        self._way: dict[Key, _ReturningLetter] = {}
        self._together: dict[tuple[int, int], int] = {}
        """How many letters there are of each record that has some in flight, those included."""
        self._leaving: set[int] = set()
        """Letters that are counted in a saved checkpoint, and may not be gone yet."""
        self.replayed = 0
        """Letters whose events have arrived."""
        self.refused = 0
        """Letters that stay."""

    async def next(self) -> Sequence[DayBatch] | None:
        """Batches of the next letters' events, to be sent in this order; none if these can't go; None when no letter is marked any more.

        Waits while the letters can't be read. Cancelled, it returns none.
        """
        marked = await self._letters.take_marked()
        if not marked:
            return None
        batches = DayBatches(self._remaking.limits)
        leaving = [batch for letter in marked for event in self._open(letter) for batch in batches.add(event)]
        return [*leaving, *batches.flush()]

    def owns(self, event: FinishedEvent) -> bool:
        """Whether an event is of a letter in flight."""
        return _key(event) in self._way

    def settle(self, events: Sequence[FinishedEvent], *, delivered: bool) -> None:
        """Events of letters have arrived, or were refused by the service for good, and are buried (`ImportDeadLetters.bury`)."""
        for event in events:
            letter = self._way.pop(_key(event))
            (letter.arrived if delivered else letter.refused).append(event)
            letter.left -= 1
            if isinstance(letter.origin, EventOrigin):
                self._letters.returning.pop(self._place(event), None)
            if not letter.left:
                self._conclude(letter)

    def counted(self) -> Sequence[int]:
        """The letters that a checkpoint made now counts as replayed: pass them to `saved` once it is written."""
        return tuple(self._totals.replayed)

    def saved(self, counted: Sequence[int]) -> None:
        """A checkpoint is written that counts these letters: they go. Checkpoints name them until they are gone."""
        gone = {number for number in counted if number in self._leaving and self._letters.is_gone(number)}
        self._leaving -= gone
        self._totals.replayed[:] = [number for number in self._totals.replayed if number not in gone]
        leaving = [number for number in counted if number not in gone and number not in self._leaving]
        if leaving:
            self._leaving.update(leaving)
            self._letters.remove(leaving)

    def _open(self, marked: MarkedDeadLetter) -> Sequence[FinishedEvent]:
        """The events of a letter; none if it stays."""
        try:
            origin = _origin_of(marked)
            events = self._events(origin, marked)
        except _CannotReplay as stays:
            self.refused += 1
            self._letters.refuse(marked.number, str(stays))
            return ()
        letter = _ReturningLetter(marked.number, _file_and_line(marked)[0], origin, len(events))
        self._way.update((_key(event), letter) for event in events)
        self._together.setdefault((origin.file, origin.record), marked.together)
        if isinstance(origin, EventOrigin):
            self._letters.returning[self._place(events[0])] = marked.number
        return events

    def _events(self, origin: RecordOrigin | EventOrigin, marked: MarkedDeadLetter) -> Sequence[FinishedEvent]:
        """What is to be sent. Raises `_CannotReplay`."""
        name, line = _file_and_line(marked)
        file = self._letters.file(origin.file) or SourceFile(name, origin.identity)
        self._letters.begin(origin.file, file)
        if isinstance(origin, EventOrigin):
            events = [self._sent(origin, line, marked.data)]
        else:
            events = self._made(origin, block_of(origin, file, line, marked.data))
        if any(_key(event) in self._way for event in events):
            raise _CannotReplay(_ON_ITS_WAY)
        return events

    def _made(self, origin: RecordOrigin, block: RecordBlock) -> list[FinishedEvent]:
        """What the format makes of a record. Raises `_CannotReplay` unless that is all events."""
        made = self._remaking.convert(block, origin.file)
        if made.refused:
            first = made.refused[0]
            raise _CannotReplay(f"{first.why}: {first.detail}")
        if not made.events:
            raise _CannotReplay(_words(made))
        return [event._replace(part=event_of(origin.part, turn)) for turn, event in enumerate(made.events)]

    def _sent(self, origin: EventOrigin, line: int, data: bytes) -> FinishedEvent:
        """An event as it was sent, or as it was edited since. Raises `_CannotReplay` if it isn't one that can be sent as it stands."""
        try:
            found = self._native.convert_event(RecordBlock(SourceFile("", origin.identity), origin.record, [data], [line], [origin.event]))
        except RecordRefused as refused:
            raise _CannotReplay(f"{refused.why}: {refused.detail}") from None
        (text,) = found.texts
        if len(text) > self._remaking.max_event:
            raise _CannotReplay(f"the event has {len(text):,} bytes, {self._remaking.max_event:,} are allowed")
        return FinishedEvent(
            found.times[0], found.distinct_ids[0], found.names[0], found.uuids[0], text, origin.file, line, origin.record, origin.event
        )

    def _conclude(self, letter: _ReturningLetter) -> None:
        origin = letter.origin
        record = origin.file, origin.record
        if letter.refused and isinstance(origin, EventOrigin):
            self.refused += 1  # its note was written when the service refused it
            return
        self._together[record] += len(letter.refused) - 1
        is_last = not self._together[record]
        if is_last:
            del self._together[record]
        self.replayed += 1
        day = origin.day if isinstance(origin, EventOrigin) else ""
        books = self._books_of(origin.file, letter.name)
        count_replayed(ReplayedLetter(letter.number, letter.arrived, letter.refused, day, is_last), books, self._totals)

    def _place(self, event: FinishedEvent) -> tuple[int, int]:
        place = self._letters.where(event).place
        if place is None:
            raise RuntimeError("an event of an import without a place")
        return place


class _CannotReplay(Exception):
    """A letter can't be sent as it is."""


def _origin_of(marked: MarkedDeadLetter) -> RecordOrigin | EventOrigin:
    """Raises `_CannotReplay` if it doesn't say, or isn't whole."""
    if not marked.intact:
        raise _CannotReplay(_DAMAGED)
    origin = read_origin(marked.attributes)
    if origin is None:
        raise _CannotReplay(_FOREIGN)
    return origin


def _file_and_line(marked: MarkedDeadLetter) -> tuple[str, int]:
    name, _, line = marked.coordinates.rpartition(":")
    return name, int(line)


def _key(event: FinishedEvent) -> Key:
    return event.file, event.number, event.part


def _words(made: ConvertedRecords) -> str:
    """Why a record sends nothing, though nothing is wrong with it."""
    return f"nothing of it is sent: it is left out ({', '.join(fate.reason for fate in made.fates.values())})"
