"""The hand-over as Kafka, followed files and standard input use it, compared with a model that
remembers every record.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import BufferFull, StillDecoding, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.record_intake import AcceptedBatch, RecordBatch
from forwarder.sources.hand_over import (
    DECODING_SECONDS,
    HOLD_SECONDS,
    RETRY_SECONDS,
    SLICE_SECONDS,
    HandOver,
    InFlightBudget,
    Span,
    Watermark,
)
from forwarder.sources.kafka.batches import PartitionKey
from forwarder.sources.kafka.flow import PartitionFlow
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.logs.flow import LogFlow
from forwarder.sources.logs.followed import Block
from tests.support.log_blocks import LogInBlocks, log_line, log_policy
from tests.support.record_intakes import FakeRecord

BATCH: Final = 4
"""Records of a batch at most: what is read at once is several batches."""
LONGEST: Final = max(RETRY_SECONDS + DECODING_SECONDS, HOLD_SECONDS)
"""After which anything that waits is handed over again, in seconds."""
FULL: Final = BufferFull("the buffer is full")

Place: TypeAlias = tuple[int, int]
"""A record: the number of its partition or file, and its offset."""


@dataclass(eq=False, slots=True)
class FlyingBatch:
    """A batch that was accepted and is not settled."""

    places: list[Place]
    callback: AckCallback
    at: float = 0.0
    lanes: Collection[Lane] = ()


class ModelIntake:
    """Accepts batches or does not, as it was last set, and settles them when the test says so."""

    def __init__(self, on_accepted: Callable[[list[Place]], None]) -> None:
        self.full = self.decodes = False
        """Whether there is no room; whether another process has to decode what comes."""
        self.most = 100
        """Records that are accepted together."""
        self.settles = False
        """Whether everything is settled at once."""
        self.seconds = 0.0
        """What each call takes."""
        self.now = 1000.0
        self.flying: list[FlyingBatch] = []
        self.given_back: list[FlyingBatch] = []
        self.decoding: list[Callable[[], None]] = []
        self._on_accepted = on_accepted

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        self.now += self.seconds
        if self.full:
            raise FULL
        if self.decodes:
            raise StillDecoding("a large record is decoded", when_done=self.decoding.append)
        if len(records.values) > self.most:
            raise TogetherTooLarge("too large together")
        places = [_place(records.facts(index).name) for index in range(len(records.values))]
        self._on_accepted(places)
        if self.settles:
            return None
        self.flying.append(FlyingBatch(places, callback))
        return self.flying[-1]

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        for batch in batches:
            assert isinstance(batch, FlyingBatch)
            self.flying.remove(batch)
            self.given_back.append(batch)
        return len(batches)

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        pass

    def dead_letter(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        return False

    def halted(self) -> Mapping[Lane, float]:
        return {}


def _place(name: str) -> Place:
    """The place of the record of this name: `main/events/1/17`, or `1:17` in a file."""
    origin, offset = name.rsplit("/" if "/" in name else ":", 1)
    return int(origin.rpartition("/")[2]), int(offset)


class HandOverWorld(Protocol):
    """A source's way of using the hand-over."""

    rereads: bool
    """Whether what the buffer couldn't keep is read again, or is kept until it is settled."""
    budget: InFlightBudget

    def hand_overs(self) -> list[HandOver[Any, Any]]:
        """All of them."""

    def line(self, origin: int) -> int:
        """The number of the hand-over that has the records of a partition or file."""

    def read(self, origin: int, events: list[bool], *, sliced: bool) -> None:
        """Read so many records; those that are False make no event."""

    def turn(self) -> None:
        """Hand over what waits, and have read again what must be."""

    def paused(self) -> set[int]:
        """What must not be read."""

    def outstanding(self) -> bool:
        """Whether the source has to wait for anything before it can end."""

    def unit(self, place: Place) -> Place:
        """The first record of the unit that a record, which was accepted, belongs to."""

    def reached(self, origin: int) -> Place:
        """What is read next."""

    def position(self, origin: int) -> Place:
        """What would be read next after a restart."""

    def restart(self) -> None:
        """Give back what isn't settled, and read on from the positions."""


