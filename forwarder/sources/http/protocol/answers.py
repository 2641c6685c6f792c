"""The listener's answers, as bytes that are built once (the table "Answers of the ingestion
listener"), and their CORS headers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec

from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    DiskRefuses,
    Draining,
    ForwarderError,
    InvalidAck,
    InvalidRequest,
    InvalidToken,
    LaneFull,
    MemoryShort,
    NoKey,
    NotAcknowledged,
    RequestTooLarge,
    TooManyLanes,
    UnknownKey,
    UnsupportedMedia,
)
from forwarder.core.path import ERROR_HEADER, LOOP, MAX_HOPS
from forwarder.core.ports import EventResults

_TEXT: Final = b"text/plain; charset=utf-8"
_JSON: Final = b"application/json"
_MAX_RETRY_AFTER: Final = 3600
_MAX_TEXT: Final = 500

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"
"""For a sender that asked for it: one of HTTP/1.0 closes the connection otherwise."""


class Rejection(StrEnum):
    """Why a request was rejected (closed set; documented in docs/reference/http.md)."""

    UNDECODABLE = "undecodable"
    """Its body can't be read as events."""
    INVALID_ACK = "invalid_ack"
    NO_KEY = "no_key"
    INVALID_KEY = "invalid_key"
    """A project key that can't be one."""
    UNKNOWN_KEY = "unknown_key"
    """A project key that isn't in `sources.http.api_keys`."""
    TOO_LARGE = "too_large"
    UNSUPPORTED_MEDIA = "unsupported_media"
    NOT_FOUND = "not_found"
    METHOD = "method"
    BAD_HTTP = "bad_http"
    """Its head or its framing is invalid."""
    LOOP = "loop"
    STALLED = "stalled"
    """It did not arrive in time."""
    BUFFER_FULL = "buffer_full"
    LANE_FULL = "lane_full"
    TOO_MANY_LANES = "too_many_lanes"
    DEAD_LETTERS_FULL = "dead_letters_full"
    DISK_REFUSES = "disk_refuses"
    MEMORY_SHORT = "memory_short"
    NOT_ACKNOWLEDGED = "not_acknowledged"
    BUSY = "busy"
    """Too much is being received, decoded or passed through at the same time."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    DRAINING = "draining"
    UPSTREAM = "upstream"
    """It was to be passed through, and the upstream fails."""
    INTERNAL = "internal"
    """A bug; the log has its traceback."""


_OF_CODES: Final[Mapping[str, Rejection]] = {
    InvalidRequest.code: Rejection.UNDECODABLE,
    InvalidAck.code: Rejection.INVALID_ACK,
    NoKey.code: Rejection.NO_KEY,
    InvalidToken.code: Rejection.INVALID_KEY,
    UnknownKey.code: Rejection.UNKNOWN_KEY,
    RequestTooLarge.code: Rejection.TOO_LARGE,
    UnsupportedMedia.code: Rejection.UNSUPPORTED_MEDIA,
    BufferFull.code: Rejection.BUFFER_FULL,
    DiskRefuses.code: Rejection.DISK_REFUSES,
    MemoryShort.code: Rejection.MEMORY_SHORT,
    LaneFull.code: Rejection.LANE_FULL,
    TooManyLanes.code: Rejection.TOO_MANY_LANES,
    DeadLettersFull.code: Rejection.DEAD_LETTERS_FULL,
    NotAcknowledged.code: Rejection.NOT_ACKNOWLEDGED,
    Draining.code: Rejection.DRAINING,
}
"""By an error's code; what isn't here is `busy`."""


class HttpAnswer:
    """A status with its body. `plain` is the whole answer on a connection that stays open, to a
    request without `Origin`.
    """

    __slots__ = ("_body", "_headers", "_start", "_text", "plain", "reason", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = _TEXT,
        headers: bytes = b"",
        reason: Rejection | None = None,
    ) -> None:
        described = (
            b""
            if status == 204
            else b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body))
        )
        self.status = status
        self.reason = reason
        """Why the request is rejected; None if it isn't."""
        self._body = body
        self._text: str | None = None
        """What it says to a person, if its body isn't that."""
        self._headers = headers
        self._start = b"HTTP/1.1 %d %b\r\n%b%b" % (
            status,
            HTTPStatus(status).phrase.encode(),
            described,
            headers,
        )
        self.plain = self.render()

    def render(self, headers: bytes = b"", *, without_body: bool = False) -> bytes:
        """The whole answer with further header lines; `without_body` for HEAD."""
        return b"%b%b\r\n%b" % (self._start, headers, b"" if without_body else self._body)

    @property
    def text(self) -> str:
        """What it says to a person."""
        return self._body.decode("utf-8", "replace").strip() if self._text is None else self._text

    def in_json(self) -> HttpAnswer:
        """The same error as the SDKs of the v1 protocol read it."""
        body = {
            "error": _ERRORS.get(self.status, HTTPStatus(self.status).name.lower()),
            "error_description": self.text,
        }
        return self.with_body(msgspec.json.encode(body), _JSON)

    def with_body(self, body: bytes, content_type: bytes) -> HttpAnswer:
        """The same in another form: what it says to a person stays."""
        copy = HttpAnswer(
            self.status, body, content_type=content_type, headers=self._headers, reason=self.reason
        )
        copy._text = self.text
        return copy


