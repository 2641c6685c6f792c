"""The project key of a large body as far as its first bytes show it, so that nothing costly is done for one that is not allowed.

Only members that come before the first array or object are seen; a body whose key comes later, or is the events' own, is read as a whole.
"""

from __future__ import annotations

import binascii
import io
import re
from typing import Final, cast
from urllib.parse import unquote_to_bytes

import brotli  # type: ignore[import-untyped]
import msgspec
import zstandard
from isal import isal_zlib

from forwarder.core.ports import Incoming
from forwarder.wire.decompress import ZSTD_MAGIC
from forwarder.wire.encodings import GZIP_MAGIC

_SEEN: Final = 4096
"""Bytes of a text that are looked at."""
_FED: Final = 8192
"""Bytes of a compressed or encoded body that are looked at."""
_LAYERS: Final = 4
_JSON: Final = (b"{", b"[")
_MEMBER: Final = re.compile(
    rb"""[\s,]*+"((?:[^"\\]|\\.){0,64})"\s{0,16}:\s{0,16}("(?:[^"\\]|\\.){0,1024}"|[-0-9a-zA-Z.+]{1,64})\s{0,16}(?=[,}])"""
)
_KEYS: Final = (b"token", b"$token", b"api_key")
"""The later ones count where there is none of those before."""
_DATA: Final = re.compile(rb"(?:^|&)data=([^&]*)")
_ZLIB_ERROR: Final = cast("type[Exception]", isal_zlib.IsalError)  # its stub calls the class an instance
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=\r\n]*")


def early_key(incoming: Incoming, body: bytes) -> str | None:
    """The project key that the first members of the request's envelope name; None if they name none, or can't be read that simply."""
    seen = _first_bytes(incoming, body)
    found: dict[bytes, bytes] = {}
    if seen[:1] == b"{":
        at = 1
        while (match := _MEMBER.match(seen, at)) is not None:
            found[match[1]] = match[2]
            at = match.end()
    for name in _KEYS:
        if name in found and found[name] != b"null":
            try:
                key = msgspec.json.decode(found[name])
            except msgspec.DecodeError:
                return None
            return key if isinstance(key, str) else None
    return None


def _first_bytes(incoming: Incoming, body: bytes) -> bytes:
    """The first bytes of the request's text, as far as they can be had without the rest."""
    encoding = incoming.content_encoding.lower()
    seen = body[:_FED]
    try:
        if encoding in (b"br", b"deflate") and incoming.v1 is None:
            seen = _by_header(seen, encoding)
        seen = _field(incoming.query) or (_field(seen) if _is_form(incoming.content_type) else b"") or seen
        for _ in range(_LAYERS):
            if seen.startswith(_JSON):
                break
            seen = _layer(seen)
    except (_ZLIB_ERROR, zstandard.ZstdError, brotli.error, binascii.Error):  # the whole body will say what is wrong with it
        return b""
    return seen.removeprefix(b"\xef\xbb\xbf").lstrip()[:_SEEN]


def _is_form(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/x-www-form-urlencoded"


def _field(fields: bytes) -> bytes:
    """The beginning of the value of `data`; empty if there is none among the first fields."""
    match = _DATA.search(fields[:_FED])
    return unquote_to_bytes(match[1].replace(b"+", b" ")) if match else b""


def _by_header(seen: bytes, encoding: bytes) -> bytes:
    if encoding == b"br":
        text: bytes = brotli.Decompressor().process(seen, output_buffer_limit=_SEEN)
        return text
    wrapped = len(seen) > 1 and seen[0] & 0x0F == 8 and (seen[0] << 8 | seen[1]) % 31 == 0
    return isal_zlib.decompressobj(wbits=15 if wrapped else -15).decompress(seen, _SEEN)


def _layer(seen: bytes) -> bytes:
    if seen.startswith(GZIP_MAGIC):
        return isal_zlib.decompressobj(wbits=31).decompress(seen, _SEEN)
    if seen.startswith(ZSTD_MAGIC):
        return zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(io.BytesIO(seen)).read(_SEEN)
    characters = seen.replace(b" ", b"+").translate(None, b"\r\n")
    if not characters or _BASE64.fullmatch(characters) is None:
        return seen
    return binascii.a2b_base64(characters[: len(characters) // 4 * 4])
