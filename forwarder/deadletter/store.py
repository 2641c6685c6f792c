"""The store of dead letters on disk: durable with the commits of the buffer's log, before the
records that settle their events.

Dead-lettering is synchronous: it reserves the room, numbers each dead letter and keeps it pending;
the next group commit writes it. If a commit fails, dead letters stay pending and are written again
every second; until that succeeds the upstream's refusals find no room here, so that their lanes
wait.

The books. The log knows what was received, delivered and dropped of the events that were in the
buffer; this database knows the dead letters in it, what was received without ever being in a log
(rejected at receipt, or from a buffer in memory), and what an operator dropped. All of it changes
in the transactions that change the rows, so that the books balance after a crash between any two
steps:

- Before the commit of a refused event, the database has nothing and the log has it unsettled.
  After the opening it is buffered, and refused again.
- After that commit and before the log's mark, the database has the dead letter and the log has the
  event unsettled. `places` names it and the log settles it: it is dead-lettered.
- Before the commit of an event rejected at receipt, neither has anything. It was never received:
  it was not acknowledged, or at level `memory`.
- When a replayed event is in the log and its dead letter not yet removed, the log's record has the
  dead letter's number. `forget` removes the dead letter: the event is buffered.
- Before the commit of an operator's drop, the database has the marked dead letter. It is
  dead-lettered, and dropped once the daemon runs.
- After that commit, the database has a counter instead of the dead letter: it is dropped.

With a buffer in memory there is no log: received is then what is here and what was dropped, and a
replayed dead letter takes its share of received with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

import structlog

from forwarder.core.ack import AckCallback
from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.opening import OpenedDatabase, open_file, why_of
from forwarder.deadletter.room import (
    DeadLetterStatistics,
    DeadLetterTotals,
    KnownKeyLookup,
    Room,
    cost_of,
    costs_by_key,
    key_of,
    log_dead_lettered,
    reserve_some_at_receipt,
)
from forwarder.deadletter.table import (
    DatabaseTotals,
    DeadLetterCommit,
    MarkedDeadLetter,
    NumberedDeadLetter,
    RemovedDeadLetter,
    read_lane_totals,
    read_places,
    read_totals,
    remove,
)
from forwarder.storage.committer import RETRY_SECONDS, CommitJob, Committer

PENDING_AT_RECEIPT: Final = 4 << 20
"""Bytes of events rejected at receipt that are kept in memory while nothing can be written."""

_log = structlog.get_logger()


class DeadLetterBooks(Protocol):
    """The verbs of the books that the store uses."""

    def uncount_dead_letter(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events turned out to have been dead letters before, and counted."""

    def discard(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """An operator dropped dead letters."""


@dataclass(slots=True)
class _Poll:
    """A question which dead letters are marked for replay."""

    limit: int
    answer: Callable[[Sequence[MarkedDeadLetter]], None]


class DeadLetterStore:
    """Dead letters on disk. Takes part in a `Committer`; used on its loop."""

    def __init__(
        self,
        opened: OpenedDatabase,
        max_bytes: int,
        committer: Committer,
        clock: Clock,
        books: DeadLetterBooks,
        *,
        logged: bool,
        largest: int = 0,
    ) -> None:
        """Use `open`."""
        self._file = opened.file
        self._quarantined = opened.quarantined
        self._emptied = opened.emptied
        self._failing = opened.failing
        self._committer = committer
        self._clock = clock
        self._books = books
        self._logged = logged
        self._room = Room(max_bytes, largest)
        self._pending: list[NumberedDeadLetter] = []
        self._pending_cost = 0
        self._removals: list[int] = []
        self._notes: dict[int, str] = {}
        self._on_durable: list[AckCallback] = []
        self._poll: _Poll | None = None
        self._polling: _Poll | None = None
        """The question of the running commit."""
        self._job: DeadLetterCommit | None = None
        self._retry: Timer | None = None
        self._probe_due = False
        self.busy: set[int] = set()
        """Dead letters that are being replayed, and must not be dropped."""

        stored = self._stored()
        self._room.take(
            stored.cost - sum([cost for _, cost in stored.costs_at_receipt]), stored.dead_letters
        )
        for key, cost in stored.costs_at_receipt:
            self._room.take_at_receipt(key, cost, 0)
        self._next = stored.last_number + 1
        self._marked = stored.marked

    @classmethod
    def open(
        cls,
        directory: Path,
        max_bytes: int,
        committer: Committer,
        clock: Clock,
        *,
        books: DeadLetterBooks,
        logged: bool,
        largest: int = 0,
    ) -> Self:
        """Open the database in `directory`, whose lock this process holds, and take part in
        `committer`.

        `logged`: whether the buffer's log counts what is received; `largest`: bytes of the largest
        event that a request may bring.

        A file that can't be read is quarantined; while one can't be written, dead letters find no
        room. Raises `ConfigurationError` if it can't be read and can't be quarantined.
        """
        store = cls(
            open_file(directory, clock.now()),
            max_bytes,
            committer,
            clock,
            books,
            logged=logged,
            largest=largest,
        )
        committer.add(store)
        if store._failing:
            store._try_again()
        return store

    # Before the start, on the thread that has opened it.

    def accounts(self) -> dict[Lane | None, DeadLetterTotals]:
        """What the books start with, per lane."""
        if self._file.connection is None:
            return {}
        return read_lane_totals(self._file.connection, logged=self._logged, without=self._removals)

    def places(self, at_least: int = 0) -> list[tuple[int, int]]:
        """Where in the log the dead letters were: (sequence, index), from sequence `at_least` on,
        in order.
        """
        return [] if self._file.connection is None else read_places(self._file.connection, at_least)

    def last_sequence(self) -> int:
        """The highest sequence of a place, or 0: a new log must continue above it."""
        return self._stored().last_sequence

    def forget(self, numbers: Iterable[int]) -> None:
        """Remove dead letters whose replay is in the log already, at once if possible, else as
        soon as it is.

        From now on no dead letter gets one of these numbers, or a lower one.
        """
        known = list(numbers)
        self._next = max(self._next, max(known, default=0) + 1)
        self._removals += known
        connection = self._file.connection
        if connection is None or self._file.read_only or not known:
            return
        gone: list[RemovedDeadLetter] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for number in known:
                gone += remove(connection, "number = ?", (number,))
            connection.execute("COMMIT")
        except sqlite3.OperationalError:
            # a full disk, say: the next commit removes them, as from a file that can't be written
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            self._committer.request()
            return
        self._release(gone)
        self._removals.clear()

    # On the loop.

    def add(self, dead_letters: Sequence[DeadLetter]) -> bool:
        cost = sum(map(cost_of, dead_letters))
        if self._failing or not self._room.fits(cost):
            return False
        self._room.take(cost, len(dead_letters))
        self._keep(dead_letters, receipt=False)
        return True

    def add_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Keep as many, from the first on, as fit the share for events rejected at receipt; return
        how many.
        """
        if self._failing and self._pending_cost > PENDING_AT_RECEIPT:
            _log.warning(
                "events rejected at receipt were dropped: dead letters can't be written",
                events=len(dead_letters),
                why=self._failing,
            )
            return 0
        accepted = reserve_some_at_receipt(self._room, dead_letters)
        self._keep(dead_letters[:accepted], receipt=True)
        return accepted

    def reserve_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Reserve room for events rejected at receipt that have to be kept, all or none; return
        whether there was room.
        """
        return not (
            self._failing and self._pending_cost > PENDING_AT_RECEIPT
        ) and self._room.reserve_at_receipt(dead_letters)

    def could_hold_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Whether they would have room in an empty share."""
        return self._room.could_hold_at_receipt(costs_by_key(dead_letters))

    def release_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Give back room that was reserved at receipt."""
        self._room.release_at_receipt(dead_letters)

    def add_reserved_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters that room was reserved for at receipt."""
        log_dead_lettered(dead_letters)
        self._keep(dead_letters, receipt=True)

    def unwritten(self) -> list[DeadLetter]:
        """Those that no commit has written, as far as is known."""
        writing = [] if self._job is None else self._job.dead_letters
        return [entry.dead_letter for entry in (*writing, *self._pending)]

    def distinguish(self, known: KnownKeyLookup) -> None:
        """Distinguish known keys from unknown ones from now on; call it again whenever
        they change.
        """
        self._room.distinguish(known)

    def reserve(self, size: int, count: int) -> int | None:
        """Reserve room for `count` dead letters of `size` bytes together; return how much. None:
        no room, or nothing can be written.
        """
        return None if self._failing else self._room.reserve(size, count)

    def could_hold(self, size: int, count: int) -> bool:
        """Whether `count` dead letters of `size` bytes together would have room in an
        empty store.
        """
        return self._room.could_hold(size, count)

    def release(self, reserved: int) -> None:
        """Give back reserved room."""
        self._room.give(reserved, 0)

    def add_reserved(self, dead_letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep dead letters in their reserved room."""
        self.release(reserved)
        self.add_at_exit(dead_letters)

    def add_at_exit(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters even beyond the limit: they free as much of the buffer."""
        self._room.take(sum(map(cost_of, dead_letters)), len(dead_letters))
        self._keep(dead_letters, receipt=False)

    def when_durable(self, on_durable: AckCallback) -> bool:
        """Whether everything dead-lettered so far is durable; if not, `on_durable` is called when
        it is, or with an error if a commit fails.
        """
        if self._pending:
            self._on_durable.append(on_durable)
        elif self._job is not None and self._job.dead_letters:
            self._job.on_durable.append(on_durable)
        else:
            return True
        return False

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove replayed dead letters with the next group. The books have
        counted them as buffered.
        """
        self._removals += numbers
        self._committer.request()

    def unmark(self, number: int, note: str) -> None:
        """A replay failed: the dead letter stays, unmarked, with a note that says why."""
        self._notes[number] = note
        self._committer.request()

    def poll(self, limit: int, answer: Callable[[Sequence[MarkedDeadLetter]], None]) -> None:
        """With the next group, drop what is marked so, and answer with those marked for replay, at
        most `limit`.

        Those in `busy` are left out. The answer is empty if the group fails.
        """
        self._poll = _Poll(limit, answer)
        self._committer.request()

    def statistics(self) -> DeadLetterStatistics:
        """Figures for metrics, health and tests."""
        room = self._room
        return DeadLetterStatistics(
            room.used,
            room.limit,
            room.dead_letters,
            self._failing,
            self._quarantined,
            self._marked,
            self._file.path,
            self._emptied,
        )

    def close(self) -> None:
        """Close the database; after the committer. Logs what could not be written, and is lost."""
        if self._retry is not None:
            self._retry.cancel()
        if self._pending:
            _log.error(
                "dead letters were lost: they could not be written",
                events=len(self._pending),
                why=self._failing,
            )
        self._file.close()

    @property
    def awaited(self) -> int:
        return len(self._on_durable)

    def prepare(self) -> DeadLetterCommit | None:
        probe = self._probe_due
        self._probe_due = False
        if not (self._pending or self._removals or self._notes or self._poll or probe):
            return None
        self._job = DeadLetterCommit(
            self._file,
            self._logged,
            self._pending,
            self._removals,
            self._notes,
            probe=bool(self._failing),
            read_marked=self._poll.limit if self._poll else 0,
            busy=frozenset(self.busy),
            on_durable=self._on_durable,
        )
        self._pending = []
        self._removals = []
        self._notes = {}
        self._on_durable = []
        self._pending_cost = 0
        self._polling = self._poll
        self._poll = None
        return self._job

    # `job` is always `_job`, the one that runs.
    def finish(self, job: CommitJob, error: Exception | None) -> None:  # noqa: ARG002
        done = self._job
        self._job = None
        polling = self._polling
        self._polling = None
        if done is None:
            return
        if error is None:
            self._succeeded(done)
        else:
            self._failed(done, error)
        refusal = (
            None
            if error is None
            else Backpressure(f"dead letters can't be written: {self._failing}")
        )
        for on_durable in done.on_durable:
            on_durable(refusal)
        if polling is not None:
            polling.answer(done.marked if error is None else ())

    def _succeeded(self, job: DeadLetterCommit) -> None:
        if self._failing:
            _log.info("dead letters can be written again")
        self._failing = ""
        self._release(job.removed)
        self._release(job.dropped)
        self.busy.difference_update(job.removals, job.notes)
        for gone in job.dropped:
            self._books.discard(gone.lane, gone.reason, 1)
        for entry in job.known:
            self._give(entry.dead_letter.lane, cost_of(entry.dead_letter), receipt=entry.receipt)
            self._books.uncount_dead_letter(entry.dead_letter.lane, entry.dead_letter.reason, 1)
        if job.read_marked:
            self._marked = job.still_marked

    def _failed(self, job: DeadLetterCommit, error: Exception) -> None:
        """Keep everything for the next commit, on a new connection."""
        self._pending = job.dead_letters + self._pending
        self._pending_cost = sum(cost_of(entry.dead_letter) for entry in self._pending)
        self._removals = job.removals + self._removals
        self._notes = {**job.notes, **self._notes}
        why = why_of(error)
        if not self._failing:
            hint = (
                "Make room on the disk, or the directory writable; it is tried again every second."
            )
            _log.error(
                "dead letters can't be written: lanes with refused events wait",
                why=why,
                path=str(self._file.path),
                hint=hint,
            )
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

    def _keep(self, dead_letters: Sequence[DeadLetter], *, receipt: bool) -> None:
        if dead_letters:
            self._pending += [
                NumberedDeadLetter(number, dead_letter, receipt)
                for number, dead_letter in enumerate(dead_letters, self._next)
            ]
            self._next += len(dead_letters)
            self._pending_cost += sum(map(cost_of, dead_letters))
            self._committer.request()

    def _release(self, gone: Iterable[RemovedDeadLetter]) -> None:
        for dead_letter in gone:
            self._give(dead_letter.lane, dead_letter.cost, receipt=dead_letter.receipt)

    def _give(self, lane: Lane | None, cost: int, *, receipt: bool) -> None:
        if receipt:
            self._room.take_at_receipt(key_of(lane), -cost, -1)
        else:
            self._room.give(cost, 1)

    def _stored(self) -> DatabaseTotals:
        return (
            DatabaseTotals()
            if self._file.connection is None
            else read_totals(self._file.connection)
        )
