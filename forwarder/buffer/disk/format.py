"""The bytes of the log.

A **segment** is a file of a fixed size, `log/<number>.segment`, filled with zeros when it is
created (named `.new` until it is complete), so that writing into it changes nothing but data. It
begins with a header of 512 bytes (one sector, written whole or not at all):

    magic 8s "FWDSEG\\r\\n" | version u32 | reserved u32 | size u64 | generation u64 |
    made f64 (seconds since 1970) | crc u32 | zeros

`generation` rises with each use of a file: the log is the segments in the order of their
generations; 0 is a file that wasn't used yet. A file is reused when nothing of it is needed;
records of an earlier use are recognized by their generation.

**Records** follow, one after the other, without gaps, all integers little-endian:

    magic 4s | header crc u32 | generation u64 | kind u8 | flags u8 | meta size u16 |
    events u32 | sequence u64 | first u32 | body size u32 | body crc u32 | received f64 |
    origin u64 | moved from u64 | meta | body

Both checksums are CRC-32: the header's over all that follows it up to the body, the body's over
the body, as it is stored. The kinds of records:

- DATA: the body is events' JSON, joined by commas.
  - `sequence` numbers the record.
  - `meta`: source NUL project key.
  - flags: HISTORICAL.
  - `origin`: the dead letter that is replayed, or 0.
  - `moved from`: the generation that compaction copied it from, or 0.
  - `first`: the index of its first event, above 0 only in copies, of which a record may have
    several.
- MARKS: the body is settled events, as pairs of u64: sequence and `first << 32 | count` (`ALL`:
  the whole record).
  - `events`: how many.
  - `meta`: fate NUL project key.
- TALLY: the body is JSON: what was received and dropped without being in the buffer.
- CHECKPOINT, first in each segment: the body is JSON: the oldest generation that is needed, the
  next sequence, the generations that a failing disk left without an end, and the books as of all
  records before.
- END, without a body: the log continues in the next segment.
- CLOSED, without a body: the process shut down cleanly; the next one continues behind it.

Invariants: sequences are never used twice; a mark never stands before its record's segment; a
segment is used again only when nothing in it is unsettled and the marks that say so are durable;
segments are given up oldest first. So recovery needs no more than the segments from the last
checkpoint's oldest generation on, and a mark that it needs is in one of them. A segment is freed
only when copies of all that was unsettled in it are durable; until then copies count where they
are complete.

The sizes of a record's events aren't stored: its body is the inside of a JSON array, and is split
only when a part of it is settled, or copied (docs/decisions/0009-no-sizes-in-records.md).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from forwarder.core.event import Lane

VERSION: Final = 1
SEGMENT_MAGIC: Final = b"FWDSEG\r\n"
SEGMENT_HEADER_SIZE: Final = 512
SUFFIX: Final = ".segment"
UNFINISHED: Final = ".new"
UNUSED: Final = 0
"""The generation of a file that wasn't used yet."""

MAGIC: Final = b"\xf1FWR"
ALL: Final = 0xFFFFFFFF_FFFFFFFF
HISTORICAL: Final = 1

_SEGMENT: Final = struct.Struct("<8sIIQQd")
_CRC: Final = struct.Struct("<I")
_PREFIX: Final = struct.Struct("<4sI")
_FIELDS: Final = struct.Struct("<QBBHIQIIIdQQ")
RECORD_HEADER: Final = struct.Struct("<4sIQBBHIQIIIdQQ")
RECORD_HEADER_SIZE: Final = RECORD_HEADER.size


class RecordKind(IntEnum):
    """What a record holds."""

    DATA = 1
    MARKS = 2
    TALLY = 3
    CHECKPOINT = 4
    END = 5
    CLOSED = 6


class SegmentHeader(NamedTuple):
    """A segment's header."""

    version: int
    size: int
    generation: int
    made: float


class RecordHeader(NamedTuple):
    """A record without its meta and its body."""

    magic: bytes
    crc: int
    generation: int
    kind: int
    flags: int
    meta_size: int
    events: int
    sequence: int
    first: int
    size: int
    body_crc: int
    received_at: float
    origin: int
    moved_from: int

    @property
    def length(self) -> int:
        """Bytes of the whole record."""
        return RECORD_HEADER_SIZE + self.meta_size + self.size


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The header's sector."""
    fields = _SEGMENT.pack(
        SEGMENT_MAGIC, header.version, 0, header.size, header.generation, header.made
    )
    return (fields + _CRC.pack(crc32(fields))).ljust(SEGMENT_HEADER_SIZE, b"\0")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header in a segment's first bytes; None if it is none, or damaged."""
    if len(data) < _SEGMENT.size + _CRC.size:
        return None
    magic, version, _, size, generation, made = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or _CRC.unpack_from(data, _SEGMENT.size)[0] != crc32(
        data[: _SEGMENT.size]
    ):
        return None
    return SegmentHeader(version, size, generation, made)


def encode_record_header(
    generation: int,
    kind: RecordKind,
    *,
    size: int = 0,
    body_crc: int = 0,
    meta: bytes = b"",
    flags: int = 0,
    events: int = 0,
    sequence: int = 0,
    first: int = 0,
    received_at: float = 0.0,
    origin: int = 0,
    moved_from: int = 0,
) -> bytes:
    """A record's header and meta."""
    fields = _FIELDS.pack(
        generation,
        kind,
        flags,
        len(meta),
        events,
        sequence,
        first,
        size,
        body_crc,
        received_at,
        origin,
        moved_from,
    )
    fields += meta
    return _PREFIX.pack(MAGIC, crc32(fields)) + fields


def decode_record_header(data: bytes | memoryview, at: int, generation: int) -> RecordHeader | None:
    """The header of the record at `at`; None if there is none of this generation, or it is
    damaged, or its meta isn't in `data`.
    """
    if at + RECORD_HEADER_SIZE > len(data):
        return None
    fields = RECORD_HEADER.unpack_from(data, at)
    if fields[0] != MAGIC or fields[2] != generation:
        return None
    header = RecordHeader._make(fields)
    end = at + RECORD_HEADER_SIZE + header.meta_size
    if end > len(data) or crc32(memoryview(data)[at + _PREFIX.size : end]) != header.crc:
        return None
    return header


def search_key(generation: int) -> bytes:
    """The bytes to search for a record by. They stand 8 bytes behind its start,
    after magic and checksum.
    """
    return struct.pack("<Q", generation)


@lru_cache(maxsize=4096)
def encode_meta(label: str, api_key: str) -> bytes:
    """The meta of a DATA record (label: the source) or of MARKS (label: the fate)."""
    return b"%b\0%b" % (label.encode(), api_key.encode())


@lru_cache(maxsize=4096)
def decode_meta(meta: bytes) -> tuple[str, str]:
    """The label and the project key. Raises `ValueError` if it isn't such a meta."""
    label, _, api_key = meta.partition(b"\0")
    return label.decode(), api_key.decode()


def lane_of(api_key: str, flags: int) -> Lane:
    """The lane that a record's project key and flags name."""
    return Lane(api_key, bool(flags & HISTORICAL))
