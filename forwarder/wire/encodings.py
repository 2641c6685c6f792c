"""From a request's bytes to JSON: base64, forms, gzip and lz64, recognized by hints or by the
bytes themselves.

The service's rules (wire facts: How the service decodes a body): `data` in the query wins over the
body; a form's content type makes the body a form; gzip's magic bytes override any hint; a hint
that doesn't fit the bytes is ignored. Beyond those: zstd is recognized by its magic bytes too,
brotli and deflate by the header. Everything is cut off at a limit while it is being decompressed.
"""

from __future__ import annotations

import binascii
import re
from functools import partial
from typing import Final, cast

from isal import igzip_lib, isal_zlib

from forwarder.core.error_text import error_text
from forwarder.core.errors import InvalidRequest, RequestTooLarge, UnsupportedMedia
from forwarder.core.garbage import note_body
from forwarder.core.ports import Incoming
from forwarder.wire import lz64
from forwarder.wire.decompress import ZSTD_MAGIC, inflate, unbrotli, unzstd
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork, decoded_within

GZIP_MAGIC: Final = b"\x1f\x8b"
_MAGIC: Final = (GZIP_MAGIC, ZSTD_MAGIC)
_FORM: Final = b"application/x-www-form-urlencoded"
_JSON: Final = (b"{", b"[")
_WITHOUT_MAGIC: Final = {b"br": unbrotli, b"deflate": inflate}
"""Encodings that only the header shows; a body of theirs may begin like JSON."""
_CONTENT_ENCODINGS: Final = frozenset({b"", b"identity", b"gzip", b"zstd", *_WITHOUT_MAGIC})
_BOM: Final = b"\xef\xbb\xbf"
_BASE64_SAMPLE: Final = re.compile(rb"[A-Za-z0-9+/=\r\n]+")
_LZ64_HINTS: Final = frozenset({b"lz64", b"lz-string"})
_MAX_LAYERS: Final = 4
"""A form with base64 of gzip, wrapped in base64 once more, is the deepest that senders are known
to go.
"""
_MOST_AGAIN: Final = 2
_SMALL: Final = 64 * 1024
"""Bytes on the wire up to which decoding takes little time, whatever they are.

What is compressed hardly gets smaller when it is compressed again: a body that shrinks to less
than half, beyond these bytes, is made to take long.
"""
_MAX_GZIP_MEMBERS: Final = 16
"""Each member costs a copy of what is left of the body."""
_FIRST_ESCAPE: Final = 3
"""Bytes that hold the first character of a form's value."""
# its stub calls the class an instance
_GZIP_ERROR: Final = cast("type[Exception]", igzip_lib.IsalError)


def decode_body(incoming: Incoming, limit: int, effort: Effort = UNBOUNDED) -> bytes:
    """The request's JSON text. Raises `InvalidRequest` where it can't be decoded or is empty,
    `RequestTooLarge` over `limit` bytes, and `TooMuchWork` where that could take more than
    `effort`.
    """
    body = incoming.body
    if len(body) > _SMALL:
        _check_effort(incoming, effort)
    query = incoming.query
    # most have no query: to look for something in nothing takes as long as all of this
    if (
        not incoming.content_encoding
        and body.startswith(_JSON)
        and (not query or b"data=" not in query)
    ):
        return body
    return decoded_within(partial(_decoded, incoming), limit, effort)


def _check_effort(incoming: Incoming, effort: Effort) -> None:
    """Raises `TooMuchWork` if decoding a body that is not small could take more."""
    body = incoming.body
    encoding = incoming.content_encoding.lower()
    plain = not encoding and body.startswith(_JSON) and b"data=" not in incoming.query
    most = effort.text if plain else effort.encoded
    if not plain and not body.startswith(_MAGIC) and encoding not in _WITHOUT_MAGIC:
        most = min(most, effort.repaired)  # a form, or base64
    if len(body) > most:
        raise TooMuchWork


