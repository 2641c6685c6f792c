"""Decompression: streams of any cut, of several members, damaged and cut off."""

from __future__ import annotations

import bz2
import gzip
import random
from collections.abc import Callable
from typing import Final

import brotli  # type: ignore[import-untyped]
import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.files.record_blocks import DamagedContent
from forwarder.sources.files.unpacking import (
    Decompress,
    PeekedStream,
    bunzip2,
    decompress_zstd,
    gunzip,
    unbrotli,
    unlz4,
    unsnap,
)
from tests.support.cases import cases
from tests.support.packed import WatchedStream

TEXT: Final = b"".join(
    b'{"event":"view","number":%d,"noise":"%x"}\n' % (n, random.Random(n).getrandbits(90))
    for n in range(9000)
)


def checked_zstd(content: bytes) -> bytes:
    """A frame with a checksum, and without the size of its content."""
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(content)


KINDS: Final[dict[str, tuple[Decompress, Callable[[bytes], bytes]]]] = {
    "gzip": (gunzip, lambda content: gzip.compress(content, 6, mtime=0)),
    "zstd": (decompress_zstd, zstandard.compress),
    "zstd with checksum": (decompress_zstd, checked_zstd),
    "bzip2": (bunzip2, bz2.compress),
}
OTHERS: Final[dict[str, tuple[Decompress, Callable[[bytes], bytes]]]] = {
    "brotli": (unbrotli, brotli.compress),
    "snappy": (unsnap, lambda content: bytes(cramjam.snappy.compress(content))),
    "lz4": (unlz4, lambda content: bytes(cramjam.lz4.compress(content))),
}
"""Those of files that warehouses write."""
every_other: Final = pytest.mark.parametrize(
    ("kind", "compress"), OTHERS.values(), ids=list(OTHERS)
)
every_kind: Final = pytest.mark.parametrize(("kind", "compress"), KINDS.values(), ids=list(KINDS))


def salvaged(source: WatchedStream, kind: Decompress, size: int = 1 << 16) -> tuple[bytes, str]:
    """What can be read, and why no more."""
    decompressed = kind(PeekedStream(source.read))
    stream = PeekedStream(lambda _size: next(decompressed, b""))
    parts: list[bytes] = []
    try:
        while data := stream.read(size):
            assert len(data) <= size
            parts.append(data)
    except DamagedContent as error:
        return b"".join(parts), str(error)
    return b"".join(parts), ""


@every_kind
def test_members_that_follow_each_other_are_one_stream(
    kind: Decompress, compress: Callable[[bytes], bytes]
) -> None:
    """Parts that were compressed on their own, an empty one among them, are read to the last."""
    assert salvaged(WatchedStream(compress(TEXT) + compress(b"") + compress(b"end")), kind) == (
        TEXT + b"end",
        "",
    )


