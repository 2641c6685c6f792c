"""Delivers batches: the asynchronous shell around the scheduler, which takes the decisions, and
delivery's statistics.

There is one dispatcher task, one task for each request in flight, and one timer. The dispatcher
wakes when the buffer has new events (`wake`; calls within a few milliseconds are one, so that a
busy listener pays for a flag, not for a pass over the lanes), when a request ends, and when the
timer for the next due batch, retry or probe fires. It never polls.

Invariants: a request in flight is in `_tasks`; whatever its sink does, its attempt is handed back
to the scheduler once, or it is cancelled by `close` and its events are among `undelivered()`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from forwarder.core.clock import Backoff, Clock, Timer, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.outcome import Reply
from forwarder.core.ports import Buffer, DeadLetters, Ledger, Ordering, ResendQueue, Sink
from forwarder.core.taps import TapPoint
from forwarder.delivery.batching import BatchSource
from forwarder.delivery.halting import HaltReport, Halts
from forwarder.delivery.keys import KeyCheck, KeyStatus
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.delivery.limiter import Limiter, load_signal
from forwarder.delivery.outcomes import Settler
from forwarder.delivery.scheduler import LaneRetry, Scheduler
from forwarder.delivery.splitting import Attempt
from forwarder.delivery.suspects import NO_SUSPECTS, Suspects, inspect
from forwarder.telemetry.labels import lane_label

GATHER_SECONDS: Final = 0.005
"""Least seconds from a `wake` to the pass over the lanes."""

TICK_SECONDS: Final = 0.001
"""The shortest timer: one that fires a rounding error too early isn't set again for no time at all.
"""

PASS_SHARE: Final = 10
"""The next pass comes after so many times what the last one took: with thousands of lanes, passes
take a tenth of the time at most.
"""

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BODY_BYTES: Final = tuple(float(4**power) for power in range(5, 13))
"""From 1 KiB to 16 MiB."""
BATCH_EVENTS: Final = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)

_log = structlog.get_logger()


class EventDelivery(ResendQueue, Protocol):
    """What brings a destination's events from its buffer to where they are kept, and settles them:
    `Delivery` for a service, `archive.archiver.Archiver` for files.
    """

    def start(self) -> None:
        """Start, on the running loop."""

    def wake(self) -> None:
        """The buffer has new events. Costs a comparison if it was called lately."""

    async def drain(self, deadline_seconds: float) -> bool:
        """Deliver everything now; return whether nothing is left. Returns early once what is left
        can't be delivered. Cancellation lets it continue.
        """

    async def drain_while_it_works(self, deadline_seconds: float) -> bool:
        """As `drain`, but only while no attempt fails, and what failed before isn't tried again."""

    async def finish_in_flight(self, deadline_seconds: float) -> None:
        """Begin no more attempts, and wait for those in flight, unless they fail. Cancellation only
        ends the wait.
        """

    def resume(self) -> None:
        """Begin attempts again, after `finish_in_flight`."""

    async def close(self) -> None:
        """Stop. What is in flight stays undelivered."""

    def undelivered(self) -> list[Chunk]:
        """The chunks that were taken from the buffer's queues and aren't settled."""

    def oldest(self) -> dict[Lane, float]:
        """When the oldest event of each lane that was taken from the buffer was received,
        wall-clock seconds.
        """

    def statistics(self) -> DeliveryStatistics:
        """Figures since the start, and the state of now."""


