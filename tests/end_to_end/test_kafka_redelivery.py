"""What was delivered and not committed comes again after a kill -9, and then it is the same: the
service can tell that it has it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import msgspec
from aiokafka.errors import KafkaError

from tests.support.kafka import Kafka, MakeTopic, Record, admin, create_topic
from tests.support.members import Members
from tests.support.streams import GroupTopic
from tests.support.upstream import Upstream
from tests.support.waiting import LIMIT, pause
from tests.support.whole import KEY, accepted


def bare(name: str, more: bytes = b"") -> bytes:
    """An event without a uuid and a timestamp that are any good."""
    return b'{%b"event":"%b","distinct_id":"ann","properties":{"e":1.50, "u":"\\u00e9"}}' % (
        more,
        name.encode(),
    )


RECORDS = [
    *[Record(bare(f"one-{number}"), b"k") for number in range(40)],
    Record(b"[%b, %b]" % (bare("array-0"), bare("array-1"))),
    Record(
        b'{"api_key":"phc_itsownkey1234567","batch":[%b,%b]}' % (bare("batch-0"), bare("batch-1"))
    ),
    Record(
        b'{"sent_at":"2026-01-01T00:00:00Z","batch":[%b]}'
        % bare("sent", b'"timestamp":"2025-12-31T00:00:00Z",')
    ),
    Record(bare("offset", b'"offset":90000,')),
    Record(bare("bad", b'"uuid":"no uuid","timestamp":null,')),
    Record(gzip.compress(bare("packed"))),
    Record(b'{"event":"key","properties":{}}', b"who it was"),
]
EVENTS = 40 + 2 + 2 + 5


async def test_copies_are_the_same_bytes(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> None:
    """Records of all shapes without uuid and timestamp, delivered, not committed, delivered again
    by another process: twice the same.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(3))
    settings = {
        **stream.settings,
        "api_key": KEY,
        "key_is_distinct_id": True,
        "commit_interval": "1h",
        "session_timeout": "1s",
    }
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        places = await stream.write(RECORDS)
        first = await members.start("one")
        await upstream.until(lambda: len(accepted(upstream)) == EVENTS)
        assert await stream.committed() == {}
        await first.kill()
        second = await members.start("two")
        await upstream.until(lambda: sum(accepted(upstream).values()) == 2 * EVENTS)
        assert set(accepted(upstream).values()) == {2}
        assert await second.stop() == 0
        await stream.settled()
        assert sum(accepted(upstream).values()) == 2 * EVENTS
    delivered_events = [msgspec.json.decode(raw) for raw in accepted(upstream)]
    assert len({event["uuid"] for event in delivered_events}) == EVENTS
    assert all(event["timestamp"] for event in delivered_events)
    assert {event["distinct_id"] for event in delivered_events} == {"ann", "who it was"}
    assert len(places) == len(RECORDS)
    assert json.loads(next(raw for raw in accepted(upstream) if b"one-0" in raw))["properties"] == {
        "e": 1.5,
        "u": "é",
    }
    assert (
        sum(b'"properties":{"e":1.50, "u":"\\u00e9"}' in raw for raw in accepted(upstream))
        == EVENTS - 1
    )


async def test_a_topic_that_is_created_again_has_other_uuids(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Its offsets begin again, and its events are others: the service must not take them for those
    that it has. What is delivered again of either is the same.
    """
    stream = GroupTopic(kafka.bootstrap, await topic())
    settings = {**stream.settings, "api_key": KEY}
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        for life in ("one", "two"):
            if life == "two":
                async with admin(kafka.bootstrap) as client:
                    await client.delete_topics([stream.topic])
                await eventually_created(kafka, stream.topic)
            await stream.write([bare(f"{life}-{number}") for number in range(10)])
            member = await members.start(life)
            expected = 10 if life == "one" else 20
            await upstream.until(lambda: len(accepted(upstream)) == expected)  # noqa: B023
            assert await member.stop() == 0
    delivered_events = [msgspec.json.decode(raw) for raw in accepted(upstream)]
    assert len({event["event"] for event in delivered_events}) == 20
    assert len({event["uuid"] for event in delivered_events}) == 20


async def eventually_created(kafka: Kafka, topic: str) -> None:
    """Create a topic once its namesake is gone."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await create_topic(kafka.bootstrap, topic)
            except KafkaError:
                await pause(0.05)
            else:
                return
