"""A Kafka cluster with a consumer group: what producers have sent, what is committed, and members
whose partitions change (`forwarder.sources.kafka.client.Brokers`).
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError, NoOffsetForPartitionError

from forwarder.sources.kafka.diagnosis import Trouble
from tests.simulation.entrances import record_of
from tests.simulation.network import passing
from tests.simulation.plan import PARTITIONS, UNTIMED, Event, Produce
from tests.simulation.process import PROCESS

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

TOPIC: Final = "events"
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SimulatedRecord:
    """A record as the client hands it over, and the event that it is of; a tombstone has none."""

    offset: int
    timestamp: int
    value: bytes | None
    event: Event | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class SimulatedBrokers:
    """The cluster. It outlives the daemon's processes."""

    def __init__(
        self, loop: SimulatedLoop, chance: Random, say: Callable[[str, str], None]
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.say = say
        self.records: dict[Key, list[SimulatedRecord]] = {
            (TOPIC, number): [] for number in range(PARTITIONS)
        }
        self.committed: dict[Key, int] = {}
        self.trouble = ""
        self.elsewhere: frozenset[int] = frozenset()
        """Partitions that another member has."""
        self.member: SimulatedMember | None = None
        """The daemon's, as far as the group knows."""
        self.on_commit: Callable[[Key, int], None] = lambda _key, _offset: None

    def produce(self, act: Produce, now: float) -> None:
        """Producers have sent events to a partition; the offsets between are of other things."""
        key = (TOPIC, act.partition)
        log = self.records[key]
        for event in act.events:
            offset = self.end(key) + self.chance.choice((0, 0, 0, 1, 5))
            tombstone = event.number % 17 == 0
            log.append(
                SimulatedRecord(
                    offset,
                    -1 if event.flaw == UNTIMED else math.ceil(now * 1000),
                    None if tombstone else record_of(event),
                    None if tombstone else event,
                )
            )
        if self.member is not None:
            self.member.wake()

    def end(self, key: Key) -> int:
        """The next offset of a partition."""
        log = self.records[key]
        return log[-1].offset + 1 if log else 0

    def rebalance(self, elsewhere: Collection[int]) -> None:
        """The group divides its partitions anew."""
        self.elsewhere = frozenset(elsewhere)
        if self.member is not None:
            self.member.join()

    def connect(self, _: object, listener: Any) -> SimulatedMember:
        return SimulatedMember(self, listener)

    async def diagnose(self, _: object, error: Exception) -> Trouble:
        await passing(0.1)
        return Trouble("brokers", str(error), "Look there.")

    async def answer(self) -> None:
        """Answer, or fail."""
        await passing(self.chance.uniform(0.0, 0.05))
        if self.trouble == "away":
            raise KafkaConnectionError("nobody is there")
        if self.trouble == "silent":
            await passing(3600.0)


class SimulatedMember:
    """A member of a consumer group at the scripted cluster (`sources.kafka.client.GroupMember`)."""

    def __init__(self, brokers: SimulatedBrokers, listener: Any) -> None:
        self._brokers = brokers
        self._listener = listener
        self._context = copy_context()
        self._owner = PROCESS.get()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._positions: dict[Key, int] = {}
        self._paused: set[Key] = set()
        self._joining: asyncio.Task[None] | None = None
        self._again = False
        self._reassigning = False
        """Nothing is handed over meanwhile, as by aiokafka (`Fetcher.fetched_records`)."""
        self._waiting: asyncio.Future[None] | None = None

    async def start(self) -> None:
        await self._brokers.answer()
        self._brokers.member = self

    async def stop(self) -> None:
        await self.cut()
        await self._brokers.answer()

    async def cut(self) -> None:
        if self._brokers.member is self:
            self._brokers.member = None
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        self._assigned = frozenset()

    async def topics(self) -> set[str]:
        await self._brokers.answer()
        return {TOPIC}

    def follow_topics(self, _: Collection[str]) -> None:
        self.join()

    def join(self) -> None:
        """Have its partitions assigned, as its process does it."""
        if self._owner is not None and self._owner.killed:
            return
        if self._joining is not None and not self._joining.done():
            self._again = True
            return
        self._joining = self._brokers.loop.create_task(
            self._join(), name="joining the group", context=self._context.copy()
        )

    async def _join(self) -> None:
        self._again = self._reassigning = True
        while self._again:
            self._again = False
            if self._assigned:
                await self._listener.on_revoked()
            self._assigned = frozenset()
            self._positions.clear()
            self._paused.clear()
            await passing(self._brokers.chance.uniform(0.0, 3.0))
            self._assigned = frozenset(
                TopicPartition(TOPIC, number)
                for number in range(PARTITIONS)
                if number not in self._brokers.elsewhere
            )
            for key in sorted(self._assigned):
                if key in self._brokers.committed:
                    self._positions[key] = self._brokers.committed[key]
            self._brokers.say(
                "kafka", f"assigns {sorted(partition[1] for partition in self._assigned)}"
            )
            await self._listener.on_assigned(self._assigned)
        self._reassigning = False
        self.wake()

    async def getmany(
        self, *, timeout_ms: int, max_records: int
    ) -> Mapping[Key, Sequence[SimulatedRecord]]:
        for _ in range(2):
            unknown = [key for key in sorted(self._assigned) if key not in self._positions]
            if unknown and not self._reassigning:
                raise NoOffsetForPartitionError(unknown[0])
            came = {
                key: records
                for key in sorted(self._assigned)
                if (records := self._fetched(key, max_records))
            }
            if came:
                return came
            await self._wait(timeout_ms / 1000)
        return {}

    async def _wait(self, seconds: float) -> None:
        """Wait until something may have come, at most so long: most of an idle life's polls."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def wake(self) -> None:
        """Something may have come."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fetched(self, key: Key, most: int) -> list[SimulatedRecord]:
        if key in self._paused or self._reassigning or self._brokers.trouble:
            return []
        log = self._brokers.records[key]
        begin = bisect_left(log, self._positions[key], key=attrgetter("offset"))
        records = log[begin : begin + min(most, self._brokers.chance.choice((1, 3, 500)))]
        if records:
            self._positions[key] = records[-1].offset + 1
        return records

    async def commit(self, offsets: Mapping[Key, int]) -> None:
        await passing(self._brokers.chance.uniform(0.0, 0.02))
        if self._brokers.member is not self or not set(offsets) <= self._assigned:
            raise CommitFailedError("the group has divided its partitions anew")
        if self._brokers.trouble != "away":
            for key, offset in offsets.items():
                self._brokers.on_commit(key, offset)
            self._brokers.committed.update(offsets)
        await self._brokers.answer()

    def pause(self, *keys: Key) -> None:
        self._paused |= set(keys)

    def resume(self, *keys: Key) -> None:
        self._paused -= set(keys)
        self.wake()

    def paused(self) -> set[Key]:
        return set(self._paused)

    def assignment(self) -> Collection[Key]:
        return self._assigned

    def seek(self, key: Key, offset: int) -> None:
        self._positions[key] = offset
        self.wake()

    def reached(self, key: Key) -> int | None:
        return self._positions.get(key)

    def highwater(self, key: Key) -> int | None:
        return self._brokers.end(key)

    async def committed_offsets(self, keys: Collection[Key]) -> Mapping[Key, int]:
        await self._brokers.answer()
        known = self._brokers.committed
        return {key: known[key] for key in keys if key in known}

    async def beginning_offsets(self, keys: Collection[Key]) -> Mapping[Key, int]:
        await self._brokers.answer()
        return dict.fromkeys(keys, 0)

    async def end_offsets(self, keys: Collection[Key]) -> Mapping[Key, int]:
        await self._brokers.answer()
        return {key: self._brokers.end(key) for key in keys}

    def check(self) -> None:
        pass
