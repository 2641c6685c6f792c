"""Everything the user named, file by file, as blocks of records with a running digest.

Files come in the order in which they were named, those of a folder, pattern or prefix by name (numbers by value), each once. The content of
archives is discovered while they are read, so the first record arrives at once however large they are. Everything is synchronous and meant
for a thread of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from forwarder.sources.files.archives import ArchiveOpener, OpenedFile
from forwarder.sources.files.framing import BOM, NumberedRecords, read_csv, read_lines, read_parquet, read_values
from forwarder.sources.files.objects import StoredObject, stored_objects
from forwarder.sources.files.origins import SCHEMES, LocalFile, SpooledFile, check_addresses, local_origins
from forwarder.sources.files.records import BrokenSource, DamagedContent, Framing, LineRecords, ReadOptions, RecordBlock, SourceFile

if TYPE_CHECKING:
    from hashlib import _Hash

_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".zip", ".gzip", ".zstd")
_SPACE: Final = b" \t\r\n"
SourceOrigin = LocalFile | SpooledFile | StoredObject
"""A file as the user named it, not looked into. Each has a name that is unique in a source, and a fingerprint of its content."""


class FileSource(AbstractContextManager["FileSource"]):
    """The files that were named. Closing it gives back the disk space of standard input and pipes."""

    def __init__(self, origins: Sequence[SourceOrigin], options: ReadOptions) -> None:
        self.origins = origins
        self._options = options
        self._unread: tuple[SourceFile, OpenedFile] | None = None

    @cached_property
    def identity(self) -> str:
        """What tells this source from another, in hex: of the content of its files in their order, whatever they are called."""
        return _digest("".join(f"{origin.fingerprint.digest}\n" for origin in self.origins))

    def files(self) -> Iterator[SourceFile]:
        """All files with records, in their order. Each is open until the next is asked for."""
        for origin in self.origins:
            content = origin.fingerprint.digest
            with origin.open() as opened:
                for leaf in ArchiveOpener(self._options).leaves(opened, opened):
                    file = SourceFile(origin.name, content)
                    if leaf.member:
                        file = SourceFile(f"{origin.name}!{leaf.member}", _digest(f"{content}!{leaf.member}"))
                    self._unread = file, leaf
                    try:
                        yield file
                    finally:
                        self._unread, leaf.is_open = None, False

    def blocks(self, file: SourceFile) -> BlockReader:
        """The blocks of the file that `files` gave last, once. Reading raises `BrokenSource` after the last good block."""
        if self._unread is None or self._unread[0] is not file:
            raise RuntimeError(f"{file.name}: it was read before, or the next file was asked for")
        leaf, self._unread = self._unread[1], None
        return BlockReader(file, leaf, self._options)

    def close(self) -> None:
        """Forget standard input."""
        for origin in self.origins:
            if isinstance(origin, SpooledFile):
                origin.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(paths: Sequence[str], options: ReadOptions | None = None) -> FileSource:
    """The source of what the user named: files, folders, patterns, URLs of object stores, `-` for standard input.

    Nothing is read yet but names. Raises `ConfigurationError`.
    """
    options = options or ReadOptions()
    check_addresses(paths)
    origins: dict[str, SourceOrigin] = {}
    for path in paths:
        for origin in stored_objects(path, options) if path.startswith(SCHEMES) else local_origins(path, options):
            origins.setdefault(origin.name, origin)
    return FileSource(list(origins.values()), options)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class BlockReader(Iterator[RecordBlock], AbstractContextManager["BlockReader"]):
    """The blocks of one file.

    Invariant: the digest is the SHA-256 of the file's records from its first one, each followed by a line feed, so it doesn't depend on how
    they were cut into blocks; of plain lines it is that of the decompressed file.
    """

    def __init__(self, file: SourceFile, leaf: OpenedFile, options: ReadOptions) -> None:
        self.name = file.name
        self._file, self._leaf = file, leaf
        self._before = self._after = hashlib.sha256()
        self._first = 0
        self._block: Sequence[bytes] = ()
        self._parts = framed(file.name, leaf, options)

    def __next__(self) -> RecordBlock:
        if not self._leaf.is_open:
            raise RuntimeError(f"{self.name}: the next file was asked for while this one was being read")
        try:
            part = next(self._parts)
        except DamagedContent as error:
            raise BrokenSource(self.name, self._leaf.stream.offset, str(error)) from None
        self._before, self._first, self._block = self._after, self._first + len(self._block), part[0]
        self._after = self._before.copy()
        _update(self._after, self._block)
        return RecordBlock(self._file, self._first, *part)

    def digest_at(self, records: int) -> str:
        """The digest of so many records from the file's first: from the first of the block that was given last to its end."""
        count = records - self._first
        if not 0 <= count <= len(self._block):
            raise ValueError(f"record {records} isn't in the block from {self._first} to {self._first + len(self._block)}")
        if count == len(self._block):
            return self._after.hexdigest()
        digest = self._before.copy()
        _update(digest, self._block[:count])
        return digest.hexdigest()

    def close(self) -> None:
        """Stop reading. Not needed once all was read."""
        self._parts.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _update(digest: _Hash, records: Sequence[bytes]) -> None:
    """Add records, all at once: hashing a large text releases the interpreter lock."""
    if isinstance(records, LineRecords):
        digest.update(records.text)
    elif records:
        digest.update(b"\n".join(records) + b"\n")


def framed(name: str, leaf: OpenedFile, options: ReadOptions) -> Generator[NumberedRecords]:
    """The records of an open file. Raises `DamagedContent` after the last good ones."""
    framing = options.framing if options.framing is not Framing.AUTO else _framing(name, leaf.stream.head)
    if leaf.failure:
        raise DamagedContent(leaf.failure)
    if leaf.seekable is not None:
        yield from read_parquet(leaf.seekable)
    elif framing is Framing.PARQUET:
        raise DamagedContent("it isn't a Parquet file")
    elif framing is Framing.CSV:
        yield from read_csv(leaf.stream, options, options.delimiter or ("\t" if _bare(name).endswith(".tsv") else ","))
    else:
        yield from (read_values if framing is Framing.JSON else read_lines)(leaf.stream, options)


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
