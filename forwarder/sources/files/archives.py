"""What is inside a file: compressions and archives are opened, one within the other, until there are records.

Each is recognised by its first bytes, whatever it is called. Members of a zip come in the order of their names, those of a tar as they
stand in it. A member that can't be read is a leaf with a failure, so that those after it are still read.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from forwarder.sources.files.origins import is_wanted, natural, open_spool, plain_name
from forwarder.sources.files.records import DamagedContent, Readable, ReadOptions
from forwarder.sources.files.streams import (
    FAILURES,
    Decompress,
    DecompressedStream,
    PeekedStream,
    bunzip2,
    decompress_zstd,
    gunzip,
    reason,
)

_PARQUET: Final = b"PAR1"
_TAR_END: Final = 512
_COPY: Final = 1 << 20
_COMPRESSIONS: Final[tuple[tuple[re.Pattern[bytes], Decompress], ...]] = (
    (re.compile(rb"\x1f\x8b\x08"), gunzip),
    # a frame, or one to be skipped, which pzstd writes first
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), decompress_zstd),
    (re.compile(rb"BZh[1-9]"), bunzip2),
)
_ZIPS: Final = (b"PK\x03\x04", b"PK\x05\x06")
_FOREIGN: Final = {
    b"\xfd7zXZ\x00": "compressed by xz: decompress it, or compress it by gzip or zstd",
    b"\x04\x22\x4d\x18": "compressed by lz4: decompress it, or compress it by gzip or zstd",
    b"\xff\x06\x00\x00sNaPpY": "compressed by snappy: decompress it, or compress it by gzip or zstd",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it, or pack it as a zip",
    b"Rar!\x1a\x07": "a RAR archive: unpack it, or pack it as a zip",
    b"Obj\x01": "an Avro file: convert it to JSON lines or Parquet",
    b"\xff\xfe": "UTF-16 text: convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text: convert it to UTF-8",
}
"""What isn't read here, by its first bytes: one failure, where lines would be thousands of them."""


@dataclass
class OpenedFile:
    """A file with records in it, open until the next one is asked for."""

    member: str
    """Its way inside the file that the user named: `""`, or `2025-01.json.gz`, or `a.zip!b.json`."""
    stream: PeekedStream
    seekable: BinaryIO | None = None
    """Instead of `stream`, for Parquet."""
    failure: str = ""
    """Why nothing of it can be read."""
    is_open: bool = True


@dataclass(frozen=True)
class ArchiveOpener:
    """Looks into files."""

    options: ReadOptions

    def leaves(self, source: Readable, seekable: BinaryIO | None = None, member: str = "", depth: int = 0) -> Iterator[OpenedFile]:
        """What has records in it. Each is closed when the next is asked for. `seekable`: the same bytes, where they can be sought in."""
        peeked = PeekedStream(source)
        head = peeked.head
        decompress = next((each for magic, each in _COMPRESSIONS if magic.match(head)), None)
        is_zip, is_tar = head.startswith(_ZIPS), head[257:262] == b"ustar"
        if (is_zip or is_tar or decompress is not None) and depth >= self.options.max_depth:
            yield _failed(member, f"archives and compressions are more than {self.options.max_depth} deep")
        elif decompress is not None:
            yield from self.leaves(DecompressedStream(peeked, decompress), None, member, depth + 1)
        elif is_zip or head.startswith(_PARQUET):
            yield from self._sought(peeked, seekable, member, depth)
        elif is_tar:
            yield from self._tar(peeked, member, depth)
        elif (foreign := next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)) is not None:
            yield _failed(member, f"it is {foreign}")
        else:
            yield OpenedFile(member, peeked)

    def _sought(self, peeked: PeekedStream, seekable: BinaryIO | None, member: str, depth: int) -> Iterator[OpenedFile]:
        """What can't be read in one go is on disk already, or is put there."""
        with open_spool() if seekable is None else nullcontext(seekable) as file:
            try:
                if seekable is None:
                    _copy(peeked, file, self.options.max_spool)
                file.seek(0)
            except FAILURES as error:
                yield _failed(member, reason(error))
                return
            if peeked.head.startswith(_PARQUET):
                yield OpenedFile(member, PeekedStream(file), file)
            else:
                yield from self._zip(file, member, depth)

    def _zip(self, file: BinaryIO, member: str, depth: int) -> Iterator[OpenedFile]:
        try:
            archive = zipfile.ZipFile(file)
        except FAILURES as error:
            yield _failed(member, f"the zip archive is damaged or cut off: {reason(error)}")
            return
        with archive:
            names: Counter[str] = Counter()
            for info in sorted(archive.infolist(), key=lambda each: natural(each.filename)):
                inner = _inner(member, info.filename, names)
                if info.is_dir() or inner is None:
                    continue
                try:
                    content = archive.open(info)
                except FAILURES as error:
                    yield _failed(inner, reason(error))
                    continue
                with content:
                    yield from self.leaves(content, None, inner, depth + 1)

    def _tar(self, source: PeekedStream, member: str, depth: int) -> Iterator[OpenedFile]:
        tail = _TarStream(source)
        names: Counter[str] = Counter()
        try:
            with closing(tarfile.open(fileobj=tail, mode="r|")) as archive:  # type: ignore[call-overload]
                for info in archive:
                    inner = _inner(member, info.name, names)
                    archive.members = []  # or it remembers every member
                    if info.isreg() and inner is not None:
                        yield from self.leaves(_TarMember(archive, info), None, inner, depth + 1)
            failure = tail.finished()
        except FAILURES as error:
            failure = reason(error)
        if failure:
            yield _failed(member, f"the tar archive is damaged or cut off: {failure}")


def _inner(parent: str, name: str, names: Counter[str]) -> str | None:
    """The way to a member; None if it doesn't belong to the data. Of several with one name, the later ones are numbered."""
    name = plain_name(name)
    names[name] += 1
    if not is_wanted(name.removeprefix("./")):
        return None
    inner = f"{parent}!{name}" if parent else name
    return f"{inner}#{names[name]}" if names[name] > 1 else inner


class _TarMember:
    """A tar's member, read to where it is cut off: tarfile's own reader forgets what it got when it fails after that."""

    def __init__(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        self._file = cast("BinaryIO", archive.fileobj)
        self._file.seek(info.offset_data)
        self._left = info.size

    def read(self, size: int, /) -> bytes:
        data = self._file.read(min(size, self._left))
        if not data and self._left:
            raise DamagedContent("it is cut off")
        self._left -= len(data)
        return data


class _TarStream:
    """What tarfile reads from: it minds neither a missing end nor what comes after it, and forgets what it got before an error."""

    def __init__(self, source: PeekedStream) -> None:
        self._source = source
        self._last = b""
        self._failure = ""

    def read(self, size: int, /) -> bytes:
        try:
            data = self._source.read(size)
        except FAILURES as error:
            self._failure, data = reason(error), b""
        self._last = (self._last + data)[-_TAR_END:]
        return data

    def finished(self) -> str:
        """What is wrong with the archive, if anything: a whole one ends with zeros, and the compression's checksum is after them."""
        has_end = not self._last.strip(b"\0")
        while self.read(_COPY):
            pass
        return self._failure or ("" if has_end else "it is cut off")


def _failed(member: str, failure: str) -> OpenedFile:
    return OpenedFile(member, PeekedStream(io.BytesIO()), failure=failure)


def _copy(source: PeekedStream, target: BinaryIO, limit: int) -> None:
    size = 0
    while data := source.read(_COPY):
        size += len(data)
        if size > limit:
            raise DamagedContent(f"it takes more than {limit} bytes on disk")
        target.write(data)
