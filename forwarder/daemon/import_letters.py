"""The dead letters of an import, in its state folder: what the format refused and what the service refused, each with file and line.

Invariants: a record that a format refused is durable here before it counts as read (the intake sees to that), and an event that the service
refused before a checkpoint is written that counts it (`durable`). What is refused again, because a run was killed before its checkpoint, is
the same letter: letters are identified by their places. While letters can't be written, nothing that is refused is settled; none is lost.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from forwarder.core.clock import Clock
from forwarder.core.errors import Backpressure
from forwarder.core.ports import DeadLetter
from forwarder.deadletter.schema import UnreadableDatabase, open_readable
from forwarder.deadletter.selection import marked_of
from forwarder.deadletter.store import DeadLetterStore
from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.sources.files.records import SourceFile
from forwarder.sources.imports.letters import EventKey, MarkedLetter, ServiceRefusal, event_key, read_origin
from forwarder.storage.committer import RETRY_SECONDS, Committer
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.telemetry.books import Books
from forwarder.telemetry.readable import size

AT_ONCE: Final = 200
"""Marked letters that are fetched at once."""
_FOREIGN: Final = "it doesn't say which record it was: it isn't a letter of an import"
_DAMAGED: Final = "its bytes aren't those that were written: the disk has changed them. Replay it with `--with FILE`"


class ImportDeadLetters:
    """See the module, and `sources.imports.replaying.ReplayedLetters`. Used on one loop."""

    def __init__(self, store: ImportLetterStore, committer: Committer, clock: Clock, folder: Path) -> None:
        """Use `open`."""
        self.folder = folder
        self.store = store
        """For the intake, which buries what a format refused."""
        self.refusals: dict[EventKey, ServiceRefusal] = {}
        """Events that the service has refused; whoever counts an event takes it out."""
        self.returning: dict[EventKey, int] = {}
        """Letters whose events are in flight, by these: refused again, they stay the letters that they are."""
        self._committer = committer
        self._clock = clock

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
    def open(cls, state: Path, clock: Clock, max_bytes: int, replayed: Sequence[int] = ()) -> ImportDeadLetters:
        """Open the letters in the folder `state`, which this process has the lock of.

        `replayed`: letters that the checkpoint counts as replayed (`ImportTotals.replayed`), which are removed if they are still there. A
        file that can't be read is quarantined and reported. Raises `ConfigurationError` if that can't be done.
        """
        committer = Committer(clock)
        books = Books()  # not read: an import counts by record
        store = ImportLetterStore.open(state, max_bytes, committer, clock, books=books, logged=False)
        store.forget(replayed)
        letters = cls(store, committer, clock, state)
        letters.remove(replayed)  # again, to know when they are gone
        return letters

    def start(self) -> None:
        """Begin to write, on the running loop."""
        self._committer.start()

    async def close(self) -> None:
        """Write what isn't written, and close the file."""
        await self._committer.close()
        self.store.close()

    @property
    def waiting(self) -> str:
        """Why letters can't be written now; empty if they can."""
        found = self.store.statistics()
        if found.failing:
            return f"dead letters can't be written: {found.failing}; it is tried again every second"
        if self.store.is_full:
            ask = f"replay or drop some: `forwarder dead-letters ls --path {self.folder}`"
            return f"there is no room for more dead letters ({size(found.bytes)} of {size(found.limit_bytes)}); {ask}"
        return ""

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep events that the service refused, all or none: False, there is no room, or nothing can be written. See `durable`.

        The event of a letter in flight stays that letter, with a note.
        """
        found = {event_key(letter.place): letter for letter in letters}
        if not self.store.bury([letter for key, letter in found.items() if key not in self.returning]):
            return False
        for key, letter in found.items():
            self.refusals[key] = ServiceRefusal(letter.reason.value, letter.why)
            if key in self.returning:
                self.refuse(self.returning[key], f"the service refused it again: {letter.why or letter.reason}")
        return True

    async def durable(self) -> None:
        """Returns when all that was buried is durable; nothing is buried between that and the caller's next step.

        Cancelling only ends the wait.
        """
        heard = asyncio.Event()

        def wake(error: Backpressure | None) -> None:  # noqa: ARG001 - the store tries again by itself
            heard.set()

        while not self.store.when_durable(wake):
            await heard.wait()
            heard.clear()

    async def take_marked(self) -> Sequence[MarkedLetter]:
        """The next letters that are marked for a replay, some of them; none if there are no others. Those marked to be dropped are dropped.

        They aren't given again before they are refused (`refuse`) or removed. Waits while the file can't be read.
        """
        while True:
            found = await self._ask()
            self.store.busy.update(each.number for each in found)
            if marked := [letter for each in found if (letter := self._readable(each)) is not None]:
                return marked
            if not found:
                if not self.store.statistics().failing:
                    return ()
                await self._clock.sleep(RETRY_SECONDS)

    async def _ask(self) -> Sequence[MarkedDeadLetter]:
        heard: asyncio.Future[Sequence[MarkedDeadLetter]] = asyncio.get_running_loop().create_future()

        def answer(marked: Sequence[MarkedDeadLetter]) -> None:
            if not heard.done():
                heard.set_result(marked)

        self.store.poll(AT_ONCE, answer)
        return await heard

    def _readable(self, found: MarkedDeadLetter) -> MarkedLetter | None:
        """None: it can't be replayed, and stays."""
        origin = read_origin(found.attributes)
        if origin is None or not found.intact:
            self.refuse(found.number, _DAMAGED if origin else _FOREIGN)
            return None
        file, _, line = found.coordinates.rpartition(":")
        return MarkedLetter(found.number, SourceFile(file, origin.identity), int(line), found.data, origin, found.together)

    def refuse(self, number: int, why: str) -> None:
        """A letter can't be replayed as it is: it stays, with a note that says why."""
        self.store.unmark(number, why)

    def remove(self, numbers: Sequence[int]) -> None:
        """Letters were replayed, and that is saved: they go as soon as that can be written."""
        if numbers:
            self.store.busy.update(numbers)
            self.store.remove(numbers)

    def is_gone(self, number: int) -> bool:
        """Whether a letter that was to be removed is, durably."""
        return number not in self.store.busy


class ImportLetterStore(DeadLetterStore):
    """Knows whether the last letters found room. While they don't, what is marked to be dropped is dropped at each try."""

    is_full = False

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """See `DeadLetterStore`."""
        return self._noted(found_room=super().bury(letters))

    def reserve(self, size: int, count: int) -> int | None:
        """See `DeadLetterStore`."""
        reserved = super().reserve(size, count)
        self._noted(found_room=reserved is not None)
        return reserved

    def _noted(self, *, found_room: bool) -> bool:
        self.is_full = not found_room
        if self.is_full and self._poll is None:
            self.poll(1, _ignore)
        return found_room


def _ignore(marked: Sequence[MarkedDeadLetter]) -> None:
    """Which letters are marked to be replayed isn't asked here."""
