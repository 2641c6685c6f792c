"""The checkpoint of a job in its state folder: how far each file is settled, what was counted up
to there, and the job's identity.

On disk: `checkpoint.json`, one JSON object with `version`, `sha256` (of the bytes of `checkpoint`)
and `checkpoint`. It is written after delivery, beside its place, made durable and renamed, so a
kill at any moment leaves the previous one or this one. One that can't be read is an error, never a
new job: a second import under another id couldn't be undone.

Invariants: one process at a time has the folder; a checkpoint that is read is whole, of this
version, and its books balance.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.sources.imports.import_books import (
    ImportTotals,
    RecordBooks,
    RefusalExample,
    check_days,
    renamed,
)
from forwarder.storage.directory import LockedDirectory
from forwarder.storage.private import atomic_file

VERSION: Final = 1
FILE: Final = "checkpoint.json"
T = TypeVar("T")


class CheckpointDamaged(ConfigurationError):
    """There is a checkpoint, and it can't be relied on."""

    code = "checkpoint_damaged"


class SourceChanged(ForwarderError):
    """What was read in an earlier run is gone or different, so a resumed run would omit records or
    read others.
    """

    code = "source_changed"


class SourceShard(Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a source that an import in shards reads (`--shard`), and the list of files of
    which it is a part.
    """

    number: int
    """From 0."""
    of: int
    files: int
    """In the whole list."""
    listing: str
    """What tells the list from another: the content of its files in their order, in hex."""

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


PERSONS: Final = "person-properties"
FORMER_CHOICES: Final = {"set_once": "oldest", "set": "history"}
"""What choices of `person_properties` were called when ids of jobs began to follow from them, and
what they are called now: the same events have the same `$import_job_id`.
"""


class ImportJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What makes an import this one and no other."""

    id: str
    format: str
    source: str
    """As it was named."""
    options: dict[str, str] = field(default_factory=dict)
    """Those that change what is sent."""
    shard: SourceShard | None = None
    """None: it reads all of the source."""

    def with_current_names(self) -> ImportJob:
        """The same, with the present names of choices that an earlier version had."""
        said = self.options.get(PERSONS, "")
        if said not in FORMER_CHOICES:
            return self
        return replace(self, options={**self.options, PERSONS: FORMER_CHOICES[said]})


class FileCheckpoint(Struct, forbid_unknown_fields=True):
    """One file of the source, or one member of an archive: how far it is settled."""

    name: str
    identity: str
    books: RecordBooks
    """Of the records before the position; `books.read` is the position: the records before the
    first unsettled one.
    """
    read: int
    """Of a sorted import the records that the file has, of another the position: what is between
    is sent again.
    """
    digested: int = 0
    digest: str = ""
    """The running digest of the source after `digested` records, which is
    at or before the position.
    """
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
    """Records that aren't settled, and of which the service has refused an event: file, number,
    and why.
    """

    @property
    def is_settled(self) -> bool:
        """Whether all of them are."""
        return self.settled == self.entries


class SettledFile(NamedTuple):
    """How far a file was settled in earlier runs."""

    records: int = 0
    digested: int = 0
    digest: str = ""
    """Of its first `digested` records."""


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
    """Why it wasn't read to its end."""


class SpoolIndex(Struct, forbid_unknown_fields=True):
    """What is known of a spool."""

    job: ImportJob
    before: dict[str, int]
    """Records that were settled before the sorting, by file: there are some if files couldn't be
    read to their end the time before.
    """
    entries: int = 0
    digest: str = ""
    """Of the entries, whatever their compression."""
    files: list[SortedFile] = field(default_factory=list)
    """In the order of the source; a file's number is its place here."""
    examples: dict[str, list[RefusalExample]] = field(default_factory=dict)
    """Of records that the format refused."""

    def __post_init__(self) -> None:
        self.examples = renamed(self.examples)


class SourceContent(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a file's content without reading it whole: its fingerprint,
    under its name.
    """

    name: str
    size: int
    digest: str
    """Of local files the digest of size, beginning and end; of objects that of size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where that says nothing: objects, standard input."""


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
    """Of a sorted import, once all is sorted. Then the books of a file count its settled records,
    wherever in it they are.
    """
    persons: str = ""
    """The digest of the index of persons (`persons`) by which events are sent; empty: without one.
    """
    waiting: str = ""
    """Why nothing was sent when it was written; empty if something was, or could be."""
    witness: str = ""
    """An event that the service has accepted, as it was sent: accepted again, it shows that
    another one is refused for itself.
    """

    @property
    def complete(self) -> bool:
        """Whether all that the source has is settled."""
        return self.exhausted and all(file.complete for file in self.files)

    @property
    def settled(self) -> dict[str, SettledFile]:
        """By name, how far the source is to be read without being sent: in a sorted import, what
        was settled before the sorting.
        """
        before = None if self.spool is None or self.spool.is_settled else self.spool.before
        return {
            file.name: SettledFile(
                file.books.read if before is None else before.get(file.name, 0),
                file.digested,
                file.digest,
            )
            for file in self.files
        }

    @property
    def books(self) -> RecordBooks:
        """Of all files together."""
        total = RecordBooks()
        for file in self.files:
            total.add(file.books)
        return total


class StateFolder:
    """The folder of one job, for one process at a time."""

    def __init__(self, path: Path, own: int = 0) -> None:
        """Make it if it isn't there, and lock it; `own` is as for `LockedDirectory.acquire`.

        Raises `Locked` if another process has it, `ConfigurationError` if it can't be used.
        """
        self.path = path
        self._lock = LockedDirectory.acquire(path, "--state", own)
        # of a process that was killed; another may have its number now: in a container each is 1
        for part in path.glob(".*.part"):
            if not part.name.startswith(".sorted."):  # what sorts removes its own
                part.unlink()

    def save(self, checkpoint: ImportCheckpoint) -> None:
        """Write it durably, instead of the former one. Raises
        `ConfigurationError` if the disk refuses.
        """
        try:
            with atomic_file(self.path / FILE, replace=True) as file:
                file.write(seal(VERSION, "checkpoint", checkpoint))
        except ConfigurationError as error:
            hint = (
                "Make room there, or the folder writable, and run the same command again: it "
                "resumes from the last checkpoint."
            )
            raise ConfigurationError(error.message, hint=hint) from error

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()


def read_checkpoint(folder: Path) -> ImportCheckpoint | None:
    """The checkpoint of a state folder, without its lock (for `import status`); None if there is
    none. Raises `CheckpointDamaged`.
    """
    path = folder / FILE
    try:
        checkpoint = unseal(path.read_bytes(), VERSION, "checkpoint", ImportCheckpoint)
        _check(checkpoint)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(
            f"{path} can't be read: {error_text(error)}",
            hint="Nothing was changed. Bring the file back from a backup; or start over with "
            "another `--state`: the same source and "
            "options give the same uuids and times, so the service counts again nothing that it "
            "has.",
        ) from error
    return checkpoint


def _check(checkpoint: ImportCheckpoint) -> None:
    check_days(checkpoint.totals.days)
    for file in checkpoint.files:
        if (
            file.books.difference
            or file.books.unrepaired < 0
            or not file.digested <= file.books.read <= file.read
        ):
            raise ValueError(f"its books of {file.name!r} don't balance")


def seal(version: int, name: str, body: Struct) -> bytes:
    """A JSON object with `version`, the `sha256` of the body's bytes, and the body by its name."""
    data = msgspec.json.encode(body)
    return (
        msgspec.json.encode(
            {"version": version, "sha256": hashlib.sha256(data).hexdigest(), name: Raw(data)}
        )
        + b"\n"
    )


def unseal(data: bytes, version: int, name: str, kind: type[T]) -> T:
    """The body of what `seal` wrote. Raises ValueError (msgspec's errors are) if it is another
    version, or damaged.
    """
    parts = msgspec.json.decode(data, type=dict[str, Raw])
    saved_version = bytes(parts.pop("version", Raw(b"none")))
    if saved_version != b"%d" % version:
        raise ValueError(
            f"it is of version {saved_version.decode(errors='replace')[:20]}, this forwarder reads "
            f"version {version}"
        )
    if (
        parts.keys() != {"sha256", name}
        or msgspec.json.decode(parts["sha256"]) != hashlib.sha256(parts[name]).hexdigest()
    ):
        raise ValueError("its bytes aren't those that were written")
    return msgspec.json.decode(parts[name], type=kind)