_ERRORS: Final = {
    400: "invalid_request",
    401: "invalid_api_token",
    408: "request_timeout",
    413: "payload_too_large",
}
"""What errors are called in the v1 protocol, where it isn't what HTTP calls them."""


def problem(status: int, text: str, reason: Rejection, *, headers: bytes = b"") -> HttpAnswer:
    """An error in plain text."""
    return HttpAnswer(
        status, text[:_MAX_TEXT].encode("utf-8", "replace") + b"\n", headers=headers, reason=reason
    )


def unavailable(text: str, retry_after: float, reason: Rejection = Rejection.BUSY) -> HttpAnswer:
    """503 with Retry-After in whole seconds, at least 1: senders drop on 429, and some ignore it
    (wire facts: What SDKs send).
    """
    if not math.isfinite(retry_after):
        retry_after = _MAX_RETRY_AFTER
    return _unavailable(text, min(max(1, math.ceil(retry_after)), _MAX_RETRY_AFTER), reason)


@lru_cache(maxsize=256)
def _unavailable(text: str, seconds: int, reason: Rejection) -> HttpAnswer:
    return problem(503, text, reason, headers=b"Retry-After: %d\r\n" % seconds)


@lru_cache(maxsize=256)
def bad_request(text: str, reason: Rejection = Rejection.BAD_HTTP) -> HttpAnswer:
    """400."""
    return problem(400, text, reason)


_STATUSES: Final[tuple[tuple[type[ForwarderError], int], ...]] = (
    (InvalidRequest, 400),
    (InvalidToken, 401),
    (RequestTooLarge, 413),
    (UnsupportedMedia, 415),
)


def of_error(error: Exception) -> HttpAnswer | None:
    """The answer to what the intake raised; None if it may not raise that."""
    if isinstance(error, Backpressure):
        return unavailable(
            error.message, error.retry_after, _OF_CODES.get(error.code, Rejection.BUSY)
        )
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            reason = _OF_CODES[error.code]
            return (
                bad_request(error.message, reason)
                if status == 400
                else problem(status, error.message, reason)
            )
    return None


def of_results(results: EventResults, content_type: bytes = _JSON) -> HttpAnswer:
    """200 with the results of the events; with Retry-After if some have to come again."""
    return HttpAnswer(
        200,
        results.body(),
        content_type=content_type,
        headers=b"Retry-After: 1\r\n" if results.retries else b"",
    )


@lru_cache(maxsize=256)
def in_json(answer: HttpAnswer) -> HttpAnswer:
    """An answer of the v1 protocol: errors are in JSON, all others as they are."""
    return answer.in_json() if answer.status >= 400 else answer


_ALLOW: Final = b"Allow: POST, OPTIONS\r\n"
_PASSED_ALLOW: Final = b"Allow: GET, HEAD, POST, OPTIONS\r\n"
_READ_ALLOW: Final = b"Allow: GET, HEAD, OPTIONS\r\n"

