"""What sources with positions share: `Watermark`, up to where they are settled, and `HandOver`,
which hands records to the intake and knows what waits, what was accepted, and what has to be read
again. An import uses the watermark alone.

A `Watermark` says of one partition up to which offset nothing is outstanding. A partition is a
topic's, or a file, or a whole job; an offset is whatever counts its records upwards.

Invariants: `position` never passes an offset whose record isn't settled, and never goes back;
batches are opened in the order of their offsets and settled in any. What is kept is one small entry
for each batch past the first unsettled one.

A `HandOver` is one sequence of units: those of a partition, or of all files of a log source. A
unit is settled, and read again, as one; it is a batch, or several that are made one by one.

Invariants: batches are accepted in the order in which their units were added; a unit is settled
once, when all its batches are; if the buffer couldn't keep a batch, its unit and all units of the
same origin after it are removed together; an `InFlightBudget` counts exactly the units that are
neither settled nor removed; what waits is due, or is due after a pause. A `HandOver` knows no
watermark, file or client: the owner does, and is called back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from forwarder.core.ack import AckLevel
from forwarder.core.errors import Backpressure, StillDecoding, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.record_intake import AcceptedBatch, RecordBatch, RecordIntake
from forwarder.telemetry.readable import size

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 1_000_000
"""What a batch holds at most, unless a single record is larger."""

RETRY_SECONDS: Final = 0.2
"""After which what was rejected is handed over again; twice as long each time that it is rejected
again, for the intake reads it anew.
"""

MOST_RETRY_SECONDS: Final = 2.0
"""At most so long."""

SLICE_SECONDS: Final = 0.01
"""How long batches are handed over before the loop does something else, but for the last of them.
"""

DECODING_SECONDS: Final = 5.0
"""After which a record that is decoded elsewhere is requested again, unless it is
reported as done before.
"""

HOLD_SECONDS: Final = 2.0
"""How long nothing is handed over after the buffer couldn't keep what it had accepted."""


class Span:
    """The offsets of one batch in its partition: it ends before offset `end`,
    and holds so many records.
    """

    __slots__ = ("count", "end", "settled")

    def __init__(self, end: int, count: int) -> None:
        self.end = end
        self.count = count
        self.settled = False


class Watermark:
    """The watermark of one partition."""

    def __init__(self, start: int) -> None:
        """`start`: the first offset that is read."""
        self.position = start
        """The next offset that would be read after a restart: everything before it is settled."""
        self.read = start
        """The next offset to be read."""
        self.window = 0
        """Records from the first unsettled one on, settled or not."""
        self._spans: deque[Span] = deque()

    @property
    def outstanding(self) -> bool:
        """Whether anything that was read isn't settled."""
        return bool(self._spans)

    def open(self, first: int, end: int, count: int) -> Span:
        """`count` records are read, in offsets from `first` to before `end`; offsets that are left
        out hold nothing.

        Raises `ValueError` if they aren't all past what was read.
        """
        if not self.read <= first < end:
            raise ValueError(f"offsets {first} to {end} don't follow {self.read}")
        span = Span(end, count)
        self._spans.append(span)
        self.read = end
        self.window += count
        return span

    def settle(self, span: Span) -> Sequence[Span]:
        """All records of the span are settled; the spans that the position passes by that, in
        order. Settling twice does nothing.
        """
        span.settled = True
        spans = self._spans
        passed: list[Span] = []
        while spans and spans[0].settled:
            first = spans.popleft()
            self.position = first.end if spans else self.read
            self.window -= first.count
            passed.append(first)
        return passed

    def pass_by(self, offset: int) -> bool:
        """Nothing is left to be read before `offset`, such as the marks of transactions; whether
        the position moved by that.
        """
        if offset <= self.read:
            return False
        self.read = offset
        if self._spans:
            return False
        self.position = offset
        return True

    def split(self, span: Span, end: int, count: int) -> Span:
        """The span's first `count` records, up to before `end`, are by themselves from now on; the
        span of the others.
        """
        rest = Span(span.end, span.count - count)
        span.end = end
        span.count = count
        self._spans.insert(self._spans.index(span) + 1, rest)
        return rest

    def rewind(self, span: Span, offset: int) -> list[Span]:
        """The span, which begins at `offset`, and all that was read after it are to be read again;
        these spans count no more.
        """
        gone: list[Span] = []
        while not gone or gone[-1] is not span:
            gone.append(self._spans.pop())
            self.window -= gone[-1].count
        self.read = offset
        if not self._spans:
            self.position = offset
        return gone


