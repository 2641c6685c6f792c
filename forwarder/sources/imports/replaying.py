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

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from forwarder.core.clock import Clock
from forwarder.core.event import Chunk, Lane
from forwarder.sources.files.records import RecordBlock
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock
from forwarder.sources.imports.books import count_repaired, count_replayed
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import Conversion
from forwarder.sources.imports.format import NativeEvents, RecordRefused
from forwarder.sources.imports.ledger import ImportLedger
from forwarder.sources.imports.letters import EventKey, EventOrigin, MarkedLetter, RecordKey, RecordOrigin, ServiceRefusal, event_of

_ON_ITS_WAY: Final = "another letter of the same event is in flight; replay this one again if it is still needed"

SendChunks = Callable[[Sequence[Chunk]], Awaitable[bool]]
"""Sends events; returns once all are settled, or False when the run is stopped before."""


class ReplayedLetters(Protocol):
    """The dead letters of an import (`daemon.import_letters`)."""

    refusals: dict[EventKey, ServiceRefusal]
    returning: dict[EventKey, int]

    async def take_marked(self) -> Sequence[MarkedLetter]:
        """See `ImportDeadLetters`."""

    def refuse(self, number: int, why: str) -> None:
        """See `ImportDeadLetters`."""

    def remove(self, numbers: Sequence[int]) -> None:
        """See `ImportDeadLetters`."""

    def is_gone(self, number: int) -> bool:
        """See `ImportDeadLetters`."""


class LetterConversion(NamedTuple):
    """How letters become events again."""

    of_records: Conversion
    """It knows no repeats, and no limit: a record comes by itself."""
    as_sent: Callable[[RecordBlock], NativeEvents]
    """Reads the one event of a block as it was sent. Raises `RecordRefused`."""
    limits: ChunkLimits
    max_event: int
    """Bytes that an event may have."""


