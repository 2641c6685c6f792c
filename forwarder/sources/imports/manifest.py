"""The manifest of an import: what was read, what became of it, and by what it can be verified, as one JSON file that is kept.

It is made of the last checkpoint, and says nothing that isn't settled. Times are ISO 8601 in UTC, so that people can read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.changes import SourceContent
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob
from forwarder.sources.imports.moments import when
from forwarder.sources.imports.tallies import DayTally, RecordBooks, RefusalExample, check_days
from forwarder.storage.private import atomic_file

VERSION: Final = 1
FILE: Final = "manifest.json"


class FileManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive."""

    name: str
    identity: str
    books: RecordBooks
    digest: str = ""
    """The SHA-256 of what was read of it, in records that each end with a line feed; of all of it, if it is complete."""
    complete: bool = False


class ImportManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What an import did."""

    version: int
    forwarder: str
    """The version that wrote it."""
    job: ImportJob
    complete: bool
    """Whether all that the source has is settled."""
    started: str
    ended: str
    books: RecordBooks
    events: int
    """Events delivered: a record may make several, or none."""
    first: str | None
    """Time of the oldest event delivered."""
    last: str | None
    sources: list[SourceContent]
    files: list[FileManifest]
    days: dict[str, DayTally]
    names: dict[str, int]
    examples: dict[str, list[RefusalExample]] = field(default_factory=dict)

    @property
    def source_events(self) -> int:
        """Events that the source has: repeats, and what was left out, not among them."""
        return sum(day.source for day in self.days.values())


def manifest_of(checkpoint: ImportCheckpoint, forwarder: str, now: float) -> ImportManifest:
    """The manifest of a job that stands at this checkpoint."""
    totals = checkpoint.totals
    files = [FileManifest(each.name, each.identity, each.books, each.digest, each.complete) for each in checkpoint.files]
    return ImportManifest(
        version=VERSION,
        forwarder=forwarder,
        job=checkpoint.job,
        complete=checkpoint.complete,
        started=_second(checkpoint.started_at),
        ended=_second(now),
        books=checkpoint.books,
        events=sum(day.delivered for day in totals.days.values()),
        first=None if totals.first is None else when(totals.first),
        last=None if totals.last is None else when(totals.last),
        sources=checkpoint.contents,
        files=files,
        days=dict(sorted(totals.days.items())),
        names=dict(sorted(totals.names.items(), key=lambda each: (-each[1], each[0]))),
        examples=totals.examples,
    )


def encode(manifest: ImportManifest) -> bytes:
    """A manifest as it stands in its file: indented, for people."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write(manifest: ImportManifest, path: Path) -> None:
    """Write it, in the place of a former one. Raises `ConfigurationError` if it can't be written."""
    with atomic_file(path, replace=True) as file:
        file.write(encode(manifest))


def read(path: Path) -> ImportManifest:
    """The manifest in a file. Raises `ConfigurationError` if there is none, or it can't be relied on."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=ImportManifest)
        _check(manifest)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:  # msgspec's errors are, too
        raise _unreadable(path, str(error)) from error
    return manifest


def _check(manifest: ImportManifest) -> None:
    if manifest.version != VERSION:
        raise ValueError(f"it is of version {manifest.version}, this forwarder reads version {VERSION}")
    check_days(manifest.days)
    total = RecordBooks()
    for file in manifest.files:
        total.add(file.books)
    if total != manifest.books or total.difference or any(file.books.unmended < 0 for file in manifest.files):
        raise ValueError("its books don't balance")
    if manifest.events != sum(day.delivered for day in manifest.days.values()):
        raise ValueError("its days don't add up")


def _second(moment: float) -> str:
    return when(int(moment) * 1_000_000)


def _unreadable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is no manifest that can be used: {why}", hint="Name the manifest.json that an import wrote.")
