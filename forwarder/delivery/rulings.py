"""What an outcome does to its lane: one method for each of the closed set. Pure but for the settling.

A single event answered 400 or 413 is at fault only if the upstream accepts others: it becomes a dead letter once an attempt of its lane
that began after the first refusal got 200. Refused before that, it is kept and sent again once there is such proof, because what refused
it then may have been a proxy that is gone by now: one request more for each, and no good event becomes a dead letter.

Of a batch answered 400, the events that a local parser suspects are sent apart from the others (isolating.py). Suspects of one kind that
are refused together are sent one by one, the least odd first, until there are precedents for the others (precedents.py). Only what holds
no suspects is bisected.
"""

from __future__ import annotations

from functools import partial

from forwarder.core.outcome import Bisect, Delivered, Halt, HaltReason, Outcome, Retry, Scope, Split
from forwarder.core.ports import Ordering, Reason
from forwarder.delivery.groups import Attempt, Group, Part
from forwarder.delivery.halting import Halts
from forwarder.delivery.isolating import NO_SUSPECTS, Suspects, exonerate, isolate, representative, take_out
from forwarder.delivery.lanes import LaneState
from forwarder.delivery.moment import Moment
from forwarder.delivery.pausing import RetryPolicy
from forwarder.delivery.settling import Settler
from forwarder.delivery.splitting import Replaces, halves
from forwarder.wire.strict import Kind, Suspicion