@every_kind
def test_a_cut_stream_gives_what_came_and_then_fails(
    kind: Decompress, compress: Callable[[bytes], bytes]
) -> None:
    """However few bytes are missing at the end, the stream doesn't end as if it were whole."""
    packed = compress(TEXT)
    for missing in (1, 3, 5, 9, len(packed) // 2):
        data, failure = salvaged(WatchedStream(packed[:-missing]), kind)
        assert failure == "it is cut off"
        assert TEXT.startswith(data)
    whole_first = compress(TEXT) + packed[: len(packed) // 2]
    assert salvaged(WatchedStream(whole_first), kind)[0].startswith(TEXT)


@every_other
def test_what_warehouses_write_is_read_whole_or_fails(
    kind: Decompress, compress: Callable[[bytes], bytes]
) -> None:
    """A stream that is cut off, damaged or followed by something else gives what stood before, and
    never ends as if it were whole.
    """
    packed = compress(TEXT)
    assert salvaged(WatchedStream(packed), kind) == (TEXT, "")
    for missing in (1, 3, 5, 9, len(packed) // 2):
        data, failure = salvaged(WatchedStream(packed[:-missing]), kind)
        assert failure == "it is cut off"
        assert TEXT.startswith(data)
    middle = len(packed) // 2
    damaged = packed[:middle] + bytes(byte ^ 0xFF for byte in packed[middle : middle + 40])
    data, failure = salvaged(WatchedStream(damaged + packed[middle + 40 :]), kind)
    assert failure.startswith("it is damaged")
    assert TEXT.startswith(data) or kind is unbrotli  # it has no checksum
    data, failure = salvaged(WatchedStream(packed + b'{"event":"late"}'), kind)
    assert TEXT.startswith(data)
    assert failure


@cases("name", ["gzip", "zstd with checksum", "bzip2"])
def test_a_wrong_checksum_is_found(name: str) -> None:
    """A byte of the checksum changed: all is read, as far as the format goes, and then it fails."""
    kind, compress = KINDS[name]
    packed = bytearray(compress(TEXT))
    packed[-5 if name == "gzip" else -2] ^= 0x55
    data, failure = salvaged(WatchedStream(bytes(packed)), kind)
    assert failure.startswith("it is damaged")
    assert name == "bzip2" or data == TEXT


@cases("name", ["gzip", "zstd with checksum", "bzip2"])
def test_damage_in_the_middle_is_found(name: str) -> None:
    """Bytes overwritten in the middle: what stood before is read, and the stream fails, at its
    checksum at the latest.
    """
    kind, compress = KINDS[name]
    packed = bytearray(compress(TEXT))
    middle = len(packed) // 2
    packed[middle : middle + 40] = b"\xff" * 40
    data, failure = salvaged(WatchedStream(bytes(packed)), kind)
    assert failure.startswith("it is damaged")
    assert name == "bzip2" or data.startswith(TEXT[: 1 << 16])  # its blocks are larger than this


@every_kind
def test_something_else_after_the_end_is_a_failure(
    kind: Decompress, compress: Callable[[bytes], bytes]
) -> None:
    """A line that someone appended to a compressed file isn't skipped in silence."""
    assert salvaged(WatchedStream(compress(TEXT) + b'{"event":"late"}'), kind) == (
        TEXT,
        "what follows the compressed data is something else",
    )


def test_padding_and_skippable_frames_are_no_content() -> None:
    """Zeros after gzip, and frames of zstd that are meant to be skipped, are left out."""
    assert salvaged(WatchedStream(gzip.compress(TEXT) + b"\0" * 1001), gunzip) == (TEXT, "")
    skipped = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    assert salvaged(
        WatchedStream(skipped + zstandard.compress(TEXT) + skipped), decompress_zstd
    ) == (
        TEXT,
        "",
    )


def test_names_and_comments_in_a_gzip_header_are_skipped() -> None:
    """Extra fields, a file's name, a comment and the header's checksum stand before the content."""
    packed = gzip.compress(TEXT)
    head = (
        packed[:3]
        + bytes([2 | 4 | 8 | 16])
        + packed[4:10]
        + b"\x03\0abc"
        + b"name\0"
        + b"comment\0"
        + b"\0\0"
    )
    assert salvaged(WatchedStream(head + packed[10:]), gunzip) == (TEXT, "")


@every_kind
def test_a_bomb_is_read_in_small_parts(
    kind: Decompress, compress: Callable[[bytes], bytes]
) -> None:
    """Content that decompresses a thousandfold is never held whole: a step gives a bounded part,
    and little is read ahead.
    """
    source = WatchedStream(compress(bytes(20 << 20)))
    assert max(map(len, kind(PeekedStream(source.read)))) <= 256 << 10
    assert max(source.asked) <= 64 << 10


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=300), max_size=4),
    most=st.integers(1, 40),
    size=st.integers(1, 70),
)
@pytest.mark.parametrize("name", list(KINDS))
def test_the_size_of_reads_changes_nothing(
    name: str, parts: list[bytes], most: int, size: int
) -> None:
    """However the compressed bytes come and however many are asked for, the content is the same."""
    kind, compress = KINDS[name]
    packed = b"".join(compress(part) for part in parts)
    assert salvaged(WatchedStream(packed, most), kind, size) == (b"".join(parts), "")


@cases("size", [1, 100, 512, 5000])
def test_a_failure_is_raised_after_all_bytes_before_it_and_stays(size: int) -> None:
    """Also one that comes while the first bytes are peeked: they are in the head, and read again.
    What is given back comes next.
    """
    content = bytes(range(100))
    stream = PeekedStream(WatchedStream(content, 30, OSError(5, "the disk fails")).read)
    assert stream.head == content
    first = stream.read(3)
    stream.give_back(first)
    assert stream.offset == 0
    read_bytes = b""
    while len(read_bytes) < len(content):
        read_bytes += stream.read(size)
    assert (read_bytes, stream.offset) == (content, 100)
    for _ in range(2):
        with pytest.raises(DamagedContent, match="Input/output error"):
            stream.read(size)
