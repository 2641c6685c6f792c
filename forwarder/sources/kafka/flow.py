"""The flow of records from assigned partitions into the intake: what waits, what isn't settled, what may be committed, who has to pause.

Invariants: units of a partition are taken in the order in which they were read; nothing that isn't settled is passed by the position that
is committed; a partition whose unit had to wait isn't read until it was taken, and past `max_in_flight` none is, until half of it is
settled: pausing throws away what is fetched. Takes no time on any clock, and knows nothing of the client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

import structlog

from forwarder.core.errors import Backpressure, StillDecoding, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.records import AcceptedBatch, RecordIntake
from forwarder.sources.kafka.partitions import Key, Partition, Passage
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.kafka.units import Record, Unit, cut
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.readable import duration, size

RETRY_SECONDS: Final = 0.2
"""After which what had to wait is tried again."""

SLICE_SECONDS: Final = 0.01
"""How long units are taken in one go; the loop does nothing else meanwhile, but for the last of them."""

DECODING_SECONDS: Final = 5.0
"""After which a record that is decoded elsewhere is asked for again, if nobody has said before that it is done."""

FAILURES: Final = 8
"""Partitions that are tried in vain in one go: each try costs decoding a unit."""

BURY_AGAIN_SECONDS: Final = 60.0
"""After which what was buried of a unit, and still holds it up, is buried again: it was in flight, as with a probe, and has come back."""

HOLD_SECONDS: Final = 2.0
"""How long a partition pauses whose records the buffer had taken and couldn't keep."""

_log = structlog.get_logger(__name__)


