"""The flow of records from blocks into the intake: what is pending, what is settled, when nothing
may be read.

Invariants: blocks are accepted in the order in which they were read; a block is settled when all
its records are; while a batch waits, and past `max_in_flight` until half of it is settled, nothing
is read. It knows nothing of files: what is settled and what has to be read again is collected for
the source.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from forwarder.core.record_intake import AcceptedBatch, RecordIntake
from forwarder.sources.hand_over import SLICE_SECONDS, HandOver, InFlightBudget, RecordUnit
from forwarder.sources.logs.batches import LogBatch, cut
from forwarder.sources.logs.followed import Block, FollowedFile
from forwarder.sources.logs.policy import LogPolicy

RESULTS: Final = ("taken", "filtered", "unmatched", "refused", "overlong")
"""What becomes of a record."""

LEAST_PAUSE: Final = 0.001
"""Seconds; a shorter pause may end before what it waits for, since sums of times are rounded."""


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
        self.budget = InFlightBudget(policy.max_in_flight)
        self._policy = policy
        self._now = monotonic
        self._lines = lines
        self._on_eased = on_eased
        self._rereads = rereads
        self._settled: list[Block] = []
        self._rewound: list[Block] = []
        self._hand_over = HandOver[_PendingBlock, LogBatch](
            intake,
            policy.level,
            self.budget,
            monotonic,
            on_accepted=self._on_accepted,
            on_settled=self._on_settled,
            on_rewound=self._on_rewound,
            on_decoded=on_eased,
        )

    @property
    def may_read(self) -> bool:
        """Whether more may be read now."""
        return not self.budget.full and not self._hand_over.blocked

    @property
    def waits(self) -> float | None:
        """Seconds until something can be handed over; None if nothing waits."""
        pause = self._hand_over.held_until - self._now()
        if pause > 0:
            return max(LEAST_PAUSE, pause)
        return 0.0 if self._hand_over.waiting else None

    @property
    def outstanding(self) -> bool:
        """Whether anything that was read is not settled."""
        return bool(self._hand_over.waiting or self._hand_over.accepted)

    @property
    def why_paused(self) -> str:
        """Why nothing is read, as text for users; empty if it is."""
        return self._hand_over.why if self._hand_over.blocked else self.budget.why("lines")

    def add(self, blocks: Iterable[Block]) -> None:
        """Blocks that were read, in order. Those of a file that has to be read again from before
        them are discarded.
        """
        again = {block.file for block in self._rewound}
        self._hand_over.add(
            [_PendingBlock(self._policy, block) for block in blocks if block.file not in again]
        )
        self.budget.check()

    async def hand_over(self) -> None:
        """Hand over what waits, as far as it is accepted, in slices between which the loop does
        something else.
        """
        while self._hand_over.due:
            self._hand_over.advance(self._now() + SLICE_SECONDS)
            if self._hand_over.due:
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
        batches = self._hand_over.release()
        self.budget.eased()
        return batches

    def unaccepted(self) -> int:
        """Records that were read and are not accepted."""
        return sum(pending.left for pending in self._hand_over.waiting)

    def _on_accepted(self, _: _PendingBlock, batch: LogBatch) -> None:
        lines = self._lines
        lines["taken"] += len(batch.values)
        lines["filtered"] += batch.filtered
        lines["unmatched"] += batch.unmatched
        lines["refused"] += len(batch.rejected) - batch.overlong
        lines["overlong"] += batch.overlong
        lines["replaced"] += batch.replaced

    def _on_settled(self, pending: _PendingBlock) -> None:
        self._settled.append(pending.block)
        if self.budget.eased() or len(self._settled) == 1 or not self.outstanding:
            self._on_eased()

    def _on_rewound(self, units: Sequence[_PendingBlock]) -> None:
        """The buffer couldn't keep a batch: its block comes again, and all that was read of its
        file after it.
        """
        if self._rereads:
            self._rewound.append(units[0].block)
        else:
            self._hand_over.add(
                [_PendingBlock(self._policy, unit.block) for unit in units], first=True
            )
        self.budget.eased()
        self._on_eased()


class _PendingBlock(RecordUnit[FollowedFile, LogBatch]):
    """A block from when it is read until it is settled."""

    __slots__ = ("block",)

    def __init__(self, policy: LogPolicy, block: Block) -> None:
        records = len(block.records.values) + len(block.records.overlong)
        super().__init__(block.file, cut(policy, block), records, block.size)
        self.block = block
