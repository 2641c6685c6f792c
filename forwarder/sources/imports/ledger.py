"""What is settled of an import; checkpoints take their positions and all counts from here.

Batches are settled in any order, and one batch may hold events of many records and files. The position is the number of records of a file
before the first unsettled one (`FileLedger`); of a sorted import, the number of entries of the spool before the first unsettled one
(`SortedLedger`). What is settled beyond the position is parked and counted only when the position passes it: a run that resumes from a
checkpoint reads those again and would count them twice.

Invariants: a position never goes back; counts cover what is before it and nothing else; each record and each event is counted once, a
record of a sorted import with the last of its events. Memory holds what is in flight, what is settled beyond the position, and, of records
with several events, those of which the service has refused one and which aren't settled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from forwarder.sources.imports.books import (
    FateKind,
    ImportTotals,
    RecordBooks,
    RecordFate,
    RefusalExample,
    count_events,
    count_fate,
    count_kind,
)
from forwarder.sources.imports.columns import FinishedEvent


class SharedRecord(NamedTuple):
    """What is to be known of an event that isn't all of its record."""

    is_last: bool
    """Whether it is the last of its record's in the order of time: with it the record is settled."""
    reason: str = ""
    """Why the format refused an event of the record; empty if it refused none."""
    detail: str = ""


class _Parked(NamedTuple):
    """Events of one UTC day that are settled, beside the numbers of their records."""

    records: Sequence[int]
    events: Sequence[FinishedEvent]
    delivered: bool
    first: int
    last: int

    @classmethod
    def of(cls, records: Sequence[int], events: Sequence[FinishedEvent], *, delivered: bool) -> _Parked:
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
        """The running digest of the source after this many records: the newest known one that isn't beyond the position."""
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

    def settle(self, records: Sequence[int], events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
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


class NamedBooks(NamedTuple):
    """Where the records of a file are counted; its number is its place among these."""

    name: str
    books: RecordBooks


class _ParkedEvents(NamedTuple):
    events: Sequence[FinishedEvent]
    refused: RecordFate | None


class SortedLedger:
    """See the module. Entries are known by their numbers (`FinishedEvent.turn`)."""

    def __init__(
        self,
        files: Sequence[NamedBooks],
        totals: ImportTotals,
        of_all: RecordBooks,
        settled: int = 0,
        refused: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        """`of_all`: books of all files together, in which their records are counted too from here on. `settled`, `refused`: where an
        earlier run stood.
        """
        self.settled = settled
        """The entries before the first unsettled one."""
        self.read = settled
        """The entries that were read."""
        self.refused: dict[tuple[int, int], str] = dict(refused or {})
        """Records, by file and number, of which the service has refused an event and which aren't settled: why."""
        self._files = files
        self._totals = totals
        self._of_all = of_all
        self._shared: dict[int, SharedRecord] = {}
        self._parked: dict[int, _ParkedEvents] = {}  # by the first of their entries
        self._beyond = 0

    @property
    def pending(self) -> int:
        """What memory holds: entries from the first unsettled one on, and of those the settled ones."""
        return self.read - self.settled + self._beyond

    def opened(self, count: int, shared: Mapping[int, SharedRecord]) -> None:
        """The next entries were read; `shared`: of those that aren't all of their records, by their numbers."""
        self.read += count
        self._shared.update(shared)

    def settle(self, events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
        """Events of one UTC day have arrived, or were refused for good. Raises ValueError if one isn't open: not read, or settled."""
        for part in _neighbours(events):
            self._park(part, refused)
        while (parked := self._parked.pop(self.settled, None)) is not None:
            self._beyond -= len(parked.events)
            self._count(parked)
            self.settled += len(parked.events)

    def _park(self, events: Sequence[FinishedEvent], refused: RecordFate | None) -> None:
        first, last = events[0].turn, events[-1].turn
        if first < self.settled or last >= self.read or first in self._parked:
            raise ValueError(f"entries {first} to {last} aren't open: {self.settled} are settled, {self.read} read")
        self._parked[first] = _ParkedEvents(events, refused)
        self._beyond += len(events)

    def _count(self, parked: _ParkedEvents) -> None:
        events, refused = parked
        count_events(self._totals, events, delivered=refused is None)
        if self._shared:
            events = [event for event in events if not self._is_shared(event, refused)]
        for file, count in Counter([event.file for event in events]).items():
            self._count_records(self._files[file].books, count, refused)

    def _count_records(self, books: RecordBooks, count: int, refused: RecordFate | None) -> None:
        """Records of one event each."""
        for each in (books, self._of_all):
            each.read += count
            if refused is None:
                each.delivered += count
            else:
                each.refused[refused.reason] = each.refused.get(refused.reason, 0) + count
        if refused is not None and refused.example is not None:
            self._totals.example(refused.reason, refused.example)

    def _is_shared(self, event: FinishedEvent, refused: RecordFate | None) -> bool:
        """Count an event that isn't all of its record; False if it is."""
        shared = self._shared.pop(event.turn, None)
        if shared is None:
            return False
        record = event.file, event.number
        if refused is not None and not shared.reason and record not in self.refused:
            self.refused[record] = refused.reason
            if refused.example is not None:
                self._totals.example(refused.reason, refused.example)
        if shared.is_last:
            self._count_shared(event, shared, self.refused.pop(record, ""))
        return True

    def _count_shared(self, event: FinishedEvent, shared: SharedRecord, by_service: str) -> None:
        """Count a record with the last of its events."""
        file, books = self._files[event.file]
        if shared.reason:
            fate = RecordFate(FateKind.REFUSED, shared.reason, RefusalExample(file, event.line, shared.detail))
            self._count_records(books, 1, fate)
        elif by_service:
            self._count_records(books, 1, RecordFate(FateKind.REFUSED, by_service))  # the example was kept when it was refused
        else:
            self._count_records(books, 1, None)


def _neighbours(events: Sequence[FinishedEvent]) -> Iterator[Sequence[FinishedEvent]]:
    """Parts of consecutive entries: all of them, as batches are cut from the spool."""
    begin = 0
    if events and events[-1].turn - events[0].turn != len(events) - 1:
        for at in range(1, len(events)):
            if events[at].turn != events[at - 1].turn + 1:
                yield events[begin:at]
                begin = at
    if events:
        yield events[begin:]