class Flow:
    """All partitions of one member of the group."""

    def __init__(
        self,
        policy: KafkaPolicy,
        intake: RecordIntake,
        monotonic: Callable[[], float],
        records: Counter[str],
        *,
        on_eased: Callable[[], None],
        on_rewound: Callable[[Key, int], None],
    ) -> None:
        """`records`: where records are counted by what became of them: taken, tombstone, filtered, refused.

        `on_eased`: called when fewer partitions have to pause than before, or nothing is outstanding any more.

        `on_rewound`: has to see to it, at once, that a partition is read again from that offset on.
        """
        self.partitions: dict[Key, Partition] = {}
        self.bytes = 0
        """Of records that were read and aren't settled."""
        self.held = ""
        """Why nothing is to be read at all; empty if it may."""
        self._records = records
        self._policy = policy
        self._intake = intake
        self._now = monotonic
        self._on_eased = on_eased
        self._on_rewound = on_rewound
        self._full = False
        self._taken = 0
        self._overdue: set[Lane] = set()
        """Lanes that were halted for too long."""
        self._said: set[Lane] = set()
        """Those of which it was said that their events become dead letters."""

    @property
    def outstanding(self) -> bool:
        """Whether anything that was taken isn't settled."""
        return self._taken > 0

    def begin(self, keys: Collection[Key]) -> None:
        """These are assigned, and nothing is known of them."""
        for key in keys:
            self.partitions.setdefault(key, Partition(key))

    def read(self, key: Key, records: Sequence[Record], until: float = math.inf) -> None:
        """Records of one partition came, in order, at least one. What isn't taken `until` then (monotonic time) waits."""
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = Partition(key)
        first = records[0].offset
        if partition.mark is not None and first < partition.mark.read:
            partition = self._begin_again(partition)
        mark = partition.mark or partition.begin(first)
        for unit in cut(self._policy, records):
            passage = Passage(partition, mark, unit, mark.open(unit.first, unit.end, unit.count), self._told)
            self.bytes += passage.weight
            if partition.waiting or self._now() >= until:
                partition.waiting.append(passage)
            else:
                self._take(passage, until)
        partition.narrow = partition.narrow or mark.window >= self._policy.max_uncommitted
        self._full = self._full or self.bytes > self._policy.max_in_flight

    def went_back(self, key: Key) -> None:
        """What is read next of the partition lies before what was read: from there on it may be committed."""
        if (partition := self.partitions.get(key)) is not None:
            self._begin_again(partition)

    def retry(self) -> None:
        """Try again to have taken what waits, for at most `SLICE_SECONDS`."""
        failures, now = 0, self._now()
        end = now + SLICE_SECONDS
        for partition in [each for each in self.partitions.values() if each.waiting and each.held_until <= now]:
            if not self._take_waiting(partition, end):
                failures += partition.held_until > now
                self.partitions[partition.key] = self.partitions.pop(partition.key)  # others first, the next time
            if failures == FAILURES or self._now() >= end:
                break

    def paused(self) -> set[Key]:
        """The partitions that must not be read now."""
        now = self._now()
        if self.held or self._full:
            return set(self.partitions)
        return {key for key, each in self.partitions.items() if each.waiting or each.narrow or each.held_until > now}

    def why_paused(self, partition: Partition) -> str:
        """Why the partition isn't read, for a person; empty if it is."""
        if self.held:
            return self.held
        if partition.waiting or partition.held_until > self._now():
            return partition.why
        if partition.narrow:
            return f"{self._policy.max_uncommitted:,} records were read past one that isn't settled (max_uncommitted)"
        return f"{size(self.bytes)} of records aren't settled (max_in_flight)" if self._full else ""

    def reached(self, key: Key, offset: int) -> None:
        """The client has nothing more to hand over before `offset`."""
        partition = self.partitions.get(key)
        if partition is not None:
            (partition.mark or partition.begin(offset)).pass_by(offset)

    def uncommitted(self) -> dict[Key, int]:
        """What may be committed and isn't."""
        marks = {key: each.mark.position for key, each in self.partitions.items() if each.mark is not None}
        return {key: position for key, position in marks.items() if position != self.partitions[key].committed}

    def committed(self, offsets: Mapping[Key, int]) -> None:
        """The brokers have these."""
        for key, offset in offsets.items():
            if key in self.partitions:
                self.partitions[key].committed = offset

    def release(self) -> None:
        """Let go of what waits: somebody else reads it."""
        for partition in self.partitions.values():
            for passage in partition.waiting:
                self.bytes -= passage.weight
            partition.waiting.clear()

    def forget(self) -> int:
        """Give back all that isn't settled, and know no partition any more; how many events were taken out of the pipeline."""
        units = [passage.taken for each in self.partitions.values() for passage in each.taken if passage.taken is not None]
        self.partitions.clear()
        self.bytes = self._taken = 0
        self._full = False
        return self._intake.give_back(units) if units else 0

    def bury_halted(self, now: float) -> None:
        """Make dead letters of what waits for lanes that were halted for too long; `now` is wall-clock time.

        The newest unit of a lane stays for its probes, until it has waited as long by itself.
        """
        limit = self._policy.halt_after
        if limit is None:
            return
        self._overdue = {lane for lane, since in self._intake.halted().items() if now - since >= limit}
        self._said &= self._overdue
        for lane in self._overdue:
            self._bury(lane, now, limit)

    def _bury(self, lane: Lane, now: float, limit: float) -> None:
        found = [passage for each in self.partitions.values() for passage in each.taken if _waits_for(passage, lane, now)]
        units = sorted([(passage.taken.at, at, passage) for at, passage in enumerate(found) if passage.taken is not None])
        if units and now - units[-1][0] < limit:
            units.pop()
        passages = [passage for _, _, passage in units]
        while passages:
            taken: list[AcceptedBatch] = [passage.taken for passage in passages if passage.taken is not None]
            why = f"its lane was halted for {duration(limit)} (halt_after)"
            if self._intake.bury(taken, lane, why):
                for passage in passages:
                    passage.buried[lane] = now
                self._say_buried(lane, why)
                return
            del passages[len(passages) // 2 :]

    def _say_buried(self, lane: Lane, why: str) -> None:
        if lane not in self._said:
            self._said.add(lane)
            _log.warning("kafka: events become dead letters", cluster=self._policy.name, lane=lane_label(lane), why=why)

    def _take_waiting(self, partition: Partition, until: float) -> bool:
        """Whether all that waited was taken; not if time was over before that."""
        while partition.waiting:
            if not self._take(partition.waiting.popleft(), until) or (partition.waiting and self._now() >= until):
                return False
        partition.why = ""
        return True

    def _take(self, passage: Passage, until: float) -> bool:
        """Whether the unit was taken; else what is left of it waits before all others of its partition."""
        partition = passage.partition
        try:
            self._hand_over(passage)
        except Backpressure as error:
            if isinstance(error, TogetherTooLarge) and passage.unit.count > 1:
                partition.waiting.extendleft(reversed(self._halves(passage)))
                return self._take_waiting(partition, until)
            partition.waiting.appendleft(passage)
            partition.why = error.message
            partition.held_until = self._now() + RETRY_SECONDS
            if isinstance(error, StillDecoding):
                partition.held_until += DECODING_SECONDS
                error.when_done(partial(self._decoded, partition))
            return False
        return True

    def _decoded(self, partition: Partition) -> None:
        """The record that the partition waits for can be taken."""
        if self.partitions.get(partition.key) is partition and partition.waiting:
            partition.held_until = 0.0
            if self._take_waiting(partition, self._now() + SLICE_SECONDS):
                self._on_eased()

    @property
    def unfinished(self) -> bool:
        """Whether something waits for no other reason than that it would have taken too long in one go."""
        now = self._now()
        return any(each.waiting and each.held_until <= now for each in self.partitions.values())

    def _hand_over(self, passage: Passage) -> None:
        """Have the unit taken. Raises a `Backpressure`."""
        unit, partition = passage.unit, passage.partition
        taken = self._intake.accept(unit, passage.acknowledged, self._policy.level, self._overdue) if unit.values or unit.rejected else None
        self._count(unit)
        self.bytes -= passage.weight - unit.size
        passage.weight, passage.taken = unit.size, taken
        if taken is None:
            self._settle(passage)
        else:
            partition.taken[passage] = None
            self._taken += 1
            unit.forget()

    def _halves(self, passage: Passage) -> tuple[Passage, Passage]:
        """Two passages for the halves of a unit."""
        partition, mark = passage.partition, passage.mark
        first, second = passage.unit.halves()
        rest = mark.split(passage.span, first.end, first.count)
        self.bytes -= passage.weight
        halves = Passage(partition, mark, first, passage.span, self._told), Passage(partition, mark, second, rest, self._told)
        self.bytes += sum(half.weight for half in halves)
        return halves

    def _count(self, unit: Unit) -> None:
        records = self._records
        records["taken"] += len(unit.values)
        if unit.tombstones or unit.filtered or unit.rejected:
            records["tombstone"] += unit.tombstones
            records["filtered"] += unit.filtered
            records["refused"] += len(unit.rejected)

    def _told(self, passage: Passage, error: Backpressure | None) -> None:
        """A unit that was taken is settled, or the buffer couldn't keep it."""
        partition = passage.partition
        if self.partitions.get(partition.key) is not partition or passage not in partition.taken:
            return
        if error is not None:
            self._rewind(passage, error)
            return
        del partition.taken[passage]
        self._taken -= 1
        self._settle(passage)

    def _settle(self, passage: Passage) -> None:
        self.bytes -= passage.weight
        passage.mark.settle(passage.span)
        self._ease(passage.partition)

    def _ease(self, partition: Partition) -> None:
        """Less is outstanding than before: see who needn't pause any more."""
        policy, mark, eased = self._policy, partition.mark, not self._taken
        if partition.narrow and mark is not None and mark.window <= policy.max_uncommitted // 2:
            partition.narrow, eased = False, True
        if self._full and self.bytes <= policy.max_in_flight // 2:
            self._full, eased = False, True
        if eased:
            self._on_eased()

    def _rewind(self, passage: Passage, error: Backpressure) -> None:
        """The buffer couldn't keep a unit: it is read again, and with it all that was read after it."""
        partition = passage.partition
        spans = set(passage.mark.rewind(passage.span, passage.unit.first))
        gone = [each for each in partition.taken if each.span in spans]
        for each in (*gone, *partition.waiting):
            self.bytes -= each.weight
        for each in gone:
            del partition.taken[each]
        partition.waiting.clear()
        self._taken -= len(gone)
        self._intake.give_back([each.taken for each in gone if each.taken is not None and each is not passage])
        partition.why = error.message
        partition.held_until = self._now() + HOLD_SECONDS
        self._on_rewound(partition.key, passage.unit.first)
        self._ease(partition)

    def _begin_again(self, old: Partition) -> Partition:
        """Offsets went back: the partition isn't the one that was read before. What was taken of that one goes its way."""
        self.bytes -= sum(passage.weight for passage in chain(old.taken, old.waiting))
        self._taken -= len(old.taken)
        partition = self.partitions[old.key] = Partition(old.key)
        self._ease(partition)
        return partition


def _waits_for(passage: Passage, lane: Lane, now: float) -> bool:
    if passage.taken is None or lane not in passage.taken.lanes:
        return False
    buried = passage.buried.get(lane)
    return buried is None or now - buried >= BURY_AGAIN_SECONDS
