"""The life of a member of a consumer group, against a cluster that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from structlog.testing import capture_logs

from forwarder.core.errors import BufferFull
from forwarder.sources.kafka.client import RebalanceListener
from forwarder.sources.kafka.membership import AWAY_SECONDS, CHECK_SECONDS
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.kafka.report import Condition
from forwarder.sources.kafka.security import SecurityError
from forwarder.sources.kafka.source import KafkaSource
from tests.support.clock import FakeClock, settle
from tests.support.record_intakes import LANE, FakeRecordIntake
from tests.support.scripted_kafka import ScriptedClient, ScriptedCluster

ZERO = TopicPartition("events", 0)
ONE = TopicPartition("events", 1)
POLICY = KafkaPolicy(name="main", bootstrap_servers=("a:9092",), topics=("events",))
GONE = KafkaConnectionError("a:9092 is gone")


class KafkaSourceRig:
    """A source, its cluster, and the intake that it hands records to."""

    def __init__(self, clock: FakeClock, policy: KafkaPolicy) -> None:
        self.clock = clock
        self.cluster = ScriptedCluster(clock)
        self.cluster.committed = {ZERO: 0, ONE: 0}
        self.intake = FakeRecordIntake()
        self.source = KafkaSource(policy, self.intake, clock, brokers=self.cluster)

    @property
    def client(self) -> ScriptedClient:
        """The one that is in use."""
        return self.cluster.client

    @property
    def condition(self) -> Condition:
        """As the status has it."""
        return Condition(self.source.statistics().state)

    async def produce(self, key: TopicPartition, count: int) -> None:
        """Records come, and are read."""
        self.cluster.produce(key, count)
        await settle()

    async def rebalance(self, *keys: TopicPartition) -> None:
        """The group divides the partitions anew; the client is notified of it in a task of its own,
        as in life.
        """
        task = asyncio.create_task(self.client.rebalance(*keys))
        await settle()
        for _ in range(10):
            if task.done():
                break
            await self.clock.advance(1.0)
        await task

    async def until_following(self, lives: int) -> None:
        """The client of the member's so many-th life has joined the group."""
        for _ in range(100):
            if len(self.cluster.clients) == lives and self.client.done == ["start", "follow"]:
                return
            await self.clock.advance(1.0)
        raise AssertionError((len(self.cluster.clients), self.client.done))

    def settle(self, *numbers: int) -> None:
        """These units are delivered; all if none is named."""
        for number in numbers or range(len(self.intake.accepted)):
            self.intake.accepted[number].settle()


@asynccontextmanager
async def reading(clock: FakeClock, policy: KafkaPolicy = POLICY) -> AsyncIterator[KafkaSourceRig]:
    """A source that has both partitions of its topic. At the end it is closed, if it wasn't."""
    bench = KafkaSourceRig(clock, policy)
    bench.source.start()
    try:
        await settle()
        await bench.rebalance(ZERO, ONE)
        yield bench
    finally:
        await bench.source.close()
    assert clock.pending == 0


async def test_records_are_read_and_committed(clock: FakeClock) -> None:
    """What came is taken at once; what is settled is committed at the next interval,
    and only once.
    """
    async with reading(clock) as bench:
        assert bench.client.topics_followed == {"events"}
        assert bench.condition is Condition.READING
        await bench.produce(ZERO, 700)
        assert bench.intake.offsets == list(range(700))
        bench.settle(1)
        await clock.advance(1.0)
        assert bench.cluster.committed[ZERO] == 0
        bench.settle(0)
        await clock.advance(1.0)
        assert bench.cluster.committed[ZERO] == 700
        commits = bench.source.statistics().commits
        await clock.advance(30.0)
        assert bench.source.statistics().commits == commits == {"ok": 1, "failed": 0}
        assert bench.source.statistics().last_commit is not None


async def test_the_commits_failures_are_counted(clock: FakeClock) -> None:
    """A commit that fails is part of the next one; nothing is lost by it, and nothing stops."""
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.settle()
        bench.cluster.failure = GONE
        await clock.advance(3.0)
        assert bench.source.statistics().commits["failed"] >= 1
        bench.cluster.failure = None
        await clock.advance(3.0)
        assert bench.cluster.committed[ZERO] == 10


