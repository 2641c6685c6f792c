"""Reads a log's files: the segments in a directory, the chain of records in each, and where it is
damaged. Changes nothing.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from isal.isal_zlib import crc32

from forwarder.buffer.disk.format import (
    MAGIC,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    SUFFIX,
    UNFINISHED,
    UNUSED,
    VERSION,
    RecordHeader,
    RecordKind,
    SegmentHeader,
    decode_record_header,
    decode_segment_header,
    search_key,
)
from forwarder.buffer.disk.segment import open_segment, read_at
from forwarder.core.event import split_events

Ranges: TypeAlias = list[tuple[int, int]]
"""Events of a record as (index of the first, count)."""


READ: Final = 1 << 20
"""Bytes that are read at a time."""

_PAGE: Final = 4096


class FoundRecord(NamedTuple):
    """A record and its offset in the segment."""

    offset: int
    header: RecordHeader
    meta: bytes
    body: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that can't be read as what they were. `header` and `meta` are the
    record's, where they are whole.
    """

    offset: int
    size: int
    what: str
    header: RecordHeader | None = None
    meta: bytes = b""

    @property
    def events(self) -> int:
        """How many events it held, if known: those of a record whose header is whole."""
        return (
            self.header.events
            if self.header is not None and self.header.kind == RecordKind.DATA
            else 0
        )


def records(
    data: bytes, generation: int, *, base: int = 0, start: int = SEGMENT_HEADER_SIZE
) -> Iterator[FoundRecord | Damage]:
    """Every record of a generation in a segment's bytes, in order, and the damaged places between
    them.

    `base` is where in the segment `data` begins, `start` where in `data` to begin. What follows
    the last record is no damage: zeros, or what an earlier generation left.
    """
    view = memoryview(data)
    at = start
    while True:
        header = decode_record_header(view, at, generation)
        if header is None or at + header.length > len(data):
            resumed = _resync(view, data, at + 1, generation)
            if resumed is None:
                if header is not None:
                    yield Damage(
                        base + at,
                        len(data) - at,
                        "a record that was cut off",
                        header,
                        _meta(view, at, header),
                    )
                elif _begins(data, at, generation):
                    yield Damage(base + at, len(data) - at, "a record's header")
                return
            yield Damage(base + at, resumed - at, "bytes between records")
            at = resumed
            continue
        yield _checked(view, at, header, base)
        if header.kind == RecordKind.END:
            return
        at += header.length


def _checked(view: memoryview, at: int, header: RecordHeader, base: int) -> FoundRecord | Damage:
    """The record at `at`, whose header is whole, if its body is too."""
    begin = at + header.length - header.size
    body = view[begin : begin + header.size]
    if crc32(body) != header.body_crc:
        return Damage(base + at, header.length, "a record's body", header, _meta(view, at, header))
    return FoundRecord(base + at, header, _meta(view, at, header), body)


def _meta(view: memoryview, at: int, header: RecordHeader) -> bytes:
    begin = at + RECORD_HEADER_SIZE
    return bytes(view[begin : begin + header.meta_size])


def read_records(fd: int, generation: int, start: int, end: int) -> Iterator[FoundRecord | Damage]:
    """What `records` finds between two places of a file, of which a little is read at a time.
    Raises `OSError`.
    """
    while start < end:
        block = read_at(fd, min(READ, end - start), start)
        at = 0
        while (
            header := decode_record_header(block, at, generation)
        ) is not None and at + header.length <= len(block):
            yield _checked(memoryview(block), at, header, start)
            at += header.length
        if at:
            start += at
            continue
        if header is not None and start + header.length <= end:
            yield from records(read_at(fd, header.length, start), generation, base=start, start=0)
            start += header.length
            continue
        damage = next(
            records(read_at(fd, end - start, start), generation, base=start, start=0), None
        )
        if not isinstance(damage, Damage):
            damage = Damage(start, end - start, "records that are gone")
        yield damage
        start = damage.offset + damage.size


