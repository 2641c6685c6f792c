"""What is settled of a job's records, in the order of each file: from here come the checkpoint's positions and all its counts.

Batches are settled in any order, and one batch may have events of many records and files. A file's position is the number of records
before its first unsettled one. What is settled beyond it is parked, and counted only when the position has passed it: a run that goes on
from a checkpoint meets those records again, and would count them twice.

Invariants: a position never goes back; counts are of the records before it and of no others; each record is counted once; what is held in
memory is what is in flight, and what was settled beyond the first unsettled record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from forwarder.sources.imports.columns import counted_of
from forwarder.sources.imports.moments import day_of
from forwarder.sources.imports.tallies import CountableEvent, DayTally, ImportTotals, RecordBooks, RefusalExample


class FateKind(StrEnum):
    """What becomes of a record that isn't delivered."""

    REFUSED = "refused"
    LEFT_OUT = "left_out"
    REPEAT = "repeat"


class RecordFate(NamedTuple):
    """Why a record isn't delivered."""

    kind: FateKind
    reason: str = ""
    """Of repeats there is only one."""
    example: RefusalExample | None = None
    """Where it stands, of those that are refused."""


class _Parked(NamedTuple):
    """Events of one UTC day that are settled, beside the numbers of their records."""

    records: Sequence[int]
    events: Sequence[CountableEvent]
    delivered: bool
    first: int
    last: int

    @classmethod
    def of(cls, records: Sequence[int], events: Sequence[CountableEvent], *, delivered: bool) -> _Parked:
        ends = (records[0], records[-1]) if isinstance(records, range) else (min(records), max(records))
        return cls(records, events, delivered, min(ends), max(ends))


