"""An archiver with its real neighbours: a disk buffer with its commit thread, books and a folder;
and a clock that a test turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import zstandard

from forwarder.archive.archiver import ArchivePolicy, Archiver
from forwarder.archive.folders import ArchiveFolder, LocalFolder, PublishFailed
from forwarder.archive.spool import Partition
from forwarder.buffer.disk.opening import OpenPolicy, open_buffer
from forwarder.core.clock import Backoff
from forwarder.core.event import NO_IDS, Chunk, Lane
from forwarder.core.ports import Ordering
from forwarder.storage.committer import Committer
from forwarder.telemetry.books import Books
from tests.support.clock import FakeClock
from tests.support.disk import NoLetters
from tests.support.waiting import eventually, tick

LANE = Lane("phc_goodgoodgood1234")
IDENTITY = "0123ab"
MAX_AGE = 300.0


def upper(_low: float, high: float) -> float:
    """In place of chance: always the longest wait."""
    return high


class FailingFolder:
    """A folder that fails as long as a test says so."""

    url = "nowhere"

    def __init__(self, inner: ArchiveFolder) -> None:
        self.inner = inner
        self.error: Exception | None = None
        self.attempts: list[str] = []
        self.hold: asyncio.Event | None = None

    async def publish(self, name: str, content: BinaryIO) -> None:
        self.attempts.append(name)
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        await self.inner.publish(name, content)

    def refuse(self) -> None:
        """Fail for a reason that an operator has to remove."""
        self.error = PublishFailed("nowhere: Permission denied", refused=True)


class ArchiveRig:
    """Use it as `async with`."""

    def __init__(
        self,
        root: Path,
        clock: FakeClock | None = None,
        *,
        partition: Partition = Partition.DAY,
        max_bytes: int = 64 << 20,
        window: int = 8 << 20,
        folder: Callable[[ThreadPoolExecutor], ArchiveFolder] | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.files = root / "archive"
        self.state = root / "state"
        self.spool = self.state / "spool"
        self.spool.mkdir(parents=True, exist_ok=True)
        self.books = Books()
        self.committer = Committer(self.clock)
        policy = OpenPolicy(max_bytes, lambda _: Ordering.NONE, window)
        self.buffer = open_buffer(self.state, self.committer, self.clock, policy, NoLetters())
        self.archiver = Archiver(
            policy=ArchivePolicy(partition, MAX_AGE, self.spool, IDENTITY),
            buffer=self.buffer,
            folder=folder or self._failing,
            books=self.books,
            clock=self.clock,
            backoff=Backoff(1.0, 60.0, upper),
        )

    def _failing(self, thread: ThreadPoolExecutor) -> ArchiveFolder:
        self.folder = FailingFolder(LocalFolder(self.files, IDENTITY, thread))
        return self.folder

    async def __aenter__(self) -> ArchiveRig:
        self.committer.start()
        self.archiver.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.archiver.close()
        await self.buffer.close()
        await self.committer.close()

    async def put(self, *events: bytes, lane: Lane = LANE, at: float | None = None) -> None:
        """Take events as one chunk, and wait until they are durable."""
        held = asyncio.Event()
        received = self.clock.now() if at is None else at
        self.books.receive(lane, "http", len(events))
        self.buffer.offer(
            [Chunk(lane, b",".join(events), len(events), NO_IDS, received)], lambda _: held.set()
        )
        await asyncio.wait_for(held.wait(), 20)
        self.archiver.wake()

    async def until(self, condition: Callable[[], object], seconds: float = 0.0) -> None:
        """Let so much time pass, and then as much as `condition` needs, in small steps."""
        await self.clock.advance(seconds)

        async def turn() -> None:
            while True:
                await self.clock.advance(0.01)
                await tick()

        turning = asyncio.get_running_loop().create_task(turn())
        try:
            await eventually(condition, explain=self.archiver.statistics)
        finally:
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)

    def names(self) -> list[str]:
        """The files of the archive, hidden ones too, relative to its folder."""
        return sorted(
            str(path.relative_to(self.files)) for path in self.files.rglob("*") if path.is_file()
        )

    def lines(self, match: str = "") -> list[bytes]:
        """The lines of all complete files whose names hold `match`, in the order of their names."""
        return [
            line
            for name in self.names()
            if match in name and "/." not in name
            for line in lines_of(self.files / name)
        ]


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file; fails if it isn't whole."""
    return lines_in(path.read_bytes())


def lines_in(content: bytes) -> list[bytes]:
    """The lines of a file with this content; fails if it isn't whole."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    text = decompressor.decompress(content)
    assert decompressor.eof, "the file ends within its frame"
    assert not decompressor.unused_data, "the file is more than one frame"
    assert text.endswith(b"\n")
    return text[:-1].split(b"\n")
