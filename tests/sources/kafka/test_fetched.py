"""What the client fetched and throws away is freed at once, without a search for garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from forwarder.sources.kafka.fetched import Fetched, free_what_is_thrown_away


@pytest.fixture(autouse=True)
def _no_search() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _fetched() -> Fetched:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=10_000
    )
    for offset in range(3):
        builder.append(offset, 1_700_000_000_000, None, b"%d" % offset, [])
    records = MemoryRecords(bytes(builder.build()))
    return Fetched(TopicPartition("t", 0), records, [], 0, None, None, True, 0)


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
    free_what_is_thrown_away()
    free_what_is_thrown_away()
    assert fetcher.PartitionRecords is Fetched
    assert isinstance(_fetched(), Fetched)
