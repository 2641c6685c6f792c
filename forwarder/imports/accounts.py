"""The accounts of a running import: what was read, what is in flight and what is settled, of each file; checkpoints are made of them.

Invariants: a file that was read to its end and is settled is a few hundred bytes here; what is asked of all files together costs the same
however many there are, but for a checkpoint. So a hundred thousand small files are no other work than one large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forwarder.imports.counts import ImportCounts
from forwarder.sources.files.records import SourceFile
from forwarder.sources.imports.changes import SourceContent
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, ImportJob
from forwarder.sources.imports.columns import JoinedColumns
from forwarder.sources.imports.finishing import FinishedEvent
from forwarder.sources.imports.ledger import FileLedger, RecordFate
from forwarder.sources.imports.planned import FileEnded, FileStarted, PlanStep, RecordsRead
from forwarder.sources.imports.planning import SettledFile
from forwarder.sources.imports.tallies import RecordBooks


class SourceOrderCounts(ImportCounts):
    """See the module. Files are known by their number once they have begun; those of earlier runs that haven't, by their name."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        super().__init__(job, started_at, contents, saved)
        self._files: list[FileCheckpoint] = []  # of all that have begun, by number; it is up to date of those that are done
        self._open: dict[int, tuple[SourceFile, FileLedger]] = {}  # those that aren't
        self.doing = ""
        """What is done before anything can be sent: nothing."""
        self.pending = 0
        """What memory holds of records from the first unsettled one of each file on: those, and their events that are settled."""

    def saved(self) -> Mapping[str, SettledFile]:
        """How far each file was settled in earlier runs, by name."""
        return {name: SettledFile(state.books.read, state.digested, state.digest) for name, state in self._earlier.items()}

    def take(self, step: PlanStep) -> None:
        """Note a step of the plan."""
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
        position = state.position(self._totals, self._books)
        position.ended = False  # it is read again, which may show that it can't be read to its end any more
        self._open[len(self._files)] = step.file, position
        self._files.append(state)

    def read(self, step: RecordsRead) -> None:
        """Records were read, and what was refused of them is kept."""
        position = self._open[step.file][1]
        before = _held(position)
        position.opened(step.counts, step.fates, step.digest, step.partly)
        self.pending += _held(position) - before
        self.in_flight += sum(step.counts)

    def end(self, step: FileEnded) -> None:
        """A file has no more records, unless it is broken."""
        self._open[step.file][1].ended = step.broken is None
        self._note(step.file)

    def settle(self, events: Sequence[FinishedEvent], refused: RecordFate | None = None) -> None:
        """Events of one UTC day have arrived, or were refused by the service."""
        self.in_flight -= len(events)
        if refused is None:
            self.delivered += len(events)
        for stretch in JoinedColumns.of(events).stretches:
            position = self._open[stretch.file][1]
            before = _held(position)
            position.settle(stretch.numbers, stretch, refused)
            self.pending += _held(position) - before
            self._note(stretch.file)

    def _note(self, file: int) -> None:
        """Keep no more of a file that is done than what a checkpoint says of it."""
        opened, position = self._open[file]
        if position.complete:
            self._files[file] = FileCheckpoint.of(opened.name, opened.identity, position)
            del self._open[file]

    def name_of(self, file: int) -> str:
        """A file's name."""
        return self._files[file].name

    def books_of(self, file: int, name: str) -> Sequence[RecordBooks]:
        """The books that count a file's records: its own, and those of all files. It may be one that this run doesn't read."""
        state = self._earlier.get(name)
        return (self._files[file] if state is None else state).books, self._books

    def checkpoint(self, now: float) -> ImportCheckpoint:
        """All of it that outlives the process, to be written at once: what it holds goes on being counted in."""
        for number, (file, position) in self._open.items():
            self._files[number] = FileCheckpoint.of(file.name, file.identity, position)
        files = [*self._files, *self._earlier.values()]
        return ImportCheckpoint(self._job, self._started_at, now, self._contents, files, self._totals, self.exhausted)


def _held(position: FileLedger) -> int:
    return position.read - position.settled + position.parked