class DivisibleBatch(RecordBatch, Protocol):
    """Some neighbouring records, which can be handed over in smaller parts."""

    @property
    def count(self) -> int:
        """Records that it stands for; at least one."""

    def halves(self) -> tuple[Self, Self]:
        """It in two, for one that is too large as it is; it must hold several records."""


OriginT = TypeVar("OriginT")
BatchT = TypeVar("BatchT", bound=DivisibleBatch)
UnitT = TypeVar("UnitT", bound="RecordUnit[Any, Any]")


class InFlightBudget:
    """What a source has read that isn't settled. It is full past its limit, until half of that is
    settled: pausing discards what is fetched.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: in bytes."""
        self.bytes = 0
        self.batches = 0
        """Batches that were accepted and are not settled."""
        self.full = False
        self._limit = limit

    def why(self, records: str) -> str:
        """Why nothing more is read, as text for users; empty if it isn't full. `records`: what they
        are called.
        """
        return (
            f"{size(self.bytes)} of {records} aren't settled (max_in_flight)" if self.full else ""
        )

    def check(self) -> None:
        """Something was read: is it full now?"""
        self.full = self.full or self.bytes > self._limit

    def eased(self) -> bool:
        """Something was settled or removed: whether it was full, and isn't any more."""
        eased = self.full and self.bytes <= self._limit // 2
        self.full = self.full and not eased
        return eased


class RecordUnit(Generic[OriginT, BatchT]):
    """What is settled as one, from when it is read until then."""

    __slots__ = ("_batches", "accepted", "left", "made", "origin", "weight")

    def __init__(
        self, origin: OriginT, batches: Iterable[BatchT], records: int, weight: int
    ) -> None:
        """`origin`: its partition or file. `batches`: all of it, each made when its turn comes.
        `records`: in them together.
        """
        self.origin = origin
        self.weight = weight
        """Bytes that it counts for now."""
        self.left = records
        """Records that are not accepted."""
        self.made: list[BatchT] = []
        """Batches that were made and are not accepted, the next one last: the intake gets the same
        one again.
        """
        self.accepted: dict[int, AcceptedBatch] = {}
        """Batches that were accepted and are not settled, by how many records were left."""
        self._batches = iter(batches)

    def next(self) -> BatchT:
        """The batch whose turn it is."""
        if not self.made:
            self.made.append(next(self._batches))
        return self.made[-1]

    def divide(self, batch: BatchT) -> Sequence[Self]:
        """The batch whose turn it is comes in halves from now on; the units that take the place of
        this one.
        """
        self.made[-1:] = reversed(batch.halves())
        return [self]


