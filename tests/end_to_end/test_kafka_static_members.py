"""Replacing the pods of a StatefulSet: static members of a group are stopped or killed, one after
the other, and come back by name.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.kafka import Kafka, MakeTopic, Record
from tests.support.members import Members, RunningMember, Section
from tests.support.streams import GroupTopic
from tests.support.upstream import Upstream
from tests.support.waiting import pause
from tests.support.whole import KEY, accepted

NAMES = ("forwarder-kafka-0", "forwarder-kafka-1")
PARTITIONS = 4
SESSION = "20s"
"""Longer than a member is away."""
BURST = 40
AFTER = 400
"""Records that are written once all are back."""


def record(number: int) -> Record:
    """An event without uuid and timestamp: both are derived from where the record is."""
    name = f"e{number}"
    return Record(
        json.dumps({"event": name, "distinct_id": f"id-{number % 50}"}).encode(),
        partition=number % PARTITIONS,
    )


class RecordWriter:
    """Writes records without a pause, until the block ends."""

    def __init__(self, stream: GroupTopic) -> None:
        self._stream = stream
        self.written = 0

    async def write(self, count: int) -> None:
        """Append so many."""
        await self._stream.write([record(self.written + number) for number in range(count)])
        self.written += count

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Write all the time."""
        ends = asyncio.Event()

        async def always() -> None:
            while not ends.is_set():
                await self.write(BURST)
                await pause(0.05)

        task = asyncio.create_task(always())
        try:
            yield
        finally:
            ends.set()  # not cancelled: the producer closes its connections
            await task


def names_of(upstream: Upstream) -> Counter[str]:
    """How often each event arrived, by its name."""
    counts: Counter[str] = Counter()
    for raw, count in accepted(upstream).items():
        counts[json.loads(raw)["event"]] += count
    return counts


@asynccontextmanager
async def pods(
    kafka: Kafka, topic: MakeTopic, path: Path, session: str = SESSION
) -> AsyncIterator[tuple[GroupTopic, Upstream, Members, list[RunningMember]]]:
    """Two forwarders with the names of pods, each with half of the partitions."""
    stream = GroupTopic(kafka.bootstrap, await topic(PARTITIONS))
    settings: Section = {**stream.settings, "api_key": KEY, "session_timeout": session}
    async with (
        Upstream() as upstream,
        Members(path, settings, upstream={"url": upstream.url}) as members,
    ):
        started = [await members.start(name, kafka={"group_instance_id": name}) for name in NAMES]
        for member in started:
            await member.reaches("forwarder_kafka_assigned_partitions", PARTITIONS // len(NAMES))
        yield stream, upstream, members, started


async def stopped(member: RunningMember) -> None:
    """As Kubernetes ends a pod."""
    assert await member.stop() == 0


async def killed(member: RunningMember) -> None:
    """As a node ends one."""
    await member.kill()


@pytest.mark.parametrize("end", [stopped, pytest.param(killed, marks=pytest.mark.long)])
async def test_replacing_static_members_one_by_one(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path, end: Callable[[RunningMember], Awaitable[None]]
) -> None:
    """Under load, each of two is ended and started again by its name: the other keeps its
    partitions and sees no rebalance, nothing is lost, an orderly stop repeats nothing, and what a
    kill repeats is the same event, byte for byte.
    """
    async with pods(kafka, topic, tmp_path) as (stream, upstream, members, running):
        writer = RecordWriter(stream)
        async with writer.busy():
            await upstream.until(lambda: len(accepted(upstream)) > BURST)
            for number, name in enumerate(NAMES):
                other = running[1 - number]
                rebalances = await other.metric("forwarder_kafka_rebalances_total")
                group = await stream.joined(len(NAMES))
                await end(running[number])
                assert len(await stream.joined(len(NAMES))) == len(group)  # its place is kept
                running[number] = await members.start(name, kafka={"group_instance_id": name})
                await running[number].reaches(
                    "forwarder_kafka_assigned_partitions", PARTITIONS // len(NAMES)
                )
                assert await other.metric("forwarder_kafka_rebalances_total") == rebalances
                assert await other.metric(
                    "forwarder_kafka_assigned_partitions"
                ) == PARTITIONS // len(NAMES)
                assert await running[number].metric("forwarder_kafka_rebalances_total") == 1
        await writer.write(AFTER)
        await stream.settled()
        arrived = names_of(upstream)
        assert set(arrived) == {f"e{number}" for number in range(writer.written)}
        uuids = {json.loads(raw)["uuid"] for raw in accepted(upstream)}
        # whatever came again was the same bytes
        assert len(accepted(upstream)) == len(uuids) == writer.written
        if end is stopped:
            assert set(arrived.values()) == {1}
        for member in running:
            assert await member.stop() == 0


async def test_records_of_a_removed_member_are_read_after_its_session(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """As at a scale-in: it delivers, commits, and doesn't come back. After the session the other
    has its partitions, and nothing is repeated.
    """
    async with pods(kafka, topic, tmp_path, session="3s") as (stream, upstream, _, running):
        writer = RecordWriter(stream)
        await writer.write(BURST)
        await stream.settled()
        assert await running[1].stop() == 0
        await writer.write(BURST)
        await running[0].reaches("forwarder_kafka_assigned_partitions", PARTITIONS)
        await stream.settled()
        assert names_of(upstream) == {f"e{number}": 1 for number in range(2 * BURST)}
        assert await running[0].stop() == 0
