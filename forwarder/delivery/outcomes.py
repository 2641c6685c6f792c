"""What an outcome does to its lane: one method for each of the closed set; and how events are
settled. Pure but for the settling.

A single event answered 400 or 413 is at fault only if the upstream accepts others: it becomes a
dead letter once an attempt of its lane that began after the first refusal got 200. Refused before
that, it is kept and sent again once there is such proof, because a proxy may have refused it that
is gone by now: one more request for each, and no good event becomes a dead letter.

Of a batch answered 400, the events that a local parser suspects are sent apart from the others
(suspects.py). Suspects of one kind that are refused together are sent one by one, the least odd
first, until there are precedents for the others. Only a part without suspects is bisected.

Settling: first the dead letter, then the books, then the buffer forgets the event, so that a
failure in between loses nothing. Each settlement is logged once (a delivery only if the answer was
odd, and then once a lane and kind).
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import structlog

from forwarder.core.event import Batch, Lane
from forwarder.core.outcome import Bisect, Delivered, Halt, HaltReason, Outcome, Retry, Scope, Split
from forwarder.core.ports import (
    Buffer,
    DeadLetters,
    Fate,
    Ledger,
    Ordering,
    Reason,
    dead_letters_of,
)
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.delivery.halting import Halts
from forwarder.delivery.lane_state import LaneState, Moment, RetryPolicy
from forwarder.delivery.splitting import Attempt, BatchPart, PartGroup, halves
from forwarder.delivery.suspects import (
    NO_SUSPECTS,
    Suspects,
    exonerate,
    isolate,
    representative,
    take_out,
)
from forwarder.telemetry.labels import lane_label
from forwarder.wire.strict import Kind, Suspicion

_MAX_REMEMBERED = 10_000
"""Most logged warnings that are remembered; past that they may be logged again."""

_log = structlog.get_logger()


class OutcomeHandler:
    """Applies outcomes (`apply`), and dead-letters later what had no room among the
    dead letters (`dead_letter_deferred`).
    """

    def __init__(self, settler: Settler, buffer: Buffer, halts: Halts, policy: RetryPolicy) -> None:
        self._settler = settler
        self._buffer = buffer
        self._halts = halts
        self._policy = policy

    def apply(
        self,
        state: LaneState,
        attempt: Attempt,
        outcome: Outcome,
        at: Moment,
        suspects: Suspects = NO_SUSPECTS,
    ) -> None:
        """Apply `outcome` to the lane. `suspects`: what the local parser suspects of a batch that
        was answered 400.
        """
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
            self._halt(state, attempt, outcome, at)
        if attempt.probe and isinstance(outcome, Retry) and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now)

    def dead_letter_deferred(self, state: LaneState, at: Moment) -> bool:
        """Dead-letter what had no room before; False if something still has none."""
        for group in list(state.groups):
            for part, dead_letter_as in [
                (part, part.dead_letter_as)
                for part in group.parts
                if part.dead_letter_as is not None
            ]:
                if not self._settler.dead_letter(part.batch, *dead_letter_as, at.wall):
                    return False
                state.settled(group, part)
        return True

    def _delivered(
        self, state: LaneState, attempt: Attempt, outcome: Delivered, at: Moment
    ) -> None:
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
        if too_old and self._settler.dead_letter(
            attempt.batch, Reason.GAVE_UP, outcome.why, at.wall
        ):
            state.settled(attempt.group, attempt.part)
        elif state.ordering is not Ordering.STRICT:
            state.retreat(attempt.group)

    def _split(self, state: LaneState, attempt: Attempt, outcome: Split, at: Moment) -> None:
        state.refused(attempt.group, at.latest)
        if attempt.batch.count > 1:
            state.shrink_max_body(attempt.batch.size, at)
            self._halve(attempt)
        elif state.proven:
            self._dead_letter(
                state, attempt.group, attempt.part, (Reason.TOO_LARGE, outcome.why), at
            )
        else:
            state.forget_max_body()
            self._refused_without_proof(state, attempt, attempt.part, outcome.why, at)
            return
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now)

    def _bisect(
        self, state: LaneState, attempt: Attempt, outcome: Bisect, at: Moment, suspects: Suspects
    ) -> None:
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

    def _inspected(
        self, state: LaneState, attempt: Attempt, suspects: Suspects, at: Moment
    ) -> BatchPart | None:
        """The part that was refused, all or none of it suspects; None if it was mixed, and its
        suspects have been isolated.
        """
        part = attempt.part
        part.inspected = True
        suspects = {
            index: one
            for index, one in suspects.items()
            if not state.precedents.clears(one, at.now)
        }
        if not suspects:
            return part
        covered = partial(state.precedents.covers, now=at.now)
        parts = isolate(
            state.ordering, attempt.group, part, suspects, self._buffer.replace, covered=covered
        )
        return parts[0] if len(parts) == 1 else None

    def _refuse_suspects(
        self, state: LaneState, group: PartGroup, part: BatchPart, why: str, at: Moment
    ) -> None:
        """Suspects of one kind were refused, and nothing else was with them."""
        kinds = part.suspects
        group.refused_kinds |= kinds
        if part.batch.count == 1:
            suspicion = group.suspicions[part.batch.chunks[0]]
            state.precedents.refuse(suspicion, at.now)
            self._dead_letter(
                state, group, part, (Reason.REFUSED, f"{why} (the event has {suspicion.words})"), at
            )
        for kind in kinds if state.proven else ():
            self._dead_letter_by_precedent(state, kind, why, at)
        for kind in kinds:
            several = [one for one in group.suspects(kind) if one.batch.count > 1]
            if several:
                representative(state.ordering, group, several[0])

    def _dead_letter_by_precedent(self, state: LaneState, kind: Kind, why: str, at: Moment) -> None:
        words = (
            f"{why} (not sent alone: the event has {' and '.join(kind)}, like others that "
            "were refused alone)"
        )

        def is_covered(suspicion: Suspicion) -> bool:
            return suspicion.oddities == kind and state.precedents.covers(suspicion, at.now)

        for group in [group for group in state.groups if kind in group.refused_kinds]:
            for part in group.suspects(kind):
                covered = take_out(group, part, is_covered)
                if covered is not None:
                    self._dead_letter(state, group, covered, (Reason.REFUSED, words), at)
            group.join()

    def _refused_without_proof(
        self, state: LaneState, attempt: Attempt, part: BatchPart, why: str, at: Moment
    ) -> None:
        """An event was refused alone, and nothing shows that the upstream accepts others."""
        part.refused = True
        self._halt(state, attempt, Halt(HaltReason.REFUSES_ALL, why), at)

    def _halve(self, attempt: Attempt) -> None:
        attempt.group.divide(attempt.part, *halves(attempt.batch, self._buffer.replace))

    def _dead_letter(
        self,
        state: LaneState,
        group: PartGroup,
        part: BatchPart,
        dead_letter_as: tuple[Reason, str],
        at: Moment,
    ) -> None:
        reason, why = dead_letter_as
        if self._settler.dead_letter(part.batch, reason, why, at.wall):
            state.settled(group, part)
            return
        part.dead_letter_as = dead_letter_as
        self._halts.halt(
            state.lane,
            HaltReason.DEAD_LETTERS_FULL,
            f"no room for a refused event ({why})",
            now=at.now,
            wall=at.wall,
        )

    def _halt(self, state: LaneState, attempt: Attempt, halt: Halt, at: Moment) -> None:
        if attempt.probe and state.lane in self._halts:
            self._halts.probe_failed(state.lane, at.now, halt.reason, halt.why)
        else:
            self._halts.halt(state.lane, halt.reason, halt.why, now=at.now, wall=at.wall)


class Settler:
    """Settles batches with the dead letters, the books and the buffer: each
    batch whole or not at all.
    """

    def __init__(
        self, buffer: Buffer, dead_letters: DeadLetters, books: Ledger, taps: TapPoint | None = None
    ) -> None:
        self._buffer = buffer
        self._dead_letters = dead_letters
        self._books = books
        self._taps = taps or TapPoint()
        self._warned: set[tuple[Lane, str]] = set()
        self.delivered = 0
        self.warnings: Counter[str] = Counter()

    def deliver(self, batch: Batch, outcome: Delivered) -> None:
        """The upstream accepted the batch."""
        if outcome.warning:
            self._warn(batch, outcome.warning)
        count = batch.count
        self._books.deliver(batch.lane, count)
        self.delivered += count
        if self._taps.tap is not None:
            self._taps.tap.chunks(TapOutcome.DELIVERED, batch.chunks)
        self._buffer.settle(batch.chunks, Fate.DELIVERED)

    def dead_letter(self, batch: Batch, reason: Reason, why: str, wall: float) -> bool:
        """Make dead letters of the batch's events; False if there is no room for
        them, and nothing changed.
        """
        dead_letters = [
            dead_letter
            for chunk in batch.chunks
            for dead_letter in dead_letters_of(chunk, reason, why, wall)
        ]
        if not self._dead_letters.add(dead_letters):
            return False
        self._books.dead_letter(batch.lane, reason, len(dead_letters))
        if self._taps.tap is not None:
            self._taps.tap.dead_letters(TapOutcome.DEAD_LETTERED, dead_letters)
        self._buffer.settle(batch.chunks, Fate.DEAD_LETTERED)
        _log.warning(
            "events became dead letters",
            lane=lane_label(batch.lane),
            reason=reason.value,
            events=len(dead_letters),
            upstream_said=why,
        )
        return True

    def _warn(self, batch: Batch, kind: str) -> None:
        self.warnings[kind] += 1
        if (batch.lane, kind) not in self._warned:
            if len(self._warned) >= _MAX_REMEMBERED:
                self._warned.clear()
            self._warned.add((batch.lane, kind))
            _log.warning(
                "delivered, but the answer was odd",
                lane=lane_label(batch.lane),
                reason=kind,
                events=batch.count,
            )
