"""Dead letters in a file, with a real commit thread, under a clock that stands still."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.room import DEAD_LETTER_OVERHEAD
from forwarder.deadletter.store import DeadLetterStore
from forwarder.storage.committer import Committer
from forwarder.storage.directory import DEAD_LETTERS
from forwarder.telemetry.books import Books
from tests.support.clock import FakeClock

LANE = Lane("phc_deaddeaddead1234")
COST = 1000


def letter(
    size: int = COST,
    reason: Reason = Reason.REFUSED,
    lane: Lane | None = LANE,
    place: tuple[int, int] | None = None,
) -> DeadLetter:
    """A letter that costs `size` bytes."""
    return DeadLetter(reason, lane, b"x" * (size - DEAD_LETTER_OVERHEAD), 0.0, place=place)


def event_letter(
    event: bytes, reason: Reason = Reason.REFUSED, place: tuple[int, int] | None = None, **more: Any
) -> DeadLetter:
    """A letter of an event's bytes."""
    return DeadLetter(reason, LANE, event, 1000.0, place=place, **more)


class HoldingCallback:
    """A `core.ack.AckCallback` that records its calls."""

    def __init__(self) -> None:
        self.reported: list[Backpressure | None] = []

    def __call__(self, error: Backpressure | None) -> None:
        self.reported.append(error)


@dataclass
class StoreRig:
    """A store in `directory`, opened by `started`."""

    directory: Path
    max_bytes: int = 1 << 20
    largest: int = 0
    logged: bool = True
    books: Books = field(default_factory=Books)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.committer = Committer(self.clock)
        self.store = DeadLetterStore.open(
            self.directory,
            self.max_bytes,
            self.committer,
            self.clock,
            books=self.books,
            logged=self.logged,
            largest=self.largest,
        )

    async def close(self) -> None:
        """End as a daemon does."""
        await self.committer.close()
        self.store.close()

    async def commit(self) -> None:
        """Wait until everything is written that can be."""
        await self.committer.settle()

    def query(self, statement: str) -> list[Any]:
        """What is in the file, read by another connection."""
        return query(self.directory, statement)

    def data(self) -> list[bytes]:
        """The events in the file."""
        return [row[0] for row in self.query("SELECT data FROM letters ORDER BY number")]


@contextlib.asynccontextmanager
async def started(directory: Path, **settings: Any) -> AsyncIterator[StoreRig]:
    """A store that commits; closed at the end."""
    rig = StoreRig(directory, **settings)
    rig.committer.start()
    try:
        yield rig
    finally:
        await rig.close()


def query(directory: Path, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run a statement on the file in `directory`, and commit it."""
    with contextlib.closing(sqlite3.connect(directory / DEAD_LETTERS)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def fill(file: Path) -> None:
    """Write into it until the disk is full."""
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