ACCEPTED: Final = HttpAnswer(200, b'{"status":"Ok"}', content_type=b"application/json")
ACCEPTED_SILENTLY: Final = HttpAnswer(204)
RESULTS_PENDING: Final = HttpAnswer(200, b'{"results":{}}', content_type=_JSON)
"""The fallback for the results of a request that isn't acknowledged yet."""
OPTIONS: Final = HttpAnswer(204, headers=_ALLOW)
PASSED_OPTIONS: Final = HttpAnswer(204, headers=_PASSED_ALLOW)
READ_OPTIONS: Final = HttpAnswer(204, headers=_READ_ALLOW)
NOT_FOUND: Final = problem(
    404,
    "This path accepts no events: send them to /batch/ or /capture/, for example.",
    Rejection.NOT_FOUND,
)
METHOD_NOT_ALLOWED: Final = problem(
    405, "Events are taken by POST.", Rejection.METHOD, headers=_ALLOW
)
PASSED_METHOD_NOT_ALLOWED: Final = problem(
    405, "GET, HEAD and POST are passed through.", Rejection.METHOD, headers=_PASSED_ALLOW
)
READ_METHOD_NOT_ALLOWED: Final = problem(
    405, "GET and HEAD are passed through.", Rejection.METHOD, headers=_READ_ALLOW
)
HEADER_TIMEOUT: Final = problem(
    408, "The request's header did not arrive in time.", Rejection.STALLED
)
BODY_TIMEOUT: Final = problem(408, "The request's body did not arrive in time.", Rejection.STALLED)
BODY_TOO_LARGE: Final = problem(
    413, "The body is larger than this listener takes.", Rejection.TOO_LARGE
)
URL_TOO_LONG: Final = problem(414, "The URL is too long.", Rejection.BAD_HTTP)
EXPECTATION_FAILED: Final = problem(417, "Only 100-continue can be expected.", Rejection.BAD_HTTP)
HEADER_TOO_LARGE: Final = problem(431, "The request's header is too large.", Rejection.BAD_HTTP)
LOOP_DETECTED: Final = problem(
    508,
    f"This request is in a loop: it has passed this forwarder before, or {MAX_HOPS} others. Check "
    "upstream.url of the forwarder that "
    "sent it, and where a proxy or load balancer on the way sends it.",
    Rejection.LOOP,
    headers=f"{ERROR_HEADER}: {LOOP}\r\n".encode(),
)
INTERNAL_ERROR: Final = problem(
    500, "Something went wrong here; it was logged.", Rejection.INTERNAL
)
VERSION_NOT_SUPPORTED: Final = problem(
    505, "HTTP/1.1 and HTTP/1.0 are spoken here, HTTP/2 is not.", Rejection.BAD_HTTP
)

HOST_NEEDED: Final = bad_request("A request needs exactly one Host header.")
BAD_TRANSFER_ENCODING: Final = bad_request(
    "Transfer-Encoding can only be chunked, and only in HTTP/1.1."
)

EXPOSED: Final = b"Retry-After"
"""Headers of an answer that a page may read."""
EXPOSED_V1: Final = b"Retry-After, PostHog-Request-Id"
"""The same in the v1 protocol."""

_MAX_AGE: Final = 86400
"""Seconds for which a browser may remember a preflight's answer (browsers cap it themselves)."""
_ORIGIN: Final = re.compile(rb"[!-~]{1,512}")
_HEADER_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, \t-]{1,4096}")
_VARY: Final = b"Vary: Origin\r\n"
_VARY_PREFLIGHT: Final = (
    b"Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n"
)


class Cors:
    """Which pages may send, and the headers that say so. `origins` are exact origins
    (`https://app.example.com`), or `*` for all.

    Every answer to a request with `Origin` carries these headers, errors too: a browser hides the
    status of an answer without them, and the SDK takes a 503 that it could retry for a dead
    network. Credentials are allowed because `sendBeacon` always sends with them; nothing here is
    decided by a cookie.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._all = "*" in origins
        self._origins = frozenset([origin.rstrip("/").lower().encode() for origin in origins])

    def allows(self, origin: bytes) -> bool:
        """Whether pages of `origin` may send here. An origin that can't be echoed
        safely may not.
        """
        return (self._all or origin.lower() in self._origins) and _ORIGIN.fullmatch(
            origin
        ) is not None

    def headers(self, origin: bytes, exposed: bytes = EXPOSED) -> bytes:
        """Header lines for an ordinary answer; `exposed`: which of its headers a page may read."""
        if not self.allows(origin):
            return _VARY
        return self._allow(origin) + b"Access-Control-Expose-Headers: %b\r\n" % exposed + _VARY

    def preflight(
        self, origin: bytes, requested_headers: bytes, methods: bytes = b"POST, OPTIONS"
    ) -> bytes:
        """Header lines for the answer to a preflight: the headers that were asked for
        are allowed.
        """
        if not self.allows(origin):
            return _VARY_PREFLIGHT
        lines = [self._allow(origin), b"Access-Control-Allow-Methods: %b\r\n" % methods]
        if _HEADER_NAMES.fullmatch(requested_headers):
            lines.append(b"Access-Control-Allow-Headers: %b\r\n" % requested_headers)
        lines += [b"Access-Control-Max-Age: %d\r\n" % _MAX_AGE, _VARY_PREFLIGHT]
        return b"".join(lines)

    @staticmethod
    def _allow(origin: bytes) -> bytes:
        return (
            b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Allow-Credentials: true\r\n"
            % origin
        )
