"""Streams of bytes: decompression of gzip, zstd and bzip2, and a stream that ends at its first failure and remembers the reason.

Any number of members or frames may follow each other. Everything that can be decompressed before damage is returned, then
`DamagedContent` is raised: a stream never ends as if it were whole when it isn't. Memory is bounded by the format (a zstd window of
128 MiB at most), not by the content.
"""

from __future__ import annotations

import bz2
import lzma
import tarfile
import zipfile
import zlib
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
_INPUT: Final = 64 << 10
_SLICE: Final = 16 << 10
"""Compressed bytes given to a decompressor at once: what one call decompresses is lost if it fails."""
_OUTPUT: Final = 256 << 10
_MAX_WINDOW: Final = 1 << 27
_MAX_BLOCK: Final = 128 << 10
_RAW_DEFLATE: Final = -15
_GZIP_EXTRA, _GZIP_NAME, _GZIP_COMMENT, _GZIP_HEADER_CRC = 4, 8, 16, 2
_ISAL_ERROR: Final = cast("type[Exception]", isal_zlib.IsalError)  # its stub calls the class an instance


class GuardedStream:
    """A stream for framers: `failure` is set once it has ended early."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head, self._source = head, source
        self.offset = 0
        self.failure: str | None = None

    def read(self, size: int, /) -> bytes:
        """About so many bytes; none at the end, and at a failure."""
        head, self._head = self._head, b""
        if self.failure is not None:
            return head
        try:
            data = self._source.read(max(1, size - len(head)))
        except FAILURES as error:
            self.failure, data = reason(error), b""
        data = head + data if head else data
        self.offset += len(data)
        return data


class PeekedStream:
    """A stream whose first bytes were peeked."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head, self._source = head, source

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._source.read(size)


