"""What a cluster's life holds: brokers and topics that aren't there yet, more partitions, other
codecs, transactions, several workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.admin import total
from tests.support.commands import invoked
from tests.support.kafka import Kafka, MakeTopic, Record, add_partitions, create_topic, unique
from tests.support.members import HURRIED, Members, Section
from tests.support.streams import GroupTopic
from tests.support.upstream import Answer, Upstream
from tests.support.waiting import in_thread
from tests.support.whole import KEY, accepted, event, events

CODECS: Final = (None, "gzip", "snappy", "lz4", "zstd")


@asynccontextmanager
async def group(
    path: Path, stream: GroupTopic, **kafka: object
) -> AsyncIterator[tuple[Members, Upstream]]:
    """Members to be started, and an upstream that takes everything."""
    settings: Section = {**stream.settings, "api_key": KEY, **kafka}
    async with (
        Upstream() as upstream,
        Members(path, settings, upstream={"url": upstream.url}) as members,
    ):
        yield members, upstream


async def test_the_broker_is_down_at_the_start(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """The daemon is ready and says what is wrong; once the broker is there its records flow,
    without anybody's help.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    raw = events(100)
    await stream.write(raw)
    await in_thread(kafka.broker.stop)
    try:
        async with group(tmp_path, stream) as (members, upstream):
            member = await members.start("one", program=HURRIED)
            shown = await member.until(
                lambda shown: any(kafka.bootstrap in warning for warning in shown.warnings)
            )
            assert shown.ready
            assert await member.ready() == 200
            assert await member.metric("forwarder_kafka_up") == 0
            await in_thread(kafka.broker.start)
            await stream.settled()
            assert accepted(upstream) == dict.fromkeys(raw, 1)
            assert await member.metric("forwarder_kafka_up") == 1
            await member.until(lambda shown: not shown.warnings)
            assert await member.stop() == 0
    finally:
        await in_thread(kafka.broker.start)


