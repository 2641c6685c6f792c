"""The flow of records from assigned partitions into the intake: what is pending, what may be
committed, which partitions have to pause.

Invariants: the batches of a partition are accepted in the order in which they were read. The
committed position never passes a record that is not settled. A partition whose batch has to wait is
paused until the batch is accepted. Past `max_in_flight` all partitions are paused until half of it
is settled: a pause discards what is fetched, so it should be rare.

Nothing here waits, and nothing knows the client: `Membership` passes records in, and pauses, seeks
and commits as it finds here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from forwarder.core.event import Lane
from forwarder.core.record_intake import AcceptedBatch, RecordIntake
from forwarder.sources.hand_over import (
    SLICE_SECONDS,
    HandOver,
    InFlightBudget,
    RecordUnit,
    Span,
    Watermark,
)
from forwarder.sources.kafka.batches import KafkaBatch, KafkaRecord, PartitionKey, cut
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.readable import duration

MAX_FAILURES: Final = 8
"""How many partitions' batches may be rejected in one `retry`: each costs decoding a batch."""

DEAD_LETTER_AGAIN_SECONDS: Final = 60.0
"""How long after dead-lettering a halted lane's events in a batch it is done again, if the batch is
still not settled: some were in flight, as a probe, and are pending again.
"""

_log = structlog.get_logger(__name__)


