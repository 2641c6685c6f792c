"""The accounts of a running import that is sorted: nothing is settled while it is sorted, and then in the order of time over all files.

See `accounts.Accounts` for what the engine asks of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forwarder.imports.counts import ImportCounts
from forwarder.sources.files.options import SourceChanged
from forwarder.sources.files.records import SourceFile
from forwarder.sources.imports.changes import SourceContent
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, ImportJob, SpoolCheckpoint
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import RecordFate
from forwarder.sources.imports.planned import FileStarted, PlanStep, RecordsRead, SortedEventsRead, SortFinished, SortProgress
from forwarder.sources.imports.planning import SettledFile
from forwarder.sources.imports.sorted_ledger import NamedBooks, SortedLedger
from forwarder.sources.imports.spool import SortedFile, SpoolIndex
from forwarder.sources.imports.tallies import ImportTotals, RecordBooks


class TimeOrderCounts(ImportCounts):
    """See the module. Files are known by their number once they have begun; those of earlier runs that haven't, by their name."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        super().__init__(job, started_at, contents, saved)
        self.spool = None if saved is None else saved.spool
        """How far an earlier run has settled what it had sorted."""
        self._files: list[SourceFile] = []
        self._sorted: _SortedCounts | None = None
        self.doing = ""
        """What is done before the first event can be sent; empty from then on."""
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
        """Events of one UTC day have arrived, or were refused by the service."""
        self.in_flight -= len(events)
        if refused is None:
            self.delivered += len(events)
        self._entries.position.settle(events, refused)

    def name_of(self, file: int) -> str:
        """A file's name."""
        return self._files[file].name

    def books_of(self, file: int, name: str) -> Sequence[RecordBooks]:
        """The books that count a file's records: its own, and those of all files. It may be one that this run doesn't read."""
        state = self._earlier.get(name)
        return (self._entries.books[file] if state is None else state.books), self._books

    @property
    def pending(self) -> int:
        """What memory holds of events from the first unsettled one on: those, and of them the settled ones."""
        return 0 if self._sorted is None else self._sorted.position.pending

    def checkpoint(self, now: float) -> ImportCheckpoint:
        """All of it that outlives the process, to be written at once: what it holds goes on being counted in."""
        files, spool = list(self._earlier.values()), self.spool
        if self._sorted is not None:
            files, spool = self._sorted.files() + files, self._sorted.spool()
        return ImportCheckpoint(self._job, self._started_at, now, self._contents, files, self._totals, self.exhausted, spool)

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
                hint="Bring the source back as it was, and go on with the forwarder that began this import; or import what it is now as a "
                "job of its own, with `--state`.",
            )
        earlier = [self._earlier.pop(file.name) for file in found.files]
        self._sorted = _SortedCounts(
            found, earlier, self._totals, self._books, at or SpoolCheckpoint(found.entries, found.digest, 0, found.before)
        )
        self.doing = ""

    def _count_unsent(self, found: SpoolIndex) -> None:
        """What is settled without being sent counts when the spool is there, not before: else it would be counted again."""
        for file in found.files:
            state = self._earlier.setdefault(file.name, FileCheckpoint(file.name, file.identity, RecordBooks(), 0))
            state.books.add(file.books)
            self._books.add(file.books)
        for reason, examples in found.examples.items():
            for example in examples:
                self._totals.example(reason, example)


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
    """A file as it stands now: its running digest is told when all that was read of it is settled."""
    books, records = earlier.books, file.records
    if books.read < records:
        return FileCheckpoint(file.name, file.identity, books, records, earlier.digested, earlier.digest)
    return FileCheckpoint(file.name, file.identity, books, records, records, file.digest, file.broken is None)
