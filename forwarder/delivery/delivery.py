"""The shell around the scheduler: one dispatcher task, one task for each request in flight, one timer. No decision is taken here.

The dispatcher wakes when the buffer got something (`wake`, gathered for a few milliseconds, so that a busy listener pays for a flag, not
for a pass over the lanes), when a request ended, and when the timer for the next due batch, retry or probe fires. It never polls.

Invariants: a request that is in flight is in `_tasks`; whatever its sink does, its attempt is handed back to the scheduler once, or it is
cancelled by `close` and its events are among `undelivered()`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

import structlog

from forwarder.core.ack import Ack
from forwarder.core.clock import Backoff, Clock, Timer, wait_for_event
from forwarder.core.event import Chunk, Lane
from forwarder.core.outcome import Reply
from forwarder.core.ports import Books, Buffer, DeadLetters, Ordering, Sink
from forwarder.delivery.groups import Attempt
from forwarder.delivery.halting import Halts
from forwarder.delivery.inspecting import inspect
from forwarder.delivery.isolating import NO_SUSPECTS, Suspects
from forwarder.delivery.key_ledger import KeyStatus
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.limiter import Limiter, verdict_of
from forwarder.delivery.pausing import RetryPolicy
from forwarder.delivery.ports import Batcher
from forwarder.delivery.scheduler import Scheduler
from forwarder.delivery.settling import Settler
from forwarder.delivery.statistics import BATCH_EVENTS, BODY_BYTES, SECONDS, DeliveryStatistics, Histogram, UpstreamState
from forwarder.telemetry.labels import lane_label

GATHER_SECONDS: Final = 0.005
"""How long news from the buffer is gathered before a pass over the lanes, at least."""

TICK_SECONDS: Final = 0.001
"""The shortest timer: one that fires a rounding error too early mustn't be set again for no time at all."""

PASS_SHARE: Final = 10
"""News is gathered for so many times what the last pass took: with thousands of lanes, passes still take a tenth of the time at most."""

_log = structlog.get_logger()


