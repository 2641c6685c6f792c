"""One life of a member of a consumer group: connects, reads, commits, and leaves.

Invariants: from what `getmany` returns to the flow there is no pause, so that no assignment
changes in between; after a `getmany` that failed only what the watermarks say is committed, for it
may have lost records; however it ends, what was accepted and is not settled is given back, and no
task and no connection is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

import structlog
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.record_intake import RecordIntake
from forwarder.sources.hand_over import SLICE_SECONDS
from forwarder.sources.kafka.batches import PartitionKey
from forwarder.sources.kafka.client import Brokers, Interrupted, answered, ended
from forwarder.sources.kafka.diagnosis import Trouble
from forwarder.sources.kafka.flow import PartitionFlow
from forwarder.sources.kafka.policy import KafkaPolicy, TopicsMissing, choose_topics
from forwarder.sources.kafka.report import ClusterReport, Condition

MAX_RECORDS: Final = 1000
"""Fetched records that are handed over at once: the loop does nothing else meanwhile."""

POLL_MILLISECONDS: Final = 200
"""How long to wait for records before anything else is checked."""

TICK_SECONDS: Final = 1.0
"""Between two checks of halted lanes."""

CHECK_SECONDS: Final = 10.0
"""Between two requests for the ends of partitions: they show the lag of paused ones, and whether
the brokers answer.
"""

AGAIN_SECONDS: Final = 2.0
"""The same while the brokers don't answer, or topics are missing."""

CONNECT_SECONDS: Final = 15.0
"""How long connecting may take; each attempt begins with another of the configured brokers."""

ANSWER_SECONDS: Final = 5.0
"""How long a check, or a commit, may take; then it has failed."""

LEAVE_SECONDS: Final = 3.0
"""How long each step of leaving may take, before the connections are cut."""

AWAY_SECONDS: Final = 120.0
"""How long the brokers may be away before the member connects anew, to the configured addresses."""

_log = structlog.get_logger(__name__)


