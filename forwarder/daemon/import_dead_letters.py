"""The dead letters of an import, in its state folder: what the format refused and what the service
refused, each with file and line.

Invariants: a record that a format refused is durable here before it counts as read (the intake
sees to that), and an event that the service refused before a checkpoint is written that counts it
(`durable`). What is refused again, because a run was killed before its checkpoint, is the same
letter: letters are identified by their places. While letters can't be written, nothing that is
refused is settled; none is lost.

Once all records of the source are settled, letters that are marked for it are replayed. A record
goes through the format again, in its old place, so that its uuid is what it would have been; an
event goes again as it is. A letter leaves the folder once each of its events has arrived or is a
letter of its own, that is counted, and a checkpoint is written with the counts and the letter's
number. So after a kill it is sent again with the same bytes, or removed without being sent:
counted once in any case.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter
from forwarder.core.proposals import proposed
from forwarder.deadletter.schema import open_readable
from forwarder.deadletter.selection import marked_of
from forwarder.deadletter.store import DeadLetterStore
from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.sources.files.record_blocks import SourceFile
from forwarder.sources.imports.blocks import (
    ChunkLimits,
    EventOrigin,
    ImportBlock,
    ReadableDeadLetter,
    RecordKey,
    RecordOrigin,
    event_key,
    event_of,
    read_origin,
)
from forwarder.sources.imports.columns import EventColumns, EventKey, FinishedEvent
from forwarder.sources.imports.conversion import Conversion
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.import_books import (
    FateKind,
    RecordFate,
    RefusalExample,
    count_replayed,
)
from forwarder.sources.imports.source import ImportLedger, SendChunks
from forwarder.storage.committer import RETRY_SECONDS, Committer
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.telemetry.books import Books
from forwarder.telemetry.readable import size

AT_ONCE: Final = 200
"""Marked letters that are fetched at once."""
_read_as_sent: Final = NativeConverter("history").convert_event
_FOREIGN: Final = "it doesn't say which record it was: it isn't a letter of an import"
_DAMAGED: Final = (
    "its bytes aren't those that were written: the disk has changed them. Replay it with "
    "`--with FILE`"
)


class ImportDeadLetters(DeadLetterStore):
    """The dead letters of one import. Used on one loop: the intake adds what a format refused,
    delivery what the service refused.
    """

    folder: Path
    refusals: dict[EventKey, RecordFate]
    """Events that the service has refused; whoever counts an event takes it out."""
    returning: dict[EventKey, int]
    """Letters whose events are in flight, by these: refused again, they stay
    the letters that they are.
    """
    is_full = False
    """Whether the last letters found no room. While they don't, what is marked to be dropped is
    dropped at each try.
    """

    @staticmethod
    def marked_in(state: Path) -> int:
        """How many letters in a state folder are marked to be replayed: an import with some isn't
        done. Nothing is opened for writing.

        0 also if they can't be read: opening them says why.
        """
        try:
            with closing(open_readable(state / DEAD_LETTERS)) as connection:
                return marked_of(connection)
        except (sqlite3.Error, OSError):
            return 0

    @classmethod
    def open_in(
        cls, folder: Path, clock: Clock, max_bytes: int, replayed: Sequence[int] = ()
    ) -> ImportDeadLetters:
        """Open the letters in a state folder, which this process has the lock of.

        `replayed`: letters that the checkpoint counts as replayed (`ImportTotals.replayed`), which
        are removed if they are still there. A file that can't be read is quarantined and reported.
        Raises `ConfigurationError` if that can't be done.
        """
        # an import counts by record
        dead_letters = cls.open(
            folder, max_bytes, Committer(clock), clock, books=Books(), logged=False
        )
        dead_letters.folder = folder
        dead_letters.refusals = {}
        dead_letters.returning = {}
        dead_letters.forget(replayed)
        dead_letters.remove(replayed)  # again, to know when they are gone
        return dead_letters

    def start(self) -> None:
        """Begin to write, on the running loop."""
        self._committer.start()

    async def end(self) -> None:
        """Write what isn't written, and close the file."""
        await self._committer.close()
        self.close()

    @property
    def waiting(self) -> str:
        """Why letters can't be written now; empty if they can."""
        statistics = self.statistics()
        if statistics.failing:
            return (
                f"dead letters can't be written: {statistics.failing}; "
                "it is tried again every second"
            )
        if self.is_full:
            ask = f"replay or drop some: `{proposed('dead-letters ls --path', self.folder)}`"
            return (
                f"there is no room for more dead letters ({size(statistics.bytes)} of "
                f"{size(statistics.limit_bytes)}); {ask}"
            )
        return ""

    def add(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Keep events that the service refused, all or none: False, there is no room, or nothing
        can be written. See `durable`.

        The event of a letter in flight stays that letter, with a note.
        """
        by_key = {event_key(dead_letter.place): dead_letter for dead_letter in dead_letters}
        accepted = super().add(
            [dead_letter for key, dead_letter in by_key.items() if key not in self.returning]
        )
        self._note(full=not accepted)
        if not accepted:
            return False
        for key, dead_letter in by_key.items():
            file, _, line = dead_letter.coordinates.rpartition(":")
            self.refusals[key] = RecordFate(
                FateKind.REFUSED,
                dead_letter.reason.value,
                RefusalExample(file, int(line), dead_letter.why),
            )
            if key in self.returning:
                self.unmark(
                    self.returning[key],
                    f"the service refused it again: {dead_letter.why or dead_letter.reason}",
                )
        return True

    def reserve(self, size: int, count: int) -> int | None:
        reserved = super().reserve(size, count)
        self._note(full=reserved is None)
        return reserved

    def _note(self, *, full: bool) -> None:
        self.is_full = full
        if full and self._poll is None:
            self.poll(1, lambda _: None)  # it isn't asked which letters are marked to be replayed

    async def durable(self, limit: float | None = None) -> bool:
        """Whether all that was dead-lettered is durable within `limit` seconds; if so, nothing is
        dead-lettered before the caller's next step.
        """
        end = None if limit is None else self._clock.monotonic() + limit
        heard = asyncio.Event()
        # if it fails, the store tries again by itself
        while not self.when_durable(lambda _: heard.set()):
            if not await wait_for_event(
                heard, None if end is None else end - self._clock.monotonic(), self._clock
            ):
                return False
            heard.clear()
        return True

    async def take_marked(self) -> Sequence[ReadableDeadLetter]:
        """The next letters that are marked for a replay, some of them; none if there are no
        others. Those marked to be dropped are dropped.

        They aren't given again before they are unmarked or removed. Waits
        while the file can't be read.
        """
        while True:
            answers = asyncio.Queue[Sequence[MarkedDeadLetter]]()
            self.poll(AT_ONCE, answers.put_nowait)
            polled = await answers.get()
            self.busy.update(stored.number for stored in polled)
            if marked := [
                dead_letter
                for stored in polled
                if (dead_letter := self._readable(stored)) is not None
            ]:
                return marked
            if not polled:
                if not self.statistics().failing:
                    return ()
                await self._clock.sleep(RETRY_SECONDS)

    def _readable(self, marked: MarkedDeadLetter) -> ReadableDeadLetter | None:
        """None: it can't be replayed, and stays."""
        origin = read_origin(marked.attributes)
        if origin is None or not marked.intact:
            self.unmark(marked.number, _DAMAGED if origin else _FOREIGN)
            return None
        file, _, line = marked.coordinates.rpartition(":")
        return ReadableDeadLetter(
            marked.number,
            SourceFile(file, origin.identity),
            int(line),
            marked.data,
            origin,
            marked.together,
        )

    def remove(self, numbers: Iterable[int]) -> None:
        """Letters were replayed, and that is saved: they go as soon as that can be written."""
        if some := [*numbers]:
            self.busy.update(some)
            super().remove(some)

    def is_gone(self, number: int) -> bool:
        """Whether a letter that was to be removed is, durably."""
        return number not in self.busy


@dataclass
class DeadLetterReplays:
    """How letters that are marked for it are sent again; see the module."""

    dead_letters: ImportDeadLetters
    ledger: ImportLedger
    """Where the source's records are counted."""
    conversion: Conversion
    """It knows no repeats, and no limit: a record comes by itself."""
    limits: ChunkLimits
    max_event: int
    """Bytes that an event may have."""
    lane: Lane
    clock: Clock
    _records: dict[int, RecordKey] = field(default_factory=dict, init=False)
    """Letters that this run has counted as replayed and that may not be gone yet,
    by number: their records.
    """

    async def run(self, send: SendChunks, on_counted: Callable[[], None]) -> None:
        """Send the events of marked letters until no letter is marked, or the run is stopped;
        `on_counted`: there is something to save.

        Waits while the letters can't be read. Cancelled, it counts nothing more: what is in flight
        is sent again by the next run.
        """
        while marked := await self.dead_letters.take_marked():
            left = self._left(marked)
            opened = self._open(marked)
            block = ImportBlock(
                {dead_letter.origin.file: dead_letter.file for dead_letter in marked}
            )
            for _, events in groupby(
                chain.from_iterable([events for _, events in opened]), attrgetter("file")
            ):
                block.send(EventColumns.of(list(events)), self.limits)
            if opened and not await send(block.chunks(self.lane, self.clock.now())):
                return
            for dead_letter, made in opened:
                self._conclude(dead_letter, made, left)
            on_counted()

    def saved(self) -> None:
        """A checkpoint is written: the letters that it counts as replayed go. Checkpoints name
        them until they are gone.
        """
        replayed = self.ledger.totals.replayed
        replayed[:] = [number for number in replayed if not self.dead_letters.is_gone(number)]
        self.dead_letters.remove(replayed)

    def _left(self, marked: Sequence[ReadableDeadLetter]) -> Counter[RecordKey]:
        """How many letters there are of each record, without those that are counted as replayed."""
        self._records = {
            number: record
            for number, record in self._records.items()
            if not self.dead_letters.is_gone(number)
        }
        left: Counter[RecordKey] = Counter()
        for dead_letter in marked:
            left[dead_letter.origin.key] = max(left[dead_letter.origin.key], dead_letter.together)
        left.subtract(self._records.values())
        return left

    def _open(
        self, marked: Sequence[ReadableDeadLetter]
    ) -> list[tuple[ReadableDeadLetter, Sequence[FinishedEvent]]]:
        """The events of letters; without the letters that stay."""
        opened: list[tuple[ReadableDeadLetter, Sequence[FinishedEvent]]] = []
        in_flight: set[EventKey] = set()
        for dead_letter in marked:
            origin = dead_letter.origin
            events = (
                self._as_sent(dead_letter, origin)
                if isinstance(origin, EventOrigin)
                else self._made(dead_letter, origin)
            )
            if not isinstance(events, str) and not in_flight.isdisjoint(
                [event.key for event in events]
            ):
                events = (
                    "another letter of the same event is in flight; replay this one again if "
                    "it is still needed"
                )
            if isinstance(events, str):
                self.dead_letters.unmark(dead_letter.number, events)
                continue
            in_flight.update([event.key for event in events])
            opened.append((dead_letter, events))
            if isinstance(dead_letter.origin, EventOrigin):
                self.dead_letters.returning[events[0].key] = dead_letter.number
        return opened

    def _made(
        self, dead_letter: ReadableDeadLetter, origin: RecordOrigin
    ) -> Sequence[FinishedEvent] | str:
        """What the format makes of a record; why it stays a letter, unless that is all events."""
        made = self.conversion.convert(dead_letter.block, origin.file, 0)
        if made.refused:
            return f"{made.refused[0].why}: {made.refused[0].detail}"
        if not made.events:
            return (
                "nothing of it is sent: it is left out "
                f"({', '.join(fate.reason for fate in made.fates.values())})"
            )
        return [
            event._replace(part=event_of(origin.part, turn))
            for turn, event in enumerate(made.events)
        ]

    def _as_sent(
        self, dead_letter: ReadableDeadLetter, origin: EventOrigin
    ) -> Sequence[FinishedEvent] | str:
        """An event as it was sent, or as it was edited since; why it stays a letter, if it can't
        be sent as it stands.
        """
        try:
            block = _read_as_sent(dead_letter.block)
        except RecordRefused as refused:
            return f"{refused.why}: {refused.detail}"
        (text,) = block.texts
        most = self.max_event
        if len(text) > most:
            return f"the event has {len(text):,} bytes, {most:,} are allowed"
        texts = block.distinct_ids[0], block.names[0], block.uuids[0], text
        return [
            FinishedEvent(
                block.times[0], *texts, origin.file, dead_letter.line, origin.record, origin.event
            )
        ]

    def _conclude(
        self,
        dead_letter: ReadableDeadLetter,
        events: Sequence[FinishedEvent],
        left: Counter[RecordKey],
    ) -> None:
        """All events of a letter are settled: count it, unless it stays. `left`: how many letters
        there are of each record.
        """
        origin = dead_letter.origin
        arrived: list[FinishedEvent] = []
        refused: list[FinishedEvent] = []
        for event in events:
            self.dead_letters.returning.pop(event.key, None)
            (
                arrived if self.dead_letters.refusals.pop(event.key, None) is None else refused
            ).append(event)
        if refused and isinstance(origin, EventOrigin):
            return  # it stays; its note was written when the service refused it
        count_replayed(
            self.ledger.totals,
            arrived,
            refused,
            origin.day if isinstance(origin, EventOrigin) else "",
        )
        left[origin.key] += len(refused) - 1
        if not left[origin.key]:
            self.ledger.count_repaired(dead_letter.file.name, dead_letter.line)
        self.ledger.totals.replayed.append(dead_letter.number)
        self._records[dead_letter.number] = origin.key
