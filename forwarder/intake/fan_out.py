"""Admission to several destinations: each event goes to those that its route names, and is stored
once for each of them.

A destination has an admission of its own, with its own buffer, quotas, books and dead letters
(`admission.py`). `FanOut` stands above them and looks like one of them. The steps, in order:
divide the submission by destination, prepare all parts, admit all parts, join what they
acknowledge. Where dividing would take too long, the decoder process does it: its chunks and letters
say where they go.

Invariants: a submission is accepted by all required destinations that it is routed to, or by none:
all are asked before the first accepts. An optional destination never rejects and is never waited
for: what it has no room for is dropped and counted there. A chunk belongs to one destination; the
bytes of its events are shared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from forwarder.core.ack import Ack, AckCallback, AckLevel
from forwarder.core.errors import Backpressure, ForwarderError
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason
from forwarder.intake.admission import Admission, Submission
from forwarder.intake.lanes import MAX_REMEMBERED, LaneRegistry
from forwarder.intake.routed import RouteTable, routed_parts
from forwarder.intake.ruling import Ruling
from forwarder.wire.effort import Allowance

Sizes = dict[Lane, tuple[int, int]]
"""Bytes and events by lane."""


class ResendQueue(Protocol):
    """What delivery holds of a batch."""

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with these acks that wait to be sent again."""


