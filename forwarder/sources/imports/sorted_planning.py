"""The plan of a sorted import: all of the source is read first, and its events leave in the order of time over all files (`--sort`).

1. All is read, converted and chosen as ever, and what is refused goes its way; the events are sorted (`sorting`), and written to a spool.
2. The spool is read in its order. What is settled of it is a prefix, which a checkpoint holds (`sorted_ledger`).

A run that is killed in the first part begins it again: nothing was sent. In the second, the next run goes on in the spool, and reads
nothing of the source. Files that can't be read to their end are settled as far as they go; the next run sorts what they have beyond that.
Synchronous, as `planning`: for a thread of its own, and every step comes soon after the one before.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from forwarder.sources.files.records import SourceFile
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.checkpoint import SpoolCheckpoint
from forwarder.sources.imports.days import BatchLimits, DayBatches
from forwarder.sources.imports.entries import SharedRecord
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import RecordFate, count_fate
from forwarder.sources.imports.making import Conversion
from forwarder.sources.imports.planned import (
    BatchReady,
    FileEnded,
    FileStarted,
    PlanStep,
    RecordsRead,
    SortedEventsRead,
    SortFinished,
    SortProgress,
)
from forwarder.sources.imports.planning import RecordPortion, SettledFile, portions
from forwarder.sources.imports.sorting import EventSorter, SortLimits, check_room
from forwarder.sources.imports.spool import EventSpool, ReadFailure, SortedFile, SpoolIndex
from forwarder.sources.imports.tallies import ImportTotals, RecordBooks

_NOTHING: Final = SettledFile(0)
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".zip", ".parquet")


class SortedPlan:
    """See the module."""

    def __init__(
        self,
        source: FileSource,
        maker: Conversion,
        spool: EventSpool,
        saved: Mapping[str, SettledFile],
        at: SpoolCheckpoint | None,
        *,
        limits: BatchLimits,
        sort: SortLimits | None = None,
        room: int = 0,
    ) -> None:
        """`saved`: how far each file was settled before it was sorted, by name. `at`: how far what was sorted last is settled.

        `room`: the bytes that sorting takes on disk, at least.
        """
        self._source = source
        self._maker = maker
        self._spool = spool
        self._saved = saved
        self._at = at
        self._limits = replace(limits, max_days=1)  # a day that is over doesn't come again
        self._sort_limits = sort
        self._room = room
        self._before = {name: each.records for name, each in saved.items() if each.records}

    def steps(self) -> Generator[PlanStep]:
        """All steps, from the first entry that isn't settled. Raises `SourceChanged`, `SpoolDamaged`, and `ConfigurationError` where there
        is no room.
        """
        settled, digest = 0, ""
        if self._at is not None and self._at.is_settled:
            self._spool.remove()
        elif self._at is not None:
            settled, digest = self._at.settled, self._at.digest
        found = self._spool.find(self._before, digest)
        if found is None:
            found = yield from self._sort()
        else:
            for number, file in enumerate(found.files):
                yield FileStarted(number, SourceFile(file.name, file.identity))
                yield FileEnded(number, file.failure)
        yield SortFinished(found)
        yield from self._send(found, settled)

    def _sort(self) -> Generator[PlanStep, None, SpoolIndex]:
        found = self._spool.empty(self._before)
        check_room(self._spool.folder, self._room)
        examples = ImportTotals()
        with EventSorter(self._spool.folder, self._sort_limits) as sorter:
            for each in portions(self._source, self._maker, self._saved):
                match each:
                    case FileStarted(file=file):
                        before = self._saved.get(file.name, _NOTHING)
                        found.files.append(SortedFile(file.name, file.identity, before.records, RecordBooks(), before.digest))
                        yield each
                    case RecordPortion(read=read):
                        _count(read, found.files[read.file], examples)
                        _add(sorter, each)
                        yield read
                    case FileEnded(broken=broken):
                        found.files[each.file].broken = None if broken is None else ReadFailure(broken.offset, broken.reason)
                        yield each
            found.examples = examples.examples
            yield SortProgress(0, sorter.taken)  # whoever takes the steps has kept what is refused when the next one is asked for
            for written in sorter.merge():
                yield SortProgress(written, sorter.taken)
            for written in self._spool.write(sorter.ordered(), found):
                yield SortProgress(written, sorter.taken)
        return found

    def _send(self, found: SpoolIndex, settled: int) -> Generator[PlanStep]:
        batches = DayBatches(self._limits)
        for first, entries in self._spool.read(found, settled):
            shared = {first + at: entry.shared for at, entry in enumerate(entries) if entry.shared is not None}
            yield SortedEventsRead(first, len(entries), shared)
            for turn, entry in enumerate(entries, first):
                for batch in batches.add(entry.finished(turn)):
                    yield BatchReady(batch)
        for batch in batches.flush():
            yield BatchReady(batch)


def least_room(source: FileSource) -> int:
    """The bytes that sorting all of a source takes on disk, at least: its events stand there compressed, and for a while twice.

    Events are larger than their records. What is compressed already is hardly made smaller; text is, by twenty times at most as a rule.
    """
    sizes = [(origin.name.lower(), origin.fingerprint.size) for origin in source.origins]
    return sum(size if name.endswith(_COMPRESSED) else size // 10 for name, size in sizes)


def _count(read: RecordsRead, file: SortedFile, examples: ImportTotals) -> None:
    """Count what is settled by being read: records that send nothing."""
    file.records += len(read.counts)
    file.digest = read.digest
    file.books.read += len(read.fates)
    for index in sorted(read.fates):
        count_fate(file.books, examples, read.fates[index])


def _add(sorter: EventSorter, portion: RecordPortion) -> None:
    """Hand over the events of some records, with what is to be known of those that aren't all of their records."""
    counts, partly, first = portion.read.counts, portion.read.partly, portion.first
    if not partly and counts.count(1) == len(portion.events):
        for event in portion.events:
            sorter.add(event)
        return
    last = _last(portion.events)
    for turn, event in enumerate(portion.events):
        index = event.number - first
        is_all = counts[index] == 1 and index not in partly
        sorter.add(event, None if is_all else _shared(partly.get(index), is_last=last[event.number] == turn))


def _last(events: Sequence[FinishedEvent]) -> dict[int, int]:
    """Of each record, which of these events will be its last one in the order of time."""
    found: dict[int, int] = {}
    for turn, event in enumerate(events):
        known = found.get(event.number)
        if known is None or event.time >= events[known].time:
            found[event.number] = turn
    return found


def _shared(refused: RecordFate | None, *, is_last: bool) -> SharedRecord:
    if refused is None:
        return SharedRecord(is_last)
    return SharedRecord(is_last, refused.reason, "" if refused.example is None else refused.example.detail)
