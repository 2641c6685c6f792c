"""What a file is packed in: compressions and archives are opened, one within the other, until
there are records.

Each is recognised by its first bytes, whatever it is called; only brotli has none that say so, and
is recognised by its name. Members of a zip come in the order of
their names, those of a tar as they stand in it. Everything before damage is returned, then
`DamagedContent` is raised: a stream never ends as if it were whole when it isn't. A member that
can't be read fails alone. Memory is bounded by the format (a zstd window of 128 MiB at most), not
by the content.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast

import zstandard
from isal import isal_zlib

from forwarder.core.error_text import error_text
from forwarder.core.installation import install_extra
from forwarder.sources.files.origins import is_wanted, natural, plain_name
from forwarder.sources.files.record_blocks import DamagedContent, ReadOptions, reason
from forwarder.sources.files.transcoding import guess_encoding

FAILURES: Final = (
    DamagedContent,
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # zipfile: it is encrypted, or its compression is unknown (NotImplementedError)
    UnicodeDecodeError,  # zipfile: the name of a member isn't in the encoding that it says
)
"""What reading a file raises when its content is at fault, or the disk or network it is on."""
# isal's stub calls the class an instance
_DAMAGED: Final = (cast("type[Exception]", isal_zlib.IsalError), zstandard.ZstdError)
_SLICE: Final = 16 << 10
"""Compressed bytes given to a decompressor at once: what one call decompresses is lost if it fails.
"""
_OUTPUT: Final = 256 << 10
_COPY: Final = 1 << 20
_GZIP_EXTRA = 4
_GZIP_NAME = 8
_GZIP_COMMENT = 16
_GZIP_HEADER_CRC = 2
_SOMETHING_ELSE: Final = "what follows the compressed data is something else"
_ENCRYPTED: Final = 1
"""Of a zip member's flags."""
_PARQUET: Final = b"PAR1"
_ZIPS: Final = (b"PK\x03\x04", b"PK\x05\x06")
_PACKED: Final = "Decompress it, or compress it by gzip or zstd."
_ARCHIVED: Final = "Unpack it, or pack it as a zip."
_FOREIGN: Final = {
    b"\xfd7zXZ\x00": ("compressed by xz", _PACKED),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _ARCHIVED),
    b"Rar!\x1a\x07": ("a RAR archive", _ARCHIVED),
    b"Obj\x01": ("an Avro file", "Convert it to JSON lines or Parquet."),
    b"%PDF-": ("a PDF document", "Leave it out, or export the data as JSON lines or CSV."),
    b"SQLite format 3\x00": ("an SQLite database", "Export its table as CSV or JSON lines."),
}
"""What isn't read here, by its first bytes: one failure, where lines would be thousands of them."""


class PeekedStream:
    """A stream whose first bytes are known before they are read. A failure is raised as
    `DamagedContent`, after all bytes before it.
    """

    def __init__(self, source: Callable[[int], bytes]) -> None:
        """`source` gives the next bytes, about so many as it is asked for; none at the end. It
        raises one of `FAILURES`.
        """
        self._source = source
        self._failure: DamagedContent | None = None
        self._unread = b""
        self.offset = 0
        """How many bytes were read."""
        self.head = self._next(512, 512)
        """The first 512 bytes; fewer only at the end or before a failure. Reading gives them again.
        """
        self._unread = self.head + self._unread

    def read(self, size: int, /, least: int | None = None) -> bytes:
        """So many bytes; fewer than that, or than `least`, only at the end, or before a failure."""
        data = self._next(size, size if least is None else least)
        if size and not data and self._failure is not None:
            raise DamagedContent(str(self._failure), self._failure.hint)
        self.offset += len(data)
        return data

    def some(self) -> bytes:
        """The next bytes, at least one, or it is cut off."""
        if data := self.read(_SLICE, 1):
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

    def _next(self, size: int, least: int) -> bytes:
        # one part alone isn't copied
        parts = [self._unread] if self._unread else []
        count = len(self._unread)
        try:
            while count < least and self._failure is None and (data := self._source(size - count)):
                parts.append(data)
                count += len(data)
        except _DAMAGED as error:
            self._failure = DamagedContent(f"it is damaged: {error_text(error)}")
        except FAILURES as error:
            self._failure = DamagedContent(reason(error), getattr(error, "hint", ""))
        whole = b"".join(parts)
        self._unread = whole[size:]
        return whole[:size]


