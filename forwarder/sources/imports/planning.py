"""The plan of an import: all steps from a source to its batches. Synchronous, for a thread of its own.

Unsorted (`plan_steps`), batches leave in the order of the source. When an import is resumed, the source is read again from its start: that
shows that it is the same (its running digest), and restores what follows from earlier records: repeats, limits, first times. Settled
records aren't sent again.

Sorted (`SortedPlan`), the whole source is read first, and its events leave in the order of time over all files:

1. Everything is read, converted and selected as ever, and what is refused becomes a dead letter; the events are sorted into a spool.
2. The spool is read in its order. What is settled of it is a prefix, which a checkpoint holds.

A run that is killed in the first part starts it again: nothing was sent. In the second, the next run resumes in the spool and reads nothing
of the source. Files that can't be read to their end are settled as far as they go; the next run sorts what they have beyond that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forwarder.sources.files.records import BrokenSource, RecordBlock, SourceChanged, SourceFile
from forwarder.sources.files.source import BlockReader, FileSource
from forwarder.sources.imports.books import ImportTotals, RecordBooks, RecordFate, count_fate
from forwarder.sources.imports.checkpoint import SpoolCheckpoint
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import Conversion, ConvertedRecords, ImportDeadLetter
from forwarder.sources.imports.day_batches import BatchLimits, DayBatch, DayBatches
from forwarder.sources.imports.ledger import SharedRecord
from forwarder.sources.imports.sorting import EventSorter, EventSpool, ReadFailure, SortedFile, SortLimits, SpoolIndex, check_room

MAX_WAIT_RECORDS: Final = 250_000
"""How many records are read at most while an event waits for others of its day: nothing after it can be counted before it has left, so
where little is wanted of a large source, memory would fill with what isn't."""
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".zip", ".parquet")


@dataclass(frozen=True, slots=True)
class FileStarted:
    """A file was opened. Files have numbers in the order in which they begin, from 0."""

    number: int
    file: SourceFile


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """The next records of a file, in its order, that weren't settled in an earlier run."""

    file: int
    counts: Sequence[int]
    fates: Mapping[int, RecordFate]
    partly: Mapping[int, RecordFate]
    refused: Sequence[ImportDeadLetter]
    digest: str
    """Of the file's records up to and with these."""


@dataclass(frozen=True, slots=True)
class BatchReady:
    """A batch that leaves now; all its records were read before."""

    batch: DayBatch


@dataclass(frozen=True, slots=True)
class FileEnded:
    """A file has no more records; `broken` if it can't be read to its end."""

    file: int
    broken: BrokenSource | None = None


@dataclass(frozen=True, slots=True)
class SortProgress:
    """Of a sorted import, once all is read: so many events were written again, to bring them into order."""

    written: int
    total: int


@dataclass(frozen=True, slots=True)
class SortFinished:
    """All files were read, and their events stand on disk in the order of time: from here on they are settled in that order."""

    found: SpoolIndex


@dataclass(frozen=True, slots=True)
class SortedEventsRead:
    """The next events, in the order of time, that weren't settled in an earlier run."""

    first: int
    """The number of the first of them."""
    count: int
    shared: Mapping[int, SharedRecord]
    """Of those that aren't all of their records, by their numbers."""


PlanStep = FileStarted | RecordsRead | BatchReady | FileEnded | SortProgress | SortFinished | SortedEventsRead


@dataclass(frozen=True, slots=True)
class SettledFile:
    """How far a file was settled in earlier runs."""

    records: int
    digested: int = 0
    digest: str = ""
    """Of its first `digested` records."""


@dataclass(frozen=True, slots=True)
class RecordPortion:
    """Some neighbouring records of a file, and what they send."""

    read: RecordsRead
    first: int
    """The number of the first of them in the file."""
    events: EventColumns


