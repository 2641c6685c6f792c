"""The dead letters of an import, in its state folder: what the format refused and what the service refused, each with file and line.

A letter's place (`core.ports.DeadLetter.place`) is its record, as file and number in one, and the part of the record that it holds
(`ImportDeadLetter.part`). Its coordinates are `file:line`, for people. Its attributes hold the rest: above all the file's identity, from
which the uuid of a record without a natural key follows.

Invariants: a record that a format refused is durable here before it counts as read, and an event that the service refused before a
checkpoint is written that counts it (`durable`). What is refused again, because a run was killed before its checkpoint, is the same letter:
letters are identified by their places. While letters can't be written, nothing that is refused is settled; none is lost.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from forwarder.core.clock import Clock
from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane, Where
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.schema import UnreadableDatabase, open_readable
from forwarder.deadletter.selection import marked_of
from forwarder.deadletter.store import DeadLetterStore
from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.imports.batching import SOURCE
from forwarder.sources.files.records import RecordBlock, SourceFile
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.conversion import OF_EVENTS, ImportDeadLetter
from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.times import day_of
from forwarder.storage.committer import RETRY_SECONDS, Committer
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.telemetry.readable import size

AT_ONCE: Final = 200
"""Marked letters that are fetched at once."""
Place = tuple[int, int]
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


class ImportDeadLetters:
    """See the module. Used on one loop; `begin` says which files there are, before anything of them is buried."""

    def __init__(self, store: DeadLetterStore, committer: Committer, clock: Clock, folder: Path, lane: Lane | None) -> None:
        """Use `open`."""
        self._store = store
        self._committer = committer
        self._clock = clock
        self._folder = folder
        self._lane = lane
        self._files: dict[int, SourceFile] = {}
        self._full = False
        self._asking = False
        """Whether a poll for marked letters is pending."""
        self.returning: dict[Place, int] = {}
        """Letters whose events are in flight, by the places of these: refused again, they stay the letters that they are."""

    @staticmethod
    def marked_in(state: Path) -> int:
        """How many letters in a state folder are marked to be replayed: an import with some isn't done. Nothing is opened for writing.

        0 also if they can't be read: opening them says why.
        """
        try:
            with closing(open_readable(state / DEAD_LETTERS)) as connection:
                return marked_of(connection)
        except (UnreadableDatabase, sqlite3.Error, OSError):
            return 0

    @classmethod
    def open(
        cls, state: Path, clock: Clock, max_bytes: int, *, lane: Lane | None = None, replayed: Sequence[int] = ()
    ) -> ImportDeadLetters:
        """Open the letters in the folder `state`, which this process has the lock of.

        `lane`: whose they are. `replayed`: letters that the checkpoint counts as replayed (`ImportTotals.replayed`), which are removed if
        they are still there. A file that can't be read is quarantined and reported. Raises `ConfigurationError` if that can't be done.
        """
        committer = Committer(clock)
        store = DeadLetterStore.open(state, max_bytes, committer, clock, books=_NoBooks(), logged=False)
        store.forget(replayed)
        return cls(store, committer, clock, state, lane)

    def start(self) -> None:
        """Begin to write, on the running loop."""
        self._committer.start()

    def begin(self, number: int, file: SourceFile) -> None:
        """A file of the source, and its number."""
        self._files[number] = file

    def file(self, number: int) -> SourceFile | None:
        """The file with that number; None if it hasn't begun."""
        return self._files.get(number)

    def where(self, event: FinishedEvent) -> Where:
        """See `Chunk.where`."""
        return where_of_event(event, self._files[event.file])

    @property
    def waiting(self) -> str:
        """Why letters can't be written now; empty if they can."""
        found = self._store.statistics()
        if found.failing:
            return f"dead letters can't be written: {found.failing}; it is tried again every second"
        if self._full:
            ask = f"replay or drop some: `forwarder dead-letters ls --path {self._folder}`"
            return f"there is no room for more dead letters ({size(found.bytes)} of {size(found.limit_bytes)}); {ask}"
        return ""

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep events that the service refused, all or none: False, there is no room, or nothing can be written. See `durable`.

        The event of a letter in flight stays that letter, with a note.
        """
        fresh = [letter for letter in letters if letter.place not in self.returning]
        if not self._keep(fresh):
            return False
        for letter in letters:
            if letter.place in self.returning:
                self.refuse(self.returning[letter.place], f"the service refused it again: {letter.why or letter.reason}")
        return True

    async def bury_records(self, records: Sequence[ImportDeadLetter]) -> None:
        """Keep records that a format refused. Returns when they are durable, and waits as long as that can't be (`waiting`).

        Cancelled, it keeps as many as it had begun to; buried again, they are the same letters.
        """
        now = self._clock.now()
        for record in records:
            letter = self._letter(record, now)
            while not self._keep([letter]):
                await self._clock.sleep(RETRY_SECONDS)
        await self.durable()

    async def durable(self) -> None:
        """Returns when all that was buried is durable; nothing is buried between that and the caller's next step.

        Cancelling only ends the wait.
        """
        held = _DurableWait()
        while not self._store.when_durable(held):
            await held.heard.wait()
            held = _DurableWait()

    async def take_marked(self) -> Sequence[MarkedDeadLetter]:
        """The next letters that are marked for a replay, some of them; none if there are no others. Those marked to be dropped are dropped.

        They aren't given again before they are refused (`refuse`) or removed. Waits while the file can't be read.
        """
        while True:
            marked = await self._ask()
            if marked or not self._store.statistics().failing:
                self._store.busy.update(each.number for each in marked)
                return marked
            await self._clock.sleep(RETRY_SECONDS)

    def refuse(self, number: int, why: str) -> None:
        """A letter can't be replayed as it is: it stays, with a note that says why."""
        self._store.unmark(number, why)

    def remove(self, numbers: Sequence[int]) -> None:
        """Letters were replayed, and that is saved: they go as soon as that can be written."""
        self._store.busy.update(numbers)
        self._store.remove(numbers)

    def is_gone(self, number: int) -> bool:
        """Whether a letter that was to be removed is, durably."""
        return number not in self._store.busy

    async def close(self) -> None:
        """Write what isn't written, and close the file."""
        await self._committer.close()
        self._store.close()

    def _keep(self, letters: Sequence[DeadLetter]) -> bool:
        kept = self._store.bury(letters)
        self._full = not kept
        if not kept and not self._asking:
            self._store.poll(1, _unreported)  # drops what is marked to be dropped
        return kept

    async def _ask(self) -> Sequence[MarkedDeadLetter]:
        heard: asyncio.Future[Sequence[MarkedDeadLetter]] = asyncio.get_running_loop().create_future()

        def receive(marked: Sequence[MarkedDeadLetter]) -> None:
            if not heard.done():
                heard.set_result(marked)

        self._asking = True
        try:
            self._store.poll(AT_ONCE, receive)
            return await heard
        finally:
            self._asking = False

    def _letter(self, record: ImportDeadLetter, now: float) -> DeadLetter:
        where = where_of_record(record, self._files[record.file_number].identity)
        return DeadLetter(REASONS[record.why], self._lane, record.data, now, record.detail, SOURCE, *where)


class _DurableWait:
    """See `core.ack.AckCallback`. An error is none to wait for: the store tries again by itself."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def __call__(self, error: Backpressure | None) -> None:  # noqa: ARG002 - asked again
        self.heard.set()


class _NoBooks:
    """An import counts in its own (`migration.ledger`), by record, where no letter counts twice."""

    def unbury(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """See `deadletter.store.DeadLetterBooks`."""

    def discard(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """See `deadletter.store.DeadLetterBooks`."""


def _unreported(marked: Sequence[MarkedDeadLetter]) -> None:
    """Which letters are marked to be replayed isn't asked here."""


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
    """The part of its record (`FinishedEvent.part`) of an event that was made of a repaired part; no other event has it."""
    if not part:
        return turn
    return part - OF_EVENTS if part >= OF_EVENTS else _OF_MEMBERS + part - 1
