"""Everything the user named, file by file, as blocks of records with a running digest.

Files come in the order in which they were named, those of a folder, pattern or prefix by name
(numbers by value), each once. The content of archives is discovered while they are read, so the
first record arrives at once however large they are. Everything is synchronous and meant for a
thread of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from forwarder.sources.files.framing import frame
from forwarder.sources.files.origins import (
    ENDS,
    SCHEMES,
    LocalFile,
    StoredObject,
    check_addresses,
    digest_of_ends,
    local_files,
    stored_objects,
)
from forwarder.sources.files.record_blocks import (
    BrokenSource,
    DamagedContent,
    LineRecords,
    ReadOptions,
    RecordBlock,
    SourceFile,
)
from forwarder.sources.files.transcoding import as_utf8
from forwarder.sources.files.unpacking import OpenedFile, PeekedStream, is_packed, unpack

if TYPE_CHECKING:
    from hashlib import _Hash


class FileSource(AbstractContextManager["FileSource"]):
    """The files that were named. Closing it gives back the disk space of standard
    input and pipes.
    """

    def __init__(
        self,
        named: Sequence[LocalFile | StoredObject],
        options: ReadOptions,
        part: slice = slice(None),
    ) -> None:
        """`part`: which of them are read."""
        self.named = named
        self.origins = named[part]
        """Those that are read."""
        self.options = options
        self._unread: tuple[SourceFile, OpenedFile] | None = None

    @cached_property
    def identity(self) -> str:
        """What tells this source from another, in hex: of the content of all files that were
        named, in their order, whatever they are called.
        """
        return _digest("".join(f"{origin.fingerprint.digest}\n" for origin in self.named))

    def files(self) -> Generator[SourceFile, None, None]:
        """The files with records, in their order. Each is open until the next is asked for, or
        this is closed.
        """
        for origin in self.origins:
            content = self._content(origin)
            with origin.open() as opened:
                for leaf in unpack(opened.read, self.options, opened, name=origin.name):
                    if self.options.encoding and leaf.seekable is None:
                        leaf.stream = PeekedStream(as_utf8(leaf.stream.read, self.options.encoding))
                    file = SourceFile(origin.name, content)
                    if leaf.member:
                        file = SourceFile(
                            f"{origin.name}!{leaf.member}", _digest(f"{content}!{leaf.member}")
                        )
                    self._unread = file, leaf
                    try:
                        yield file
                    finally:
                        self._unread = None
                        leaf.is_open = False

    def _content(self, origin: LocalFile | StoredObject) -> str:
        """What tells the content of a file from others, in hex: of a text that isn't packed, the
        same in any encoding.

        Of another encoding than UTF-8 all of it is read for that.
        """
        if not self.options.encoding or not isinstance(origin, LocalFile):
            return origin.fingerprint.digest
        size = 0
        first = b""
        last = b""
        with origin.open() as opened:
            packed = is_packed(opened.read(512))
            opened.seek(0)
            read = as_utf8(opened.read, self.options.encoding)
            try:
                while not packed and (text := read(ENDS)):
                    size += len(text)
                    first += text[: ENDS - len(first)]
                    last = (last + text)[-ENDS:]
            except DamagedContent:  # reading raises it again
                packed = True
        return origin.fingerprint.digest if packed else digest_of_ends(size, first, last)

    def peek(self, file: SourceFile, size: int) -> tuple[bytes, bool]:
        """The first bytes of the file that `files` gave last, and whether they are all of it; they
        are read again.
        """
        if self._unread is None or self._unread[0] is not file:
            raise RuntimeError(f"{file.name}: it was read before, or the next file was asked for")
        stream = self._unread[1].stream
        with suppress(DamagedContent):  # reading raises it again
            data = stream.read(size)
            stream.give_back(data)
            return data, len(data) < size
        return b"", True

    def blocks(self, file: SourceFile) -> BlockReader:
        """The blocks of the file that `files` gave last, once. Reading raises `BrokenSource` after
        the last good block.
        """
        if self._unread is None or self._unread[0] is not file:
            raise RuntimeError(f"{file.name}: it was read before, or the next file was asked for")
        leaf = self._unread[1]
        self._unread = None
        return BlockReader(file, leaf, self.options)

    def close(self) -> None:
        """Forget standard input."""
        for origin in self.named:
            if isinstance(origin, LocalFile):
                origin.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_source(
    paths: Sequence[str], options: ReadOptions | None = None, part: slice = slice(None)
) -> FileSource:
    """The source of what the user named: files, folders, patterns, URLs of object stores, `-` for
    standard input.

    `part`: which of the files are read. Nothing is read yet but names. Raises `ConfigurationError`.
    """
    options = options or ReadOptions()
    check_addresses(paths)
    origins: dict[str, LocalFile | StoredObject] = {}
    for path in paths:
        for origin in (
            stored_objects(path, options)
            if path.startswith(SCHEMES)
            else local_files(path, options)
        ):
            origins.setdefault(origin.name, origin)
    return FileSource(list(origins.values()), options, part)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


class BlockReader(Iterator[RecordBlock], AbstractContextManager["BlockReader"]):
    """The blocks of one file.

    Invariant: the digest is the SHA-256 of the file's records from its first one, each followed by
    a line feed, so it doesn't depend on how they were cut into blocks; of plain lines it is that
    of the decompressed file.
    """

    def __init__(self, file: SourceFile, leaf: OpenedFile, options: ReadOptions) -> None:
        self.name = file.name
        self._file = file
        self._leaf = leaf
        self._before = self._after = hashlib.sha256()
        self._first = 0
        self._block: Sequence[bytes] = ()
        self._parts = frame(file.name, leaf.stream, leaf.seekable, options)

    def __next__(self) -> RecordBlock:
        if not self._leaf.is_open:
            raise RuntimeError(
                f"{self.name}: the next file was asked for while this one was being read"
            )
        try:
            part = next(self._parts)
        except DamagedContent as error:
            raise BrokenSource(
                self.name, self._leaf.stream.offset, str(error), error.hint
            ) from None
        self._before = self._after
        self._first = self._first + len(self._block)
        self._block = part[0]
        self._after = _digested(self._before, self._block)
        return RecordBlock(self._file, self._first, *part)

    def digest_at(self, records: int) -> str:
        """The digest of so many records from the file's first: from the first of the block that
        was given last to its end.
        """
        count = records - self._first
        if not 0 <= count <= len(self._block):
            raise ValueError(
                f"record {records} isn't in the block from {self._first} to "
                f"{self._first + len(self._block)}"
            )
        if count == len(self._block):
            return self._after.hexdigest()
        return _digested(self._before, self._block[:count]).hexdigest()

    def close(self) -> None:
        """Stop reading. Not needed once all was read."""
        self._parts.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _digested(digest: _Hash, records: Sequence[bytes]) -> _Hash:
    """The digest with more records, all at once: hashing a large text
    releases the interpreter lock.
    """
    digest = digest.copy()
    if isinstance(records, LineRecords):
        digest.update(records.text)
    elif records:
        digest.update(b"\n".join(records) + b"\n")
    return digest
