"""The flow of records from blocks into the intake: what is pending, what is settled, when nothing
may be read.

Invariants: blocks are accepted in the order in which they were read; a block is settled when all
its records are; while a batch waits, and past `max_in_flight` until half of it is settled, nothing
is read. It knows nothing of files: what is settled and what has to be read again is collected for
the source.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from forwarder.core.errors import Backpressure, StillDecoding, TogetherTooLarge
from forwarder.core.records import AcceptedBatch, RecordIntake
from forwarder.sources.logs.batches import LogBatch, cut
from forwarder.sources.logs.followed import Block
from forwarder.sources.logs.policy import LogPolicy
from forwarder.telemetry.readable import size

RESULTS: Final = ("taken", "filtered", "unmatched", "refused", "overlong")
"""What becomes of a record."""

SLICE_SECONDS: Final = 0.01
"""How long records are handed over before the loop does something else, but for the last batch."""

LEAST_PAUSE: Final = 0.001
"""Seconds; a shorter pause may end before what it waits for, since sums of times are rounded."""

RETRY_SECONDS: Final = 0.2
"""After which what had to wait is handed over again."""

DECODING_SECONDS: Final = 5.0
"""After which a record that is decoded elsewhere is requested again, unless it is
reported as done before.
"""

HOLD_SECONDS: Final = 2.0
"""How long nothing is handed over after the buffer couldn't keep what it had accepted."""


