"""Dead letters in a file: durable with the commits of the buffer's log, before the records that settle their events.

Burying is synchronous: it takes the room, gives each letter its number and keeps it pending; the next group commit writes it. If a commit
fails the letters stay pending and are tried again every second; until one succeeds the upstream's refusals find no room here, so that
their lanes wait.

The books. The log knows what was received, delivered and dropped of the events that were in the buffer; this file knows the letters that
are in it now, what was received without ever being in a log (refused at receipt, or held by a buffer in memory), and what an operator
dropped. All that is changed in the transactions that change the rows, so that after a crash between any two steps they balance again:

| crash | the file | the log | after the opening |
|---|---|---|---|
| before the commit of a refused event's letter | no letter | unsettled | buffered; refused again |
| after it, before the log's mark | letter | unsettled | `places` names it, the log settles it: dead-lettered |
| before the commit of a letter at receipt | nothing | nothing | never received; its sender wasn't answered, or by `memory` |
| a replayed letter is in the log, not yet removed | letter | record with its number | `forget` removes it: buffered |
| before the commit of an operator's drop | marked letter | | dead-lettered; dropped once the daemon runs |
| after it | counter instead of the letter | | dropped |

With a buffer in memory there is no log: then what was received is what is here, with what was dropped, and a letter that is replayed takes
its part of what was received with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from forwarder.core.ack import AckCallback
from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.opening import Opened, open_file, why_of
from forwarder.deadletter.reading import Stored, read_accounts, read_places, read_stored
from forwarder.deadletter.records import (
    DeadLetterStatistics,
    KnownKeys,
    LetterAccount,
    Room,
    cost_of,
    costs_by_key,
    how_many_fit_at_receipt,
    key_of,
    log_buried,
)
from forwarder.deadletter.writing import Entry, Gone, Job, Marked, remove
from forwarder.storage.committer import RETRY_SECONDS, CommitJob, Committer

PENDING_AT_RECEIPT: Final = 4 << 20
"""Bytes of letters refused at receipt that are kept in memory while nothing can be written."""

_log = structlog.get_logger()


class LetterBooks(Protocol):
    """The verbs of the books that the store needs itself."""

    def unbury(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events turned out to have been dead letters before, and counted."""

    def discard(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """An operator dropped dead letters."""


@dataclass(slots=True)
class _Poll:
    """Somebody wants to know which letters are marked for a replay."""

    wanted: int
    told: Callable[[Sequence[Marked]], None]


class DeadLetterStore:
    """See `core.ports.DeadLetters`, and `MemoryDeadLetters`, whose methods it has. A part of a `Committer`; used on its loop."""

    def __init__(
        self, opened: Opened, max_bytes: int, committer: Committer, clock: Clock, books: LetterBooks, *, logged: bool, largest: int = 0
    ) -> None:
        """Use `open`."""
        self._file = opened.file
        self._moved_aside = opened.moved_aside
        self._failing = opened.failing
        self._committer = committer
        self._clock = clock
        self._books = books
        self._logged = logged
        self._room = Room(max_bytes, largest)
        self._pending: list[Entry] = []
        self._pending_cost = 0
        self._removals: list[int] = []
        self._notes: dict[int, str] = {}
        self._waiting: list[AckCallback] = []
        self._poll: _Poll | None = None
        self._polling: _Poll | None = None
        """The one whose group is under way."""
        self._job: Job | None = None
        self._retry: Timer | None = None
        self._probe_due = False
        self.busy: set[int] = set()
        """Letters that are on their way back into the buffer; nobody may drop them."""

        stored = self._stored()
        self._room.take(stored.cost - sum([cost for _, cost in stored.costs_at_receipt]), stored.letters)
        for key, cost in stored.costs_at_receipt:
            self._room.take_at_receipt(key, cost, 0)
        self._next = stored.last_number + 1
        self._wanted = stored.marked

    @classmethod
    def open(
        cls, directory: Path, max_bytes: int, committer: Committer, clock: Clock, *, books: LetterBooks, logged: bool, largest: int = 0
    ) -> DeadLetterStore:
        """Open the file in `directory`, which this process has the lock of, and become a part of `committer`.

        `logged`: whether the buffer's log counts what is received; `largest`: bytes of the largest event that a request may bring.

        A file that can't be read is moved aside; one that can't be written is read, and letters find no room until it can be. Raises
        `ConfigurationError` if it can't be read and can't be moved.
        """
        store = cls(open_file(directory, clock.now()), max_bytes, committer, clock, books, logged=logged, largest=largest)
        committer.add(store)
        if store._failing:
            store._try_again()
        return store

    # Before the start, on the thread that has opened it.

    def accounts(self) -> dict[Lane | None, LetterAccount]:
        """What the books begin with, per lane."""
        if self._file.connection is None:
            return {}
        return read_accounts(self._file.connection, logged=self._logged, without=self._removals)

    def places(self, at_least: int = 0) -> list[tuple[int, int]]:
        """Where in the log the events were that are letters now: (sequence, index), from sequence `at_least` on, in order."""
        return [] if self._file.connection is None else read_places(self._file.connection, at_least)

    def last_sequence(self) -> int:
        """The highest sequence of a place, 0 if there is none: a log that is begun anew must go on above it."""
        return self._stored().last_sequence

    def forget(self, numbers: Iterable[int]) -> None:
        """Remove letters whose replay is in the log already, at once if that can be done, else as soon as it can.

        No letter gets one of these numbers, or a lower one, from now on.
        """
        known = list(numbers)
        self._next = max(self._next, max(known, default=0) + 1)
        self._removals += known
        connection = self._file.connection
        if connection is None or self._file.read_only or not known:
            return
        connection.execute("BEGIN IMMEDIATE")
        gone: list[Gone] = []
        for number in known:
            gone += remove(connection, "number = ?", (number,))
        connection.execute("COMMIT")
        self._release(gone)
        self._removals.clear()

    # On the loop.

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep all of the letters, or none and answer False: there is no room, or nothing can be written now."""
        cost = sum(map(cost_of, letters))
        if self._failing or not self._room.fits(cost):
            return False
        self._room.take(cost, len(letters))
        self._keep(letters, receipt=False)
        return True

    def bury_at_receipt(self, letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share of what is refused at receipt; how many those were."""
        if self._failing and self._pending_cost > PENDING_AT_RECEIPT:
            _log.warning("events refused at receipt were dropped: dead letters can't be written", events=len(letters), why=self._failing)
            return 0
        kept = how_many_fit_at_receipt(self._room, letters)
        self._keep(letters[:kept], receipt=True)
        return kept

    def reserve_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Take the room for letters at receipt that have to be kept, all or none; whether there was room."""
        return not (self._failing and self._pending_cost > PENDING_AT_RECEIPT) and self._room.reserve_at_receipt(letters)

    def could_hold_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Whether letters at receipt would have room if there were no others."""
        return self._room.could_hold_at_receipt(costs_by_key(letters))

    def release_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Letters that room was taken for aren't needed."""
        self._room.release_at_receipt(letters)

    def bury_reserved_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters that room was taken for."""
        log_buried(letters)
        self._keep(letters, receipt=True)

    def distinguish(self, known: KnownKeys) -> None:
        """Tell known keys from unknown ones, from now on; to be called again whenever they change."""
        self._room.distinguish(known)

    def reserve(self, size: int, count: int) -> int | None:
        """Keep room free for so many letters of `size` bytes together; how much that is. None: there is none, or nothing can be written."""
        return None if self._failing else self._room.reserve(size, count)

    def could_hold(self, size: int, count: int) -> bool:
        """Whether so many letters of `size` bytes together would have room if there were no others."""
        return self._room.could_hold(size, count)

    def release(self, reserved: int) -> None:
        """Room that was kept free isn't needed."""
        self._room.give(reserved, 0)

    def bury_reserved(self, letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep letters in the room that was kept free for them."""
        self.release(reserved)
        self.bury_at_exit(letters)

    def bury_at_exit(self, letters: Sequence[DeadLetter]) -> None:
        """Keep the letters whatever the limit: what they held of the buffer is free with them."""
        self._room.take(sum(map(cost_of, letters)), len(letters))
        self._keep(letters, receipt=False)

    def when_durable(self, held: AckCallback) -> bool:
        """Whether everything that was buried so far is durable; if not, `held` is told when it is, or that it couldn't be written yet."""
        if self._pending:
            self._waiting.append(held)
        elif self._job is not None and self._job.letters:
            self._job.waiting.append(held)
        else:
            return True
        return False

    def remove(self, numbers: Iterable[int]) -> None:
        """Letters were replayed: they go with the next group. The books have them back in the buffer already."""
        self._removals += numbers
        self._committer.request()

    def unmark(self, number: int, note: str) -> None:
        """A letter's replay came to nothing: it stays, unmarked, with a note that says why."""
        self._notes[number] = note
        self._committer.request()

    def poll(self, wanted: int, told: Callable[[Sequence[Marked]], None]) -> None:
        """Do what the marks say: drop letters, and tell which ones (at most `wanted`) are to be replayed, with the next group.

        Those in `busy` aren't told. Nobody is told if the group fails.
        """
        self._poll = _Poll(wanted, told)
        self._committer.request()

    def statistics(self) -> DeadLetterStatistics:
        """Figures for metrics, health and tests."""
        room = self._room
        return DeadLetterStatistics(
            room.used, room.limit, room.letters, self._failing, self._moved_aside, self._wanted, self._file.path
        )

    def close(self) -> None:
        """Close the file; after the committer. What could not be written is lost, and said."""
        if self._retry is not None:
            self._retry.cancel()
        if self._pending:
            _log.error("dead letters were lost: they could not be written", events=len(self._pending), why=self._failing)
        self._file.close()

    @property
    def awaited(self) -> int:
        """See `storage.committer.CommitParticipant.awaited`."""
        return len(self._waiting)

    def prepare(self) -> Job | None:
        """See `storage.committer.CommitParticipant.prepare`."""
        probe, self._probe_due = self._probe_due, False
        if not (self._pending or self._removals or self._notes or self._poll or probe):
            return None
        self._job = Job(
            self._file,
            self._logged,
            self._pending,
            self._removals,
            self._notes,
            probe=bool(self._failing),
            marked_wanted=self._poll.wanted if self._poll else 0,
            busy=frozenset(self.busy),
            waiting=self._waiting,
        )
        self._pending, self._removals, self._notes, self._waiting = [], [], {}, []
        self._pending_cost = 0
        self._polling, self._poll = self._poll, None
        return self._job

    def finish(self, job: CommitJob, error: Exception | None) -> None:  # noqa: ARG002 - it is `_job`
        """See `storage.committer.CommitParticipant.finish`."""
        done, self._job = self._job, None
        polling, self._polling = self._polling, None
        if done is None:
            return
        if error is None:
            self._succeeded(done)
        else:
            self._failed(done, error)
        refusal = None if error is None else Backpressure(f"dead letters can't be written: {self._failing}")
        for held in done.waiting:
            held(refusal)
        if polling is not None:
            polling.told(done.marked if error is None else ())

    def _succeeded(self, job: Job) -> None:
        if self._failing:
            _log.info("dead letters can be written again")
        self._failing = ""
        self._release(job.removed)
        self._release(job.dropped)
        self.busy.difference_update(job.removals, job.notes)
        for gone in job.dropped:
            self._books.discard(gone.lane, gone.reason, 1)
        for entry in job.known:
            self._give(entry.letter.lane, cost_of(entry.letter), receipt=entry.receipt)
            self._books.unbury(entry.letter.lane, entry.letter.reason, 1)
        if job.marked_wanted:
            self._wanted = job.wanted

    def _failed(self, job: Job, error: Exception) -> None:
        """Everything is to be done again; the connection is opened anew."""
        self._pending = job.letters + self._pending
        self._pending_cost = sum(cost_of(entry.letter) for entry in self._pending)
        self._removals = job.removals + self._removals
        self._notes = {**job.notes, **self._notes}
        why = why_of(error)
        if not self._failing:
            hint = "Make room on the disk, or the directory writable; it is tried again every second."
            _log.error("dead letters can't be written: lanes with refused events wait", why=why, path=str(self._file.path), hint=hint)
        self._failing = why
        if not self._file.read_only:
            self._file.close()
        self._try_again_later()

    def _try_again_later(self) -> None:
        if self._retry is None:
            self._retry = self._clock.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if self._failing:
            self._probe_due = True
            self._committer.request()

    def _keep(self, letters: Sequence[DeadLetter], *, receipt: bool) -> None:
        if letters:
            self._pending += [Entry(number, letter, receipt) for number, letter in enumerate(letters, self._next)]
            self._next += len(letters)
            self._pending_cost += sum(map(cost_of, letters))
            self._committer.request()

    def _release(self, gone: Iterable[Gone]) -> None:
        for each in gone:
            self._give(each.lane, each.cost, receipt=each.receipt)

    def _give(self, lane: Lane | None, cost: int, *, receipt: bool) -> None:
        if receipt:
            self._room.take_at_receipt(key_of(lane), -cost, -1)
        else:
            self._room.give(cost, 1)

    def _stored(self) -> Stored:
        return Stored() if self._file.connection is None else read_stored(self._file.connection)
