"""A source sorted by time on disk (`--sort`): over all files, and of one time in the order in
which events came, whatever their number.

First everything is read, converted and selected as ever; what is refused becomes a dead letter,
the events are sorted into a spool. Then the spool is the source: what is settled of it is a
prefix, which a checkpoint holds. A run that is killed before starts the sorting again; after that,
the next run resumes in the spool. Files that can't be read to their end are settled as far as they
go; the next run sorts what they have beyond that.

A file is nothing but blocks: a header and a zstd frame. The header, little-endian: the frame's
bytes (4), the number of entries in it (4), and BLAKE2b of the frame (16). The frame holds
MessagePack: an array of entries, each an array. In the state folder are `sorted.spool` and
`sorted.json` (see `checkpoint.seal`), which is written when the spool and all dead letters of the
source are durable: a spool without it is invalid. `sort-*.run` are parts that are sorted by
themselves, until they are merged.

Invariants: equal inputs give equal outputs. However a sorting ends, none of its runs is left; the
next process removes what a killed one left. A spool that is found is whole and of the job that
asks; one that isn't is sorted anew and gives the same entries, since they follow from the source
and the job alone: a checkpoint counts them by their numbers.
"""

from __future__ import annotations

import heapq
import os
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from shutil import disk_usage
from typing import BinaryIO, Final, NamedTuple, Self

import msgspec
import zstandard

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import SourceFile
from forwarder.sources.files.source import FileSource
from forwarder.sources.imports.blocks import ChunkLimits, ImportBlock, SharedRecord, source_blocks
from forwarder.sources.imports.checkpoint import (
    ImportJob,
    ReadFailure,
    SettledFile,
    SortedFile,
    SpoolCheckpoint,
    SpoolIndex,
    seal,
    unseal,
)
from forwarder.sources.imports.columns import EventColumns, FinishedEvent
from forwarder.sources.imports.conversion import Conversion, ConvertedRecords
from forwarder.sources.imports.import_books import ImportTotals, RecordBooks, count_kind
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
    "`--sort` needs room for all events there, compressed, and while it sorts for twice that. "
    "Make room, or name a folder on a larger disk "
    "with `--state`, and run the command again: nothing of what is sorted was sent."
)
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".zip", ".parquet")
VERSION: Final = 1
SPOOL: Final = "sorted.spool"
FILE: Final = "sorted.json"


