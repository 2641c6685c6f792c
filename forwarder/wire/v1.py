"""The body of a v1 request (`POST /i/v1/analytics/events`), read as the array of classic events
that `/batch/` takes.

Its envelope is `{"created_at": …, "batch": [event, …], "historical_migration": bool}`. The key is
in a header, and so is the time at which it was sent; `created_at` stays the same when a part of a
batch is sent again, and says nothing that is needed here.

Unlike the service, which refuses a whole request for one event without a uuid, say, each event is
validated by itself; and a request is accepted where the service would refuse it for something that
forwarder has no need of, such as an attempt that is no number (docs/reference/v1.md).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.core.error_text import error_text
from forwarder.core.errors import InvalidRequest, NoKey, RequestTooLarge, UnsupportedMedia
from forwarder.core.event import split_events
from forwarder.core.ports import Incoming, Reason, V1Head
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork, check_effort
from forwarder.wire.encodings import decompress_content
from forwarder.wire.identity import ABSENT, check_token, first_byte
from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers
from forwarder.wire.shapes import (
    MALFORMED,
    Request,
    check_count,
    is_utf8,
    read_historical,
    reject_nesting,
)
from forwarder.wire.splice import Locator
from forwarder.wire.timestamps import parse_timestamp
from forwarder.wire.v1_event import Rewriter, Rewritten
from forwarder.wire.v1_results import DISTINCT_ID_CUT, NUMBERS_NULLED, Results

MAX_EVENTS: Final = 50_000
"""Some hundred times as many as SDKs send: each has a result, and takes up to a kilobyte beside
its text.
"""

BEARER: Final = re.compile(rb"bearer[ \t]{1,8}(\S+)[ \t]{0,8}", re.IGNORECASE)
"""White space has a bound, because whole headers are remembered."""
_JSON_TYPE: Final = b"application/json"
_BOM: Final = b"\xef\xbb\xbf"


class _V1Envelope(Struct, gc=False):
    batch: Raw = ABSENT
    historical_migration: Raw = ABSENT


_decode_envelope = msgspec.json.Decoder(_V1Envelope).decode


@dataclass(slots=True)
class V1Request(Request):
    """A v1 request with its events in the classic shape."""

    indexes: Sequence[int] = ()
    """The index in the request of each event in `events`."""
    refused: list[tuple[Reason, bytes, str]] = field(default_factory=list)
    """Events that are not in `events`: why in short, as they were received, and in a word."""
    results: Results = field(default_factory=lambda: Results(()))


@dataclass(slots=True)
class _Text:
    """A request's text as it can be decoded, and as it was received but for
    numbers; both of one length.
    """

    readable: bytes
    received: bytes
    marked: bytes = b""
    """`received`, with each null that was NaN or infinite in capital
    letters; empty if there is none.
    """
    nulled: int = 0
    """How many there are."""


def read_v1(text: bytes, head: V1Head, max_events: int, effort: Effort = UNBOUNDED) -> V1Request:
    """The request that a JSON text stands for. `max_events`: over so many, or `MAX_EVENTS`,
    nothing is made of any.

    Raises `InvalidRequest` if it isn't one, `InvalidToken` for a key that can't be one,
    `RequestTooLarge` for too many events, and `TooMuchWork` beyond `effort`.
    """
    token = bearer_token(head.authorization)
    if not (text.isascii() or is_utf8(text)):
        raise InvalidRequest("the body isn't UTF-8")
    reject_nesting(text)
    try:
        envelope = _decode_envelope(text)
        both = _Text(text, text)
    except msgspec.ValidationError:
        raise InvalidRequest("the body isn't an object") from None
    except MALFORMED as error:
        if len(text) > effort.repaired:
            raise TooMuchWork from None
        envelope, both = _repaired(text, error)
    if first_byte(envelope.batch) != b"[":
        raise InvalidRequest("the body has no batch, or one that isn't an array")
    historical = read_historical(envelope.historical_migration)
    check_count(envelope.batch, max_events)
    check_effort(envelope.batch, effort.events)
    request = _read_events(envelope.batch, both, Rewriter(head.sdk_info))
    request.token = token
    request.sent_at = sent_at(head.request_timestamp)
    request.historical = historical
    return request


def _repaired(text: bytes, error: Exception) -> tuple[_V1Envelope, _Text]:
    received, nulled = null_non_finite_numbers(text)
    marked = null_non_finite_numbers(text, b"NULL")[0] if nulled else b""
    readable = mask_lone_surrogates(received)
    try:
        return _decode_envelope(readable), _Text(readable, received, marked, nulled)
    except MALFORMED:
        raise InvalidRequest(f"the body isn't JSON: {error_text(error)}") from None


def _read_events(batch: Raw, text: _Text, rewriter: Rewriter) -> V1Request:
    locator = None if text.readable is text.received and not text.marked else Locator(text.readable)
    reading = _Reading(text.nulled)
    events = split_events(batch)
    if len(events) > MAX_EVENTS:
        raise RequestTooLarge(f"a request may have at most {MAX_EVENTS} events")
    for raw in events:
        event = bytes(raw)
        if locator is None:
            reading.add(rewriter.rewrite(event, event), garbled=False)
        else:
            start, end = locator.span(raw)
            original = text.received[start:end]
            nulled = text.nulled > 0 and text.marked[start:end] != original
            reading.add(rewriter.rewrite(event, original), garbled=original != event, nulled=nulled)
    return reading.request()


class _Reading:
    """Gathers the events of a request one by one."""

    def __init__(self, nulled: int) -> None:
        self._nulled = nulled
        self._events = BytesIO()
        self._events.write(b"[")
        self._keys: list[bytes] = []
        self._indexes = array("I")
        self._refused: list[tuple[Reason, bytes, str]] = []
        self._drops: list[tuple[int, str]] = []
        self._warnings: list[tuple[int, str]] = []

    def add(self, event: Rewritten, *, garbled: bool, nulled: bool = False) -> None:
        """The next event. `garbled`: with a lone surrogate; `nulled`: with
        numbers that became null.
        """
        at = len(self._keys)
        self._keys.append(event.uuid)
        if garbled or event.problem:
            reason = Reason.LONE_SURROGATE if garbled else Reason.INVALID_EVENT
            details = reason.value if garbled else event.problem
            self._refused.append((reason, event.data, details))
            self._drops.append((at, details))
            return
        if nulled:
            self._warnings.append((at, NUMBERS_NULLED))
        if event.id_is_cut:
            self._warnings.append((at, DISTINCT_ID_CUT))
        if self._indexes:
            self._events.write(b",")
        self._events.write(event.data)
        self._indexes.append(at)

    def request(self) -> V1Request:
        """All of them."""
        self._events.write(b"]")
        results = Results(self._keys)
        for at, details in self._drops:
            results.drop(at, details)
        for at, details in self._warnings:
            results.warn(at, details)
        return V1Request(
            self._events.getvalue(),
            nulled=self._nulled,
            indexes=self._indexes,
            refused=self._refused,
            results=results,
        )


@lru_cache(maxsize=4096)
def bearer_token(authorization: bytes) -> str:
    """The project key. Raises `InvalidToken` if there is none, or one that can't be one."""
    match = BEARER.fullmatch(authorization)
    if match is None:
        raise NoKey("no project key: send it as `Authorization: Bearer <project key>`")
    return check_token(match[1].decode("latin-1"))


def sent_at(request_timestamp: bytes) -> float | None:
    """When the request was sent by its sender's clock, seconds since 1970; None if it
    doesn't say.
    """
    time = parse_timestamp(request_timestamp.decode("latin-1")) if request_timestamp else None
    return time.timestamp() if time else None


def decode_v1_body(incoming: Incoming, limit: int) -> bytes:
    """The request's JSON text. Raises `UnsupportedMedia` for a type or compression that the
    protocol doesn't have.

    Raises `InvalidRequest` where it can't be decompressed or is empty, `RequestTooLarge` over
    `limit` bytes.
    """
    mime = incoming.content_type.partition(b";")[0].strip().lower()
    if mime not in (b"", _JSON_TYPE):
        raise UnsupportedMedia(
            f"unsupported content type: {mime[:100].decode('latin-1')!r}; send "
            f"{_JSON_TYPE.decode()}"
        )
    text = decompress_content(incoming.body, incoming.content_encoding, limit).removeprefix(_BOM)
    if not text.strip():
        raise InvalidRequest("the body is empty")
    return text
