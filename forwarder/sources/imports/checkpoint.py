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
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.books import ImportTotals, RecordBooks, RefusalExample, check_days
from forwarder.sources.imports.format import derived_uuid
from forwarder.sources.imports.times import when
from forwarder.storage.directory import LockedDirectory
from forwarder.storage.private import atomic_file

VERSION: Final = 1
FILE: Final = "checkpoint.json"
T = TypeVar("T")


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
    return seal(VERSION, "checkpoint", checkpoint)


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
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _decode(data: bytes) -> ImportCheckpoint:
    checkpoint = unseal(data, VERSION, "checkpoint", ImportCheckpoint)
    check_days(checkpoint.totals.days)
    for file in checkpoint.files:
        if file.books.difference or file.books.unmended < 0 or not file.digested <= file.books.read <= file.read:
            raise ValueError(f"its books of {file.name!r} don't balance")
    return checkpoint


def seal(version: int, name: str, body: Struct) -> bytes:
    """A JSON object with `version`, the `sha256` of the body's bytes, and the body by its name."""
    data = msgspec.json.encode(body)
    return msgspec.json.encode({"version": version, "sha256": hashlib.sha256(data).hexdigest(), name: Raw(data)}) + b"\n"


def unseal(data: bytes, version: int, name: str, kind: type[T]) -> T:
    """The body of what `seal` wrote. Raises ValueError (msgspec's errors are) if it is another version, or damaged."""
    parts = msgspec.json.decode(data, type=dict[str, Raw])
    found = bytes(parts.pop("version", Raw(b"none")))
    if found != b"%d" % version:
        raise ValueError(f"it is of version {found.decode(errors='replace')[:20]}, this forwarder reads version {version}")
    if parts.keys() != {"sha256", name} or msgspec.json.decode(parts["sha256"]) != hashlib.sha256(parts[name]).hexdigest():
        raise ValueError("its bytes aren't those that were written")
    return msgspec.json.decode(parts[name], type=kind)


def _damaged(path: Path, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{path} can't be read: {why}",
        hint="Nothing was changed. Bring the file back from a backup; or start over with another `--state`: the same source and options "
        "give the same uuids and times, so the service counts again nothing that it has.",
    )


def differences(saved: ImportJob, wanted: ImportJob) -> list[str]:
    """What a job that is wanted has otherwise than the saved one, in words."""
    pairs = [("format", saved.format, wanted.format), ("source", saved.source, wanted.source)]
    found = [f"its {name} is {old!r}, now it is {new!r}" for name, old, new in pairs if old != new]
    for name in sorted(saved.options.keys() | wanted.options.keys()):
        old, new = (repr(job.options[name]) if name in job.options else "not said" for job in (saved, wanted))
        if old != new:
            found.append(f"`--{name}` was {old}, now it is {new}")
    if saved.id != wanted.id and not found:
        found.append(f"its id is {saved.id}, now it is {wanted.id}: what the source holds is another")
    return found


class SourceContent(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a file's content without reading it whole: its fingerprint, under its name."""

    name: str
    size: int
    digest: str
    """Of local files the digest of size, beginning and end; of objects that of size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where that says nothing: objects, standard input."""


def compare(saved: Sequence[SourceContent], found: Iterable[SourceContent]) -> list[str]:
    """What has changed since a checkpoint, in words: what it has of the source's files, and what they are now.

    A file that was only written again is the same.
    """
    now = {each.name: each for each in found}
    changes = []
    for old in saved:
        new = now.pop(old.name, None)
        if new is None:
            changes.append(f"{old.name} is gone")
        elif (old.size, old.digest) != (new.size, new.digest):
            changes.append(f"{old.name} {_change(old, new)}")
    return changes + [f"{name} is new: it wasn't there when this import began" for name in now]


def _change(old: SourceContent, new: SourceContent) -> str:
    by = new.size - old.size
    if by:
        words = f"{'grew' if by > 0 else 'shrank'} by {abs(by):,} byte{'s' * (abs(by) != 1)}, from {old.size:,} to {new.size:,}"
    else:
        what = "another beginning or end" if old.modified or new.modified else "another content (of an object: another ETag)"
        words = f"has {what} than before, and the same size"
    if old.modified and new.modified and old.modified != new.modified:
        words += f"; it was written at {when(new.modified // 1000)}, before at {when(old.modified // 1000)}"
    return words


def job_id(format_name: str, options: Mapping[str, Any], sources: Iterable[str]) -> str:
    """The UUIDv5 of a format, its options, and the identities of the files of the source (`File.identity`: of content, not of names).

    `options` are JSON values, and only those that change what is sent: neither the rate nor where state is kept. None stands for an option
    that isn't set, so that one that comes with a later version changes no job. Neither the order of options nor that of files matters.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    parts = ["job", format_name, chosen, sorted(sources)]
    return derived_uuid(json.dumps(parts, sort_keys=True, allow_nan=False, separators=(",", ":")))