async def test_a_rebalance_commits_nothing_unsettled(clock: FakeClock) -> None:
    """Units in flight get their time; what is settled in order is committed, the rest is given
    back, and read from there by the next one. With the highest settled offset in place of the
    watermark, records 0 to 499 would be lost here.
    """
    async with reading(clock) as bench:
        await bench.produce(ZERO, 1000)
        bench.settle(1)
        await bench.rebalance(ZERO)
        assert bench.cluster.committed[ZERO] == 0
        assert bench.intake.given_back == bench.intake.accepted[:1]
        assert bench.intake.offsets == [*range(1000), *range(1000)]
        bench.intake.accepted[0].settle()  # of the former assignment: it counts for nothing
        await clock.advance(1.0)
        assert bench.cluster.committed[ZERO] == 0
        bench.settle(2, 3)
        await clock.advance(1.0)
        assert bench.cluster.committed[ZERO] == 1000


async def test_records_settled_during_a_revocation_are_committed(clock: FakeClock) -> None:
    """It waits no longer than for the last unit, and no longer than its time."""
    async with reading(clock) as bench:
        await bench.produce(ZERO, 1000)
        revocation = asyncio.create_task(bench.client.listener.on_revoked())
        await clock.advance(2.0)
        bench.settle(0)
        await clock.advance(1.0)
        assert not revocation.done()
        bench.settle(1)
        await settle()
        assert revocation.done()
        assert bench.cluster.committed[ZERO] == 1000
        assert bench.condition is Condition.JOINING


async def test_pauses_hold_after_an_assignment(clock: FakeClock) -> None:
    """The client forgets what was paused; a source that holds pauses again before
    anything is read.
    """
    async with reading(clock) as bench:
        bench.source.stop_reading()
        await bench.rebalance(ZERO, ONE)
        assert bench.client.stopped == {ZERO, ONE}
        await bench.produce(ZERO, 10)
        await clock.advance(1.0)
        assert bench.intake.accepted == []
        assert bench.condition is Condition.STOPPING


async def test_a_full_buffer_pauses_one_partition(clock: FakeClock) -> None:
    """What had to wait is taken as soon as there is room, and then its partition continues; the
    other is read meanwhile.
    """
    async with reading(clock) as bench:
        bench.intake.refuses = BufferFull("the buffer is full")
        await bench.produce(ZERO, 10)
        assert bench.client.stopped == {ZERO}
        bench.intake.refuses = None
        await bench.produce(ONE, 5)
        [paused] = [
            partition for partition in bench.source.statistics().partitions if partition.paused
        ]
        assert (paused.partition, paused.paused) == (0, "the buffer is full")
        await bench.produce(ZERO, 10)
        await clock.advance(1.0)
        assert sorted(bench.intake.offsets) == sorted([*range(5), *range(20)])
        assert bench.client.stopped == set()


async def test_reading_resumes_as_soon_as_there_is_room(clock: FakeClock) -> None:
    """Partitions that wait for `max_in_flight` are read again when half of it is settled, not at
    the next turn.
    """
    async with reading(clock, replace(POLICY, max_in_flight=1000)) as bench:
        await bench.produce(ZERO, 600)
        await clock.advance(0.2)
        assert bench.client.stopped == {ZERO, ONE}
        await bench.produce(ZERO, 100)
        bench.settle()
        await settle()
        assert len(bench.intake.offsets) == 700


async def test_closing_commits_gives_back_and_leaves(clock: FakeClock) -> None:
    """In that order, without waiting for what is in flight: the drain is over."""
    async with reading(clock) as bench:
        await bench.produce(ZERO, 1000)
        bench.settle(0)
        await bench.source.close()
        assert bench.client.done[-2:] == ["commit [500]", "stop"]
        assert bench.intake.given_back == bench.intake.accepted[1:]


async def test_closing_ends_without_an_answer(clock: FakeClock) -> None:
    """Where leaving fails the connections are cut."""
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.cluster.failure = GONE
        await bench.source.close()
        assert bench.client.done[-1] == "cut"
        assert len(bench.intake.given_back) == 1


