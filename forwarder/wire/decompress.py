"""Decompression that stops at a limit: zstd, brotli and deflate (gzip is in `encodings.py`, with
the rules that lead to it).

Invariant: whatever the input is, what is there at any moment is at most the limit and a few
megabytes more; a cut input is an error. The libraries for zstd and brotli are loaded by the first
body that needs them.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any, Final, cast

from isal import isal_zlib

from forwarder.core.error_text import error_text
from forwarder.core.errors import InvalidRequest, RequestTooLarge

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_WINDOW: Final = 8 * 1024 * 1024
"""What a decoder of this content coding has to support, and an encoder may use at most (RFC 9659).
"""
_MAX_FRAMES: Final = 100
_MOST_A_BYTE: Final = 1 << 15
"""Bytes that one byte of a zstd frame can stand for: a block of 128 KiB takes four at least."""
_LEAST_PIECE: Final = 64
_BROTLI_PIECE: Final = 1 << 20
_ZLIB: Final = 15
_RAW_DEFLATE: Final = -15
_GZIP: Final = 31
# its stub calls the class an instance
_ZLIB_ERROR: Final = cast("type[Exception]", isal_zlib.IsalError)


def unzstd(data: bytes, limit: int) -> bytes:
    """Decompress zstd, of several frames too. Raises `InvalidRequest` if it is broken or cut,
    `RequestTooLarge` at `limit` bytes.
    """
    parts: list[bytes] = []
    at = 0
    room = limit
    for _ in range(_MAX_FRAMES):
        at, room = _unzstd_frame(data, at, room, limit, parts)
        if at == len(data):
            return b"".join(parts)
    raise InvalidRequest(f"the zstd body has over {_MAX_FRAMES} frames")


def _unzstd_frame(
    data: bytes, at: int, room: int, limit: int, parts: list[bytes]
) -> tuple[int, int]:
    """Add the frame at `at`, as text, to `parts`: where it ends, and the room left. Its decoder
    has no limit: it is fed little.
    """
    import zstandard  # noqa: PLC0415 - loaded by the first body that needs it

    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
    while not decoder.eof:
        if at >= len(data):
            raise InvalidRequest("the zstd body is cut off")
        piece = max(_LEAST_PIECE, room // _MOST_A_BYTE)
        try:
            part = decoder.decompress(data[at : at + piece])
        except zstandard.ZstdError as error:
            raise InvalidRequest(f"the body isn't zstd: {error_text(error)}") from None
        at = min(at + piece, len(data))
        room -= len(part)
        if room < 0:
            raise _too_large(limit)
        parts.append(part)
    return at - len(decoder.unused_data), room


def unbrotli(data: bytes, limit: int) -> bytes:
    """Decompress brotli. Raises `InvalidRequest` if it is broken, cut or followed by anything,
    `RequestTooLarge` at `limit` bytes.
    """
    # The first body that needs the library loads it.
    import brotli  # type: ignore[import-untyped] # noqa: PLC0415

    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    room = limit
    try:
        part = decoder.process(data, output_buffer_limit=_BROTLI_PIECE)
        while part or not decoder.can_accept_more_data():
            room -= len(part)
            if room < 0:
                raise _too_large(limit)
            parts.append(part)
            part = decoder.process(b"", output_buffer_limit=_BROTLI_PIECE)
    except brotli.error:
        raise InvalidRequest("the body isn't brotli") from None
    if not decoder.is_finished():
        raise InvalidRequest("the brotli body is cut off")
    return b"".join(parts)


def inflate(data: bytes, limit: int) -> bytes:
    """Decompress deflate, in its zlib wrapper (RFC 9110, 8.4.1.2) or, as some senders have it,
    without one.

    Raises `InvalidRequest` if it is broken, cut or followed by anything, `RequestTooLarge` at
    `limit` bytes.
    """
    decoder = isal_zlib.decompressobj(wbits=_deflate_bits(data))
    try:
        text = decoder.decompress(data, limit + 1)
    except _ZLIB_ERROR as error:
        raise InvalidRequest(f"the body isn't deflate: {error_text(error)}") from None
    if len(text) > limit:
        raise _too_large(limit)
    if not decoder.eof:
        raise InvalidRequest("the deflate body is cut off")
    # without a wrapper, the first bytes of any JSON may pass for a whole text
    if decoder.unused_data:
        raise InvalidRequest("something follows the deflate body")
    return text


def peek(data: bytes, coding: str, size: int) -> bytes:
    """At most `size` bytes of the beginning of a text of which `data` is the compressed beginning;
    `coding`: br, deflate, gzip or zstd.

    Raises `InvalidRequest` if it is broken.
    """
    if coding == "br":
        import brotli  # noqa: PLC0415 - loaded by the first body that needs it

        brotli_decoder: Any = brotli.Decompressor()
        error = brotli.error
        begin = partial(brotli_decoder.process, data, output_buffer_limit=size)
    elif coding == "zstd":
        import zstandard  # noqa: PLC0415 - loaded by the first body that needs it

        decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        error = zstandard.ZstdError
        begin = partial(decoder.stream_reader(io.BytesIO(data)).read, size)
    else:
        inflater = isal_zlib.decompressobj(wbits=_GZIP if coding == "gzip" else _deflate_bits(data))
        error = _ZLIB_ERROR
        begin = partial(inflater.decompress, data, size)
    try:
        return bytes(begin())
    except error as broken:
        raise InvalidRequest(f"the body isn't {coding}: {error_text(broken)}") from None


def _deflate_bits(data: bytes) -> int:
    """The window of a deflate text, as zlib's constant: with a zlib wrapper or without one."""
    wrapped = len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return _ZLIB if wrapped else _RAW_DEFLATE


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"decompressed, the body is over {limit} bytes")
