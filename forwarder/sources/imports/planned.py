"""What a plan of an import is made of: what is read of a source, record by record, and the batches that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from forwarder.sources.files.options import BrokenSource
from forwarder.sources.files.records import RecordLocation, SourceFile
from forwarder.sources.imports.columns import EventColumns
from forwarder.sources.imports.days import DayBatch
from forwarder.sources.imports.entries import SharedRecord
from forwarder.sources.imports.events import RefusalReason
from forwarder.sources.imports.ledger import RecordFate
from forwarder.sources.imports.spool import SpoolIndex

OF_EVENTS: Final = 1 << 40
"""See `ImportDeadLetter.part`."""


class ImportDeadLetter(NamedTuple):
    """A record, or one event of several in a record, that isn't sent: a dead letter."""

    place: RecordLocation
    file_number: int
    """Of its file, in the order of the source."""
    number: int
    """Of the record in its file, from 0."""
    part: int
    """Tells what is refused of one record: 0 is all of it, n + 1 what it holds at index n, `OF_EVENTS` + n the n-th event made of it."""
    data: bytes
    """As it was read."""
    why: RefusalReason
    detail: str


@dataclass(slots=True)
class ConvertedRecords:
    """What some neighbouring records of a file became; indexes count from the first of these records."""

    counts: list[int]
    """Of each record: how many events it sends."""
    fates: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send none: why."""
    partly: dict[int, RecordFate] = field(default_factory=dict)
    """Of those that send some, and of which an event was refused."""
    refused: list[ImportDeadLetter] = field(default_factory=list)
    events: EventColumns = field(default_factory=lambda: EventColumns.of(()))
    """In the order of the source."""


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