class Rulings:
    """Applies outcomes. The one method to call is `apply`; `execute` tries again what had no room among the dead letters."""

    def __init__(self, settler: Settler, buffer: Replaces, halts: Halts, policy: RetryPolicy) -> None:
        self._settler = settler
        self._buffer = buffer
        self._halts = halts
        self._policy = policy

    def apply(self, state: LaneState, attempt: Attempt, outcome: Outcome, at: Moment, suspects: Suspects = NO_SUSPECTS) -> None:
        """Let `outcome` act on the lane. `suspects`: what the local parser suspects of a batch that was answered 400."""
        if not isinstance(outcome, Retry):
            state.pause.succeeded(attempt.number)
        if isinstance(outcome, Delivered):
            self._delivered(state, attempt, outcome, at)
            return
        if isinstance(outcome, Retry):
            self._retry(state, attempt, outcome, at)
        elif isinstance(outcome, Split):
            self._split(state, attempt, outcome, at)
        elif isinstance(outcome, Bisect):
            self._bisect(state, attempt, outcome, at, suspects)
        else:
            self._stop(state, attempt, outcome, at)
        if attempt.probe and isinstance(outcome, Retry) and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now)

    def execute(self, state: LaneState, at: Moment) -> bool:
        """Make dead letters of what waits for room among them; False if something still waits."""
        for group in list(state.groups):
            for part, sentence in [(part, part.sentence) for part in group.parts if part.sentence is not None]:
                if not self._settler.bury(part.batch, *sentence, at.wall):
                    return False
                state.settled(group, part)
        return True

    def _delivered(self, state: LaneState, attempt: Attempt, outcome: Delivered, at: Moment) -> None:
        state.accepted(attempt.number, attempt.batch.size)
        kinds = attempt.part.suspects
        for kind in kinds:
            state.precedents.accept(kind, at.now)
        self._settler.deliver(attempt.batch, outcome)
        halted = self._halts.get(state.lane)
        if halted is not None and not halted.by_key_check:
            proof = state.proven and halted.reason is HaltReason.REFUSES_ALL
            if attempt.probe or proof:
                self._halts.resume(state.lane)
        state.settled(attempt.group, attempt.part)
        if kinds:
            for group in state.groups:
                exonerate(group, kinds)

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
        state.refused(attempt.group, at.latest)
        if attempt.batch.count > 1:
            state.shrink_max_body(attempt.batch.size, at)
            self._halve(attempt)
        elif state.proven:
            self._dead_letter(state, attempt.group, attempt.part, (Reason.TOO_LARGE, outcome.why), at)
        else:
            state.forget_max_body()
            self._refused_without_proof(state, attempt, attempt.part, outcome.why, at)
            return
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now)

    def _bisect(self, state: LaneState, attempt: Attempt, outcome: Bisect, at: Moment, suspects: Suspects) -> None:
        state.refused(attempt.group, at.latest)
        part = self._inspected(state, attempt, suspects, at)
        if part is None:
            pass
        elif part.batch.count == 1 and not state.proven:
            self._refused_without_proof(state, attempt, part, outcome.why, at)
            return
        elif part.suspects:
            self._refuse_suspects(state, attempt.group, part, outcome.why, at)
        elif part.batch.count > 1:
            self._halve(attempt)
        else:
            self._dead_letter(state, attempt.group, part, (Reason.REFUSED, outcome.why), at)
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now, HaltReason.REFUSES_ALL, outcome.why)

    def _inspected(self, state: LaneState, attempt: Attempt, suspects: Suspects, at: Moment) -> Part | None:
        """The part that was refused, all or none of it suspects; None if it was neither, and its suspects have been isolated."""
        part = attempt.part
        part.inspected = True
        suspects = {index: one for index, one in suspects.items() if not state.precedents.clears(one, at.now)}
        if not suspects:
            return part
        covered = partial(state.precedents.covers, now=at.now)
        parts = isolate(state.ordering, attempt.group, part, suspects, self._buffer, covered=covered)
        return parts[0] if len(parts) == 1 else None

    def _refuse_suspects(self, state: LaneState, group: Group, part: Part, why: str, at: Moment) -> None:
        """Suspects of one kind were refused, and nothing else was with them."""
        kinds = part.suspects
        group.refused_kinds |= kinds
        if part.batch.count == 1:
            suspicion = group.suspicions[part.batch.chunks[0]]
            state.precedents.refuse(suspicion, at.now)
            self._dead_letter(state, group, part, (Reason.REFUSED, f"{why} (the event has {suspicion.words})"), at)
        for kind in kinds if state.proven else ():
            self._dead_letter_by_precedent(state, kind, why, at)
        for kind in kinds:
            several = [one for one in group.suspects(kind) if one.batch.count > 1]
            if several:
                representative(state.ordering, group, several[0])

    def _dead_letter_by_precedent(self, state: LaneState, kind: Kind, why: str, at: Moment) -> None:
        words = f"{why} (not sent alone: the event has {' and '.join(kind)}, like others that were refused alone)"

        def is_covered(suspicion: Suspicion) -> bool:
            return suspicion.oddities == kind and state.precedents.covers(suspicion, at.now)

        for group in [group for group in state.groups if kind in group.refused_kinds]:
            for part in group.suspects(kind):
                covered = take_out(group, part, is_covered)
                if covered is not None:
                    self._dead_letter(state, group, covered, (Reason.REFUSED, words), at)
            group.join()

    def _refused_without_proof(self, state: LaneState, attempt: Attempt, part: Part, why: str, at: Moment) -> None:
        """An event was refused alone, and nothing shows that the upstream accepts any other."""
        part.refused = True
        self._stop(state, attempt, Halt(HaltReason.REFUSES_ALL, why), at)

    def _halve(self, attempt: Attempt) -> None:
        attempt.group.divide(attempt.part, *halves(attempt.batch, self._buffer))

    def _dead_letter(self, state: LaneState, group: Group, part: Part, sentence: tuple[Reason, str], at: Moment) -> None:
        reason, why = sentence
        if self._settler.bury(part.batch, reason, why, at.wall):
            state.settled(group, part)
            return
        part.sentence = sentence
        self._halts.halt(state.lane, HaltReason.DEAD_LETTERS_FULL, f"no room for a refused event ({why})", now=at.now, wall=at.wall)

    def _stop(self, state: LaneState, attempt: Attempt, halt: Halt, at: Moment) -> None:
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now, halt.reason, halt.why)
        else:
            self._halts.halt(state.lane, halt.reason, halt.why, now=at.now, wall=at.wall)
