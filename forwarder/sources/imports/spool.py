"""The events of a sorted import on disk, in the order of time: written once, before the first is sent, and read from any of them on.

In the state folder: `sorted.spool` (blocks of `entries`), and `sorted.json`, which is written when the spool is durable, so that a spool
without it is none. `sorted.json` is one JSON object with `version`, `sha256` (of the bytes of `sorted`) and `sorted`: what was counted of
the files while they were read.

Invariants: what is found is whole and of the job that asks; what is read is what was written. A spool that isn't is sorted anew, and gives
the same entries, for they follow from the source and the job alone: a checkpoint counts them by their numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.options import BrokenSource
from forwarder.sources.imports.checkpoint import ImportJob
from forwarder.sources.imports.entries import BlockWriter, DamagedBlocks, SortedEvent, read_blocks
from forwarder.sources.imports.sorting import cannot_sort
from forwarder.sources.imports.tallies import RecordBooks, RefusalExample
from forwarder.storage.private import atomic_file

VERSION: Final = 1
SPOOL: Final = "sorted.spool"
FILE: Final = "sorted.json"


class SpoolDamaged(ConfigurationError):
    """The sorted events can't be relied on."""

    code = "spool_damaged"


class ReadFailure(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a file can't be read any further, and why."""

    offset: int
    reason: str


class SortedFile(Struct, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive."""

    name: str
    identity: str
    records: int
    """That it has, as far as it was read; those that were settled before the sorting among them."""
    books: RecordBooks
    """Of its records that send nothing; those that were settled before aren't among them."""
    digest: str = ""
    """The running digest of its records."""
    broken: ReadFailure | None = None

    @property
    def failure(self) -> BrokenSource | None:
        """Why it wasn't read to its end."""
        return None if self.broken is None else BrokenSource(self.name, self.broken.offset, self.broken.reason)


class SpoolIndex(Struct, forbid_unknown_fields=True):
    """What is known of a spool."""

    job: ImportJob
    before: dict[str, int]
    """Records that were settled before the sorting, by file: there are some if files couldn't be read to their end the time before."""
    entries: int = 0
    digest: str = ""
    """Of the entries, whatever their compression."""
    files: list[SortedFile] = field(default_factory=list)
    """In the order of the source; a file's number is its place here."""
    examples: dict[str, list[RefusalExample]] = field(default_factory=dict)
    """Of records that the format refused."""


class _SpoolEnvelope(Struct, forbid_unknown_fields=True):
    version: int
    sha256: str
    sorted: Raw


class EventSpool:
    """The spool of a job in its state folder, which this process has."""

    def __init__(self, folder: Path, job: ImportJob) -> None:
        self.folder = folder
        self._job = job

    def find(self, before: Mapping[str, int], digest: str = "") -> SpoolIndex | None:
        """What an earlier run has sorted of this job; None if there is none that can be used.

        `digest`: what its entries must have; empty: any.
        """
        try:
            envelope = msgspec.json.decode((self.folder / FILE).read_bytes(), type=_SpoolEnvelope)
            if envelope.version != VERSION or hashlib.sha256(envelope.sorted).hexdigest() != envelope.sha256:
                return None
            found = msgspec.json.decode(envelope.sorted, type=SpoolIndex)
        except (OSError, ValueError):  # msgspec's errors are ValueErrors; whatever is wrong with it, it can be made again
            return None
        is_it = found.job == self._job and found.before == before and digest in ("", found.digest)
        return found if is_it and (self.folder / SPOOL).exists() else None

    def empty(self, before: Mapping[str, int]) -> SpoolIndex:
        """What a new sorting begins with. What an old one left is removed."""
        self.remove()
        return SpoolIndex(self._job, dict(before))

    def write(self, entries: Iterable[SortedEvent], about: SpoolIndex) -> Iterator[int]:
        """Write entries that are in order, and then `about`, completed, as the caller asks on; how many entries so far.

        All is durable at the end. Raises `ConfigurationError` if it can't be written.
        """
        with atomic_file(self.folder / SPOOL, replace=True) as file:
            blocks = BlockWriter(file)
            try:
                yield from blocks.write(entries)
                file.flush()
            except OSError as error:
                raise cannot_sort(self.folder, error) from error
        about.entries, about.digest = blocks.entries, blocks.digest
        body = msgspec.json.encode(about)
        with atomic_file(self.folder / FILE, replace=True) as file:
            file.write(msgspec.json.encode(_SpoolEnvelope(VERSION, hashlib.sha256(body).hexdigest(), Raw(body))) + b"\n")

    def read(self, about: SpoolIndex, first: int) -> Iterator[tuple[int, list[SortedEvent]]]:
        """Blocks of entries from the one with this number on, each with the number of its first entry.

        Raises `SpoolDamaged`; then the next run sorts anew.
        """
        try:
            with (self.folder / SPOOL).open("rb") as file:
                yield from _all(read_blocks(file, first), first, about.entries)
        except (OSError, DamagedBlocks) as error:
            (self.folder / FILE).unlink(missing_ok=True)
            raise SpoolDamaged(
                f"{self.folder / SPOOL}: {error}",
                hint="Run the same command again: the source is sorted anew, and the import goes on where it stands. Look after the disk.",
            ) from error

    def remove(self) -> None:
        """Remove it, and what a process left that died while it wrote."""
        (self.folder / FILE).unlink(missing_ok=True)  # first: without it the spool is none
        (self.folder / SPOOL).unlink(missing_ok=True)
        for name in (FILE, SPOOL):
            for part in self.folder.glob(f".{name}.*.part"):
                part.unlink(missing_ok=True)


def _all(blocks: Iterator[tuple[int, list[SortedEvent]]], first: int, end: int) -> Iterator[tuple[int, list[SortedEvent]]]:
    """Blocks that together go from one entry to another. Raises `DamagedBlocks` if they don't."""
    read = first
    for number, entries in blocks:
        read = number + len(entries)
        yield number, entries
    if read != end:
        raise DamagedBlocks(f"it has {read:,} entries, {end:,} were written")
