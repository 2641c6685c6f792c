"""The flow of records from assigned partitions into the intake: what is pending, what may be
committed, which partitions have to pause.

Invariants: batches of a partition are accepted in the order in which they were read; the committed
position never passes a record that is not settled; a partition whose batch had to wait is not read
until it was accepted, and past `max_in_flight` none is read until half of it is settled: pausing
discards what is fetched. Takes no time on any clock, and knows nothing of the client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from forwarder.core.event import Lane
from forwarder.core.record_intake import RecordIntake
from forwarder.core.watermark import Span, Watermark
from forwarder.sources.hand_over import SLICE_SECONDS, HandOver, InFlightBudget, RecordUnit
from forwarder.sources.kafka.batches import KafkaBatch, KafkaRecord, PartitionKey, cut
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.readable import duration

FAILURES: Final = 8
"""Partitions whose batches are rejected before the loop does something else: each try costs
decoding a batch.
"""

DEAD_LETTER_AGAIN_SECONDS: Final = 60.0
"""After which what was dead-lettered of a batch, and still blocks it, is dead-lettered again: it
was in flight, as with a probe, and was put back.
"""

_log = structlog.get_logger(__name__)


class PartitionFlow:
    """All partitions of one member of the group."""

    def __init__(
        self,
        policy: KafkaPolicy,
        intake: RecordIntake,
        monotonic: Callable[[], float],
        records: Counter[str],
        *,
        on_eased: Callable[[], None],
        on_rewound: Callable[[PartitionKey, int], None],
    ) -> None:
        """`records`: counts records by their result: taken, tombstone, filtered, refused.

        `on_eased`: called when fewer partitions have to pause than before, or nothing is
        outstanding any more.

        `on_rewound`: has to have a partition read again from that offset on, at once.
        """
        self.partitions: dict[PartitionKey, AssignedPartition] = {}
        self.budget = InFlightBudget(policy.max_in_flight)
        """Of all partitions."""
        self.held = ""
        """Why nothing may be read at all; empty if it may."""
        self._records = records
        self._policy = policy
        self._intake = intake
        self._now = monotonic
        self._on_eased = on_eased
        self._on_rewound = on_rewound
        self._overdue: set[Lane] = set()
        """Lanes that were halted for too long."""
        self._said: set[Lane] = set()
        """Those of which the log says that their events become dead letters."""

    @property
    def outstanding(self) -> bool:
        """Whether anything that was accepted is not settled."""
        return self.budget.batches > 0

    def begin(self, keys: Collection[PartitionKey]) -> None:
        """These were assigned, and nothing is known of them yet."""
        for key in keys:
            if key not in self.partitions:
                self._assign(key)

    def read(
        self, key: PartitionKey, records: Sequence[KafkaRecord], until: float = math.inf
    ) -> None:
        """Records of one partition came, in order, at least one. What is not accepted `until` then
        (monotonic time) waits.
        """
        partition = self.partitions.get(key) or self._assign(key)
        first = records[0].offset
        if partition.mark is not None and first < partition.mark.read:
            partition = self._begin_again(partition)
        mark = partition.mark or partition.begin(first)
        hand_over = partition.hand_over
        waited = bool(hand_over.waiting)
        hand_over.add(
            [
                PendingBatch(partition, batch, mark, mark.open(batch.first, batch.end, batch.count))
                for batch in cut(self._policy, key, records)
            ]
        )
        if not waited and self._now() < until:
            hand_over.advance(until)
        partition.narrow = partition.narrow or mark.window >= self._policy.max_uncommitted
        self.budget.check()

    def went_back(self, key: PartitionKey) -> None:
        """What is read next of the partition lies before what was read: it may be committed from
        there on.
        """
        if (partition := self.partitions.get(key)) is not None:
            self._begin_again(partition)

    def retry(self) -> None:
        """Hand over again what waits, for at most `SLICE_SECONDS`."""
        failures = 0
        now = self._now()
        end = now + SLICE_SECONDS
        for partition in [flow for flow in self.partitions.values() if flow.hand_over.due]:
            hand_over = partition.hand_over
            hand_over.advance(end)
            if hand_over.waiting:
                failures += hand_over.held_until > now
                # The next time other partitions come first.
                self.partitions[partition.key] = self.partitions.pop(partition.key)
            if failures == FAILURES or self._now() >= end:
                break

    def paused(self) -> set[PartitionKey]:
        """The partitions that must not be read now."""
        if self.held or self.budget.full:
            return set(self.partitions)
        now = self._now()
        return {
            key
            for key, flow in self.partitions.items()
            if flow.hand_over.waiting or flow.narrow or flow.hand_over.held_until > now
        }

    def why_paused(self, partition: AssignedPartition) -> str:
        """Why the partition is not read, as text for users; empty if it is."""
        if self.held:
            return self.held
        if partition.hand_over.blocked:
            return partition.hand_over.why
        if partition.narrow:
            return (
                f"{self._policy.max_uncommitted:,} records were read past one that isn't "
                "settled (max_uncommitted)"
            )
        return self.budget.why("records")

    def reached(self, key: PartitionKey, offset: int) -> None:
        """The client has nothing more to hand over before `offset`."""
        partition = self.partitions.get(key)
        if partition is not None:
            (partition.mark or partition.begin(offset)).pass_by(offset)

    def uncommitted(self) -> dict[PartitionKey, int]:
        """What may be committed and is not."""
        marks = {
            key: flow.mark.position
            for key, flow in self.partitions.items()
            if flow.mark is not None
        }
        return {
            key: position
            for key, position in marks.items()
            if position != self.partitions[key].committed
        }

    def committed(self, offsets: Mapping[PartitionKey, int]) -> None:
        """These were committed."""
        for key, offset in offsets.items():
            if key in self.partitions:
                self.partitions[key].committed = offset

    def release(self) -> None:
        """Discard what waits: another member reads it."""
        for partition in self.partitions.values():
            partition.hand_over.remove(partition.hand_over.waiting)

    def forget(self) -> int:
        """Give back all that is not settled, and forget all partitions; how many events were
        removed from the pipeline.
        """
        batches = [batch for flow in self.partitions.values() for batch in flow.hand_over.release()]
        self.partitions.clear()
        self.budget.eased()
        return self._intake.give_back(batches) if batches else 0

    def dead_letter_halted(self, now: float) -> None:
        """Make dead letters of what is pending of lanes that were halted for too long; `now` is
        wall-clock time.

        The newest batch of a lane stays for its probes, until it has waited as long itself.
        """
        limit = self._policy.halt_after
        if limit is None:
            return
        halted = self._intake.halted()
        self._overdue.clear()
        self._overdue.update(lane for lane, since in halted.items() if now - since >= limit)
        self._said &= self._overdue
        for lane in self._overdue:
            self._dead_letter(lane, now, limit)

    def _dead_letter(self, lane: Lane, now: float, limit: float) -> None:
        batches = [
            (batch, unit)
            for flow in self.partitions.values()
            for unit in flow.hand_over.accepted
            for batch in unit.accepted.values()
            if lane in batch.lanes
            and now - unit.dead_lettered.get(lane, -math.inf) >= DEAD_LETTER_AGAIN_SECONDS
        ]
        batches.sort(key=lambda pair: pair[0].at)
        if batches and now - batches[-1][0].at < limit:
            batches.pop()
        why = f"its lane was halted for {duration(limit)} (halt_after)"
        while batches:
            if self._intake.dead_letter([batch for batch, _ in batches], lane, why):
                for _, unit in batches:
                    unit.dead_lettered[lane] = now
                self._report_dead_lettered(lane, why)
                return
            del batches[len(batches) // 2 :]

    def _report_dead_lettered(self, lane: Lane, why: str) -> None:
        if lane not in self._said:
            self._said.add(lane)
            _log.warning(
                "kafka: events become dead letters",
                cluster=self._policy.name,
                lane=lane_label(lane),
                why=why,
            )

    @property
    def unfinished(self) -> bool:
        """Whether something waits only because it would have occupied the loop for too long."""
        return any(flow.hand_over.due for flow in self.partitions.values())

    def _assign(self, key: PartitionKey) -> AssignedPartition:
        """A partition of which nothing is known yet."""
        hand_over = HandOver[PendingBatch, KafkaBatch](
            self._intake,
            self._policy.level,
            self.budget,
            self._now,
            on_accepted=self._on_accepted,
            on_settled=self._on_settled,
            on_rewound=self._rewind,
            on_decoded=partial(self._on_decoded, key),
            given_up=self._overdue,
        )
        partition = self.partitions[key] = AssignedPartition(key, hand_over)
        return partition

    def _on_accepted(self, pending: PendingBatch, batch: KafkaBatch) -> None:
        records = self._records
        records["taken"] += len(batch.values)
        if batch.tombstones or batch.filtered or batch.rejected:
            records["tombstone"] += batch.tombstones
            records["filtered"] += batch.filtered
            records["refused"] += len(batch.rejected)
        self.budget.bytes -= pending.weight - batch.size
        pending.weight = batch.size
        batch.forget()

    def _on_settled(self, pending: PendingBatch) -> None:
        pending.mark.settle(pending.span)
        self._ease(pending.origin)

    def _on_decoded(self, key: PartitionKey) -> None:
        """The record that the partition waits for is decoded."""
        hand_over = self.partitions[key].hand_over
        hand_over.advance(self._now() + SLICE_SECONDS)
        if not hand_over.waiting:
            self._on_eased()

    def _ease(self, partition: AssignedPartition) -> None:
        """Less is outstanding than before: which partitions may be read again?"""
        mark = partition.mark
        eased = self.budget.eased() or not self.outstanding
        if (
            partition.narrow
            and mark is not None
            and mark.window <= self._policy.max_uncommitted // 2
        ):
            partition.narrow = False
            eased = True
        if eased:
            self._on_eased()

    def _rewind(self, units: Sequence[PendingBatch]) -> None:
        """The buffer couldn't keep a batch: it is read again, and all that was read after it."""
        pending = units[0]
        first = pending.batch.first
        pending.mark.rewind(pending.span, first)
        self._on_rewound(pending.origin.key, first)
        self._ease(pending.origin)

    def _begin_again(self, old: AssignedPartition) -> AssignedPartition:
        """Offsets went back: the partition is not the one that was read before. What was accepted
        of that one is still delivered.
        """
        old.hand_over.release()
        partition = self._assign(old.key)
        self._ease(partition)
        return partition


