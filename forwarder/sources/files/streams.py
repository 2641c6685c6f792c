"""Streams of bytes: decompression of gzip, zstd and bzip2, and a stream whose first bytes are peeked, and that fails in one way.

Any number of members or frames may follow each other. Everything that can be decompressed before damage is returned, then
`DamagedContent` is raised: a stream never ends as if it were whole when it isn't. Memory is bounded by the format (a zstd window of
128 MiB at most), not by the content.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Final, cast

import zstandard
from isal import isal_zlib

from forwarder.sources.files.records import DamagedContent, Readable

FAILURES: Final = (
    DamagedContent,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,  # zipfile: a compression that it doesn't have
    RuntimeError,  # zipfile: it is encrypted
    UnicodeDecodeError,  # zipfile: the name of a member isn't in the encoding that it says
)
"""What reading a file raises when its content is at fault, or the disk or network it is on."""
_HEAD: Final = 512
_INPUT: Final = 64 << 10
_SLICE: Final = 16 << 10
"""Compressed bytes given to a decompressor at once: what one call decompresses is lost if it fails."""
_OUTPUT: Final = 256 << 10
_MAX_WINDOW: Final = 1 << 27
_MAX_BLOCK: Final = 128 << 10
_RAW_DEFLATE: Final = -15
_GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT, _GZIP_HEADER_CRC = 4, 8, 16, 2
_SOMETHING_ELSE: Final = "what follows the compressed data is something else"
_ISAL_ERROR: Final = cast("type[Exception]", isal_zlib.IsalError)  # its stub calls the class an instance


class PeekedStream:
    """A stream whose first bytes are known before they are read. A failure is raised as `DamagedContent`, after all bytes before it."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._failure: DamagedContent | None = None
        self._unread = b""
        self.offset = 0
        """How many bytes were read."""
        self.head = self._next(_HEAD, _HEAD)
        """The first 512 bytes; fewer only at the end or before a failure. Reading gives them again."""
        self._unread = self.head + self._unread

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer only at the end, or before a failure."""
        return self._read(size, size)

    def some(self) -> bytes:
        """The next bytes, at least one, or it is cut off."""
        if data := self._read(_SLICE, 1):
            return data
        raise DamagedContent("it is cut off")

    def exactly(self, size: int) -> bytes:
        """So many bytes, or it is cut off."""
        data = self.read(size)
        while len(data) < size:  # raises what came before the end, if it isn't the end
            data += self.some()
        return data

    def give_back(self, data: bytes) -> None:
        """These bytes, which were read last, come next again."""
        self._unread = data + self._unread
        self.offset -= len(data)

    def _read(self, size: int, least: int) -> bytes:
        data = self._next(size, least)
        if size and not data and self._failure is not None:
            raise self._failure
        self.offset += len(data)
        return data

    def _next(self, size: int, least: int) -> bytes:
        parts, count = [self._unread] if self._unread else [], len(self._unread)  # one part alone isn't copied
        try:
            while count < least and self._failure is None and (data := self._source.read(size - count)):
                parts.append(data)
                count += len(data)
        except FAILURES as error:
            self._failure = DamagedContent(reason(error))
        whole = b"".join(parts)
        self._unread = whole[size:]
        return whole[:size]


def reason(error: BaseException) -> str:
    """Why a file can't be read, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip()


class DecompressedStream:
    """A decompressed stream, in parts of the size that the decompressor makes: for `PeekedStream`."""

    def __init__(self, source: PeekedStream, decompress: Decompress) -> None:
        self._parts = decompress(source)

    def read(self, _size: int, /) -> bytes:
        """The next part; none at the end."""
        try:
            return next(self._parts, b"")
        except (_ISAL_ERROR, zstandard.ZstdError) as error:
            raise DamagedContent(f"it is damaged: {error}") from None


Decompress = Callable[[PeekedStream], Iterator[bytes]]
"""Yields what is decompressed in parts of a bounded size, none of them empty. Raises `DamagedContent`, or the decompressor's own errors."""


def gunzip(packed: PeekedStream) -> Iterator[bytes]:
    """gzip, RFC 1952. Checksums are verified; zeros after the last member are padding."""
    while _begin_member(packed):
        inflate = isal_zlib.decompressobj(wbits=_RAW_DEFLATE)
        pending, crc, size = b"", 0, 0
        while not inflate.eof:
            data = inflate.decompress(pending or packed.some(), _OUTPUT)
            pending = inflate.unconsumed_tail
            if data:
                crc, size = isal_zlib.crc32(data, crc), size + len(data)
                yield data
        packed.give_back(inflate.unused_data)
        if packed.exactly(8) != struct.pack("<II", crc, size & 0xFFFFFFFF):
            raise DamagedContent("it is damaged: the checksum is wrong")


def _begin_member(packed: PeekedStream) -> bool:
    """Reads a member's header; False at the end."""
    magic = packed.read(2)
    while magic and not magic.strip(b"\0"):  # padding, as tapes and some tools write it
        magic = packed.read(2)
    if not magic:
        return False
    if magic != b"\x1f\x8b":
        raise DamagedContent(_SOMETHING_ELSE)
    method, flags = packed.exactly(8)[:2]
    if method != 8:
        raise DamagedContent("it is damaged: the compression is unknown")
    if flags & _GZIP_EXTRA:
        packed.exactly(int.from_bytes(packed.exactly(2), "little"))
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        while flags & flag and packed.exactly(1) != b"\0":
            pass
    if flags & _GZIP_HEADER_CRC:
        packed.exactly(2)
    return True


def decompress_zstd(packed: PeekedStream) -> Iterator[bytes]:
    """zstd, RFC 8878. Blocks are given to the decompressor one by one: it doesn't say how much comes of more, nor that some is missing."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    while header := _frame_header(packed):
        frame = decompressor.decompressobj()
        frame.decompress(header)
        last = 0
        while not last:
            head = packed.exactly(3)
            bits = int.from_bytes(head, "little")
            last, kind, size = bits & 1, bits >> 1 & 3, bits >> 3
            if kind == 3 or size > _MAX_BLOCK:
                raise DamagedContent("it is damaged: no such block")
            if data := frame.decompress(head + packed.exactly(1 if kind == 1 else size)):
                yield data
        if zstandard.get_frame_parameters(header).has_checksum:
            frame.decompress(packed.exactly(4))


def _frame_header(packed: PeekedStream) -> bytes:
    """The header of the next frame with content; empty at the end."""
    while magic := packed.read(4):
        if magic == b"\x28\xb5\x2f\xfd":
            head = magic + packed.exactly(1)
            return head + packed.exactly(zstandard.frame_header_size(head) - len(head))
        if magic[1:] != b"\x2a\x4d\x18" or magic[0] >> 4 != 5:
            raise DamagedContent(_SOMETHING_ELSE)
        left = int.from_bytes(packed.exactly(4), "little")  # a frame to be skipped
        while left:
            left -= len(packed.exactly(min(left, _INPUT)))
    return b""


def bunzip2(packed: PeekedStream) -> Iterator[bytes]:
    """bzip2."""
    while magic := packed.read(3):
        if magic != b"BZh":
            raise DamagedContent(_SOMETHING_ELSE)
        packed.give_back(magic)
        decompressor = bz2.BZ2Decompressor()
        while not decompressor.eof:
            data = packed.some() if decompressor.needs_input else b""
            try:
                data = decompressor.decompress(data, _OUTPUT)
            except OSError:
                raise DamagedContent("it is damaged") from None
            if data:
                yield data
        packed.give_back(decompressor.unused_data)