class HandOver(Generic[UnitT, BatchT]):
    """Hands one sequence of units over to the intake."""

    def __init__(
        self,
        intake: RecordIntake,
        level: AckLevel,
        budget: InFlightBudget,
        monotonic: Callable[[], float],
        *,
        on_accepted: Callable[[UnitT, BatchT], None],
        on_settled: Callable[[UnitT], None],
        on_rewound: Callable[[Sequence[UnitT]], None],
        on_decoded: Callable[[], None],
        given_up: Collection[Lane] = (),
    ) -> None:
        """`on_accepted`: a batch of the unit was accepted. `on_settled`: all of the unit is
        settled. `on_rewound`: the buffer couldn't keep the first of these units; they count no
        more, and have to come again, in order. `on_decoded`: what waits is due sooner than it was.

        `given_up`: see `RecordIntake.accept`; it may change.
        """
        self.waiting: deque[UnitT] = deque()
        """What was read and is not accepted, in order; of the first, a part may be."""
        self.accepted: dict[UnitT, None] = {}
        """What was accepted and is not settled, in order."""
        self.held_until = 0.0
        """Nothing is handed over before, monotonic seconds."""
        self.why = ""
        """Why what waits was not accepted, as text for users."""
        self._pause = RETRY_SECONDS
        """Seconds until what is rejected next is handed over again."""
        self._intake = intake
        self._level = level
        self._budget = budget
        self._now = monotonic
        self._on_accepted = on_accepted
        self._on_settled = on_settled
        self._on_rewound = on_rewound
        self._on_decoded = on_decoded
        self._given_up = given_up

    @property
    def due(self) -> bool:
        """Whether something can be handed over now."""
        return bool(self.waiting) and self.held_until <= self._now()

    @property
    def blocked(self) -> bool:
        """Whether nothing that is read now would be handed over at once."""
        return bool(self.waiting) or self.held_until > self._now()

    def add(self, units: Sequence[UnitT], *, first: bool = False) -> None:
        """Units that were read, in order; `first`: they come before all that waits."""
        for unit in units:
            self._budget.bytes += unit.weight
        if first:
            self.waiting.extendleft(reversed(units))
        else:
            self.waiting.extend(units)

    def advance(self, until: float) -> None:
        """Hand over what is due, in order: one batch, and more before `until` (monotonic time)."""
        due = self.due
        while due:
            due = self._hand_over() and bool(self.waiting) and self._now() < until

    def remove(self, units: Collection[UnitT]) -> list[AcceptedBatch]:
        """These units count no more, whatever is reported of them later; their accepted batches."""
        batches: list[AcceptedBatch] = []
        removed = set(units)
        for unit in units:
            self.accepted.pop(unit, None)
            self._budget.bytes -= unit.weight
            batches += unit.accepted.values()
            unit.accepted.clear()
        self._budget.batches -= len(batches)
        self.waiting = deque([unit for unit in self.waiting if unit not in removed])
        return batches

    def release(self) -> list[AcceptedBatch]:
        """Remove all that isn't settled; its accepted batches."""
        return self.remove([*self.accepted, *self.waiting])

    def _hand_over(self) -> bool:
        """Hand over the next batch; whether it was accepted, or will be in parts."""
        unit = self.waiting[0]
        if unit.left:
            batch: BatchT = unit.next()
            number = unit.left
            accepted = None
            try:
                if batch.values or batch.rejected:
                    accepted = self._intake.accept(
                        batch, partial(self._settle, unit, number), self._level, self._given_up
                    )
            except Backpressure as error:
                if isinstance(error, TogetherTooLarge) and batch.count > 1:
                    self.waiting.popleft()
                    self._budget.bytes -= unit.weight
                    self.add(unit.divide(batch), first=True)
                    return True
                if isinstance(error, StillDecoding):
                    self._hold(error, RETRY_SECONDS + DECODING_SECONDS)
                    error.when_done(self._decoded)
                else:
                    self._hold(error, self._pause)
                    self._pause = min(2 * self._pause, MOST_RETRY_SECONDS)
                return False
            unit.made.pop()
            unit.left -= batch.count
            if accepted is not None:
                unit.accepted[number] = accepted
                self._budget.batches += 1
            self.why = ""
            self._pause = RETRY_SECONDS
            self._on_accepted(unit, batch)
        if not unit.left:
            self.accepted[self.waiting.popleft()] = None
            self._finish(unit)
        return True

    def _hold(self, error: Backpressure, seconds: float) -> None:
        self.why = error.message
        self.held_until = self._now() + seconds

    def _decoded(self) -> None:
        """The record that all others wait for is decoded."""
        if self.waiting:
            self.held_until = 0.0
            self._on_decoded()

    def _settle(self, unit: UnitT, number: int, error: Backpressure | None) -> None:
        """An accepted batch is settled, or the buffer couldn't keep it."""
        if unit.accepted.pop(number, None) is None:
            return  # its unit was removed
        self._budget.batches -= 1
        if error is None:
            self._finish(unit)
            return
        known = [*self.accepted, *self.waiting]
        units = [other for other in known[known.index(unit) :] if other.origin is unit.origin]
        self._intake.give_back(self.remove(units))
        self._hold(error, HOLD_SECONDS)
        self._on_rewound(units)

    def _finish(self, unit: UnitT) -> None:
        """Settle the unit, if all of it is settled."""
        if unit.left or unit.accepted:
            return
        del self.accepted[unit]
        self._budget.bytes -= unit.weight
        self._on_settled(unit)
