"""A Kafka cluster without Kafka: a client that does what a test says
(`forwarder.sources.kafka.client.Client`), on the test's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from aiokafka import TopicPartition

from forwarder.core.clock import Clock, wait_for_event
from forwarder.sources.kafka.batches import KafkaRecord, PartitionKey
from forwarder.sources.kafka.client import RebalanceListener
from forwarder.sources.kafka.diagnosis import Trouble
from forwarder.sources.kafka.policy import KafkaPolicy
from tests.support.record_intakes import records


class ScriptedClient:
    """One client. What the brokers have is the cluster's; this one has its assignment, its pauses,
    and how far it has come.
    """

    def __init__(
        self, cluster: ScriptedCluster, listener: RebalanceListener, policy: KafkaPolicy
    ) -> None:
        self.cluster = cluster
        self.listener = listener
        self.policy = policy
        self.done: list[str] = []
        self.assigned: frozenset[PartitionKey] = frozenset()
        self.positions: dict[PartitionKey, int] = {}
        self.stopped: set[PartitionKey] = set()
        self.topics_followed: frozenset[str] = frozenset()
        self.errors: list[BaseException] = []
        """What the next calls of `getmany` raise."""
        self.dead: Exception | None = None
        """What has ended one of its tasks."""
        self._came = asyncio.Event()

    async def start(self) -> None:
        """Connect, if the cluster is there."""
        self.done.append("start")
        await self.cluster.answer()

    async def stop(self) -> None:
        """Leave."""
        await self.cluster.answer()
        self.done.append("stop")

    async def cut(self) -> None:
        """Close at once."""
        self.done.append("cut")

    async def topics(self) -> set[str]:
        """What the cluster has."""
        await self.cluster.answer()
        return set(self.cluster.topics)

    def follow_topics(self, topics: Collection[str]) -> None:
        """Note it; the test calls `rebalance`."""
        self.topics_followed = frozenset(topics)
        self.done.append("follow")

    async def rebalance(self, *keys: PartitionKey) -> None:
        """Take away all partitions, and assign these, from what is committed on."""
        await self.listener.on_revoked()
        self.assigned = frozenset(TopicPartition(*key) for key in keys)
        self.stopped = set()
        self.positions = {
            key: self.cluster.committed[key]
            for key in self.assigned
            if key in self.cluster.committed
        }
        await self.listener.on_assigned(self.assigned)
        self._came.set()

    async def getmany(
        self, *, timeout_ms: int, max_records: int
    ) -> Mapping[PartitionKey, Sequence[KafkaRecord]]:
        """What is there of partitions that aren't paused, or nothing after a while."""
        if self.errors:
            raise self.errors.pop(0)
        for _ in range(2):
            came = {
                key: fetched for key in self.assigned if (fetched := self._take(key, max_records))
            }
            if came:
                return came
            self._came.clear()
            await wait_for_event(self._came, timeout_ms / 1000, self.cluster.clock)
            if self.errors:
                raise self.errors.pop(0)
        return {}

    def _take(self, key: PartitionKey, most: int) -> list[KafkaRecord]:
        if key in self.stopped or key not in self.positions:
            return []
        begin = self.positions[key]
        end = min(begin + most, self.cluster.ends.get(key, 0))
        self.positions[key] = max(begin, end)
        return list(records(range(begin, end)))

    def wake(self) -> None:
        """Something has come."""
        self._came.set()

    async def commit(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Keep them."""
        await self.cluster.answer()
        if self.cluster.refuses_commits is not None:
            raise self.cluster.refuses_commits
        assert set(offsets) <= self.assigned
        self.cluster.committed.update(offsets)
        self.done.append(f"commit {sorted(offsets.values())}")

    def pause(self, *keys: PartitionKey) -> None:
        """Note it."""
        assert set(keys) <= self.assigned
        self.stopped |= set(keys)

    def resume(self, *keys: PartitionKey) -> None:
        """Note it."""
        assert set(keys) <= self.stopped
        self.stopped -= set(keys)
        self._came.set()

    def paused(self) -> set[PartitionKey]:
        """Those."""
        return set(self.stopped)

    def assignment(self) -> Collection[PartitionKey]:
        """Those."""
        return self.assigned

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Continue there."""
        self.done.append(f"seek {offset}")
        self.positions[key] = offset
        self._came.set()

    def reached(self, key: PartitionKey) -> int | None:
        """How far it has come."""
        return self.positions.get(key)

    def highwater(self, key: PartitionKey) -> int | None:
        """Nothing is known but by asking."""

    async def committed_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """What the cluster has."""
        await self.cluster.answer()
        return {key: self.cluster.committed[key] for key in keys if key in self.cluster.committed}

    async def beginning_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Where they begin."""
        await self.cluster.answer()
        return {key: self.cluster.begins.get(key, 0) for key in keys}

    async def end_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Where they end."""
        await self.cluster.answer()
        return {key: self.cluster.ends.get(key, 0) for key in keys}

    def check(self) -> None:
        """Raise what the test says."""
        if self.dead is not None:
            raise self.dead


class ScriptedCluster:
    """The brokers (`forwarder.sources.kafka.client.Brokers`): what they keep,
    and whether they answer.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.topics = ["events"]
        self.begins: dict[PartitionKey, int] = {}
        self.ends: dict[PartitionKey, int] = {}
        self.committed: dict[PartitionKey, int] = {}
        self.failure: BaseException | None = None
        """Why they don't answer."""
        self.clients: list[ScriptedClient] = []
        self.search_fails: Exception | None = None
        """What the search for a cause ends in."""
        self.refuses_commits: Exception | None = None
        """Why no commit is taken."""
        self._answers = asyncio.Event()
        self._answers.set()
        self.refusal: Exception | None = None
        """Why no client can be made."""

    @property
    def client(self) -> ScriptedClient:
        """The one that was made last."""
        return self.clients[-1]

    def connect(self, policy: KafkaPolicy, listener: RebalanceListener) -> ScriptedClient:
        if self.refusal is not None:
            raise self.refusal
        self.clients.append(ScriptedClient(self, listener, policy))
        return self.client

    async def diagnose(self, policy: KafkaPolicy, error: Exception) -> Trouble:
        if self.search_fails is not None:
            raise self.search_fails
        return Trouble("bootstrap_servers", str(error), "Look there.")

    async def answer(self) -> None:
        """Answer, as soon as answers aren't held, or fail."""
        await self._answers.wait()
        if self.failure is not None:
            raise self.failure

    def hold_answers(self) -> asyncio.Event:
        """Answer nothing until the event is set."""
        self._answers.clear()
        return self._answers

    def produce(self, key: PartitionKey, count: int) -> None:
        """So many more records are there."""
        self.ends[key] = self.ends.get(key, 0) + count
        for client in self.clients:
            client.wake()
