"""What is settled of an import, as its checkpoint says it: the position of each file, and all counts up to there.

Blocks are added in the order of the source, each once everything before it is settled. So a run that resumes from a checkpoint reads from
the position on, and counts nothing twice. Of a sorted import the position is the number of sorted events before the first unsettled one;
a record with several events is counted with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.sources.files.records import BrokenSource, SourceFile
from forwarder.sources.imports.blocks import ImportBlock
from forwarder.sources.imports.books import FateKind, RecordBooks, RecordFate, RefusalExample, count_kind
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, SortedFile, SourceChanged, SpoolCheckpoint, SpoolIndex


class ImportLedger:
    """See the module. `checkpoint` is what is to be saved, at any moment."""

    def __init__(self, checkpoint: ImportCheckpoint) -> None:
        """It continues counting in what an earlier run has saved, or in an empty checkpoint."""
        self.checkpoint = checkpoint
        self.totals = checkpoint.totals
        self.books = checkpoint.books
        """Of all records that are settled."""
        self.broken: list[BrokenSource] = []
        self.delivered = 0
        """Events that have arrived in this run."""
        self._files = {state.name: state for state in checkpoint.files}
        self._sorted: dict[str, SortedFile] = {}
        self._refused = {} if checkpoint.spool is None else {(file, number): why for file, number, why in checkpoint.spool.refused}

    def books_of(self, name: str) -> Sequence[RecordBooks]:
        """The books that count a file's records: its own, and those of all files."""
        return self._files[name].books, self.books

    def add(self, block: ImportBlock) -> None:
        """Everything of a block is settled, and of all blocks before it. Raises `SourceChanged` if what was sorted again is different."""
        if block.sorted is not None:
            self._begin_sorted(block.sorted)
        for number, books in block.books.items():
            self._count(self._state(block.files[number]), books)
        for reason, example in block.examples:
            self.totals.example(reason, example)
        for day, count in block.days.items():
            self.totals.day(day).add(count.source, count.delivered, int(count.uuids, 16))
            self.delivered += count.delivered
        self.totals.named(+block.names)  # without those of which every event was refused
        if block.last >= 0:
            self.totals.spans(block.first, block.last)
        if block.entries:
            self._pass_entries(block)
        elif block.file is not None:
            state = self._state(block.files[block.file])
            if block.digest:
                state.digested, state.digest = state.books.read, block.digest
            state.complete = block.ended
            if block.broken is not None:
                self.broken.append(block.broken)

    def _state(self, file: SourceFile | SortedFile) -> FileCheckpoint:
        state = self._files.get(file.name)
        if state is None:
            state = self._files[file.name] = FileCheckpoint(file.name, file.identity, RecordBooks(), 0)
            self.checkpoint.files.append(state)
        return state

    def _count(self, state: FileCheckpoint, books: RecordBooks) -> None:
        state.books.add(books)
        self.books.add(books)
        state.read = max(state.read, state.books.read)

    def _begin_sorted(self, found: SpoolIndex) -> None:
        """All is sorted. What is settled without being sent counts from now on; a spool that was begun before goes on."""
        spool = self.checkpoint.spool
        if spool is None or spool.is_settled:
            self.checkpoint.spool = SpoolCheckpoint(found.entries, found.digest, 0, found.before)
            for file in found.files:
                self._count(self._state(file), file.books)
            for reason, examples in found.examples.items():
                for example in examples:
                    self.totals.example(reason, example)
        elif found.digest != spool.digest:
            raise SourceChanged(
                "the source was sorted again, and its events aren't those that this import began with",
                hint="Bring the source back as it was, and resume with the forwarder that began this import; or import what it is now as a "
                "job of its own, with `--state`.",
            )
        self._sorted = {file.name: file for file in found.files}
        self.broken += [BrokenSource(file.name, file.broken.offset, file.broken.reason) for file in found.files if file.broken]
        for name in self._sorted:
            self._settle_sorted(name)

    def _pass_entries(self, block: ImportBlock) -> None:
        if (spool := self.checkpoint.spool) is None:
            raise RuntimeError("sorted events come before what sorting found")
        for key, shared in block.shared.items():
            record, file = key[:2], block.files[key[0]]
            fate = block.shared_refused.get(key)
            if fate is not None and not shared.reason and record not in self._refused:
                self._refused[record] = fate.reason
                if fate.example is not None:
                    self.totals.example(fate.reason, fate.example)
            if shared.is_last:
                books = RecordBooks(1, 1)
                if reason := shared.reason or self._refused.pop(record, ""):
                    books.delivered = 0
                    count_kind(books, RecordFate(FateKind.REFUSED, reason))
                if shared.reason:
                    self.totals.example(reason, RefusalExample(file.name, block.line_of(key), shared.detail))
                self._count(self._files[file.name], books)
        spool.settled += block.entries
        spool.refused = [(file, number, why) for (file, number), why in self._refused.items()]
        for number in {*block.books, *[key[0] for key in block.shared]}:
            self._settle_sorted(block.files[number].name)

    def _settle_sorted(self, name: str) -> None:
        """A file's running digest is known when all that was read of it is settled."""
        state, file = self._files[name], self._sorted[name]
        state.read = max(file.records, state.books.read)
        is_settled = state.books.read == file.records
        state.complete = is_settled and file.broken is None
        if is_settled:
            state.digested, state.digest = file.records, file.digest
