"""Events on disk in the order of time, of one time in the order in which they came, whatever their number (`--sort`).

A block is a header and a zstd frame. The header, little-endian: the frame's bytes (4), the number of entries in it (4), and BLAKE2b of the
frame (16). The frame holds MessagePack: an array of entries, each an array. A file is nothing but blocks.

`EventSorter` holds about `memory` bytes of events; more go to sorted runs, which are merged, a bounded number at a time, and each is
removed once it is read. `EventSpool` keeps the result in the state folder: `sorted.spool` (blocks), and `sorted.json`, which is written
when the spool is durable, so a spool without it is invalid. `sorted.json` is one JSON object with `version`, `sha256` (of the bytes of
`sorted`) and `sorted`: what was counted of the files while they were read.

Invariants: what comes out is what came in, and equal inputs give equal outputs. However a sorting ends, none of its runs is left; a process
that dies leaves them in the folder, and the next one removes them. A spool that is found is whole and of the job that asks; one that isn't
is sorted anew and gives the same entries, since they follow from the source and the job alone: a checkpoint counts them by their numbers.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from shutil import disk_usage
from typing import BinaryIO, Final, NamedTuple, Self

import msgspec
import zstandard
from msgspec import Raw, Struct, field

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.books import RecordBooks, RefusalExample
from forwarder.sources.imports.checkpoint import ImportJob
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.ledger import SharedRecord
from forwarder.storage.private import atomic_file, open_file
from forwarder.telemetry.readable import size

_HEADER: Final = struct.Struct("<II16s")
_BLOCK: Final = 1 << 18
"""Bytes of events after which a block ends."""
_OVERHEAD: Final = 500
"""Bytes of an event in memory beside its texts."""
_encode: Final = msgspec.msgpack.Encoder().encode
FILES: Final = "sort-*.run"
_ROOM: Final = (
    "`--sort` needs room for all events there, compressed, and while it sorts for twice that. Make room, or name a folder on a larger disk "
    "with `--state`, and run the command again: nothing of what is sorted was sent."
)
VERSION: Final = 1
SPOOL: Final = "sorted.spool"
FILE: Final = "sorted.json"


class SortedEvent(NamedTuple):
    """An event, so that comparing two compares their times and then their turns, which differ."""

    time: int
    turn: int
    """Counts events as they came."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    file: int
    line: int
    number: int
    part: int
    shared: SharedRecord | None
    """None: the event is all of its record."""

    @classmethod
    def of(cls, event: FinishedEvent, turn: int, shared: SharedRecord | None) -> SortedEvent:
        """The entry of an event."""
        time, distinct_id, name, uuid, data, file, line, number, part, _ = event
        return cls(time, turn, distinct_id, name, uuid, data, file, line, number, part, shared)

    def finished(self, turn: int) -> FinishedEvent:
        """The event again; `turn`: its number in the order of time."""
        time, _, distinct_id, name, uuid, data, file, line, number, part, _ = self
        return FinishedEvent(time, distinct_id, name, uuid, data, file, line, number, part, turn)

    @property
    def size(self) -> int:
        """About what it takes in memory."""
        return len(self.data) + len(self.distinct_id) + len(self.event) + _OVERHEAD


_decode: Final = msgspec.msgpack.Decoder(list[SortedEvent]).decode


class DamagedBlocks(Exception):
    """A file of blocks isn't as it was written."""