class BrokersAway(Exception):
    """No broker has answered for too long."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class Membership:
    """One life; `run` is the whole of it."""

    def __init__(
        self,
        policy: KafkaPolicy,
        intake: RecordIntake,
        clock: Clock,
        report: ClusterReport,
        brokers: Brokers,
    ) -> None:
        """Raises `SecurityError` for files that can't be used."""
        self.flow = PartitionFlow(
            policy,
            intake,
            clock.monotonic,
            report.records,
            on_eased=self._on_eased,
            on_rewound=self._on_rewound,
        )
        self.client = brokers.connect(policy, self)
        self._brokers = brokers
        self._policy = policy
        self._clock = clock
        self._report = report
        self._leaving = asyncio.Event()
        self._settled = asyncio.Event()
        """Set when nothing is outstanding any more."""
        self._check_now = asyncio.Event()
        self._committing = asyncio.Lock()
        self._trusted = True
        """Whether all that the client counts as handed over has come to the flow."""
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._topics: frozenset[str] = frozenset()
        self._away_since: float | None = None
        self._interrupted = False
        """Whether the last check was interrupted: a single time means nothing."""
        self._pause_reason = ""
        self._revocations = 0
        """What the brokers answer for an assignment does not hold for the next one."""

    def hold(self) -> None:
        """Read nothing more, and stay a member."""
        self.flow.pause_reason = self._pause_reason = "this process is about to end"
        self._apply_pauses()

    def leave(self) -> None:
        """End: commit, give back, leave the group."""
        self._leaving.set()
        self._settled.set()

    async def run(self) -> None:
        """Be a member until `leave` is called. Raises what keeps it from being one. Cancellation
        cuts the connections.
        """
        life = asyncio.ensure_future(self._live())
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            ends: list[asyncio.Future[Any]] = [life, leaving, self._failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (life, self._failed):
                if task.done():
                    self._raise(task)
        finally:
            await ended(life, leaving)
            await self._end()
            if not self._failed.cancel() and not self._failed.cancelled():
                self._failed.exception()  # it was seen

    async def on_revoked(self) -> None:
        """What is in flight has `revocation_timeout` to be settled; the next owner reads
        the rest.
        """
        self._revocations += 1
        self._report.now(Condition.JOINING)
        try:
            await self._release(0.0 if self._leaving.is_set() else self._policy.revocation_timeout)
        except Exception as error:  # the library would swallow it
            self._fail(error)

    async def on_assigned(self, keys: Collection[PartitionKey]) -> None:
        self.flow.assign(keys)
        self._apply_pauses()
        self._report.reading(len(keys))
        self._check_now.set()

    def _raise(self, ended_by_itself: asyncio.Future[None]) -> None:
        """Raise why it has ended. The client cancels requests whose connection closes, and with
        them the tasks that wait for an answer.
        """
        if ended_by_itself.cancelled():
            self.client.check()
            raise Interrupted("a connection was closed while an answer was awaited")
        ended_by_itself.result()

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _live(self) -> None:
        async with answered(CONNECT_SECONDS):
            await self.client.start()
        self._report.now(Condition.JOINING)
        tasks = [
            asyncio.ensure_future(coroutine)
            for coroutine in (self._poll(), self._commits(), self._checks())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await ended(*tasks)

    async def _poll(self) -> None:
        """Read, for ever. Nothing is read as long as no topic is followed."""
        next_tick = self._clock.monotonic()
        try:
            while True:
                came = await self._read()
                self.flow.retry()
                while self.flow.unfinished:
                    await asyncio.sleep(0)
                    self.flow.retry()
                if self._clock.monotonic() >= next_tick:
                    next_tick = self._clock.monotonic() + TICK_SECONDS
                    self.flow.dead_letter_halted(self._clock.now())
                self._apply_pauses()
                self.client.check()
                if came:
                    # other tasks run: the client returns what it has without waiting
                    await asyncio.sleep(0)
        except Exception:
            self._trusted = False
            raise

    async def _read(self) -> bool:
        """Hand over what has come; whether anything has."""
        try:
            batches = await self.client.getmany(
                timeout_ms=POLL_MILLISECONDS, max_records=MAX_RECORDS
            )
        except NoOffsetForPartitionError:
            await self._begin()
            return True
        except OffsetOutOfRangeError as error:
            await self._begin_again(error.args[0])
            return True
        until = self._clock.monotonic() + SLICE_SECONDS
        for key, records in batches.items():
            self.flow.add(key, records, until)
        return bool(batches)

    async def _begin(self) -> None:
        """Begin in partitions of which nothing is committed."""
        client = self.client
        revocations = self._revocations
        keys = [key for key in client.assignment() if client.reached(key) is None]
        async with answered(ANSWER_SECONDS):
            committed = await client.committed_offsets(keys)
            fresh = [key for key in keys if key not in committed]
            places = await (
                client.beginning_offsets(fresh)
                if self._policy.from_earliest
                else client.end_offsets(fresh)
            )
        if revocations != self._revocations:
            return
        for key, offset in places.items():
            if key in client.assignment() and client.reached(key) is None:
                client.seek(key, offset)

    async def _begin_again(self, lost: Mapping[PartitionKey, int]) -> None:
        """Resume at the beginning of partitions that don't have the next
        offset any more, or not yet.
        """
        revocations = self._revocations
        async with answered(ANSWER_SECONDS):
            places = await self.client.beginning_offsets(list(lost))
        if revocations != self._revocations:
            return
        for key, offset in places.items():
            if key in self.client.assignment():
                if offset > lost[key]:
                    self._report.lost(*key, offset - lost[key])
                else:
                    self._report.went_back(*key, offset)
                    self.flow.restart(key)
                self.client.seek(key, offset)

    async def _commits(self) -> None:
        while True:
            await self._clock.sleep(self._policy.commit_interval)
            await self._commit(ANSWER_SECONDS)

    async def _commit(self, seconds: float) -> None:
        """Commit what has changed. A failure is counted; what it would have covered is part of the
        next one.
        """
        async with self._committing:
            if self._trusted:
                for key in self.client.assignment():
                    if (offset := self.client.reached(key)) is not None:
                        self.flow.advance_to(key, offset)
            offsets = self.flow.uncommitted()
            if not offsets:
                return
            try:
                async with answered(seconds):
                    await self.client.commit(offsets)
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
                self._report.commit_refused()
                self._fail(error)
            except (KafkaError, OSError, TimeoutError) as error:
                self._report.commit_failed(error_text(error))
                self._check_now.set()
            else:
                self.flow.note_committed(offsets)
                self._report.committed(self._clock.now())

    async def _release(self, seconds: float) -> None:
        """Give up all partitions: what is in flight has `seconds` to be settled."""
        self.flow.discard_waiting()
        if self.flow.outstanding and seconds and not self._leaving.is_set():
            self._settled.clear()
            await wait_for_event(self._settled, seconds, self._clock)
        if self._away_since is None:
            await self._commit(min(ANSWER_SECONDS, LEAVE_SECONDS))
        returned = self.flow.forget()
        if returned:
            _log.info(
                "kafka: events go back to the brokers unsent, for others to read",
                cluster=self._policy.name,
                events=returned,
            )

    async def _checks(self) -> None:
        while True:
            seconds = await self._check()
            self._check_now.clear()
            await wait_for_event(self._check_now, seconds, self._clock)

    async def _check(self) -> float:
        """Check the cluster; after how many seconds to check again. Raises
        `BrokersAway`, and `TopicsMissing`.
        """
        seen: Collection[str] | None = None
        self.client.check()
        try:
            async with answered(ANSWER_SECONDS):
                if self._topics != frozenset(self._policy.topics) or not self.flow.partitions:
                    seen = await self.client.topics()
                await self._update_ends()
        except (KafkaError, OSError, TimeoutError) as error:
            if isinstance(error, Interrupted) and not self._interrupted:
                self._interrupted = True
                return AGAIN_SECONDS
            return await self._away(error)
        self._away_since = None
        self._interrupted = False
        self._report.back(Condition.READING if self.client.assignment() else Condition.JOINING)
        complete = seen is None or await self._choose(seen)
        return CHECK_SECONDS if complete else AGAIN_SECONDS

    async def _away(self, error: Exception) -> float:
        """The cluster didn't answer, or not as it should."""
        now = self._clock.monotonic()
        since = self._away_since = now if self._away_since is None else self._away_since
        trouble = await self._brokers.diagnose(self._policy, error)
        self._report.down(trouble)
        if now - since > AWAY_SECONDS:
            raise BrokersAway(trouble)
        return AGAIN_SECONDS

    async def _choose(self, seen: Collection[str]) -> bool:
        """Follow the configured topics, as far as they are visible; whether none is missing.
        Raises `TopicsMissing`.

        Only at the start: later they may be missing for a moment, as while brokers restart.
        """
        choice = choose_topics(self._policy, seen)
        if (
            choice.why
            and not self._policy.wait_for_topics
            and not self._topics
            and not self._report.rebalances
        ):
            raise TopicsMissing(choice.why, hint=choice.hint)
        if choice.topics - self._topics and not self._pause_reason:
            await self._follow(choice.topics)
        self._report.missing(choice.why, choice.hint, waits=not self._topics)
        return not choice.why

    async def _follow(self, topics: frozenset[str]) -> None:
        """Read these topics from now on. Once the client knows of others, nothing can be committed
        of those before.
        """
        if self._topics:
            self.flow.pause_reason = "the group is to read other topics"
            self._apply_pauses()
            await self._release(self._policy.revocation_timeout)
            self.flow.pause_reason = self._pause_reason
        self.client.follow_topics(topics)
        self._topics = topics
        self._report.now(Condition.JOINING)

    async def _update_ends(self) -> None:
        client = self.client
        partitions = self.flow.partitions
        keys = list(partitions)
        if not keys:
            return
        unknown = [key for key in keys if partitions[key].committed is None]
        committed = await client.committed_offsets(unknown) if unknown else {}
        for key, end in (await client.end_offsets(keys)).items():
            if (partition := partitions.get(key)) is not None:
                partition.end = end
                if partition.committed is None:
                    partition.committed = committed.get(key)

    def _apply_pauses(self) -> None:
        """Have the client pause what has to pause, and nothing else."""
        assigned = self.client.assignment()
        if not assigned:
            return
        paused = self.client.paused()
        wanted = self.flow.paused()
        if more := [key for key in assigned if key in wanted and key not in paused]:
            self.client.pause(*more)
        if less := [key for key in paused if key not in wanted]:
            self.client.resume(*less)

    def _on_eased(self) -> None:
        self._apply_pauses()
        if not self.flow.outstanding:
            self._settled.set()

    def _on_rewound(self, key: PartitionKey, offset: int) -> None:
        if key in self.client.assignment():
            self.client.seek(key, offset)
        self._apply_pauses()

    async def _end(self) -> None:
        """Commit, give back, leave the group; within a few seconds, whatever the brokers do."""
        stopped = False
        try:
            await self._release(
                0.0 if self._away_since is not None else self._policy.revocation_timeout
            )
            async with answered(LEAVE_SECONDS):
                await self.client.stop()
            stopped = True
        except Exception as error:
            _log.debug(
                "kafka: leaving the group failed", cluster=self._policy.name, why=error_text(error)
            )
        finally:
            if not stopped:
                await self.client.cut()
                self.flow.forget()
