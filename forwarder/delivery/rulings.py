"""What an outcome does to its lane: one method for each of the closed set. Pure but for the settling.

A single event answered 400 is at fault only if the upstream takes others: it becomes a dead letter once an attempt of its lane that began
after the first refusal got 200. Refused before that, it is kept and sent again once there is such proof, because what refused it then may
have been a proxy that is gone by now: one request more for each, and no good event is buried.
"""

from __future__ import annotations

from forwarder.core.outcome import Bisect, Delivered, Halt, HaltReason, Outcome, Retry, Scope, Split
from forwarder.core.ports import Ordering, Reason
from forwarder.delivery.groups import Attempt
from forwarder.delivery.halting import Halts
from forwarder.delivery.lanes import LaneState
from forwarder.delivery.moment import Moment
from forwarder.delivery.pausing import RetryPolicy
from forwarder.delivery.settling import Settler
from forwarder.delivery.splitting import Replaces, halves


class Rulings:
    """Applies outcomes. The one method to call is `apply`; `execute` tries again what had no room among the dead letters."""

    def __init__(self, settler: Settler, buffer: Replaces, halts: Halts, policy: RetryPolicy) -> None:
        self._settler = settler
        self._buffer = buffer
        self._halts = halts
        self._policy = policy

    def apply(self, state: LaneState, attempt: Attempt, outcome: Outcome, at: Moment) -> None:
        """Let `outcome` act on the lane."""
        if not isinstance(outcome, Retry):
            state.pause.succeeded(attempt.number)
        if isinstance(outcome, Delivered):
            self._delivered(state, attempt, outcome)
            return
        if isinstance(outcome, Retry):
            self._retry(state, attempt, outcome, at)
        elif isinstance(outcome, Split):
            self._split(state, attempt, outcome, at)
        elif isinstance(outcome, Bisect):
            self._bisect(state, attempt, outcome, at)
        else:
            self._stop(state, attempt, outcome, at)
        if attempt.probe and state.lane in self._halts and not isinstance(outcome, Bisect | Halt):
            self._halts.probe_failed(state.lane, at.now)

    def execute(self, state: LaneState, at: Moment) -> bool:
        """Make dead letters of what waits for room among them; False if something still waits."""
        for group in list(state.groups):
            for part, sentence in [(part, part.sentence) for part in group.parts if part.sentence is not None]:
                if not self._settler.bury(part.batch, *sentence, at.wall):
                    return False
                state.settled(group, part)
        return True

    def _delivered(self, state: LaneState, attempt: Attempt, outcome: Delivered) -> None:
        state.accepted(attempt.number)
        self._settler.deliver(attempt.batch, outcome)
        halted = self._halts.get(state.lane)
        if halted is not None and not halted.by_key_check:
            proof = state.proven and halted.reason is HaltReason.REFUSES_ALL
            if attempt.probe or proof:
                self._halts.resume(state.lane)
        state.settled(attempt.group, attempt.part)

    def _retry(self, state: LaneState, attempt: Attempt, outcome: Retry, at: Moment) -> None:
        if outcome.scope is Scope.LANE:
            state.pause.failed(attempt.number, at.latest, at.now, outcome.not_before, outcome.why)
        limit = self._policy.give_up_after
        too_old = limit is not None and at.wall - attempt.batch.received_at > limit
        if too_old and self._settler.bury(attempt.batch, Reason.GAVE_UP, outcome.why, at.wall):
            state.settled(attempt.group, attempt.part)
        elif state.ordering is not Ordering.STRICT:
            state.retreat(attempt.group)

    def _split(self, state: LaneState, attempt: Attempt, outcome: Split, at: Moment) -> None:
        if attempt.batch.count == 1:
            self._condemn(state, attempt, Reason.TOO_LARGE, outcome.why, at)
            return
        state.teach(attempt.batch.size, at.now)
        self._halve(attempt)

    def _bisect(self, state: LaneState, attempt: Attempt, outcome: Bisect, at: Moment) -> None:
        state.refused(attempt.group, at.latest)
        if attempt.batch.count > 1:
            self._halve(attempt)
        elif state.proven:
            self._condemn(state, attempt, Reason.REFUSED, outcome.why, at)
        else:
            attempt.part.refused = True
            self._stop(state, attempt, Halt(HaltReason.REFUSES_ALL, outcome.why), at)
            return
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now, HaltReason.REFUSES_ALL, outcome.why)

    def _halve(self, attempt: Attempt) -> None:
        attempt.group.divide(attempt.part, *halves(attempt.batch, self._buffer))

    def _condemn(self, state: LaneState, attempt: Attempt, reason: Reason, why: str, at: Moment) -> None:
        if self._settler.bury(attempt.batch, reason, why, at.wall):
            state.settled(attempt.group, attempt.part)
            return
        attempt.part.sentence = reason, why
        self._halts.halt(state.lane, HaltReason.DEAD_LETTERS_FULL, f"no room for a refused event ({why})", now=at.now, wall=at.wall)

    def _stop(self, state: LaneState, attempt: Attempt, halt: Halt, at: Moment) -> None:
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now, halt.reason, halt.why)
        else:
            self._halts.halt(state.lane, halt.reason, halt.why, now=at.now, wall=at.wall)
