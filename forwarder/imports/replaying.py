"""Dead letters of an import on their way back: those that somebody has marked for a replay, mended or as they are.

A record that the format refused goes through the format again, in its old place, so that its uuid is what it would have been. An event that
the service refused goes again as it is. What can't go stays a letter, with a note. A letter leaves the folder in this order:

1. each of its events has arrived, or was refused by the service and is a letter of its own;
2. that is counted (`migration.mending`), and a checkpoint is written with the counts and the letter's number;
3. it is removed.

After a kill between two of them it is sent again with the same bytes, or removed without being sent: counted once in any case. An event's
letter that the service refuses again stays what it is.

To be used once all records of the source are settled: a record that isn't counted as refused can't be counted as mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.imports.letters import ImportLetters
from forwarder.imports.origins import OfEvent, OfRecord, block_of, event_of, read_origin
from forwarder.sources.files.records import Block, File
from forwarder.sources.imports.days import BatchLimits, DayBatch, DayBatches
from forwarder.sources.imports.finishing import Finished
from forwarder.sources.imports.formats.native import Native
from forwarder.sources.imports.mending import Replayed, count_replayed
from forwarder.sources.imports.planned import Made
from forwarder.sources.imports.tallies import Books, Totals

Key = tuple[int, int, int]
"""An event on its way: the number of its file, of its record, and which of the record's events it is."""

_FOREIGN: Final = "it doesn't say which record it was: it isn't a letter of an import"
_DAMAGED: Final = "its bytes aren't those that were written: the disk has changed them. Replay it with `--with FILE`"
_ON_ITS_WAY: Final = "another letter of the same event is on its way; replay this one again if it is still needed"


@dataclass(slots=True)
class _Letter:
    """A letter on its way."""

    number: int
    name: str
    """Of its file."""
    origin: OfRecord | OfEvent
    left: int
    """Events that aren't settled."""
    arrived: list[Finished] = field(default_factory=list)
    refused: list[Finished] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Remaking:
    """How letters become batches again."""

    make: Callable[[Block, int], Made]
    """What the format, the filters and finishing make of a block of the file with a number. It knows no repeats, and no limit."""
    limits: BatchLimits
    max_event: int
    """Bytes that an event may have."""