class FileLedger:
    """What of one file is settled, in the order of its records."""

    def __init__(
        self,
        totals: ImportTotals,
        books: RecordBooks | None = None,
        *,
        of_all: RecordBooks | None = None,
        digested: int = 0,
        digest: str = "",
    ) -> None:
        """`of_all`: books of all files together, in which this one's records are counted too from here on."""
        self.books = books or RecordBooks()
        """Of the records before the position: `books.read` is the position."""
        self._of_all = of_all or RecordBooks()
        self.digested, self.digest = digested, digest
        """The running digest of the source after this many records: the newest that was told and isn't beyond the position."""
        self.ended = False
        """Whether the source has no more records."""
        self._totals = totals
        self._open: list[int] = []  # of each record from the position on: its events that aren't settled
        self._fates: deque[tuple[int, RecordFate]] = deque()  # known when they were read, in order
        self._refused: dict[int, RecordFate] = {}  # by the service, in any order
        self._parked: list[tuple[int, int, _Parked]] = []  # a heap: by the first of their records
        self._serial = 0
        self.parked = 0
        """Events that are settled, and can't be counted yet."""
        self._digests: deque[tuple[int, str]] = deque()

    @property
    def settled(self) -> int:
        """The records before the first unsettled one."""
        return self.books.read

    @property
    def read(self) -> int:
        """The records that were read."""
        return self.books.read + len(self._open)

    @property
    def complete(self) -> bool:
        """Whether the file was read to its end and all of it is settled."""
        return self.ended and not self._open

    def opened(
        self, events: Sequence[int], fates: Mapping[int, RecordFate], digest: str = "", partly: Mapping[int, RecordFate] | None = None
    ) -> None:
        """The next records were read: how many events each of them sends, and by index among these, why some send none.

        `partly`: of those that send some, why an event of theirs was refused; such a record counts as refused. `digest` is the running
        digest of the source after them. Raises ValueError if a record sends nothing for no reason, or both.
        """
        if events.count(0) != len(fates) or any(events[index] for index in fates):
            raise ValueError("a record either sends events or has a reason for sending none")
        start = self.read
        self._open.extend(events)
        self._fates.extend((start + index, fates[index]) for index in sorted(fates))
        self._refused.update((start + index, fate) for index, fate in (partly or {}).items())
        if digest:
            self._digests.append((start + len(events), digest))
        self._advance()

    def settle(self, records: Sequence[int], events: Sequence[CountableEvent], refused: RecordFate | None = None) -> None:
        """Events of one UTC day have arrived, or were refused for good; `records` has the number of the record of each.

        A record with one event refused counts as refused, though others of it may have arrived. A `range` of records is settled fastest.
        Raises ValueError if a record isn't open: it wasn't read, or is settled.
        """
        if not records:
            return
        parked = _Parked.of(records, events, delivered=refused is None)
        if parked.first < self.settled or parked.last >= self.read:
            raise ValueError(f"records {parked.first} to {parked.last} aren't open: {self.settled} are settled, {self.read} read")
        self._close(records)
        if refused is not None:
            for record in records:
                self._refused.setdefault(record, refused)
        self._park(parked)
        self._advance()

    def _close(self, records: Sequence[int]) -> None:
        start, still = self.books.read, self._open
        if isinstance(records, range) and records.step == 1:
            part = slice(records.start - start, records.stop - start)
            if still[part].count(1) == len(records):
                still[part] = bytes(len(records))
                return
        for record in records:
            still[record - start] -= 1

    def _advance(self) -> None:
        count = 0
        for unsettled in self._open:
            if unsettled:
                break
            count += 1
        if not count:
            return
        self._count_records(self.books.read, self.books.read + count)
        del self._open[:count]
        self._count_events()
        while self._digests and self._digests[0][0] <= self.books.read:
            self.digested, self.digest = self._digests.popleft()

    def _count_records(self, start: int, end: int) -> None:
        passed = []
        while self._fates and self._fates[0][0] < end:
            passed.append(self._fates.popleft())
        passed += [(record, self._refused.pop(record)) for record in self._refused_within(start, end)]
        for books in (self.books, self._of_all):
            books.read += end - start
            books.delivered += end - start - len(passed)
        for _, fate in sorted(passed, key=itemgetter(0)):
            count_fate(self.books, self._totals, fate)
            count_kind(self._of_all, fate)

    def _refused_within(self, start: int, end: int) -> list[int]:
        if end - start < len(self._refused):
            return [each for each in range(start, end) if each in self._refused]
        return [each for each in self._refused if each < end]

    def _count_events(self) -> None:
        end = self.books.read
        while self._parked and self._parked[0][0] < end:
            parked = heappop(self._parked)[2]
            self.parked -= len(parked.events)
            if parked.last < end:
                count_events(self._totals, parked.events, delivered=parked.delivered)
            else:
                self._park(self._split(parked, end))

    def _park(self, parked: _Parked) -> None:
        self._serial += 1
        heappush(self._parked, (parked.first, self._serial, parked))
        self.parked += len(parked.events)

    def _split(self, parked: _Parked, end: int) -> _Parked:
        """Count what is before the position; what stays parked."""
        pairs = list(zip(parked.records, parked.events, strict=True))
        count_events(self._totals, [event for record, event in pairs if record < end], delivered=parked.delivered)
        after = [pair for pair in pairs if pair[0] >= end]
        return _Parked.of([record for record, _ in after], [event for _, event in after], delivered=parked.delivered)


def count_fate(books: RecordBooks, totals: ImportTotals, fate: RecordFate) -> None:
    """Count a record that isn't delivered, beside `RecordBooks.read`."""
    count_kind(books, fate)
    if fate.kind is not FateKind.REPEAT and fate.example is not None:
        totals.example(fate.reason, fate.example)


def count_kind(books: RecordBooks, fate: RecordFate) -> None:
    """Count such a record in books alone."""
    if fate.kind is FateKind.REPEAT:
        books.repeats += 1
        return
    counts = books.refused if fate.kind is FateKind.REFUSED else books.left_out
    counts[fate.reason] = counts.get(fate.reason, 0) + 1


def count_events(totals: ImportTotals, events: Sequence[CountableEvent], *, delivered: bool) -> None:
    """Count events of one UTC day that have arrived, or were refused by the service."""
    day = totals.days.setdefault(day_of(events[0].time), DayTally())
    if not delivered:
        day.source += len(events)
        return
    uuids, packed, bounds = counted_of(events)
    day.arrived(uuids, packed)
    totals.named(bounds.names)
    totals.spans(bounds.first, bounds.last)
