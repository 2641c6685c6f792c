"""The life of a member against a real broker: what it reads, commits and survives."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete
from structlog.testing import capture_logs

from forwarder.core.clock import SystemClock
from forwarder.sources.kafka.diagnosis import quiet
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.kafka.report import Condition
from forwarder.sources.kafka.source import KafkaSource
from tests.support.kafka import (
    Kafka,
    MakeTopic,
    Record,
    add_partitions,
    admin,
    committed,
    create_topic,
    ends,
    members,
    produce,
    unique,
)
from tests.support.record_intakes import FakeRecordIntake
from tests.support.waiting import eventually, in_thread, tick

pytestmark = pytest.mark.slow


class KafkaReader:
    """A source, and the intake that it hands records to."""

    def __init__(self, policy: KafkaPolicy, *, settles: bool = True) -> None:
        quiet()
        self.policy = policy
        self.intake = FakeRecordIntake(settles=settles)
        self.source = KafkaSource(policy, self.intake, SystemClock())

    @property
    def names(self) -> Counter[str]:
        """The records that were taken, and how often each."""
        return Counter(
            facts.name.partition("/")[2] for unit in self.intake.accepted for facts in unit.facts
        )

    @property
    def assigned(self) -> int:
        """Partitions that it has."""
        return len(self.source.statistics().partitions)

    async def until_read(self, count: int) -> None:
        """Wait until so many different records were taken."""
        await eventually(
            lambda: len(self.names) >= count,
            explain=lambda: f"{len(self.names)} of {count}; {self.source.statistics()}",
        )

    async def until(self, condition: Condition) -> None:
        """Wait until it is so."""
        await eventually(
            lambda: self.source.statistics().state == condition,
            explain=lambda: str(self.source.statistics()),
        )


def policy_of(kafka: Kafka, *topics: str, **others: Any) -> KafkaPolicy:
    """A policy for these topics, with a group of its own and short times."""
    base = KafkaPolicy(
        name="main",
        bootstrap_servers=(kafka.bootstrap,),
        topics=topics,
        group_id=unique("group"),
        session_timeout=6.0,
    )
    return replace(base, commit_interval=0.1, revocation_timeout=2.0, **others)


@asynccontextmanager
async def reading(policy: KafkaPolicy, *, settles: bool = True) -> AsyncIterator[KafkaReader]:
    """A source that runs; it is closed at the end, and leaves nothing behind."""
    reader = KafkaReader(policy, settles=settles)
    reader.source.start()
    try:
        yield reader
    finally:
        await reader.source.close()


def values(count: int) -> list[bytes]:
    """Different records."""
    return [b'{"n":%d}' % number for number in range(count)]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster is looked at every second, where it is every 30: a client that a starting broker
    answered with nothing asks soon again.
    """
    monkeypatch.setattr("forwarder.sources.kafka.client.METADATA_SECONDS", 1.0)
    monkeypatch.setattr("forwarder.sources.kafka.membership.CHECK_SECONDS", 1.0)


async def test_everything_is_read_once_and_committed(kafka: Kafka, topic: MakeTopic) -> None:
    """All records of all partitions, in order in each; the commits end at the partitions' ends,
    and the lag at 0.
    """
    name = await topic(4)
    await produce(kafka.bootstrap, name, values(20_000))
    policy = policy_of(kafka, name)
    async with reading(policy) as reader:
        await reader.until_read(20_000)
        assert set(reader.names.values()) == {1}
        await eventually(
            lambda: (
                sum(partition.lag or 0 for partition in reader.source.statistics().partitions) == 0
            )
        )
    assert await committed(kafka.bootstrap, policy.group_id, name) == await ends(
        kafka.bootstrap, name
    )
    assert await members(kafka.bootstrap, policy.group_id) == {}, "it has left the group"


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_are_read(
    kafka: Kafka, topic: MakeTopic, compression: str
) -> None:
    """Whatever way the producer compresses."""
    name = await topic()
    await produce(kafka.bootstrap, name, values(500), compression=compression)
    async with reading(policy_of(kafka, name)) as reader:
        await reader.until_read(500)
        assert [value for unit in reader.intake.accepted for value in unit.values] == values(500)


async def test_unsettled_records_are_read_again(kafka: Kafka, topic: MakeTopic) -> None:
    """The next member of the group begins where the watermark is, not after the last record that
    was settled.
    """
    name = await topic()
    await produce(kafka.bootstrap, name, values(3000))
    policy = policy_of(kafka, name)
    async with reading(policy, settles=False) as reader:
        await reader.until_read(3000)
        for unit in reader.intake.accepted[2:]:
            unit.settle()
        reader.intake.accepted[0].settle()
        first, second = reader.intake.accepted[:2]
    assert reader.intake.given_back == [second]
    assert await committed(kafka.bootstrap, policy.group_id, name) == {0: len(first.values)}
    async with reading(policy) as again:
        await again.until_read(3000 - len(first.values))
        assert again.intake.offsets[0] == len(first.values)


