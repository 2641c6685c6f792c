"""The files of a log: which of them are segments, in which order, and which can't be used at all. Reading changes nothing."""

from __future__ import annotations

import errno
import os
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forwarder.buffer.disk.format import (
    SEGMENT_HEADER_SIZE,
    SUFFIX,
    UNFINISHED,
    UNUSED,
    VERSION,
    SegmentHeader,
    decode_segment_header,
)
from forwarder.buffer.disk.reading import Damage, Found, Ranges, newest_generation
from forwarder.buffer.disk.segment import open_segment, read_at

_PAGE: Final = 4096


@dataclass(slots=True)
class Finding:
    """Something that isn't as it should be. `damage` is the place in the file, if it isn't all of it."""

    path: Path
    what: str
    damage: Damage | None = None
    whole_file: bool = False
    """Whether nothing of the file can be used."""


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

    def add(self, item: Found, lane: int) -> None:
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
class Files:
    """What is in a log's directory."""

    used: list[SegmentScan] = field(default_factory=list)
    """By generation."""
    unused: list[SegmentScan] = field(default_factory=list)
    """Made, and not used yet."""
    unfinished: list[Path] = field(default_factory=list)
    """Files whose making was not finished."""
    findings: list[Finding] = field(default_factory=list)


def find_files(directory: Path) -> Files:
    """The segments in a directory. Raises `OSError` if it can't be read."""
    files = Files(unfinished=sorted(path for path in directory.iterdir() if path.name.endswith(UNFINISHED)))
    generations: dict[int, Path] = {}
    for path in sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX)):
        scan = _scan(path, files.findings)
        if scan is None:
            continue
        generation = scan.header.generation
        if generation == UNUSED:
            files.unused.append(scan)
        elif generation in generations:
            files.findings.append(Finding(path, f"it is a copy of {generations[generation].name}", whole_file=True))
        else:
            generations[generation] = path
            files.used.append(scan)
    files.used.sort(key=lambda scan: scan.header.generation)
    return files


def _scan(path: Path, findings: list[Finding]) -> SegmentScan | None:
    """The segment in a file, if it is one that can be used."""
    if not path.name.removesuffix(SUFFIX).isdecimal() or not path.is_file():
        findings.append(Finding(path, "it is no segment", whole_file=True))
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
        findings.append(Finding(path, "neither its header nor any record in it can be read" if size else "it is empty", whole_file=True))
    elif header.version != VERSION:
        what = f"it is of version {header.version} of the format; this forwarder reads version {VERSION}"
        findings.append(Finding(path, what, whole_file=True))
    else:
        if garbled:
            damage = Damage(0, SEGMENT_HEADER_SIZE, "the segment's header; its records can be read")
            findings.append(Finding(path, damage.what, damage))
        if size < header.size:
            cut = Damage(size, header.size - size, f"the file was cut off at {size} of {header.size} bytes")
            findings.append(Finding(path, cut.what, cut))
        return SegmentScan(path, header, ended=size < header.size or garbled, garbled=garbled)
    return None


def load(scan: SegmentScan) -> bytes:
    """A segment's bytes. What the disk doesn't give is zeros, and shows as damage. Raises `OSError`."""
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
