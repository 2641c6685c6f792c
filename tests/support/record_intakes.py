"""A `core.record_intake.RecordIntake` that follows a script, and records in the shape of
the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import Backpressure, TogetherTooLarge
from forwarder.core.event import Lane
from forwarder.core.record_intake import AcceptedBatch, RecordBatch, RecordFacts

LANE = Lane("phc_aaaaaaaaaaaaaaaaaaaaaaaaaaaa")


@dataclass(slots=True)
class FakeRecord:
    """What the client hands over."""

    offset: int
    value: bytes | None = b"{}"
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = 1_767_225_600_000


def records(offsets: Iterable[int], value: bytes | None = b"{}") -> list[FakeRecord]:
    """One record at each offset."""
    return [FakeRecord(offset, value) for offset in offsets]


@dataclass(eq=False, slots=True)
class FakeAccepted:
    """A batch that was accepted."""

    at: float
    lanes: Collection[Lane]
    waiter: AckCallback
    values: list[bytes]
    facts: list[RecordFacts]

    def settle(self, error: Backpressure | None = None) -> None:
        """Have it settled, or say that the buffer couldn't keep it."""
        self.waiter(error)


@dataclass(slots=True)
class FakeRecordIntake:
    """Takes everything, unless `refuses` says why not; settles nothing by itself,
    unless `settles`.
    """

    refuses: Backpressure | None = None
    most: int = 10_000
    """Records that are accepted together."""
    settles: bool = False
    lanes: Collection[Lane] = (LANE,)
    now: float = 0.0
    accepted: list[FakeAccepted] = field(default_factory=list)
    given_up: set[Lane] = field(default_factory=set)
    """What the last call gave up."""
    levels: set[AckLevel] = field(default_factory=set)
    tries: int = 0
    given_back: list[AcceptedBatch] = field(default_factory=list)
    kept: list[AcceptedBatch] = field(default_factory=list)
    buried: list[tuple[list[AcceptedBatch], Lane]] = field(default_factory=list)
    room: int = 10_000
    """Units that can be buried together."""
    halts: dict[Lane, float] = field(default_factory=dict)
    refused: int = 0
    on_take: Callable[[], None] | None = None
    """Called with each batch."""

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        self.tries += 1
        if self.on_take is not None:
            self.on_take()
        self.levels.add(level)
        self.given_up = set(given_up)
        if self.refuses is not None:
            raise self.refuses
        if len(records.values) + len(records.rejected) > self.most:
            raise TogetherTooLarge("too large together")
        self.refused += len(records.rejected)
        facts = [records.facts(index) for index in range(len(records.values))]
        batch = FakeAccepted(self.now, self.lanes, callback, list(records.values), facts)
        self.accepted.append(batch)
        return None if self.settles else batch

    def give_back(self, units: Collection[AcceptedBatch]) -> int:
        self.given_back.extend(units)
        return len(units)

    def keep(self, units: Collection[AcceptedBatch]) -> None:
        self.kept.extend(units)

    def dead_letter(self, units: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        if len(units) > self.room:
            return False
        self.buried.append((list(units), lane))
        return True

    def halted(self) -> dict[Lane, float]:
        return self.halts

    @property
    def offsets(self) -> list[int]:
        """Of all records that were taken, in order."""
        return [
            int(facts.name.rpartition("/")[2]) for unit in self.accepted for facts in unit.facts
        ]
