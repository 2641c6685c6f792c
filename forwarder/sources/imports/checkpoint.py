"""The checkpoint of a job in its state folder: how far each file is settled, what was counted up to there, and the job's identity.

On disk: `checkpoint.json`, one JSON object with `version`, `sha256` (of the bytes of `checkpoint`) and `checkpoint`. It is written after
delivery, beside its place, made durable and renamed, so a kill at any moment leaves the previous one or this one. One that can't be read is
an error, never a new job: a second import under another id couldn't be undone.

The same source with the same format and options is the same job, on any machine. An import resumes at a record's number, which in a file
with other content is the middle of something else: so the source's files are compared with those that the import began with.

Invariants: one process at a time has the folder; a checkpoint that is read is whole, of this version, and its books balance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.books import ImportTotals, RecordBooks, check_days
from forwarder.sources.imports.format import derived_uuid
from forwarder.sources.imports.ledger import FileLedger
from forwarder.sources.imports.times import when
from forwarder.storage.directory import LockedDirectory
from forwarder.storage.private import atomic_file

VERSION: Final = 1
FILE: Final = "checkpoint.json"


class CheckpointDamaged(ConfigurationError):
    """There is a checkpoint, and it can't be relied on."""

    code = "checkpoint_damaged"


class OtherJob(ConfigurationError):
    """The state folder is of a job with other options, or of another source."""

    code = "other_job"