class TwoPartitions:
    """Two partitions: each has a hand-over, and each batch is settled by itself."""

    rereads = True

    def __init__(
        self,
        intake: ModelIntake,
        on_read: Callable[[list[Place]], None],
        on_eased: Callable[[], None],
    ) -> None:
        self.flow = PartitionFlow(
            KafkaPolicy(
                name="main",
                bootstrap_servers=("a:9092",),
                topics=("events",),
                max_in_flight=9000,
                max_uncommitted=20,
            ),
            intake,
            lambda: intake.now,
            Counter(),
            on_eased=on_eased,
            on_rewound=self._on_rewound,
        )
        self.budget = self.flow.budget
        self._next = [0, 0]
        self._intake = intake
        self._on_read = on_read
        self.flow.assign([("events", 0), ("events", 1)])

    def _on_rewound(self, key: PartitionKey, offset: int) -> None:
        self._next[key[1]] = offset

    def hand_overs(self) -> list[HandOver[Any, Any]]:
        return [partition.hand_over for partition in self.flow.partitions.values()]

    def line(self, origin: int) -> int:
        return origin

    def read(self, origin: int, events: list[bool], *, sliced: bool) -> None:
        first = self._next[origin]
        self._next[origin] += len(events)
        records = [
            FakeRecord(first + index, b"x" * 100 if event else None)
            for index, event in enumerate(events)
        ]
        self._on_read([(origin, record.offset) for record in records if record.value is not None])
        until = self._intake.now + SLICE_SECONDS if sliced else math.inf
        self.flow.add(("events", origin), records, until)

    def turn(self) -> None:
        self.flow.retry()

    def paused(self) -> set[int]:
        return {number for _, number in self.flow.paused()}

    def outstanding(self) -> bool:
        return self.flow.outstanding

    def unit(self, place: Place) -> Place:
        """The batch."""
        return place

    def reached(self, origin: int) -> Place:
        return origin, self._next[origin]

    def position(self, origin: int) -> Place:
        return origin, self.flow.partitions["events", origin].position or 0

    def restart(self) -> None:
        """The partitions are revoked, and assigned again."""
        self._next = [self.position(origin)[1] for origin in (0, 1)]
        self.flow.discard_waiting()
        self.flow.forget()
        for origin, offset in enumerate(self._next):
            self.flow.assign([("events", origin)])
            self.flow.advance_to(("events", origin), offset)


class LogWorld:
    """Two files share one hand-over; a block is settled with the last of its batches."""

    rereads = True

    def __init__(
        self,
        intake: ModelIntake,
        on_read: Callable[[list[Place]], None],
        on_eased: Callable[[], None],
    ) -> None:
        self.files = [LogInBlocks("0", "f0"), LogInBlocks("1", "f1")]
        self.flow = LogFlow(
            log_policy(max_in_flight=600),
            intake,
            lambda: intake.now,
            Counter(),
            on_eased=on_eased,
            rereads=self.rereads,
        )
        self.budget = self.flow.budget
        self._intake = intake
        self._on_read = on_read
        self._units: dict[Place, Place] = {}
        self._spans: set[Span] = set()
        """Of blocks that are neither settled nor read again."""

    def hand_overs(self) -> list[HandOver[Any, Any]]:
        return [self.flow._hand_over]

    def line(self, origin: int) -> int:
        return 0

    def read(self, origin: int, events: list[bool], *, sliced: bool) -> None:
        """Records of a file that has to be read again are discarded."""
        file = self.files[origin]
        block = file.block([log_line(7) if event else b"nothing" for event in events])
        if file.file not in [rewound.file for rewound in self.flow._rewound]:
            self._spans.add(block.span)
            places = [
                (origin, offset)
                for offset, event in zip(block.records.offsets, events, strict=True)
                if event
            ]
            self._units.update(dict.fromkeys(places, (origin, block.first)))
            self._on_read(places)
        self.flow.add([block])
        if not sliced:
            self.turn()

    def turn(self) -> None:
        for block in self.flow.take_settled():
            self._spans.remove(block.span)
            block.watermark.settle(block.span)
        for block in self.flow.take_rewound():
            self._rewind(block)
        for _ in self.flow.hand_over().__await__():
            pass

    def _rewind(self, block: Block) -> None:
        for span in block.watermark.rewind(block.span, block.first):
            self._spans.discard(span)

    def paused(self) -> set[int]:
        return set() if self.flow.may_read else {0, 1}

    def outstanding(self) -> bool:
        return self.flow.outstanding

    def unit(self, place: Place) -> Place:
        """The block."""
        return self._units[place]

    def reached(self, origin: int) -> Place:
        return origin, self.files[origin].mark.read

    def position(self, origin: int) -> Place:
        return origin, self.files[origin].mark.position

    def restart(self) -> None:
        self._intake.give_back(self.flow.release())
        for block in self.flow.take_settled():
            block.watermark.settle(block.span)
        self.flow.take_rewound()
        self._spans.clear()
        for file in self.files:
            file.mark = Watermark(file.mark.position)


