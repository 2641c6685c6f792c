"""A destination's project keys in calls that are passed through to it: each of a sender's keys
becomes the one that stands for it there (`api_keys`).

SDKs send their key in the path (`/array/KEY/config`), in the query (`?token=KEY` of
`/flags/definitions`), as `Authorization: Bearer KEY`, and in the body: as `token`, `$token` or
`api_key` at its top or of an event, or as `token` of an event's properties. The service's names and
encodings: its `rust/feature-flags/src/handler/decoding.rs` (commit
03b8daa4450df3e31f6d44e8dffb00b730d8efe6).

Invariant: what has none of these keys in such a place stays byte for byte. A body that was edited
is encoded as it was, so that its headers and query say what they said.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote_from_bytes

import msgspec
from isal import igzip
from msgspec import Raw, Struct, field

from forwarder.core.errors import InvalidRequest
from forwarder.core.headers import HeaderLine
from forwarder.wire.encodings import GZIP_MAGIC, gunzip, unquote
from forwarder.wire.identity import ABSENT, first_byte
from forwarder.wire.splice import Edits, Locator

LARGEST_BODY: Final = 8_000_000
"""Bytes of a body that is searched for keys, as it comes and decompressed: about 40 ms."""
_LAYERS: Final = 4
_FORM: Final = b"data="
_BEARER: Final = b"bearer "
_JSON: Final = (b"{", b"[")
_MALFORMED: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _KeyBearer(Struct, gc=False):
    """What may hold a key: a request, or an event."""

    token: Raw = ABSENT
    dollar_token: Raw = field(name="$token", default=ABSENT)
    api_key: Raw = ABSENT
    properties: Raw = ABSENT
    batch: Raw = ABSENT


class _KeyProperty(Struct, gc=False):
    token: Raw = ABSENT


_decode_bearer = msgspec.json.Decoder(_KeyBearer).decode
_decode_property = msgspec.json.Decoder(_KeyProperty).decode
_decode_array = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class OwnKeys:
    """The keys of one destination, by those of senders."""

    def __init__(self, api_keys: Mapping[str, str]) -> None:
        self._keys = api_keys
        self._bytes = {key.encode(): own.encode() for key, own in api_keys.items()}

    def in_target(self, target: bytes) -> bytes:
        """A request target, with the destination's keys in path and query."""
        if not any(key in target for key in self._bytes):
            return target
        path, mark, query = target.partition(b"?")
        segments = [self._bytes.get(part, part) for part in path.split(b"/")]
        parameters = [self._in_parameter(part) for part in query.split(b"&")]
        return b"%b%b%b" % (b"/".join(segments), mark, b"&".join(parameters))

    def _in_parameter(self, parameter: bytes) -> bytes:
        name, equals, value = parameter.partition(b"=")
        own = self._bytes.get(value)
        return parameter if own is None else b"%b%b%b" % (name, equals, _quoted(own))

    def in_lines(self, lines: Sequence[HeaderLine]) -> Sequence[HeaderLine]:
        """Header lines, with the destination's key where one authenticates by a project key."""
        return [
            (name, value[: len(_BEARER)] + self._bytes[value[len(_BEARER) :].strip()])
            if name.lower() == b"authorization"
            and value[: len(_BEARER)].lower() == _BEARER
            and value[len(_BEARER) :].strip() in self._bytes
            else (name, value)
            for name, value in lines
        ]

    def in_body(self, body: bytes) -> bytes:
        """A body, with the destination's keys. Raises `RequestTooLarge` for one that is
        decompressed over `LARGEST_BODY` bytes. What can't be decoded stays: the service says so.
        """
        return self._in_layer(body, _LAYERS)

    def _in_layer(self, data: bytes, layers: int) -> bytes:
        if not layers:
            return data
        if data.startswith(GZIP_MAGIC):
            return self._in_gzip(data, layers)
        if data.startswith(_FORM):
            return self._in_form(data, layers)
        if data.lstrip()[:1] in _JSON:
            return self._in_json(data)
        return self._in_base64(data, layers)

    def _in_gzip(self, data: bytes, layers: int) -> bytes:
        try:
            text = gunzip(data, LARGEST_BODY)
        except InvalidRequest:
            return data
        own = self._in_layer(text, layers - 1)
        return data if own is text else igzip.compress(own, 1)

    def _in_form(self, data: bytes, layers: int) -> bytes:
        value, ampersand, rest = data[len(_FORM) :].partition(b"&")
        text = unquote(value).replace(b" ", b"+")  # in base64 a space was a `+`
        own = self._in_layer(text, layers - 1)
        return data if own is text else b"%b%b%b%b" % (_FORM, _quoted(own), ampersand, rest)

    def _in_base64(self, data: bytes, layers: int) -> bytes:
        try:
            text = binascii.a2b_base64(unquote(data).translate(None, b"\r\n"), strict_mode=True)
        except binascii.Error:
            return data
        own = self._in_layer(text, layers - 1)
        return data if own is text else binascii.b2a_base64(own, newline=False)

    def _in_json(self, text: bytes) -> bytes:
        locator = Locator(text)
        edits = Edits(text)
        replaced = False
        try:
            for raw in _keys_in(text):
                if first_byte(raw) == b'"' and (own := self._keys.get(_decode_text(raw))):
                    edits.replace(locator.span(raw), msgspec.json.encode(own))
                    replaced = True
        except _MALFORMED:
            return text
        return edits.made() if replaced else text


def _keys_in(value: bytes | Raw) -> Iterator[Raw]:
    """What stands where a key may. Raises msgspec's errors."""
    if bytes(value).lstrip()[:1] == b"[":
        for item in _decode_array(value):
            if first_byte(item) == b"{":
                yield from _keys_in(item)
        return
    bearer = _decode_bearer(value)
    yield from (bearer.token, bearer.dollar_token, bearer.api_key)
    if first_byte(bearer.properties) == b"{":
        yield _decode_property(bearer.properties).token
    if first_byte(bearer.batch) == b"[":
        yield from _keys_in(bearer.batch)


def _quoted(value: bytes) -> bytes:
    return quote_from_bytes(value, safe="").encode()