def least_room(source: FileSource) -> int:
    """The bytes that sorting all of a source takes on disk, at least: its events stand there
    compressed, and for a while twice.

    Events are larger than their records. What is compressed already is hardly made smaller; text
    is, by twenty times at most as a rule.
    """
    sizes = [(origin.name.lower(), origin.fingerprint.size) for origin in source.origins]
    return sum(size if name.endswith(_COMPRESSED) else size // 10 for name, size in sizes)


def sorted_blocks(  # noqa: PLR0917 - as `source_blocks`, and what is known of the spool
    source: FileSource,
    conversion: Conversion,
    spool: EventSpool,
    saved: Mapping[str, SettledFile],
    at: SpoolCheckpoint | None,
    limits: ChunkLimits,
    *,
    doing: Callable[[str], None],
    sorter: EventSorter | None = None,
    room: int = 0,
    changed: Callable[[Iterable[SortedEvent]], Iterable[SortedEvent]] = iter,
) -> Generator[ImportBlock]:
    """The blocks of a sorted source, from the first event that isn't settled; while it sorts,
    blocks without events, and often.

    `saved`: how far each file was settled before it was sorted, by name. `at`: how far what was
    sorted last is settled. `room`: the bytes that sorting takes on disk, at least. `doing` gets
    what is done before the first event can be sent, in words; empty once nothing is. `changed`: the
    events as they are sent, made of those in the order of time. Raises
    `SourceChanged`, `SpoolDamaged`, and `ConfigurationError` where there is no room. Closing it
    removes what is half sorted.
    """
    if at is not None and at.is_settled:
        spool.remove()
        at = None
    files: dict[int, SourceFile] = {}
    before = {name: progress.records for name, progress in saved.items() if progress.records}
    index = earlier = spool.find(before, "" if at is None else at.digest)
    if index is None:
        if (free := disk_usage(spool.folder).free) < room:
            raise _cannot_sort(
                spool.folder, f"that takes {size(room)} at least, there are {size(free)}"
            )
        spool.remove()
        index = SpoolIndex(spool.job, before)
        words = ""
        with sorter or EventSorter(spool.folder) as events:
            for records, block in _read(
                source_blocks(source, conversion, saved, None), saved, events, index
            ):
                doing(words := f"it sorts before it sends: {records:,} records are read")
                yield block
            for written in chain(events.merge(), spool.write(changed(events.ordered()), index)):
                doing(f"{words}, {written:,} of {events.added:,} events are in order")
                yield ImportBlock(files)
    files.update(
        (number, SourceFile(file.name, file.identity)) for number, file in enumerate(index.files)
    )
    doing("")
    yield ImportBlock(files, sorted=index)
    if earlier is None:
        spool.keep(index)  # all that was refused is durable: the block before was passed
    for entries in spool.read(index, 0 if at is None else at.settled):
        yield _block_of(entries, files, limits)


def _read(
    read: Iterator[ImportBlock],
    saved: Mapping[str, SettledFile],
    sorter: EventSorter,
    index: SpoolIndex,
) -> Iterator[tuple[int, ImportBlock]]:
    """Read everything, and count what is settled without being sent; how many records so far, and
    the dead letters of the last ones.
    """
    examples = ImportTotals(examples=index.examples)
    records = 0
    for block in read:
        if block.file == len(index.files):
            opened = block.files[block.file]
            before = saved.get(opened.name, SettledFile())
            index.files.append(
                SortedFile(
                    opened.name, opened.identity, before.records, RecordBooks(), before.digest
                )
            )
        file = index.files[block.file]
        if block.broken is not None:
            file.broken = ReadFailure(block.broken.offset, block.broken.reason)
        if (made := block.made) is None:
            yield records, ImportBlock(block.files)
            continue
        count = len(made.counts)
        records += count
        file.records += count
        file.digest = block.digest
        file.books.read += len(made.fates)
        for _, fate in sorted(made.fates.items(), key=itemgetter(0)):
            count_kind(file.books, fate)
            if fate.example is not None:
                examples.example(fate.reason, fate.example)
        for event, shared in zip(made.events, _shared(made), strict=True):
            sorter.add(event, shared)
        yield records, ImportBlock(block.files, count, dead_letters=made.refused)


def _shared(made: ConvertedRecords) -> Iterator[SharedRecord | None]:
    """Of each event of some records what is to be known if it isn't all of its record."""
    times = made.events.times
    numbers = made.events.numbers
    if not made.partly and made.counts.count(1) == len(numbers):
        yield from repeat(None, len(numbers))
        return
    # The turns in the order of time.
    last = {
        number: turn
        for _, turn, number in sorted(zip(times, range(len(numbers)), numbers, strict=True))
    }
    for turn, number in enumerate(numbers):
        _, why, example = made.partly.get(number - made.first, (None, "", None))
        shared = SharedRecord(last[number] == turn, why, "" if example is None else example.detail)
        yield shared if why or made.counts[number - made.first] > 1 else None


def _block_of(
    entries: Sequence[SortedEvent], files: Mapping[int, SourceFile], limits: ChunkLimits
) -> ImportBlock:
    """The block of neighbouring entries: records with several events are counted elsewhere."""
    times, _, *columns, _ = zip(*entries, strict=True)
    alone = Counter([entry.file for entry in entries if entry.shared is None])
    block = ImportBlock(
        files,
        books={file: RecordBooks(count, count) for file, count in alone.items()},
        entries=len(entries),
        shared={
            (entry.file, entry.number, entry.part): entry.shared
            for entry in entries
            if entry.shared is not None
        },
    )
    block.send(EventColumns(times, *columns), limits)
    return block


class DamagedBlocks(Exception):
    """A file of blocks isn't as it was written."""


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


_decode: Final = msgspec.msgpack.Decoder(list[SortedEvent]).decode


def write_blocks(file: BinaryIO, entries: Iterable[SortedEvent], digest: blake2b) -> Iterator[int]:
    """Write entries to a file as the caller asks on; after each block, how many were written so
    far. Raises OSError.

    `digest` gets what is written, before its compression: the same entries give the same one.
    """
    compress = zstandard.ZstdCompressor(level=1).compress
    written = 0
    block = list[SortedEvent]()
    room = _BLOCK
    for entry in chain(entries, (None,)):
        if entry is not None:
            block.append(entry)
            room -= len(entry.data) + _OVERHEAD
        if block and (room <= 0 or entry is None):
            content = _encode(block)
            digest.update(content)
            frame = compress(content)
            file.write(
                _HEADER.pack(len(frame), len(block), blake2b(frame, digest_size=16).digest())
                + frame
            )
            yield (written := written + len(block))
            block = []
            room = _BLOCK


def read_blocks(
    file: BinaryIO, first: int = 0, end: int | None = None
) -> Iterator[list[SortedEvent]]:
    """The entries from the one with this number on, block by block; blocks before it are only
    passed over. `end`: how many there are.

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
            if blake2b(frame, digest_size=16).digest() != digest:
                raise DamagedBlocks(
                    f"its entries from {number:,} on aren't those that were written"
                )
            yield _decode(decompress(frame))[max(0, first - number) :]
        number += count
    if end not in {None, number}:
        raise DamagedBlocks(f"it has {number:,} entries, {end:,} were written")


class EventSorter:
    """Takes events, and gives them in order: `add` all, then `merge`, then read `ordered`. Used as
    a context.

    `folder` exists, and nothing else sorts in it. All raise `ConfigurationError` if it can't be
    written in.
    """

    def __init__(self, folder: Path, memory: int = 24 << 20, runs: int = 64) -> None:
        """`memory`: bytes of events that are held. `runs`: how many are merged at once, at least
        two; each takes up to half a MiB then.
        """
        self._folder = folder
        self._memory = memory
        self._most = runs
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
        in_memory = len(event.data) + len(event.distinct_id) + len(event.event) + _OVERHEAD
        if self._held and self._size + in_memory > self._memory:
            self._spill()
        self._held.append(SortedEvent(event.time, self.added, *event[1:], shared))
        self._size += in_memory
        self.added += 1

    def merge(self) -> Iterator[int]:
        """Make so few runs that they can be read together, as the caller asks on; how many events
        were written again so far.
        """
        if self._paths and self._held:
            self._spill()
        before = written = 0
        while (count := len(self._paths)) > self._most:
            for written in self._write_run(self._merged(min(self._most, count - self._most + 1))):
                yield before + written
            before += written

    def ordered(self) -> Iterator[SortedEvent]:
        """All events in order, once."""
        yield from self._merged(len(self._paths)) if self._paths else sorted(self._held)

    def _merged(self, count: int) -> Iterator[SortedEvent]:
        """The entries of the oldest runs in order."""
        paths = self._paths[:count]
        self._paths = self._paths[count:]
        return heapq.merge(*map(_read_run, paths))

    def _spill(self) -> None:
        for _ in self._write_run(sorted(self._held)):
            """All of it at once."""
        self._held = []
        self._size = 0

    def _write_run(self, entries: Iterable[SortedEvent]) -> Iterator[int]:
        """Write a run of entries that are in order; how many so far."""
        path = self._folder / f"sort-{self._begun:06}.run"
        self._begun += 1
        try:
            # it holds records of people
            with os.fdopen(open_file(path, os.O_WRONLY | os.O_EXCL), "wb") as file:
                yield from write_blocks(file, entries, blake2b())
        except OSError as error:
            raise _cannot_sort(self._folder, error_text(error)) from error
        self._paths.append(path)

    def _remove_all(self) -> None:
        """Remove the files, also those of a process that died."""
        self._held = []
        self._paths = []
        for path in self._folder.glob(FILES):
            path.unlink(missing_ok=True)


def _read_run(path: Path) -> Iterator[SortedEvent]:
    """The entries of a run, which is removed then."""
    try:
        with path.open("rb") as file:
            yield from chain.from_iterable(read_blocks(file))
    except DamagedBlocks as error:
        raise ConfigurationError(
            f"{path} was written a moment ago, and {error}",
            hint="The disk isn't to be relied on: name a folder on another with `--state`.",
        ) from error
    path.unlink()


def _cannot_sort(folder: Path, why: object) -> ConfigurationError:
    return ConfigurationError(f"{folder} can't be sorted in: {why}", hint=_ROOM)


class SpoolDamaged(ConfigurationError):
    """The sorted events can't be relied on."""

    code = "spool_damaged"


class EventSpool:
    """The spool of a job in its state folder, which this process has."""

    def __init__(self, folder: Path, job: ImportJob) -> None:
        self.folder = folder
        self.job = job

    def find(self, before: Mapping[str, int], digest: str = "") -> SpoolIndex | None:
        """What an earlier run has sorted of this job; None if there can't be used.

        `digest`: what its entries must have; empty: any.
        """
        try:
            index = unseal((self.folder / FILE).read_bytes(), VERSION, "sorted", SpoolIndex)
        except (OSError, ValueError):  # whatever is wrong with it, it can be made again
            return None
        begun = index.job.with_current_names()
        is_it = begun == self.job and index.before == before and digest in ("", index.digest)
        return index if is_it and (self.folder / SPOOL).exists() else None

    def write(self, entries: Iterable[SortedEvent], about: SpoolIndex) -> Iterator[int]:
        """Write entries that are in order, as the caller asks on; how many so far. They are
        durable at the end, and `about` knows them.

        Raises `ConfigurationError` if they can't be written.
        """
        digest = blake2b(digest_size=16)
        with atomic_file(self.folder / SPOOL, replace=True) as file:
            try:
                for written in write_blocks(file, entries, digest):
                    about.entries = written
                    yield written
                file.flush()
            except OSError as error:
                raise _cannot_sort(self.folder, error_text(error)) from error
        about.digest = digest.hexdigest()

    def keep(self, about: SpoolIndex) -> None:
        """From now on the spool that was written can be found."""
        with atomic_file(self.folder / FILE, replace=True) as file:
            file.write(seal(VERSION, "sorted", about))

    def read(self, about: SpoolIndex, first: int) -> Iterator[list[SortedEvent]]:
        """The entries from the one with this number on, block by block. Raises `SpoolDamaged`;
        then the next run sorts anew.
        """
        try:
            with (self.folder / SPOOL).open("rb") as file:
                yield from read_blocks(file, first, about.entries)
        except (OSError, DamagedBlocks) as error:
            (self.folder / FILE).unlink(missing_ok=True)
            raise SpoolDamaged(
                f"{self.folder / SPOOL}: {error_text(error)}",
                hint=(
                    "Run the same command again: the source is sorted again, and the import "
                    "resumes where it stopped. Check the disk."
                ),
            ) from error

    def remove(self) -> None:
        """Remove it, and what a process left that died while it wrote."""
        (self.folder / FILE).unlink(missing_ok=True)  # first: without it the spool is none
        (self.folder / SPOOL).unlink(missing_ok=True)
        for part in self.folder.glob(".sorted.*.part"):
            part.unlink(missing_ok=True)
