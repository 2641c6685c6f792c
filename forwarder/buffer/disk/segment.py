"""A segment file, in use or free, and what the buffer knows of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from forwarder.buffer.disk.format import (
    SEGMENT_HEADER_SIZE,
    SUFFIX,
    UNFINISHED,
    UNUSED,
    VERSION,
    SegmentHeader,
    encode_segment_header,
)
from forwarder.storage.private import open_file, sync_directory

NO_FILE: Final = -1
_ZEROS: Final = bytes(1 << 20)


class StoredRecord:
    """A record in a segment of which events are in memory: waiting or in flight.

    `left` events of it are unsettled; `gone` are the settled ones as (first, count), if not all go
    at once. `full`: it holds all events that its sequence ever had.
    """

    __slots__ = ("count", "first", "full", "gone", "left", "length", "segment", "sequence")

    def __init__(
        self, segment: Segment, sequence: int, first: int, count: int, length: int, *, full: bool
    ) -> None:
        self.segment = segment
        self.sequence = sequence
        self.first = first
        self.count = count
        self.length = length
        self.full = full
        self.left = count
        self.gone: list[tuple[int, int]] | None = None
        segment.stored[sequence, first] = self

    def settle(self, first: int, count: int) -> bool:
        """Events of it are settled; return whether those were the last ones."""
        self.left -= count
        if self.left > 0:
            if self.gone is None:
                self.gone = []
            self.gone.append((first, count))
            return False
        segment = self.segment
        segment.live -= self.length
        del segment.stored[self.sequence, self.first]
        return True

    def move(self, segment: Segment, length: int) -> None:
        """Its rest is now in another segment, in `length` bytes."""
        del self.segment.stored[self.sequence, self.first]
        self.segment.live -= self.length
        segment.live += length
        self.segment = segment
        self.length = length
        segment.stored[self.sequence, self.first] = self


class Segment:
    """`end` is where the next record goes; `live` the bytes of records that aren't settled;
    `stored` those in memory, by (sequence, first); `holes` what is settled among the others: whole
    records (None) or parts of them; `dead_in` the number of the group with the last marks of it.
    """

    __slots__ = (
        "busy",
        "dead_in",
        "end",
        "fd",
        "generation",
        "holes",
        "live",
        "number",
        "path",
        "read_only",
        "readers",
        "size",
        "stored",
    )

    def __init__(
        self, path: Path, fd: int, size: int, generation: int, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.number = int(path.name.removesuffix(SUFFIX))
        self.fd = fd
        self.size = size
        self.generation = generation
        self.end = SEGMENT_HEADER_SIZE
        self.read_only = read_only
        """Whether the file could only be opened for reading: for its next use it is created anew.
        """
        self.live = 0
        self.stored: dict[tuple[int, int], StoredRecord] = {}
        self.holes: dict[int, list[tuple[int, int]] | None] = {}
        self.dead_in = 0
        self.readers = 0
        """How many loads are reading it."""
        self.busy = False
        """Whether it is being compacted: nothing begins to read it."""

    @classmethod
    def planned(cls, directory: Path, number: int, size: int) -> Segment:
        """A segment whose file isn't created yet (`create` does that)."""
        return cls(directory / f"{number:08d}{SUFFIX}", NO_FILE, size, 0)

    @property
    def capacity(self) -> int:
        """Bytes that records may take."""
        return self.size - SEGMENT_HEADER_SIZE

    def header(self, made: float) -> bytes:
        """Its first sector, for a new use."""
        return encode_segment_header(SegmentHeader(VERSION, self.size, self.generation, made))

    def begin(self, generation: int) -> None:
        """Use it, from its beginning."""
        if self.read_only:
            self.close()
            self.read_only = False
        self.generation = generation
        self.end = SEGMENT_HEADER_SIZE
        self.live = self.dead_in = 0
        self.stored = {}
        self.holes = {}
        self.busy = False

    def create(self) -> None:
        """Make the file, full of zeros but for its header, durably. It has its name only when it
        is whole: a segment that is empty, or without a header, is never one that wasn't finished.
        Raises `OSError`; then nothing is left of it.
        """
        if self.fd != NO_FILE:
            return
        unfinished = self.path.with_suffix(UNFINISHED)
        fd = open_file(unfinished, os.O_RDWR | os.O_TRUNC)
        try:
            for at in range(0, self.size, len(_ZEROS)):
                _write_all(fd, _ZEROS[: self.size - at], at)
            _write_all(fd, encode_segment_header(SegmentHeader(VERSION, self.size, UNUSED, 0.0)), 0)
            os.fsync(fd)
            unfinished.rename(self.path)
            sync_directory(self.path.parent)
        except BaseException:
            os.close(fd)
            unfinished.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            raise
        self.fd = fd

    def check_name(self) -> None:
        """Raises `OSError` if the file was removed: what is written into it would be lost with
        this process.
        """
        if os.fstat(self.fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the buffer's files were removed", str(self.path))

    def remove(self) -> None:
        """Close and delete the file: nothing in it is needed."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.fd != NO_FILE:
            os.close(self.fd)
            self.fd = NO_FILE


def open_segment(path: Path, *, read_only: bool = False) -> int:
    """A descriptor of the file."""
    return os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)


def write_vectors(fd: int, buffers: list[bytes], at: int) -> None:
    """Write all of the buffers from `at` on. Raises `OSError`."""
    for begin in range(0, len(buffers), 1000):
        part = buffers[begin : begin + 1000]
        size = sum(map(len, part))
        written = os.pwritev(fd, part, at)
        if written < size:
            _write_all(fd, b"".join(part)[written:], at + written)
        at += size


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view = view[written:]
        at += written


def read_at(fd: int, size: int, at: int) -> bytes:
    """Up to `size` bytes from `at` on; fewer at the end of the file. Raises `OSError`."""
    data = os.pread(fd, size, at)
    while 0 < len(data) < size:
        more = os.pread(fd, size - len(data), at + len(data))
        if not more:
            break
        data += more
    return data