def plan_steps(source: FileSource, conversion: Conversion, saved: Mapping[str, SettledFile], limits: BatchLimits) -> Generator[PlanStep]:
    """The plan; `saved` is by the files' names. Raises `SourceChanged` before anything of a file that isn't the same is sent."""
    batches = _BoundedDayBatches(limits)
    for found in portions(source, conversion, saved):
        if isinstance(found, RecordPortion):
            yield found.read
            for batch in batches.extend(found.events):
                yield BatchReady(batch)
            for batch in batches.passed(len(found.read.counts)):
                yield BatchReady(batch)
        else:
            yield found
    for batch in batches.flush():
        yield BatchReady(batch)


class _BoundedDayBatches(DayBatches):
    """Batches that don't wait for ever."""

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits)
        self._waiting: FinishedEvent | None = None
        self._waited = 0

    def passed(self, records: int) -> Sequence[DayBatch]:
        """So many records were read; the batches that leave because of that."""
        oldest = self.oldest
        if oldest != self._waiting:
            self._waiting, self._waited = oldest, 0
        self._waited += records
        return self.flush() if self._waited > MAX_WAIT_RECORDS else ()


def portions(
    source: FileSource, conversion: Conversion, saved: Mapping[str, SettledFile]
) -> Iterator[FileStarted | RecordPortion | FileEnded]:
    """All files of a source in their order. Records that were settled are read, and not given. Raises as `plan_steps`."""
    missing = {name for name, each in saved.items() if each.records}
    for number, file in enumerate(source.files()):
        missing.discard(file.name)
        yield FileStarted(number, file)
        yield from _file(source.blocks(file), conversion, number, saved.get(file.name, SettledFile(0)))
        if conversion.is_full:
            return
    for name in missing:
        raise _changed(name, f"it no longer exists, {saved[name].records:,} records of it were imported before")


def _file(reading: BlockReader, conversion: Conversion, number: int, saved: SettledFile) -> Iterator[RecordPortion | FileEnded]:
    broken = None
    with reading:
        try:
            for block, made, settled in _blocks(reading, conversion, number, saved):
                if len(block.records) > settled:
                    digest = reading.digest_at(block.first + len(block.records))
                    read = RecordsRead(number, made.counts, made.fates, made.partly, made.refused, digest)
                    yield RecordPortion(read, block.first + settled, made.events)
                if conversion.is_full:
                    break
        except BrokenSource as error:
            broken = error
    yield FileEnded(number, broken)


def _blocks(
    reading: BlockReader, conversion: Conversion, number: int, saved: SettledFile
) -> Iterator[tuple[RecordBlock, ConvertedRecords, int]]:
    """The blocks of a file, what was made of each, and how many of its records were settled before."""
    read = 0
    for block in reading:
        end = block.first + len(block.records)
        if read <= saved.digested <= end and saved.digest:
            _check(block.file.name, reading, saved)
        settled = min(max(0, saved.records - block.first), len(block.records))
        yield block, conversion.convert(block, number, settled), settled
        read = end
    if read < saved.records:
        raise _changed(reading.name, f"it has {read:,} records, {saved.records:,} were imported before")


def _check(name: str, reading: BlockReader, saved: SettledFile) -> None:
    if reading.digest_at(saved.digested) != saved.digest:
        raise _changed(name, f"its first {saved.digested:,} records aren't those that were imported")


def _changed(name: str, how: str) -> SourceChanged:
    return SourceChanged(
        f"{name}: {how}",
        hint="Bring the file back as it was, and run the same command again; or import what it is now as a job of its own, with `--state`.",
    )


_NOTHING: Final = SettledFile(0)


class SortedPlan:
    """See the module."""

    def __init__(
        self,
        source: FileSource,
        conversion: Conversion,
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
        self._conversion = conversion
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
            for each in portions(self._source, self._conversion, self._saved):
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
            yield SortProgress(0, sorter.added)  # the consumer has made what is refused durable when it asks for the next step
            for written in sorter.merge():
                yield SortProgress(written, sorter.added)
            for written in self._spool.write(sorter.ordered(), found):
                yield SortProgress(written, sorter.added)
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
