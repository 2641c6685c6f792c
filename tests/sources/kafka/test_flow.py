"""The flow of records: what is taken, what waits, what may be committed, and who has to pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from forwarder.core.ack import AckLevel
from forwarder.core.errors import BufferFull, DeadLettersFull, LaneFull, StillDecoding
from forwarder.core.event import Lane
from forwarder.sources.hand_over import HOLD_SECONDS, RETRY_SECONDS, SLICE_SECONDS
from forwarder.sources.kafka.batches import PartitionKey
from forwarder.sources.kafka.flow import DEAD_LETTER_AGAIN_SECONDS, MAX_FAILURES, PartitionFlow
from forwarder.sources.kafka.policy import KafkaPolicy
from tests.support.record_intakes import LANE, FakeRecord, FakeRecordIntake, records

ZERO = ("events", 0)
ONE = ("events", 1)
POLICY = KafkaPolicy(name="main", bootstrap_servers=("a:9092",), topics=("events",))
FULL = BufferFull("the buffer is full")


class KafkaFlowRig:
    """A flow with a fake intake, and what it reported."""

    def __init__(self, policy: KafkaPolicy = POLICY) -> None:
        self.now = 1000.0
        self.intake = FakeRecordIntake()
        self.counts: Counter[str] = Counter()
        self.eased = 0
        self.rewound: list[tuple[PartitionKey, int]] = []
        self.flow = PartitionFlow(
            policy,
            self.intake,
            lambda: self.now,
            self.counts,
            on_eased=self._ease,
            on_rewound=lambda key, offset: self.rewound.append((key, offset)),
        )
        self.flow.assign([ZERO, ONE])

    def _ease(self) -> None:
        self.eased += 1

    def position(self, key: PartitionKey = ZERO) -> int | None:
        """What could be committed."""
        return self.flow.partitions[key].position


def test_records_are_offered_at_the_policys_level() -> None:
    """Records go into the intake in units, in order, at the level that the policy asks for; what
    is settled may be committed.
    """
    bench = KafkaFlowRig(replace(POLICY, level=AckLevel.DISK))
    bench.flow.add(ZERO, records(range(100, 1600)))
    assert bench.intake.offsets == list(range(100, 1600))
    assert [len(unit.values) for unit in bench.intake.accepted] == [500, 500, 500]
    assert bench.intake.levels == {AckLevel.DISK}
    assert (bench.position(), bench.flow.uncommitted()) == (100, {ZERO: 100})
    for unit in reversed(bench.intake.accepted):
        unit.settle()
    assert bench.flow.uncommitted() == {ZERO: 1600}
    bench.flow.note_committed({ZERO: 1600})
    assert bench.flow.uncommitted() == {}
    assert bench.counts["taken"] == 1500
    assert bench.flow.budget.bytes == 0


def test_records_without_room_wait_in_order() -> None:
    """Its partition pauses and no other does; it is tried again after a moment, and what came
    after it goes after it.
    """
    bench = KafkaFlowRig()
    bench.intake.refuses = FULL
    bench.flow.add(ZERO, records(range(10)))
    bench.flow.add(ZERO, records(range(10, 20)))
    assert bench.intake.tries == 1
    assert bench.flow.paused() == {ZERO}
    assert bench.flow.why_paused(bench.flow.partitions[ZERO]) == "the buffer is full"
    bench.intake.refuses = None
    bench.flow.add(ONE, records(range(5)))
    bench.flow.retry()
    assert bench.intake.tries == 2, "not sooner than after a moment"
    bench.now += RETRY_SECONDS
    bench.flow.retry()
    assert bench.intake.offsets == [*range(5), *range(20)]
    assert bench.flow.paused() == set()


def test_a_full_buffer_is_retried_rarely() -> None:
    """However many partitions wait, few are tried in one go, and each has its turn."""
    bench = KafkaFlowRig()
    bench.intake.refuses = LaneFull("the lane is full")
    keys = [("events", number) for number in range(3 * MAX_FAILURES)]
    for key in keys:
        bench.flow.add(key, records(range(3)))
    for _ in range(3):
        bench.now += RETRY_SECONDS
        tries = bench.intake.tries
        bench.flow.retry()
        assert bench.intake.tries - tries == MAX_FAILURES
    bench.intake.refuses = None
    for _ in range(3):
        bench.now += RETRY_SECONDS
        bench.flow.retry()
    assert len(bench.intake.accepted) == len(keys)


def test_too_much_in_flight_pauses_all_until_half_of_it_is_settled() -> None:
    """A bound in bytes for all partitions, with room between pausing and continuing: pausing
    discards what was fetched.
    """
    bench = KafkaFlowRig(replace(POLICY, max_in_flight=100_000))
    for number in range(3):
        bench.flow.add(ZERO, records(range(number * 10, number * 10 + 10), b"x" * 4000))
    assert bench.flow.budget.bytes == 120_000
    assert bench.flow.paused() == {ZERO, ONE}
    assert "max_in_flight" in bench.flow.why_paused(bench.flow.partitions[ONE])
    bench.intake.accepted[0].settle()
    assert bench.flow.paused() == {ZERO, ONE}
    assert bench.eased == 0
    bench.intake.accepted[1].settle()
    assert bench.flow.paused() == set()
    assert bench.eased == 1


def test_pending_records_count_with_their_overhead() -> None:
    """Small records that wait are objects, not only bytes: they count as such until
    they are taken.
    """
    bench = KafkaFlowRig(replace(POLICY, max_in_flight=100_000))
    bench.intake.refuses = FULL
    bench.flow.add(ZERO, records(range(200)))
    assert bench.flow.budget.bytes > 100_000
    assert bench.flow.paused() == {ZERO, ONE}
    bench.intake.refuses = None
    bench.now += RETRY_SECONDS
    bench.flow.retry()
    assert bench.flow.budget.bytes == 400


def test_a_partition_waits_for_its_first_unsettled_record() -> None:
    """Past `max_uncommitted` it alone pauses, until half of that is settled."""
    bench = KafkaFlowRig(replace(POLICY, max_uncommitted=1000))
    bench.flow.add(ZERO, records(range(500)))
    bench.flow.add(ZERO, records(range(500, 1500)))
    first, *others = bench.intake.accepted
    for unit in others:
        unit.settle()
    assert bench.flow.paused() == {ZERO}
    assert "max_uncommitted" in bench.flow.why_paused(bench.flow.partitions[ZERO])
    first.settle()
    assert bench.flow.paused() == set()


def test_a_too_large_batch_is_offered_in_parts() -> None:
    """Halves, and halves of halves, in order; each counts for itself, and the position passes none
    that isn't settled.
    """
    bench = KafkaFlowRig()
    bench.intake.most = 30
    bench.flow.add(ZERO, records(range(100)))
    assert bench.intake.offsets == list(range(100))
    assert max(len(unit.values) for unit in bench.intake.accepted) <= 30
    bench.intake.accepted[-1].settle()
    assert bench.position() == 0
    bench.intake.accepted[0].settle()
    assert bench.position() == len(bench.intake.accepted[0].values)
    for unit in bench.intake.accepted[1:-1]:
        unit.settle()
    assert (bench.position(), bench.flow.budget.bytes) == (100, 0)


def test_records_lost_by_the_buffer_are_read_again() -> None:
    """From the unit's own beginning, with all that was read after it; what was settled before
    stays settled.
    """
    bench = KafkaFlowRig()
    bench.flow.add(ZERO, records(range(500)))
    bench.flow.add(ZERO, records(range(500, 1500)))
    first, second, third = bench.intake.accepted
    first.settle()
    second.settle(FULL)
    assert bench.rewound == [(ZERO, 500)]
    assert bench.intake.given_back == [third]
    assert bench.flow.paused() == {ZERO}
    third.settle()  # nobody listens any more
    assert (bench.position(), bench.flow.budget.bytes) == (500, 0)
    bench.now += HOLD_SECONDS
    assert bench.flow.paused() == set()
    bench.flow.add(ZERO, records(range(500, 600)))
    bench.intake.accepted[-1].settle()
    assert bench.position() == 600


def test_tombstones_are_counted_and_passed() -> None:
    """Records without a value are part of what is settled, alone and among others."""
    bench = KafkaFlowRig()
    bench.flow.add(ZERO, [FakeRecord(3), FakeRecord(4, None), FakeRecord(5)])
    bench.flow.add(ONE, [FakeRecord(8, None), FakeRecord(9, None)])
    assert bench.counts == {"taken": 2, "tombstone": 3, "filtered": 0, "refused": 0}
    assert (bench.position(ZERO), bench.position(ONE)) == (3, 10)
    assert bench.intake.tries == 1
    bench.intake.accepted[0].settle()
    assert bench.position(ZERO) == 6


def test_forgetting_gives_back_what_isnt_settled() -> None:
    """After a revocation nothing is known of any partition, and words about what was given back
    change nothing.
    """
    bench = KafkaFlowRig()
    bench.flow.add(ZERO, records(range(1000)))
    bench.intake.refuses = FULL
    bench.flow.add(ONE, records(range(10)))
    settled, other = bench.intake.accepted
    settled.settle()
    bench.flow.discard_waiting()
    assert bench.flow.forget() == 1
    assert bench.intake.given_back == [other]
    assert (bench.flow.partitions, bench.flow.budget.bytes, bench.flow.outstanding) == (
        {},
        0,
        False,
    )
    bench.flow.assign([ZERO])
    other.settle()
    assert (bench.flow.uncommitted(), bench.flow.budget.bytes) == ({}, 0)


def test_marks_of_transactions_are_passed() -> None:
    """Where the client has come to may be committed once nothing is outstanding: the lag doesn't
    stay at 1 indefinitely.
    """
    bench = KafkaFlowRig()
    bench.flow.add(ZERO, records(range(10)))
    bench.flow.advance_to(ZERO, 11)
    assert bench.position() == 0
    bench.intake.accepted[0].settle()
    assert bench.position() == 11
    bench.flow.advance_to(ONE, 40)
    assert bench.flow.uncommitted() == {ZERO: 11, ONE: 40}
    partition = bench.flow.partitions[ZERO]
    partition.end = 11
    assert (partition.lag_to(None), partition.lag_to(15)) == (0, 4)


def test_offsets_that_go_back_begin_a_new_partition() -> None:
    """A topic that was made anew has other records at the same offsets; what was taken of the old
    one says nothing about them.
    """
    bench = KafkaFlowRig()
    bench.flow.add(ZERO, records(range(100, 200)))
    bench.flow.add(ZERO, records(range(10)))
    old, new = bench.intake.accepted
    old.settle()
    assert bench.flow.uncommitted() == {ZERO: 0}
    new.settle()
    assert (bench.flow.uncommitted(), bench.flow.budget.bytes) == ({ZERO: 10}, 0)


def test_a_rewound_partition_delays_no_other() -> None:
    """Nothing is known of it any more, and what was taken of the old one doesn't count."""
    bench = KafkaFlowRig(replace(POLICY, max_in_flight=1000))
    bench.flow.add(ZERO, records(range(100, 700)))
    assert bench.flow.paused() == {ZERO, ONE}
    bench.flow.restart(ZERO)
    assert (bench.flow.paused(), bench.flow.budget.bytes, bench.flow.outstanding, bench.eased) == (
        set(),
        0,
        False,
        1,
    )
    bench.flow.advance_to(ZERO, 0)
    assert bench.flow.uncommitted() == {ZERO: 0}


