"""The content of an open file, decompressed if it is compressed, and the digests that it is
recognized by.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Final, NamedTuple

from forwarder.sources.files.record_blocks import DamagedContent
from forwarder.sources.files.unpacking import PeekedStream, find_decompressor

TAIL: Final = 256
"""Bytes before a position that its digest is of."""

_FIRST_LINE: Final = 64 << 10
"""A longer first line counts by its first bytes."""
_ENOUGH: Final = 4 << 10
"""Most first lines are shorter."""
_HEAD: Final = 256
_COMPARED: Final = 1 << 20


class FileContent:
    """The content of a regular file, by offsets. Compressed content (gzip, zstd, bzip2) is
    decompressed: reading backwards begins again.
    """

    def __init__(self, path: str) -> None:
        """Raises `OSError`, also if it is something else than a regular file."""
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        self._stream: PeekedStream | None = None
        self._raw = 0
        self._at = 0
        self._buffer = b""
        """What was decompressed last; it begins at `_at`."""
        self.ended = False
        """Whether the end of compressed content was reached."""
        self.failure = ""
        """Why compressed content can't be read any further, such as that it is cut off; empty if
        it can.
        """
        try:
            self._decompress = find_decompressor(_magic(self.descriptor, path))
        except BaseException:
            os.close(self.descriptor)
            raise

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return self._decompress is not None

    @property
    def consumed(self) -> int:
        """Bytes of the compressed file that were read."""
        return self._raw

    def status(self) -> os.stat_result:
        """The file's status now."""
        return os.fstat(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """At most so many bytes from there; none at the end, or where compressed content can't be
        read any further.
        """
        if self._decompress is None:
            return os.pread(self.descriptor, size, offset)
        if self._stream is None or offset < self._at:
            self.begin_again()
        while self._at + len(self._buffer) <= offset:
            self._at += len(self._buffer)
            self._buffer = self._some()
            if not self._buffer:
                return b""
        begin = offset - self._at
        return self._buffer[begin : begin + size]

    def hole_end(self) -> int:
        """The offset before which the plain file has no data, as far as its file system says so."""
        try:
            return os.lseek(self.descriptor, 0, os.SEEK_DATA)
        except OSError:  # there is nothing but a hole, or it isn't known
            return 0

    def exactly(self, offset: int, size: int) -> bytes:
        """So many bytes from there; fewer at the end."""
        parts = []
        while size and (data := self.read(offset, size)):
            parts.append(data)
            offset += len(data)
            size -= len(data)
        return b"".join(parts)

    def begin_again(self) -> None:
        """Forget what was decompressed."""
        self._stream = None
        self._raw = 0
        self._at = 0
        self._buffer = b""
        self.ended = False
        self.failure = ""

    def close(self) -> None:
        """Close the file."""
        self._stream = None
        os.close(self.descriptor)

    def _some(self) -> bytes:
        if self._stream is None:
            if self._decompress is None:
                return b""
            parts = self._decompress(PeekedStream(self._next_raw))
            self._stream = PeekedStream(lambda _size: next(parts, b""))
        try:
            data = self._stream.read(_FIRST_LINE, 1)
        except DamagedContent as error:
            self.failure = str(error)
            return b""
        self.ended = not data
        return data

    def _next_raw(self, size: int) -> bytes:
        data = os.pread(self.descriptor, size, self._raw)
        self._raw += len(data)
        return data


def _magic(descriptor: int, path: str) -> bytes:
    """The first bytes of a regular file. Raises `OSError` for another one."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it isn't a regular file", path)
    return os.pread(descriptor, 4, 0)


def digest(data: bytes) -> bytes:
    """What content is recognized by."""
    return hashlib.blake2b(data, digest_size=16).digest()


NOTHING: Final = digest(b"")
"""The digest of what is before the first byte."""


def tail_digest(content: FileContent, offset: int) -> bytes | None:
    """The digest of the last `TAIL` bytes before the offset; None if the
    content is shorter than that.
    """
    begin = max(0, offset - TAIL)
    data = content.exactly(begin, offset - begin)
    return digest(data) if len(data) == offset - begin else None


class FirstLine(NamedTuple):
    """What a content is recognized by."""

    fingerprint: str
    end: int
    """Where the next line begins."""
    head: bytes
    """The bytes after it, at most 256."""


def first_line(content: FileContent, *, finished: bool = False) -> FirstLine | None:
    """The first line; None if it isn't complete yet.

    `finished`: what is there is complete, even without a line feed, as that of a compressed file
    always is.
    """
    start = _hole_end(content) if content.read(0, 1) == b"\0" else 0
    for size in (_ENOUGH, _FIRST_LINE):
        data = content.exactly(start, size)
        end = data.find(b"\n") + 1
        if end:
            head = content.exactly(start + end, _HEAD) if end == size else data[end : end + _HEAD]
            return FirstLine(digest(data[: end - 1]).hex(), start + end, head)
        if len(data) < size:
            break
    if len(data) == _FIRST_LINE or (data and (finished or content.ended)):
        return FirstLine(digest(data).hex(), start + len(data), b"")
    return None


def _hole_end(content: FileContent) -> int:
    """Where the first byte is that isn't NUL: a file that is truncated while its writer doesn't
    append begins with a hole.
    """
    offset = 0 if content.packed else content.hole_end()
    while data := content.read(offset, _COMPARED):
        if rest := data.lstrip(b"\0"):
            return offset + len(data) - len(rest)
        offset += len(data)
    return offset


def is_beginning(short: FileContent, size: int, long: FileContent) -> bool:
    """Whether `long` begins with all that `short` has: its first and last MiB are compared, of
    compressed content the first.

    `size`: bytes of `short` in its file. Content that has nothing more than `long` is the
    beginning of it.
    """
    if short.packed:
        data = short.exactly(0, _COMPARED)
        return long.exactly(0, len(data)) == data
    for offset in {0, max(0, size - _COMPARED)}:
        data = short.exactly(offset, min(_COMPARED, size - offset))
        if long.exactly(offset, len(data)) != data:
            return False
    return True
