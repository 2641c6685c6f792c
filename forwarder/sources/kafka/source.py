"""One cluster as a source of events: it keeps a member in the group, whatever happens to it.

Invariant: a member that ends is followed by another, after a pause that grows while they end soon;
the only thing that is not retried is a missing topic, where the configuration makes it an error.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka.errors import KafkaError

from forwarder.core.clock import Backoff, Clock, wait_for_event
from forwarder.core.errors import ForwarderError
from forwarder.core.record_intake import RecordIntake
from forwarder.sources.kafka.client import Brokers, Interrupted, RealBrokers, is_cancelled
from forwarder.sources.kafka.flow import AssignedPartition
from forwarder.sources.kafka.membership import BrokersAway, Membership
from forwarder.sources.kafka.policy import KafkaPolicy, TopicsMissing
from forwarder.sources.kafka.report import (
    ClusterReport,
    Condition,
)
from forwarder.telemetry.snapshot import KafkaCluster, KafkaPartition

STEADY_SECONDS: Final = 60.0
"""A member that has lived so long isn't followed by the next one any later for those before it."""

PAUSES: Final = Backoff(1.0, 30.0)


class KafkaSource:
    """Reads one cluster, from `start` to `close`."""

    def __init__(
        self,
        policy: KafkaPolicy,
        intake: RecordIntake,
        clock: Clock,
        *,
        brokers: Brokers | None = None,
        pauses: Backoff = PAUSES,
    ) -> None:
        self._policy = policy
        self._intake = intake
        self._clock = clock
        self._brokers = brokers or RealBrokers()
        self._pauses = pauses
        self._report = ClusterReport(policy.name, policy.key)
        self._membership: Membership | None = None
        self._stopping = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"kafka {self._policy.name}"
        )

    def stop_reading(self) -> None:
        """Read nothing more; what was accepted may be delivered, and the group keeps
        this member.
        """
        if self._stopping:
            return
        self._stopping = True
        if self._membership is not None:
            self._membership.hold()

    async def close(self) -> None:
        """Commit what is settled, give back the rest, and leave the group; within a few seconds.
        Cancelled, it cuts the connections.
        """
        self.stop_reading()
        self._closing.set()
        if self._task is None:
            return
        try:
            if self._membership is not None:
                self._membership.leave()
                await asyncio.shield(self._task)
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def statistics(self) -> KafkaCluster:
        """How it is, and what was counted since the start."""
        report = self._report
        membership = self._membership
        stopping = self._stopping and report.condition is not Condition.FAILED
        return KafkaCluster(
            name=self._policy.name,
            group=self._policy.group_id,
            state=(Condition.STOPPING if stopping else report.condition).value,
            why=report.why,
            hint=report.hint,
            note=report.conflict or (f"{report.note}; the others are read" if report.note else ""),
            partitions=_partitions(membership),
            in_flight_bytes=0 if membership is None else membership.flow.budget.bytes,
            records=dict(report.records),
            commits=dict(report.commits),
            rebalances=report.rebalances,
            expired=report.expired,
            last_commit=report.last_commit,
            next_try=report.next_try,
        )

    async def _run(self) -> None:
        attempt = 0
        while not self._stopping:
            began = self._clock.monotonic()
            error = await self._live()
            if error is None or self._stopping:
                return
            if isinstance(error, TopicsMissing):
                self._report.failed(error.message, error.hint)
                return
            attempt = 1 if self._clock.monotonic() - began >= STEADY_SECONDS else attempt + 1
            pause = self._pauses.equal_jitter(attempt)
            await self._report_end(error, pause)
            if await wait_for_event(self._closing, pause, self._clock):
                return

    async def _live(self) -> Exception | None:
        """One life of a member; why it ended."""
        try:
            membership = self._membership = Membership(
                self._policy, self._intake, self._clock, self._report, self._brokers
            )
            await membership.run()
        except Exception as error:
            return error
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Interrupted("a connection was closed while an answer was awaited")
        finally:
            self._membership = None
        return None

    async def _report_end(self, error: Exception, pause: float) -> None:
        """Report what has ended a member, and when the next one begins."""
        if not isinstance(error, BrokersAway | KafkaError | ForwarderError | OSError):
            self._report.broken(error, self._clock.now() + pause)
            return
        try:
            trouble = (
                error.trouble
                if isinstance(error, BrokersAway)
                else await self._brokers.diagnose(self._policy, error)
            )
        except Exception as unforeseen:  # else nothing would be retried any more
            self._report.broken(unforeseen, self._clock.now() + pause)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._report.broken(error, self._clock.now() + pause)
        else:
            report = (
                self._report.interrupted if isinstance(error, Interrupted) else self._report.down
            )
            report(trouble, self._clock.now() + pause)


def _partitions(membership: Membership | None) -> tuple[KafkaPartition, ...]:
    if membership is None:
        return ()
    partitions = sorted(membership.flow.partitions.items())
    return tuple(_partition(membership, partition) for _, partition in partitions)


def _partition(membership: Membership, partition: AssignedPartition) -> KafkaPartition:
    topic, number = partition.key
    lag = partition.lag_to(membership.client.highwater(partition.key))
    return KafkaPartition(
        topic, number, partition.position, lag, membership.flow.why_paused(partition)
    )
