"""The counts of a running import: what was read, what is in flight and what is settled of each file; checkpoints are made of them.

Invariants: a file that was read to its end and is settled takes a few hundred bytes; whatever is asked of all files together costs the same
however many there are, except for a checkpoint. So a hundred thousand small files are no more work than one large one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from forwarder.sources.files.records import SourceChanged, SourceFile
from forwarder.sources.imports.books import ImportTotals, RecordBooks, RecordFate
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, ImportJob, SourceContent, SpoolCheckpoint
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.day_batches import JoinedColumns
from forwarder.sources.imports.ledger import FileLedger, NamedBooks, SortedLedger
from forwarder.sources.imports.planning import (
    FileEnded,
    FileStarted,
    PlanStep,
    RecordsRead,
    SettledFile,
    SortedEventsRead,
    SortFinished,
    SortProgress,
)
from forwarder.sources.imports.sorting import SortedFile, SpoolIndex


class ImportCounts(ABC):
    """What both orders have in common. Counts resume from those of the checkpoint, if there is one."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        self._job = job
        self._started_at = started_at if saved is None else saved.started_at
        self._contents = list(contents)
        self.totals = ImportTotals() if saved is None else saved.totals
        self._earlier: dict[str, FileCheckpoint] = {} if saved is None else {state.name: state for state in saved.files}
        self.books = RecordBooks() if saved is None else saved.books  # of all records that are settled
        self.exhausted = False
        """Whether the source has no more records; the engine sets it."""
        self.doing = ""
        """What is done before the first event can be sent; empty if nothing is."""
        self.in_flight = 0
        """Events that are to be sent and aren't settled."""
        self.delivered = 0
        """Events that have arrived in this run."""

    @property
    def settled(self) -> int:
        """Records that are settled, in all runs."""
        return self.books.read

    @property
    @abstractmethod
    def pending(self) -> int:
        """What memory holds because something before it isn't settled: records and events."""

    @abstractmethod
    def saved(self) -> Mapping[str, SettledFile]:
        """How far each file was settled in earlier runs, by name."""

    @abstractmethod
    def take(self, step: PlanStep) -> None:
        """Count a step of the plan; what was refused of it is durable."""

    @abstractmethod
    def settle(self, events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
        """Events of one UTC day have arrived, or were refused by the service."""

    @abstractmethod
    def name_of(self, file: int) -> str:
        """A file's name."""

    @abstractmethod
    def books_of(self, file: int, name: str) -> Sequence[RecordBooks]:
        """The books that count a file's records: its own, and those of all files. This run may not read the file."""

    @abstractmethod
    def checkpoint(self, now: float) -> ImportCheckpoint:
        """Everything that outlives the process, to be written at once: counting continues in what it holds."""


class SourceOrderCounts(ImportCounts):
    """See the module. Files are known by their number once they have begun; those of earlier runs that haven't, by their name."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        super().__init__(job, started_at, contents, saved)
        self._files: list[FileCheckpoint] = []  # of all that have begun, by number; it is up to date of those that are done
        self._open: dict[int, tuple[SourceFile, FileLedger]] = {}  # those that aren't
        self._pending = 0  # of records from the first unsettled one of each file on: those, and their events that are settled

    @property
    def pending(self) -> int:
        """See `ImportCounts`."""
        return self._pending

    def saved(self) -> Mapping[str, SettledFile]:
        """How far each file was settled in earlier runs, by name."""
        return {name: SettledFile(state.books.read, state.digested, state.digest) for name, state in self._earlier.items()}

    def take(self, step: PlanStep) -> None:
        """See `ImportCounts`."""
        match step:
            case FileStarted():
                self.begin(step)
            case RecordsRead():
                self.read(step)
            case FileEnded():
                self.end(step)

    def begin(self, step: FileStarted) -> None:
        """A file is read."""
        earlier = self._earlier.pop(step.file.name, None)
        state = earlier or FileCheckpoint(step.file.name, step.file.identity, RecordBooks(), 0)
        position = state.position(self.totals, self.books)
        position.ended = False  # it is read again, which may show that it can't be read to its end any more
        self._open[len(self._files)] = step.file, position
        self._files.append(state)

    def read(self, step: RecordsRead) -> None:
        """Records were read, and what was refused of them is kept."""
        position = self._open[step.file][1]
        before = _held(position)
        position.opened(step.counts, step.fates, step.digest, step.partly)
        self._pending += _held(position) - before
        self.in_flight += sum(step.counts)

    def end(self, step: FileEnded) -> None:
        """A file has no more records, unless it is broken."""
        self._open[step.file][1].ended = step.broken is None
        self._note(step.file)

    def settle(self, events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
        """See `ImportCounts`."""
        self.in_flight -= len(events)
        if refused is None:
            self.delivered += len(events)
        for stretch in JoinedColumns.of(events).stretches:
            position = self._open[stretch.file][1]
            before = _held(position)
            position.settle(stretch.numbers, stretch, refused)
            self._pending += _held(position) - before
            self._note(stretch.file)

    def _note(self, file: int) -> None:
        """Keep no more of a file that is done than what a checkpoint says of it."""
        opened, position = self._open[file]
        if position.complete:
            self._files[file] = FileCheckpoint.of(opened.name, opened.identity, position)
            del self._open[file]

    def name_of(self, file: int) -> str:
        """See `ImportCounts`."""
        return self._files[file].name

    def books_of(self, file: int, name: str) -> Sequence[RecordBooks]:
        """See `ImportCounts`."""
        state = self._earlier.get(name)
        return (self._files[file] if state is None else state).books, self.books

    def checkpoint(self, now: float) -> ImportCheckpoint:
        """See `ImportCounts`."""
        for number, (file, position) in self._open.items():
            self._files[number] = FileCheckpoint.of(file.name, file.identity, position)
        files = [*self._files, *self._earlier.values()]
        return ImportCheckpoint(self._job, self._started_at, now, self._contents, files, self.totals, self.exhausted)


def _held(position: FileLedger) -> int:
    return position.read - position.settled + position.parked


class TimeOrderCounts(ImportCounts):
    """See the module. Files are known by their number once they have begun; those of earlier runs that haven't, by their name."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        super().__init__(job, started_at, contents, saved)
        self.spool = None if saved is None else saved.spool
        """How far an earlier run has settled what it had sorted."""
        self._files: list[SourceFile] = []
        self._sorted: _SortedCounts | None = None
        self._read = 0

    @property
    def _goes_on_at(self) -> SpoolCheckpoint | None:
        """Where an earlier run stood among the sorted events; None if it had settled all that it had sorted, or none."""
        return None if self.spool is None or self.spool.is_settled else self.spool

    def saved(self) -> Mapping[str, SettledFile]:
        """How far each file was settled before its events were sorted, by name."""
        at = self._goes_on_at
        return {
            name: SettledFile(state.books.read if at is None else at.before.get(name, 0), state.digested, state.digest)
            for name, state in self._earlier.items()
        }

    def take(self, step: PlanStep) -> None:
        """Note a step of the plan. Raises `SourceChanged` if what was sorted again isn't what was sorted before."""
        match step:
            case FileStarted(file=file):
                self._files.append(file)
            case RecordsRead(counts=counts):
                self._read += len(counts)
                self.doing = f"it sorts before it sends: {self._read:,} records are read"
            case SortProgress(written=written, total=total):
                self.doing = f"it sorts before it sends: {self._read:,} records are read, {written:,} of {total:,} events are in order"
            case SortFinished(found=found):
                self._begin(found)
            case SortedEventsRead():
                self._entries.position.opened(step.count, step.shared)
                self.in_flight += step.count

    def settle(self, events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
        """See `ImportCounts`."""
        self.in_flight -= len(events)
        if refused is None:
            self.delivered += len(events)
        self._entries.position.settle(events, refused)

    def name_of(self, file: int) -> str:
        """See `ImportCounts`."""
        return self._files[file].name

    def books_of(self, file: int, name: str) -> Sequence[RecordBooks]:
        """See `ImportCounts`."""
        state = self._earlier.get(name)
        return (self._entries.books[file] if state is None else state.books), self.books

    @property
    def pending(self) -> int:
        """What memory holds of events from the first unsettled one on: those, and of them the settled ones."""
        return 0 if self._sorted is None else self._sorted.position.pending

    def checkpoint(self, now: float) -> ImportCheckpoint:
        """See `ImportCounts`."""
        files, spool = list(self._earlier.values()), self.spool
        if self._sorted is not None:
            files, spool = self._sorted.files() + files, self._sorted.spool()
        return ImportCheckpoint(self._job, self._started_at, now, self._contents, files, self.totals, self.exhausted, spool)

    @property
    def _entries(self) -> _SortedCounts:
        if self._sorted is None:
            raise RuntimeError("nothing is sorted yet")
        return self._sorted

    def _begin(self, found: SpoolIndex) -> None:
        """All is sorted. From here on a checkpoint says how far it is settled."""
        at = self._goes_on_at
        if at is None:
            self._count_unsent(found)
        elif found.digest != at.digest:
            raise SourceChanged(
                "the source was sorted again, and its events aren't those that this import began with",
                hint="Bring the source back as it was, and resume with the forwarder that began this import; or import what it is now as a "
                "job of its own, with `--state`.",
            )
        earlier = [self._earlier.pop(file.name) for file in found.files]
        self._sorted = _SortedCounts(
            found, earlier, self.totals, self.books, at or SpoolCheckpoint(found.entries, found.digest, 0, found.before)
        )
        self.doing = ""

    def _count_unsent(self, found: SpoolIndex) -> None:
        """What is settled without being sent counts when the spool is there, not before: else it would be counted again."""
        for file in found.files:
            state = self._earlier.setdefault(file.name, FileCheckpoint(file.name, file.identity, RecordBooks(), 0))
            state.books.add(file.books)
            self.books.add(file.books)
        for reason, examples in found.examples.items():
            for example in examples:
                self.totals.example(reason, example)


class _SortedCounts:
    """What is settled, once all is sorted."""

    def __init__(
        self, found: SpoolIndex, earlier: Sequence[FileCheckpoint], totals: ImportTotals, of_all: RecordBooks, at: SpoolCheckpoint
    ) -> None:
        """`earlier`: the files, in their order, as they stand."""
        self._found = found
        self._earlier = earlier
        self._at = at
        self.books = [state.books for state in earlier]
        """Of the files, in their order."""
        refused = {(file, number): why for file, number, why in at.refused}
        files = [NamedBooks(state.name, state.books) for state in earlier]
        self.position = SortedLedger(files, totals, of_all, at.settled, refused)

    def spool(self) -> SpoolCheckpoint:
        """How far it is settled."""
        refused = [(file, number, why) for (file, number), why in self.position.refused.items()]
        return SpoolCheckpoint(self._at.entries, self._at.digest, self.position.settled, self._at.before, refused)

    def files(self) -> list[FileCheckpoint]:
        """How far each file is settled."""
        return [_state(file, state) for file, state in zip(self._found.files, self._earlier, strict=True)]


def _state(file: SortedFile, earlier: FileCheckpoint) -> FileCheckpoint:
    """A file as it stands now: its running digest is known when all that was read of it is settled."""
    books, records = earlier.books, file.records
    if books.read < records:
        return FileCheckpoint(file.name, file.identity, books, records, earlier.digested, earlier.digest)
    return FileCheckpoint(file.name, file.identity, books, records, records, file.digest, file.broken is None)
