"""Bodies compressed as Content-Encoding says, for the protocol that relies on it alone: gzip, deflate (zlib's form), br and zstd.

Nothing grows past the limit: decompression stops there. What is cut off or followed by something else is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import brotli  # type: ignore[import-untyped]
import zstandard

from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.decoding import gunzip


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its encoding, one of `ENCODINGS` or none of them. Raises `Refusal`: 413 past the limit, 400 if it is broken."""
    decoder = _DECODERS.get(encoding)
    return body if decoder is None else decoder(body, limit)


def _inflate(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, limit)
    except zlib.error:
        raise Refusal(400, "the body is not sound deflate") from None
    return _whole(data, limit, ended=inflater.eof and not inflater.unused_data)


def _from_brotli(body: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    size, pending = 0, body
    try:
        while size < limit and not decoder.is_finished():
            part = decoder.process(pending, output_buffer_limit=min(limit, 1 << 16))
            if not part and decoder.can_accept_more_data() and not decoder.is_finished():
                break
            parts.append(part)
            size, pending = size + len(part), b""
    except brotli.error:
        raise Refusal(400, "the body is not sound br") from None
    return _whole(b"".join(parts), limit, ended=decoder.is_finished())


def _from_zstd(body: bytes, limit: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True) as reader:
            data = reader.read(limit)
    except zstandard.ZstdError:
        raise Refusal(400, "the body is not sound zstd") from None
    return _whole(data, limit, ended=True)  # zstd says nothing of an end that is missing: what comes of it is no JSON


def _whole(data: bytes, limit: int, *, ended: bool) -> bytes:
    if len(data) >= limit:
        raise Refusal(413, f"the decompressed body is not smaller than {limit} bytes")
    if not ended:
        raise Refusal(400, "the compressed body is cut off, or goes on after its end")
    return data


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": gunzip,
    "deflate": _inflate,
    "br": _from_brotli,
    "zstd": _from_zstd,
}
ENCODINGS: Final = tuple(_DECODERS)