def _begins(data: bytes, at: int, generation: int) -> bool:
    """Whether a record of this generation was begun at `at`, by either of the two marks in it."""
    return data.startswith(search_key(generation), at + 8) and (
        data.startswith(MAGIC, at) or any(data[at : at + 8])
    )


def _resync(view: memoryview, data: bytes, start: int, generation: int) -> int | None:
    """Where the next whole header of this generation begins; None if there is none."""
    key = search_key(generation)
    at = data.find(key, start + 8)
    while at >= 0:
        if decode_record_header(view, at - 8, generation) is not None:
            return at - 8
        at = data.find(key, at + 1)
    return None


def newest_generation(data: bytes) -> int:
    """The highest generation of a whole record in a segment whose own header can't be read; 0 if
    there is none.
    """
    newest = 0
    at = data.find(MAGIC)
    while 0 <= at <= len(data) - RECORD_HEADER_SIZE:
        generation: int = RECORD_HEADER.unpack_from(data, at)[2]
        if generation > newest and decode_record_header(data, at, generation) is not None:
            newest = generation
        at = data.find(MAGIC, at + 1)
    return newest


def remaining(first: int, count: int, gone: Ranges) -> Ranges:
    """The record's events that aren't `gone`, which may name events of its other pieces."""
    left = []
    at = first
    for begin, size in overlap(first, count, gone):
        if begin > at:
            left.append((at, begin - at))
        at = max(at, begin + size)
    if at < first + count:
        left.append((at, first + count - at))
    return left


def overlap(first: int, count: int, wanted: Ranges) -> Ranges:
    """The overlap of a record's events with some ranges."""
    end = first + count
    cut = [(max(begin, first), min(begin + size, end)) for begin, size in sorted(wanted)]
    return [(begin, stop - begin) for begin, stop in cut if stop > begin]


def slices(body: bytes, first: int, count: int, wanted: Ranges) -> list[bytes]:
    """The events of each wanted range, joined by commas, out of a record's body whose first event
    has index `first`.
    """
    if wanted == [(first, count)]:
        return [body]
    events = [bytes(raw) for raw in split_events(b"[%b]" % body)]
    return [b",".join(events[begin - first : begin - first + size]) for begin, size in wanted]


def events_of(body: bytes, count: int) -> list[bytes]:
    """A record's events one by one. Raises `msgspec.DecodeError` if it isn't the inside of an
    array of so many.
    """
    if count == 1:
        return [body]
    events = [bytes(raw) for raw in split_events(b"[%b]" % body)]
    if len(events) != count:
        raise msgspec.DecodeError("a record's count isn't that of its events")
    return events


@dataclass(slots=True)
class FileProblem:
    """A problem of a file. `damage`: the part of it, if not all."""

    path: Path
    what: str
    damage: Damage | None = None
    whole_file: bool = False
    """Whether nothing of the file is usable."""


@dataclass(slots=True)
class SegmentScan:
    """What was read of one segment: of each of its records of events one number in each array."""

    path: Path
    header: SegmentHeader
    end: int = SEGMENT_HEADER_SIZE
    live: int = 0
    ended: bool = False
    """Whether nothing may be written behind its last record."""
    complete: bool = False
    """Whether its last record says that it is the last."""
    garbled: bool = False
    """Whether its header can't be read, and its generation is that of its records."""
    broken: list[int] = field(default_factory=list)
    """Where damaged places begin."""
    holes: dict[int, Ranges | None] = field(default_factory=dict)
    lanes: array[int] = field(default_factory=lambda: array("I"))
    moved: array[int] = field(default_factory=lambda: array("Q"))
    sequences: array[int] = field(default_factory=lambda: array("Q"))
    firsts: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    bodies: array[int] = field(default_factory=lambda: array("I"))
    times: array[float] = field(default_factory=lambda: array("d"))

    def add(self, item: FoundRecord, lane: int) -> None:
        """Note a record of events of the lane with that number."""
        header = item.header
        self.lanes.append(lane)
        self.moved.append(header.moved_from)
        self.sequences.append(header.sequence)
        self.firsts.append(header.first)
        self.counts.append(header.events)
        self.offsets.append(item.offset)
        self.lengths.append(header.length)
        self.bodies.append(header.size)
        self.times.append(header.received_at)