async def test_brokers_that_are_away_at_the_start(clock: FakeClock) -> None:
    """It is tried again and again, says why and when, and reads as soon as they are there."""
    bench = KafkaSourceRig(clock, POLICY)
    bench.cluster.failure = GONE
    bench.source.start()
    try:
        await settle()
        statistics = bench.source.statistics()
        assert (statistics.state, statistics.hint) == (Condition.DOWN, "Look there.")
        assert "a:9092 is gone" in statistics.why
        assert statistics.next_try is not None
        assert statistics.next_try > clock.now()
        await clock.advance(120.0)
        assert len(bench.cluster.clients) > 3
        assert all(client.done[-1] == "cut" for client in bench.cluster.clients)
        bench.cluster.failure = None
        await clock.advance(60.0)
        assert bench.client.topics_followed == {"events"}
        assert bench.condition is Condition.JOINING
    finally:
        await bench.source.close()


async def test_brokers_that_go_away_in_mid_stream(clock: FakeClock) -> None:
    """The member stays and what is in flight with it; that they don't answer is seen, and that
    they do again.
    """
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.cluster.failure = GONE
        await clock.advance(CHECK_SECONDS + 1)
        assert bench.condition == "down"
        await clock.advance(AWAY_SECONDS / 2)
        bench.cluster.failure = None
        await clock.advance(5.0)
        assert bench.condition == "reading"
        bench.settle()
        await clock.advance(1.0)
        assert (bench.cluster.committed[ZERO], len(bench.cluster.clients)) == (10, 1)


async def test_brokers_that_stay_away_are_looked_for_anew(clock: FakeClock) -> None:
    """After a long time by the configured addresses: those that the client
    knows may be gone for good.
    """
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.cluster.failure = GONE
        await clock.advance(AWAY_SECONDS + CHECK_SECONDS + 10.0)
        assert len(bench.cluster.clients) > 1
        assert len(bench.intake.given_back) == 1


async def test_a_client_that_dies_is_replaced(clock: FakeClock) -> None:
    """One whose task has ended would be silent indefinitely: it is closed and made
    again, and that is said.
    """
    async with reading(clock) as bench:
        bench.client.dead = RuntimeError("its task has ended")
        await clock.advance(0.4)
        assert bench.condition is Condition.DOWN
        await clock.advance(5.0)
        assert len(bench.cluster.clients) == 2
        assert bench.cluster.clients[0].done[-1] == "stop"


async def test_an_unexpected_cancellation_ends_one_life_only(clock: FakeClock) -> None:
    """The client cancels requests whose connection closes, and so also what waits: reading,
    looking, and searching for the cause.
    """
    async with reading(clock) as bench:
        for lives in (2, 3):
            bench.client.errors.append(asyncio.CancelledError())
            bench.client.wake()
            await clock.advance(10.0)
            assert len(bench.cluster.clients) == lives
        bench.cluster.failure = asyncio.CancelledError()
        await clock.advance(AWAY_SECONDS + CHECK_SECONDS + 30.0)
        assert bench.condition is Condition.DOWN
        assert len(bench.cluster.clients) > 3
        bench.cluster.failure = None
        await clock.advance(60.0)
        assert bench.cluster.clients[-1].done[-1] == "follow"