def gunzip(packed: PeekedStream) -> Iterator[bytes]:
    """gzip, RFC 1952. Checksums are verified; zeros after the last member are padding, as tapes
    and some tools write it.
    """
    while magic := packed.read(2):
        if not magic.strip(b"\0"):
            continue
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
        # without header and checksum: where it verifies them, it forgets what it got
        inflate = isal_zlib.decompressobj(wbits=-15)
        pending = b""
        crc = 0
        size = 0
        while not inflate.eof:
            data = inflate.decompress(pending or packed.some(), _OUTPUT)
            pending = inflate.unconsumed_tail
            if data:
                crc = isal_zlib.crc32(data, crc)
                size = size + len(data)
                yield data
        packed.give_back(inflate.unused_data)
        if packed.exactly(8) != struct.pack("<II", crc, size & 0xFFFFFFFF):
            raise DamagedContent("it is damaged: the checksum is wrong")


def decompress_zstd(packed: PeekedStream) -> Iterator[bytes]:
    """zstd, RFC 8878. Blocks are given to the decompressor one by one: it doesn't say how much
    comes of more, nor that some is missing.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20)
    while magic := packed.read(4):
        if magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:  # a frame to be skipped
            left = int.from_bytes(packed.exactly(4), "little")
            while left:
                left -= len(packed.exactly(min(left, _SLICE)))
            continue
        if magic != b"\x28\xb5\x2f\xfd":
            raise DamagedContent(_SOMETHING_ELSE)
        header = magic + packed.exactly(1)
        header += packed.exactly(zstandard.frame_header_size(header) - len(header))
        frame = decompressor.decompressobj()
        frame.decompress(header)
        last = 0
        while not last:
            head = packed.exactly(3)
            bits = int.from_bytes(head, "little")
            last = bits & 1
            kind = bits >> 1 & 3
            size = bits >> 3
            if kind == 3 or size > 128 << 10:
                raise DamagedContent("it is damaged: no such block")
            if data := frame.decompress(head + packed.exactly(1 if kind == 1 else size)):
                yield data
        if zstandard.get_frame_parameters(header).has_checksum:
            frame.decompress(packed.exactly(4))


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


def unbrotli(packed: PeekedStream) -> Iterator[bytes]:
    """brotli, RFC 7932."""
    # The first file that needs the library loads it.
    import brotli  # type: ignore[import-untyped] # noqa: PLC0415

    decoder = brotli.Decompressor()
    while not decoder.is_finished():
        data = packed.some() if decoder.can_accept_more_data() else b""
        try:
            data = decoder.process(data, output_buffer_limit=_OUTPUT)
        except brotli.error:
            raise DamagedContent("it is damaged") from None
        if data:
            yield data
    if packed.read(1):
        raise DamagedContent(_SOMETHING_ELSE)


_SNAPPY: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_SKIPPED: Final = 0x80
"""Kinds of chunks from here on needn't be known."""


def unsnap(packed: PeekedStream) -> Iterator[bytes]:
    """snappy in its framing format (google/snappy, framing_format.txt), whose chunks of 64 KiB at
    most have checksums.
    """
    import cramjam  # noqa: PLC0415 - loaded by the first file that needs it

    while head := packed.read(4):
        head += packed.exactly(4 - len(head))
        chunk = head + packed.exactly(int.from_bytes(head[1:], "little"))
        if chunk == _SNAPPY or _SNAPPY_SKIPPED <= head[0] < _SNAPPY[0]:
            continue
        if head[0] > 1:
            raise DamagedContent(_SOMETHING_ELSE)
        try:
            data = bytes(cramjam.snappy.decompress(_SNAPPY + chunk))
        except cramjam.DecompressionError as error:
            raise DamagedContent(f"it is damaged: {error_text(error)}") from None
        if data:
            yield data


class _ArrowInput:
    """A stream as pyarrow reads it."""

    closed = False

    def __init__(self, packed: PeekedStream) -> None:
        self._packed = packed

    def read(self, size: int = _SLICE) -> bytes:
        return self._packed.read(size, 1)

    def close(self) -> None:
        """The file is closed by whoever opened it."""


