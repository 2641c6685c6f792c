"""The Kafka demo: its records, and the demo with a real broker, a real sandbox and a
real pipeline.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import pytest

from forwarder.demo import kafka as demo_kafka
from forwarder.demo.demo import choose_ports
from forwarder.demo.kafka import (
    EVENTS_TOPIC,
    PAYMENTS_TOPIC,
    KafkaDemo,
    SampleRecord,
    open_kafka_demo,
    records,
)
from tests.support.kafka import Kafka, admin, produce
from tests.support.waiting import tick


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


@pytest.mark.slow
async def test_everything_arrives(demo: KafkaDemo) -> None:
    """What was produced is in the sandbox, event by event; what can't be read is a dead letter;
    the books balance.
    """
    await demo.traffic(5)
    assert await demo.settle()
    verdict = await demo.verdict()
    assert verdict.good
    assert verdict.sent == verdict.stored > 20
    assert (verdict.unreadable, verdict.dead) == (1, 1)


@pytest.mark.slow
async def test_records_of_other_producers_are_counted_separately(
    demo: KafkaDemo, kafka: Kafka
) -> None:
    """An event of someone else's, and one that can't be read, are no failure of the demo."""
    await produce(
        kafka.bootstrap,
        EVENTS_TOPIC,
        [b'{"event": "x", "distinct_id": "y", "properties": {"record": [1]}}', b"{"],
    )
    await demo.traffic(1)
    assert await demo.settle()
    # each partition is read in its own time: what was refused first says nothing of the others
    async with asyncio.timeout(60):
        while not (verdict := await demo.verdict()).dead or not verdict.extra or verdict.missing:
            await tick()
    assert (verdict.good, verdict.stored - verdict.sent, verdict.extra, verdict.extra_dead) == (
        True,
        0,
        1,
        1,
    )


@pytest.mark.slow
async def test_endless_traffic_can_be_stopped(demo: KafkaDemo) -> None:
    """`stop_traffic` ends the story; what was produced by then is delivered."""
    task = asyncio.create_task(demo.traffic(None, pause=0.001))
    async with asyncio.timeout(60):
        while not demo.sent:
            await asyncio.wait({task}, timeout=0.01)
    demo.stop_traffic()
    await task
    assert await demo.settle()
    assert (await demo.verdict()).missing == 0


def story_of(visitors: int) -> list[SampleRecord]:
    """The story of so many visitors."""
    return list(records(visitors))


def test_it_holds_what_topics_hold() -> None:
    """Events with and without uuid and timestamp, a tombstone, a record that can't be read, and
    JSON of someone else's.
    """
    story = story_of(60)
    events = [
        json.loads(record.value)
        for record in story
        if record.topic == EVENTS_TOPIC and record.value is not None and not record.broken
    ]
    stamped = [event for event in events if "uuid" in event]
    assert len(stamped) > 50
    assert len(events) - len(stamped) > 50
    assert {("uuid" in event) == ("timestamp" in event) for event in events} == {True}
    assert [record.number for record in story if record.value is None or record.broken] == [
        None,
        None,
    ]
    payments = [
        json.loads(record.value or b"") for record in story if record.topic == PAYMENTS_TOPIC
    ]
    assert {payment["state"] for payment in payments} == {"done", "pending"}
    assert not any("event" in payment for payment in payments)


def test_every_event_has_a_number_of_its_own() -> None:
    """It is in the event's properties, or in the payment, and nothing else has one."""
    numbered = {
        record.number: json.loads(record.value or b"")
        for record in story_of(20)
        if record.number is not None
    }
    assert list(numbered) == list(range(len(numbered)))
    assert all(
        value.get("number", value.get("properties", {}).get("record")) == number
        for number, value in numbered.items()
    )


def test_a_persons_records_have_one_key() -> None:
    """The key is the distinct_id: a person's events come from one partition."""
    for record in story_of(10):
        if record.topic == EVENTS_TOPIC and record.number is not None:
            assert json.loads(record.value or b"")["distinct_id"] == record.key


def test_it_has_no_end() -> None:
    """The live form continues for as long as it is listened to."""
    assert len(list(islice(records(None), 5000))) == 5000
