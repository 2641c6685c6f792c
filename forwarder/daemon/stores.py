"""What a pipeline keeps: its buffer, its dead letters, and the thread that commits both; and the
initial figures of the books.

Order of opening: the locks, the dead letters, the log (which asks them which of its events are
dead letters already), the books. The dead letters are the committer's first participant, so that a
letter is durable before the mark that settles its event. Closing is the reverse. What keeps data
on disk is imported only where it is configured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from forwarder.buffer.holdings import assign_pools
from forwarder.buffer.memory import MemoryBuffer
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, DropReason, Ordering, RequestIntake, drop_cause
from forwarder.core.shares import Holds
from forwarder.daemon.roles import Role
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.deadletter.room import DeadLetterTotals
from forwarder.intake.lane_registry import KnownKeys
from forwarder.storage.committer import Committer
from forwarder.storage.directory import (
    LockedDirectory,
    name_directory,
    state_directories,
    worker_directory,
)
from forwarder.storage.key_file import name_key_file
from forwarder.telemetry.books import Account, Books

if TYPE_CHECKING:
    from forwarder.buffer.disk.buffer import DiskBuffer
    from forwarder.buffer.disk.log_books import LaneTotals, LogBooks
    from forwarder.deadletter.replay import Replayer
    from forwarder.deadletter.store import DeadLetterStore

BUFFER_KEY = "buffer.path"
LETTERS_KEY = "dead_letters.path"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores:
    """A pipeline's stores, from `open_stores` to `close`."""

    committer: Committer
    buffer: DiskBuffer | MemoryBuffer
    disk_buffer: DiskBuffer | None
    """`buffer`, if it is on disk."""
    dead_letters: DeadLetterStore | MemoryDeadLetters
    dead_letter_file: DeadLetterStore | None
    """`dead_letters`, if they are in a file."""
    locks: Sequence[LockedDirectory]

    @property
    def state(self) -> Path | None:
        """The state directory that all workers share: of the disk buffer, or of the dead letters;
        None if there is none.
        """
        return self.locks[0].path.parent if self.locks else None

    @property
    def memory(self) -> Holds:
        """The memory that buffered events take."""
        return self.buffer if self.disk_buffer is None else self.disk_buffer.memory

    @property
    def dead_letters_in_memory(self) -> Sequence[DeadLetter]:
        """The dead letters that are in memory only. Until one is written, a buffer on disk has its
        event.
        """
        if isinstance(self.dead_letters, MemoryDeadLetters):
            return self.dead_letters.dead_letters
        return self.dead_letters.unwritten() if self.disk_buffer is None else ()

    def open_replayer(
        self, intake: RequestIntake, clock: Clock, api_keys: Mapping[str, str]
    ) -> Replayer | None:
        """What sends dead letters again that an operator has marked; None if they are in memory.
        `api_keys`: see `Replayer`.
        """
        if self.dead_letter_file is None:
            return None
        from forwarder.deadletter.replay import Replayer  # noqa: PLC0415 - needs SQLite

        return Replayer(self.dead_letter_file, intake, clock, api_keys)

    async def close(self) -> None:
        """Write what is to be written, close all files, release the locks."""
        if self.disk_buffer is not None:
            await self.disk_buffer.close()
        await self.committer.close()
        if self.dead_letter_file is not None:
            self.dead_letter_file.close()
        for lock in self.locks:
            lock.release()


def open_stores(
    settings: Settings,
    role: Role,
    clock: Clock,
    books: Books,
    known: KnownKeys,
    *,
    ordering_of: Callable[[Lane], Ordering],
    destination: str = "",
    inherited: InheritedLocks | None = None,
    window: int | None = None,
) -> Stores:
    """Open what one worker keeps for a destination; the room of unknown project keys is limited.

    `inherited`: locks that the process holds already; None: the role's, which are closed where
    they aren't used. `window`: bytes of memory for events of a disk buffer. Raises
    `ConfigurationError` if a directory can't be used, or another process uses it.
    """
    if inherited is None:
        with InheritedLocks(role.locks) as of_role:
            return open_stores(
                settings,
                role,
                clock,
                books,
                known,
                ordering_of=ordering_of,
                destination=destination,
                inherited=of_role,
                window=window,
            )
    locks = _Locks(role.number, destination, inherited)
    try:
        stores = _open(settings, clock, books, locks, ordering_of=ordering_of, window=window)
    except BaseException:
        for lock in locks.acquired:
            lock.release()
        raise
    _limit_unknown_keys(stores, known)
    return stores