def test_holding_pauses_all() -> None:
    """Nothing is read while the end is near."""
    bench = KafkaFlowRig()
    bench.flow.pause_reason = "this process is about to end"
    assert bench.flow.paused() == {ZERO, ONE}
    assert bench.flow.why_paused(bench.flow.partitions[ZERO]) == "this process is about to end"


class Halted:
    """A lane that was halted at second 0, with a unit taken at each of these seconds."""

    def __init__(self, *at: float, halt_after: float | None = 3600.0) -> None:
        self.bench = KafkaFlowRig(replace(POLICY, halt_after=halt_after))
        for number, second in enumerate(at):
            self.bench.intake.now = second
            self.bench.flow.add(ZERO, records(range(number * 10, number * 10 + 10)))
        self.bench.intake.halts = {LANE: 0.0}
        self.units = list(self.bench.intake.accepted)


def test_a_lane_that_is_halted_for_too_long_is_buried() -> None:
    """Its units become dead letters, the oldest first; the newest stays for the probes until it
    has waited as long itself.
    """
    halted = Halted(10.0, 20.0, 3000.0)
    halted.bench.flow.dead_letter_halted(3599.0)
    assert halted.bench.intake.buried == []
    halted.bench.flow.dead_letter_halted(3600.0)
    assert halted.bench.intake.buried == [(halted.units[:2], LANE)]
    halted.bench.flow.dead_letter_halted(3601.0)
    assert len(halted.bench.intake.buried) == 1, "what is buried isn't buried again at once"
    for unit in halted.units[:2]:
        unit.settle()
    halted.bench.flow.dead_letter_halted(3700.0)
    assert len(halted.bench.intake.buried) == 1
    halted.bench.flow.dead_letter_halted(6600.0)
    assert halted.bench.intake.buried[1:] == [(halted.units[2:], LANE)]


