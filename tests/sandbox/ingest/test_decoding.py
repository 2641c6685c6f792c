"""From the bytes of a request to its text, encoding by encoding."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.ingest.decoding import ENCODINGS, FORM, ReceivedRequest, decode, decompress
from forwarder.sandbox.protocol.http import RequestRejected
from tests.support.cases import cases
from tests.support.lz64 import compress

LIMIT = 100_000
TEXT = json.dumps(
    {"event": "größer ☕", "distinct_id": "a+b c", "pad": ">>>???~~~" * 20}, ensure_ascii=False
)
PLAIN = TEXT.encode()
ZIPPED = gzip.compress(PLAIN)


def b64(data: bytes) -> str:
    """Base64 as text."""
    return base64.b64encode(data).decode()


def received(
    body: bytes, path: str = "/batch/", query: str = "", **headers: str
) -> ReceivedRequest:
    """A request."""
    return ReceivedRequest(
        path, query, {name.replace("_", "-"): value for name, value in headers.items()}, body
    )


ENCODED: dict[str, tuple[ReceivedRequest, str]] = {
    "plain": (received(PLAIN), "plain"),
    "gzip by header": (received(ZIPPED, content_encoding="gzip"), "gzip"),
    "gzip by query": (received(ZIPPED, query="compression=gzip-js&_=1&ver=1"), "gzip"),
    "gzip without a hint": (received(ZIPPED, content_type="text/plain"), "gzip"),
    "gzip in two members": (
        received(gzip.compress(PLAIN[:50]) + gzip.compress(PLAIN[50:])),
        "gzip",
    ),
    "gzip against its hint": (received(ZIPPED, query="compression=base64"), "gzip"),
    "base64": (received(b64(PLAIN).encode(), query="compression=base64"), "base64"),
    "base64 without a hint": (received(b64(PLAIN).encode()), "base64"),
    "base64 of gzip": (received(b64(ZIPPED).encode()), "base64+gzip"),
    "gzip of base64, twice wrapped": (
        received(gzip.compress(b64(PLAIN).encode()), "/e/"),
        "gzip+base64",
    ),
    "base64 of base64, twice wrapped": (
        received(b64(b64(PLAIN).encode()).encode(), "/capture"),
        "base64+base64",
    ),
    "form": (received(urlencode({"data": b64(PLAIN)}).encode(), content_type=FORM), "form+base64"),
    "form with spaces for pluses": (
        received(f"data={b64(PLAIN)}".replace("+", " ").encode(), content_type=FORM),
        "form+base64",
    ),
    "form with a hint": (
        received(
            urlencode({"compression": "gzip", "data": b64(ZIPPED)}).encode(), content_type=FORM
        ),
        "form+base64+gzip",
    ),
    "form of JSON": (
        received(urlencode({"data": TEXT}).encode(), content_type=f"{FORM}; charset=utf-8"),
        "form",
    ),
    "form of JSON, unescaped": (
        received(b"data=" + TEXT.replace("+", "%2B").encode(), content_type=FORM),
        "form",
    ),
    "JSON called a form": (received(PLAIN, content_type=FORM), "plain"),
    "data in the query": (received(b"ignored", query="data=" + quote(b64(PLAIN))), "query+base64"),
    "lz64": (received(compress(TEXT), query="compression=lz64"), "lz64"),
    "lz64 in a form": (
        received(
            urlencode({"data": compress(TEXT), "compression": "lz64"}).encode(), content_type=FORM
        ),
        "form+lz64",
    ),
    "unknown hint": (received(PLAIN, content_encoding="identity"), "plain"),
}


@cases("name", ENCODED)
def test_encodings(name: str) -> None:
    """Each encoding gives the text back, and is named."""
    request, encoding = ENCODED[name]
    decoded = decode(request, LIMIT)
    assert (decoded.text, decoded.encoding) == (TEXT, encoding)


@cases(
    "request_",
    [
        received(b""),
        received(b" \n"),
        received(b"\xff{}"),
        received(ZIPPED[:-5]),
        received(ZIPPED + b"rubbish"),
        received(ZIPPED[:20] + b"\x00" * 40),
        received(PLAIN, content_encoding="gzip"),
        received(PLAIN, query="compression=base64"),
        received(b"*" * 8, query="compression=lz64"),
        received(compress(TEXT)[:-40], query="compression=lz64"),
        received(b"compression=gzip", content_type=FORM),
        received(b"data=%ff", content_type=FORM),
    ],
)
def test_what_cannot_be_decoded(request_: ReceivedRequest) -> None:
    """An empty body, or one that is not what it is said to be, is 400."""
    with pytest.raises(RequestRejected) as refused:
        decode(request_, LIMIT)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "wrap", [gzip.compress, lambda data: gzip.compress(data[:-1]) + gzip.compress(data[-1:])]
)
def test_decompression_stops_at_the_limit(wrap: Callable[[bytes], bytes]) -> None:
    """One byte below the limit is taken, the limit itself is 413, in one member or several."""
    assert len(decode(received(wrap(b"x" * 99_999)), LIMIT).text) == LIMIT - 1
    with pytest.raises(RequestRejected) as refused:
        decode(received(wrap(b"x" * LIMIT)), LIMIT)
    assert refused.value.status == 413


def test_a_bomb_is_cut_off() -> None:
    """A gigabyte in a megabyte is refused after the limit, not unpacked: what is left unread of it
    may even be broken.
    """
    bomb = zlib.compressobj(wbits=31)
    body = bomb.compress(b"\0" * 10_000_000)
    with pytest.raises(RequestRejected) as refused:
        decode(received(body), LIMIT)
    assert refused.value.status == 413


@pytest.mark.parametrize("limit", [0, -1])
def test_lz64_stops_at_the_limit(limit: int) -> None:
    """An lz64 text is counted in bytes of UTF-8 while it grows."""
    body = received(compress("ä" * 500), query="compression=lz64")
    assert decode(body, 1001).text == "ä" * 500
    with pytest.raises(RequestRejected) as refused:
        decode(body, 1000 + limit)
    assert refused.value.status == 413


@given(st.text(min_size=1).filter(str.strip))
def test_lz64_gives_any_text_back(text: str) -> None:
    """Every text survives, beyond the basic plane too."""
    assert decode(received(compress(text), query="compression=lz64"), LIMIT).text == text


HINTS = st.sampled_from(["", "compression=gzip", "compression=lz64", "compression=base64"])


@given(st.binary(max_size=200), HINTS, st.sampled_from(["/e", "/batch"]))
def test_any_body_is_decoded_or_refused(body: bytes, query: str, path: str) -> None:
    """No body makes anything but a text or a refusal."""
    with suppress(RequestRejected):
        assert decode(received(body, path, query), LIMIT).text


COMPRESSED_TEXT = b"the quick brown fox jumps over the lazy dog " * 5000
COMPRESS: dict[str, Callable[[bytes], Any]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def test_all_encodings_are_tested() -> None:
    """The table of this test is the module's."""
    assert set(COMPRESS) == set(ENCODINGS)


