"""Events on disk in the order of time, in blocks: what the runs of a sorting are made of, and the spool that comes of them (`--sort`).

A block is a header and a zstd frame. The header, little-endian: the frame's bytes (4), how many entries are in it (4), and BLAKE2b of the
frame (16). In the frame is MessagePack: an array of entries, each an array. A file is nothing but blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import BinaryIO, Final, NamedTuple

import msgspec
import zstandard

from forwarder.sources.imports.finishing import FinishedEvent

_HEADER: Final = struct.Struct("<II16s")
_BLOCK: Final = 1 << 18
"""Bytes of events after which a block ends."""
_OVERHEAD: Final = 500
"""Bytes of an event in memory beside its texts."""


class SharedRecord(NamedTuple):
    """What is to be known of an event that isn't all of its record."""

    is_last: bool
    """Whether it is the last of its record's in the order of time: with it the record is settled."""
    reason: str = ""
    """Why the format refused an event of the record; empty if it refused none."""
    detail: str = ""


class SortedEvent(NamedTuple):
    """An event, so that comparing two compares their times and then their turns, which differ."""

    time: int
    turn: int
    """Counts events as they came."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    file: int
    line: int
    number: int
    part: int
    shared: SharedRecord | None
    """None: the event is all of its record."""

    @classmethod
    def of(cls, event: FinishedEvent, turn: int, shared: SharedRecord | None) -> SortedEvent:
        """The entry of an event."""
        time, distinct_id, name, uuid, data, file, line, number, part, _ = event
        return cls(time, turn, distinct_id, name, uuid, data, file, line, number, part, shared)

    def finished(self, turn: int) -> FinishedEvent:
        """The event again; `turn`: its number in the order of time."""
        time, _, distinct_id, name, uuid, data, file, line, number, part, _ = self
        return FinishedEvent(time, distinct_id, name, uuid, data, file, line, number, part, turn)

    @property
    def size(self) -> int:
        """About what it takes in memory."""
        return len(self.data) + len(self.distinct_id) + len(self.event) + _OVERHEAD


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[SortedEvent]).decode


class DamagedBlocks(Exception):
    """A file of blocks isn't as it was written."""


class BlockWriter:
    """Writes entries to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compress = zstandard.ZstdCompressor(level=1).compress
        self._digest = blake2b(digest_size=16)
        self.entries = 0

    @property
    def digest(self) -> str:
        """Of what was written, before its compression: the same entries give the same one."""
        return self._digest.hexdigest()

    def write(self, entries: Iterable[SortedEvent]) -> Iterator[int]:
        """Write them as the caller asks on; after each block, how many entries were written so far. Raises OSError."""
        block: list[SortedEvent] = []
        size = 0
        for entry in entries:
            block.append(entry)
            size += len(entry.data) + _OVERHEAD
            if size >= _BLOCK:
                yield self._put(block)
                block, size = [], 0
        if block:
            yield self._put(block)

    def _put(self, block: list[SortedEvent]) -> int:
        content = _encode(block)
        self._digest.update(content)
        frame = self._compress(content)
        self._file.write(_HEADER.pack(len(frame), len(block), _sum(frame)))
        self._file.write(frame)
        self.entries += len(block)
        return self.entries


def read_blocks(file: BinaryIO, first: int = 0) -> Iterator[tuple[int, list[SortedEvent]]]:
    """Blocks from the entry with this number on, each with the number of its first entry; blocks before it are only passed over.

    Raises `DamagedBlocks`, and OSError.
    """
    decompress = zstandard.ZstdDecompressor().decompress
    number = 0
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise DamagedBlocks("it ends within a block")
        length, count, digest = _HEADER.unpack(header)
        if number + count <= first:
            file.seek(length, 1)
        else:
            frame = file.read(length)
            if _sum(frame) != digest:
                raise DamagedBlocks(f"its entries from {number:,} on aren't those that were written")
            begin = max(0, first - number)
            yield number + begin, _decode(decompress(frame))[begin:]
        number += count


def _sum(frame: bytes) -> bytes:
    return blake2b(frame, digest_size=16).digest()