def unlz4(packed: PeekedStream) -> Iterator[bytes]:
    """lz4 in its frame format."""
    try:
        import pyarrow as pa  # noqa: PLC0415 -- an optional dependency
    except ImportError:
        raise DamagedContent(
            "it is compressed by lz4, which can't be read without pyarrow", install_extra("import")
        ) from None
    stream: Any = pa.CompressedInputStream(pa.PythonFile(_ArrowInput(packed), mode="r"), "lz4")
    while data := _read_arrow(stream):
        yield data


def _read_arrow(stream: Any) -> bytes:
    try:
        return bytes(stream.read(_OUTPUT))
    except OSError as error:
        why = error_text(error)
        raise DamagedContent(
            "it is cut off" if "Truncated" in why else f"it is damaged: {why}"
        ) from None


Decompress = Callable[[PeekedStream], Iterator[bytes]]
"""Yields what is decompressed in parts of a bounded size, none of them empty. Raises
`DamagedContent`, or the decompressor's own errors.
"""
_COMPRESSIONS: Final[tuple[tuple[re.Pattern[bytes], Decompress], ...]] = (
    (re.compile(rb"\x1f\x8b\x08"), gunzip),
    # a frame, or one to be skipped, which pzstd writes first
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), decompress_zstd),
    (re.compile(rb"BZh[1-9]"), bunzip2),
    (re.compile(rb"\x04\x22\x4d\x18"), unlz4),
    (re.compile(re.escape(_SNAPPY)), unsnap),
)
_BROTLI: Final = ".br"


def find_decompressor(head: bytes) -> Decompress | None:
    """What decompresses a file with these first bytes, at least four, ten for snappy; None if it
    isn't compressed in a way that they show.
    """
    return next((member for magic, member in _COMPRESSIONS if magic.match(head)), None)


def is_packed(head: bytes) -> bool:
    """Whether a file with these first bytes, 512 of them if it has so many, is compressed, an
    archive, or Parquet.
    """
    return (
        find_decompressor(head) is not None
        or head.startswith((*_ZIPS, _PARQUET))
        or head[257:262] == b"ustar"
    )


@dataclass
class OpenedFile:
    """A file with records in it, open until the next one is asked for."""

    member: str
    """Its way inside the file that the user named: `""`, or `2025-01.json.gz`, or `a.zip!b.json`.
    """
    stream: PeekedStream
    seekable: BinaryIO | None = None
    """Instead of `stream`, for Parquet."""
    is_open: bool = True


def unpack(
    source: Callable[[int], bytes],
    options: ReadOptions,
    seekable: BinaryIO | None = None,
    member: str = "",
    depth: int = 0,
    *,
    name: str = "",
) -> Iterator[OpenedFile]:
    """The files with records in what is read from `source`. `seekable`: the same bytes, where they
    can be sought in; `name`: what they are called.
    """
    peeked = PeekedStream(source)
    head = peeked.head
    decompress = find_decompressor(head)
    is_zip = head.startswith(_ZIPS)
    is_tar = head[257:262] == b"ustar"
    if name.lower().endswith(_BROTLI) and not is_packed(head):
        decompress = unbrotli
    if (is_zip or is_tar or decompress is not None) and depth >= options.max_depth:
        yield _failed(member, f"archives and compressions are more than {options.max_depth} deep")
    elif decompress is not None:
        parts = decompress(peeked)
        yield from unpack(lambda _size: next(parts, b""), options, None, member, depth + 1)
    elif is_zip or head.startswith(_PARQUET):
        yield from _unpack_sought(peeked, options, seekable, member, depth)
    elif is_tar:
        yield from _unpack_tar(peeked, options, member, depth)
    elif not options.encoding and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        guess = guess_encoding(head)
        yield _failed(member, f"it is {guess} text", f"Add --encoding {guess} to the command.")
    elif (
        foreign := next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)
    ) is not None:
        what, todo = foreign
        yield _failed(member, f"it is {what}", todo)
    else:
        yield OpenedFile(member, peeked)


