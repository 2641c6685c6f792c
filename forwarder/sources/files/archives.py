"""What is inside a file: compressions and archives are opened, one within the other, until there are records.

Each is recognised by its first bytes, whatever it is called. Members of a zip come in the order of their names, those of a tar as they
stand in it. A member that can't be read is a leaf with a failure, so that those after it are still read.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from forwarder.sources.files.origins import is_wanted, natural, open_spool, plain_name
from forwarder.sources.files.records import DamagedContent, Readable, ReadOptions
from forwarder.sources.files.streams import (
    FAILURES,
    Bzip2Stream,
    DecompressedStream,
    GuardedStream,
    GzipStream,
    PeekedStream,
    ZstdStream,
    reason,
)

_PARQUET: Final = b"PAR1"
_HEAD: Final = 512
_COPY: Final = 1 << 20
_COMPRESSIONS: Final[tuple[tuple[re.Pattern[bytes], type[DecompressedStream]], ...]] = (
    (re.compile(rb"\x1f\x8b\x08"), GzipStream),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), ZstdStream),  # the second: a frame to be skipped, which pzstd writes first
    (re.compile(rb"BZh[1-9]"), Bzip2Stream),
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
"""What isn't read here, by its first bytes. Told as such, it is one finding; read as lines, it would be thousands of them."""


@dataclass
class OpenedFile:
    """A file with records in it, open until the next one is asked for."""

    member: str
    """Its way inside the file that the user named: `""`, or `2025-01.json.gz`, or `a.zip!b.json`."""
    stream: GuardedStream
    head: bytes = b""
    """Its first bytes, for recognising; `stream` gives them too."""
    seekable: BinaryIO | None = None
    """Instead of `stream`, where the format needs it."""
    is_open: bool = True


class ArchiveOpener:
    """Looks into one file."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def leaves(self, source: Readable, seekable: BinaryIO | None, member: str = "", depth: int = 0) -> Iterator[OpenedFile]:
        """What has records in it. Each is closed when the next is asked for."""
        try:
            head = read_up_to(source, _HEAD)
        except FAILURES as error:
            yield _failed(member, reason(error))
            return
        is_archive = head.startswith(_ZIPS) or head[257:262] == b"ustar"
        compression = next((kind for magic, kind in _COMPRESSIONS if magic.match(head)), None)
        foreign = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)
        if (is_archive or compression is not None) and depth >= self._options.max_depth:
            yield _failed(member, f"archives and compressions are more than {self._options.max_depth} deep")
        elif compression is not None:
            yield from self.leaves(compression(PeekedStream(head, source)), None, member, depth + 1)
        elif head.startswith(_ZIPS):
            yield from self._sought(head, source, seekable, member, depth)
        elif is_archive:
            yield from self._tar(PeekedStream(head, source), member, depth)
        elif head.startswith(_PARQUET):
            yield from self._sought(head, source, seekable, member, depth)
        elif foreign is not None:
            yield _failed(member, f"it is {foreign}")
        else:
            yield OpenedFile(member, GuardedStream(head, source), head)

    def _sought(self, head: bytes, source: Readable, seekable: BinaryIO | None, member: str, depth: int) -> Iterator[OpenedFile]:
        """What can't be read in one go is on disk already, or is put there."""
        if seekable is not None:
            seekable.seek(0)
            yield from self._random(head, seekable, member, depth)
            return
        with open_spool(self._options) as spool:
            try:
                _copy(PeekedStream(head, source), spool, self._options.max_spool)
            except FAILURES as error:
                yield _failed(member, reason(error))
                return
            yield from self._random(head, spool, member, depth)

    def _random(self, head: bytes, file: BinaryIO, member: str, depth: int) -> Iterator[OpenedFile]:
        if head.startswith(_PARQUET):
            yield OpenedFile(member, GuardedStream(b"", file), head, file)
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
                inner = self._member(member, info.filename, names)
                if info.is_dir() or inner is None:
                    continue
                try:
                    content = archive.open(info)
                except FAILURES as error:
                    yield _failed(inner, reason(error))
                    continue
                with content:
                    yield from self.leaves(cast("Readable", content), None, inner, depth + 1)

    def _tar(self, source: Readable, member: str, depth: int) -> Iterator[OpenedFile]:
        tail = _TarStream(source)
        names: Counter[str] = Counter()
        try:
            with closing(tarfile.open(fileobj=tail, mode="r|")) as archive:  # type: ignore[call-overload]
                for info in archive:
                    inner = self._member(member, info.name, names)
                    archive.members = []  # or it remembers every member
                    if info.isreg() and inner is not None:
                        yield from self.leaves(_TarMember(archive, info), None, inner, depth + 1)
            failure = tail.finished()
        except FAILURES as error:
            failure = reason(error)
        if failure:
            yield _failed(member, f"the tar archive is damaged or cut off: {failure}")

    def _member(self, parent: str, name: str, names: Counter[str]) -> str | None:
        """The way to a member; None if it isn't wanted. Of several with one name, the later ones are numbered."""
        name = plain_name(name)
        names[name] += 1
        if not is_wanted(name.removeprefix("./")):
            return None
        inner = f"{parent}!{name}" if parent else name
        if names[name] > 1:
            inner = f"{inner}#{names[name]}"
        return inner


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

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._last = b""
        self._failure = ""

    def read(self, size: int, /) -> bytes:
        try:
            data = self._source.read(size)
        except FAILURES as error:
            self._failure, data = reason(error), b""
        if data:
            self._last = (self._last + data)[-_HEAD:] if len(data) < _HEAD else data[-_HEAD:]
        return data

    def finished(self) -> str:
        """What is wrong with the archive, if anything: a whole one ends with zeros, and the compression's checksum is after them."""
        has_end = not self._last.strip(b"\0")
        while self.read(_COPY):
            pass
        return self._failure or ("" if has_end else "it is cut off")


def _failed(member: str, failure: str) -> OpenedFile:
    leaf = OpenedFile(member, GuardedStream(b"", PeekedStream(b"", _EmptyStream())))
    leaf.stream.failure = failure
    return leaf


class _EmptyStream:
    def read(self, _: int, /) -> bytes:
        return b""


def _copy(source: Readable, target: BinaryIO, limit: int) -> None:
    size = 0
    while data := source.read(_COPY):
        size += len(data)
        if size > limit:
            raise DamagedContent(f"it takes more than {limit} bytes on disk")
        target.write(data)
    target.seek(0)


def read_up_to(source: Readable, size: int) -> bytes:
    """So many bytes, or all that can be read. Raises what reading raises if nothing can."""
    data = b""
    try:
        while len(data) < size and (more := source.read(size - len(data))):
            data += more
    except FAILURES:
        if not data:
            raise
    return data
