"""The Kafka demo: a real broker, a real sandbox and a real pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from forwarder.demo import kafka as demo_kafka
from forwarder.demo.demo import choose_ports
from forwarder.demo.kafka import KafkaDemo, open_kafka_demo
from forwarder.demo.records import EVENTS_TOPIC, PAYMENTS_TOPIC
from tests.support.kafka import Kafka, admin, produce
from tests.support.waiting import tick

pytestmark = pytest.mark.slow


@pytest.fixture
async def demo(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KafkaDemo]:
    """A demo on the broker that other tests have, without its topics afterwards."""

    @asynccontextmanager
    async def shared() -> AsyncIterator[str]:
        try:
            yield kafka.bootstrap
        finally:
            async with admin(kafka.bootstrap) as client:
                await client.delete_topics([EVENTS_TOPIC, PAYMENTS_TOPIC])

    monkeypatch.setattr(demo_kafka, "open_broker", shared)
    async with open_kafka_demo(choose_ports(0)) as opened:
        yield opened


async def test_everything_arrives(demo: KafkaDemo) -> None:
    """What was produced is in the sandbox, event by event; what can't be read is a dead letter; the books balance."""
    await demo.traffic(5)
    assert await demo.settle()
    found = await demo.verdict()
    assert found.good
    assert found.sent == found.stored > 20
    assert (found.unreadable, found.dead) == (1, 1)


async def test_what_nobody_produced_is_noticed(demo: KafkaDemo, kafka: Kafka) -> None:
    """An event of somebody else's makes the verdict bad, and so does another one that can't be read."""
    await produce(kafka.bootstrap, EVENTS_TOPIC, [b'{"event": "x", "distinct_id": "y"}', b"{"])
    await demo.traffic(1)
    async with asyncio.timeout(20):  # each partition is read in its own time: what was refused first says nothing of the others
        while not (found := await demo.verdict()).dead or found.stored <= found.sent:
            await tick()
    assert not found.good
    assert found.stored == found.sent + 1


async def test_endless_traffic_stops_when_told(demo: KafkaDemo) -> None:
    """`stop_traffic` ends the story; what was produced by then is delivered."""
    task = asyncio.create_task(demo.traffic(None, pause=0.001))
    async with asyncio.timeout(10):
        while not demo.sent:
            await asyncio.wait({task}, timeout=0.01)
    demo.stop_traffic()
    await task
    assert await demo.settle()
    assert (await demo.verdict()).missing == 0