class Replays:
    """See the module. Used on the loop of its letters."""

    def __init__(
        self,
        letters: ImportLetters,
        totals: Totals,
        books_of: Callable[[int, str], Sequence[Books]],
        remaking: Remaking,
    ) -> None:
        """`books_of`: of a file, by its number and name, and what else sums them up."""
        self._letters = letters
        self._totals = totals
        self._books_of = books_of
        self._remaking = remaking
        self._native = Native("set")
        self._way: dict[Key, _Letter] = {}
        self._together: dict[tuple[int, int], int] = {}
        """Letters that there are of records with some on their way, those too."""
        self._leaving: set[int] = set()
        """Letters that are counted in a saved checkpoint, and may not be gone yet."""
        self.replayed = 0
        """Letters whose events have arrived."""
        self.refused = 0
        """Letters that stay."""

    async def next(self) -> Sequence[DayBatch] | None:
        """Batches of the next letters' events, to be sent in this order; none if these can't go; None when no letter is marked any more.

        Waits while the letters can't be read. Cancelled, it takes none.
        """
        marked = await self._letters.take_marked()
        if not marked:
            return None
        batches = DayBatches(self._remaking.limits)
        leaving = [batch for letter in marked for event in self._open(letter) for batch in batches.add(event)]
        return [*leaving, *batches.flush()]

    def owns(self, event: Finished) -> bool:
        """Whether an event is of a letter on its way."""
        return _key(event) in self._way

    def settle(self, events: Sequence[Finished], *, delivered: bool) -> None:
        """Events of letters have arrived, or were refused by the service for good, and are buried (`ImportLetters.bury`)."""
        for event in events:
            letter = self._way.pop(_key(event))
            (letter.arrived if delivered else letter.refused).append(event)
            letter.left -= 1
            if isinstance(letter.origin, OfEvent):
                self._letters.returning.pop(self._place(event), None)
            if not letter.left:
                self._conclude(letter)

    def counted(self) -> Sequence[int]:
        """The letters that a checkpoint made now counts as replayed: what `saved` is told when it is written."""
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

    def _open(self, marked: MarkedDeadLetter) -> Sequence[Finished]:
        """The events of a letter; none if it stays."""
        try:
            origin = _origin_of(marked)
            events = self._events(origin, marked)
        except _Stays as stays:
            self.refused += 1
            self._letters.refuse(marked.number, str(stays))
            return ()
        letter = _Letter(marked.number, _file_and_line(marked)[0], origin, len(events))
        self._way.update((_key(event), letter) for event in events)
        self._together.setdefault((origin.file, origin.record), marked.together)
        if isinstance(origin, OfEvent):
            self._letters.returning[self._place(events[0])] = marked.number
        return events

    def _events(self, origin: OfRecord | OfEvent, marked: MarkedDeadLetter) -> Sequence[Finished]:
        """What is to be sent. Raises `_Stays`."""
        name, line = _file_and_line(marked)
        file = self._letters.file(origin.file) or File(name, origin.identity)
        self._letters.begin(origin.file, file)
        if isinstance(origin, OfEvent):
            events = [self._sent(origin, line, marked.data)]
        else:
            events = self._made(origin, block_of(origin, file, line, marked.data))
        if any(_key(event) in self._way for event in events):
            raise _Stays(_ON_ITS_WAY)
        return events

    def _made(self, origin: OfRecord, block: Block) -> list[Finished]:
        """What the format makes of a record. Raises `_Stays` unless that is all events."""
        made = self._remaking.make(block, origin.file)
        if made.refused:
            first = made.refused[0]
            raise _Stays(f"{first.why}: {first.detail}")
        if not made.events:
            raise _Stays(_words(made))
        return [event._replace(part=event_of(origin.part, turn)) for turn, event in enumerate(made.events)]

    def _sent(self, origin: OfEvent, line: int, data: bytes) -> Finished:
        """An event as it was sent, or as it was edited since. Raises `_Stays` if it isn't one that can be sent as it stands."""
        found = self._native.convert_block(Block(File("", origin.identity), origin.record, [data], [line], [origin.event]))
        if found.refused:
            raise _Stays(f"{found.refused[0].why.why}: {found.refused[0].why.detail}")
        (text,) = found.texts
        if len(text) > self._remaking.max_event:
            raise _Stays(f"the event has {len(text):,} bytes, {self._remaking.max_event:,} are allowed")
        return Finished(
            found.times[0], found.distinct_ids[0], found.names[0], found.uuids[0], text, origin.file, line, origin.record, origin.event
        )

    def _conclude(self, letter: _Letter) -> None:
        origin = letter.origin
        record = origin.file, origin.record
        if letter.refused and isinstance(origin, OfEvent):
            self.refused += 1  # its note was written when the service refused it
            return
        self._together[record] += len(letter.refused) - 1
        is_last = not self._together[record]
        if is_last:
            del self._together[record]
        self.replayed += 1
        day = origin.day if isinstance(origin, OfEvent) else ""
        books = self._books_of(origin.file, letter.name)
        count_replayed(Replayed(letter.number, letter.arrived, letter.refused, day, is_last), books, self._totals)

    def _place(self, event: Finished) -> tuple[int, int]:
        place = self._letters.where(event).place
        if place is None:
            raise RuntimeError("an event of an import without a place")
        return place


class _Stays(Exception):
    """A letter can't be sent as it is."""


def _origin_of(marked: MarkedDeadLetter) -> OfRecord | OfEvent:
    """Raises `_Stays` if it doesn't say, or isn't whole."""
    if not marked.intact:
        raise _Stays(_DAMAGED)
    origin = read_origin(marked.attributes)
    if origin is None:
        raise _Stays(_FOREIGN)
    return origin


def _file_and_line(marked: MarkedDeadLetter) -> tuple[str, int]:
    name, _, line = marked.coordinates.rpartition(":")
    return name, int(line)


def _key(event: Finished) -> Key:
    return event.file, event.number, event.part


def _words(made: Made) -> str:
    """Why a record sends nothing, though nothing is wrong with it."""
    return f"nothing of it is sent: it is left out ({', '.join(fate.reason for fate in made.fates.values())})"
