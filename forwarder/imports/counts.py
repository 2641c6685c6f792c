"""What the accounts of every running import have, sorted or not: whose they are, and what is counted of all files together."""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.sources.imports.changes import SourceContent
from forwarder.sources.imports.checkpoint import FileCheckpoint, ImportCheckpoint, ImportJob
from forwarder.sources.imports.tallies import ImportTotals, RecordBooks


class ImportCounts:
    """Counts go on from those of the checkpoint, if there is one."""

    def __init__(self, job: ImportJob, started_at: float, contents: Sequence[SourceContent], saved: ImportCheckpoint | None) -> None:
        self._job = job
        self._started_at = started_at if saved is None else saved.started_at
        self._contents = list(contents)
        self._totals = ImportTotals() if saved is None else saved.totals
        self._earlier: dict[str, FileCheckpoint] = {} if saved is None else {state.name: state for state in saved.files}
        self._books = RecordBooks() if saved is None else saved.books  # of all records that are settled
        self.exhausted = False
        """Whether the source has no more records."""
        self.in_flight = 0
        """Events that are to be sent and aren't settled."""
        self.delivered = 0
        """Events that have arrived in this run."""

    @property
    def totals(self) -> ImportTotals:
        """What is counted of all files together."""
        return self._totals

    @property
    def books(self) -> RecordBooks:
        """Of all records that are settled."""
        return self._books

    @property
    def settled(self) -> int:
        """Records that are settled, in all runs."""
        return self._books.read