def _limit_unknown_keys(stores: Stores, known: KnownKeys) -> None:
    """Count unknown project keys apart, in the buffer and among the dead letters, now and whenever
    keys become known.
    """

    def assign() -> None:
        assign_pools(stores.buffer.holdings, known.pool_of)
        stores.dead_letters.distinguish(known)

    stores.buffer.pool_of = known.pool_of
    known.on_change = assign
    assign()


class InheritedLocks:
    """Locks that the process holds from before a restart in place, until they are used; those that
    aren't are released at the end.
    """

    def __init__(self, locks: Iterable[tuple[str, int]]) -> None:
        self._locks = dict(locks)

    def __enter__(self) -> InheritedLocks:
        return self

    def __exit__(self, *_: object) -> None:
        while self._locks:
            os.close(self._locks.popitem()[1])

    def pop(self, directory: Path) -> int | None:
        """The descriptor of a directory's lock, which is the caller's from now on; None if there
        is none.
        """
        return self._locks.pop(str(directory), None)


class _Locks:
    """The directories of one worker and destination that are locked; some of
    their locks may be inherited.
    """

    def __init__(self, number: int, destination: str, inherited: InheritedLocks) -> None:
        self.acquired: list[LockedDirectory] = []
        self._number = number
        self._destination = destination
        self._inherited = inherited

    def acquire(self, root: Path, key: str) -> LockedDirectory:
        """The same directory again is the same lock."""
        directory = worker_directory(root, self._number, self._destination)
        for lock in self.acquired:
            if lock.path == directory:
                return lock
        lock = LockedDirectory.acquire(
            directory, key, own=1, inherited=self._inherited.pop(directory)
        )
        self.acquired.append(lock)
        return lock


def name_directories(
    settings: Settings, role: Role, destination: str, inherited: InheritedLocks
) -> None:
    """Make what the worker keeps without a destination's name this one's: `upstream:` became
    `upstreams:`. Raises `ConfigurationError`.
    """
    roots = {settings.buffer.path: BUFFER_KEY} if settings.buffer.kind == "disk" else {}
    if settings.dead_letters.path is not None:
        roots.setdefault(settings.dead_letters.path, LETTERS_KEY)
    elif settings.buffer.kind != "disk":
        roots |= dict.fromkeys(
            state_directories(os.environ, is_root=os.geteuid() == 0), LETTERS_KEY
        )
    for root, key in roots.items():
        name_directory(
            root, role.number, destination, key, inherited.pop(worker_directory(root, role.number))
        )
        name_key_file(root, destination)


def _open(
    settings: Settings,
    clock: Clock,
    books: Books,
    locks: _Locks,
    *,
    ordering_of: Callable[[Lane], Ordering],
    window: int | None,
) -> Stores:
    committer = Committer(clock)
    on_disk = settings.buffer.kind == "disk"
    if on_disk:
        locks.acquire(settings.buffer.path, BUFFER_KEY)
    directory = _dead_letters_directory(settings, locks)
    file = (
        None
        if directory is None
        else _open_dead_letters(settings, directory, committer, clock, books)
    )
    dead_letters = file or MemoryDeadLetters(
        settings.dead_letter_share, settings.sources.http.max_body
    )
    if not on_disk:
        _open_books(books, file, None)
        return Stores(
            committer, MemoryBuffer(settings.buffer_share), None, dead_letters, file, locks.acquired
        )
    buffer = _open_disk_buffer(
        settings,
        locks.acquired[0].path,
        committer,
        clock,
        file,
        ordering_of=ordering_of,
        window=window,
    )
    _open_books(books, file, buffer.commits.books())
    books.on_dropped_at_receipt = buffer.tally
    buffer.on_damaged = lambda lane, count: books.drop(lane, DropReason.DAMAGED, count)
    return Stores(committer, buffer, buffer, dead_letters, file, locks.acquired)


