"""A real Kafka for tests, what they put into it, and what they read of it.

Fixtures, registered in tests/conftest.py: `kafka`, one broker for each process that runs tests, or
the one at KAFKA_BOOTSTRAP_SERVERS; and `topic`, which makes topics. A test that uses them is
marked `slow`. Its groups and topics have names of their own (`unique`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError, for_code
from aiokafka.partitioner import DefaultPartitioner

from forwarder.demo.broker import Broker
from tests.support.waiting import tick

LIMIT: Final = 90.0
"""Seconds that anything asked of the broker may take."""

EXTERNAL: Final = "KAFKA_BOOTSTRAP_SERVERS"
BATCH_BYTES: Final = 512 * 1024

_numbers: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Kafka:
    """The broker under test."""

    bootstrap: str
    own: Broker | None

    @property
    def broker(self) -> Broker:
        """To stop, kill and restart it; its methods block, so `await
        in_thread(kafka.broker.restart)`. Skips the test where the broker isn't ours. A test that
        stops it starts it again, whatever happens.
        """
        return self.own or pytest.skip(f"the broker at {EXTERNAL} isn't ours to stop")


@dataclass(frozen=True, slots=True)
class Record:
    """What a test produces. Without a `partition` the key chooses, as with every Kafka client;
    `timestamp` is in milliseconds.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    partition: int | None = None
    timestamp: int | None = None


class MakeTopic(Protocol):
    """Makes a topic of its own for the test: `await topic(8)`."""

    async def __call__(self, partitions: int = 1, name: str = "events", **configs: str) -> str:
        """Its full name. `configs` are Kafka's for topics, with _ for the dot."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One broker for this process."""
    external = os.environ.get(EXTERNAL)
    if external:
        yield Kafka(external, None)
        return
    with Broker() as broker:
        yield Kafka(broker.bootstrap, broker)


@pytest_asyncio.fixture
async def topic(kafka: Kafka) -> AsyncIterator[MakeTopic]:
    """Makes topics; they are deleted at the end, if the broker runs then."""
    made: list[str] = []

    async def make(partitions: int = 1, name: str = "events", **configs: str) -> str:
        made.append(unique(name))
        await create_topic(kafka.bootstrap, made[-1], partitions, **configs)
        return made[-1]

    yield make
    if made and (kafka.own is None or kafka.own.running):
        async with admin(kafka.bootstrap) as client:
            await client.delete_topics(made)


def unique(name: str) -> str:
    """A name that no other test has used."""
    return f"{name}-{os.getpid()}-{time.time_ns() // 1_000_000}-{next(_numbers)}"


@asynccontextmanager
async def admin(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client for what an operator does."""
    client = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap, request_timeout_ms=int(LIMIT * 1000), **options
    )
    async with asyncio.timeout(LIMIT):
        await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic of exactly this name."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    async with admin(bootstrap) as client:
        _check(
            await client.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)]),
            "topic_errors",
        )


async def add_partitions(bootstrap: str, name: str, total: int) -> None:
    """Let a topic have `total` partitions."""
    async with admin(bootstrap) as client:
        _check(await client.create_partitions({name: NewPartitions(total)}), "topic_errors")


async def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Record | bytes],
    compression: str | None = None,
    **options: Any,
) -> list[tuple[int, int]]:
    """Append records, acknowledged by the broker, in order within a partition; the (partition,
    offset) of each. A hundred thousand a second. `compression`: gzip, snappy, lz4 or zstd.
    `options` are aiokafka's.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        max_batch_size=BATCH_BYTES,
        compression_type=compression,
        **options,
    )
    async with asyncio.timeout(LIMIT):
        await producer.start()
    try:
        partitions = sorted(await producer.partitions_for(topic))
        return await _append(
            producer,
            topic,
            partitions,
            [record if isinstance(record, Record) else Record(record) for record in records],
        )
    finally:
        await producer.stop()


async def _append(
    producer: AIOKafkaProducer, topic: str, partitions: list[int], records: list[Record]
) -> list[tuple[int, int]]:
    """Fill a batch for each partition, send it when it is full, and take another."""
    choose = DefaultPartitioner()
    open_batches: dict[int, tuple[Any, list[int]]] = {}
    sent: list[tuple[int, asyncio.Future[Any], list[int]]] = []

    async def close(partition: int) -> None:
        batch, places = open_batches.pop(partition)
        sent.append(
            (partition, await producer.send_batch(batch, topic, partition=partition), places)
        )

    for place, record in enumerate(records):
        partition = (
            choose(record.key, partitions, partitions)
            if record.partition is None
            else record.partition
        )
        for _ in range(2):
            if partition not in open_batches:
                open_batches[partition] = (producer.create_batch(), [])
            batch, places = open_batches[partition]
            headers = list(record.headers)
            if (
                batch.append(
                    timestamp=record.timestamp, key=record.key, value=record.value, headers=headers
                )
                is not None
            ):
                places.append(place)
                break
            await close(partition)
        else:
            raise AssertionError("a record is larger than a batch")
    for partition in list(open_batches):
        await close(partition)
    return await _places(sent, len(records))


async def _places(
    sent: list[tuple[int, asyncio.Future[Any], list[int]]], count: int
) -> list[tuple[int, int]]:
    positions = [(-1, -1)] * count
    for partition, future, places in sent:
        base = (await future).offset
        for index, place in enumerate(places):
            positions[place] = (partition, base + index)
    return positions


async def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The offset that a group has committed for each partition of a topic; those
    without one are missing.
    """
    async with admin(bootstrap) as client:
        offsets = await _answered(lambda: client.list_consumer_group_offsets(group))
    return {
        place.partition: entry.offset
        for place, entry in offsets.items()
        if place.topic == topic and entry.offset >= 0
    }


async def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The offset that the next record of each partition will have."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    async with asyncio.timeout(LIMIT):
        await consumer.start()
    try:
        async with admin(bootstrap) as client:
            described = await client.describe_topics([topic])
        places = [
            TopicPartition(topic, partition["partition"])
            for partition in described[0]["partitions"]
        ]
        return {
            place.partition: offset
            for place, offset in (await consumer.end_offsets(places)).items()
        }
    finally:
        await consumer.stop()


async def members(bootstrap: str, group: str) -> dict[str, str]:
    """The members of a group as the broker sees them: member id → client id."""
    async with admin(bootstrap) as client:
        answers = await _answered(lambda: client.describe_consumer_groups([group]))
    return {
        member[0]: member[1]
        for answer in answers
        for described in answer.groups
        for member in described[5]
    }


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the broker can say: the topic that keeps offsets is made when it is
    needed first.
    """
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not error.retriable:
                    raise
            await tick()


def _check(answer: Any, errors: str) -> None:
    for name, code, *words in getattr(answer, errors):
        if code:
            raise for_code(code)(f"{name}: {words}")