class BlockWriter:
    """Writes entries to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compress = zstandard.ZstdCompressor(level=1).compress
        self._digest = blake2b(digest_size=16)
        self.entries = 0

    @property
    def digest(self) -> str:
        """Of what was written, before its compression: the same entries give the same one."""
        return self._digest.hexdigest()

    def write(self, entries: Iterable[SortedEvent]) -> Iterator[int]:
        """Write them as the caller asks on; after each block, how many entries were written so far. Raises OSError."""
        block: list[SortedEvent] = []
        size = 0
        for entry in entries:
            block.append(entry)
            size += len(entry.data) + _OVERHEAD
            if size >= _BLOCK:
                yield self._put(block)
                block, size = [], 0
        if block:
            yield self._put(block)

    def _put(self, block: list[SortedEvent]) -> int:
        content = _encode(block)
        self._digest.update(content)
        frame = self._compress(content)
        self._file.write(_HEADER.pack(len(frame), len(block), _sum(frame)))
        self._file.write(frame)
        self.entries += len(block)
        return self.entries


def read_blocks(file: BinaryIO, first: int = 0) -> Iterator[tuple[int, list[SortedEvent]]]:
    """Blocks from the entry with this number on, each with the number of its first entry; blocks before it are only passed over.

    Raises `DamagedBlocks`, and OSError.
    """
    decompress = zstandard.ZstdDecompressor().decompress
    number = 0
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise DamagedBlocks("it ends within a block")
        length, count, digest = _HEADER.unpack(header)
        if number + count <= first:
            file.seek(length, 1)
        else:
            frame = file.read(length)
            if _sum(frame) != digest:
                raise DamagedBlocks(f"its entries from {number:,} on aren't those that were written")
            begin = max(0, first - number)
            yield number + begin, _decode(decompress(frame))[begin:]
        number += count


def _sum(frame: bytes) -> bytes:
    return blake2b(frame, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class SortLimits:
    """How much is held at once."""

    memory: int = 24 << 20
    """Bytes of events."""
    runs: int = 64
    """How many runs are merged at once, at least two; each takes up to half a MiB while it is."""


class EventSorter:
    """Takes events, and gives them in order: `add` all, then `merge`, then read `ordered`. Used as a context.

    `folder` exists, and nothing else sorts in it. All raise `ConfigurationError` if it can't be written in.
    """

    def __init__(self, folder: Path, limits: SortLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or SortLimits()
        self._held: list[SortedEvent] = []
        self._size = 0
        self._paths: list[Path] = []
        """The runs that weren't read, the oldest first."""
        self._begun = 0
        self.added = 0
        """Events so far."""

    def __enter__(self) -> Self:
        self._remove_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_all()

    def add(self, event: FinishedEvent, shared: SharedRecord | None = None) -> None:
        """Take an event."""
        entry = SortedEvent.of(event, self.added, shared)
        size_of_entry = entry.size
        if self._held and self._size + size_of_entry > self._limits.memory:
            self._spill()
        self._held.append(entry)
        self._size += size_of_entry
        self.added += 1

    def merge(self) -> Iterator[int]:
        """Make so few runs that they can be read together, as the caller asks on; how many events were written again so far."""
        if not self._paths:
            return
        if self._held:
            self._spill()
        written = 0
        while (count := len(self._paths)) > self._limits.runs:
            together, self._paths = self._split(min(self._limits.runs, count - self._limits.runs + 1))
            with closing(_merged(together)) as entries:
                last = 0
                for last in self._written(entries):
                    yield written + last
                written += last

    def ordered(self) -> Generator[SortedEvent]:
        """All events in order, once."""
        if self._paths:
            together, self._paths = self._split(len(self._paths))
            with closing(_merged(together)) as entries:
                yield from entries
        else:
            self._held.sort()
            held, self._held = self._held, []
            yield from held

    def _split(self, count: int) -> tuple[list[Path], list[Path]]:
        """The oldest runs, which their reader removes, and the others."""
        return self._paths[:count], self._paths[count:]

    def _spill(self) -> None:
        self._held.sort()
        for _ in self._written(self._held):
            """All of it at once."""
        self._held, self._size = [], 0

    def _written(self, entries: Iterable[SortedEvent]) -> Iterator[int]:
        """Write a run of entries that are in order; how many so far."""
        path = self._folder / f"sort-{self._begun:06}.run"
        self._begun += 1
        try:
            with os.fdopen(open_file(path, os.O_WRONLY | os.O_EXCL), "wb") as file:  # it holds records of people
                yield from BlockWriter(file).write(entries)
        except OSError as error:
            raise cannot_sort(self._folder, error) from error
        self._paths.append(path)

    def _remove_all(self) -> None:
        """Remove the files, also those of a process that died."""
        self._held, self._paths = [], []
        for path in self._folder.glob(FILES):
            path.unlink(missing_ok=True)


def cannot_sort(folder: Path, error: OSError) -> ConfigurationError:
    """The error for a folder that can't be sorted in."""
    return ConfigurationError(f"{folder} can't be sorted in: {error.strerror or error}", hint=_ROOM)


def check_room(folder: Path, least: int) -> None:
    """Raises `ConfigurationError` if there is less room for files than these bytes."""
    free = disk_usage(folder).free
    if free < least:
        raise ConfigurationError(f"{folder} can't be sorted in: that takes {size(least)} at least, there are {size(free)}", hint=_ROOM)


def _merged(paths: list[Path]) -> Generator[SortedEvent]:
    """The entries of several runs in order."""
    with ExitStack() as stack:
        yield from heapq.merge(*[stack.enter_context(closing(_read(path))) for path in paths])


def _read(path: Path) -> Generator[SortedEvent]:
    """The entries of a run, which is removed then."""
    try:
        with path.open("rb") as file:
            for _, entries in read_blocks(file):
                yield from entries
    except DamagedBlocks as error:
        raise ConfigurationError(
            f"{path} was written a moment ago, and {error}", hint="The disk isn't to be relied on: name a folder on another with `--state`."
        ) from error
    path.unlink()


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
        """What an earlier run has sorted of this job; None if there can't be used.

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
                hint="Run the same command again: the source is sorted anew, and the import resumes where it stopped. Check the disk.",
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