def _open_disk_buffer(
    settings: Settings,
    directory: Path,
    committer: Committer,
    clock: Clock,
    file: DeadLetterStore | None,
    *,
    ordering_of: Callable[[Lane], Ordering],
    window: int | None,
) -> DiskBuffer:
    # The default buffer is in memory and needs none of this.
    from forwarder.buffer.disk.opening import OpenPolicy, open_buffer  # noqa: PLC0415

    policy = (
        OpenPolicy(settings.buffer_share, ordering_of)
        if window is None
        else OpenPolicy(settings.buffer_share, ordering_of, window)
    )
    return open_buffer(directory, committer, clock, policy, _DeadLetteredEvents(file))


def _open_dead_letters(
    settings: Settings, directory: Path, committer: Committer, clock: Clock, books: Books
) -> DeadLetterStore:
    from forwarder.deadletter.store import DeadLetterStore  # noqa: PLC0415 - needs SQLite

    logged = settings.buffer.kind == "disk"
    largest = settings.sources.http.max_body
    return DeadLetterStore.open(
        directory,
        settings.dead_letter_share,
        committer,
        clock,
        books=books,
        logged=logged,
        largest=largest,
    )


def _dead_letters_directory(settings: Settings, locks: _Locks) -> Path | None:
    """The locked directory of the dead letters' file; None if they stay in memory."""
    root = settings.dead_letters.path
    if root is None and settings.buffer.kind == "disk":
        return locks.acquired[0].path
    if root is not None:
        return locks.acquire(root, LETTERS_KEY).path
    for candidate in state_directories(os.environ, is_root=os.geteuid() == 0):
        try:
            return locks.acquire(candidate, LETTERS_KEY).path
        except ConfigurationError as error:
            _log.debug("this directory can't hold dead letters", why=error.message)
            continue
    _log.warning(
        "dead letters are kept in memory",
        meaning="No directory could be used for them: they are lost when this process ends.",
        hint=f"Set `{LETTERS_KEY}` to a directory of its own that this user may write in.",
    )
    return None


class _DeadLetteredEvents:
    """The dead letters as the log's opening sees them (`buffer.disk.opening.DeadLetterIndex`)."""

    def __init__(self, file: DeadLetterStore | None) -> None:
        self._file = file
        self._totals: Mapping[Lane | None, DeadLetterTotals] = {}

    def places(self) -> list[tuple[int, int]]:
        return self._file.places() if self._file else []

    def forget(self, numbers: Collection[int]) -> None:
        if self._file is not None:
            self._file.forget(numbers)
            self._totals = self._file.accounts()

    def gone(self, lane: Lane) -> int:
        totals = self._totals.get(lane, DeadLetterTotals())
        return (
            sum(totals.dead_lettered.values())
            + sum(totals.dropped.values())
            - sum(totals.received.values())
        )

    def lanes(self) -> list[Lane]:
        return [lane for lane in self._totals if lane is not None]


def _open_books(books: Books, file: DeadLetterStore | None, log: LogBooks | None) -> None:
    """The books begin with the figures of the log, and with those that the dead letters' file has
    beside it.
    """
    if log is not None:
        lanes = {lane: _logged(totals) for lane, totals in log.lanes.items()}
        books.open(lanes, _logged(log.others))
    if file is not None:
        books.open(
            {
                lane: Account.of(
                    totals.received, totals.dropped, dead_lettered=totals.dead_lettered
                )
                for lane, totals in file.accounts().items()
            }
        )


def _logged(totals: LaneTotals) -> Account:
    dropped = {drop_cause(reason): count for reason, count in totals.dropped.items()}
    return Account.of(totals.received, dropped, delivered=totals.delivered)