class Delivery(EventDelivery):
    """Sends batches to the upstream. It owns no socket: the sink's owner closes it,
    after `close`.
    """

    def __init__(
        self,
        *,
        batcher: BatchSource,
        buffer: Buffer,
        sink: Sink,
        dead_letters: DeadLetters,
        books: Ledger,
        clock: Clock,
        retry: RetryPolicy,
        concurrency: int | None,
        ordering_of: Callable[[Lane], Ordering],
        halts: Halts | None = None,
        keys: KeyCheck | None = None,
        backoff: Backoff | None = None,
        taps: TapPoint | None = None,
    ) -> None:
        """`concurrency`: a fixed number of requests at once; None: adaptive. `keys`: None where
        keys aren't verified.
        """
        self.halts = Halts() if halts is None else halts
        self._batcher = batcher
        self._sink = sink
        self._clock = clock
        self._keys = keys
        self._limiter = Limiter(concurrency)
        self._settler = Settler(buffer, dead_letters, books, taps)
        self._scheduler = Scheduler(
            batcher=batcher,
            buffer=buffer,
            settler=self._settler,
            halts=self.halts,
            policy=retry,
            ordering_of=ordering_of,
            keys=keys,
            backoff=backoff,
        )
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._dispatcher: asyncio.Task[None] | None = None
        self._awake = asyncio.Event()
        self._idle = asyncio.Event()
        self._inspecting = asyncio.Lock()
        self._gathering: Timer | None = None
        self._gather_seconds = GATHER_SECONDS
        self._timer: Timer | None = None
        self._last_probes: dict[Lane, int] | None = None
        self._only_while_it_works = False
        """Whether a drain ends as soon as an attempt fails."""
        self._held = False
        """Whether no attempt is begun."""
        self._requests: Counter[str] = Counter()
        self._durations = HistogramCounter(SECONDS)
        self._batch_bytes = HistogramCounter(BODY_BYTES)
        self._batch_events = HistogramCounter(BATCH_EVENTS)
        buffer.on_arrival = self.wake
        if keys is not None:
            keys.on_answer(self._key_answered)

    def start(self) -> None:
        """Start, on the running loop."""
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())
        self._awake.set()

    def wake(self) -> None:
        """The buffer has new events. Costs a comparison if it was called lately."""
        if self._gathering is None:
            self._gathering = self._clock.call_later(self._gather_seconds, self._awake.set)

    async def drain(self, deadline_seconds: float) -> bool:
        """Deliver everything, without waiting for batches to fill; return whether nothing is left.

        Returns early once all that is left belongs to halted lanes whose last probe failed.
        Cancellation lets delivery continue.
        """
        now = self._clock.monotonic()
        self._last_probes = {}
        for lane in self.halts:
            halted = self.halts.get(lane)
            if halted is not None:
                self._last_probes[lane] = halted.probes
                self.halts.probe_at(lane, now)
            if halted is not None and halted.by_key_check and self._keys is not None:
                self._keys.recheck(lane.api_key)
        self._only_while_it_works = self._held = False
        return await self._wait_until_idle(deadline_seconds)

    async def drain_while_it_works(self, deadline_seconds: float) -> bool:
        """As `drain`, but only while no attempt fails; halted lanes aren't probed."""
        self._last_probes = {}
        self._only_while_it_works = True
        return await self._wait_until_idle(deadline_seconds)

    async def finish_in_flight(self, deadline_seconds: float) -> None:
        """Begin no more attempts, and wait for those in flight, unless the upstream fails.
        Cancellation only ends the wait.
        """
        self._held = self._only_while_it_works = True
        await self._wait_until_idle(deadline_seconds)

    def resume(self) -> None:
        """Begin attempts again, after `finish_in_flight`."""
        self._held = False
        self._awake.set()

    async def _wait_until_idle(self, seconds: float) -> bool:
        self._idle.clear()
        self._awake.set()
        await wait_for_event(self._idle, seconds, self._clock)
        return not self._scheduler.lanes_with_batches() and not self._batcher.lanes()

    async def close(self) -> None:
        """Stop: cancel requests in flight (they may have arrived) and key checks. Returns when no
        task of delivery runs any more.
        """
        tasks = list(self._tasks.values())
        if self._dispatcher is not None:
            tasks.append(self._dispatcher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.wake()  # so that later calls find a timer, which never fires
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        if self._keys is not None:
            await self._keys.close()

    def undelivered(self) -> list[Chunk]:
        """The chunks that delivery took from the buffer's queues and hasn't settled: in flight or
        to be sent again.
        """
        return self._scheduler.unsettled_chunks()

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with one of these acks, in `lane` or any, that are to be sent
        again: the caller settles them.

        The buffer withdraws those that were never in a batch; those in flight stay.
        """
        withdrawn = self._scheduler.withdraw(acks, lane, self._clock.monotonic())
        if withdrawn:
            self._awake.set()
        return withdrawn

    def confirm_acceptance(self, lane: Lane) -> None:
        """The upstream accepted an event of this lane outside delivery: resume a `refuses_all`
        halt. What is refused alone from now on is dead-lettered. No effect if the lane has no
        unresolved refusal.
        """
        self._scheduler.confirm_acceptance(lane)
        self._awake.set()

    def oldest(self) -> dict[Lane, float]:
        """When the oldest event of each lane that is in flight or to be sent again was received,
        wall-clock seconds.
        """
        return self._scheduler.oldest_received_at()

    def statistics(self) -> DeliveryStatistics:
        """Figures since the start, and the state of now."""
        now = self._clock.monotonic()
        wall = self._clock.now()
        upstream_pause = self._scheduler.upstream_pause
        return DeliveryStatistics(
            requests=dict(self._requests),
            in_flight=self._scheduler.in_flight,
            concurrency_limit=self._limiter.limit,
            durations=self._durations.counts(),
            batch_bytes=self._batch_bytes.counts(),
            batch_events=self._batch_events.counts(),
            delivered=self._settler.delivered,
            warnings=dict(self._settler.warnings),
            halts=self.halts.report(now, wall),
            retries=self._scheduler.retries(now, wall),
            upstream=UpstreamHealth(upstream_pause.failing, upstream_pause.why),
        )

    async def _dispatch(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            if self._gathering is not None:
                self._gathering.cancel()
                self._gathering = None
            try:
                self._pass()
            except Exception:
                _log.exception(
                    "a pass over the lanes failed unexpectedly; the next one comes with the next "
                    "event or answer"
                )

    def _pass(self) -> None:
        """Begin every request that may be made now, and set the timer for the next one."""
        now = self._clock.monotonic()
        wall = self._clock.now()
        flush = self._last_probes is not None
        while not self._held and self._scheduler.in_flight < self._limiter.limit:
            attempt = self._scheduler.next_attempt(now, wall, flush=flush)
            if attempt is None:
                self._set_timer(self._scheduler.next_time(now, wall), now)
                break
            self._begin(attempt)
        if (flush or self._held) and self._is_drained():
            self._idle.set()
        self._gather_seconds = max(GATHER_SECONDS, PASS_SHARE * (self._clock.monotonic() - now))

    def _set_timer(self, when: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None
            if when is None
            else self._clock.call_later(max(when - now, TICK_SECONDS), self._awake.set)
        )

    def _begin(self, attempt: Attempt) -> None:
        self._batch_bytes.observe(attempt.batch.size)
        self._batch_events.observe(attempt.batch.count)
        task = self._tasks[attempt] = asyncio.get_running_loop().create_task(self._attempt(attempt))
        task.add_done_callback(_report)

    async def _attempt(self, attempt: Attempt) -> None:
        """Make one request. Cancellation drops it and settles nothing."""
        began = self._clock.monotonic()
        try:
            reply = await self._sink.send(attempt.batch)
        except Exception as error:
            _log.exception("sending failed unexpectedly", lane=lane_label(attempt.lane))
            reply = Reply(None, error=error_text(error))
        seconds = self._clock.monotonic() - began
        suspects = NO_SUSPECTS
        if reply.status == HTTPStatus.BAD_REQUEST and not attempt.part.inspected:
            async with self._inspecting:
                suspects = await inspect(attempt.batch)
        self._end(attempt, reply, seconds, suspects)

    def _end(self, attempt: Attempt, reply: Reply, seconds: float, suspects: Suspects) -> None:
        del self._tasks[attempt]
        self._requests[str(reply.status or "error")] += 1
        self._durations.observe(seconds)
        scheduler = self._scheduler
        in_flight = self._scheduler.in_flight
        outcome = scheduler.apply_reply(
            attempt, reply, self._clock.monotonic(), self._clock.now(), suspects
        )
        self._limiter.observe(
            load_signal(outcome),
            number=attempt.number,
            latest=scheduler.latest_attempt,
            in_flight=in_flight,
            size=attempt.batch.size,
            seconds=seconds,
        )
        self._awake.set()

    def _key_answered(self, api_key: str, status: KeyStatus) -> None:
        self._scheduler.apply_key_status(api_key, status, self._clock.monotonic())
        self.wake()

    def _is_drained(self) -> bool:
        """Whether a drain has nothing left to wait for, except halted lanes
        whose last probe failed.
        """
        if self._only_while_it_works and self._scheduler.failing:
            return True
        if self._scheduler.in_flight:
            return False
        if self._held:
            return True
        return all(
            self._is_hopeless(lane)
            for lane in {*self._scheduler.lanes_with_batches(), *self._batcher.lanes()}
        )

    def _is_hopeless(self, lane: Lane) -> bool:
        halted = self.halts.get(lane)
        return halted is not None and (
            self._only_while_it_works or halted.probes > (self._last_probes or {}).get(lane, -1)
        )


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """A histogram: `counts[i]` samples were above `bounds[i-1]` and at most `bounds[i]`; the last
    count has those above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class HistogramCounter:
    """Counts samples between bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a sample."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def counts(self) -> HistogramCounts:
        """The figures so far."""
        return HistogramCounts(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class UpstreamHealth:
    """Whether the upstream fails as a whole, and its last error."""

    failing: bool
    why: str


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """Figures since the start, and the state of now."""

    requests: Mapping[str, int]
    """By HTTP status, or "error"."""
    in_flight: int
    concurrency_limit: int
    durations: HistogramCounts
    """Seconds from the first byte sent to the answer."""
    batch_bytes: HistogramCounts
    """Bodies before compression, each attempt counted."""
    batch_events: HistogramCounts
    delivered: int
    """Events."""
    warnings: Mapping[str, int]
    """Delivered requests whose answer was odd, by kind (`DeliveryWarning`)."""
    halts: Sequence[HaltReport]
    retries: Sequence[LaneRetry]
    """Lanes that pause after a failure of their own, and aren't halted."""
    upstream: UpstreamHealth


def _report(task: asyncio.Task[None]) -> None:
    """Log an internal error of a task that isn't awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("settling an answer failed unexpectedly", exc_info=error)