class StdinWorld(LogWorld):
    """What can't be read again is kept until it is settled."""

    rereads = False


class KafkaMachine(RuleBasedStateMachine):
    """In any order of what can happen, records are accepted in order, each as often as it is read;
    the positions pass none that isn't settled; the budget is what is held; and nothing hangs.
    """

    world_type: ClassVar[Callable[..., HandOverWorld]] = TwoPartitions

    def __init__(self) -> None:
        super().__init__()
        self.patches = contextlib.ExitStack()
        for source in ("kafka", "logs"):
            self.patches.enter_context(
                patch(f"forwarder.sources.{source}.batches.MAX_RECORDS", BATCH)
            )
        self.intake = ModelIntake(self._on_accepted)
        self.eased = 0
        self.waiting: defaultdict[int, list[Place]] = defaultdict(list)
        """Records that were read and are not accepted, by hand-over, in order."""
        self.flying: set[Place] = set()
        """Those that were accepted and are not settled."""
        self.settled: set[Place] = set()
        self.world = self.world_type(self.intake, self._on_read, self._ease)

    def _ease(self) -> None:
        self.eased += 1

    def _on_read(self, places: list[Place]) -> None:
        for place in places:
            assert place not in self.settled
            self.waiting[self.world.line(place[0])].append(place)

    def _on_accepted(self, places: list[Place]) -> None:
        waiting = self.waiting[self.world.line(places[0][0])]
        assert waiting[: len(places)] == places
        del waiting[: len(places)]
        (self.settled if self.intake.settles else self.flying).update(places)

    @contextlib.contextmanager
    def _eases(self) -> Iterator[None]:
        """What is not paused any more, and that nothing is outstanding any more, is reported."""
        paused = self.world.paused()
        outstanding = self.world.outstanding()
        eased = self.eased
        yield
        if paused - self.world.paused() or (outstanding and not self.world.outstanding()):
            assert self.eased > eased

    @initialize()
    def begin(self) -> None:
        """Some records are in flight."""
        for origin in (0, 1):
            self.world.read(origin, [True] * 6, sliced=False)

    @rule(
        origin=st.sampled_from([0, 1]),
        events=st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=11),
        sliced=st.booleans(),
        meanwhile=st.booleans(),
    )
    def read(self, origin: int, events: list[bool], *, sliced: bool, meanwhile: bool) -> None:
        """Records come; `meanwhile`: reading had begun before it paused."""
        if meanwhile or origin not in self.world.paused():
            self.world.read(origin, events, sliced=sliced)

    @rule(
        mood=st.sampled_from(["", "", "full", "decodes"]),
        most=st.sampled_from([0, 1, 2, 3, 100, 100]),
        settles=st.booleans(),
        seconds=st.sampled_from([0.0, 0.0, SLICE_SECONDS]),
    )
    def change(self, mood: str, most: int, *, settles: bool, seconds: float) -> None:
        """The intake accepts less, or more, than before."""
        self.intake.full = mood == "full"
        self.intake.decodes = mood == "decodes"
        self.intake.most = most
        self.intake.settles = settles
        self.intake.seconds = seconds

    @rule(seconds=st.sampled_from([0.0, RETRY_SECONDS, HOLD_SECONDS, LONGEST]))
    def turn(self, seconds: float) -> None:
        """Some time later, what waits is handed over again."""
        self.intake.now += seconds
        self.world.turn()

    @precondition(lambda self: self.intake.decoding)
    @rule()
    def finish_decoding(self) -> None:
        """A large record is decoded."""
        with self._eases():
            self.intake.decoding.pop(0)()

    @precondition(lambda self: self.intake.flying)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """A batch is settled, in any order."""
        batch = data.draw(st.sampled_from(self.intake.flying), label="batch")
        self._settle(batch)

    def _settle(self, batch: FlyingBatch) -> None:
        self.intake.flying.remove(batch)
        self.flying.difference_update(batch.places)
        self.settled.update(batch.places)
        self._report(batch, None)

    def _report(self, batch: FlyingBatch, error: BufferFull | None) -> None:
        with self._eases():
            batch.callback(error)
        budget = self.world.budget
        assert not budget.full or budget.bytes > budget._limit // 2

    @precondition(lambda self: self.intake.flying)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The buffer couldn't keep a batch: its unit comes again, and all after it of the same
        partition or file. If it can't be read again, what is settled doesn't come again.
        """
        batch = data.draw(st.sampled_from(self.intake.flying), label="batch")
        start = self.world.unit(batch.places[0])
        line = self.waiting[self.world.line(start[0])]
        again = {
            place
            for place in {*line, *self.flying, *self.settled}
            if place[0] == start[0] and place >= start
        }
        if not self.world.rereads:
            unsettled = {self.world.unit(place) for place in again - self.settled}
            again = {place for place in again if self.world.unit(place) in unsettled}
        self.intake.flying.remove(batch)
        staying = [other for other in self.intake.flying if other.places[0] not in again]
        self._report(batch, FULL)
        assert self.intake.flying == staying
        line[:] = [place for place in line if place not in again]
        self.flying -= again
        self.settled -= again
        if not self.world.rereads:
            line[:0] = sorted(again)
        assert start[0] in self.world.paused()

    @precondition(lambda self: self.intake.given_back)
    @rule(data=st.data(), error=st.sampled_from([None, FULL]))
    def report_late(self, data: st.DataObject, error: BufferFull | None) -> None:
        """What is reported of a batch that was given back changes nothing."""
        batch = data.draw(st.sampled_from(self.intake.given_back), label="batch")
        before = self._figures()
        batch.callback(error)
        assert self._figures() == before

    def _figures(self) -> object:
        positions = [(self.world.position(origin), self.world.reached(origin)) for origin in (0, 1)]
        return positions, self.world.budget.bytes, self.world.budget.batches, self.eased

    @rule()
    def restart(self) -> None:
        """The source gives all up, and begins again where its positions are."""
        self.world.restart()
        assert not self.intake.flying
        budget = self.world.budget
        assert (budget.bytes, budget.batches, budget.full) == (0, 0, False)
        self.flying.clear()
        self.waiting.clear()
        for origin in (0, 1):
            position = self.world.position(origin)
            assert position == self.world.reached(origin)
            self.settled -= {
                place for place in self.settled if place[0] == origin and place >= position
            }

    @invariant()
    def no_position_passes_what_is_not_settled(self) -> None:
        """A restart would read again all that isn't settled."""
        waiting = [place for line in self.waiting.values() for place in line]
        for place in (*self.flying, *waiting):
            assert self.world.position(place[0]) <= place

    @invariant()
    def the_budget_is_what_is_held(self) -> None:
        """Neither more nor less, and it is full past its limit."""
        budget = self.world.budget
        hand_overs = self.world.hand_overs()
        units = [
            unit for hand_over in hand_overs for unit in (*hand_over.accepted, *hand_over.waiting)
        ]
        assert budget.bytes == sum(unit.weight for unit in units)
        assert budget.batches == len(self.intake.flying)
        assert sum(len(unit.accepted) for unit in units) == budget.batches
        assert {place for batch in self.intake.flying for place in batch.places} == self.flying
        assert budget.full or budget.bytes <= budget._limit
        assert not budget.full or self.world.paused() == {0, 1}
        # and only as long as something can be settled, or read again, that ends it
        assert not budget.full or units

    @invariant()
    def something_is_in_flight_or_due(self) -> None:
        """What is held is about to be settled, or to be handed over."""
        for hand_over in self.world.hand_overs():
            assert all(unit.accepted for unit in hand_over.accepted)
            assert hand_over.held_until <= self.intake.now + LONGEST

    def teardown(self) -> None:
        """When the intake accepts all again, everything is settled."""
        intake = self.intake
        intake.full = intake.decodes = intake.settles = False
        intake.most = 100
        intake.seconds = 0.0
        for _ in range(100):
            intake.now += LONGEST
            self.world.turn()
            if not intake.flying:
                break
            for batch in tuple(intake.flying):
                self._settle(batch)
        self.world.turn()
        assert not any(self.waiting.values())
        assert not self.world.outstanding()
        assert not self.world.paused()
        assert (self.world.budget.bytes, self.world.budget.batches) == (0, 0)
        for origin in (0, 1):
            assert self.world.position(origin) == self.world.reached(origin)
        self.patches.close()


class LogMachine(KafkaMachine):
    """The same for followed files."""

    world_type = LogWorld


class StdinMachine(KafkaMachine):
    """The same for what can't be read again."""

    world_type = StdinWorld


TestKafka = KafkaMachine.TestCase
TestLogs = LogMachine.TestCase
TestStdin = StdinMachine.TestCase
for machine in (TestKafka, TestLogs, TestStdin):
    machine.settings = settings(stateful_step_count=40, deadline=None)