async def test_two_share_the_partitions(kafka: Kafka, topic: MakeTopic) -> None:
    """A second member gets its half, after the first has committed what it had; nothing is read
    that isn't needed.
    """
    name = await topic(4)
    policy = policy_of(kafka, name)
    async with reading(policy) as one:
        await produce(kafka.bootstrap, name, values(2000))
        await one.until_read(2000)
        async with reading(policy) as other:
            await eventually(lambda: (one.assigned, other.assigned) == (2, 2))
            await produce(kafka.bootstrap, name, values(2000))
            await eventually(lambda: len(one.names + other.names) == 4000)
            assert set((one.names + other.names).values()) == {1}
        await eventually(lambda: one.assigned == 4)
        assert one.source.statistics().rebalances >= 3


async def test_a_member_that_dies_is_replaced(kafka: Kafka, topic: MakeTopic) -> None:
    """One that is gone without a word loses its partitions after the session's time; no one misses
    a record.
    """
    name = await topic(2)
    policy = policy_of(kafka, name)
    async with reading(policy, settles=False) as dead:
        await produce(kafka.bootstrap, name, values(100))
        await dead.until_read(100)
        membership = dead.source._membership
        assert membership is not None
        dead.source.stop_reading()  # and nobody takes its place
        await membership.client.cut()
        async with reading(policy) as heir:
            await heir.until_read(100)


async def test_a_static_member_comes_back_without_a_rebalance(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """The group keeps its partitions for it while it is away for a moment, and
    gives none to the others.
    """
    name = await topic(4)
    policy = policy_of(kafka, name)
    static = replace(policy, group_instance_id="host-a", session_timeout=30.0)
    async with reading(replace(policy, group_instance_id="host-b")) as other:
        async with reading(static) as one:
            await eventually(lambda: (one.assigned, other.assigned) == (2, 2))
        await produce(kafka.bootstrap, name, values(400))
        rebalances = other.source.statistics().rebalances
        async with reading(static) as again:
            await eventually(lambda: len(again.names + other.names) == 400)
            assert (again.assigned, other.assigned, other.source.statistics().rebalances) == (
                2,
                2,
                rebalances,
            )
            assert again.names
    assert set((again.names + other.names).values()) == {1}


@pytest.mark.usefixtures("hurried")
async def test_two_members_of_one_name_are_reported(kafka: Kafka, topic: MakeTopic) -> None:
    """Both report the id and what to do, once each, for as long as it lasts; every
    record is read.
    """
    name = await topic(2)
    policy = replace(policy_of(kafka, name), group_instance_id="host-a")
    with capture_logs() as logs:
        async with reading(policy) as one:
            await eventually(lambda: one.assigned == 2)
            async with reading(policy) as other:
                await produce(kafka.bootstrap, name, values(100))
                await eventually(
                    lambda: all(
                        "'host-a'" in reader.source.statistics().note for reader in (one, other)
                    )
                )
                await one.until(Condition.DOWN)
                statistics = one.source.statistics()
                assert statistics.why.startswith(
                    f"group_instance_id: another forwarder is in group '{policy.group_id}' as "
                    "'host-a' too"
                )
                assert statistics.hint == "Give each forwarder an id of its own, or none."
                await eventually(lambda: len(one.names + other.names) == 100)
            await one.until(Condition.READING)
            assert "'host-a'" in one.source.statistics().note
    assert [line["key"] for line in logs if line["log_level"] == "error"] == [
        "sources.kafka[0].group_instance_id"
    ] * 2


@pytest.mark.usefixtures("hurried")
async def test_the_broker_is_restarted(kafka: Kafka, topic: MakeTopic) -> None:
    """In mid-stream, killed: the state says so, and it continues by itself, with every record."""
    name = await topic(2)
    async with reading(policy_of(kafka, name)) as reader:
        await produce(kafka.bootstrap, name, values(1000))
        await reader.until_read(1000)
        try:
            await in_thread(kafka.broker.kill)
            await reader.until(Condition.DOWN)
            assert "nothing listens" in reader.source.statistics().why
        finally:
            await in_thread(kafka.broker.start)
        await produce(kafka.bootstrap, name, values(1000))
        await reader.until_read(2000)
        await reader.until(Condition.READING)


@pytest.mark.usefixtures("hurried")
async def test_the_broker_is_down_at_the_start(kafka: Kafka, topic: MakeTopic) -> None:
    """It says why and is tried again; it reads as soon as there is a broker."""
    name = await topic()
    await produce(kafka.bootstrap, name, values(10))
    await in_thread(kafka.broker.stop)
    try:
        async with reading(policy_of(kafka, name)) as reader:
            await reader.until(Condition.DOWN)
            statistics = reader.source.statistics()
            assert (statistics.why, statistics.next_try is not None) == (
                f"bootstrap_servers: nothing listens on {kafka.bootstrap}",
                True,
            )
            await in_thread(kafka.broker.start)
            await reader.until_read(10)
    finally:
        if not kafka.broker.running:
            await in_thread(kafka.broker.start)


async def test_closing_while_the_broker_is_down(kafka: Kafka, topic: MakeTopic) -> None:
    """It takes a few seconds, and leaves nothing behind."""
    name = await topic()
    await produce(kafka.bootstrap, name, values(10))
    async with reading(policy_of(kafka, name)) as reader:
        await reader.until_read(10)
        await in_thread(kafka.broker.stop)
        try:
            await reader.source.close()
        finally:
            await in_thread(kafka.broker.start)


async def test_marks_of_transactions_leave_no_lag(kafka: Kafka, topic: MakeTopic) -> None:
    """Committed transactions end with a mark, rolled back ones are nothing else: with all settled,
    the commits are at the very end.
    """
    name = await topic()
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, transactional_id=unique("producer")
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(name, b'{"n":1}')
        await producer.begin_transaction()
        await producer.send_and_wait(name, b'{"n":2}')
        await producer.abort_transaction()
    finally:
        await producer.stop()
    policy = policy_of(kafka, name)
    async with reading(policy) as reader:
        await reader.until_read(1)
        await eventually(
            lambda: [partition.lag for partition in reader.source.statistics().partitions] == [0]
        )
        assert [value for unit in reader.intake.accepted for value in unit.values] == [b'{"n":1}']
    assert (
        await committed(kafka.bootstrap, policy.group_id, name)
        == await ends(kafka.bootstrap, name)
        == {0: 4}
    )


async def test_tombstones_are_passed(kafka: Kafka, topic: MakeTopic) -> None:
    """Records without a value are counted, and committed past."""
    name = await topic(1, cleanup_policy="compact")
    await produce(
        kafka.bootstrap,
        name,
        [Record(b"{}", key=b"a"), Record(None, key=b"a"), Record(None, key=b"b")],
    )
    policy = policy_of(kafka, name)
    async with reading(policy) as reader:
        await eventually(lambda: reader.source.statistics().records["tombstone"] == 2)
    assert await committed(kafka.bootstrap, policy.group_id, name) == {0: 3}


@pytest.mark.parametrize(("earliest", "expected"), [(True, 15), (False, 5)])
async def test_where_a_new_group_begins(
    kafka: Kafka, topic: MakeTopic, earliest: bool, expected: int
) -> None:
    """At the beginning, or with what comes from now on; that place is committed, though nothing
    was read yet.
    """
    name = await topic()
    await produce(kafka.bootstrap, name, values(10))
    policy = policy_of(kafka, name, from_earliest=earliest)
    async with reading(policy):
        while (await committed(kafka.bootstrap, policy.group_id, name)).get(0) != 10:
            await tick()
    await produce(kafka.bootstrap, name, values(5))
    async with reading(policy) as again:
        await again.until_read(5)
        assert again.intake.offsets == list(range(10, 15))
    async with reading(replace(policy, group_id=unique("group"))) as fresh:
        await eventually(lambda: fresh.assigned == 1)
        if not earliest:
            await eventually(lambda: fresh.source.statistics().commits["ok"] == 1)
            await produce(kafka.bootstrap, name, values(5))
        await fresh.until_read(expected)


async def test_records_that_expired_are_reported(kafka: Kafka, topic: MakeTopic) -> None:
    """They are gone, and counted; what is left is read, though the group would
    begin at the end otherwise.
    """
    name = await topic()
    await produce(kafka.bootstrap, name, values(100))
    policy = policy_of(kafka, name, from_earliest=False)
    async with reading(policy) as reader:
        await eventually(lambda: reader.source.statistics().commits["ok"] >= 1)
    await produce(kafka.bootstrap, name, values(50))
    async with admin(kafka.bootstrap) as client:
        await client.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=130)})
    async with reading(policy) as again:
        await again.until_read(20)
        assert again.intake.offsets == list(range(130, 150))
        assert again.source.statistics().expired == 30


