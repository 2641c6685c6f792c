"""The flow of blocks: what is accepted, what waits, what is settled, what has to be read again,
and when nothing is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import BufferFull, StillDecoding
from forwarder.sources.hand_over import (
    DECODING_SECONDS,
    HOLD_SECONDS,
    MOST_RETRY_SECONDS,
    RETRY_SECONDS,
    SLICE_SECONDS,
)
from forwarder.sources.logs.flow import LogFlow
from forwarder.sources.logs.followed import Block
from tests.support.log_blocks import LogInBlocks, log_line, log_policy
from tests.support.record_intakes import FakeRecordIntake

FULL = BufferFull("the buffer is full")


class LogFlowRig:
    """A flow with a fake intake, and what it reported."""

    def __init__(self, *, rereads: bool = True, **changes: Any) -> None:
        self.now = 1000.0
        self.intake = FakeRecordIntake()
        self.counts: Counter[str] = Counter()
        self.eased = 0
        self.file = LogInBlocks()
        policy = log_policy(**changes)
        self.flow = LogFlow(
            policy, self.intake, lambda: self.now, self.counts, on_eased=self._ease, rereads=rereads
        )

    def _ease(self) -> None:
        self.eased += 1

    async def read(self, *counts: int, file: LogInBlocks | None = None) -> list[Block]:
        """Blocks of so many lines come, and are handed over."""
        blocks = [
            (file or self.file).block([log_line(number) for number in range(count)])
            for count in counts
        ]
        self.flow.add(blocks)
        await self.flow.hand_over()
        return blocks

    @property
    def accepted(self) -> list[int]:
        """Records of each accepted batch."""
        return [len(batch.values) for batch in self.intake.accepted]


async def test_blocks_are_accepted_at_the_policys_level_and_settled_whole() -> None:
    """A block in several batches is settled with the last of them, whatever their order."""
    bench = LogFlowRig(level=AckLevel.DISK)
    [large, small] = await bench.read(700, 10)
    assert (bench.accepted, bench.intake.levels) == ([500, 200, 10], {AckLevel.DISK})
    assert (bench.flow.budget.bytes, bench.counts["taken"]) == (large.size + small.size, 710)
    first, second, third = bench.intake.accepted
    third.settle()
    second.settle()
    assert bench.flow.take_settled() == [small]
    first.settle()
    assert bench.flow.take_settled() == [large]
    assert (bench.flow.budget.bytes, bench.flow.outstanding, bench.flow.take_settled()) == (
        0,
        False,
        [],
    )


async def test_a_block_that_settles_at_once_is_settled() -> None:
    """And so is a block of which nothing becomes an event."""
    bench = LogFlowRig()
    bench.intake.settles = True
    [block] = await bench.read(3)
    assert bench.flow.take_settled() == [block]
    nothing = bench.file.block([b"no JSON", b"neither"])
    bench.flow.add([nothing])
    await bench.flow.hand_over()
    assert bench.flow.take_settled() == [nothing]
    assert (bench.counts["unmatched"], bench.intake.tries) == (2, 1)


async def test_rejected_batches_wait_in_order() -> None:
    """The same batch is handed over again after a moment, which is longer each time that it is
    rejected; nothing is read until then, and nothing is counted twice.
    """
    bench = LogFlowRig()
    bench.intake.refuses = FULL
    await bench.read(5, 2)
    assert (bench.flow.may_read, round(bench.flow.waits or 0, 9), bench.flow.why_paused) == (
        False,
        RETRY_SECONDS,
        "the buffer is full",
    )
    await bench.flow.hand_over()
    assert bench.intake.tries == 1
    bench.now += RETRY_SECONDS
    await bench.flow.hand_over()
    assert (bench.intake.tries, bench.counts) == (2, Counter())
    pauses = []
    for _ in range(5):
        pauses.append(bench.flow.waits)
        bench.now += bench.flow.waits or 0.0
        await bench.flow.hand_over()
    assert pauses == pytest.approx([0.4, 0.8, 1.6, 2.0, 2.0])
    bench.intake.refuses = None
    bench.now += MOST_RETRY_SECONDS
    await bench.flow.hand_over()
    assert (bench.accepted, bench.counts["taken"]) == ([5, 2], 7)
    assert (bench.flow.may_read, bench.flow.waits, bench.flow.why_paused) == (True, None, "")
    bench.intake.refuses = FULL
    await bench.read(1)
    assert bench.flow.waits == pytest.approx(RETRY_SECONDS)


async def test_a_record_that_is_decoded_elsewhere_comes_again_at_once() -> None:
    """When it is decoded, not after a moment."""
    bench = LogFlowRig()
    done: list[Any] = []
    bench.intake.refuses = error = StillDecoding("a large record is being decoded")
    error.when_done = done.append
    await bench.read(1)
    assert bench.flow.waits == pytest.approx(RETRY_SECONDS + DECODING_SECONDS)
    bench.intake.refuses = None
    done[0]()
    assert (bench.flow.waits, bench.eased) == (0.0, 1)
    await bench.flow.hand_over()
    assert bench.accepted == [1]


async def test_reading_stops_at_the_limit_and_begins_again_at_half_of_it() -> None:
    """`max_in_flight` bounds what isn't settled, but for the block that passes it."""
    bench = LogFlowRig(max_in_flight=1000)
    blocks = await bench.read(10, 10, 10, 10)
    assert sum(block.size for block in blocks) > 1000
    assert (bench.flow.may_read, "aren't settled (max_in_flight)" in bench.flow.why_paused) == (
        False,
        True,
    )
    first, second, third, _ = bench.intake.accepted
    first.settle()
    second.settle()
    assert not bench.flow.may_read
    third.settle()
    assert (bench.flow.may_read, bench.flow.why_paused) == (True, "")
    assert bench.eased == 2  # for what is settled, and for the room