async def test_a_broker_that_restarts_is_waited_for(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """The broker is killed while answers are waited for, and comes back: all arrives, and the
    daemon ends with 0.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    raw = events(2000)
    broker = kafka.broker
    go_on = asyncio.Event()
    async with group(tmp_path, stream) as (members, upstream):
        upstream.answer = lambda _: Answer(when=go_on)
        await stream.write(raw[:1000])
        member = await members.start("one", program=HURRIED)
        await upstream.until(lambda: upstream.in_flight > 0)
        await in_thread(lambda: broker.restart(kill=True))
        go_on.set()
        await stream.write(raw[1000:])
        await stream.settled()
        assert accepted(upstream).keys() == set(raw)
        assert await member.stop() == 0


async def test_a_missing_topic_is_waited_for(kafka: Kafka, tmp_path: Path) -> None:
    """With `missing_topics: wait` the daemon runs, and names the topic; once that exists its
    records flow.
    """
    stream = GroupTopic(kafka.bootstrap, unique("missing"))
    async with group(tmp_path, stream) as (members, upstream):
        member = await members.start("one", program=HURRIED)
        await member.until(lambda shown: any(stream.topic in warning for warning in shown.warnings))
        assert await member.ready() == 200
        await create_topic(kafka.bootstrap, stream.topic)
        await stream.write([event("late")])
        await stream.settled()
        assert accepted(upstream) == {event("late"): 1}
        await member.until(lambda shown: not shown.warnings)


async def test_a_missing_topic_is_an_error_where_that_is_asked_for(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """With `missing_topics: fail` nothing of the cluster is read, also not of topics that are
    there, and the log and `/status` say why; what else the daemon does continues.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    missing = unique("missing")
    await stream.write([event("there")])
    async with group(tmp_path, stream, topics=[stream.topic, missing], missing_topics="fail") as (
        members,
        upstream,
    ):
        member = await members.start("one", program=HURRIED)
        said = await member.logged("kafka: nothing is read")
        assert missing in said["why"]
        assert said["level"] == "error"
        await member.until(lambda shown: any(missing in warning for warning in shown.warnings))
        assert await member.ready() == 200
        assert await stream.members() == []
        assert await member.stop() == 0
        assert accepted(upstream) == {}


async def test_new_topics_and_partitions_are_found(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """A topic that a pattern matches and that appears later is read from its beginning, and so is
    a partition that is added.
    """
    name = await topic(1)
    stream = GroupTopic(kafka.bootstrap, name)
    later = GroupTopic(kafka.bootstrap, f"{name}-later")
    async with group(tmp_path, stream, topics=[], topics_pattern=f"{name}(-later)?") as (
        members,
        upstream,
    ):
        member = await members.start("one", program=HURRIED)
        await stream.joined(1)
        await create_topic(kafka.bootstrap, later.topic, 2)
        await add_partitions(kafka.bootstrap, name, 3)
        await later.write([event("later")])
        await stream.write([Record(event("added"), partition=2)])
        await upstream.until(lambda: len(accepted(upstream)) == 2, limit=60)
        await stream.settled()
        assert accepted(upstream) == {event("later"): 1, event("added"): 1}
        assert await member.stop() == 0


async def test_whatever_a_topic_holds_is_delivered_once(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """All codecs, committed transactions and not the aborted ones, tombstones: nothing is left
    behind, and no lag remains.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    async with group(tmp_path, stream) as (members, upstream):
        expected = []
        for codec in CODECS:
            raw = events(50, f"{codec}-")
            await stream.write(raw, codec)
            expected += raw
        expected += await transactions(stream)
        await stream.write([Record(None, b"gone")] * 3)
        member = await members.start("one")
        await stream.settled()
        assert accepted(upstream) == dict.fromkeys(expected, 1)
        await transactions(stream, "again", end="abort")
        await stream.settled()
        await member.reaches("forwarder_kafka_lag", 0)
        assert await member.metric("forwarder_kafka_records_total", outcome="tombstone") == 3
        assert await member.metric("forwarder_events_received_total", source="kafka") == len(
            expected
        )
        assert await member.stop() == 0
    assert len(accepted(upstream)) == len(expected)


async def transactions(stream: GroupTopic, name: str = "t", *, end: str = "commit") -> list[bytes]:
    """Write a transaction that is aborted, one that is committed, unless `end` says otherwise; the
    events of the committed one.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=stream.bootstrap, transactional_id=f"{stream.topic}-{name}"
    )
    await producer.start()
    try:
        for outcome in ("abort", end):
            await producer.begin_transaction()
            for raw in events(20, f"{name}-{outcome}-"):
                await producer.send_and_wait(stream.topic, raw)
            await (
                producer.abort_transaction()
                if outcome == "abort"
                else producer.commit_transaction()
            )
    finally:
        await producer.stop()
    return events(20, f"{name}-{end}-")


async def test_uncommitted_transactions_are_read_where_that_is_asked_for(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """With `isolation_level: read_uncommitted` the records of an aborted transaction
    arrive, too.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    async with group(tmp_path, stream, isolation_level="read_uncommitted") as (members, upstream):
        committed = await transactions(stream)
        await members.start("one")
        await stream.settled()
        assert accepted(upstream) == dict.fromkeys([*committed, *events(20, "t-abort-")], 1)


async def test_two_workers_share_the_partitions(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Each worker is a member of the group; all arrives once, one address shows their sum, SIGTERM
    drains both.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(4))
    raw = events(400)
    async with group(tmp_path, stream) as (members, upstream):
        member = await members.start("one", workers=2)
        await stream.joined(2)
        await stream.write(raw)
        await stream.settled()
        shown = await member.until(lambda shown: total(shown, "delivered") == len(raw))
        assert all(worker.received for worker in shown.workers)
        assert await member.metric("forwarder_kafka_assigned_partitions") == 4
        assert await member.stop() == 0
        assert accepted(upstream) == dict.fromkeys(raw, 1)


async def test_a_static_member_comes_back_without_a_rebalance(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """With `group_instance_id` a member that ends and comes back within its session has its
    partitions again, and no one else notices.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(4))
    async with group(tmp_path, stream, session_timeout="20s") as (members, upstream):
        one = await members.start("one", kafka={"group_instance_id": "one"})
        two = await members.start("two", kafka={"group_instance_id": "two"})
        await stream.joined(2)
        await two.reaches("forwarder_kafka_assigned_partitions", 2)
        rebalances = await two.metric("forwarder_kafka_rebalances_total")
        assert await one.stop() == 0
        one = await members.start("one", kafka={"group_instance_id": "one"})
        await one.reaches("forwarder_kafka_assigned_partitions", 2)
        await stream.write(events(100))
        await stream.settled()
        assert await two.metric("forwarder_kafka_rebalances_total") == rebalances
        assert accepted(upstream) == dict.fromkeys(events(100), 1)


@pytest.mark.parametrize("bad", ["no.such.host.invalid:9092", "127.0.0.1:1"])
async def test_a_wrong_address_is_reported(tmp_path: Path, bad: str) -> None:
    """A cluster that no one finds at its address is a warning that names the address; the daemon
    takes HTTP meanwhile, and ends with 0.
    """
    async with group(tmp_path, GroupTopic(bad, "nothing")) as (members, _):
        member = await members.start("one")
        await member.until(lambda shown: any(bad in warning for warning in shown.warnings))
        assert await member.ready() == 200
        assert await member.stop() == 0
        assert not [line for line in member.said() if "Traceback" in str(line)]


async def test_a_file_of_settings_is_checked_without_a_broker(tmp_path: Path) -> None:
    """`forwarder config check` says nothing against what these tests configure, but for its hint
    at keys that aren't listed.
    """
    async with group(tmp_path, GroupTopic("127.0.0.1:1", "nothing")) as (members, _):
        member = await members.start("one")
        done = await invoked(
            "config", "check", "--elsewhere", "--config", str(member.home / "forwarder.yaml")
        )
        assert done.code == 0
        assert [line.partition(" ")[0] for line in done.err.splitlines()] == ["hint:"]