async def test_a_missing_topic_is_waited_for(kafka: Kafka) -> None:
    """It says so, and reads as soon as the topic is made; it doesn't make the topic itself."""
    name = unique("late")
    async with reading(policy_of(kafka, name)) as reader:
        await reader.until(Condition.WAITING)
        assert name in reader.source.statistics().why
        await create_topic(kafka.bootstrap, name)
        await produce(kafka.bootstrap, name, values(10))
        await reader.until_read(10)


async def test_a_missing_topic_may_be_an_error(kafka: Kafka, topic: MakeTopic) -> None:
    """Then nothing is read at all."""
    name = await topic()
    async with reading(policy_of(kafka, name, unique("never"), wait_for_topics=False)) as reader:
        await reader.until(Condition.FAILED)
        assert "never" in reader.source.statistics().why


@pytest.mark.usefixtures("hurried")
async def test_new_topics_and_partitions_are_found(kafka: Kafka, topic: MakeTopic) -> None:
    """By a pattern, while it runs."""
    prefix = unique("orders")
    first = await topic(1, prefix)
    async with reading(replace(policy_of(kafka), topics_pattern=prefix)) as reader:
        await produce(kafka.bootstrap, first, values(5))
        await reader.until_read(5)
        second = await topic(1, prefix)
        await produce(kafka.bootstrap, second, values(5))
        await reader.until_read(10)
        assert set(reader.names.values()) == {1}
        await add_partitions(kafka.bootstrap, first, 3)
        await eventually(lambda: reader.assigned == 4)