class AssignedPartition:
    """One assigned partition."""

    __slots__ = ("committed", "end", "hand_over", "key", "mark", "narrow")

    def __init__(self, key: PartitionKey, hand_over: HandOver[PendingBatch, KafkaBatch]) -> None:
        self.key = key
        self.hand_over = hand_over
        self.mark: Watermark | None = None
        """None until it is known where reading begins."""
        self.committed: int | None = None
        """The committed offset, if it is known."""
        self.end: int | None = None
        """The partition's end when it was requested last."""
        self.narrow = False
        """Whether it is paused until its first unsettled record is settled: too much was read past
        that one.
        """

    @property
    def position(self) -> int | None:
        """What is committed or could be; None if that is not known."""
        return self.committed if self.mark is None else self.mark.position

    def lag_to(self, highwater: int | None) -> int | None:
        """Records that the group still has to process, gaps included, if the partition ended there
        when it was read last.

        None if that is not known.
        """
        end = max((offset for offset in (self.end, highwater) if offset is not None), default=None)
        return None if end is None or self.position is None else max(0, end - self.position)

    def begin(self, offset: int) -> Watermark:
        """The first offset that is read."""
        self.mark = Watermark(offset)
        return self.mark


class PendingBatch(RecordUnit[AssignedPartition, KafkaBatch]):
    """A batch from when it is read until it is settled."""

    __slots__ = ("batch", "dead_lettered", "mark", "span")

    def __init__(
        self, partition: AssignedPartition, batch: KafkaBatch, mark: Watermark, span: Span
    ) -> None:
        super().__init__(partition, (batch,), batch.count, batch.cost)
        self.batch = batch
        self.mark = mark
        self.span = span
        self.dead_lettered: dict[Lane, float] = {}
        """Lanes whose events in it have become dead letters, all that were not in flight, and when
        (wall-clock time).
        """

    def divide(self, batch: KafkaBatch) -> list[PendingBatch]:
        """Its halves, each of which is settled by itself."""
        first, second = batch.halves()
        rest = self.mark.split(self.span, first.end, first.count)
        return [
            PendingBatch(self.origin, first, self.mark, self.span),
            PendingBatch(self.origin, second, self.mark, rest),
        ]