def _failed(member: str, failure: str, hint: str = "") -> OpenedFile:
    """A file of which nothing can be read."""

    def fail(_size: int) -> bytes:
        raise DamagedContent(failure, hint)

    return OpenedFile(member, PeekedStream(fail))


def _unpack_sought(
    peeked: PeekedStream, options: ReadOptions, seekable: BinaryIO | None, member: str, depth: int
) -> Iterator[OpenedFile]:
    """What can't be read in one go is on disk already, or is put there."""
    with tempfile.TemporaryFile() if seekable is None else nullcontext(seekable) as file:
        try:
            while seekable is None and (data := peeked.read(_COPY)):
                if file.tell() + len(data) > options.max_spool:
                    raise DamagedContent(f"it takes more than {options.max_spool} bytes on disk")
                file.write(data)
            file.seek(0)
        except FAILURES as error:
            yield _failed(member, reason(error))
            return
        if peeked.head.startswith(_PARQUET):
            yield OpenedFile(member, PeekedStream(file.read), file)
            return
        try:
            archive = zipfile.ZipFile(file)
        except FAILURES as error:
            yield _failed(member, f"the zip archive is damaged or cut off: {reason(error)}")
            return
        names: Counter[str] = Counter()
        with archive:
            for info in sorted(archive.infolist(), key=lambda member: natural(member.filename)):
                inner = _inner(member, info.filename, names)
                if info.is_dir() or inner is None:
                    continue
                if info.flag_bits & _ENCRYPTED:
                    yield _failed(
                        inner,
                        "it is encrypted by a password",
                        "Unpack the archive by its password, and name the folder.",
                    )
                    continue
                try:
                    content = archive.open(info)
                except FAILURES as error:
                    yield _failed(inner, reason(error))
                    continue
                with content:
                    yield from unpack(content.read, options, None, inner, depth + 1, name=inner)


def _inner(parent: str, name: str, names: Counter[str]) -> str | None:
    """The way to a member; None if it doesn't belong to the data. Of several with one name, the
    later ones are numbered.
    """
    name = plain_name(name)
    names[name] += 1
    if not is_wanted(name.removeprefix("./")):
        return None
    inner = f"{parent}!{name}" if parent else name
    return f"{inner}#{names[name]}" if names[name] > 1 else inner


def _unpack_tar(
    source: PeekedStream, options: ReadOptions, member: str, depth: int
) -> Iterator[OpenedFile]:
    tail = _TarStream(source)
    names: Counter[str] = Counter()
    try:
        with closing(
            tarfile.open(fileobj=tail, mode="r|")  # type: ignore[call-overload]
        ) as archive:
            for info in archive:
                inner = _inner(member, info.name, names)
                archive.members = []  # or it remembers every member
                if info.isreg() and inner is not None:
                    read = _tar_member(archive, info)
                    yield from unpack(read, options, None, inner, depth + 1, name=inner)
        failure = tail.finished()
    except FAILURES as error:
        failure = reason(error)
    if failure:
        yield _failed(member, f"the tar archive is damaged or cut off: {failure}")


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[int], bytes]:
    """Reads a tar's member to where it is cut off: tarfile's own reader forgets what it got when
    it fails after that.
    """
    file = cast("BinaryIO", archive.fileobj)
    left = info.size
    file.seek(info.offset_data)

    def read(size: int) -> bytes:
        nonlocal left
        data = file.read(min(size, left))
        if not data and left:
            raise DamagedContent("it is cut off")
        left -= len(data)
        return data

    return read


class _TarStream:
    """What tarfile reads from: it minds neither a missing end nor what comes after it, and forgets
    what it got before an error.
    """

    def __init__(self, source: PeekedStream) -> None:
        self._source = source
        self._last = b""
        self._failure = ""

    def read(self, size: int, /) -> bytes:
        try:
            data = self._source.read(size)
        except FAILURES as error:
            self._failure = reason(error)
            data = b""
        self._last = (self._last + data)[-512:]
        return data

    def finished(self) -> str:
        """What is wrong with the archive, if anything: a whole one ends with zeros, and the
        compression's checksum is after them.
        """
        has_end = not self._last.strip(b"\0")
        while self.read(_COPY):
            pass
        return self._failure or ("" if has_end else "it is cut off")