class ImportJob(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes an import this one and no other."""

    id: str
    format: str
    source: str
    """As it was named."""
    options: dict[str, str] = field(default_factory=dict)
    """Those that change what is sent."""


class FileCheckpoint(Struct, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive: how far it is settled."""

    name: str
    identity: str
    books: RecordBooks
    """Of the records before the position; `books.read` is the position: the records before the first unsettled one."""
    read: int
    """Records that were read when this was written: what is between is in flight, and is sent again."""
    digested: int = 0
    digest: str = ""
    """The running digest of the source after `digested` records, which is at or before the position."""
    complete: bool = False

    @classmethod
    def of(cls, name: str, identity: str, position: FileLedger) -> FileCheckpoint:
        """The state of a file from its position, to be written at once: the ledger continues counting in the same books."""
        return cls(name, identity, position.books, position.read, position.digested, position.digest, position.complete)

    def position(self, totals: ImportTotals, of_all: RecordBooks | None = None) -> FileLedger:
        """The ledger that a run resumes with, counting in these books, and in those `of_all` files."""
        position = FileLedger(totals, self.books, of_all=of_all, digested=self.digested, digest=self.digest)
        position.ended = self.complete
        return position


class SpoolCheckpoint(Struct, forbid_unknown_fields=True):
    """Of a sorted import: how far its events are settled, in the order of time over all files."""

    entries: int
    digest: str
    """What the entries must have to be those that are counted here."""
    settled: int
    """The entries before the first unsettled one."""
    before: dict[str, int] = field(default_factory=dict)
    """Records that were settled before the sorting, by file."""
    refused: list[tuple[int, int, str]] = field(default_factory=list)
    """Records that aren't settled, and of which the service has refused an event: file, number, and why."""

    @property
    def is_settled(self) -> bool:
        """Whether all of them are."""
        return self.settled == self.entries


class ImportCheckpoint(Struct, forbid_unknown_fields=True):
    """All of a job that outlives its process."""

    job: ImportJob
    started_at: float
    """Of the job's first run."""
    written_at: float
    contents: list[SourceContent]
    """Of the source's files as they are named, archives whole."""
    files: list[FileCheckpoint] = field(default_factory=list)
    totals: ImportTotals = field(default_factory=ImportTotals)
    exhausted: bool = False
    """Whether all of the source's files are among `files`: none is still to be found."""
    spool: SpoolCheckpoint | None = None
    """Of a sorted import, once all is sorted. Then the books of a file count its settled records, wherever in it they are."""
    witness: str = ""
    """An event that the service has accepted, as it was sent: accepted again, it shows that another one is refused for itself."""

    @property
    def complete(self) -> bool:
        """Whether all that the source has is settled."""
        return self.exhausted and all(file.complete for file in self.files)

    @property
    def books(self) -> RecordBooks:
        """Of all files together."""
        total = RecordBooks()
        for file in self.files:
            total.add(file.books)
        return total


class _CheckpointEnvelope(Struct, forbid_unknown_fields=True):
    version: int
    sha256: str
    checkpoint: Raw


class StateFolder:
    """The folder of one job, for one process at a time."""

    def __init__(self, path: Path, key: str = "--state", own: int = 0) -> None:
        """Make it if it isn't there, and lock it. `key` is what names it, for messages; `own` is as for `LockedDirectory.acquire`.

        Raises `Locked` if another process has it, `ConfigurationError` if it can't be used.
        """
        self.path = path
        self._lock = LockedDirectory.acquire(path, key, own)
        for part in path.glob(f".{FILE}.*.part"):
            part.unlink()  # of a process that was killed; another may have its number now

    def load(self, job: ImportJob) -> ImportCheckpoint | None:
        """The checkpoint of this job; None if there was never one.

        Raises `CheckpointDamaged`, and `OtherJob` if it is of a job that isn't the same in all.
        """
        found = read_checkpoint(self.path)
        if found is not None and (different := differences(found.job, job)):
            raise OtherJob(
                f"{self.path} is of another import: {'; '.join(different)}",
                hint="Use the same options to resume it, or give this import a state folder of its own with `--state`.",
            )
        return found

    def save(self, checkpoint: ImportCheckpoint) -> None:
        """Write it durably, instead of the former one. Raises `ConfigurationError` if the disk refuses."""
        try:
            with atomic_file(self.path / FILE, replace=True) as file:
                file.write(encode(checkpoint))
        except ConfigurationError as error:
            hint = "Make room there, or the folder writable, and run the same command again: it resumes from the last checkpoint."
            raise ConfigurationError(error.message, hint=hint) from error

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()


def encode(checkpoint: ImportCheckpoint) -> bytes:
    """A checkpoint as it stands in its file."""
    body = msgspec.json.encode(checkpoint)
    return msgspec.json.encode(_CheckpointEnvelope(VERSION, hashlib.sha256(body).hexdigest(), Raw(body))) + b"\n"


def read_checkpoint(folder: Path) -> ImportCheckpoint | None:
    """The checkpoint of a state folder, without its lock (for `import status`); None if there is none. Raises `CheckpointDamaged`."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from error
    try:
        return _decode(data)
    except ValueError as error:  # msgspec's errors are, too
        raise _damaged(path, str(error)) from error


def _decode(data: bytes) -> ImportCheckpoint:
    version = msgspec.json.decode(data, type=dict[str, Raw]).get("version", Raw(b"none"))
    if bytes(version) != b"%d" % VERSION:
        raise ValueError(f"it is of version {bytes(version).decode(errors='replace')[:20]}, this forwarder reads version {VERSION}")
    envelope = msgspec.json.decode(data, type=_CheckpointEnvelope)
    if hashlib.sha256(envelope.checkpoint).hexdigest() != envelope.sha256:
        raise ValueError("its bytes aren't those that were written")
    checkpoint = msgspec.json.decode(envelope.checkpoint, type=ImportCheckpoint)
    check_days(checkpoint.totals.days)
    for file in checkpoint.files:
        if file.books.difference or file.books.unmended < 0 or not file.digested <= file.books.read <= file.read:
            raise ValueError(f"its books of {file.name!r} don't balance")
    return checkpoint


def _damaged(path: Path, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{path} can't be read: {why}",
        hint="Nothing was changed. Bring the file back from a backup; or start over with another `--state`: the same source and options "
        "give the same uuids and times, so the service counts again nothing that it has.",
    )


def differences(saved: ImportJob, wanted: ImportJob) -> list[str]:
    """What a job that is wanted has otherwise than the saved one, in words."""
    found = [
        f"its {name} is {old!r}, now it is {new!r}"
        for name, old, new in (("format", saved.format, wanted.format), ("source", saved.source, wanted.source))
        if old != new
    ]
    for name in sorted(saved.options.keys() | wanted.options.keys()):
        old, new = saved.options.get(name), wanted.options.get(name)
        if old != new:
            found.append(f"`--{name}` was {_said(old)}, now it is {_said(new)}")
    if saved.id != wanted.id and not found:
        found.append(f"its id is {saved.id}, now it is {wanted.id}: what the source holds is another")
    return found


def _said(value: str | None) -> str:
    return "not said" if value is None else repr(value)


class SourceContent(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a file's content without reading it whole: its fingerprint, under its name."""

    name: str
    size: int
    digest: str
    """Of local files the digest of size, beginning and end; of objects that of size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where that says nothing: objects, standard input."""


class ChangeKind(StrEnum):
    """How a file has changed."""

    GONE = "gone"
    NEW = "new"
    CONTENT = "content"
    """Its size, or its beginning, end or ETag."""
    TOUCHED = "touched"
    """Only the time at which it was last written: its size, its beginning and its end are the same."""


class SourceChange(Struct, frozen=True):
    """A file that isn't as it was."""

    name: str
    what: ChangeKind
    words: str


def compare(saved: Sequence[SourceContent], found: Iterable[SourceContent]) -> list[SourceChange]:
    """What has changed since a checkpoint: what it has of the source's files, and what they are now."""
    now = {each.name: each for each in found}
    changes = [change for old in saved if (change := _changed(old, now.pop(old.name, None))) is not None]
    return changes + [SourceChange(name, ChangeKind.NEW, f"{name} is new: it wasn't there when this import began") for name in now]


def _changed(old: SourceContent, new: SourceContent | None) -> SourceChange | None:
    if new is None:
        return SourceChange(old.name, ChangeKind.GONE, f"{old.name} is gone")
    if old.size != new.size:
        change = new.size - old.size
        words = f"{'grew' if change > 0 else 'shrank'} by {abs(change):,} byte{'s' * (abs(change) != 1)}, from {old.size:,} to {new.size:,}"
        return SourceChange(old.name, ChangeKind.CONTENT, f"{old.name} {words}{_times(old, new)}")
    if old.digest != new.digest:
        what = "another beginning or end" if old.modified or new.modified else "another content (of an object: another ETag)"
        return SourceChange(old.name, ChangeKind.CONTENT, f"{old.name} has {what} than before, and the same size{_times(old, new)}")
    if old.modified != new.modified:
        return SourceChange(old.name, ChangeKind.TOUCHED, f"{old.name} has the same size, beginning and end{_times(old, new)}")
    return None


def _times(old: SourceContent, new: SourceContent) -> str:
    if old.modified == new.modified or not (old.modified and new.modified):
        return ""
    return f"; it was written at {when(new.modified // 1000)}, before at {when(old.modified // 1000)}"


def job_id(format_name: str, options: Mapping[str, Any], sources: Iterable[str]) -> str:
    """The UUIDv5 of a format, its options, and the identities of the files of the source (`File.identity`: of content, not of names).

    `options` are JSON values, and only those that change what is sent: neither the rate nor where state is kept. None stands for an option
    that isn't set, so that one that comes with a later version changes no job. Neither the order of options nor that of files matters.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    parts = ["job", format_name, chosen, sorted(sources)]
    return derived_uuid(json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":")))
