"""A source of files, with a scripted follower: what is read when, what is stored,
what an error does, how it ends.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

from forwarder.core.errors import BufferFull
from forwarder.sources.hand_over import MOST_RETRY_SECONDS
from forwarder.sources.logs.followed import Block
from forwarder.sources.logs.following import Follower
from forwarder.sources.logs.positions import PositionStore
from forwarder.sources.logs.source import LogSource
from forwarder.sources.logs.watching import Watch
from forwarder.telemetry.snapshot import LogSourceState
from tests.support.clock import FakeClock
from tests.support.log_blocks import LogInBlocks, log_line, log_policy
from tests.support.record_intakes import FakeRecordIntake
from tests.support.waiting import LIMIT, eventually, tick

FULL = BufferFull("the buffer is full")


class FakeFollower:
    """Hands over what it is given, and writes down what it is called for."""

    def __init__(self) -> None:
        self.file = LogInBlocks()
        self.unread: list[Block] = []
        self.settled: list[Block] = []
        self.rewound: list[Block] = []
        self.looks: list[Collection[str] | None] = []
        self.reads = self.saves = 0
        self.fails: Exception | None = None
        self.closed = False
        self.found = LogSourceState("app", "reading", followed=1)

    def write(self, *counts: int) -> list[Block]:
        """Have blocks of so many lines to be read."""
        blocks = [
            self.file.block([log_line(number) for number in range(count)]) for count in counts
        ]
        self.unread += blocks
        return blocks

    def look(self, changed: Collection[str] | None) -> None:
        """Look."""
        self.looks.append(changed)

    def read(self, budget: int) -> list[Block]:
        """Fail, or hand over one block."""
        self.reads += 1
        if self.fails is not None:
            raise self.fails
        blocks = self.unread[:1]
        self.unread = self.unread[1:]
        return blocks

    def rewind(self, block: Block) -> None:
        """Know that it has to be read again."""
        self.rewound.append(block)

    def settle(self, block: Block) -> None:
        """Know that it is settled."""
        self.settled.append(block)

    def save(self) -> None:
        """Store positions."""
        self.saves += 1

    def directories(self) -> set[str]:
        """None."""
        return set()

    def statistics(self) -> LogSourceState:
        """What was said."""
        return self.found

    def close(self) -> None:
        """Be closed."""
        self.closed = True


class LogSourceRig:
    """A source with a fake follower and a fake intake, on a clock that stands still."""

    def __init__(self, **changes: Any) -> None:
        self.clock = FakeClock()
        self.intake = FakeRecordIntake()
        self.follower = FakeFollower()
        policy = log_policy(**{"poll_interval": 1.0, "commit_interval": 1.0, **changes})
        follower = cast(Follower, self.follower)
        watch = Watch(policy.name, self.clock, policy.poll_interval)
        self.source = LogSource(
            policy,
            self.intake,
            self.clock,
            cast(PositionStore, None),
            follower=follower,
            watch=watch,
        )

    @property
    def accepted(self) -> int:
        """Records that were accepted."""
        return sum(len(batch.values) for batch in self.intake.accepted)

    async def passes(self, seconds: float) -> None:
        """Time passes, once the source waits for it: while its thread works it has no timer."""
        await eventually(lambda: self.clock.pending)
        await self.clock.advance(seconds)


@asynccontextmanager
async def running(bench: LogSourceRig) -> AsyncIterator[LogSourceRig]:
    """The source, started and closed."""
    bench.source.start()
    try:
        yield bench
    finally:
        await bench.source.close()


async def test_settled_positions_are_stored() -> None:
    """The follower learns what is settled, and stores positions at the
    interval, not for each block.
    """
    bench = LogSourceRig()
    blocks = bench.follower.write(3, 4)
    async with running(bench):
        await eventually(lambda: bench.accepted == 7)
        for batch in bench.intake.accepted:
            batch.settle()
        await eventually(lambda: bench.follower.settled == blocks and bench.follower.saves == 1)
        [more] = bench.follower.write(1)
        await bench.passes(0.5)
        assert bench.follower.saves == 1
        await bench.passes(0.6)
        await eventually(lambda: bench.accepted == 8)
        bench.intake.accepted[-1].settle()
        await eventually(lambda: bench.follower.settled == [*blocks, more])
        await bench.passes(1.0)
        await eventually(lambda: bench.follower.saves == 2)
        state = bench.source.statistics()
        assert (state.state, state.lines["taken"], state.in_flight_bytes) == ("reading", 8, 0)
    assert bench.follower.closed
    assert bench.source.statistics().state == "stopping"


async def test_every_file_is_checked_each_poll_interval() -> None:
    """Whether or not a change was reported."""
    bench = LogSourceRig()
    async with running(bench):
        for looks in range(1, 4):
            # B023: the wait ends before the next round.
            await eventually(lambda: len(bench.follower.looks) == looks)  # noqa: B023
            await bench.passes(1.0)
    assert set(bench.follower.looks) == {None}


async def test_nothing_is_read_while_nothing_is_accepted() -> None:
    """Files are still looked at; what waits is handed over again, and then reading resumes."""
    bench = LogSourceRig()
    bench.intake.refuses = FULL
    bench.follower.write(3, 4)
    async with running(bench):
        await eventually(lambda: bench.intake.tries == 1)
        async with asyncio.timeout(LIMIT):
            while len(bench.follower.looks) < 5 or bench.intake.tries <= 20:
                await bench.passes(0.2)
                await tick()
        assert (bench.follower.reads, bench.source.statistics().why) == (1, "the buffer is full")
        bench.intake.refuses = None
        await bench.passes(MOST_RETRY_SECONDS)
        await eventually(lambda: bench.accepted == 7)


async def test_nothing_is_read_past_the_limit() -> None:
    """Until half of what was read is settled."""
    bench = LogSourceRig(max_in_flight=100)
    bench.follower.write(5, 5)
    async with running(bench):
        await eventually(lambda: bench.accepted == 5)
        await bench.passes(3.0)
        assert bench.follower.reads == 1
        assert "max_in_flight" in bench.source.statistics().why
        bench.intake.accepted[0].settle()
        await eventually(lambda: bench.accepted == 10)


async def test_an_error_is_reported_and_tried_again() -> None:
    """Of a file or of the database: the source lives on."""
    bench = LogSourceRig()
    bench.follower.fails = sqlite3.OperationalError("disk I/O error")
    bench.follower.write(3)
    async with running(bench):
        await eventually(lambda: bench.source.statistics().state == "down")
        assert bench.source.statistics().why == "disk I/O error"
        bench.follower.fails = None
        await bench.passes(1.0)
        await eventually(lambda: bench.accepted == 3)
        assert bench.source.statistics().state == "reading"


async def test_records_lost_by_the_buffer_are_read_again() -> None:
    """The follower gets the position; for a moment nothing is read."""
    bench = LogSourceRig()
    [block] = bench.follower.write(3)
    async with running(bench):
        await eventually(lambda: bench.accepted == 3)
        bench.intake.accepted[0].settle(FULL)
        await eventually(lambda: bench.follower.rewound == [block])
        assert bench.source.statistics().in_flight_bytes == 0


async def test_a_close_stores_what_is_settled_and_gives_back_the_rest() -> None:
    """The rest is read again at the next start."""
    bench = LogSourceRig()
    first, _ = bench.follower.write(3, 4)
    async with running(bench):
        await eventually(lambda: bench.accepted == 7)
        bench.source.stop_reading()
        bench.follower.write(5)
        bench.intake.accepted[0].settle()
        await bench.passes(2.0)
        await eventually(lambda: bench.follower.saves == 1)
    assert (bench.accepted, bench.follower.settled, bench.follower.closed) == (7, [first], True)
    assert bench.intake.given_back == [bench.intake.accepted[1]]


async def test_why_nothing_is_read_is_said() -> None:
    """Before the first look; then what the follower says, such as that no file exists."""
    bench = LogSourceRig()
    assert bench.source.statistics().state == "starting"
    bench.follower.found = LogSourceState("app", "waiting", "no file matches /var/log/app.log")
    async with running(bench):
        await eventually(lambda: bench.source.statistics().state == "waiting")
        assert bench.source.statistics().why == "no file matches /var/log/app.log"
        bench.follower.found = LogSourceState("app", "down", "the disk is full", "Make room.")
        await bench.passes(1.5)
        await eventually(lambda: bench.source.statistics().state == "down")
        state = bench.source.statistics()
        assert (state.why, state.hint) == ("the disk is full", "Make room.")
        bench.follower.found = LogSourceState(
            "app", "reading", "a.log can't be opened: Permission denied"
        )
        await bench.passes(1.5)
        await eventually(lambda: bench.source.statistics().state == "reading")
        assert bench.source.statistics().why == "a.log can't be opened: Permission denied"
