"""Applies the outcome of an attempt to its lane, one method for each kind of outcome
(`core/outcome.py`), and settles events.

An event that is refused alone (400 or 413) is dead-lettered only if the upstream accepts other
events: an attempt of its lane that began after the first refusal must have got 200. Without that
proof, the refusal may come from a proxy that has a fault. The event is kept, and sent once more
when there is proof. This costs one request an event, and loses no good event.

After a 400, a local strict parser finds the *suspects* of the batch: the events that the upstream's
parser may reject. They are sent apart from the other events. If suspects of one kind are refused
together, they are sent one by one, the least odd first, until enough of them were refused alone to
dead-letter the rest of the kind by *precedent* (`suspects.py`). Only a part without suspects is
bisected.

A batch is settled in three steps: dead letters are stored, the books count, the buffer forgets the
events. So a failure in between loses nothing. Each dead-lettered batch is logged; a delivery is
logged only if the answer was odd, once for each lane and warning.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import structlog

from forwarder.core.event import Batch, Lane
from forwarder.core.outcome import Bisect, Delivered, Halt, HaltReason, Outcome, Retry, Scope, Split
from forwarder.core.ports import (
    Buffer,
    DeadLetter,
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
    split_off_least_odd,
    split_off_matching,
)
from forwarder.telemetry.labels import lane_label
from forwarder.wire.strict import Kind, Suspicion

_MAX_LOGGED_WARNINGS = 10_000
"""Most warnings that are remembered as logged; past that they may be logged again."""

_log = structlog.get_logger()


class OutcomeHandler:
    """Applies outcomes (`apply`), and retries dead-lettering events for which the dead letters had
    no room (`retry_dead_lettering`).
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
        moment: Moment,
        suspects: Suspects = NO_SUSPECTS,
    ) -> None:
        """Apply `outcome` to the lane.

        `suspects`: for a 400, the suspicions of the local parser, by the event's index in the
        batch; empty if none, or if the batch was not inspected.
        """
        if isinstance(outcome, Retry):
            self._apply_retry(state, attempt, outcome, moment)
            return
        state.pause.succeeded(attempt.number)  # whatever the answer: the upstream works
        if isinstance(outcome, Delivered):
            self._apply_delivered(state, attempt, outcome, moment)
        elif isinstance(outcome, Split):
            self._apply_split(state, attempt, outcome, moment)
        elif isinstance(outcome, Bisect):
            self._apply_bisect(state, attempt, outcome, moment, suspects)
        else:
            self._apply_halt(state, attempt, outcome, moment)

    def retry_dead_lettering(self, state: LaneState, moment: Moment) -> bool:
        """Dead-letter the parts whose dead-lettering was deferred for lack of room. Return False at
        the first for which there is still no room.
        """
        deferred = [
            (group, part, part.deferred_dead_letter)
            for group in state.groups
            for part in group.parts
            if part.deferred_dead_letter is not None
        ]
        for group, part, (reason, why) in deferred:
            if not self._settler.dead_letter(part.batch, reason, why, moment.wall):
                return False
            state.remove_part(group, part)
        return True

    def _apply_delivered(
        self, state: LaneState, attempt: Attempt, outcome: Delivered, moment: Moment
    ) -> None:
        state.note_acceptance(attempt.number, attempt.batch.size)
        kinds = attempt.part.suspected_kinds
        for kind in kinds:
            state.precedents.accept(kind, moment.now)
        self._settler.deliver(attempt.batch, outcome)
        halted = self._halts.get(state.lane)
        # what the key check halted, the key check resumes
        if halted is not None and not halted.by_key_check:
            accepts_again = halted.reason is HaltReason.REFUSES_ALL and state.accepts_others
            if attempt.probe or accepts_again:
                self._halts.resume(state.lane)
        state.remove_part(attempt.group, attempt.part)
        if kinds:
            for group in state.groups:
                exonerate(group, kinds)

    def _apply_retry(
        self, state: LaneState, attempt: Attempt, outcome: Retry, moment: Moment
    ) -> None:
        if outcome.scope is Scope.LANE:
            state.pause.failed(
                attempt.number, moment.latest_attempt, moment.now, outcome.not_before, outcome.why
            )
        limit = self._policy.give_up_after
        # Without room for dead letters the batch is simply retried: unlike a refused event, it may
        # still be delivered.
        too_old = limit is not None and moment.wall - attempt.batch.received_at > limit
        if too_old and self._settler.dead_letter(
            attempt.batch, Reason.GAVE_UP, outcome.why, moment.wall
        ):
            state.remove_part(attempt.group, attempt.part)
        elif state.ordering is not Ordering.STRICT:
            state.move_to_end(attempt.group)
        if self._probes_halted_lane(attempt):
            self._halts.probe_failed(state.lane, moment.now)

    def _apply_split(
        self, state: LaneState, attempt: Attempt, outcome: Split, moment: Moment
    ) -> None:
        """After a 413: halve a batch that was too large. An event that is too large alone is
        dead-lettered.
        """
        state.note_refusal(attempt.group, moment.latest_attempt)
        if attempt.batch.count > 1:
            state.shrink_max_body(attempt.batch.size, moment)
            self._halve(attempt.group, attempt.part)
        elif state.accepts_others:
            self._dead_letter(
                state, attempt.group, attempt.part, Reason.TOO_LARGE, outcome.why, moment=moment
            )
        else:
            state.forget_max_body()  # a limit is no use if even one event is refused
            self._keep_without_proof(state, attempt, attempt.part, outcome.why, moment)
            return  # _apply_halt has counted the failed probe
        if self._probes_halted_lane(attempt):
            self._halts.probe_failed(state.lane, moment.now)

    def _apply_bisect(
        self,
        state: LaneState,
        attempt: Attempt,
        outcome: Bisect,
        moment: Moment,
        suspects: Suspects,
    ) -> None:
        """After a 400: find the events for which a batch was refused, and dead-letter them."""
        state.note_refusal(attempt.group, moment.latest_attempt)
        part = self._isolate_suspects(state, attempt, suspects, moment)
        if part is None:
            pass  # it was split: its parts are sent next
        elif part.batch.count == 1 and not state.accepts_others:
            self._keep_without_proof(state, attempt, part, outcome.why, moment)
            return  # _apply_halt has counted the failed probe
        elif part.suspected_kinds:
            self._narrow_down_suspects(state, attempt.group, part, outcome.why, moment)
        elif part.batch.count > 1:
            self._halve(attempt.group, part)
        else:
            self._dead_letter(
                state, attempt.group, part, Reason.REFUSED, outcome.why, moment=moment
            )
        if self._probes_halted_lane(attempt):
            self._halts.probe_failed(state.lane, moment.now, HaltReason.REFUSES_ALL, outcome.why)

    def _isolate_suspects(
        self, state: LaneState, attempt: Attempt, suspects: Suspects, moment: Moment
    ) -> BatchPart | None:
        """Split the refused part, unless none of its events are suspects or all can be sent
        together. Return None if it was split, else the part.
        """
        part = attempt.part
        part.inspected = True
        uncleared = {
            index: suspicion
            for index, suspicion in suspects.items()
            if not state.precedents.clears(suspicion, moment.now)
        }
        if not uncleared:
            return part
        parts = isolate(
            state.ordering,
            attempt.group,
            part,
            uncleared,
            self._buffer.replace,
            is_covered=partial(state.precedents.covers, now=moment.now),
        )
        return parts[0] if len(parts) == 1 else None

    def _narrow_down_suspects(
        self, state: LaneState, group: PartGroup, part: BatchPart, why: str, moment: Moment
    ) -> None:
        """A request that held nothing but suspects was refused: dead-letter those that are proven
        to be at fault, and send one of the others of each kind alone next.
        """
        kinds = part.suspected_kinds
        group.refused_kinds |= kinds
        if part.batch.count == 1:  # _apply_bisect has checked that the upstream accepts others
            suspicion = group.suspicions[part.batch.chunks[0]]
            state.precedents.refuse(suspicion, moment.now)
            why_with_oddities = f"{why} (the event has {suspicion.words})"
            self._dead_letter(state, group, part, Reason.REFUSED, why_with_oddities, moment=moment)
        if state.accepts_others:
            for kind in kinds:
                self._dead_letter_by_precedent(state, kind, why, moment)
        for kind in kinds:
            parts = [
                suspected for suspected in group.suspected_parts(kind) if suspected.batch.count > 1
            ]
            if parts:
                split_off_least_odd(state.ordering, group, parts[0])

    def _dead_letter_by_precedent(
        self, state: LaneState, kind: Kind, why: str, moment: Moment
    ) -> None:
        """Dead-letter the suspects of this kind for which there are precedents, in all groups that
        had the kind refused.
        """
        text = (
            f"{why} (not sent alone: the event has {' and '.join(kind)}, like others that "
            "were refused alone)"
        )

        def is_covered(suspicion: Suspicion) -> bool:
            return suspicion.oddities == kind and state.precedents.covers(suspicion, moment.now)

        for group in [group for group in state.groups if kind in group.refused_kinds]:
            for part in group.suspected_parts(kind):
                covered_part = split_off_matching(group, part, is_covered)
                if covered_part is not None:
                    self._dead_letter(
                        state, group, covered_part, Reason.REFUSED, text, moment=moment
                    )
            group.join_neighbours()

    def _keep_without_proof(
        self, state: LaneState, attempt: Attempt, part: BatchPart, why: str, moment: Moment
    ) -> None:
        """An event was refused alone, and nothing proves that the upstream accepts others: keep it,
        and halt the lane.
        """
        part.refused_without_proof = True
        self._apply_halt(state, attempt, Halt(HaltReason.REFUSES_ALL, why), moment)

    def _halve(self, group: PartGroup, part: BatchPart) -> None:
        group.divide(part, *halves(part.batch, self._buffer.replace))

    def _dead_letter(
        self,
        state: LaneState,
        group: PartGroup,
        part: BatchPart,
        reason: Reason,
        why: str,
        *,
        moment: Moment,
    ) -> None:
        """Dead-letter a part. If there is no room, defer that and halt the lane."""
        if self._settler.dead_letter(part.batch, reason, why, moment.wall):
            state.remove_part(group, part)
            return
        part.deferred_dead_letter = reason, why
        self._halts.halt(
            state.lane,
            HaltReason.DEAD_LETTERS_FULL,
            f"no room for a refused event ({why})",
            now=moment.now,
            wall=moment.wall,
        )

    def _apply_halt(self, state: LaneState, attempt: Attempt, halt: Halt, moment: Moment) -> None:
        """Halt the lane; if the attempt was its probe, wait longer for the next one."""
        if self._probes_halted_lane(attempt):
            self._halts.probe_failed(state.lane, moment.now, halt.reason, halt.why)
        else:
            self._halts.halt(state.lane, halt.reason, halt.why, now=moment.now, wall=moment.wall)

    def _probes_halted_lane(self, attempt: Attempt) -> bool:
        """Whether the attempt is a probe, and its lane wasn't resumed meanwhile."""
        return attempt.probe and attempt.lane in self._halts


