"""The plan of an import: all steps from a source to its batches, in the order of the source. Synchronous: it is for a thread of its own.

Going on from a checkpoint, the source is read again from its start: that shows that it is the same (its running digest), and brings back
what follows from the records before: repeats, limits, first times. Records that were settled aren't sent again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forwarder.sources.files.options import BrokenSource, SourceChanged
from forwarder.sources.files.reading import RecordReader
from forwarder.sources.files.records import RecordBlock
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.columns import EventColumns
from forwarder.sources.imports.days import BatchLimits, DayBatch, DayBatches
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.making import Conversion
from forwarder.sources.imports.planned import BatchReady, ConvertedRecords, FileEnded, FileStarted, PlanStep, RecordsRead

MAX_WAIT_RECORDS: Final = 250_000
"""How many records are read at most while an event waits for others of its day: nothing after it can be counted before it has left, so
where little is wanted of a large source, memory would fill with what isn't."""


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


def plan_steps(source: FileSource, maker: Conversion, saved: Mapping[str, SettledFile], limits: BatchLimits) -> Generator[PlanStep]:
    """The plan; `saved` is by the files' names. Raises `SourceChanged` before anything of a file that isn't the same is sent."""
    batches = _BoundedDayBatches(limits)
    for found in portions(source, maker, saved):
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


def portions(source: FileSource, maker: Conversion, saved: Mapping[str, SettledFile]) -> Iterator[FileStarted | RecordPortion | FileEnded]:
    """All files of a source in their order. Records that were settled are read, and not given. Raises as `plan_steps`."""
    missing = {name for name, each in saved.items() if each.records}
    for number, file in enumerate(source.files()):
        missing.discard(file.file.name)
        yield FileStarted(number, file.file)
        yield from _file(source.blocks(file), maker, number, saved.get(file.file.name, SettledFile(0)))
        if maker.is_full:
            return
    for name in missing:
        raise _changed(name, f"it isn't there any more, {saved[name].records:,} records of it were imported before")


def _file(reading: RecordReader, maker: Conversion, number: int, saved: SettledFile) -> Iterator[RecordPortion | FileEnded]:
    broken = None
    with reading:
        try:
            for block, made, settled in _blocks(reading, maker, number, saved):
                if len(block.records) > settled:
                    digest = reading.digest_at(block.first + len(block.records))
                    read = RecordsRead(number, made.counts, made.fates, made.partly, made.refused, digest)
                    yield RecordPortion(read, block.first + settled, made.events)
                if maker.is_full:
                    break
        except BrokenSource as error:
            broken = error
    yield FileEnded(number, broken)


def _blocks(
    reading: RecordReader, maker: Conversion, number: int, saved: SettledFile
) -> Iterator[tuple[RecordBlock, ConvertedRecords, int]]:
    """The blocks of a file, what was made of each, and how many of its records were settled before."""
    read = 0
    for block in reading:
        end = block.first + len(block.records)
        if read <= saved.digested <= end and saved.digest:
            _check(block.file.name, reading, saved)
        settled = min(max(0, saved.records - block.first), len(block.records))
        yield block, maker.make(block, number, settled), settled
        read = end
    if read < saved.records:
        raise _changed(reading.name, f"it has {read:,} records, {saved.records:,} were imported before")


def _check(name: str, reading: RecordReader, saved: SettledFile) -> None:
    if reading.digest_at(saved.digested) != saved.digest:
        raise _changed(name, f"its first {saved.digested:,} records aren't those that were imported")


def _changed(name: str, how: str) -> SourceChanged:
    return SourceChanged(
        f"{name}: {how}",
        hint="Bring the file back as it was, and run the same command again; or import what it is now as a job of its own, with `--state`.",
    )
