"""Admission to several destinations: each event goes to those that its route names, and is stored
once for each of them.

A destination has an admission of its own, with its own buffer, quotas, books and dead letters
(`admission.py`). `FanOut` stands above them. The steps, in order: divide the content by
destination, prepare all parts, admit all parts, join what they acknowledge. Chunks know their
destinations, and so do dead letters for which lane and source don't decide them (`content.py`).

Invariants: a content is accepted by all required destinations that it is routed to, or by none:
all are asked before the first accepts. An optional destination never rejects and is never waited
for: what it has no room for is dropped and counted there. A chunk belongs to one destination; the
bytes of its events are shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import Backpressure, ForwarderError
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason, ResendQueue
from forwarder.intake.admission import (
    NO_SIZES,
    Admission,
    IntakeStatistics,
    Submission,
    SubmissionPart,
    sizes_of,
)
from forwarder.intake.content import Content, RouteTable
from forwarder.intake.lane_registry import MAX_REMEMBERED, LaneRegistry


class HaltedLanes(Protocol):
    """The halted lanes."""

    def halted_since(self) -> Mapping[Lane, float]:
        """When each lane was halted, wall-clock seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A destination as the intake sees it."""

    admission: Admission
    delivery: ResendQueue
    halts: HaltedLanes
    required: bool = True
    api_keys: Mapping[str, str] = field(default_factory=dict)
    """The project keys that stand for those of senders."""
    name: str = ""
    lanes: dict[Lane, Lane] = field(default_factory=dict)
    """The lanes that stand for those of senders, as far as they are remembered."""

    def lane(self, lane: Lane) -> Lane:
        """The destination's lane for a sender's."""
        mapped = self.lanes.get(lane)
        if mapped is None:
            if len(self.lanes) >= MAX_REMEMBERED:
                self.lanes.clear()
            mapped = self.lanes[lane] = Lane(
                self.api_keys.get(lane.api_key, lane.api_key), lane.historical
            )
        return mapped


class FanOut:
    """Admits to all destinations that the routes name."""

    def __init__(self, branches: Sequence[Branch], routes: RouteTable, lanes: LaneRegistry) -> None:
        """`branches`: the destinations in the order in which the routes number them; the first is
        the default. `lanes`: of senders.
        """
        self._branches = branches
        self.routes = routes
        first = branches[0].admission
        self.clock = first.clock
        self.lanes = lanes
        self.quotas = first.quotas
        self.rejects_when_full = first.rejects_when_full
        self.not_acknowledged = 0

    def statistics(self) -> IntakeStatistics:
        """Each number and record counts once; `awaiting_delivery` is that of the destination for
        which most wait.
        """
        of_each = [branch.admission.statistics() for branch in self._branches]
        return IntakeStatistics(
            sum(statistics.nulled_numbers for statistics in of_each),
            max(statistics.awaiting_delivery for statistics in of_each),
            self.not_acknowledged,
            sum(statistics.filtered_records for statistics in of_each),
        )

    def check_room(self, lane: Lane, size: int) -> None:
        """Of all required destinations where events of the lane go for certain."""
        for number in self.routes.whole(lane, "") or ():
            branch = self._branches[number]
            if branch.required:
                branch.admission.quotas.check_room(branch.lane(lane), size)

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        numbers = self._numbers(chunk)
        if len(numbers) == 1 and (branch := self._branches[numbers[0]]).required:
            chunk.lane = branch.lane(chunk.lane)
            return branch.admission.admit_one(chunk, level, callback)
        # the most frequent content: it needs no objects beside
        if level is AckLevel.MEMORY and self.rejects_when_full:
            copies = [(self._branches[number], self._copy(chunk, number)) for number in numbers]
            without_room: list[Chunk] = []
            for branch, copy in copies:
                try:
                    branch.admission.check_one(copy)
                except ForwarderError:
                    if branch.required:
                        raise
                    without_room.append(copy)
            for branch, copy in copies:
                if without_room and copy in without_room:
                    branch.admission.drop_chunks_at_receipt(
                        (copy,), DropReason.OPTIONAL_DESTINATION
                    )
                else:
                    branch.admission.put_one(copy)
            return True
        return self.admit(Content([chunk], ruled=True), level, callback) is None

    def end_waiting(self) -> None:
        for branch in self._branches:
            branch.admission.end_waiting()

    # Dividing

    def _numbers(self, of: Chunk | DeadLetter) -> Sequence[int]:
        """The destinations that routes have chosen."""
        numbers = of.to
        if numbers is None and isinstance(of, DeadLetter):
            numbers = (0,) if of.lane is None else self.routes.whole(of.lane, of.source)
        if numbers is None:
            raise RuntimeError("nothing is admitted before routes are applied (`Gate.enter`)")
        return numbers

    def divide(
        self, content: Content, *, source_waits: bool = False, given_up: Collection[Lane] = ()
    ) -> list[SubmissionPart]:
        """What each destination gets of a content; at least one part, which may be empty."""
        parts: defaultdict[int, Content] = defaultdict(partial(Content, ruled=True))
        for chunk in content.chunks:
            for number in self._numbers(chunk):
                parts[number].chunks.append(self._copy(chunk, number))
        for dead_letter in content.dead_letters:
            for number in self._numbers(dead_letter):
                parts[number].dead_letters.append(self._mapped(dead_letter, number))
        for lane, source, count in content.overflow:
            for number in self.routes.whole(lane, source) or (0,):
                part = parts[number]
                part.overflow = [*part.overflow, (self._branches[number].lane(lane), source, count)]
        # what rules drop goes nowhere: it is counted once, by the first destination
        if content.tallies:
            first = parts[0]
            first.tallies = content.tallies
            first.dropped = [(reason, self._copy(chunk, 0)) for reason, chunk in content.dropped]
        numbers = sorted(parts) or [0]
        first = parts[numbers[0]]
        first.nulled = content.nulled
        first.filtered = content.filtered
        if content.results is not None:
            # they change with the events, at the first destination that is waited for
            watched = min(
                numbers,
                key=lambda branch: (not self._branches[branch].required, not parts[branch].chunks),
            )
            parts[watched].results = content.results
        return [
            self._submitted(number, parts[number], source_waits=source_waits, given_up=given_up)
            for number in numbers
        ]

    def _submitted(
        self, number: int, content: Content, *, source_waits: bool, given_up: Collection[Lane]
    ) -> SubmissionPart:
        branch = self._branches[number]
        submission = Submission(
            branch.admission,
            content,
            None,
            source_waits=source_waits and branch.required,
            may_drop_dead_letters=not source_waits,
            given_up=given_up,
        )
        sizes = sizes_of(submission.chunks) if source_waits else NO_SIZES
        return SubmissionPart(submission, sizes, branch.required)

    def _copy(self, chunk: Chunk, number: int) -> Chunk:
        """The whole chunk for a destination. The original stays as it is: if it is rejected, its
        source offers it again.
        """
        copy = chunk.part(chunk.data, chunk.count, chunk.ids, 0)
        copy.lane = self._branches[number].lane(chunk.lane)
        return copy

    def _mapped(self, dead_letter: DeadLetter, number: int) -> DeadLetter:
        """The dead letter with the destination's own lane, and the sender's key."""
        lane = dead_letter.lane and self._branches[number].lane(dead_letter.lane)
        if lane is None or dead_letter.lane is None or lane == dead_letter.lane:
            return dead_letter
        return replace(dead_letter, lane=lane, sender_key=dead_letter.lane.api_key)

    # Admitting

    def admit(
        self,
        content: Content,
        level: AckLevel,
        callback: AckCallback,
        *,
        source_waits: bool = False,
        given_up: Collection[Lane] = (),
    ) -> Sequence[SubmissionPart] | None:
        parts = self.divide(content, source_waits=source_waits, given_up=given_up)
        if self._admit_parts(parts, level, callback):
            return None
        return [part for part in parts if part.required]

    def _admit_parts(
        self, parts: Sequence[SubmissionPart], level: AckLevel, callback: AckCallback
    ) -> bool:
        """Have all parts accepted, or raise, with nothing accepted by a required destination;
        whether `level` is reached.
        """
        prepared: list[SubmissionPart] = []
        try:
            prepared.extend(part for part in parts if _prepare(part))
        except BaseException:
            for part in prepared:
                part.release()
            raise
        joined = _JoinedCallbacks(self, callback, sum([part.required for part in prepared]))
        for at, part in enumerate(prepared):
            submission = part.submission
            if not part.required:
                _admit_or_drop(part)
                continue
            submission.callback = joined.confirm
            try:
                if submission.admission.admit_prepared(submission, level):
                    joined.left -= 1
            except Backpressure as error:
                joined.callback = None
                for accepted in prepared[:at]:
                    if accepted.submission.ack is not None:
                        accepted.submission.fail(error)
                for rest in prepared[at:]:
                    rest.release()
                raise
        if joined.left:
            return False
        joined.callback = None
        return True


def _prepare(part: SubmissionPart) -> bool:
    """Whether the part can be admitted. An optional destination without room drops its part; a
    required one raises why.
    """
    try:
        part.submission.admission.prepare(part.submission)
    except ForwarderError:
        if part.required:
            raise
        _drop(part)
        return False
    return True


def _admit_or_drop(part: SubmissionPart) -> None:
    """Admit a prepared part of an optional destination. It was prepared in the belief that dropping
    others makes room (`when_full`): where it doesn't, the part itself is dropped.
    """
    try:
        part.submission.admission.admit_prepared(part.submission, AckLevel.MEMORY)
    except ForwarderError:
        part.submission.admission.release(part.submission)
        _drop(part)
        part.submission.break_cycle()


def _drop(part: SubmissionPart) -> None:
    part.submission.admission.drop_at_receipt(part.submission, DropReason.OPTIONAL_DESTINATION)


class _JoinedCallbacks:
    """Calls back when all required destinations have confirmed, or at the first that failed."""

    __slots__ = ("callback", "left", "owner")

    def __init__(self, owner: FanOut, callback: AckCallback, left: int) -> None:
        self.owner = owner
        self.callback: AckCallback | None = callback
        self.left = left

    def confirm(self, error: Backpressure | None) -> None:
        """One destination has confirmed, or failed."""
        self.left -= 1
        if self.callback is None or (error is None and self.left):
            return
        callback = self.callback
        self.callback = None
        self.owner.not_acknowledged += error is not None
        callback(error)
