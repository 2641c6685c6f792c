"""From the bytes of a request to its JSON text, in the service's order (wire facts: "How the
service decodes a body").

`data` of the query takes precedence over the body; a form gives its `data`; base64 is unwrapped;
the compression hint comes from the query, then the form, then Content-Encoding, and the magic
bytes of gzip override it; the paths of single events can be wrapped in base64 twice. Endpoints
that rely on Content-Encoding alone use `decompress`: gzip, deflate (zlib's form), br and zstd.
Decompression stops at the limit.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

import brotli  # type: ignore[import-untyped]
import zstandard

from forwarder.sandbox.ingest.lz64 import BadLz64, TooMuchText, decompress_lz64
from forwarder.sandbox.protocol.http import RequestRejected

FORM: Final = "application/x-www-form-urlencoded"
TWICE_WRAPPED: Final = frozenset({"/e", "/capture", "/engage", "/track"})
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=]+").fullmatch
_FORM_FIELDS: Final = (b"data=", b"compression=")
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_HINTS: Final = {
    "gzip": "gzip",
    "gzip-js": "gzip",
    "lz64": "lz64",
    "lz-string": "lz64",
    "base64": "base64",
    "b64": "base64",
}


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came, before anything was understood."""

    full_path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    method: str = "POST"
    peer: str = ""
    """The address of the other end of the connection."""

    @property
    def path(self) -> str:
        """The path without the slash at its end."""
        return self.full_path.rstrip("/")

    def parameter(self, name: str) -> str | None:
        """The first value of a query parameter."""
        values = parse_qs(self.query, keep_blank_values=True).get(name)
        return values[0] if values else None


@dataclass(slots=True)
class RequestText:
    """The JSON text of a request, and the encodings that were taken off, joined by `+` (`plain` if
    there were none).
    """

    text: str
    encoding: str


class _Unwrapping:
    """One body on its way: `data` is what is left to decode, `steps` what was taken off."""

    def __init__(self, received: ReceivedRequest, limit: int) -> None:
        self.received = received
        self.limit = limit
        self.data = received.body
        self.hint = received.parameter("compression")
        self.steps: list[str] = []

    def take_query(self) -> bool:
        data = self.received.parameter("data")
        if data is None:
            return False
        self.data = _with_pluses(data)
        self.steps.append("query")
        return True

    def take_form(self) -> None:
        content_type, _, _ = self.received.headers.get("content-type", "").partition(";")
        if content_type.strip().lower() != FORM or not self.data.startswith(_FORM_FIELDS):
            return
        form = parse_qs(self.data.decode(), keep_blank_values=True, errors="strict")
        self.data = _with_pluses(form.get("data", [""])[0])
        self.hint = self.hint or form.get("compression", [""])[0] or None
        self.steps.append("form")

    def take_base64(self) -> None:
        if self.hint_is("lz64") or not _looks_like_base64(self.data):
            return
        try:
            self.data = base64.b64decode(self.data, validate=True)
        except binascii.Error:
            return
        self.steps.append("base64")

    def take_compression(self) -> None:
        if self.data.startswith(_GZIP_MAGIC):
            self.data = gunzip(self.data, self.limit)
            self.steps.append("gzip")
        elif self.hint_is("gzip"):
            raise RequestRejected(400, "the body is announced as gzip and is not")
        elif self.hint_is("lz64"):
            self.data = _from_lz64(self.data, self.limit)
            self.steps.append("lz64")
        elif self.hint_is("base64") and "base64" not in self.steps:
            raise RequestRejected(400, "the body is announced as base64 and is not")

    def hint_is(self, encoding: str) -> bool:
        hint = self.hint or self.received.headers.get("content-encoding")
        return hint is not None and _HINTS.get(hint.strip().lower()) == encoding


