"""`python -m tests.crash.archive.victim ROOT SEED EVENTS TOGETHER`: a disk buffer with an archive
behind it, which is killed.

It offers the plan's requests in order, a few at a time, and writes down how many from the first on
are durable in the buffer; a later life continues there. When all are, and the archive has all
events, it ends with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from forwarder.archive.archiver import ArchivePolicy, Archiver
from forwarder.archive.folders import archive_identity, open_folder
from forwarder.archive.spool import Partition
from forwarder.buffer.disk.opening import OpenPolicy, open_buffer
from forwarder.core.clock import Backoff, SystemClock
from forwarder.core.errors import Backpressure
from forwarder.core.event import NO_IDS, Chunk
from forwarder.core.ports import Ordering
from forwarder.storage import failpoints
from forwarder.storage.committer import Committer
from forwarder.telemetry.books import Books
from tests.crash.archive.plan import ArchivePlan
from tests.support.disk import NoLetters

PROGRESS: Final = "progress"
BUFFER_BYTES: Final = 96 << 20
WINDOW: Final = 16 << 20
MAX_AGE: Final = 1.0
AT_ONCE: Final = 32
"""Requests that are offered and not durable."""


class ArchiveVictim:
    """One life."""

    def __init__(self, root: Path, plan: ArchivePlan) -> None:
        self._plan = plan
        state = root / "state"
        state.mkdir(exist_ok=True)
        self._clock = SystemClock()
        self._committer = Committer(self._clock)
        policy = OpenPolicy(BUFFER_BYTES, lambda _: Ordering.NONE, WINDOW)
        self._buffer = open_buffer(state, self._committer, self._clock, policy, NoLetters())
        identity = archive_identity(state)
        self._archiver = Archiver(
            policy=ArchivePolicy(Partition.HOUR, MAX_AGE, state, identity),
            buffer=self._buffer,
            folder=lambda thread: open_folder((root / "archive").as_uri(), {}, identity, thread),
            books=Books(),
            clock=self._clock,
            backoff=Backoff(0.1, 1.0),
        )
        self._progress = os.open(root / PROGRESS, os.O_RDWR | os.O_CREAT, 0o600)
        self._next = self._durable = int(os.pread(self._progress, 20, 0) or b"0")
        self._beyond: set[int] = set()
        """Requests that are durable, and aren't the first ones."""
        self._rejected: list[int] = []
        """Requests that the buffer had no room for when it wrote them."""
        self._room = asyncio.Event()

    async def live(self) -> None:
        """Offer what isn't durable, and archive it."""
        self._committer.start()
        self._archiver.start()
        while self._durable < self._plan.requests:
            self._room.clear()
            if self._rejected and self._offer(self._rejected[0]):
                del self._rejected[0]
            elif (
                not self._rejected
                and self._next < self._plan.requests
                and self._next - self._durable < AT_ONCE
                and self._offer(self._next)
            ):
                self._next += 1
                await asyncio.sleep(0)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), 0.05)
        while not await self._archiver.drain(1):
            pass
        await self._archiver.close()
        await self._buffer.close()
        await self._committer.close()

    def _offer(self, number: int) -> bool:
        """Offer a request; False if the buffer can't take it now."""
        events = self._plan.request(number)
        now = self._clock.now()
        chunk = Chunk(
            self._plan.lane(number * self._plan.together),
            b",".join(events),
            len(events),
            NO_IDS,
            now,
        )
        try:
            self._buffer.offer([chunk], partial(self._held, number))
        except Backpressure:
            return False
        self._archiver.wake()
        return True

    def _held(self, number: int, error: Backpressure | None) -> None:
        if error is not None:
            self._rejected.append(number)
            return
        self._beyond.add(number)
        while self._durable in self._beyond:
            self._beyond.remove(self._durable)
            self._durable += 1
        os.pwrite(self._progress, b"%-20d" % self._durable, 0)
        self._room.set()


def main() -> None:
    """Live, as the arguments say."""
    root, *numbers = sys.argv[1:]
    failpoints.arm_from_environment(os.environ)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    seed, events, together = map(int, numbers)

    async def live() -> None:
        await ArchiveVictim(Path(root), ArchivePlan(seed, events, together)).live()

    asyncio.run(live())


if __name__ == "__main__":
    main()