@cases("encoding", ENCODINGS)
def test_each_encoding(encoding: str) -> None:
    """What was compressed comes out, also if it is empty; without an
    encoding the body is what it is.
    """
    for text in (COMPRESSED_TEXT, b"x", b""):
        assert decompress(COMPRESS[encoding](text), encoding, len(COMPRESSED_TEXT) + 1) == text
    assert decompress(COMPRESSED_TEXT, "plain", 10) == COMPRESSED_TEXT


def test_zstd_without_a_size() -> None:
    """A frame that doesn't say how large its content is, and several frames, are read
    to the end.
    """
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(COMPRESSED_TEXT)
    assert (
        decompress(frame + frame, "zstd", 2 * len(COMPRESSED_TEXT) + 1)
        == COMPRESSED_TEXT + COMPRESSED_TEXT
    )


@cases("encoding", ENCODINGS)
def test_the_limit(encoding: str) -> None:
    """Content stays below the limit: one byte more is 413, however small the body is."""
    bomb = COMPRESS[encoding](b"\0" * 1_000_000)  # a thousand times the limit
    for body, limit in ((COMPRESS[encoding](COMPRESSED_TEXT), len(COMPRESSED_TEXT)), (bomb, 1000)):
        with pytest.raises(RequestRejected) as refused:
            decompress(body, encoding, limit)
        assert refused.value.status == 413


@cases("encoding", ENCODINGS)
def test_what_is_broken(encoding: str) -> None:
    """What isn't of its encoding is 400; what is cut off is 400, or less than it was."""
    whole = COMPRESS[encoding](COMPRESSED_TEXT)
    with pytest.raises(RequestRejected) as refused:
        decompress(b"\x01\x02\x03 nothing of the kind", encoding, 10_000_000)
    assert refused.value.status == 400
    if encoding == "zstd":
        assert len(decompress(whole[:-5], encoding, 10_000_000)) < len(COMPRESSED_TEXT)
        return
    with pytest.raises(RequestRejected) as refused:
        decompress(whole[:-5], encoding, 10_000_000)
    assert refused.value.status == 400


@pytest.mark.parametrize("encoding", ["deflate", "br"])
def test_accepted_ids(encoding: str) -> None:
    """Something behind the end is 400."""
    with pytest.raises(RequestRejected) as refused:
        decompress(COMPRESS[encoding](COMPRESSED_TEXT) + b"more", encoding, 10_000_000)
    assert refused.value.status == 400