def _decoded(incoming: Incoming, limit: int) -> bytes:
    body = incoming.body
    encoding = incoming.content_encoding
    packed = 0
    if encoding and encoding.lower() in _WITHOUT_MAGIC:
        packed = len(body)
        body = incoming.body = _by_header(body, encoding.lower(), limit)
        note_body(len(body))
    if body.startswith(_JSON) and b"data=" not in incoming.query:
        return body
    payload, hint = _payload(incoming)
    note_body(len(payload))
    for _ in range(_MAX_LAYERS):
        compressed = payload.startswith(_MAGIC)
        if compressed and packed and len(payload) > _MOST_AGAIN * packed + _SMALL:
            raise InvalidRequest(
                "the body is compressed twice, and was much smaller than what is compressed in it"
            )
        try:
            decoded = _unwrap(payload, hint, limit)
        except RequestTooLarge:
            note_body(limit)
            raise
        if decoded is None:
            break
        note_body(len(decoded))
        packed = len(payload) if compressed else packed
        payload = decoded
    payload = payload.removeprefix(_BOM)
    if not payload.strip():
        raise InvalidRequest("the body is empty")
    return payload


def _by_header(body: bytes, encoding: bytes, limit: int) -> bytes:
    """The body decompressed as its header says; as it is if it isn't compressed so, for then the
    header is wrong.
    """
    try:
        return _WITHOUT_MAGIC[encoding](body, limit)
    except InvalidRequest:
        return body


def _payload(incoming: Incoming) -> tuple[bytes, bytes]:
    """What carries the events, and the hint about its compression: the query's, else the form's,
    else the header's.
    """
    query = _fields(incoming.query)
    is_form = incoming.content_type.partition(b";")[0].strip().lower() == _FORM
    form = _fields(incoming.body) if is_form and b"data=" in incoming.body else {}
    hint = query.get(b"compression") or form.get(b"compression") or incoming.content_encoding
    data = query.get(b"data") or form.get(b"data")
    return (incoming.body if data is None else _form_value(data)), hint.strip().lower()


def _fields(text: bytes) -> dict[bytes, bytes]:
    """The fields that matter of a query or form, still percent-encoded."""
    fields: dict[bytes, bytes] = {}
    if b"data=" in text or b"compression=" in text:
        for field in text.split(b"&", 100):
            name, _, value = field.partition(b"=")
            if name in (b"data", b"compression"):
                fields.setdefault(name, value)
    return fields


def _form_value(value: bytes) -> bytes:
    """A form's value. A `+` is a space in text, but in base64 a space was a
    `+` (wire facts, trap 14).
    """
    if unquote(value[:_FIRST_ESCAPE]).startswith(_JSON):
        return unquote(value.replace(b"+", b" "))
    return unquote(value).replace(b" ", b"+")


def _unwrap(payload: bytes, hint: bytes, limit: int) -> bytes | None:
    """The payload with one layer less; None where nothing is left to unwrap."""
    if payload.startswith(GZIP_MAGIC):
        return gunzip(payload, limit)
    if payload.startswith(ZSTD_MAGIC):
        return unzstd(payload, limit)
    if (
        len(payload) % 4
        or not payload
        or not _BASE64_SAMPLE.fullmatch(payload, 0, min(len(payload), 128))
    ):
        return None
    if hint in _LZ64_HINTS:
        return _unlz64(payload, limit)
    try:
        # else rubbish in it would be skipped
        return binascii.a2b_base64(payload.translate(None, b"\r\n"), strict_mode=True)
    except binascii.Error:
        raise InvalidRequest("the body looks like base64, but isn't") from None


def _unlz64(payload: bytes, limit: int) -> bytes:
    if len(payload) > lz64.MAX_WIRE_BYTES:
        raise RequestTooLarge(f"an lz64 body may have at most {lz64.MAX_WIRE_BYTES} bytes")
    try:
        return lz64.decompress(payload, limit)
    except lz64.TooLargeError:
        raise RequestTooLarge(f"decompressed, the body is over {limit} bytes") from None
    except lz64.CorruptError as error:
        raise InvalidRequest(f"the body isn't lz64: {error}") from None