class PartitionFlow:
    """All partitions of one member of the group."""

    def __init__(
        self,
        policy: KafkaPolicy,
        intake: RecordIntake,
        monotonic: Callable[[], float],
        record_counts: Counter[str],
        *,
        on_eased: Callable[[], None],
        on_rewound: Callable[[PartitionKey, int], None],
    ) -> None:
        """`record_counts`: counts records by their result: taken, tombstone, filtered, refused.

        `on_eased`: called when fewer partitions have to pause than before, or when nothing is
        outstanding.

        `on_rewound`: called when a partition has to be read again from an offset; it must do so at
        once.
        """
        self.partitions: dict[PartitionKey, AssignedPartition] = {}
        self.budget = InFlightBudget(policy.max_in_flight)
        """Shared by all partitions."""
        self.pause_reason = ""
        """Why all partitions are paused, as text for users; empty if they needn't be."""
        self._record_counts = record_counts
        self._policy = policy
        self._intake = intake
        self._now = monotonic
        self._on_eased = on_eased
        self._on_rewound = on_rewound
        self._overdue: set[Lane] = set()
        """Lanes that were halted for too long."""
        self._logged: set[Lane] = set()
        """Overdue lanes for which it was logged that their events become dead letters."""

    @property
    def outstanding(self) -> bool:
        """Whether anything that was accepted is not settled."""
        return self.budget.batches > 0

    @property
    def unfinished(self) -> bool:
        """Whether something waits only because handing it over would have blocked the loop for too
        long; then `retry` has to be called soon.
        """
        return any(partition.hand_over.due for partition in self.partitions.values())

    def assign(self, keys: Collection[PartitionKey]) -> None:
        """Add newly assigned partitions."""
        for key in keys:
            if key not in self.partitions:
                self._add_partition(key)

    def add(
        self, key: PartitionKey, records: Sequence[KafkaRecord], until: float = math.inf
    ) -> None:
        """Add records that were read from one partition, in order, at least one, and hand them over
        until `until` (monotonic time). The rest waits for `retry`.
        """
        partition = self.partitions.get(key) or self._add_partition(key)
        first = records[0].offset
        if partition.watermark is not None and first < partition.watermark.read:
            partition = self._replace(partition)
        watermark = partition.watermark or partition.begin(first)
        pending: list[PendingBatch] = []
        for batch in cut(self._policy, key, records):
            span = watermark.open(batch.first, batch.end, batch.count)
            pending.append(PendingBatch(partition, batch, watermark, span))
        hand_over = partition.hand_over
        waited = bool(hand_over.waiting)
        hand_over.add(pending)
        if not waited and self._now() < until:
            hand_over.advance(until)
        if watermark.window >= self._policy.max_uncommitted:
            partition.window_full = True
        self.budget.check()

    def restart(self, key: PartitionKey) -> None:
        """Forget the offsets of a partition that is read next from before what was read, so that
        the lower offsets can be committed.
        """
        if (partition := self.partitions.get(key)) is not None:
            self._replace(partition)

    def retry(self) -> None:
        """Hand over again what waits, for at most `SLICE_SECONDS`."""
        failures = 0
        now = self._now()
        end = now + SLICE_SECONDS
        for partition in [part for part in self.partitions.values() if part.hand_over.due]:
            hand_over = partition.hand_over
            hand_over.advance(end)
            if hand_over.waiting:
                if hand_over.held_until > now:  # it was rejected
                    failures += 1
                # the next time, other partitions come first
                self.partitions[partition.key] = self.partitions.pop(partition.key)
            if failures == MAX_FAILURES or self._now() >= end:
                break

    def paused(self) -> set[PartitionKey]:
        """The partitions that must not be read now."""
        if self.pause_reason or self.budget.full:
            return set(self.partitions)
        now = self._now()
        return {
            key
            for key, partition in self.partitions.items()
            if partition.window_full
            or partition.hand_over.waiting
            or partition.hand_over.held_until > now
        }

    def why_paused(self, partition: AssignedPartition) -> str:
        """Why the partition is not read, as text for users; empty if it is."""
        if self.pause_reason:
            return self.pause_reason
        if partition.hand_over.blocked:
            return partition.hand_over.why
        if partition.window_full:
            return (
                f"{self._policy.max_uncommitted:,} records were read past one that isn't "
                "settled (max_uncommitted)"
            )
        return self.budget.why("records")

    def advance_to(self, key: PartitionKey, offset: int) -> None:
        """Pass the offsets before `offset` that hold no records, such as the marks of transactions:
        the client has passed on all that there is before it.
        """
        partition = self.partitions.get(key)
        if partition is not None:
            (partition.watermark or partition.begin(offset)).pass_by(offset)

    def uncommitted(self) -> dict[PartitionKey, int]:
        """The offsets that may be committed and are not."""
        return {
            key: partition.watermark.position
            for key, partition in self.partitions.items()
            if partition.watermark is not None
            and partition.watermark.position != partition.committed
        }

    def note_committed(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Remember the offsets that were committed."""
        for key, offset in offsets.items():
            if key in self.partitions:
                self.partitions[key].committed = offset

    def discard_waiting(self) -> None:
        """Discard what was not accepted: another member will read it."""
        for partition in self.partitions.values():
            partition.hand_over.remove(partition.hand_over.waiting)

    def forget(self) -> int:
        """Give back all that is not settled, and forget all partitions. Return how many events were
        removed from the pipeline.
        """
        batches: list[AcceptedBatch] = []
        for partition in self.partitions.values():
            batches += partition.hand_over.release()
        self.partitions.clear()
        self.budget.eased()
        return self._intake.give_back(batches) if batches else 0

    def dead_letter_halted(self, now: float) -> None:
        """Dead-letter the pending events of lanes that were halted for too long. `now` is
        wall-clock time.

        The lane's newest batch is left for probes, until it is itself older than that.
        """
        limit = self._policy.halt_after
        if limit is None:
            return
        halted = self._intake.halted()
        self._overdue.clear()
        self._overdue.update(lane for lane, since in halted.items() if now - since >= limit)
        self._logged &= self._overdue
        for lane in self._overdue:
            self._dead_letter(lane, now, limit)

    def _dead_letter(self, lane: Lane, now: float, limit: float) -> None:
        """Dead-letter the lane's pending events in all batches, or if there is no room for that, in
        the older half of them, and so on.
        """
        batches = self._batches_of(lane, now)
        if batches and now - batches[-1][0].at < limit:
            batches.pop()
        why = f"its lane was halted for {duration(limit)} (halt_after)"
        while batches:
            if self._intake.dead_letter([batch for batch, _ in batches], lane, why):
                for _, pending in batches:
                    pending.dead_lettered[lane] = now
                self._log_dead_lettered(lane, why)
                return
            del batches[len(batches) // 2 :]  # no room for all of them

    def _batches_of(self, lane: Lane, now: float) -> list[tuple[AcceptedBatch, PendingBatch]]:
        """The accepted batches with events of the lane that weren't dead-lettered lately, oldest
        first.
        """
        batches: list[tuple[AcceptedBatch, PendingBatch]] = []
        for partition in self.partitions.values():
            for pending in partition.hand_over.accepted:
                dead_lettered = pending.dead_lettered.get(lane, -math.inf)
                if now - dead_lettered >= DEAD_LETTER_AGAIN_SECONDS:
                    accepted = pending.accepted.values()
                    batches += [(batch, pending) for batch in accepted if lane in batch.lanes]
        batches.sort(key=lambda pair: pair[0].at)
        return batches

    def _log_dead_lettered(self, lane: Lane, why: str) -> None:
        if lane not in self._logged:
            self._logged.add(lane)
            _log.warning(
                "kafka: events become dead letters",
                cluster=self._policy.name,
                lane=lane_label(lane),
                why=why,
            )

    def _add_partition(self, key: PartitionKey) -> AssignedPartition:
        """Add a partition, or replace it by one without offsets."""
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
        counts = self._record_counts
        counts["taken"] += len(batch.values)
        if batch.tombstones or batch.filtered or batch.rejected:  # most batches have none
            counts["tombstone"] += batch.tombstones
            counts["filtered"] += batch.filtered
            counts["refused"] += len(batch.rejected)
        # from now on it costs only its bytes: `forget` frees its records
        self.budget.bytes -= pending.weight - batch.size
        pending.weight = batch.size
        batch.forget()

    def _on_settled(self, pending: PendingBatch) -> None:
        pending.watermark.settle(pending.span)
        self._ease(pending.origin)

    def _on_decoded(self, key: PartitionKey) -> None:
        """The record for which the partition waits is decoded."""
        hand_over = self.partitions[key].hand_over
        hand_over.advance(self._now() + SLICE_SECONDS)
        if not hand_over.waiting:
            self._on_eased()

    def _ease(self, partition: AssignedPartition) -> None:
        """After something of the partition was settled or removed: end pauses that are no longer
        needed.
        """
        watermark = partition.watermark
        eased = self.budget.eased() or not self.outstanding
        if (
            partition.window_full
            and watermark is not None
            and watermark.window <= self._policy.max_uncommitted // 2
        ):
            partition.window_full = False
            eased = True
        if eased:
            self._on_eased()

    def _rewind(self, units: Sequence[PendingBatch]) -> None:
        """The buffer couldn't keep a batch: read it again, and all that was read after it."""
        pending = units[0]
        first = pending.batch.first
        pending.watermark.rewind(pending.span, first)
        self._on_rewound(pending.origin.key, first)
        self._ease(pending.origin)

    def _replace(self, old: AssignedPartition) -> AssignedPartition:
        """Replace a partition whose offsets went back: its topic was created again. What was
        accepted before is still delivered.
        """
        old.hand_over.release()
        partition = self._add_partition(old.key)
        self._ease(partition)
        return partition


class AssignedPartition:
    """One assigned partition."""

    __slots__ = ("committed", "end", "hand_over", "key", "watermark", "window_full")

    def __init__(self, key: PartitionKey, hand_over: HandOver[PendingBatch, KafkaBatch]) -> None:
        self.key = key
        self.hand_over = hand_over
        self.watermark: Watermark | None = None
        """None until it is known at which offset reading begins."""
        self.committed: int | None = None
        """The committed offset, if it is known."""
        self.end: int | None = None
        """The partition's end offset, as the brokers said when asked last."""
        self.window_full = False
        """Whether it is paused because too much was read past its first unsettled record."""

    @property
    def position(self) -> int | None:
        """The offset that is committed or could be; None if that is not known."""
        return self.committed if self.watermark is None else self.watermark.position

    def lag_to(self, highwater: int | None) -> int | None:
        """Records that the group still has to process, gaps included; None if that is not known.
        `highwater`: the partition's end when it was read last.
        """
        end = max((offset for offset in (self.end, highwater) if offset is not None), default=None)
        return None if end is None or self.position is None else max(0, end - self.position)

    def begin(self, offset: int) -> Watermark:
        """Begin reading at `offset`."""
        self.watermark = Watermark(offset)
        return self.watermark


class PendingBatch(RecordUnit[AssignedPartition, KafkaBatch]):
    """A batch from when it is read until it is settled."""

    __slots__ = ("batch", "dead_lettered", "span", "watermark")

    def __init__(
        self, partition: AssignedPartition, batch: KafkaBatch, watermark: Watermark, span: Span
    ) -> None:
        super().__init__(partition, (batch,), batch.count, batch.cost)
        self.batch = batch
        self.watermark = watermark
        self.span = span
        self.dead_lettered: dict[Lane, float] = {}
        """When its events of a lane became dead letters, all but those in flight; wall-clock
        time.
        """

    def divide(self, batch: KafkaBatch) -> list[PendingBatch]:
        """The halves of the batch, as two units that are settled separately."""
        first, second = batch.halves()
        rest = self.watermark.split(self.span, first.end, first.count)
        return [
            PendingBatch(self.origin, first, self.watermark, self.span),
            PendingBatch(self.origin, second, self.watermark, rest),
        ]