class LogFlow:
    """All blocks of one source, from when they are read until they are settled."""

    def __init__(
        self,
        policy: LogPolicy,
        intake: RecordIntake,
        monotonic: Callable[[], float],
        lines: Counter[str],
        *,
        on_eased: Callable[[], None],
        rereads: bool = True,
    ) -> None:
        """`lines`: counts records by result (`RESULTS`), and as `replaced` those with bytes that
        aren't UTF-8.

        `on_eased`: called when something can be done that could not be done before. `rereads`:
        whether blocks can be read again; else they are kept until they are settled.
        """
        self.bytes = 0
        """Of records that were read and are not settled."""
        self.why = ""
        """Why what waits was not accepted; empty if nothing waits."""
        self._policy = policy
        self._intake = intake
        self._now = monotonic
        self._lines = lines
        self._on_eased = on_eased
        self._rereads = rereads
        self._waiting: deque[_PendingBlock] = deque()
        """What was read and is not accepted, in order; of the first, a part may be."""
        self._accepted: dict[_PendingBlock, None] = {}
        """What was accepted and is not settled, in order."""
        self._settled: list[Block] = []
        self._rewound: list[Block] = []
        self._full = False
        self._held_until = 0.0
        """Nothing is handed over before, monotonic seconds."""

    @property
    def may_read(self) -> bool:
        """Whether more may be read now."""
        return not self._waiting and not self._full and self._held_until <= self._now()

    @property
    def waits(self) -> float | None:
        """Seconds until something can be handed over; None if nothing waits."""
        if self._held_until > self._now():
            return max(LEAST_PAUSE, self._held_until - self._now())
        return 0.0 if self._waiting else None

    @property
    def outstanding(self) -> bool:
        """Whether anything that was read is not settled."""
        return bool(self._waiting or self._accepted)

    @property
    def why_paused(self) -> str:
        """Why nothing is read, as text for users; empty if it is."""
        if self._waiting or self._held_until > self._now():
            return self.why
        return f"{size(self.bytes)} of lines aren't settled (max_in_flight)" if self._full else ""

    def add(self, blocks: Iterable[Block]) -> None:
        """Blocks that were read, in order. Those of a file that has to be read again from before
        them are discarded.
        """
        again = {block.file for block in self._rewound}
        for block in blocks:
            if block.file not in again:
                self.bytes += block.size
                self._waiting.append(_PendingBlock(block, cut(self._policy, block)))
        self._full = self._full or self.bytes > self._policy.max_in_flight

    async def hand_over(self) -> None:
        """Hand over what waits, as far as it is accepted, in slices between which the loop does
        something else.
        """
        while True:
            until = self._now() + SLICE_SECONDS
            while self._now() < until:
                if (
                    not self._waiting
                    or self._held_until > self._now()
                    or not self._hand_over(self._waiting[0])
                ):
                    return
            await asyncio.sleep(0)

    def take_settled(self) -> list[Block]:
        """The blocks that were settled since the last call."""
        settled = self._settled
        self._settled = []
        return settled

    def take_rewound(self) -> list[Block]:
        """The blocks since the last call that have to be read again, with all that was read of
        their files after them.
        """
        rewound = self._rewound
        self._rewound = []
        return rewound

    def release(self) -> list[AcceptedBatch]:
        """Forget all that is not settled; the accepted batches of it."""
        batches = [
            batch
            for pending in (*self._accepted, *self._waiting)
            for batch in pending.accepted.values()
        ]
        for pending in (*self._accepted, *self._waiting):
            pending.gone = True
        self._accepted.clear()
        self._waiting.clear()
        self.bytes = 0
        self._full = False
        return batches

    def unaccepted(self) -> int:
        """Records that were read and are not accepted."""
        return sum(pending.left for pending in self._waiting)

    def _hand_over(self, pending: _PendingBlock) -> bool:
        """Hand over a batch of the block; whether it was accepted, or there was none any more."""
        batch = pending.next()
        if batch is None:
            self._waiting.popleft()
            self._accepted[pending] = None
            pending.complete = True
            self._finish(pending)
            return True
        try:
            accepted = None
            number = pending.number
            if batch.values or batch.rejected:
                accepted = self._intake.accept(
                    batch, partial(self._on_settled, pending, number), self._policy.level
                )
        except Backpressure as error:
            if isinstance(error, TogetherTooLarge) and batch.count > 1:
                pending.queue.extendleft(reversed(batch.halves()))
                return True
            pending.queue.appendleft(batch)
            self._hold(error)
            return False
        pending.number += 1
        pending.left -= batch.count
        if accepted is not None:
            pending.accepted[number] = accepted
        self._count(batch)
        self.why = ""
        return True

    def _hold(self, error: Backpressure) -> None:
        self.why = error.message
        self._held_until = self._now() + RETRY_SECONDS
        if isinstance(error, StillDecoding):
            self._held_until += DECODING_SECONDS
            error.when_done(self._decoded)

    def _decoded(self) -> None:
        """The record that all others wait for is decoded."""
        self._held_until = 0.0
        self._on_eased()

    def _count(self, batch: LogBatch) -> None:
        lines = self._lines
        lines["taken"] += len(batch.values)
        lines["filtered"] += batch.filtered
        lines["unmatched"] += batch.unmatched
        lines["refused"] += len(batch.rejected) - batch.overlong
        lines["overlong"] += batch.overlong
        lines["replaced"] += batch.replaced

    def _on_settled(self, pending: _PendingBlock, number: int, error: Backpressure | None) -> None:
        """An accepted batch is settled, or the buffer couldn't keep it."""
        if pending.gone:
            return
        del pending.accepted[number]
        if error is None:
            self._finish(pending)
        else:
            self._again(pending, error)

    def _finish(self, pending: _PendingBlock) -> None:
        """Settle the block, if all of it is settled."""
        if pending.accepted or not pending.complete:
            return
        del self._accepted[pending]
        self.bytes -= pending.block.size
        self._settled.append(pending.block)
        eased = len(self._settled) == 1 or not self.outstanding
        if self._full and self.bytes <= self._policy.max_in_flight // 2:
            self._full = False
            eased = True
        if eased:
            self._on_eased()

    def _again(self, failed: _PendingBlock, error: Backpressure) -> None:
        """The buffer couldn't keep a batch: its block comes again, and all that was read of its
        file after it.
        """
        known = [*self._accepted, *self._waiting]
        gone = [
            each for each in known[known.index(failed) :] if each.block.file is failed.block.file
        ]
        for each in gone:
            each.gone = True
            self._accepted.pop(each, None)
        self._waiting = deque([each for each in self._waiting if not each.gone])
        self._intake.give_back([batch for each in gone for batch in each.accepted.values()])
        if self._rereads:
            self.bytes -= sum(each.block.size for each in gone)
            self._rewound.append(failed.block)
        else:
            self._waiting.extendleft(
                _PendingBlock(each.block, cut(self._policy, each.block)) for each in reversed(gone)
            )
        self.why = error.message
        self._held_until = self._now() + HOLD_SECONDS
        if self._full and self.bytes <= self._policy.max_in_flight // 2:
            self._full = False
        self._on_eased()


class _PendingBlock:
    """A block from when it is read until it is settled."""

    __slots__ = ("_batches", "accepted", "block", "complete", "gone", "left", "number", "queue")

    def __init__(self, block: Block, batches: Iterator[LogBatch]) -> None:
        self.block = block
        self._batches = batches
        self.queue: deque[LogBatch] = deque()
        """Batches that were made and are not accepted; the intake gets the same one again."""
        self.accepted: dict[int, AcceptedBatch] = {}
        """Batches that were accepted and are not settled, by their numbers."""
        self.number = 0
        """Of the next batch."""
        self.left = len(block.records.values) + len(block.records.overlong)
        """Records that are not accepted."""
        self.complete = False
        """Whether all of it was accepted."""
        self.gone = False
        """Whether it counts no more."""

    def next(self) -> LogBatch | None:
        """The next batch; None if there is none."""
        return self.queue.popleft() if self.queue else next(self._batches, None)
