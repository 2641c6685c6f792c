"""Schedules requests: the next one to make, over all lanes, and when there may be one. Pure: no
tasks, no clock.

Invariants: lanes are asked in the order of `turns.py`, and a lane sends pending work before fresh
batches; while the upstream fails as a whole (503, network errors, time-outs), one attempt at a
time tests it, and none before the pause is over; a halted lane sends only probes; a lane whose key
is being checked sends nothing yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from forwarder.core.clock import Backoff
from forwarder.core.event import NO_IDS, Ack, Batch, Chunk, Lane
from forwarder.core.outcome import HaltReason, Outcome, Reply, Retry, Scope
from forwarder.core.ports import Buffer, Ordering
from forwarder.delivery.batching import BatchSource
from forwarder.delivery.classify import classify, is_web_page
from forwarder.delivery.halting import Halted, Halts, carve, probe_candidate
from forwarder.delivery.keys import KeyCheck, KeyStatus
from forwarder.delivery.lane_state import LaneState, Moment, Pause, RetryPolicy
from forwarder.delivery.outcomes import OutcomeHandler, Settler
from forwarder.delivery.splitting import Attempt, BatchPart, PartGroup
from forwarder.delivery.suspects import NO_SUSPECTS, Suspects
from forwarder.delivery.turns import Turns
from forwarder.telemetry.labels import lane_label

_SWEEP_EVERY: Final = 1000
"""Attempts between two sweeps of the states of idle lanes."""

LOGGED_AFTER: Final = 3
"""Consecutive failures of a lane after which a line is logged; one or two are usual."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LaneRetry:
    """A lane whose last request failed: what the upstream said, and when the next attempt may be,
    wall-clock seconds.
    """

    lane: Lane
    why: str
    next_attempt: float


