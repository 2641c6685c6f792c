"""A source: everything the user named, file by file, as blocks of records with a running digest.

Files come in the order in which they were named, those of a folder, pattern or prefix by name (numbers by value), each once. The content of
archives is discovered while they are read, so the first record arrives at once however large they are. Everything is synchronous and meant
for a thread of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Self

from forwarder.sources.files.archives import PARQUET, ArchiveOpener, OpenedFile
from forwarder.sources.files.framing import BOM, NumberedRecords, read_csv, read_lines, read_parquet, read_values
from forwarder.sources.files.objects import Connect, connect, stored_objects
from forwarder.sources.files.origins import SCHEMES, Fingerprint, SourceOrigin, SpooledFile, check_addresses, local_origins
from forwarder.sources.files.records import BrokenSource, Framing, LineRecords, ReadOptions, RecordBlock, SourceChanged, SourceFile

if TYPE_CHECKING:
    from hashlib import _Hash

_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".zip", ".gzip", ".zstd")
_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class SourceMember:
    """A file with records in it, and the file on disk or in the store that it came from."""

    file: SourceFile
    origin: str
    """The name of what the user named; the same as the file's if that is no archive."""
    member: str
    """The way from there."""
    fingerprint: Fingerprint
    """Of the origin."""


class FileSource:
    """What is imported. Closing it gives back the space that standard input takes."""

    def __init__(self, origins: Sequence[SourceOrigin], options: ReadOptions) -> None:
        self.origins = origins
        self._options = options
        self._by_name = {origin.name: origin for origin in origins}
        self._current: tuple[SourceMember, OpenedFile] | None = None

    @cached_property
    def identity(self) -> str:
        """What tells this source from another, in hex: of the content of its files in their order, whatever they are called."""
        digest = blake2b(digest_size=20)
        for origin in self.origins:
            digest.update(f"{origin.fingerprint.digest}\n".encode())
        return digest.hexdigest()

    def files(self, after: str | None = None) -> Iterator[SourceMember]:
        """All files with records. Reading one's blocks before the next is asked for spares opening its archive again.

        `after`: origins before the one of this name are left out, it isn't.
        """
        names = [origin.name for origin in self.origins]
        if after is not None and after not in names:
            raise SourceChanged(f"{after}: is no longer among the files", hint="Bring it back, or start a new import.")
        for origin in self.origins[names.index(after) if after is not None else 0 :]:
            with origin.open() as opened:
                for leaf in ArchiveOpener(self._options).leaves(opened, opened):
                    file = _source_file(origin, leaf.member)
                    self._current = file, leaf
                    try:
                        yield file
                    finally:
                        self._current = None

    def blocks(self, file: SourceMember, skip_records: int = 0) -> BlockReader:
        """The blocks of a file, from this record on.

        Raises, while it is read, `BrokenSource` after the last good block, and `SourceChanged` if there are fewer records than are skipped.
        """
        if self._current is not None and self._current[0] == file:
            leaf, self._current = self._current[1], None
            return BlockReader(file.file, leaf, self._options, skip_records, _nothing)
        return self._reopened(file, skip_records)

    def _reopened(self, file: SourceMember, skip_records: int) -> BlockReader:
        origin = self._by_name[file.origin]
        opened = origin.open()
        leaves = ArchiveOpener(self._options, file.member).leaves(opened, opened)

        def close() -> None:
            leaves.close()  # type: ignore[attr-defined]
            opened.close()

        leaf = next((leaf for leaf in leaves if leaf.member == file.member), None)
        if leaf is None:
            close()
            raise SourceChanged(f"{file.file.name}: no longer exists", hint="Bring it back, or start a new import.")
        return BlockReader(file.file, leaf, self._options, skip_records, close)

    def close(self) -> None:
        """Forget standard input."""
        for origin in self.origins:
            if isinstance(origin, SpooledFile):
                origin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(paths: Sequence[str], options: ReadOptions | None = None, *, connect: Connect = connect) -> FileSource:
    """The source of what the user named: files, folders, patterns, URLs of object stores, `-` for standard input.

    Nothing is read yet but names. Raises `ConfigurationError`.
    """
    options = options or ReadOptions()
    check_addresses(paths)
    origins: dict[str, SourceOrigin] = {}
    for path in paths:
        found = stored_objects(path, options, connect) if path.startswith(SCHEMES) else local_origins(path, options)
        for origin in found:
            origins.setdefault(origin.name, origin)
    return FileSource(list(origins.values()), options)


def _nothing() -> None:
    """Who asks for the next file closes this one."""


def _source_file(origin: SourceOrigin, member: str) -> SourceMember:
    content = origin.fingerprint
    name, identity = origin.name, content.digest
    if member:
        name = f"{name}!{member}"
        identity = blake2b(f"{identity}!{member}".encode(), digest_size=20).hexdigest()
    return SourceMember(SourceFile(name, identity), origin.name, member, content)


