"""What surrounds the events of a v1 request: its key, its sender's clock and SDK, and how its body is compressed (docs/v1.md).

The rules are the service's, as its SDKs rely on them; where it would refuse a whole request for something that forwarder has no need of
(an attempt that is no number, say), the request is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from forwarder.core.errors import InvalidRequest, NoKey, UnsupportedMedia
from forwarder.core.ports import Incoming
from forwarder.wire.decompress import ZSTD_MAGIC, inflate, unbrotli, unzstd
from forwarder.wire.encodings import GZIP_MAGIC, gunzip
from forwarder.wire.timestamps import parse_timestamp
from forwarder.wire.token import check_token

MAX_SDK_INFO: Final = 200
"""Bytes; a longer one is ignored, because it would be put into each event."""

_BEARER: Final = re.compile(rb"bearer[ \t]{1,8}(\S+)[ \t]{0,8}", re.IGNORECASE)
"""White space has a bound, because whole headers are remembered."""
_JSON_TYPE: Final = b"application/json"
_BOM: Final = b"\xef\xbb\xbf"
_DECODERS: Final[Mapping[bytes, Callable[[bytes, int], bytes]]] = {
    b"gzip": gunzip,
    b"deflate": inflate,
    b"br": unbrotli,
    b"zstd": unzstd,
}
_WITHOUT_MAGIC: Final = (b"br", b"deflate")


@lru_cache(maxsize=4096)
def bearer_token(authorization: bytes) -> str:
    """The project key. Raises `InvalidToken` if there is none, or one that can't be one."""
    match = _BEARER.fullmatch(authorization)
    if match is None:
        raise NoKey("no project key: send it as `Authorization: Bearer <project key>`")
    return check_token(match[1].decode("latin-1"))


def sent_at(request_timestamp: bytes) -> float | None:
    """When the request was sent by its sender's clock, seconds since 1970; None if it doesn't say."""
    time = parse_timestamp(request_timestamp.decode("latin-1")) if request_timestamp else None
    return time.timestamp() if time else None


def library(sdk_info: bytes) -> tuple[bytes, bytes] | None:
    """Name and version of the SDK as JSON texts, parted at the last slash; None for anything else."""
    return _library(sdk_info) if len(sdk_info) <= MAX_SDK_INFO else None


@lru_cache(maxsize=256)
def _library(sdk_info: bytes) -> tuple[bytes, bytes] | None:
    name, slash, version = sdk_info.rpartition(b"/")
    name, version = name.strip(), version.strip()
    if not (slash and name and version) or not sdk_info.isascii():
        return None
    return msgspec.json.encode(name.decode()), msgspec.json.encode(version.decode())


def decode_v1_body(incoming: Incoming, limit: int) -> bytes:
    """The request's JSON text. Raises `UnsupportedMedia` for a type or compression that the protocol doesn't have.

    Raises `InvalidRequest` where it can't be decompressed or is empty, `RequestTooLarge` over `limit` bytes.
    """
    mime = incoming.content_type.partition(b";")[0].strip().lower()
    if mime not in (b"", _JSON_TYPE):
        raise UnsupportedMedia(f"unsupported content type: {mime[:100].decode('latin-1')!r}; send {_JSON_TYPE.decode()}")
    text = _decompressed(incoming.body, incoming.content_encoding.strip().lower(), limit).removeprefix(_BOM)
    if not text.strip():
        raise InvalidRequest("the body is empty")
    return text


def _decompressed(body: bytes, encoding: bytes, limit: int) -> bytes:
    """By the magic bytes where the encoding has some, for a header may be lost or wrong; else by the header."""
    if encoding not in (b"", b"identity") and encoding not in _DECODERS:
        raise UnsupportedMedia(f"unsupported content encoding: {encoding[:100].decode('latin-1')!r}; send gzip, deflate, br or zstd")
    if body.startswith(GZIP_MAGIC):
        return gunzip(body, limit)
    if body.startswith(ZSTD_MAGIC):
        return unzstd(body, limit)
    if encoding in _WITHOUT_MAGIC:
        return _DECODERS[encoding](body, limit)
    return body
