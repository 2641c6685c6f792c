"""What is done to the library's consumer, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError

from forwarder.sources.kafka.client import RealBrokers
from forwarder.sources.kafka.partitions import Key
from forwarder.sources.kafka.policy import KafkaPolicy

ZERO = TopicPartition("events", 0)


class Nobody:
    """A listener that is told nothing."""

    async def on_revoked(self) -> None:
        """See `client.Listener`."""

    async def on_assigned(self, keys: Collection[Key]) -> None:
        """See `client.Listener`."""


class Coordinator:
    """As much of the library's as a commit needs; the broker behind it is known when the test says so."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.known = asyncio.Event()
        self.sent: list[dict[Key, int]] = []
        self._commit_lock = asyncio.Lock()

    async def ensure_coordinator_known(self) -> None:
        """Wait for that."""
        await self.known.wait()

    async def _do_commit_offsets(self, _assignment: None, offsets: Mapping[Key, Any]) -> None:
        self.sent.append({key: kept.offset for key, kept in offsets.items()})


@pytest_asyncio.fixture
async def consumer() -> AsyncIterator[Any]:
    """One that isn't connected."""
    made: Any = RealBrokers().connect(KafkaPolicy(name="main", bootstrap_servers=("127.0.0.1:1",), topics=("events",)), Nobody())
    yield made
    made._coordinator = None
    await made.stop()


async def test_a_commit_is_of_the_generation_in_which_it_was_made(consumer: Any) -> None:
    """One that had to wait over a rebalance would be taken for a partition that somebody else has now."""
    coordinator = consumer._coordinator = Coordinator(3)
    committing = asyncio.create_task(consumer.commit({ZERO: 5}))
    await asyncio.sleep(0)
    coordinator.generation = 4
    coordinator.known.set()
    with pytest.raises(CommitFailedError, match="divided"):
        await committing
    assert coordinator.sent == []
    await consumer.commit({ZERO: 7})
    assert coordinator.sent == [{ZERO: 7}]


async def test_who_is_no_member_commits_nothing(consumer: Any) -> None:
    """As after a stop that was longer than the session: brokers take the commit of a stranger if the group is empty just then."""
    coordinator = consumer._coordinator = Coordinator(-1)
    coordinator.known.set()
    with pytest.raises(CommitFailedError):
        await consumer.commit({ZERO: 5})
    assert coordinator.sent == []
