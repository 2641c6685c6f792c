"""The Kafka client, as much of it as is used, and what it lacks: its state without waiting, an end
that always comes, cheap records.

The client makes an object of eleven fields of each record that it has unpacked, one at a time;
that takes longer than reading and checking what was fetched. `_FetchedRecords` hands over the
unpacked records themselves.

The client's records of a partition and the generator that unpacks them refer to each other. Those
that were not read to their end (of a partition that is paused, or that another member gets) would
stay until a search for garbage finds them, and the daemon searches seldom: up to
`max_partition_fetch_bytes` a partition and pause. `_FetchedRecords` frees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import chain, islice
from operator import length_hint
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.consumer import fetcher
from aiokafka.errors import (
    CommitFailedError,
    KafkaConnectionError,
    KafkaError,
    UnknownMemberIdError,
)
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from aiokafka.structs import OffsetAndMetadata

from forwarder.sources.kafka.batches import KafkaRecord, PartitionKey
from forwarder.sources.kafka.diagnosis import FencedError, Trouble, diagnose
from forwarder.sources.kafka.policy import KafkaPolicy
from forwarder.sources.kafka.security import connection, follow

METADATA_SECONDS: Final = 30.0
"""After which new partitions are found."""

SETTLING_SECONDS: Final = 10.0
"""How long a revocation may take beyond `revocation_timeout`, before the group continues without
this member.
"""

REQUEST_SECONDS: Final = 10.0
"""How long a broker may take to answer, beyond what it may wait for others: for records, and for
members to join again.
"""

CUT_SECONDS: Final = 3.0
"""How long tasks and connections may take to end that are cut: the library waits for each without
a limit.
"""

CANCEL_AGAIN_SECONDS: Final = 0.5


class RebalanceListener(Protocol):
    """Gets the decisions of the group."""

    async def on_revoked(self) -> None:
        """All partitions that were assigned are about to go; the group waits until this returns."""

    async def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        """These partitions are ours now, and no others."""


class GroupMember(Protocol):
    """A member of a consumer group. Its methods raise `KafkaError`s."""

    async def start(self) -> None:
        """Connect. Cancelled or failed, `stop` is to be called."""

    async def stop(self) -> None:
        """Leave the group, and close all connections. Cancelled, `cut` is to be called."""

    async def cut(self) -> None:
        """Close all connections and end all tasks, without leaving the group."""

    async def topics(self) -> set[str]:
        """The topics that may be seen."""

    def follow_topics(self, topics: Collection[str]) -> None:
        """Read these from now on, as the group divides them. What was assigned before can't be
        committed any more.
        """

    async def getmany(
        self, *, timeout_ms: int, max_records: int
    ) -> Mapping[PartitionKey, Sequence[KafkaRecord]]:
        """The fetched records, as soon as there are some. Nothing is lost by cancelling it."""

    async def commit(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Have the brokers keep the offsets. Cancellation leaves it open whether they do."""

    def pause(self, *keys: PartitionKey) -> None:
        """Hand over nothing of these any more; what was fetched is discarded."""

    def resume(self, *keys: PartitionKey) -> None:
        """Hand over again."""

    def paused(self) -> set[PartitionKey]:
        """The partitions that are paused; each assignment begins without any."""

    def assignment(self) -> Collection[PartitionKey]:
        """The partitions that are assigned."""

    def seek(self, key: PartitionKey, offset: int) -> None:
        """Resume reading there."""

    def reached(self, key: PartitionKey) -> int | None:
        """The next offset that would be handed over; None if that isn't known now."""

    def highwater(self, key: PartitionKey) -> int | None:
        """Where the partition ended when something was fetched of it."""

    async def committed_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """What the brokers have for the group, where they have something."""

    async def beginning_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Where the partitions begin."""

    async def end_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Where the partitions end."""

    def check(self) -> None:
        """Raises why it does nothing any more, if one of its own tasks has ended."""