def test_a_probed_units_events_become_dead_letters_later() -> None:
    """A unit whose events were in flight just then comes back after the probe, and must not
    hold up its partition indefinitely.
    """
    halted = Halted(10.0, 20.0, 3000.0)
    halted.bench.flow.dead_letter_halted(3600.0)
    first, second, _ = halted.units
    second.settle()
    halted.bench.flow.dead_letter_halted(3600.0 + DEAD_LETTER_AGAIN_SECONDS - 1.0)
    assert halted.bench.intake.buried == [([first, second], LANE)]
    halted.bench.flow.dead_letter_halted(3600.0 + DEAD_LETTER_AGAIN_SECONDS)
    assert halted.bench.intake.buried[1:] == [([first], LANE)]


def test_a_lane_that_is_given_up_holds_nothing_up() -> None:
    """The intake is notified of it with each unit, so that its events find their way where the
    buffer has no room for them.
    """
    halted = Halted(10.0)
    assert halted.bench.intake.given_up == set()
    halted.bench.flow.dead_letter_halted(4000.0)
    halted.bench.flow.add(ONE, records(range(3)))
    assert halted.bench.intake.given_up == {LANE}
    halted.bench.intake.halts = {}
    halted.bench.flow.dead_letter_halted(4001.0)
    halted.bench.flow.add(ONE, records(range(3, 6)))
    assert halted.bench.intake.given_up == set()


