"""The head of a v1 request: key, clock, SDK, compression."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from forwarder.core.errors import InvalidRequest, InvalidToken, RequestTooLarge, UnsupportedMedia
from forwarder.core.ports import Incoming
from forwarder.wire.v1 import bearer_token, decode_v1_body, sent_at
from forwarder.wire.v1_event import MAX_SDK_INFO, library

JSON = b'{"created_at":"2026-01-01T00:00:00Z","batch":[]}'
LIMIT = 1000


@pytest.mark.parametrize("value", [b"Bearer phc_a", b"bearer phc_a", b"BEARER \t phc_a ", b"Bearer   phc_a"])
def test_bearer(value: bytes) -> None:
    """The scheme in any case, white space around the key."""
    assert bearer_token(value) == "phc_a"


@pytest.mark.parametrize(
    "value",
    [
        b"", b"phc_a", b"Bearer", b"Bearer ", b"Basic phc_a", b"Bearer a b", b"Bearer phc_a, Bearer phc_b", b"Bearerphc_a",
        b"Bearer phx_secret", b"Bearer " + b"x" * 65, "Bearer ü".encode(),
    ],
)  # fmt: skip
def test_no_key(value: bytes) -> None:
    """No header, another scheme, two keys, or one that can't be a project's; a personal key isn't quoted."""
    with pytest.raises(InvalidToken) as raised:
        bearer_token(value)
    assert "secret" not in raised.value.message.replace("stay secret", "")


def test_large_heads_are_not_remembered() -> None:
    """Neither a key nor an SDK that a sender pads with whatever fits a head stays in memory."""
    tracemalloc.start()
    try:
        for size in range(5000, 5200):
            with pytest.raises(InvalidToken):
                bearer_token(b"Bearer" + b" " * size + b"phc_a")
            assert library(b"x" * size + b"/1") is None
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"posthog-python/7.1", (b'"posthog-python"', b'"7.1"')),
        (b" a/b / 1 ", (b'"a/b"', b'"1"')),
        (b'q"\\/1', (b'"q\\"\\\\"', b'"1"')),
        (b"x" * (MAX_SDK_INFO - 2) + b"/1", (b'"%b"' % (b"x" * (MAX_SDK_INFO - 2)), b'"1"')),
        (b"", None),
        (b"posthog", None),
        (b"/1", None),
        (b"a/", None),
        (b" / ", None),
        ("ü/1".encode(), None),
        (b"x" * MAX_SDK_INFO + b"/1", None),
    ],
)
def test_library(value: bytes, expected: tuple[bytes, bytes] | None) -> None:
    """Name and version are parted at the last slash; what isn't both, or is too long, is ignored."""
    assert library(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"1970-01-01T00:01:00Z", 60.0), (b"1970-01-01T02:01:00.500+02:00", 60.5), (b"", None), (b"yesterday", None), (b"\xff", None)],
)
def test_sent_at(value: bytes, expected: float | None) -> None:
    """The sender's clock, if it can be read."""
    assert sent_at(value) == expected


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (JSON, b""),
        (JSON, b"identity"),
        (JSON, b"gzip"),
        (b"\xef\xbb\xbf" + JSON, b""),
        (gzip.compress(JSON, mtime=0), b"gzip"),
        (gzip.compress(JSON, mtime=0), b" GZIP "),
        (gzip.compress(JSON, mtime=0), b""),
        (gzip.compress(JSON, mtime=0), b"deflate"),
        (zlib.compress(JSON), b"deflate"),
        (zlib.compress(JSON, wbits=-15), b"deflate"),
        (zstandard.compress(JSON), b"zstd"),
        (zstandard.compress(JSON), b""),
        (brotli.compress(JSON), b"br"),
    ],
)
def test_bodies(body: bytes, encoding: bytes) -> None:
    """Each encoding of the protocol by its header, and where the bytes tell it, without one."""
    assert decode_v1_body(Incoming(body, content_encoding=encoding, content_type=b"Application/JSON; charset=utf-8"), LIMIT) == JSON


@pytest.mark.parametrize(
    ("field", "value"), [("content_encoding", b"lz4"), ("content_encoding", b"gzip, br"), ("content_type", b"text/plain")]
)
def test_media_of_others(field: str, value: bytes) -> None:
    """A compression or type that the protocol doesn't have is said to be so."""
    incoming = Incoming(JSON, content_type=b"application/json")
    setattr(incoming, field, value)
    with pytest.raises(UnsupportedMedia):
        decode_v1_body(incoming, LIMIT)


@pytest.mark.parametrize("body", [b"", b" \n", b"\xef\xbb\xbf"])
def test_empty_bodies(body: bytes) -> None:
    """Nothing is no request."""
    with pytest.raises(InvalidRequest, match="empty"):
        decode_v1_body(Incoming(body), LIMIT)


@pytest.mark.parametrize(("packed", "encoding"), [(gzip.compress(b" " * 5000, mtime=0), b"gzip"), (brotli.compress(b" " * 5000), b"br")])
def test_too_much(packed: bytes, encoding: bytes) -> None:
    """The limit holds for what is decompressed."""
    with pytest.raises(RequestTooLarge):
        decode_v1_body(Incoming(packed, content_encoding=encoding), LIMIT)