class Brokers(Protocol):
    """A cluster as it is reached."""

    def connect(self, policy: KafkaPolicy, listener: RebalanceListener) -> GroupMember:
        """A client, not started. Raises `SecurityError` for files that can't be used."""

    async def diagnose(self, policy: KafkaPolicy, error: Exception) -> Trouble:
        """What an error of the client came from. Takes some seconds; cancellation ends it."""


class RealBrokers:
    """Connections to the configured brokers."""

    def connect(self, policy: KafkaPolicy, listener: RebalanceListener) -> GroupMember:
        replace_fetched_records()
        return _Consumer(policy, listener)

    async def diagnose(self, policy: KafkaPolicy, error: Exception) -> Trouble:
        return await diagnose(policy.bootstrap_servers, policy.security, error)


_FENCED: Final = 82
"""FENCED_INSTANCE_ID, which the library doesn't know."""

_BY_MEMBERS: Final = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest)


class _Consumer(AIOKafkaConsumer):  # type: ignore[misc]  # the library has no types
    """The library's consumer. What it calls private is looked at here and nowhere else."""

    def __init__(self, policy: KafkaPolicy, listener: RebalanceListener) -> None:
        rebalance = max(policy.session_timeout, policy.revocation_timeout + SETTLING_SECONDS)
        super().__init__(
            bootstrap_servers=random.sample(
                policy.bootstrap_servers, len(policy.bootstrap_servers)
            ),
            client_id=policy.client_id,
            group_id=policy.group_id,
            group_instance_id=policy.group_instance_id,
            auto_offset_reset="none",  # the library would do it silently
            enable_auto_commit=False,
            fetch_max_bytes=policy.fetch_max_bytes,
            max_partition_fetch_bytes=policy.max_partition_fetch_bytes,
            fetch_min_bytes=policy.fetch_min_bytes,
            fetch_max_wait_ms=_milliseconds(policy.fetch_max_wait),
            request_timeout_ms=_milliseconds(
                max(rebalance, policy.fetch_max_wait) + REQUEST_SECONDS
            ),
            metadata_max_age_ms=_milliseconds(METADATA_SECONDS),
            max_poll_interval_ms=_milliseconds(policy.max_poll_interval),
            session_timeout_ms=_milliseconds(policy.session_timeout),
            heartbeat_interval_ms=_milliseconds(min(3.0, policy.session_timeout / 3)),
            rebalance_timeout_ms=_milliseconds(rebalance),
            isolation_level="read_committed" if policy.read_committed else "read_uncommitted",
            **connection(policy.security),
        )
        follow(self, policy.security)
        self._policy = policy
        self._alive = 0.0
        """When the group last knew this member."""
        self._fenced = False
        self._callbacks = _RebalanceCallbacks(listener)

    async def start(self) -> None:
        """Then notice if another member takes this one's place, which the library passes over."""
        await super().start()
        if self._policy.group_instance_id is not None:
            self._send = self._coordinator._send_req
            self._coordinator._send_req = self._send_and_notice

    async def _send_and_notice(self, request: Any) -> Any:
        """Send a request to the group's coordinator. A static member that is unknown within its
        session was replaced by a namesake.
        """
        response = await self._send(request)
        codes = _error_codes(request, response)
        now = asyncio.get_running_loop().time()
        if codes == {0} and isinstance(request, _BY_MEMBERS):
            self._alive = now
        known = now - self._alive < self._policy.session_timeout
        if _FENCED in codes or (known and UnknownMemberIdError.errno in codes):
            self._fenced = True
        return response

    async def getmany(self, *args: Any, **named: Any) -> Any:
        """A namesake is why it fails, whatever the library makes of that."""
        try:
            return await super().getmany(*args, **named)
        except KafkaError:
            self.check()
            raise

    def follow_topics(self, topics: Collection[str]) -> None:
        self.subscribe(topics=sorted(topics), listener=self._callbacks)

    async def commit(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Replaces the library's, which continues in a task of its own when it is cancelled."""
        coordinator = self._coordinator
        generation = coordinator.generation
        await coordinator.ensure_coordinator_known()
        async with coordinator._commit_lock:
            # an empty group would accept a commit without one
            if generation <= 0 or coordinator.generation != generation:
                raise CommitFailedError(
                    "the group has divided the partitions again, or doesn't know this member any "
                    "more"
                )
            await coordinator._do_commit_offsets(
                None, {key: OffsetAndMetadata(offset, "") for key, offset in offsets.items()}
            )

    def reached(self, key: PartitionKey) -> int | None:
        subscription = self._subscription.subscription
        if (
            subscription is None
            or subscription.assignment is None
            or not subscription.assignment.active
        ):
            return None
        state = subscription.assignment.state_value(key)
        return state.position if state is not None and state.has_valid_position else None

    def highwater(self, key: PartitionKey) -> int | None:
        offset: int | None = super().highwater(key) if key in self.assignment() else None
        return offset

    async def committed_offsets(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, int]:
        committed = await self._coordinator.fetch_committed_offsets(list(keys))
        return {key: offset.offset for key, offset in committed.items() if offset.offset >= 0}

    def check(self) -> None:
        if self._fenced:
            raise FencedError(self._policy.group_instance_id, self._policy.group_id)
        if self._coordinator is not None:
            self._coordinator.check_errors()  # it does nothing more until its errors were read
        for task in self._tasks():
            if task.done():
                if not task.cancelled():
                    task.result()
                raise RuntimeError(f"a task of the client has ended: {task!r}")

    async def cut(self) -> None:
        self._closed = True
        self._client._get_conn = _no_connection
        await ended(*self._tasks(), *self._helpers(), limit=CUT_SECONDS)
        self._client._sync_task = None
        with contextlib.suppress(Exception):  # it is given up
            async with asyncio.timeout(CUT_SECONDS):
                await self._client.close()

    def _tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks without which nothing comes any more."""
        tasks = [self._client._sync_task]
        if self._coordinator is not None:
            tasks.append(self._coordinator._coordination_task)
        if self._fetcher is not None:
            tasks.append(self._fetcher._fetch_task)
        return [task for task in tasks if task is not None]

    def _helpers(self) -> Iterable[asyncio.Task[Any]]:
        """Tasks that the others make and end."""
        if self._coordinator is not None:
            yield from (
                task
                for task in (
                    self._coordinator._heartbeat_task,
                    self._coordinator._commit_refresh_task,
                )
                if task is not None
            )
        if self._fetcher is not None:
            yield from self._fetcher._pending_tasks


# The library has no types.
class _RebalanceCallbacks(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes on the library's calls."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    # What is revoked is always all that was assigned.
    def on_partitions_revoked(
        self,
        revoked: Collection[PartitionKey],  # noqa: ARG002
    ) -> Awaitable[None]:
        return self._listener.on_revoked()

    def on_partitions_assigned(self, assigned: Collection[PartitionKey]) -> Awaitable[None]:
        return self._listener.on_assigned(assigned)


async def ended(*tasks: asyncio.Future[Any], limit: float = math.inf) -> None:
    """Cancel them, and see them end; those that don't in `limit` seconds are left to themselves.

    What swallows a cancellation is cancelled again: the library does in places.
    """
    left = set(tasks)
    while left and limit > 0:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=min(CANCEL_AGAIN_SECONDS, limit))
        limit -= CANCEL_AGAIN_SECONDS
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # it is known why they end


def is_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only what it waits for: the library
    does that to requests and tasks.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Interrupted(KafkaConnectionError):  # type: ignore[misc]  # the library has no types
    """The library has cancelled a request, because its connection was closed: also one that just
    isn't needed any more.
    """


@contextlib.asynccontextmanager
async def answered(seconds: float) -> AsyncIterator[None]:
    """Bounds requests: raises `TimeoutError`, and `Interrupted` instead of a cancellation that was
    only theirs.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise Interrupted("a connection was closed while an answer was awaited") from None


async def _no_connection(*_: object, **__: object) -> None:
    """No connection is made any more."""


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _error_codes(request: Any, response: Any) -> set[int]:
    """The different ones of an answer: of the whole, or, where offsets were committed, of the
    partitions.
    """
    if isinstance(request, OffsetCommitRequest):
        return {code for _, partitions in response.topics for _, code in partitions}
    return {getattr(response, "error_code", 0)}


RUN: Final = 250
"""Records of a batch that are unpacked at once: a compressed batch may hold very many."""

_PartitionRecords: Any = fetcher.PartitionRecords


class _Run:
    """Some neighbouring records of one batch of the topic, at least one. The library compares its
    offset, the greatest of theirs.
    """

    __slots__ = ("_offsets", "_records", "offset")

    def __init__(self, records: list[Any]) -> None:
        self._records = records
        self._offsets: list[int] = [record.offset for record in records]
        self.offset = max(self._offsets)

    def since(self, offset: int) -> list[Any]:
        """The records from this offset on, as the library leaves them: none whose offset isn't
        past the one before it.
        """
        first = self._offsets[0]
        if first >= offset and self._offsets == [*range(first, first + len(self._offsets))]:
            return self._records
        left = []
        for record in self._records:
            if record.offset >= offset:
                left.append(record)
                offset = record.offset + 1
        return left


class _RunsOfBatch:
    """Stands before a batch of the topic: its iterator gives runs of records."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[_Run]:
        # the library's own iterator must neither be begun twice nor asked again once it has ended
        records = chain(self._batch)
        while run := [*islice(records, RUN)]:
            yield _Run(run)


class _RunsOfRecords:
    """Stands before the batches of one partition
    (`aiokafka.record.memory_records.MemoryRecords`).
    """

    __slots__ = ("_records", "has_next")

    def __init__(self, records: Any) -> None:
        self._records = records
        self.has_next = records.has_next

    def next_batch(self) -> Any:
        """The library looks into the records of a control batch itself."""
        batch = self._records.next_batch()
        return batch if batch.is_control_batch else _RunsOfBatch(batch)


class _Unpacking(_PartitionRecords):  # type: ignore[misc]  # the library has no types
    """Iterators over the records of one partition, a run each. Which batches count, the library
    decides: of aborted transactions none.
    """

    def __init__(self, tp: PartitionKey, records: Any, *args: Any, **named: Any) -> None:
        super().__init__(tp, _RunsOfRecords(records), *args, **named)
        self.run: Sequence[Any] = ()
        """The last one, and what is left of it."""
        self.left: Iterator[Any] = iter(())

    def __next__(self) -> Iterator[Any]:
        self.run = super().__next__()
        self.left = iter(self.run)
        return self.left

    def _consumer_record(self, _: PartitionKey, run: _Run) -> list[Any]:
        return run.since(self.next_fetch_offset)


class _FetchedRecords:
    """Stands in the place of the client's records of one partition
    (`aiokafka.consumer.fetcher.PartitionRecords`); they go when it goes.
    """

    __slots__ = ("_records", "_unpacking")

    def __init__(self, *args: Any, **named: Any) -> None:
        self._unpacking = _Unpacking(*args, **named)
        self._records: Iterator[Any] = chain.from_iterable(self._unpacking)

    def __iter__(self) -> Iterator[Any]:
        return self._records  # not through `__next__`, because each record needs it

    def __next__(self) -> Any:
        return next(self._records)

    def __del__(self) -> None:
        unpacking = getattr(self, "_unpacking", None)
        if unpacking is not None:
            unpacking._records_iterator = None

    @property
    def next_fetch_offset(self) -> int:
        """The offset after the last record that was handed over."""
        unpacking = self._unpacking
        left = length_hint(unpacking.left)
        offset: int = unpacking.run[-1 - left].offset + 1 if left else unpacking.next_fetch_offset
        return offset


def replace_fetched_records() -> None:
    """Have the library use these for its records, in the whole process. Any number of calls does
    it once.
    """
    fetcher.PartitionRecords = _FetchedRecords