@dataclass(slots=True)
class LogFiles:
    """The files of a log's directory."""

    used: list[SegmentScan] = field(default_factory=list)
    """By generation."""
    unused: list[SegmentScan] = field(default_factory=list)
    """Created, and not used yet."""
    unfinished: list[Path] = field(default_factory=list)
    """Files whose creation was not finished."""
    problems: list[FileProblem] = field(default_factory=list)


def find_segments(directory: Path) -> LogFiles:
    """The segments in a directory. Raises `OSError` if it can't be read."""
    files = LogFiles(
        unfinished=sorted(path for path in directory.iterdir() if path.name.endswith(UNFINISHED))
    )
    generations: dict[int, Path] = {}
    for path in sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX)):
        scan = _scan(path, files.problems)
        if scan is None:
            continue
        generation = scan.header.generation
        if generation == UNUSED:
            files.unused.append(scan)
        elif generation in generations:
            files.problems.append(
                FileProblem(
                    path, f"it is a copy of {generations[generation].name}", whole_file=True
                )
            )
        else:
            generations[generation] = path
            files.used.append(scan)
    files.used.sort(key=lambda scan: scan.header.generation)
    return files


def _scan(path: Path, problems: list[FileProblem]) -> SegmentScan | None:
    """The segment in a file, if it is usable."""
    if not path.name.removesuffix(SUFFIX).isdecimal() or not path.is_file():
        problems.append(FileProblem(path, "it is not a segment", whole_file=True))
        return None
    fd = open_segment(path, read_only=True)
    try:
        size = os.fstat(fd).st_size
        header = decode_segment_header(_read_patiently(fd, SEGMENT_HEADER_SIZE))
        garbled = header is None
        if header is None:
            generation = newest_generation(_read_patiently(fd, size))
            header = SegmentHeader(VERSION, size, generation, 0.0) if generation else None
    finally:
        os.close(fd)
    if header is None:
        what = "neither its header nor any record in it can be read" if size else "it is empty"
        problems.append(FileProblem(path, what, whole_file=True))
    elif header.version != VERSION:
        what = (
            f"it is of version {header.version} of the format; this forwarder reads version "
            f"{VERSION}"
        )
        problems.append(FileProblem(path, what, whole_file=True))
    else:
        if garbled:
            damage = Damage(0, SEGMENT_HEADER_SIZE, "the segment's header; its records can be read")
            problems.append(FileProblem(path, damage.what, damage))
        if size < header.size:
            cut = Damage(
                size, header.size - size, f"the file was cut off at {size} of {header.size} bytes"
            )
            problems.append(FileProblem(path, cut.what, cut))
        return SegmentScan(path, header, ended=size < header.size or garbled, garbled=garbled)
    return None


def read_segment(scan: SegmentScan) -> bytes:
    """A segment's bytes. Unreadable pages are zeros, and count as damage. Raises `OSError`."""
    fd = open_segment(scan.path, read_only=True)
    try:
        return _read_patiently(fd, scan.header.size)
    finally:
        os.close(fd)


def _read_patiently(fd: int, size: int) -> bytes:
    try:
        return read_at(fd, size, 0)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pages = [_page(fd, min(_PAGE, size - at), at) for at in range(0, size, _PAGE)]
    if not any(pages):  # no bad sectors, but no disk
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return b"".join([page if page is not None else bytes(_PAGE) for page in pages])


def _page(fd: int, size: int, at: int) -> bytes | None:
    try:
        return read_at(fd, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
