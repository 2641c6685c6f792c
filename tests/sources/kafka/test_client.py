"""The client: what it adds to the library's."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CommitFailedError, CorruptRecordException, UnknownMemberIdError
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetCommitResponse_v3
from aiokafka.protocol.group import (
    HeartbeatRequest,
    HeartbeatRequest_v1,
    SyncGroupRequest,
    SyncGroupRequest_v1,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.kafka.batches import PartitionKey
from forwarder.sources.kafka.client import (
    RUN,
    RealBrokers,
    _FetchedRecords,
    _PartitionRecords,
    replace_fetched_records,
)
from forwarder.sources.kafka.diagnosis import FencedError
from forwarder.sources.kafka.policy import KafkaPolicy

ZERO = TopicPartition("events", 0)
UNKNOWN = UnknownMemberIdError.errno


class NoListener:
    """A listener that gets no calls."""

    async def on_revoked(self) -> None:
        pass

    async def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        pass


class Coordinator:
    """As much of the library's as a commit needs; the broker behind it is
    known when the test says so.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.known = asyncio.Event()
        self.sent: list[dict[PartitionKey, int]] = []
        self._commit_lock = asyncio.Lock()

    async def ensure_coordinator_known(self) -> None:
        """Wait for that."""
        await self.known.wait()

    async def _do_commit_offsets(
        self, _assignment: None, offsets: Mapping[PartitionKey, Any]
    ) -> None:
        self.sent.append({key: committed.offset for key, committed in offsets.items()})


@pytest_asyncio.fixture
async def consumer() -> AsyncIterator[Any]:
    """One that isn't connected."""
    made: Any = RealBrokers().connect(
        KafkaPolicy(name="main", bootstrap_servers=("127.0.0.1:1",), topics=("events",)),
        NoListener(),
    )
    yield made
    made._coordinator = None
    await made.stop()


async def test_a_commit_is_of_the_generation_in_which_it_was_made(consumer: Any) -> None:
    """One that had to wait over a rebalance would be taken for a partition
    that someone else has now.
    """
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


async def test_a_client_outside_the_group_commits_nothing(consumer: Any) -> None:
    """As after a stop that was longer than the session: brokers take the commit of a stranger if
    the group is empty just then.
    """
    coordinator = consumer._coordinator = Coordinator(-1)
    coordinator.known.set()
    with pytest.raises(CommitFailedError):
        await consumer.commit({ZERO: 5})
    assert coordinator.sent == []


@pytest.mark.parametrize(
    ("request_sent", "answer"),
    [
        (HeartbeatRequest("group", 3, "me"), HeartbeatRequest_v1.RESPONSE_TYPE(0, UNKNOWN)),
        (
            SyncGroupRequest("group", 3, "me", None, []),
            SyncGroupRequest_v1.RESPONSE_TYPE(0, UNKNOWN, b""),
        ),
        (
            OffsetCommitRequest("group", 3, "me", -1, []),
            OffsetCommitResponse_v3(0, [("events", [(0, 0), (1, UNKNOWN)])]),
        ),
    ],
)
async def test_a_namesake_is_noticed_by_any_answer(
    consumer: Any, request_sent: Any, answer: Any
) -> None:
    """The library joins again silently, and the two would replace each other indefinitely. Without
    an answer since the session began, it has just ended.
    """

    async def send(sent: Any) -> Any:
        return known if sent is beat else answer

    beat = HeartbeatRequest("group", 3, "me")
    known = HeartbeatRequest_v1.RESPONSE_TYPE(0, 0)
    consumer._send = send
    consumer._alive = -consumer._policy.session_timeout
    await consumer._send_and_notice(request_sent)
    consumer.check()
    await consumer._send_and_notice(beat)
    await consumer._send_and_notice(request_sent)
    with pytest.raises(FencedError):
        consumer.check()


@pytest.fixture(autouse=True)
def _no_search() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _fetched() -> _FetchedRecords:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000,
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
    unpacked = (
        [record.value for record, _ in zip(fetched, range(read), strict=False)] if read else []
    )
    assert unpacked == [b"%d" % offset for offset in range(read)]
    del fetched
    assert records() is None