class HaltedLanes(Protocol):
    """The halted lanes."""

    def since(self) -> Mapping[Lane, float]:
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
    """Admits to all destinations that the routes name; otherwise as an `Admission`."""

    def __init__(
        self,
        branches: Sequence[Branch],
        routes: RouteTable,
        lanes: LaneRegistry,
        *,
        allowed: float = math.inf,
    ) -> None:
        """`branches`: the destinations in the order in which the routes number them; the first is
        the default. `lanes`: of senders. `allowed`: microseconds that routes may take for a
        submission, by their own estimate (`Effort.ruled`).
        """
        self._branches = branches
        self._allowed = allowed
        self._all_required = all(branch.required for branch in branches)
        self._routes = routes
        self.routes = routes.encoded
        """See `Admission`."""
        first = branches[0].admission
        self.clock = first.clock
        self.lanes = lanes
        self.quotas = first.quotas
        self.rejects = first.rejects
        self.not_acknowledged = 0
        """See `Admission`."""

    @property
    def awaited(self) -> int:
        """See `Admission`: of the destination for which most wait."""
        return max(branch.admission.awaited for branch in self._branches)

    @property
    def nulled_numbers(self) -> int:
        """See `Admission`; each number counts once."""
        return sum(branch.admission.nulled_numbers for branch in self._branches)

    @property
    def filtered_records(self) -> int:
        """See `Admission`; each record counts once."""
        return sum(branch.admission.filtered_records for branch in self._branches)

    def submission(
        self,
        chunks: Sequence[Chunk],
        source: str,
        callback: AckCallback,
        *,
        source_waits: bool = False,
    ) -> Submission:
        """See `Admission.submission`."""
        return self._branches[0].admission.submission(
            chunks, source, callback, source_waits=source_waits
        )

    def check_room(self, lane: Lane, size: int) -> None:
        """See `Quotas.check_room`: of all required destinations where events of the lane go for
        certain.
        """
        for number in self._routes.whole(lane, "") or ():
            branch = self._branches[number]
            if branch.required:
                branch.admission.quotas.check_room(branch.lane(lane), size)

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """See `Admission.admit_one`. Raises `TooMuchWork` as `admit` does."""
        lane = chunk.lane
        source = chunk.source
        numbers = self._routes.whole(lane, source)
        if numbers is None:
            numbers = self._routes.of_events(
                lane, source, chunk.data, 1, allowance=Allowance(self._allowed)
            )[0]
        if len(numbers) == 1 and (branch := self._branches[numbers[0]]).required:
            chunk.lane = branch.lane(lane)
            return branch.admission.admit_one(chunk, level, callback)
        # the most frequent submission: it needs no objects beside
        if level is AckLevel.MEMORY and self.rejects and self._all_required:
            copies = [
                (self._branches[number].admission, self._copy(chunk, number)) for number in numbers
            ]
            for admission, copy in copies:
                admission.check_one(copy)
            for admission, copy in copies:
                admission.put_one(copy)
            return True
        parts = [self._part(number, [self._copy(chunk, number)], source) for number in numbers]
        return self.admit_parts(parts, level, callback)

    def admit(self, submission: Submission, level: AckLevel) -> bool:
        """See `Admission.admit`. Raises `TooMuchWork`, with nothing accepted, if routes would take
        too long.
        """
        return self.admit_parts(self.divide(submission), level, submission.callback or _no_callback)

    def end_waiting(self) -> None:
        """See `Admission.end_waiting`."""
        for branch in self._branches:
            branch.admission.end_waiting()

    # Dividing

    def divide(self, submission: Submission) -> list[SubmissionPart]:
        """What each destination gets of a submission; at least one part, which may be empty.
        Raises `TooMuchWork` as `admit` does.
        """
        source = submission.source
        allowance = Allowance(self._allowed)
        chunks: dict[int, list[Chunk]] = {}
        letters: dict[int, list[DeadLetter]] = {}
        droppable: dict[int, list[DeadLetter]] = {}
        overflow: dict[int, list[tuple[Lane, int]]] = {}
        for chunk in submission.chunks:
            whole = (
                self._routes.whole(chunk.lane, chunk.source) if chunk.to is None else (chunk.to,)
            )
            if whole is None:
                for number, piece in routed_parts(self._routes, chunk, allowance):
                    piece.lane = self._branches[number].lane(chunk.lane)
                    chunks.setdefault(number, []).append(piece)
                continue
            for number in whole:
                chunks.setdefault(number, []).append(self._copy(chunk, number))
        for kept, of_destination in (
            (submission.letters, letters),
            (submission.droppable, droppable),
        ):
            for letter in kept:
                for number in self._of_letter(letter, allowance):
                    of_destination.setdefault(number, []).append(self._mapped(letter, number))
        for lane, count in submission.overflow:
            for number in self._routes.whole(lane, source) or (0,):
                overflow.setdefault(number, []).append((self._branches[number].lane(lane), count))
        numbers = sorted(
            {
                *chunks,
                *letters,
                *droppable,
                *overflow,
                *((0,) if submission.ruling is not None else ()),
            }
        ) or [0]
        parts = []
        for number in numbers:
            part = self._part(
                number, chunks.get(number, ()), source, source_waits=submission.source_waits
            )
            part.submission.letters = letters.get(number, ())
            part.submission.droppable = droppable.get(number, ())
            part.submission.overflow = overflow.get(number, ())
            part.submission.given_up = submission.given_up
            parts.append(part)
        parts[0].submission.nulled = submission.nulled
        parts[0].submission.filtered = submission.filtered
        # what rules drop goes nowhere: it is counted once, by the first destination
        if submission.ruling is not None:
            parts[0].submission.ruling = self._ruling(submission.ruling)
        required = next((part for part in parts if part.branch.required), parts[0])
        required.submission.results = submission.results
        return parts

    def _copy(self, chunk: Chunk, number: int) -> Chunk:
        """The whole chunk for a destination. The original stays as it is: if it is rejected, its
        source offers it again.
        """
        copy = chunk.part(chunk.data, chunk.count, chunk.ids, 0)
        copy.lane = self._branches[number].lane(chunk.lane)
        return copy

    def _ruling(self, ruling: Ruling) -> Ruling:
        """What the rules did, in the first destination's own lanes."""
        return Ruling(
            dropped=[(reason, self._copy(chunk, 0)) for reason, chunk in ruling.dropped],
            ruled=ruling.ruled,
        )

    def _of_letter(self, letter: DeadLetter, allowance: Allowance) -> Sequence[int]:
        if letter.to is not None:
            return letter.to
        if letter.lane is None:
            return (0,)
        whole = self._routes.whole(letter.lane, letter.source)
        if whole is not None:
            return whole
        return self._routes.of_events(
            letter.lane, letter.source, letter.data, 1, allowance=allowance
        )[0]

    def _mapped(self, letter: DeadLetter, number: int) -> DeadLetter:
        """The letter with the destination's own lane; it knows its sender's."""
        lane = letter.lane and self._branches[number].lane(letter.lane)
        if lane is None or letter.lane is None or lane == letter.lane:
            return letter
        return replace(letter, lane=lane, sender_key=letter.lane.api_key)

    def _part(
        self, number: int, chunks: Sequence[Chunk], source: str, *, source_waits: bool = False
    ) -> SubmissionPart:
        """What one destination gets: chunks of its own, with its own lanes."""
        branch = self._branches[number]
        submission = branch.admission.submission(
            chunks, source, _no_callback, source_waits=source_waits and branch.required
        )
        return SubmissionPart(branch, submission, sizes_of(chunks) if source_waits else {})

    # Admitting

    def admit_parts(
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
        joined = _JoinedCallbacks(self, callback, sum([part.branch.required for part in prepared]))
        for at, part in enumerate(prepared):
            if not part.branch.required:
                part.submission.callback = None
                part.branch.admission.admit_prepared(part.submission, AckLevel.MEMORY)
                continue
            part.submission.callback = joined.confirm
            try:
                if part.branch.admission.admit_prepared(part.submission, level):
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


@dataclass(frozen=True, slots=True, eq=False)
class SubmissionPart:
    """What one destination gets of a submission."""

    branch: Branch
    submission: Submission
    sizes: Sizes
    """Only of a source that waits."""

    def release(self) -> None:
        """It is not accepted."""
        self.branch.admission.release(self.submission)
        # they refer to each other, and would wait for the garbage collector
        self.submission.chunks = ()
        self.submission.ack = None


def _prepare(part: SubmissionPart) -> bool:
    """Whether the part can be admitted. An optional destination without room drops its part; a
    required one raises why.
    """
    admission = part.branch.admission
    submission = part.submission
    try:
        admission.prepare(submission)
    except ForwarderError:
        if part.branch.required:
            raise
        admission.turn_away(submission, DropReason.OPTIONAL_DESTINATION)
        return False
    return True


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


def sizes_of(chunks: Sequence[Chunk]) -> Sizes:
    """Bytes and events by lane."""
    sizes: Sizes = {}
    for chunk in chunks:
        size, count = sizes.get(chunk.lane, (0, 0))
        sizes[chunk.lane] = size + len(chunk.data), count + chunk.count
    return sizes


def _no_callback(_: Backpressure | None) -> None:
    """Nothing waits."""