def gunzip(data: bytes, limit: int) -> bytes:
    """Decompress gzip, of several members too; anything else behind a member is ignored, as by the
    service, whose decoder ends with the first (`rust/capture/src/payload/decompression.rs`).

    Raises `InvalidRequest` if it is broken or cut, `RequestTooLarge` at `limit` bytes.
    """
    parts: list[bytes] = []
    room = limit
    for _ in range(_MAX_GZIP_MEMBERS):
        inflate = isal_zlib.decompressobj(wbits=31)
        try:
            part = inflate.decompress(data, room + 1)
        except _GZIP_ERROR as error:
            raise InvalidRequest(f"the body isn't gzip: {error_text(error)}") from None
        room -= len(part)
        if room < 0:
            raise RequestTooLarge(f"decompressed, the body is over {limit} bytes")
        parts.append(part)
        if not inflate.eof:
            raise InvalidRequest("the gzip body is cut off")
        data = inflate.unused_data
        if not data.startswith(GZIP_MAGIC):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise InvalidRequest(f"the gzip body has over {_MAX_GZIP_MEMBERS} members")


def decompress_content(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A body without its `Content-Encoding`: by the magic bytes where one has some, for a header
    may be lost or wrong; else by the header.

    Raises `UnsupportedMedia` for an encoding that isn't known, `InvalidRequest` for a broken body,
    `RequestTooLarge` over `limit` bytes.
    """
    encoding = encoding.strip().lower()
    if encoding not in _CONTENT_ENCODINGS:
        raise UnsupportedMedia(
            f"unsupported content encoding: {encoding[:100].decode('latin-1')!r}; send gzip, "
            "deflate, br or zstd"
        )
    if body.startswith(GZIP_MAGIC):
        return gunzip(body, limit)
    if body.startswith(ZSTD_MAGIC):
        return unzstd(body, limit)
    return _WITHOUT_MAGIC[encoding](body, limit) if encoding in _WITHOUT_MAGIC else body


_PIECE_BYTES: Final = 64 * 1024
"""Bytes decoded at a time: the copies of a piece are a few times its size."""

_HEX: Final = b"0123456789abcdefABCDEF"
_SHAPE: Final = bytes(
    ord("x") if byte in _HEX else byte if byte == ord("%") else ord("-") for byte in range(256)
)
"""Every hexadecimal digit becomes an `x`, so that each escape is `%xx`."""
_FLIP: Final = ord("%") ^ ord("=")
_FLIPS: Final = bytes(byte if byte == _FLIP else 0 for byte in range(256))


def unquote(value: bytes) -> bytes:
    """The bytes with each `%` and two hexadecimal digits decoded; any other `%` stays, as
    `urllib.parse.unquote_to_bytes` leaves it.
    """
    if b"%" not in value:
        return value
    decoded = bytearray()
    at = 0
    while at < len(value):
        end = at + _PIECE_BYTES
        cut = value.rfind(b"%", end - 2, end)  # an escape that the piece would cut in two
        end = end if cut < 0 else cut
        decoded += _unquote(value[at:end])
        at = end
    return bytes(decoded)


def _unquote(piece: bytes) -> bytes:
    piece = piece.replace(b"=", b"%3D")
    shape = piece.translate(_SHAPE)
    escapes = shape.count(b"%xx")
    if escapes == shape.count(b"%"):
        return binascii.a2b_qp(piece.replace(b"%", b"="))
    if not escapes:
        return piece
    flips = shape.replace(b"%xx", b"%cxx" % _FLIP).translate(_FLIPS)
    return binascii.a2b_qp((int.from_bytes(piece) ^ int.from_bytes(flips)).to_bytes(len(piece)))
