"""The client: what it adds to the library's."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CommitFailedError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from forwarder.sources.kafka.batches import PartitionKey
from forwarder.sources.kafka.client import RealBrokers, _FetchedRecords, free_discarded_records
from forwarder.sources.kafka.policy import KafkaPolicy

ZERO = TopicPartition("events", 0)


class Nobody:
    """A listener that is told nothing."""

    async def on_revoked(self) -> None:
        """See `client.RebalanceListener`."""

    async def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        """See `client.RebalanceListener`."""


class Coordinator:
    """As much of the library's as a commit needs; the broker behind it is known when the test says so."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.known = asyncio.Event()
        self.sent: list[dict[PartitionKey, int]] = []
        self._commit_lock = asyncio.Lock()

    async def ensure_coordinator_known(self) -> None:
        """Wait for that."""
        await self.known.wait()

    async def _do_commit_offsets(self, _assignment: None, offsets: Mapping[PartitionKey, Any]) -> None:
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


@pytest.fixture(autouse=True)
def _no_search() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _fetched() -> _FetchedRecords:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=10_000
    )
    for offset in range(3):
        builder.append(offset, 1_700_000_000_000, None, b"%d" % offset, [])
    records = MemoryRecords(bytes(builder.build()))
    return _FetchedRecords(TopicPartition("t", 0), records, [], 0, None, None, True, 0)


@pytest.mark.parametrize("read", [0, 1, 3])
def test_records_that_were_not_read_to_their_end_are_freed(read: int) -> None:
    """At whatever place the reading ended."""
    fetched = _fetched()
    records = weakref.ref(fetched._unpacking)
    unpacked = [record.value for record, _ in zip(fetched, range(read), strict=False)] if read else []
    assert unpacked == [b"%d" % offset for offset in range(read)]
    del fetched
    assert records() is None


def test_they_are_as_the_clients_own() -> None:
    """Read one by one, or all."""
    fetched = _fetched()
    assert next(fetched).offset == 0
    assert fetched.next_fetch_offset == 1
    assert [record.offset for record in fetched] == [1, 2]
    assert fetched.next_fetch_offset == 3


def test_the_client_makes_these() -> None:
    """In the whole process, however often it is asked for."""
    free_discarded_records()
    free_discarded_records()
    assert fetcher.PartitionRecords is _FetchedRecords
    assert isinstance(_fetched(), _FetchedRecords)