def decode(received: ReceivedRequest, limit: int) -> RequestText:
    """The text of a request, shorter than `limit` bytes. Raises `RequestRejected`: 413 at the
    limit, 400 for what cannot be decoded.
    """
    unwrapping = _Unwrapping(received, limit)
    try:
        if not unwrapping.take_query():
            unwrapping.take_form()
        unwrapping.take_base64()
        unwrapping.take_compression()
        if received.path in TWICE_WRAPPED:
            unwrapping.take_base64()
        text = unwrapping.data.decode()
    except UnicodeDecodeError:
        raise RequestRejected(400, "the body is not UTF-8") from None
    if not text.strip():
        raise RequestRejected(400, "the body is empty")
    return RequestText(text, "+".join(unwrapping.steps) or "plain")


def _with_pluses(data: str) -> bytes:
    """Base64 whose `+` a form's rules made spaces, as it was; JSON keeps its spaces."""
    return (data if data.startswith(("{", "[")) else data.replace(" ", "+")).encode()


def _looks_like_base64(data: bytes) -> bool:
    return bool(data) and len(data) % 4 == 0 and _BASE64(data, 0, 128) is not None


def gunzip(data: bytes, limit: int) -> bytes:
    """What one or more gzip members hold. Raises `RequestRejected`: 413 past the limit, 400 for
    what is broken or cut off.
    """
    parts: list[bytes] = []
    size = 0
    while data:
        inflater = zlib.decompressobj(wbits=31)
        try:
            part = inflater.decompress(data, limit - size)
        except zlib.error:
            raise RequestRejected(400, "the body is not sound gzip") from None
        size += len(part)
        if size >= limit:
            raise RequestRejected(413, f"the decompressed body is not smaller than {limit} bytes")
        if not inflater.eof:
            raise RequestRejected(400, "the gzip body is cut off")
        parts.append(part)
        data = inflater.unused_data
    return b"".join(parts)


def _from_lz64(data: bytes, limit: int) -> bytes:
    try:
        return decompress_lz64(data, limit)
    except TooMuchText:
        raise RequestRejected(
            413, f"the decompressed body is not smaller than {limit} bytes"
        ) from None
    except BadLz64:
        raise RequestRejected(400, "the body is not sound lz64") from None


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its encoding; an encoding not in `ENCODINGS` is ignored. Raises
    `RequestRejected` (413 or 400).
    """
    decoder = _DECODERS.get(encoding)
    return body if decoder is None else decoder(body, limit)


def _inflate(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, limit)
    except zlib.error:
        raise RequestRejected(400, "the body is not sound deflate") from None
    return _whole(data, limit, ended=inflater.eof and not inflater.unused_data)


def _from_brotli(body: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    size = 0
    pending = body
    try:
        while size < limit and not decoder.is_finished():
            part = decoder.process(pending, output_buffer_limit=min(limit, 1 << 16))
            if not part and decoder.can_accept_more_data() and not decoder.is_finished():
                break
            parts.append(part)
            size = size + len(part)
            pending = b""
    except brotli.error:
        raise RequestRejected(400, "the body is not sound br") from None
    return _whole(b"".join(parts), limit, ended=decoder.is_finished())


def _from_zstd(body: bytes, limit: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            body, read_across_frames=True
        ) as reader:
            data = reader.read(limit)
    except zstandard.ZstdError:
        raise RequestRejected(400, "the body is not sound zstd") from None
    # zstd says nothing of an end that is missing: what comes of it is no JSON
    return _whole(data, limit, ended=True)


def _whole(data: bytes, limit: int, *, ended: bool) -> bytes:
    if len(data) >= limit:
        raise RequestRejected(413, f"the decompressed body is not smaller than {limit} bytes")
    if not ended:
        raise RequestRejected(400, "the compressed body is cut off, or continues after its end")
    return data


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": gunzip,
    "deflate": _inflate,
    "br": _from_brotli,
    "zstd": _from_zstd,
}


ENCODINGS: Final = tuple(_DECODERS)