async def test_an_interruption_hides_no_cause(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client cuts a life off, before and after the brokers have said why they don't accept it:
    that is what is reported, once.
    """
    bench = KafkaSourceRig(clock, POLICY)
    connect = bench.cluster.connect

    def fails_in_turn(policy: KafkaPolicy, listener: RebalanceListener) -> ScriptedClient:
        bench.cluster.failure = GONE if len(bench.cluster.clients) % 2 else asyncio.CancelledError()
        return connect(policy, listener)

    monkeypatch.setattr(bench.cluster, "connect", fails_in_turn)
    whys = []
    with capture_logs() as logged:
        bench.source.start()
        try:
            await settle()
            for lives in range(2, 7):
                whys.append(bench.source.statistics().why)
                while len(bench.cluster.clients) < lives:
                    await clock.advance(1.0)
        finally:
            await bench.source.close()
    assert [bool(why) for why in whys] == [False, True, True, True, True]
    assert all("a:9092 is gone" in why for why in whys[1:])
    assert [line["event"] for line in logged if line["log_level"] == "error"] == [
        "kafka: can't read"
    ]


async def test_only_interruptions_are_logged(clock: FakeClock) -> None:
    """One may come by chance; where there are only such, a person has to know."""
    bench = KafkaSourceRig(clock, POLICY)
    bench.cluster.failure = asyncio.CancelledError()
    bench.source.start()
    try:
        await settle()
        assert bench.condition is Condition.CONNECTING
        while len(bench.cluster.clients) < 3:
            await clock.advance(1.0)
        statistics = bench.source.statistics()
        assert statistics.state == Condition.DOWN
        assert statistics.next_try is not None
    finally:
        await bench.source.close()


async def test_the_reason_of_an_end_is_logged_even_if_leaving_fails(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving may meet a task of the client that was cancelled."""
    async with reading(clock) as bench:

        async def stop() -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(bench.client, "stop", stop)
        bench.client.dead = RuntimeError("its task has ended")
        await clock.advance(0.4)
        assert bench.condition is Condition.DOWN
        assert "its task has ended" in bench.source.statistics().why
        assert bench.client.done[-1] == "cut"


async def test_after_a_failed_read_only_the_watermark_counts(clock: FakeClock) -> None:
    """A read that fails may have swallowed records of other partitions: how far the client has
    come isn't committed any more.
    """
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.settle()
        bench.client.positions[ZERO] = 500  # swallowed
        bench.client.errors.append(CorruptRecordException("Invalid CRC"))
        bench.client.wake()
        await clock.advance(0.5)
        assert bench.client.done[-1] == "stop"
        assert bench.cluster.committed[ZERO] == 10


async def test_marks_of_transactions_at_the_end_are_committed(clock: FakeClock) -> None:
    """The client has passed what holds no record: with nothing outstanding that is where the group
    has come to.
    """
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.client.positions[ZERO] = 11
        bench.settle()
        await clock.advance(1.0)
        assert bench.cluster.committed[ZERO] == 11


@pytest.mark.parametrize(("earliest", "first"), [(True, 3), (False, 8)])
async def test_a_group_that_has_committed_nothing(
    clock: FakeClock, earliest: bool, first: int
) -> None:
    """It begins where the policy says, and commits that, so that the next one begins there too."""
    async with reading(clock, replace(POLICY, from_earliest=earliest)) as bench:
        bench.cluster.committed.clear()
        bench.cluster.begins = {ZERO: 3}
        bench.cluster.ends = {ZERO: 8}
        await bench.rebalance(ZERO)
        bench.client.errors.append(NoOffsetForPartitionError(ZERO))
        bench.client.wake()
        await clock.advance(1.0)
        assert f"seek {first}" in bench.client.done
        assert bench.cluster.committed[ZERO] == first


async def test_records_that_expired_are_reported(clock: FakeClock) -> None:
    """What was committed isn't there any more: it continues where the partition begins now,
    whatever `auto_offset_reset` says.
    """
    async with reading(clock, replace(POLICY, from_earliest=False)) as bench:
        bench.cluster.committed = {ZERO: 100}
        bench.cluster.begins = {ZERO: 140}
        bench.cluster.ends = {ZERO: 150}
        bench.client.errors.append(OffsetOutOfRangeError({ZERO: 100}))
        await bench.rebalance(ZERO)
        await clock.advance(1.0)
        assert bench.source.statistics().expired == 40
        assert bench.intake.offsets == list(range(140, 150))


async def test_a_partition_that_ends_before_its_offset(clock: FakeClock) -> None:
    """Its topic was made anew: it is read from its beginning, which is committed at once, and no
    record has expired by that. With the old offset kept, no matter who comes next would pass over
    what the topic has up to there by then.
    """
    with capture_logs() as logged:
        async with reading(clock) as bench:
            bench.cluster.committed = {ZERO: 100}
            bench.cluster.ends = {ZERO: 0}
            bench.client.errors.append(OffsetOutOfRangeError({ZERO: 100}))
            await bench.rebalance(ZERO)
            await clock.advance(1.0)
            assert (bench.source.statistics().expired, bench.cluster.committed[ZERO]) == (0, 0)
            await bench.produce(ZERO, 20)
            assert bench.intake.offsets == list(range(20))
            bench.settle()
            await clock.advance(1.0)
            assert bench.cluster.committed[ZERO] == 20
    assert [line["offset"] for line in logged if "begins again" in line["event"]] == [0]


@pytest.mark.parametrize(
    "error", [NoOffsetForPartitionError(ZERO), OffsetOutOfRangeError({ZERO: 40})]
)
async def test_answers_from_before_a_rebalance_are_discarded(
    clock: FakeClock, error: Exception
) -> None:
    """Where to begin is asked, and another member has the partition meanwhile: what that one has
    committed counts, not the answer.
    """
    async with reading(clock, replace(POLICY, from_earliest=False)) as bench:
        bench.cluster.committed.clear()
        bench.cluster.begins = {ZERO: 70}
        await bench.rebalance(ZERO)
        answer = bench.cluster.hold_answers()
        bench.client.errors.append(error)
        bench.client.wake()
        await clock.advance(0.5)
        await bench.rebalance(ZERO)  # where the other has come to isn't known yet
        answer.set()
        await clock.advance(0.5)
        assert not [call for call in bench.client.done if call.startswith("seek")]


async def test_a_forbidden_topic_is_logged_once(clock: FakeClock) -> None:
    """However often it is tried, and by one line: commits are refused for the same reason. When it
    may be read, that is reported.
    """
    bench = KafkaSourceRig(clock, POLICY)
    bench.intake.settles = True
    bench.cluster.produce(ZERO, 10)
    bench.cluster.refuses_commits = TopicAuthorizationFailedError({"events"})
    with capture_logs() as logged:
        bench.source.start()
        try:
            for lives in range(1, 5):
                await bench.until_following(lives)
                await bench.rebalance(ZERO, ONE)
            await bench.until_following(5)
            bench.cluster.refuses_commits = None
            await bench.rebalance(ZERO, ONE)
            await clock.advance(2.0)
            assert (bench.condition, bench.cluster.committed[ZERO]) == (Condition.READING, 10)
        finally:
            await bench.source.close()
    said = [line["event"] for line in logged if line["log_level"] != "debug"]
    assert said == ["kafka: reading", "kafka: can't read", "kafka: reading again"]
    assert [line["key"] for line in logged if "key" in line] == [
        "sources.kafka[0].bootstrap_servers"
    ]
    assert bench.source.statistics().commits["failed"] >= 4


async def test_the_lag_is_known_of_paused_partitions(clock: FakeClock) -> None:
    """Someone looks at their ends now and then."""
    async with reading(clock) as bench:
        bench.source.stop_reading()
        await bench.produce(ZERO, 50)
        await clock.advance(CHECK_SECONDS)
        [lag] = [
            partition.lag
            for partition in bench.source.statistics().partitions
            if partition.partition == 0
        ]
        assert lag == 50


async def test_missing_topics_are_waited_for(clock: FakeClock) -> None:
    """It says which; those that are there are read meanwhile, and the others as soon
    as they are.
    """
    async with reading(clock, replace(POLICY, topics=("events", "late"))) as bench:
        assert "late" in bench.source.statistics().note
        await bench.produce(ZERO, 10)
        bench.settle()
        bench.cluster.topics.append("late")
        await clock.advance(CHECK_SECONDS)
        assert bench.client.topics_followed == {"events", "late"}
        assert bench.client.done[-2:] == ["commit [10]", "follow"], (
            "what is settled is committed before the client forgets it"
        )
        assert bench.source.statistics().note == ""


async def test_a_missing_topic_is_a_state_of_its_own(clock: FakeClock) -> None:
    """A state of its own, in which nothing is joined."""
    bench = KafkaSourceRig(clock, replace(POLICY, topics=(), topics_pattern="orders-.*"))
    bench.source.start()
    try:
        await settle()
        assert bench.condition is Condition.WAITING
        assert "orders-.*" in bench.source.statistics().why
        bench.cluster.topics += ["orders-eu", "my-orders-eu"]
        await clock.advance(CHECK_SECONDS)
        assert bench.client.topics_followed == {"orders-eu"}
        bench.cluster.topics.append("orders-us")
        await clock.advance(CHECK_SECONDS)
        assert bench.client.topics_followed == {"orders-eu", "orders-us"}
    finally:
        await bench.source.close()


async def test_missing_topics_may_be_an_error(clock: FakeClock) -> None:
    """Then nothing is read, and nothing is tried again: it is for a person to repair."""
    bench = KafkaSourceRig(clock, replace(POLICY, topics=("events", "late"), wait_for_topics=False))
    bench.source.start()
    try:
        await settle()
        await clock.advance(600.0)
        statistics = bench.source.statistics()
        assert (statistics.state, len(bench.cluster.clients)) == (Condition.FAILED, 1)
        assert "late" in statistics.why
        assert bench.client.done[-1] == "stop"
    finally:
        await bench.source.close()
    assert bench.condition is Condition.FAILED


async def test_topics_may_be_missing_later(clock: FakeClock) -> None:
    """Where missing topics are an error, that is for the start: a cluster that comes back may not
    know them for a moment.
    """
    async with reading(clock, replace(POLICY, wait_for_topics=False)) as bench:
        bench.cluster.topics.clear()
        bench.client.dead = RuntimeError("its task has ended")
        await clock.advance(10.0)
        assert (len(bench.cluster.clients), bench.condition) == (2, Condition.WAITING)
        bench.cluster.topics.append("events")
        await clock.advance(5.0)
        assert bench.client.topics_followed == {"events"}


async def test_files_that_cant_be_used_are_tried_again(clock: FakeClock) -> None:
    """A password's file may be mounted later."""
    bench = KafkaSourceRig(clock, POLICY)
    bench.cluster.refusal = SecurityError(
        "security.password_file", "/run/secrets/kafka isn't there"
    )
    bench.source.start()
    try:
        await settle()
        assert bench.condition is Condition.DOWN
        bench.cluster.refusal = None
        await clock.advance(5.0)
        assert bench.client.topics_followed == {"events"}
    finally:
        await bench.source.close()


async def test_a_search_for_the_cause_that_fails(clock: FakeClock) -> None:
    """It ends nothing: the cluster is tried again, and closing works."""
    bench = KafkaSourceRig(clock, POLICY)
    bench.cluster.failure = GONE
    bench.cluster.search_fails = IndexError("an answer that is none")
    bench.source.start()
    try:
        await settle()
        assert "unexpected" in bench.source.statistics().why
        bench.cluster.failure = bench.cluster.search_fails = None
        await clock.advance(5.0)
        assert bench.client.topics_followed == {"events"}
    finally:
        await bench.source.close()


async def test_halted_lanes_are_looked_at(clock: FakeClock) -> None:
    """Once a second; what has waited for too long becomes dead letters."""
    async with reading(clock, replace(POLICY, halt_after=30.0)) as bench:
        bench.intake.now = clock.now()
        await bench.produce(ZERO, 10)
        bench.intake.halts = {LANE: clock.now()}
        await clock.advance(29.0)
        assert bench.intake.buried == []
        await clock.advance(2.0)
        assert bench.intake.buried == [(bench.intake.accepted, LANE)]


async def test_records_lost_by_the_buffer_are_read_again(clock: FakeClock) -> None:
    """The client goes back to it, after a moment."""
    async with reading(clock) as bench:
        await bench.produce(ZERO, 10)
        bench.intake.accepted[0].settle(BufferFull("the disk refuses to write"))
        await clock.advance(5.0)
        assert bench.client.done.count("seek 0") == 1
        assert bench.intake.offsets == [*range(10), *range(10)]


async def test_closing_before_it_is_connected(clock: FakeClock) -> None:
    """Nothing is left of it."""
    bench = KafkaSourceRig(clock, POLICY)
    bench.source.start()
    await bench.source.close()
    never = KafkaSourceRig(clock, POLICY)
    await never.source.close()
    assert never.cluster.clients == []