class Scheduler:
    """Hands out attempts (`next_attempt`) and takes their replies (`finished`). `now` is
    monotonic, `wall` wall-clock seconds.
    """

    def __init__(
        self,
        *,
        batcher: BatchSource,
        buffer: Buffer,
        settler: Settler,
        halts: Halts,
        policy: RetryPolicy,
        ordering_of: Callable[[Lane], Ordering],
        keys: KeyCheck | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._batcher = batcher
        self._buffer = buffer
        self._halts = halts
        self._ordering_of = ordering_of
        self._keys = keys
        self._backoff = backoff or Backoff(policy.initial, policy.maximum)
        self._outcomes = OutcomeHandler(settler, buffer, halts, policy)
        self._lanes: dict[Lane, LaneState] = {}
        self._testing: Attempt | None = None
        self._turns = Turns()
        self.upstream = Pause(self._backoff)
        self.latest = 0
        self.in_flight = 0

    def next_attempt(self, now: float, wall: float, *, flush: bool) -> Attempt | None:
        """The next request to make now, or None. It is in flight until `finished`. `flush`:
        batches needn't be due.
        """
        if self.upstream.failing and (now < self.upstream.until or self._testing is not None):
            return None
        at = Moment(now, wall, self.latest)
        for lane in self._in_turn():
            attempt = self._of_lane(lane, at, flush=flush)
            if attempt is not None:
                return attempt
        return None

    def finished(
        self,
        attempt: Attempt,
        reply: Reply,
        now: float,
        wall: float,
        suspects: Suspects = NO_SUSPECTS,
    ) -> Outcome:
        """The attempt got `reply`: settle, split, pause or halt accordingly. `suspects`: those of
        the local parser, if it was asked.
        """
        state = self._lanes[attempt.lane]
        outcome = classify(reply, html_before=state.html, secret=attempt.lane.api_key)
        state.html = is_web_page(reply)
        self._end(state, attempt)
        self._watch_upstream(attempt, outcome, now)
        streak = state.pause.streak
        self._outcomes.apply(state, attempt, outcome, Moment(now, wall, self.latest), suspects)
        self._watch_lane(state, streak)
        if state.in_flight == 0 and state.idle(now):
            del self._lanes[attempt.lane]
        if self.latest % _SWEEP_EVERY == 0:
            self._lanes = {
                lane: state for lane, state in self._lanes.items() if not state.idle(now)
            }
        return outcome

    def next_time(self, now: float, wall: float) -> float | None:
        """The monotonic time of the next possible attempt if nothing else
        happens; None: there is none.
        """
        if self.upstream.failing and self._testing is not None:
            return None
        floor = self.upstream.until if self.upstream.failing else 0.0
        times = [max(time, floor) for time in self._times(Moment(now, wall))]
        return min([time for time in times if now < time < math.inf], default=None)

    def unsettled(self) -> list[Chunk]:
        """The chunks that were taken from the buffer's queues and aren't settled, by lane."""
        return [
            chunk
            for state in self._lanes.values()
            for group in state.groups
            for part in group.parts
            for chunk in part.batch.chunks
        ]

    def withdraw(self, acks: Collection[Ack], lane: Lane | None, now: float) -> list[Chunk]:
        """Take back the chunks with these acks, in `lane` or any, that aren't in flight; the
        caller settles them.
        """
        wanted = frozenset(acks)
        states = [state for other, state in self._lanes.items() if lane in (None, other)]
        withdrawn = [chunk for state in states for chunk in state.withdraw(wanted)]
        for state in states:
            if state.in_flight == 0 and state.idle(now):
                del self._lanes[state.lane]
        return withdrawn

    def oldest(self) -> dict[Lane, float]:
        """When the oldest event of each lane's unsettled work was received, wall-clock seconds."""
        return {
            lane: min(
                [part.batch.chunks[0].received_at for group in state.groups for part in group.parts]
            )
            for lane, state in self._lanes.items()
            if state.groups
        }

    def key_answered(self, api_key: str, status: KeyStatus, now: float) -> None:
        """The key check answered: resume the key's halted lanes, or wait for the next check."""
        for lane in (Lane(api_key), Lane(api_key, historical=True)):
            halted = self._halts.get(lane)
            if halted is None or not halted.by_key_check:
                continue
            if status is KeyStatus.REFUSED:
                self._halts.probe_failed(lane, now)
                self._halts.probe_at(lane, self._keys.again_at(api_key) if self._keys else now)
            else:
                self._halts.resume(lane)

    def vouch(self, lane: Lane) -> None:
        """The upstream accepts events of this lane: an event that was refused
        alone is at fault itself.
        """
        state = self._lanes.get(lane)
        halted = self._halts.get(lane)
        if state is None or state.refused_at is None:
            return
        state.proven = True
        if (
            halted is not None
            and halted.reason is HaltReason.REFUSES_ALL
            and not halted.by_key_check
        ):
            self._halts.resume(lane)

    def retries(self, now: float, wall: float) -> list[LaneRetry]:
        """The lanes that pause after a failure of their own; halts and a failing upstream are
        reported elsewhere.
        """
        return [
            LaneRetry(lane, state.pause.why, wall + max(0.0, state.pause.until - now))
            for lane, state in self._lanes.items()
            if state.pause.failing and lane not in self._halts
        ]

    @property
    def failing(self) -> bool:
        """Whether the last attempts failed, of the upstream as a whole or of any lane."""
        return self.upstream.failing or any(state.pause.failing for state in self._lanes.values())

    def pending_lanes(self) -> list[Lane]:
        """The lanes that have unsettled batches, in flight or to be sent again."""
        return [lane for lane, state in self._lanes.items() if state.groups]

    def _in_turn(self) -> Iterator[Lane]:
        pending = [lane for lane, state in self._lanes.items() if state.ready() is not None]
        return self._turns.order(
            pending, self._batcher.lanes(), pending_first=self.upstream.failing
        )

    def _of_lane(self, lane: Lane, at: Moment, *, flush: bool) -> Attempt | None:
        halted = self._halts.get(lane)
        if halted is not None:
            return self._probe(lane, halted, at, flush=flush)
        if self._keys is not None and not self._cleared(lane, self._keys, at):
            return None
        state = self._lanes.get(lane)
        if state is None:
            return self._fresh(self._state(lane), at, flush=flush)
        if state.in_flight and (state.pause.failing or state.ordering is Ordering.STRICT):
            return None
        if state.pause.failing and at.now < state.pause.until:
            return None
        group = state.ready()
        if group is None:
            return self._fresh(state, at, flush=flush)
        if group.parts[0].dead_letter_as is not None and not self._dead_letter_deferred(state, at):
            return None
        return (
            self._begin(state, at, group, group.parts[0])
            if group.parts
            else self._of_lane(lane, at, flush=flush)
        )

    def _fresh(self, state: LaneState, at: Moment, *, flush: bool) -> Attempt | None:
        batch = self._take(state, at, flush=flush) if at.now >= state.parallel_from() else None
        return None if batch is None else self._begin(state, at, state.open(batch))

    def _take(
        self, state: LaneState, at: Moment, *, flush: bool, max_events: int | None = None
    ) -> Batch | None:
        blocked = NO_IDS if state.ordering is Ordering.NONE else state.blocked
        batch = self._batcher.next(
            state.lane,
            at.wall,
            blocked=blocked,
            max_body=state.max_body(at.now),
            flush=flush,
            max_events=max_events,
        )
        if batch is not None:
            self._turns.count_batch(state.lane, batch.size)
        return batch

    def _probe(self, lane: Lane, halted: Halted, at: Moment, *, flush: bool) -> Attempt | None:
        """A halted lane's probe, if one is due."""
        if halted.by_key_check:
            if self._keys is not None:
                self._keys.ask(lane.api_key)
            return None
        state = self._lanes.get(lane) or self._state(lane)
        if at.now < max(halted.next_probe, state.pause.until) or state.in_flight:
            return None
        if not self._outcomes.dead_letter_deferred(state, at):
            self._halts.probe_failed(lane, at.now)
            return None
        if halted.reason is HaltReason.DEAD_LETTERS_FULL:
            self._halts.resume(lane)
            return self._of_lane(lane, at, flush=flush)
        return self._probe_with(state, at, single=halted.reason is HaltReason.REFUSES_ALL)

    def _probe_with(self, state: LaneState, at: Moment, *, single: bool) -> Attempt | None:
        group = state.ready()
        if group is not None and not single:
            return self._begin(state, at, group, group.parts[0], probe=True)
        chosen = probe_candidate(state, before_fresh=True)
        if chosen is None:
            batch = self._take(state, at, flush=True, max_events=1)
            if batch is not None:
                state.fresh_probed = self.latest + 1
                state.open(batch)
            chosen = probe_candidate(state, before_fresh=False)
        if chosen is None:
            return None
        chosen.part.probed = self.latest + 1
        return self._begin(state, at, chosen.group, carve(chosen, self._buffer.replace), probe=True)

    def _dead_letter_deferred(self, state: LaneState, at: Moment) -> bool:
        """Dead-letter what found no room among the dead letters; if there is still
        none, the lane halts again.
        """
        if self._outcomes.dead_letter_deferred(state, at):
            return True
        self._halts.halt(
            state.lane,
            HaltReason.DEAD_LETTERS_FULL,
            "no room for refused events",
            now=at.now,
            wall=at.wall,
        )
        return False

    def _cleared(self, lane: Lane, keys: KeyCheck, at: Moment) -> bool:
        status = keys.ask(lane.api_key)
        if status is KeyStatus.REFUSED:
            why = "the upstream's /decide answers 401 to this project key"
            self._halts.halt(
                lane, HaltReason.UNKNOWN_KEY, why, now=at.now, wall=at.wall, by_key_check=True
            )
            self._halts.probe_at(lane, keys.again_at(lane.api_key))
            return False
        return status is not KeyStatus.UNKNOWN or at.now >= keys.wait_until(lane.api_key)

    def _key_wait(self, lane: Lane) -> float:
        """Until when the lane's first batch waits for the key check."""
        keys = self._keys
        return (
            keys.wait_until(lane.api_key)
            if keys is not None and keys.ask(lane.api_key) is KeyStatus.UNKNOWN
            else 0.0
        )

    def _begin(
        self,
        state: LaneState,
        at: Moment,
        group: PartGroup,
        part: BatchPart | None = None,
        *,
        probe: bool = False,
    ) -> Attempt:
        self.latest += 1
        attempt = Attempt(self.latest, state.lane, group, part or group.parts[0], probe)
        group.in_flight = attempt.part
        attempt.part.joinable = False
        state.in_flight += 1
        state.began = at.now
        self.in_flight += 1
        self._lanes[state.lane] = self._lanes.pop(state.lane, state)
        self._turns.count_request(state.lane)
        if self.upstream.failing:
            self._testing = attempt
        return attempt

    def _end(self, state: LaneState, attempt: Attempt) -> None:
        attempt.group.in_flight = None
        state.in_flight -= 1
        self.in_flight -= 1
        if self._testing is attempt:
            self._testing = None

    def _watch_upstream(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Track whether the upstream as a whole answers; log changes."""
        was_failing = self.upstream.failing
        if isinstance(outcome, Retry) and outcome.scope is Scope.UPSTREAM:
            self.upstream.failed(attempt.number, self.latest, now, outcome.not_before, outcome.why)
            if not was_failing:
                _log.warning("upstream fails, deliveries wait", upstream_said=outcome.why)
            return
        self.upstream.succeeded(attempt.number)
        if was_failing and not self.upstream.failing:
            _log.info("upstream is back")

    def _watch_lane(self, state: LaneState, streak: int) -> None:
        """Log when a lane's requests keep failing, and when they recover; `streak` is how many had
        failed before this one.
        """
        if streak < LOGGED_AFTER <= state.pause.streak:
            _log.warning(
                "lane keeps failing, its deliveries wait",
                lane=lane_label(state.lane),
                upstream_said=state.pause.why,
            )
        elif streak >= LOGGED_AFTER and not state.pause.failing:
            _log.info("lane recovered", lane=lane_label(state.lane), failures=streak)

    def _state(self, lane: Lane) -> LaneState:
        """A new state; it is kept once an attempt begins with it."""
        return LaneState(lane, self._ordering_of(lane), self._backoff)

    def _times(self, at: Moment) -> Iterator[float]:
        waiting = self._batcher.lanes()
        if self.upstream.failing and (waiting or self.pending_lanes()):
            yield self.upstream.until
        for lane in {*waiting, *self.pending_lanes()}:
            yield from self._times_of(lane, at)

    def _times_of(self, lane: Lane, at: Moment) -> Iterator[float]:
        halted = self._halts.get(lane)
        state = self._lanes.get(lane)
        if halted is not None:
            probe = max(halted.next_probe, state.pause.until if state is not None else 0.0)
            # the pace may hold back a probe
            due = self._batcher.due_at(lane, at.wall) if probe <= at.now else None
            yield probe if due is None else max(probe, at.now + due - at.wall)
            return
        if (end := self._key_wait(lane)) > at.now:
            yield end
        elif state is not None and state.pause.failing and state.groups:
            yield state.pause.until
        elif (due := self._batcher.due_at(lane, at.wall)) is not None:
            # a lane that gave up its last batch pauses still
            yield max(
                at.now + due - at.wall if due > at.wall else at.now,
                max(state.parallel_from(), state.pause.until) if state is not None else 0.0,
            )
