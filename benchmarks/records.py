"""Kafka records as producers make them: about 500 bytes, one event each, keyed by its distinct_id.

They are made beforehand and sent in batches as a producer under load fills them; neither is part
of what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import cycle, islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.bodies import API_KEY
from benchmarks.events import EventMaker

RECORDS: Final = 600_000
"""In each topic."""
DIFFERENT: Final = 50_000
"""Of them, so many are made; then they come again, as the bodies of the other cases do."""
PARTITIONS: Final = 8
BATCH_BYTES: Final = 64 * 1024
UNDER_WAY: Final = 64
"""Batches that the producer may have under way."""
LEFT_OUT: Final = frozenset({"city", "experiment", "session", "$screen_width"})
"""Properties that make way for the project key."""


class Content(StrEnum):
    """What a record brings along."""

    STAMPED = "stamped"
    """uuid, timestamp and the project key: nothing is left to add."""
    KEYLESS = "keyless"
    """uuid and timestamp; the project key is in the configuration."""
    BARE = "bare"
    """The project key; neither uuid nor timestamp."""


def record(maker: EventMaker, content: Content) -> tuple[bytes, bytes]:
    """The next record: key and value."""
    event: dict[str, Any] = maker.event()
    event["properties"] = {
        name: value for name, value in event["properties"].items() if name not in LEFT_OUT
    }
    if content is Content.BARE:
        del event["uuid"], event["timestamp"]
    if content is not Content.KEYLESS:
        event = {"api_key": API_KEY, **event}
    return event["distinct_id"].encode(), json.dumps(
        event, ensure_ascii=False, separators=(",", ":")
    ).encode()


def fill(bootstrap: str, topic: str, content: Content, codec: str, count: int = RECORDS) -> None:
    """Make the topic and fill it with `count` records, compressed with `codec` (`none`: not).
    Blocks for some seconds.
    """
    asyncio.run(_fill(bootstrap, topic, content, codec, count))


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Make an empty topic. Blocks."""
    asyncio.run(_make(bootstrap, topic, partitions))


def forget(bootstrap: str, topics: list[str]) -> None:
    """Delete topics. Blocks."""
    asyncio.run(_forget(bootstrap, topics))


@contextlib.asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def _forget(bootstrap: str, topics: list[str]) -> None:
    async with _admin(bootstrap) as admin:
        await admin.delete_topics(topics)


async def _make(bootstrap: str, topic: str, partitions: int) -> None:
    async with _admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1)])


async def _fill(bootstrap: str, topic: str, content: Content, codec: str, count: int) -> None:
    await _make(bootstrap, topic, PARTITIONS)
    compression = None if codec == "none" else codec
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, max_batch_size=BATCH_BYTES, compression_type=compression
    )
    await producer.start()
    try:
        await _produce(producer, topic, _stream(content, count))
    finally:
        await producer.stop()


async def _produce(
    producer: AIOKafkaProducer, topic: str, records: Iterator[tuple[bytes, bytes]]
) -> None:
    batches = [producer.create_batch() for _ in range(PARTITIONS)]
    under_way: set[asyncio.Future[Any]] = set()

    async def send(partition: int) -> None:
        under_way.add(await producer.send_batch(batches[partition], topic, partition=partition))
        batches[partition] = producer.create_batch()
        if len(under_way) >= UNDER_WAY:
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            under_way.difference_update(done)

    for key, value in records:
        partition = zlib.crc32(key) % PARTITIONS
        now = time.time_ns() // 1_000_000
        if batches[partition].append(key=key, value=value, timestamp=now) is None:
            await send(partition)
            batches[partition].append(key=key, value=value, timestamp=now)
    for partition in range(PARTITIONS):
        with contextlib.suppress(ValueError):
            await send(partition)
    await asyncio.gather(*under_way)


def _stream(content: Content, count: int) -> Iterator[tuple[bytes, bytes]]:
    maker = EventMaker(seed=7, beginning=datetime.now(UTC))
    return islice(cycle([record(maker, content) for _ in range(min(count, DIFFERENT))]), count)