def test_only_what_there_is_room_for_is_buried() -> None:
    """Where the dead letters have no room for all, the oldest are buried, and the others wait."""
    halted = Halted(*range(10))
    halted.bench.intake.room = 3
    halted.bench.flow.dead_letter_halted(4000.0)
    assert halted.bench.intake.buried == [(halted.units[:2], LANE)]
    halted.bench.intake.room = 0
    halted.bench.flow.dead_letter_halted(4001.0)
    assert len(halted.bench.intake.buried) == 1


def test_other_lanes_arent_buried() -> None:
    """Neither those that aren't halted, nor any if the policy says never."""
    halted = Halted(1.0, 2.0, 3.0)
    halted.bench.intake.halts = {Lane("phc_bbbbbbbbbbbbbbbbbbbbbbbbbbbb"): 0.0}
    halted.bench.flow.dead_letter_halted(9000.0)
    assert halted.bench.intake.buried == []
    never = Halted(1.0, 2.0, halt_after=None)
    never.bench.flow.dead_letter_halted(1e9)
    assert never.bench.intake.buried == []


def test_a_partition_says_why_it_waits() -> None:
    """The intake's own words, such as that the dead letters are full."""
    bench = KafkaFlowRig()
    bench.intake.refuses = DeadLettersFull("no room among the dead letters for 3 refused events")
    bench.flow.add(ZERO, records(range(3)))
    assert (
        bench.flow.why_paused(bench.flow.partitions[ZERO])
        == "no room among the dead letters for 3 refused events"
    )
    assert bench.flow.why_paused(bench.flow.partitions[ONE]) == ""


def test_units_are_offered_in_slices() -> None:
    """What isn't taken in time waits without any other reason, and is taken next, in order; its
    offsets are watched all the while.
    """
    bench = KafkaFlowRig()
    until = bench.now + SLICE_SECONDS

    def slow(*_: object) -> None:
        bench.now += SLICE_SECONDS

    bench.intake.on_take = slow
    bench.flow.add(ZERO, records(range(1600)), until)
    assert bench.intake.offsets == list(range(500))
    assert bench.flow.uncommitted() == {ZERO: 0}
    for accepted in (1000, 1500, 1600):
        assert bench.flow.unfinished
        bench.flow.retry()
        assert bench.intake.offsets == list(range(accepted))
    assert not bench.flow.unfinished


def test_a_record_decoded_elsewhere_is_accepted_once_it_is_decoded() -> None:
    """Its partition pauses meanwhile, and others continue."""
    bench = KafkaFlowRig()
    done: list[Callable[[], None]] = []
    bench.intake.refuses = error = StillDecoding("a large record is being decoded")
    error.when_done = done.append
    bench.flow.add(ZERO, records([0]))
    bench.intake.refuses = None
    bench.flow.add(ONE, records([0]))
    assert bench.flow.paused() == {ZERO}
    bench.now += RETRY_SECONDS
    bench.flow.retry()
    assert len(bench.intake.accepted) == 1
    done[0]()
    assert len(bench.intake.accepted) == 2
    assert bench.flow.paused() == set()
    assert bench.eased == 1