def reason(error: BaseException) -> str:
    """Why a file can't be read, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip()


class CompressedInput:
    """Compressed bytes that can be given back."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._held = b""

    def some(self, size: int = _SLICE) -> bytes:
        """The next bytes; none at the end."""
        data = self._held or self._source.read(_INPUT)
        self._held = data[size:]
        return data[:size]

    def give_back(self, data: bytes) -> None:
        """These bytes come next again."""
        self._held = data + self._held

    def up_to(self, size: int) -> bytes:
        """So many bytes, or all there are."""
        parts: list[bytes] = []
        while size and (data := self.some(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def exactly(self, size: int) -> bytes:
        """So many bytes, or it is cut off."""
        data = self.up_to(size)
        if len(data) < size:
            raise DamagedContent("it is cut off")
        return data


class DecompressedStream:
    """A decompressed stream. A failure is raised once all that was decompressed before it has been read."""

    def __init__(self, source: Readable) -> None:
        self._input = CompressedInput(source)
        self._ready = b""
        self._failure: Exception | None = None

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer only at the end, or before a failure."""
        parts, held = [self._ready], len(self._ready)
        while held < size and self._failure is None:
            try:
                data = self._more()
            except Exception as error:  # a foreign source's own: it is raised later, unchanged
                self._failure = error
                break
            if not data:
                break
            parts.append(data)
            held += len(data)
        if not held and self._failure is not None:
            raise self._failure
        whole = b"".join(parts)
        self._ready = whole[size:]
        return whole[:size]

    def _more(self) -> bytes:
        """The next bytes, a bounded number; none at the end. Raises `DamagedContent`."""
        raise NotImplementedError


class GzipStream(DecompressedStream):
    """gzip, RFC 1952. Checksums are verified; zeros after the last member are padding."""

    def __init__(self, source: Readable) -> None:
        super().__init__(source)
        self._inflate: isal_zlib.Decompress | None = None
        self._pending = b""
        self._crc = self._size = 0

    def _more(self) -> bytes:
        while (inflate := self._inflate or self._next_member()) is not None:
            if not self._pending and not (slice_ := self._input.some()):
                raise DamagedContent("it is cut off")
            try:
                data = inflate.decompress(self._pending or slice_, _OUTPUT)
            except _ISAL_ERROR as error:
                raise DamagedContent(f"it is damaged: {error}") from None
            self._pending = inflate.unconsumed_tail
            self._crc, self._size = isal_zlib.crc32(data, self._crc), self._size + len(data)
            if inflate.eof:
                self._input.give_back(inflate.unused_data)
                self._inflate, self._pending = None, b""
                if data:
                    return self._with_trailer(data)
                self._check_trailer()
            elif data:
                return data
        return b""

    def _with_trailer(self, data: bytes) -> bytes:
        """The member's last bytes; that its checksum is wrong is said after them."""
        try:
            self._check_trailer()
        except Exception as error:  # as in `read`
            self._failure = error
        return data

    def _check_trailer(self) -> None:
        trailer = self._input.exactly(8)
        crc, size = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
        if (crc, size) != (self._crc, self._size & 0xFFFFFFFF):
            raise DamagedContent("it is damaged: the checksum is wrong")

    def _next_member(self) -> isal_zlib.Decompress | None:
        magic = self._input.up_to(2)
        while magic and not magic.strip(b"\0"):  # padding, as tapes and some tools write it
            magic = self._input.up_to(2)
        if not magic:
            return None
        if magic != b"\x1f\x8b":
            raise DamagedContent("what follows the compressed data is something else")
        head = self._input.exactly(8)
        if head[0] != 8:
            raise DamagedContent("it is damaged: the compression is unknown")
        self._skip_names(head[1])
        self._inflate = isal_zlib.decompressobj(wbits=_RAW_DEFLATE)
        self._crc = self._size = 0
        return self._inflate

    def _skip_names(self, flags: int) -> None:
        if flags & _GZIP_EXTRA:
            self._input.exactly(int.from_bytes(self._input.exactly(2), "little"))
        for flag in (_GZIP_NAME, _GZIP_COMMENT):
            while flags & flag and self._input.exactly(1) != b"\0":
                pass
        if flags & _GZIP_HEADER_CRC:
            self._input.exactly(2)


class ZstdStream(DecompressedStream):
    """zstd, RFC 8878. Blocks are given to the decompressor one by one: it doesn't say how much comes of more, nor that some is missing."""

    def __init__(self, source: Readable) -> None:
        super().__init__(source)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._has_checksum = False

    def _more(self) -> bytes:
        while (frame := self._frame or self._next_frame()) is not None:
            head = self._input.exactly(3)
            bits = int.from_bytes(head, "little")
            last, kind, size = bits & 1, bits >> 1 & 3, bits >> 3
            if kind == 3 or size > _MAX_BLOCK:
                raise DamagedContent("it is damaged: no such block")
            data = _decompressed(frame, head + self._input.exactly(1 if kind == 1 else size))
            if last:
                self._end_frame(frame, data)
            if data:
                return data
        return b""

    def _end_frame(self, frame: zstandard.ZstdDecompressionObj, data: bytes) -> None:
        """Verifies the checksum. A failure is raised after the last block's bytes."""
        try:
            if self._has_checksum:
                _decompressed(frame, self._input.exactly(4))
        except Exception as error:  # as in `read`
            if not data:
                raise
            self._failure = error
        self._frame = None

    def _next_frame(self) -> zstandard.ZstdDecompressionObj | None:
        while magic := self._input.up_to(4):
            if magic == b"\x28\xb5\x2f\xfd":
                self._frame = self._begun(magic)
                return self._frame
            if magic[1:] != b"\x2a\x4d\x18" or magic[0] >> 4 != 5:
                raise DamagedContent("what follows the compressed data is something else")
            left = int.from_bytes(self._input.exactly(4), "little")  # a frame to be skipped
            while left:
                left -= len(self._input.exactly(min(left, _INPUT)))
        return None

    def _begun(self, magic: bytes) -> zstandard.ZstdDecompressionObj:
        descriptor = self._input.exactly(1)
        flags = descriptor[0]
        single_segment = flags >> 5 & 1
        content_size = (single_segment, 2, 4, 8)[flags >> 6]
        rest = (1 - single_segment) + (0, 1, 2, 4)[flags & 3] + content_size
        self._has_checksum = bool(flags >> 2 & 1)
        frame = self._decompressor.decompressobj()
        _decompressed(frame, magic + descriptor + self._input.exactly(rest))
        return frame


def _decompressed(frame: zstandard.ZstdDecompressionObj, data: bytes) -> bytes:
    try:
        return frame.decompress(data)
    except zstandard.ZstdError as error:
        raise DamagedContent(f"it is damaged: {error}") from None


class Bzip2Stream(DecompressedStream):
    """bzip2."""

    def __init__(self, source: Readable) -> None:
        super().__init__(source)
        self._decompressor: bz2.BZ2Decompressor | None = None

    def _more(self) -> bytes:
        while True:
            if self._decompressor is None:
                if not (data := self._input.up_to(3)):
                    return b""
                if data != b"BZh":
                    raise DamagedContent("what follows the compressed data is something else")
                self._decompressor = bz2.BZ2Decompressor()
            elif not self._decompressor.needs_input:
                data = b""
            elif not (data := self._input.some()):
                raise DamagedContent("it is cut off")
            try:
                data = self._decompressor.decompress(data, _OUTPUT)
            except OSError:
                raise DamagedContent("it is damaged") from None
            if self._decompressor.eof:
                self._input.give_back(self._decompressor.unused_data)
                self._decompressor = None
            if data:
                return data
