"""The flow of records from assigned partitions into the intake: what is pending, what may be
committed, which partitions have to pause.

Invariants: batches of a partition are accepted in the order in which they were read; the committed
position never passes a record that is not settled; a partition whose batch had to wait is not read
until it was accepted, and past `max_in_flight` none is read until half of it is settled: pausing
discards what is fetched. Takes no time on any clock, and knows nothing of the client.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

import structlog

from forwarder.core.errors import Backpressure, StillDecoding, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.records import AcceptedBatch, RecordIntake
from forwarder.core.watermark import Span, Watermark
from forwarder.sources.kafka.batches import KafkaBatch, KafkaRecord, PartitionKey, cut
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.readable import duration, size

RETRY_SECONDS: Final = 0.2
"""After which what had to wait is handed over again."""

SLICE_SECONDS: Final = 0.01
"""How long batches are handed over before the loop does something else, but for the last of them.
"""

DECODING_SECONDS: Final = 5.0
"""After which a record that is decoded elsewhere is requested again, unless it is
reported as done before.
"""

FAILURES: Final = 8
"""Partitions whose batches are rejected before the loop does something else: each try costs
decoding a batch.
"""

BURY_AGAIN_SECONDS: Final = 60.0
"""After which what was buried of a batch, and still blocks it, is buried again: it was in flight,
as with a probe, and was put back.
"""

HOLD_SECONDS: Final = 2.0
"""How long a partition pauses whose records the buffer had accepted and couldn't keep."""

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
        self.bytes = 0
        """Of records that were read and are not settled."""
        self.held = ""
        """Why nothing may be read at all; empty if it may."""
        self._records = records
        self._policy = policy
        self._intake = intake
        self._now = monotonic
        self._on_eased = on_eased
        self._on_rewound = on_rewound
        self._full = False
        self._outstanding = 0
        self._overdue: set[Lane] = set()
        """Lanes that were halted for too long."""
        self._said: set[Lane] = set()
        """Those of which the log says that their events become dead letters."""

    @property
    def outstanding(self) -> bool:
        """Whether anything that was accepted is not settled."""
        return self._outstanding > 0

    def begin(self, keys: Collection[PartitionKey]) -> None:
        """These were assigned, and nothing is known of them yet."""
        for key in keys:
            self.partitions.setdefault(key, AssignedPartition(key))

    def read(
        self, key: PartitionKey, records: Sequence[KafkaRecord], until: float = math.inf
    ) -> None:
        """Records of one partition came, in order, at least one. What is not accepted `until` then
        (monotonic time) waits.
        """
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = AssignedPartition(key)
        first = records[0].offset
        if partition.mark is not None and first < partition.mark.read:
            partition = self._begin_again(partition)
        mark = partition.mark or partition.begin(first)
        for batch in cut(self._policy, key, records):
            pending = PendingBatch(
                partition,
                mark,
                batch,
                mark.open(batch.first, batch.end, batch.count),
                self._settled,
            )
            self.bytes += pending.weight
            if partition.waiting or self._now() >= until:
                partition.waiting.append(pending)
            else:
                self._take(pending, until)
        partition.narrow = partition.narrow or mark.window >= self._policy.max_uncommitted
        self._full = self._full or self.bytes > self._policy.max_in_flight

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
        for partition in [
            each for each in self.partitions.values() if each.waiting and each.held_until <= now
        ]:
            if not self._take_waiting(partition, end):
                failures += partition.held_until > now
                # The next time other partitions come first.
                self.partitions[partition.key] = self.partitions.pop(partition.key)
            if failures == FAILURES or self._now() >= end:
                break

    def paused(self) -> set[PartitionKey]:
        """The partitions that must not be read now."""
        now = self._now()
        if self.held or self._full:
            return set(self.partitions)
        return {
            key
            for key, each in self.partitions.items()
            if each.waiting or each.narrow or each.held_until > now
        }

    def why_paused(self, partition: AssignedPartition) -> str:
        """Why the partition is not read, as text for users; empty if it is."""
        if self.held:
            return self.held
        if partition.waiting or partition.held_until > self._now():
            return partition.why
        if partition.narrow:
            return (
                f"{self._policy.max_uncommitted:,} records were read past one that isn't "
                "settled (max_uncommitted)"
            )
        return f"{size(self.bytes)} of records aren't settled (max_in_flight)" if self._full else ""

    def reached(self, key: PartitionKey, offset: int) -> None:
        """The client has nothing more to hand over before `offset`."""
        partition = self.partitions.get(key)
        if partition is not None:
            (partition.mark or partition.begin(offset)).pass_by(offset)

    def uncommitted(self) -> dict[PartitionKey, int]:
        """What may be committed and is not."""
        marks = {
            key: each.mark.position
            for key, each in self.partitions.items()
            if each.mark is not None
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
            for pending in partition.waiting:
                self.bytes -= pending.weight
            partition.waiting.clear()

    def forget(self) -> int:
        """Give back all that is not settled, and forget all partitions; how many events were
        removed from the pipeline.
        """
        batches = [
            pending.accepted
            for each in self.partitions.values()
            for pending in each.accepted
            if pending.accepted is not None
        ]
        self.partitions.clear()
        self.bytes = self._outstanding = 0
        self._full = False
        return self._intake.give_back(batches) if batches else 0

    def bury_halted(self, now: float) -> None:
        """Make dead letters of what is pending of lanes that were halted for too long; `now` is
        wall-clock time.

        The newest batch of a lane stays for its probes, until it has waited as long itself.
        """
        limit = self._policy.halt_after
        if limit is None:
            return
        self._overdue = {
            lane for lane, since in self._intake.halted().items() if now - since >= limit
        }
        self._said &= self._overdue
        for lane in self._overdue:
            self._bury(lane, now, limit)

    def _bury(self, lane: Lane, now: float, limit: float) -> None:
        found = [
            pending
            for each in self.partitions.values()
            for pending in each.accepted
            if _waits_for(pending, lane, now)
        ]
        accepted_at = [
            (pending.accepted.at, at, pending)
            for at, pending in enumerate(found)
            if pending.accepted is not None
        ]
        oldest_first = sorted(accepted_at)
        if oldest_first and now - oldest_first[-1][0] < limit:
            oldest_first.pop()
        batches = [pending for _, _, pending in oldest_first]
        while batches:
            accepted: list[AcceptedBatch] = [
                pending.accepted for pending in batches if pending.accepted is not None
            ]
            why = f"its lane was halted for {duration(limit)} (halt_after)"
            if self._intake.bury(accepted, lane, why):
                for pending in batches:
                    pending.buried[lane] = now
                self._say_buried(lane, why)
                return
            del batches[len(batches) // 2 :]

    def _say_buried(self, lane: Lane, why: str) -> None:
        if lane not in self._said:
            self._said.add(lane)
            _log.warning(
                "kafka: events become dead letters",
                cluster=self._policy.name,
                lane=lane_label(lane),
                why=why,
            )

    def _take_waiting(self, partition: AssignedPartition, until: float) -> bool:
        """Whether all that waited was accepted; not if time was over before that."""
        while partition.waiting:
            if not self._take(partition.waiting.popleft(), until) or (
                partition.waiting and self._now() >= until
            ):
                return False
        partition.why = ""
        return True

    def _take(self, pending: PendingBatch, until: float) -> bool:
        """Whether the batch was accepted; else what is left of it waits before all
        others of its partition.
        """
        partition = pending.partition
        try:
            self._hand_over(pending)
        except Backpressure as error:
            if isinstance(error, TogetherTooLarge) and pending.batch.count > 1:
                partition.waiting.extendleft(reversed(self._halves(pending)))
                return self._take_waiting(partition, until)
            partition.waiting.appendleft(pending)
            partition.why = error.message
            partition.held_until = self._now() + RETRY_SECONDS
            if isinstance(error, StillDecoding):
                partition.held_until += DECODING_SECONDS
                error.when_done(partial(self._decoded, partition))
            return False
        return True

    def _decoded(self, partition: AssignedPartition) -> None:
        """The record that the partition waits for is decoded."""
        if self.partitions.get(partition.key) is partition and partition.waiting:
            partition.held_until = 0.0
            if self._take_waiting(partition, self._now() + SLICE_SECONDS):
                self._on_eased()

    @property
    def unfinished(self) -> bool:
        """Whether something waits only because it would have occupied the loop for too long."""
        now = self._now()
        return any(each.waiting and each.held_until <= now for each in self.partitions.values())

    def _hand_over(self, pending: PendingBatch) -> None:
        """Hand the batch to the intake. Raises a `Backpressure`."""
        batch = pending.batch
        partition = pending.partition
        accepted = None
        if batch.values or batch.rejected:
            accepted = self._intake.accept(
                batch, pending.acknowledged, self._policy.level, self._overdue
            )
        self._count(batch)
        self.bytes -= pending.weight - batch.size
        pending.weight = batch.size
        pending.accepted = accepted
        if accepted is None:
            self._settle(pending)
        else:
            partition.accepted[pending] = None
            self._outstanding += 1
            batch.forget()

    def _halves(self, pending: PendingBatch) -> tuple[PendingBatch, PendingBatch]:
        """The halves of a batch."""
        partition = pending.partition
        mark = pending.mark
        first, second = pending.batch.halves()
        rest = mark.split(pending.span, first.end, first.count)
        self.bytes -= pending.weight
        left = PendingBatch(partition, mark, first, pending.span, self._settled)
        right = PendingBatch(partition, mark, second, rest, self._settled)
        self.bytes += left.weight + right.weight
        return left, right

    def _count(self, batch: KafkaBatch) -> None:
        records = self._records
        records["taken"] += len(batch.values)
        if batch.tombstones or batch.filtered or batch.rejected:
            records["tombstone"] += batch.tombstones
            records["filtered"] += batch.filtered
            records["refused"] += len(batch.rejected)

    def _settled(self, pending: PendingBatch, error: Backpressure | None) -> None:
        """An accepted batch is settled, or the buffer couldn't keep it."""
        partition = pending.partition
        if self.partitions.get(partition.key) is not partition or pending not in partition.accepted:
            return
        if error is not None:
            self._rewind(pending, error)
            return
        del partition.accepted[pending]
        self._outstanding -= 1
        self._settle(pending)

    def _settle(self, pending: PendingBatch) -> None:
        self.bytes -= pending.weight
        pending.mark.settle(pending.span)
        self._ease(pending.partition)

    def _ease(self, partition: AssignedPartition) -> None:
        """Less is outstanding than before: which partitions may be read again?"""
        policy = self._policy
        mark = partition.mark
        eased = not self._outstanding
        if partition.narrow and mark is not None and mark.window <= policy.max_uncommitted // 2:
            partition.narrow = False
            eased = True
        if self._full and self.bytes <= policy.max_in_flight // 2:
            self._full = False
            eased = True
        if eased:
            self._on_eased()

    def _rewind(self, pending: PendingBatch, error: Backpressure) -> None:
        """The buffer couldn't keep a batch: it is read again, and all that was read after it."""
        partition = pending.partition
        spans = set(pending.mark.rewind(pending.span, pending.batch.first))
        gone = [each for each in partition.accepted if each.span in spans]
        for each in (*gone, *partition.waiting):
            self.bytes -= each.weight
        for each in gone:
            del partition.accepted[each]
        partition.waiting.clear()
        self._outstanding -= len(gone)
        self._intake.give_back(
            [each.accepted for each in gone if each.accepted is not None and each is not pending]
        )
        partition.why = error.message
        partition.held_until = self._now() + HOLD_SECONDS
        self._on_rewound(partition.key, pending.batch.first)
        self._ease(partition)

    def _begin_again(self, old: AssignedPartition) -> AssignedPartition:
        """Offsets went back: the partition is not the one that was read before. What was accepted
        of that one is still delivered.
        """
        self.bytes -= sum(pending.weight for pending in chain(old.accepted, old.waiting))
        self._outstanding -= len(old.accepted)
        partition = self.partitions[old.key] = AssignedPartition(old.key)
        self._ease(partition)
        return partition


class AssignedPartition:
    """One assigned partition."""

    __slots__ = (
        "accepted",
        "committed",
        "end",
        "held_until",
        "key",
        "mark",
        "narrow",
        "waiting",
        "why",
    )

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.mark: Watermark | None = None
        """None until it is known where reading begins."""
        self.waiting: deque[PendingBatch] = deque()
        """What was read and is not accepted yet, in order."""
        self.accepted: dict[PendingBatch, None] = {}
        """What was accepted and is not settled, in order."""
        self.committed: int | None = None
        """The committed offset, if it is known."""
        self.end: int | None = None
        """The partition's end when it was requested last."""
        self.held_until = 0.0
        """Nothing is handed over again before, monotonic seconds."""
        self.narrow = False
        """Whether it is paused until its first unsettled record is settled: too much was read past
        that one.
        """
        self.why = ""
        """Why what waits was not accepted."""

    @property
    def position(self) -> int | None:
        """What is committed or could be; None if that is not known."""
        return self.committed if self.mark is None else self.mark.position

    def lag_to(self, highwater: int | None) -> int | None:
        """Records that the group still has to process, gaps included, if the partition ended there
        when it was read last.

        None if that is not known.
        """
        end = max((each for each in (self.end, highwater) if each is not None), default=None)
        return None if end is None or self.position is None else max(0, end - self.position)

    def begin(self, offset: int) -> Watermark:
        """The first offset that is read."""
        self.mark = Watermark(offset)
        return self.mark


class PendingBatch:
    """A batch from when it is read until it is settled."""

    __slots__ = (
        "_on_settled",
        "accepted",
        "batch",
        "buried",
        "mark",
        "partition",
        "span",
        "weight",
    )

    def __init__(
        self,
        partition: AssignedPartition,
        mark: Watermark,
        batch: KafkaBatch,
        span: Span,
        on_settled: Callable[[PendingBatch, Backpressure | None], None],
    ) -> None:
        self.partition = partition
        self.mark = mark
        self.batch = batch
        self.span = span
        self.accepted: AcceptedBatch | None = None
        self.weight = batch.cost
        """Bytes that it counts for now."""
        self.buried: dict[Lane, float] = {}
        """Lanes whose events in it have become dead letters, all that were not in flight, and when
        (wall-clock time).
        """
        self._on_settled = on_settled

    def acknowledged(self, error: Backpressure | None) -> None:
        """See `core.ack.AckCallback`."""
        self._on_settled(self, error)


def _waits_for(pending: PendingBatch, lane: Lane, now: float) -> bool:
    if pending.accepted is None or lane not in pending.accepted.lanes:
        return False
    buried = pending.buried.get(lane)
    return buried is None or now - buried >= BURY_AGAIN_SECONDS