class Delivery:
    """Brings batches to the upstream. It owns no socket: who made the sink closes it, after `close`."""

    def __init__(
        self,
        *,
        batcher: Batcher,
        buffer: Buffer,
        sink: Sink,
        dead_letters: DeadLetters,
        books: Books,
        clock: Clock,
        retry: RetryPolicy,
        concurrency: int | None,
        ordering_of: Callable[[Lane], Ordering],
        halts: Halts | None = None,
        keys: KeyCheck | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """`concurrency`: always so many requests at once; None: adaptive. `keys`: None where keys aren't verified."""
        self.halts = Halts() if halts is None else halts
        self._batcher = batcher
        self._sink = sink
        self._clock = clock
        self._keys = keys
        self._limiter = Limiter(concurrency)
        self._settler = Settler(buffer, dead_letters, books)
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
        self._durations = Histogram(SECONDS)
        self._batch_bytes = Histogram(BODY_BYTES)
        self._batch_events = Histogram(BATCH_EVENTS)
        buffer.on_arrival = self.wake
        if keys is not None:
            keys.on_answer(self._key_answered)

    def start(self) -> None:
        """Begin, on the running loop."""
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())
        self._awake.set()

    def wake(self) -> None:
        """The buffer got something. Costs a comparison when it was told so lately."""
        if self._gathering is None:
            self._gathering = self._clock.call_later(self._gather_seconds, self._awake.set)

    async def drain(self, deadline_seconds: float) -> bool:
        """Deliver everything, without waiting for batches to fill; whether nothing is left.

        Returns early once all that is left belongs to halted lanes that were probed a last time in vain. Cancelling it lets delivery go on.
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
        """Deliver everything, as `drain` does, but only while no attempt fails; halted lanes aren't probed. Whether nothing is left."""
        self._last_probes, self._only_while_it_works = {}, True
        return await self._wait_until_idle(deadline_seconds)

    async def finish_in_flight(self, deadline_seconds: float) -> None:
        """Begin no attempt any more, and wait for those in flight, unless the upstream fails. Cancelling it only ends the wait."""
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
        return not self._scheduler.pending_lanes() and not self._batcher.lanes()

    async def close(self) -> None:
        """Stop: cancel what is in flight (it may have arrived) and the key checks. Returns when no task of delivery runs any more."""
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()
        tasks = list(self._tasks.values())
        if self._dispatcher is not None:
            tasks.append(self._dispatcher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._keys is not None:
            await self._keys.close()

    def undelivered(self) -> list[Chunk]:
        """The chunks that delivery took from the buffer's queues and didn't settle: in flight or to be sent again."""
        return self._scheduler.unsettled()

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with one of these acks, in `lane` or anywhere, that wait to be sent again: they are the caller's to settle.

        Those that were never in a batch are the buffer's to withdraw; those in flight go their way.
        """
        found = self._scheduler.withdraw(acks, lane, self._clock.monotonic())
        if found:
            self._awake.set()
        return found

    def vouch(self, lane: Lane) -> None:
        """The upstream took an event of this lane just now, by another way: what it refuses alone is at fault itself."""
        self._scheduler.vouch(lane)
        self._awake.set()

    def oldest(self) -> dict[Lane, float]:
        """When the oldest event of each lane that is in flight or to be sent again was received, wall-clock seconds."""
        return self._scheduler.oldest()

    def statistics(self) -> DeliveryStatistics:
        """Figures since the start, and the state of now."""
        now, wall = self._clock.monotonic(), self._clock.now()
        upstream = self._scheduler.upstream
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
            upstream=UpstreamState(upstream.failing, upstream.why),
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
                _log.exception("a pass over the lanes failed in an unforeseen way; the next one comes with the next event or answer")

    def _pass(self) -> None:
        """Begin every request that may be made now, and set the timer for the next."""
        now, wall = self._clock.monotonic(), self._clock.now()
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
        self._timer = None if when is None else self._clock.call_later(max(when - now, TICK_SECONDS), self._awake.set)

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
            _log.exception("sending failed in an unforeseen way", lane=lane_label(attempt.lane))
            reply = Reply(None, error=f"unforeseen: {type(error).__name__}")
        seconds = self._clock.monotonic() - began
        suspects = NO_SUSPECTS
        if reply.status == HTTPStatus.BAD_REQUEST and not attempt.part.inspected:
            async with self._inspecting:
                suspects = await inspect(attempt.batch)
        self._landed(attempt, reply, seconds, suspects)

    def _landed(self, attempt: Attempt, reply: Reply, seconds: float, suspects: Suspects) -> None:
        del self._tasks[attempt]
        self._requests[str(reply.status or "error")] += 1
        self._durations.observe(seconds)
        scheduler, in_flight = self._scheduler, self._scheduler.in_flight
        outcome = scheduler.finished(attempt, reply, self._clock.monotonic(), self._clock.now(), suspects)
        self._limiter.observe(
            verdict_of(outcome),
            number=attempt.number,
            latest=scheduler.latest,
            in_flight=in_flight,
            size=attempt.batch.size,
            seconds=seconds,
        )
        self._awake.set()

    def _key_answered(self, api_key: str, status: KeyStatus) -> None:
        self._scheduler.key_answered(api_key, status, self._clock.monotonic())
        self.wake()

    def _is_drained(self) -> bool:
        """Whether nothing is left to wait for: only what halted lanes hold that had their last probe, if anything."""
        if self._only_while_it_works and self._scheduler.failing:
            return True
        if self._scheduler.in_flight:
            return False
        if self._held:
            return True
        return all(self._is_hopeless(lane) for lane in {*self._scheduler.pending_lanes(), *self._batcher.lanes()})

    def _is_hopeless(self, lane: Lane) -> bool:
        halted = self.halts.get(lane)
        return halted is not None and (self._only_while_it_works or halted.probes > (self._last_probes or {}).get(lane, -1))


def _report(task: asyncio.Task[None]) -> None:
    """A fault of our own in a task that nobody waits for must not go unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("settling an answer failed in an unforeseen way", exc_info=error)