@dataclass(frozen=True)
class TopicBatch:
    """A batch of a topic."""

    deltas: Sequence[int]
    """How far each record's offset is from the one before it: 1, more where the topic is
    compacted, less where the producer is broken.
    """
    codec: int
    producer: int
    """-1: no transaction."""
    marker: int | None
    """A transaction's end, and no records: 0 aborts it, 1 commits it."""
    corrupt: bool

    def encoded(self, base: int) -> tuple[bytes, int]:
        """Its bytes from the offset `base` on, and the offset after it."""
        transactional = int(self.producer >= 0)
        builder = DefaultRecordBatchBuilder(
            2, self.codec, transactional, self.producer, 0, 0, 1_000_000
        )
        offsets = [*accumulate(self.deltas, initial=0)][:-1] or [0]
        for at, offset in enumerate(offsets if self.marker is None else [0]):
            key = (
                struct.pack(">hh", 0, self.marker)
                if self.marker is not None
                else b"k"
                if at % 2
                else None
            )
            builder.append(
                offset, 1_700_000_000_000 + at, key, b"%d" % at, [("h", b"1")] if at % 3 else []
            )
        data = bytearray(builder.build())
        struct.pack_into(">q", data, 0, base)
        if self.marker is not None:
            data[_ATTRIBUTES + 1] |= 0x20
            struct.pack_into(">I", data, _ATTRIBUTES - 4, calc_crc32c(bytes(data[_ATTRIBUTES:])))
        if self.corrupt:
            data[-1] ^= 1
        return bytes(data), base + max(offsets) + 1


_ATTRIBUTES = 21

batches_of_topics = st.lists(
    st.builds(
        TopicBatch,
        deltas=st.one_of(
            st.lists(st.sampled_from([1, 1, 1, 2, 7, 0, -1]), min_size=1, max_size=20),
            st.integers(1, 3 * RUN).map(lambda count: [1] * count),
        ),
        codec=st.sampled_from([0, 1]),
        producer=st.sampled_from([-1, -1, 5, 6]),
        marker=st.sampled_from([None, None, None, 0, 1]),
        corrupt=st.sampled_from([False] * 9 + [True]),
    ),
    min_size=1,
    max_size=5,
)


class Reading:
    """Reads records as the library does, a number of them at a time."""

    def __init__(
        self, kind: Any, data: bytes, begin: int, aborted: Sequence[tuple[int, int]]
    ) -> None:
        self.records = kind(
            TopicPartition("t", 0),
            MemoryRecords(data),
            list(aborted),
            begin,
            None,
            None,
            True,
            fetcher.READ_COMMITTED,
        )

    def some(self, count: int) -> tuple[list[Any], int | None]:
        """What comes next, and the offset after it; None where the next batch is corrupt."""
        read_records: list[Any] = []
        try:
            for record in self.records:
                read_records.append(
                    (
                        record.offset,
                        record.timestamp,
                        record.key,
                        record.value,
                        tuple(record.headers),
                    )
                )
                if len(read_records) == count:
                    break
        except CorruptRecordException:
            return read_records, None
        return read_records, self.records.next_fetch_offset


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    batches=batches_of_topics,
    begin=st.integers(0, 40),
    counts=st.lists(st.integers(1, 2 * RUN), min_size=1, max_size=10),
)
def test_they_are_as_the_librarys_own(
    batches: list[TopicBatch], begin: int, counts: list[int]
) -> None:
    """Whatever was fetched, from wherever, read in pieces of any size."""
    data = b""
    base = 0
    aborted = []
    for batch in batches:
        if batch.marker is None and batch.producer == 5:
            aborted.append((5, base))
        encoded, base = batch.encoded(base)
        data += encoded
    ours = Reading(_FetchedRecords, data, begin, aborted)
    librarys = Reading(_PartitionRecords, data, begin, aborted)
    for count in counts:
        result = ours.some(count)
        assert result == librarys.some(count)
        if result[1] is None or len(result[0]) < count:
            return  # the library discards them then


def test_the_client_makes_these() -> None:
    """In the whole process, however often it is asked for."""
    replace_fetched_records()
    replace_fetched_records()
    assert fetcher.PartitionRecords is _FetchedRecords
    assert isinstance(_fetched(), _FetchedRecords)
