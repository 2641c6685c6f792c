"""What a pipeline keeps on disk: its buffer, its dead letters, and the thread that commits both; and what the books begin with.

Order of opening: the locks, the dead letters, the log (which asks them what of it is a letter already), the books. The dead letters are the
committer's first part, so that a letter is durable before the mark that settles its event. They are closed the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from forwarder.buffer.disk.books import LaneTotals
from forwarder.buffer.disk.buffer import DiskBuffer
from forwarder.buffer.disk.opening import OpenPolicy, open_buffer
from forwarder.buffer.memory import MemoryBuffer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import DropReason
from forwarder.daemon.roles import Role
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.room import DeadLetterTotals
from forwarder.deadletter.store import DeadLetterStore
from forwarder.storage.committer import Committer
from forwarder.storage.directory import LockedDirectory, state_directories, worker_directory
from forwarder.telemetry.books import Books

BUFFER_KEY = "buffer.path"
LETTERS_KEY = "dead_letters.path"

_log = structlog.get_logger()


@dataclass(slots=True)
class Stores:
    """A pipeline's stores, from `open_stores` to `close`."""

    committer: Committer
    buffer: DiskBuffer | MemoryBuffer
    dead_letters: DeadLetterStore | MemoryDeadLetters
    locks: list[LockedDirectory] = field(default_factory=list)

    @property
    def state(self) -> Path | None:
        """The state directory that all workers share: of the disk buffer, or of the dead letters; None if there is none."""
        return self.locks[0].path.parent if self.locks else None

    async def close(self) -> None:
        """Write what is to be written, close all files, let go of the locks."""
        if isinstance(self.buffer, DiskBuffer):
            await self.buffer.close()
        await self.committer.close()
        if isinstance(self.dead_letters, DeadLetterStore):
            self.dead_letters.close()
        for lock in self.locks:
            lock.release()


def open_stores(settings: Settings, role: Role, clock: Clock, books: Books, policy: OpenPolicy) -> Stores:
    """Open what one worker keeps; `policy` is a disk buffer's.

    Raises `ConfigurationError` if a directory can't be used, or another process has it.
    """
    locks = _Locks(role.locks)
    try:
        return _open(settings, role, clock, books, policy, locks=locks)
    except BaseException:
        for lock in locks.held:
            lock.release()
        raise
    finally:
        locks.close_unused()


class _Locks:
    """The directories that are locked, for which locks may have been inherited."""

    def __init__(self, inherited: Iterable[tuple[str, int]]) -> None:
        self.held: list[LockedDirectory] = []
        self._inherited = dict(inherited)

    def acquire(self, directory: Path, key: str) -> LockedDirectory:
        """See `LockedDirectory.acquire`."""
        lock = LockedDirectory.acquire(directory, key, own=1, inherited=self._inherited.pop(str(directory), None))
        self.held.append(lock)
        return lock

    def close_unused(self) -> None:
        """Let go of inherited locks of directories that aren't used any more."""
        while self._inherited:
            os.close(self._inherited.popitem()[1])


def _open(settings: Settings, role: Role, clock: Clock, books: Books, policy: OpenPolicy, *, locks: _Locks) -> Stores:
    committer = Committer(clock)
    on_disk = settings.buffer.kind == "disk"
    if on_disk:
        locks.acquire(worker_directory(settings.buffer.path, role.number), BUFFER_KEY)
    directory = _letters_directory(settings, role, locks)
    largest = settings.sources.http.max_body
    letters: DeadLetterStore | MemoryDeadLetters = (
        MemoryDeadLetters(settings.dead_letter_share, largest)
        if directory is None
        else DeadLetterStore.open(directory, settings.dead_letter_share, committer, clock, books=books, logged=on_disk, largest=largest)
    )
    if not on_disk:
        _open_books(books, letters, {})
        return Stores(committer, MemoryBuffer(settings.buffer_share), letters, locks.held)
    view = _Letters(letters)
    buffer = open_buffer(locks.held[0].path, committer, clock, policy, view)
    accounts = buffer.commits.books()
    _open_books(books, letters, accounts.lanes)
    books.accounts.others.received.update(accounts.others.received)
    books.accounts.others.delivered = accounts.others.delivered
    books.accounts.others.dropped.update({DropReason(reason): count for reason, count in accounts.others.dropped.items()})
    books.on_turned_away = buffer.tally
    buffer.on_damaged = lambda lane, count: books.drop(lane, DropReason.DAMAGED, count)
    return Stores(committer, buffer, letters, locks.held)


def _letters_directory(settings: Settings, role: Role, locks: _Locks) -> Path | None:
    """The locked directory of the dead letters' file; None if they are to stay in memory."""
    root = settings.dead_letters.path
    if root is None and settings.buffer.kind == "disk":
        return locks.held[0].path
    if root is not None:
        directory = worker_directory(root, role.number)
        if all(lock.path != directory for lock in locks.held):
            locks.acquire(directory, LETTERS_KEY)
        return directory
    for candidate in state_directories(os.environ, is_root=os.geteuid() == 0):
        try:
            return locks.acquire(worker_directory(candidate, role.number), LETTERS_KEY).path
        except ConfigurationError as error:
            _log.debug("no place for dead letters", why=error.message)
            continue
    _log.warning(
        "dead letters are kept in memory",
        meaning="No directory could be used for them: they end with this process.",
        hint=f"Set `{LETTERS_KEY}` to a directory of its own that this user may write in.",
    )
    return None


class _Letters:
    """The dead letters as the log's opening sees them (`buffer.disk.opening.DeadLetterIndex`)."""

    def __init__(self, letters: DeadLetterStore | MemoryDeadLetters) -> None:
        self._store = letters if isinstance(letters, DeadLetterStore) else None
        self._accounts: Mapping[Lane | None, DeadLetterTotals] = {}

    def places(self) -> list[tuple[int, int]]:
        """See `DeadLetterIndex.places`."""
        return self._store.places() if self._store else []

    def forget(self, numbers: Collection[int]) -> None:
        """See `DeadLetterIndex.forget`."""
        if self._store is not None:
            self._store.forget(numbers)
            self._accounts = self._store.accounts()

    def gone(self, lane: Lane) -> int:
        """See `DeadLetterIndex.gone`."""
        account = self._accounts.get(lane, DeadLetterTotals())
        return sum(account.dead_lettered.values()) + sum(account.dropped.values()) - sum(account.received.values())

    def lanes(self) -> list[Lane]:
        """See `DeadLetterIndex.lanes`."""
        return [lane for lane in self._accounts if lane is not None]


def _open_books(books: Books, letters: DeadLetterStore | MemoryDeadLetters, logged: Mapping[Lane | None, LaneTotals]) -> None:
    """The books begin with what the log has, and with what the dead letters' file has beside it."""
    for lane, account in logged.items():
        for source, count in account.received.items():
            books.receive(lane, source, count)
        books.accounts[lane].delivered += account.delivered
        for reason, count in account.dropped.items():
            books.drop(lane, DropReason(reason), count)
    for lane, of_letters in letters.accounts().items() if isinstance(letters, DeadLetterStore) else ():
        for source, count in of_letters.received.items():
            books.receive(lane, source, count)
        for why, count in of_letters.dead_lettered.items():
            books.bury(lane, why, count)
        for what, count in of_letters.dropped.items():
            books.drop(lane, what, count)