async def test_records_lost_by_the_buffer_are_read_again() -> None:
    """With all that was read of its file after it, which is given back; other files aren't
    touched, and settled ones stay so.
    """
    bench = LogFlowRig()
    other = LogInBlocks("/var/log/other.log", "f2")
    [settled, failed, after] = await bench.read(1, 600, 3)
    [elsewhere] = await bench.read(4, file=other)
    bench.intake.accepted[0].settle()
    bench.intake.accepted[2].settle(FULL)
    assert bench.flow.take_rewound() == [failed]
    assert [
        len(batch.values) for batch in bench.intake.given_back if batch in bench.intake.accepted
    ] == [
        500,
        3,
    ]
    assert (bench.flow.take_settled(), bench.flow.budget.bytes) == ([settled], elsewhere.size)
    assert (bench.flow.may_read, round(bench.flow.waits or 0, 9), bench.flow.why_paused) == (
        False,
        HOLD_SECONDS,
        "the buffer is full",
    )
    bench.intake.accepted[1].settle()  # what comes late counts no more
    bench.intake.accepted[3].settle()
    assert bench.flow.take_settled() == []
    bench.intake.accepted[4].settle()
    assert (bench.flow.take_settled(), after.size > 0) == ([elsewhere], True)


async def test_returned_lines_free_their_room() -> None:
    """A full source is read again after the pause, although nothing was settled."""
    bench = LogFlowRig(max_in_flight=1000)
    await bench.read(40)
    assert bench.flow.budget.full
    bench.intake.accepted[0].settle(FULL)
    assert (bench.flow.budget.full, bench.flow.budget.bytes) == (False, 0)
    bench.now += HOLD_SECONDS
    assert bench.flow.may_read


async def test_release_forgets_what_isnt_settled() -> None:
    """The batches that were accepted are returned; what waits is counted before."""
    bench = LogFlowRig()
    await bench.read(1, 600)
    bench.intake.refuses = FULL
    await bench.read(4)
    assert bench.flow.unaccepted() == 4
    assert bench.flow.release() == bench.intake.accepted
    bench.intake.accepted[0].settle()
    assert (bench.flow.outstanding, bench.flow.take_settled(), bench.flow.budget.bytes) == (
        False,
        [],
        0,
    )


async def test_others_have_their_turns() -> None:
    """Much is handed over in slices, between which the loop does something else."""
    bench = LogFlowRig()
    turns = list[int]()
    bench.intake.on_take = lambda: setattr(bench, "now", bench.now + SLICE_SECONDS)

    async def other() -> None:
        for _ in range(5):
            turns.append(bench.intake.tries)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await bench.read(500, 500, 500)
    await beside
    assert turns == sorted(turns)
    assert set(turns) >= {1, 2}
