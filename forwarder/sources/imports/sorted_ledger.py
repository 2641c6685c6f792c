"""What is settled of a sorted import, in the order of time over all files: from here come its checkpoint's position and all its counts.

Batches are settled in any order. The position is the number of entries of the spool before the first unsettled one; what is settled beyond
it is parked, and counted only when the position has passed it. A record counts with the last of its events in that order.

Invariants: a position never goes back; counts are of the entries before it and of no others, so books balance at every moment; each event
is counted once, and each record once. Memory holds what is in flight, what is settled beyond the first unsettled entry, and of records
with several events those of which the service has refused one and which aren't settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from forwarder.sources.imports.entries import SharedRecord
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import FateKind, RecordFate, count_events
from forwarder.sources.imports.tallies import ImportTotals, RecordBooks, RefusalExample


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
