"""From the bytes of a request to its JSON text, in the service's order (wire facts: "How the service decodes a body").

`data` of the query wins over the body; a form gives its `data`; base64 is unwrapped; the compression hint comes from the query, then the
form, then Content-Encoding, and the magic bytes of gzip override it; the paths of single events may be wrapped in base64 a second time.
Nothing here grows past the limit: decompression stops there.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.lz64 import BadLz64, TooMuchText, decompress_lz64

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
class Received:
    """A request as it came, before anything was understood."""

    full_path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    method: str = "POST"

    @property
    def path(self) -> str:
        """The path without the slash at its end."""
        return self.full_path.rstrip("/")

    def parameter(self, name: str) -> str | None:
        """The first value of a query parameter."""
        values = parse_qs(self.query, keep_blank_values=True).get(name)
        return values[0] if values else None


@dataclass(slots=True)
class Decoded:
    """The JSON text of a request, and the encodings that were taken off, joined by `+` (`plain` if there were none)."""

    text: str
    encoding: str


class _Unwrapping:
    """One body on its way: `data` is what is left to decode, `steps` what was taken off."""

    def __init__(self, received: Received, limit: int) -> None:
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
        if self.received.headers.get("content-type", "").split(";")[0].strip().lower() != FORM or not self.data.startswith(_FORM_FIELDS):
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
            raise Refusal(400, "the body is announced as gzip and is not")
        elif self.hint_is("lz64"):
            self.data = _from_lz64(self.data, self.limit)
            self.steps.append("lz64")
        elif self.hint_is("base64") and "base64" not in self.steps:
            raise Refusal(400, "the body is announced as base64 and is not")

    def hint_is(self, encoding: str) -> bool:
        hint = self.hint or self.received.headers.get("content-encoding")
        return hint is not None and _HINTS.get(hint.strip().lower()) == encoding


def decode(received: Received, limit: int) -> Decoded:
    """The text of a request, which must stay below `limit` bytes. Raises `Refusal`: 413 past the limit, 400 for what can't be decoded."""
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
        raise Refusal(400, "the body is not UTF-8") from None
    if not text.strip():
        raise Refusal(400, "the body is empty")
    return Decoded(text, "+".join(unwrapping.steps) or "plain")


def _with_pluses(data: str) -> bytes:
    """Base64 whose `+` a form's rules made spaces, as it was; JSON keeps its spaces."""
    return (data if data.startswith(("{", "[")) else data.replace(" ", "+")).encode()


def _looks_like_base64(data: bytes) -> bool:
    return bool(data) and len(data) % 4 == 0 and _BASE64(data, 0, 128) is not None


def gunzip(data: bytes, limit: int) -> bytes:
    """What one or more gzip members hold. Raises `Refusal`: 413 past the limit, 400 for what is broken or cut off."""
    parts: list[bytes] = []
    size = 0
    while data:
        inflater = zlib.decompressobj(wbits=31)
        try:
            part = inflater.decompress(data, limit - size)
        except zlib.error:
            raise Refusal(400, "the body is not sound gzip") from None
        size += len(part)
        if size >= limit:
            raise Refusal(413, f"the decompressed body is not smaller than {limit} bytes")
        if not inflater.eof:
            raise Refusal(400, "the gzip body is cut off")
        parts.append(part)
        data = inflater.unused_data
    return b"".join(parts)


def _from_lz64(data: bytes, limit: int) -> bytes:
    try:
        return decompress_lz64(data, limit)
    except TooMuchText:
        raise Refusal(413, f"the decompressed body is not smaller than {limit} bytes") from None
    except BadLz64:
        raise Refusal(400, "the body is not sound lz64") from None
