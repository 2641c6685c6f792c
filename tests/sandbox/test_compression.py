"""Bodies compressed as their header says: all encodings, and what is wrong with one."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.compression import ENCODINGS, decompress

TEXT = b"the quick brown fox jumps over the lazy dog " * 5000
COMPRESS: dict[str, Callable[[bytes], Any]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def test_all_encodings_are_tested() -> None:
    """The table of this test is the module's."""
    assert set(COMPRESS) == set(ENCODINGS)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_encoding(encoding: str) -> None:
    """What was compressed comes out, also if it is empty; without an encoding the body is what it is."""
    for text in (TEXT, b"x", b""):
        assert decompress(COMPRESS[encoding](text), encoding, len(TEXT) + 1) == text
    assert decompress(TEXT, "plain", 10) == TEXT


def test_zstd_without_a_size() -> None:
    """A frame that doesn't say how large its content is, and several frames, are read to the end."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert decompress(frame + frame, "zstd", 2 * len(TEXT) + 1) == TEXT + TEXT


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_limit(encoding: str) -> None:
    """Content stays below the limit: one byte more is 413, however small the body is."""
    bomb = COMPRESS[encoding](b"\0" * 50_000_000)
    for body, limit in ((COMPRESS[encoding](TEXT), len(TEXT)), (bomb, 1000)):
        with pytest.raises(Refusal) as refused:
            decompress(body, encoding, limit)
        assert refused.value.status == 413


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_broken(encoding: str) -> None:
    """What isn't of its encoding is 400; what is cut off is 400, or less than it was."""
    whole = COMPRESS[encoding](TEXT)
    with pytest.raises(Refusal) as refused:
        decompress(b"\x01\x02\x03 nothing of the kind", encoding, 10_000_000)
    assert refused.value.status == 400
    if encoding == "zstd":
        assert len(decompress(whole[:-5], encoding, 10_000_000)) < len(TEXT)
        return
    with pytest.raises(Refusal) as refused:
        decompress(whole[:-5], encoding, 10_000_000)
    assert refused.value.status == 400


@pytest.mark.parametrize("encoding", ["deflate", "br"])
def test_what_goes_on(encoding: str) -> None:
    """Something behind the end is 400."""
    with pytest.raises(Refusal) as refused:
        decompress(COMPRESS[encoding](TEXT) + b"more", encoding, 10_000_000)
    assert refused.value.status == 400
