"""Admission to several destinations: each event goes to those that its route names, and is stored
once for each of them.

A destination has an admission of its own, with its own buffer, quotas, books and dead letters
(`admission.py`). `FanOut` stands above them and looks like one of them. The steps, in order:
divide the content by destination, prepare all parts, admit all parts, join what they acknowledge.
Where lane and source don't decide it, chunks and letters say where they go (`steps.py`).

Invariants: a content is accepted by all required destinations that it is routed to, or by none:
all are asked before the first accepts. An optional destination never rejects and is never waited
for: what it has no room for is dropped and counted there. A chunk belongs to one destination; the
bytes of its events are shared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from forwarder.core.ack import Ack, AckCallback, AckLevel
from forwarder.core.errors import Backpressure, ForwarderError
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, DropReason
from forwarder.intake.admission import NO_SIZES, Admission, Submission, SubmissionPart, sizes_of
from forwarder.intake.content import Content
from forwarder.intake.lanes import MAX_REMEMBERED, LaneRegistry
from forwarder.intake.steps import RouteTable


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
    """See `Admitter`: to all destinations that the routes name."""

    def __init__(self, branches: Sequence[Branch], routes: RouteTable, lanes: LaneRegistry) -> None:
        """`branches`: the destinations in the order in which the routes number them; the first is
        the default. `lanes`: of senders.
        """
        self._branches = branches
        self._all_required = all(branch.required for branch in branches)
        self.routes = routes
        first = branches[0].admission
        self.clock = first.clock
        self.lanes = lanes
        self.quotas = first.quotas
        self.rejects = first.rejects
        self.not_acknowledged = 0

    @property
    def awaited(self) -> int:
        """See `Admitter`: of the destination for which most wait."""
        return max(branch.admission.awaited for branch in self._branches)

    @property
    def nulled_numbers(self) -> int:
        """See `Admitter`; each number counts once."""
        return sum(branch.admission.nulled_numbers for branch in self._branches)

    @property
    def filtered_records(self) -> int:
        """See `Admitter`; each record counts once."""
        return sum(branch.admission.filtered_records for branch in self._branches)

    def check_room(self, lane: Lane, size: int) -> None:
        """See `Quotas.check_room`: of all required destinations where events of the lane go for
        certain.
        """
        for number in self.routes.whole(lane, "") or ():
            branch = self._branches[number]
            if branch.required:
                branch.admission.quotas.check_room(branch.lane(lane), size)

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """See `Admitter.admit_one`."""
        numbers = self._numbers(chunk)
        if len(numbers) == 1 and (branch := self._branches[numbers[0]]).required:
            chunk.lane = branch.lane(chunk.lane)
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
        return self.admit(Content([chunk], ruled=True), level, callback) is None

    def end_waiting(self) -> None:
        """See `Admitter.end_waiting`."""
        for branch in self._branches:
            branch.admission.end_waiting()

    # Dividing

    def _numbers(self, of: Chunk | DeadLetter) -> Sequence[int]:
        """Where routes lead, by lane and source, or by the event (`intake.steps`)."""
        if of.to is not None:
            return (of.to,) if isinstance(of.to, int) else of.to
        if of.lane is None:
            return (0,)
        whole = self.routes.whole(of.lane, of.source)
        if whole is None:
            raise RuntimeError("nothing is admitted before routes are applied (`intake/gate.py`)")
        return whole

    def divide(
        self, content: Content, *, source_waits: bool = False, given_up: Collection[Lane] = ()
    ) -> list[SubmissionPart]:
        """What each destination gets of a content; at least one part, which may be empty."""
        parts: dict[int, Content] = {}
        for chunk in content.chunks:
            for number in self._numbers(chunk):
                _part(parts, number).chunks.append(self._copy(chunk, number))
        for letter in content.letters:
            for number in self._numbers(letter):
                _part(parts, number).letters.append(self._mapped(letter, number))
        for lane, source, count in content.overflow:
            for number in self.routes.whole(lane, source) or (0,):
                part = _part(parts, number)
                part.overflow = [*part.overflow, (self._branches[number].lane(lane), source, count)]
        # what rules drop goes nowhere: it is counted once, by the first destination
        if content.tallies:
            first = _part(parts, 0)
            first.tallies = content.tallies
            first.dropped = [(reason, self._copy(chunk, 0)) for reason, chunk in content.dropped]
        if not parts:
            _part(parts, 0)
        numbers = sorted(parts)
        first = parts[numbers[0]]
        first.nulled = content.nulled
        first.filtered = content.filtered
        required = [number for number in numbers if self._branches[number].required]
        parts[(required or numbers)[0]].results = content.results
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
            droppable=not source_waits,
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

    def _mapped(self, letter: DeadLetter, number: int) -> DeadLetter:
        """The letter with the destination's own lane; it knows its sender's."""
        lane = letter.lane and self._branches[number].lane(letter.lane)
        if lane is None or letter.lane is None or lane == letter.lane:
            return letter
        return replace(letter, lane=lane, sender_key=letter.lane.api_key)

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
        """See `Admitter.admit`."""
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
                submission.admission.admit_prepared(submission, AckLevel.MEMORY)
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


def _part(parts: dict[int, Content], number: int) -> Content:
    part = parts.get(number)
    if part is None:
        part = parts[number] = Content(ruled=True)
    return part


def _prepare(part: SubmissionPart) -> bool:
    """Whether the part can be admitted. An optional destination without room drops its part; a
    required one raises why.
    """
    admission = part.submission.admission
    try:
        admission.prepare(part.submission)
    except ForwarderError:
        if part.required:
            raise
        admission.turn_away(part.submission, DropReason.OPTIONAL_DESTINATION)
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