class LetterReplays:
    """See the module."""

    def __init__(self, letters: ReplayedLetters, ledger: ImportLedger, conversion: LetterConversion, lane: Lane, clock: Clock) -> None:
        """`ledger`: where the source's records are counted."""
        self._letters = letters
        self._ledger = ledger
        self._conversion = conversion
        self._lane = lane
        self._clock = clock
        self._records: dict[int, RecordKey] = {}
        """Letters that this run has counted as replayed and that may not be gone yet, by number: their records."""

    async def run(self, send: SendChunks, on_counted: Callable[[], None]) -> None:
        """Send the events of marked letters until no letter is marked, or the run is stopped; `on_counted`: there is something to save.

        Waits while the letters can't be read. Cancelled, it counts nothing more: what is in flight is sent again by the next run.
        """
        while marked := await self._letters.take_marked():
            left = self._left(marked)
            opened = self._open(marked)
            block = ImportBlock({letter.origin.file: letter.file for letter in marked})
            for _, events in groupby(chain.from_iterable([events for _, events in opened]), attrgetter("file")):
                block.send(EventColumns.of(list(events)), self._conversion.limits)
            if opened and not await send(block.chunks(self._lane, self._clock.now())):
                return
            for letter, made in opened:
                self._conclude(letter, made, left)
            on_counted()

    def counted(self) -> Sequence[int]:
        """The letters that a checkpoint made now counts as replayed: pass them to `saved` once it is written."""
        return tuple(self._ledger.totals.replayed)

    def saved(self, counted: Sequence[int]) -> None:
        """A checkpoint is written that counts these letters: they go. Checkpoints name them until they are gone."""
        gone = {number for number in counted if self._letters.is_gone(number)}
        self._letters.remove([number for number in counted if number not in gone])
        self._ledger.totals.replayed[:] = [number for number in self._ledger.totals.replayed if number not in gone]

    def _left(self, marked: Sequence[MarkedLetter]) -> Counter[RecordKey]:
        """How many letters there are of each record, without those that are counted as replayed."""
        self._records = {number: record for number, record in self._records.items() if not self._letters.is_gone(number)}
        left: Counter[RecordKey] = Counter()
        for letter in marked:
            left[letter.origin.key] = max(left[letter.origin.key], letter.together)
        left.subtract(self._records.values())
        return left

    def _open(self, marked: Sequence[MarkedLetter]) -> list[tuple[MarkedLetter, Sequence[FinishedEvent]]]:
        """The events of letters; without the letters that stay."""
        opened: list[tuple[MarkedLetter, Sequence[FinishedEvent]]] = []
        in_flight: set[EventKey] = set()
        for letter in marked:
            try:
                events = self._events(letter, in_flight)
            except _CannotReplay as stays:
                self._letters.refuse(letter.number, str(stays))
                continue
            in_flight.update(map(_key, events))
            opened.append((letter, events))
            if isinstance(letter.origin, EventOrigin):
                self._letters.returning[_key(events[0])] = letter.number
        return opened

    def _events(self, letter: MarkedLetter, in_flight: Set[EventKey]) -> Sequence[FinishedEvent]:
        """What is to be sent. Raises `_CannotReplay`."""
        origin = letter.origin
        events = self._as_sent(letter, origin) if isinstance(origin, EventOrigin) else self._made(letter, origin)
        if not in_flight.isdisjoint(map(_key, events)):
            raise _CannotReplay(_ON_ITS_WAY)
        return events

    def _made(self, letter: MarkedLetter, origin: RecordOrigin) -> Sequence[FinishedEvent]:
        """What the format makes of a record. Raises `_CannotReplay` unless that is all events."""
        made = self._conversion.of_records.convert(letter.block, origin.file, 0)
        if made.refused:
            raise _CannotReplay(f"{made.refused[0].why}: {made.refused[0].detail}")
        if not made.events:
            why = ", ".join(fate.reason for fate in made.fates.values())
            raise _CannotReplay(f"nothing of it is sent: it is left out ({why})")
        return [event._replace(part=event_of(origin.part, turn)) for turn, event in enumerate(made.events)]

    def _as_sent(self, letter: MarkedLetter, origin: EventOrigin) -> Sequence[FinishedEvent]:
        """An event as it was sent, or as it was edited since. Raises `_CannotReplay` if it isn't one that can be sent as it stands."""
        try:
            found = self._conversion.as_sent(letter.block)
        except RecordRefused as refused:
            raise _CannotReplay(f"{refused.why}: {refused.detail}") from None
        (text,), most = found.texts, self._conversion.max_event
        if len(text) > most:
            raise _CannotReplay(f"the event has {len(text):,} bytes, {most:,} are allowed")
        texts = found.distinct_ids[0], found.names[0], found.uuids[0], text
        return [FinishedEvent(found.times[0], *texts, origin.file, letter.line, origin.record, origin.event)]

    def _conclude(self, letter: MarkedLetter, events: Sequence[FinishedEvent], left: Counter[RecordKey]) -> None:
        """All events of a letter are settled: count it, unless it stays. `left`: how many letters there are of each record."""
        origin = letter.origin
        arrived: list[FinishedEvent] = []
        refused: list[FinishedEvent] = []
        for event in events:
            self._letters.returning.pop(_key(event), None)
            (arrived if self._letters.refusals.pop(_key(event), None) is None else refused).append(event)
        if refused and isinstance(origin, EventOrigin):
            return  # it stays; its note was written when the service refused it
        count_replayed(self._ledger.totals, arrived, refused, origin.day if isinstance(origin, EventOrigin) else "")
        left[origin.key] += len(refused) - 1
        if not left[origin.key]:
            count_repaired(self._ledger.books_of(letter.file.name))
        self._ledger.totals.replayed.append(letter.number)
        self._records[letter.number] = origin.key


class _CannotReplay(Exception):
    """A letter can't be sent as it is."""


def _key(event: FinishedEvent) -> EventKey:
    return event.file, event.number, event.part
