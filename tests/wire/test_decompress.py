"""zstd, brotli and deflate: what senders write is read, and nothing that they could write takes
more than the limit.
"""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import InvalidRequest, RequestTooLarge
from forwarder.wire.decompress import inflate, unbrotli, unzstd
from tests.support.cases import cases

LIMIT = 1_000_000


def zstd(data: bytes) -> bytes:
    """As the Python SDK writes it."""
    return zstandard.ZstdCompressor().compress(data)


def zstd_stream(data: bytes) -> bytes:
    """A frame that doesn't say how long its text is."""
    writer = zstandard.ZstdCompressor().compressobj()
    return writer.compress(data) + writer.flush()


def raw_deflate(data: bytes) -> bytes:
    """Without the wrapper that the standard asks for."""
    writer = zlib.compressobj(wbits=-15)
    return writer.compress(data) + writer.flush()


def br(data: bytes) -> bytes:
    """Brotli."""
    packed: bytes = brotli.compress(data, quality=5)
    return packed


Code = tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]
CODES: list[Code] = [
    (zstd, unzstd),
    (zstd_stream, unzstd),
    (br, unbrotli),
    (zlib.compress, inflate),
    (raw_deflate, inflate),
]
EACH = pytest.mark.parametrize(
    "code", CODES, ids=["zstd", "zstd of unknown length", "br", "deflate", "raw deflate"]
)


@EACH
@given(st.binary(max_size=5000))
@settings(deadline=None)
def test_there_and_back(code: Code, data: bytes) -> None:
    """Whatever was compressed is what is read."""
    pack, unpack = code
    assert unpack(pack(data), LIMIT) == data


@EACH
def test_the_limit_is_exact(code: Code) -> None:
    """As many bytes as the limit are read; one more is too much."""
    pack, unpack = code
    assert unpack(pack(b"x" * 1000), 1000) == b"x" * 1000
    with pytest.raises(RequestTooLarge):
        unpack(pack(b"x" * 1001), 1000)


@EACH
def test_cut_bodies(code: Code) -> None:
    """A body that ends anywhere before its end is an error, never a shorter text."""
    pack, unpack = code
    packed = pack(os.urandom(300))
    for end in range(len(packed)):
        with pytest.raises(InvalidRequest):
            unpack(packed[:end], LIMIT)


@EACH
def test_bombs(code: Code) -> None:
    """50 MB of zeros take no more than the limit and a few megabytes."""
    pack, unpack = code
    bomb = pack(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge):
            unpack(bomb, 5_000_000)
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


def test_several_frames() -> None:
    """Frames of zstd may follow each other, up to a number."""
    assert unzstd(zstd(b"a") + zstd_stream(b"b") + zstd(b"c"), LIMIT) == b"abc"
    with pytest.raises(InvalidRequest, match="frames"):
        unzstd(zstd(b"a") * 101, LIMIT)


def test_a_window_that_is_too_large_is_refused() -> None:
    """A frame can't make its decoder take more memory than a decoder of HTTP has to have."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(b"a") + writer.flush()
    with pytest.raises(InvalidRequest, match="memory"):
        unzstd(frame, LIMIT)


@EACH
def test_what_follows_a_body(code: Code) -> None:
    """Nothing may: it would be lost without a word."""
    pack, unpack = code
    with pytest.raises(InvalidRequest):
        unpack(pack(b"{}") + b"{}", LIMIT)


@cases("unpack", [unzstd, unbrotli, inflate])
@cases("rubbish", [b"", b"\0", b'{"batch":[]}', b"\xff" * 40])
def test_rubbish(unpack: Callable[[bytes, int], bytes], rubbish: bytes) -> None:
    """What isn't of the encoding at all is an error."""
    with pytest.raises(InvalidRequest):
        unpack(rubbish, LIMIT)