class BlockReader(Iterator[RecordBlock]):
    """The blocks of one file, from a record on.

    Invariant: the digest is the SHA-256 of the file's records from its first one, each followed by a line feed, so it doesn't depend on how
    they were cut into blocks; of plain lines it is that of the decompressed file. Records that are skipped are read for it too.
    """

    def __init__(self, file: SourceFile, leaf: OpenedFile, options: ReadOptions, skip_records: int, close: Callable[[], None]) -> None:
        self._file, self._leaf, self._close = file, leaf, close
        self._skip = skip_records
        self._before = self._after = hashlib.sha256()
        self._first = 0
        self._block: Sequence[bytes] = ()
        self._blocks = self._read(framed(file.name, leaf, options))

    @property
    def name(self) -> str:
        """The file's."""
        return self._file.name

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBlock:
        return next(self._blocks)

    def digest_at(self, records: int) -> str:
        """The digest of so many records from the file's first: from the first of the block that was given last to its end.

        Once the first block was given, or the end has come without one, that of `skip_records` can be had: before anything of the block is
        sent, a checkpoint's digest is to be compared with it.
        """
        count = records - self._first
        if not 0 <= count <= len(self._block):
            raise ValueError(f"record {records} isn't in the block from {self._first} to {self._first + len(self._block)}")
        if count == len(self._block):
            return self._after.hexdigest()
        digest = self._before.copy()
        _update(digest, self._block[:count])
        return digest.hexdigest()

    def close(self) -> None:
        """Give up the file. Not needed once all was read."""
        self._blocks.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, parts: Iterator[NumberedRecords]) -> Generator[RecordBlock]:
        try:
            for records, numbers in self._parts(parts):
                self._before, self._first, self._block = self._after, self._first + len(self._block), records
                self._after = self._before.copy()
                _update(self._after, records)
                begin = min(max(0, self._skip - self._first), len(records))
                if begin == 0:
                    yield RecordBlock(self._file, self._first, records, numbers)
                elif begin < len(records):
                    yield RecordBlock(self._file, self._first + begin, records[begin:], numbers[begin:])
            self._finish()
        finally:
            self._close()

    def _parts(self, parts: Iterator[NumberedRecords]) -> Iterator[NumberedRecords]:
        while True:
            if not self._leaf.is_open:
                raise RuntimeError(f"{self._file.name}: the next file was asked for while this one was being read")
            part = next(parts, None)
            if part is None:
                return
            yield part

    def _finish(self) -> None:
        stream, count = self._leaf.stream, self._first + len(self._block)
        if stream.failure is not None:
            raise BrokenSource(self._file.name, stream.offset, stream.failure)
        if count < self._skip:
            raise SourceChanged(
                f"{self._file.name}: has {count} records, and {self._skip} were read before",
                hint="Bring the file back as it was, or start a new import.",
            )


def _update(digest: _Hash, records: Sequence[bytes]) -> None:
    """Add records, all at once: hashing a large text releases the interpreter lock."""
    if isinstance(records, LineRecords):
        digest.update(records.text)
    elif records:
        digest.update(b"\n".join(records))
        digest.update(b"\n")


def framed(name: str, leaf: OpenedFile, options: ReadOptions) -> Iterator[NumberedRecords]:
    """The records of an open file."""
    framing = options.framing if options.framing is not Framing.AUTO else _framing(name, leaf.head)
    if framing is Framing.PARQUET or leaf.head.startswith(PARQUET):
        return _parquet(leaf)
    if framing is Framing.CSV:
        return read_csv(leaf.stream, options, options.delimiter or ("\t" if _bare(name).endswith(".tsv") else ","))
    cut = read_values if framing is Framing.JSON else read_lines
    return cut(leaf.stream, options.max_record, options.block_bytes)


def _parquet(leaf: OpenedFile) -> Iterator[NumberedRecords]:
    if leaf.seekable is None:
        leaf.stream.failure = leaf.stream.failure or "it isn't a Parquet file"
        return iter(())
    return read_parquet(leaf.seekable, leaf.stream)


def _framing(name: str, head: bytes) -> Framing:
    if _bare(name).endswith((".csv", ".tsv")):
        return Framing.CSV
    begin = head.removeprefix(BOM).lstrip(_SPACE)
    is_spread = begin.startswith(b"[") or begin.split(b"\n", 1)[0].strip() == b"{"
    return Framing.JSON if is_spread else Framing.LINES


def _bare(name: str) -> str:
    """A file's name without those of its compressions."""
    name = name.lower()
    while name.endswith(_COMPRESSED):
        name = name.rpartition(".")[0]
    return name