class Settler:
    """Settles batches with the dead letters, the books and the buffer, each batch as a whole."""

    def __init__(
        self, buffer: Buffer, dead_letters: DeadLetters, books: Ledger, taps: TapPoint | None = None
    ) -> None:
        self._buffer = buffer
        self._dead_letters = dead_letters
        self._books = books
        self._taps = taps or TapPoint()
        self._logged_warnings: set[tuple[Lane, str]] = set()
        self.delivered = 0
        """Events delivered."""
        self.warnings: Counter[str] = Counter()
        """Batches delivered with a warning, by warning."""

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
        """Dead-letter the batch's events. Return False, with nothing changed, if there is no room
        or they can't be written.
        """
        dead_letters: list[DeadLetter] = []
        for chunk in batch.chunks:
            dead_letters += dead_letters_of(chunk, reason, why, wall)
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

    def _warn(self, batch: Batch, warning: str) -> None:
        self.warnings[warning] += 1
        if (batch.lane, warning) not in self._logged_warnings:
            if len(self._logged_warnings) >= _MAX_LOGGED_WARNINGS:
                self._logged_warnings.clear()
            self._logged_warnings.add((batch.lane, warning))
            _log.warning(
                "delivered, but the answer was odd",
                lane=lane_label(batch.lane),
                reason=warning,
                events=batch.count,
            )
