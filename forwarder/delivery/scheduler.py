"""Decides which request is sent next, over all lanes, and when. It awaits nothing and gets the time
as an argument; key checks run in the tasks of `keys.py`.

Invariants:

- Lanes get their turn in the order of `turns.py`.
- A lane sends pending work before fresh batches.
- While the upstream fails as a whole (503, network errors, timeouts), one attempt at a time tests
  it, and none before the pause is over.
- A halted lane sends only probes.
- A lane whose key has no status yet sends nothing for at most `FIRST_WAIT` seconds.
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
"""Roughly how many attempts pass between two sweeps of idle lanes' states."""

LOGGED_AFTER: Final = 3
"""Consecutive failures of a lane after which a line is logged; one or two are usual."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LaneRetry:
    """A lane whose last request failed: what the upstream said, and when it is sent again."""

    lane: Lane
    why: str
    next_attempt_at: float
    """Wall-clock seconds."""


class Scheduler:
    """Hands out attempts (`next_attempt`) and applies their replies (`apply_reply`). `now` is
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
        self._test_attempt: Attempt | None = None
        """The attempt that tests the failing upstream; None: none is in flight."""
        self._turns = Turns()
        self.upstream_pause = Pause(self._backoff)
        self.latest_attempt = 0
        """The number of the last attempt that began; 0: none."""
        self.in_flight = 0

    def next_attempt(self, now: float, wall: float, *, flush: bool) -> Attempt | None:
        """The next request to make now, or None. It is in flight until `apply_reply`. `flush`:
        batches needn't be due.
        """
        if self.upstream_pause.failing and (
            now < self.upstream_pause.until or self._test_attempt is not None
        ):
            return None
        moment = Moment(now, wall, self.latest_attempt)
        for lane in self._in_turn():
            attempt = self._next_of_lane(lane, moment, flush=flush)
            if attempt is not None:
                return attempt
        return None

    def apply_reply(
        self,
        attempt: Attempt,
        reply: Reply,
        now: float,
        wall: float,
        suspects: Suspects = NO_SUSPECTS,
    ) -> Outcome:
        """Apply the attempt's reply to its lane and return the outcome.

        `suspects`: for a 400, the suspicions of the local parser, by the event's index in the
        batch; empty if none, or if the batch was not inspected.
        """
        state = self._lanes[attempt.lane]
        outcome = classify(reply, html_before=state.html, secret=attempt.lane.api_key)
        state.html = is_web_page(reply)
        self._end(state, attempt)
        self._update_upstream_pause(attempt, outcome, now)
        streak_before = state.pause.streak
        moment = Moment(now, wall, self.latest_attempt)
        self._outcomes.apply(state, attempt, outcome, moment, suspects)
        self._log_lane_changes(state, streak_before)
        if state.idle(now):
            del self._lanes[attempt.lane]
        if self.latest_attempt % _SWEEP_EVERY == 0:
            self._lanes = {
                lane: state for lane, state in self._lanes.items() if not state.idle(now)
            }
        return outcome

    def next_time(self, now: float, wall: float) -> float | None:
        """The monotonic time at which to call `next_attempt` again, after it returned None. Lanes
        due already are left out: they wait for a reply. None: only a reply or a new event can help.
        """
        if self.upstream_pause.failing and self._test_attempt is not None:
            return None
        floor = self.upstream_pause.until if self.upstream_pause.failing else 0.0
        times = [
            max(time, floor)
            for time in self._possible_times(Moment(now, wall, self.latest_attempt))
        ]
        return min([time for time in times if now < time < math.inf], default=None)

    def unsettled_chunks(self) -> list[Chunk]:
        """The chunks that were taken from the buffer's queues and aren't settled, as one list, lane
        after lane.
        """
        return [
            chunk
            for state in self._lanes.values()
            for group in state.groups
            for part in group.parts
            for chunk in part.batch.chunks
        ]

    def withdraw(self, acks: Collection[Ack], lane: Lane | None, now: float) -> list[Chunk]:
        """Remove and return the chunks with these acks that aren't in flight. `lane`: None means
        every lane. The caller settles them.
        """
        wanted = frozenset(acks)
        states = [
            state for candidate, state in self._lanes.items() if lane is None or candidate == lane
        ]
        withdrawn = [chunk for state in states for chunk in state.withdraw(wanted)]
        for state in states:
            if state.idle(now):
                del self._lanes[state.lane]
        return withdrawn

    def oldest_received_at(self) -> dict[Lane, float]:
        """When the oldest event of each lane's unsettled work was received, wall-clock seconds."""
        return {
            lane: min(
                [part.batch.chunks[0].received_at for group in state.groups for part in group.parts]
            )
            for lane, state in self._lanes.items()
            if state.groups
        }

    def apply_key_status(self, api_key: str, status: KeyStatus, now: float) -> None:
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

    def confirm_acceptance(self, lane: Lane) -> None:
        """The upstream accepted an event of this lane outside delivery: resume a `refuses_all`
        halt. What is refused alone from now on is dead-lettered. No effect if the lane has no
        unresolved refusal.
        """
        state = self._lanes.get(lane)
        if state is None or state.refused_at is None:
            return
        state.accepts_others = True
        halted = self._halts.get(lane)
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
        return self.upstream_pause.failing or any(
            state.pause.failing for state in self._lanes.values()
        )

    def lanes_with_batches(self) -> list[Lane]:
        """The lanes that have unsettled batches, in flight or to be sent again."""
        return [lane for lane, state in self._lanes.items() if state.groups]

    def _in_turn(self) -> Iterator[Lane]:
        ready = [lane for lane, state in self._lanes.items() if state.ready() is not None]
        return self._turns.order(
            ready, self._batcher.lanes(), pending_first=self.upstream_pause.failing
        )

    def _next_of_lane(self, lane: Lane, moment: Moment, *, flush: bool) -> Attempt | None:
        """Begin the lane's next attempt; None if it can't send now."""
        halted = self._halts.get(lane)
        if halted is not None:
            return self._probe(lane, halted, moment, flush=flush)
        if self._keys is not None and not self._check_key(lane, self._keys, moment):
            return None
        state = self._lanes.get(lane)
        if state is None:
            return self._begin_fresh_batch(self._create_state(lane), moment, flush=flush)
        if state.in_flight and (state.pause.failing or state.ordering is Ordering.STRICT):
            return None
        if state.pause.failing and moment.now < state.pause.until:
            return None
        group = state.ready()
        if group is None:
            return self._begin_fresh_batch(state, moment, flush=flush)
        deferred = group.parts[0].deferred_dead_letter is not None
        if deferred and not self._retry_dead_lettering_or_halt(state, moment):
            return None
        if not group.parts:  # all of it was dead-lettered just now: choose again
            return self._next_of_lane(lane, moment, flush=flush)
        return self._begin(state, moment, group, group.parts[0])

    def _begin_fresh_batch(
        self, state: LaneState, moment: Moment, *, flush: bool
    ) -> Attempt | None:
        """Send a fresh batch, if one is due and the lane may send it beside what is in flight."""
        batch = (
            self._next_batch(state, moment, flush=flush)
            if moment.now >= state.parallel_from()
            else None
        )
        return None if batch is None else self._begin(state, moment, state.open(batch))

    def _next_batch(
        self, state: LaneState, moment: Moment, *, flush: bool, max_events: int | None = None
    ) -> Batch | None:
        """The lane's next batch from the buffer; None if none is due, or order forbids it."""
        blocked = NO_IDS if state.ordering is Ordering.NONE else state.blocked
        batch = self._batcher.next(
            state.lane,
            moment.wall,
            blocked=blocked,
            max_body=state.max_body(moment.now),
            flush=flush,
            max_events=max_events,
        )
        if batch is not None:
            self._turns.count_batch(state.lane, batch.size)
        return batch

    def _probe(self, lane: Lane, halted: Halted, moment: Moment, *, flush: bool) -> Attempt | None:
        """A halted lane's probe, if one is due."""
        if halted.by_key_check:
            if self._keys is not None:
                self._keys.ask(lane.api_key)
            return None
        state = self._lanes.get(lane) or self._create_state(lane)
        if moment.now < max(halted.next_probe, state.pause.until) or state.in_flight:
            return None
        if not self._outcomes.retry_dead_lettering(state, moment):
            self._halts.probe_failed(lane, moment.now)
            return None
        if halted.reason is HaltReason.DEAD_LETTERS_FULL:
            self._halts.resume(lane)
            return self._next_of_lane(lane, moment, flush=flush)
        return self._begin_probe(
            state, moment, single_event=halted.reason is HaltReason.REFUSES_ALL
        )

    def _begin_probe(
        self, state: LaneState, moment: Moment, *, single_event: bool
    ) -> Attempt | None:
        """Begin a probe: the first ready part, or with `single_event`, or if no part is ready, one
        event. None if none may be sent.
        """
        group = state.ready()
        if group is not None and not single_event:
            return self._begin(state, moment, group, group.parts[0], probe=True)
        number = self.latest_attempt + 1  # the number that _begin will give it
        chosen = probe_candidate(state, before_fresh=True)
        if chosen is None:
            batch = self._next_batch(state, moment, flush=True, max_events=1)
            if batch is not None:
                state.fresh_probed = number
                state.open(batch)  # stays pending if order lets only an older event be sent
            chosen = probe_candidate(state, before_fresh=False)
        if chosen is None:
            return None
        chosen.part.probed = number  # before carve, so that all pieces inherit it
        part = carve(chosen, self._buffer.replace)
        return self._begin(state, moment, chosen.group, part, probe=True)

    def _retry_dead_lettering_or_halt(self, state: LaneState, moment: Moment) -> bool:
        """Like `OutcomeHandler.retry_dead_lettering`, but halts the lane if there is still no
        room.
        """
        if self._outcomes.retry_dead_lettering(state, moment):
            return True
        self._halts.halt(
            state.lane,
            HaltReason.DEAD_LETTERS_FULL,
            "no room for refused events",
            now=moment.now,
            wall=moment.wall,
        )
        return False

    def _check_key(self, lane: Lane, keys: KeyCheck, moment: Moment) -> bool:
        """Whether the lane's key lets it send now. Starts a key check if one is due; halts the lane
        if the upstream refuses the key.
        """
        status = keys.ask(lane.api_key)
        if status is KeyStatus.REFUSED:
            why = "the upstream's /decide answers 401 to this project key"
            self._halts.halt(
                lane,
                HaltReason.UNKNOWN_KEY,
                why,
                now=moment.now,
                wall=moment.wall,
                by_key_check=True,
            )
            self._halts.probe_at(lane, keys.again_at(lane.api_key))
            return False
        return status is not KeyStatus.UNKNOWN or moment.now >= keys.wait_until(lane.api_key)

    def _key_wait(self, lane: Lane) -> float:
        """Until when the lane's first batch waits for the key check; 0.0: it doesn't wait. Starts a
        key check if one is due.
        """
        keys = self._keys
        return (
            keys.wait_until(lane.api_key)
            if keys is not None and keys.ask(lane.api_key) is KeyStatus.UNKNOWN
            else 0.0
        )

    def _begin(
        self,
        state: LaneState,
        moment: Moment,
        group: PartGroup,
        part: BatchPart | None = None,
        *,
        probe: bool = False,
    ) -> Attempt:
        self.latest_attempt += 1
        attempt = Attempt(self.latest_attempt, state.lane, group, part or group.parts[0], probe)
        group.in_flight = attempt.part
        attempt.part.joinable = False
        state.in_flight += 1
        state.began = moment.now
        self.in_flight += 1
        # Registers a new state; moves a known one to the end, so that lanes with pending work take
        # turns.
        self._lanes[state.lane] = self._lanes.pop(state.lane, state)
        self._turns.count_request(state.lane)
        if self.upstream_pause.failing:
            self._test_attempt = attempt
        return attempt

    def _end(self, state: LaneState, attempt: Attempt) -> None:
        attempt.group.in_flight = None
        state.in_flight -= 1
        self.in_flight -= 1
        if self._test_attempt is attempt:
            self._test_attempt = None

    def _update_upstream_pause(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Pause the upstream or end its pause; log changes."""
        was_failing = self.upstream_pause.failing
        if isinstance(outcome, Retry) and outcome.scope is Scope.UPSTREAM:
            self.upstream_pause.failed(
                attempt.number, self.latest_attempt, now, outcome.not_before, outcome.why
            )
            if not was_failing:
                _log.warning("upstream fails, deliveries wait", upstream_said=outcome.why)
            return
        self.upstream_pause.succeeded(attempt.number)
        if was_failing and not self.upstream_pause.failing:
            _log.info("upstream is back")

    def _log_lane_changes(self, state: LaneState, streak_before: int) -> None:
        """Log when a lane's requests keep failing, and when they recover. `streak_before`: how many
        had failed before this one.
        """
        if streak_before < LOGGED_AFTER <= state.pause.streak:
            _log.warning(
                "lane keeps failing, its deliveries wait",
                lane=lane_label(state.lane),
                upstream_said=state.pause.why,
            )
        elif streak_before >= LOGGED_AFTER and not state.pause.failing:
            _log.info("lane recovered", lane=lane_label(state.lane), failures=streak_before)

    def _create_state(self, lane: Lane) -> LaneState:
        """A new state; it is kept once an attempt begins with it."""
        return LaneState(lane, self._ordering_of(lane), self._backoff)

    def _possible_times(self, moment: Moment) -> Iterator[float]:
        """When each lane, and the failing upstream, may get its next attempt."""
        buffered = self._batcher.lanes()
        if self.upstream_pause.failing and (buffered or self.lanes_with_batches()):
            yield self.upstream_pause.until
        for lane in {*buffered, *self.lanes_with_batches()}:
            yield from self._possible_times_of_lane(lane, moment)

    def _possible_times_of_lane(self, lane: Lane, moment: Moment) -> Iterator[float]:
        halted = self._halts.get(lane)
        state = self._lanes.get(lane)
        if halted is not None:
            probe = max(halted.next_probe, state.pause.until if state is not None else 0.0)
            # a source's SendingPace may delay a probe that is due
            due = self._batcher.due_at(lane, moment.wall) if probe <= moment.now else None
            yield probe if due is None else max(probe, _monotonic(due, moment))
            return
        if (end := self._key_wait(lane)) > moment.now:
            yield end
        elif state is not None and state.pause.failing and state.groups:
            yield state.pause.until
        elif (due := self._batcher.due_at(lane, moment.wall)) is not None:
            # the lane stays paused after its last batch was dead-lettered as gave_up
            yield max(
                _monotonic(due, moment) if due > moment.wall else moment.now,
                max(state.parallel_from(), state.pause.until) if state is not None else 0.0,
            )


def _monotonic(due: float, moment: Moment) -> float:
    """The monotonic time of the wall-clock time `due`."""
    return moment.now + due - moment.wall
