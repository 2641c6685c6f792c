"""What the listener says, as bytes that are built once (the table "Answers of the ingestion listener")."""

from __future__ import annotations

import math
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
"""Said to those who asked for it: an HTTP/1.0 sender hangs up otherwise."""


class Rejection(StrEnum):
    """Why a request was rejected (closed set; documented in docs/http.md)."""

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
    """Its head, or how its end is told, is not as it has to be."""
    LOOP = "loop"
    STALLED = "stalled"
    """It did not arrive in time."""
    BUFFER_FULL = "buffer_full"
    LANE_FULL = "lane_full"
    TOO_MANY_LANES = "too_many_lanes"
    DEAD_LETTERS_FULL = "dead_letters_full"
    DISK_REFUSES = "disk_refuses"
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
    LaneFull.code: Rejection.LANE_FULL,
    TooManyLanes.code: Rejection.TOO_MANY_LANES,
    DeadLettersFull.code: Rejection.DEAD_LETTERS_FULL,
    NotAcknowledged.code: Rejection.NOT_ACKNOWLEDGED,
    Draining.code: Rejection.DRAINING,
}
"""By an error's code; what isn't here is `busy`."""


class Answer:
    """A status with its body. `plain` is the whole answer on a connection that stays open, to a request without `Origin`."""

    __slots__ = ("_body", "_headers", "_start", "plain", "reason", "status")

    def __init__(
        self, status: int, body: bytes = b"", *, content_type: bytes = _TEXT, headers: bytes = b"", reason: Rejection | None = None
    ) -> None:
        described = b"" if status == 204 else b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body))
        self.status = status
        self.reason = reason
        """Why the request is rejected; None if it isn't."""
        self._body = body
        self._headers = headers
        self._start = b"HTTP/1.1 %d %b\r\n%b%b" % (status, HTTPStatus(status).phrase.encode(), described, headers)
        self.plain = self.render()

    def render(self, headers: bytes = b"", *, without_body: bool = False) -> bytes:
        """The whole answer with further header lines; `without_body` for HEAD."""
        return b"%b%b\r\n%b" % (self._start, headers, b"" if without_body else self._body)

    @property
    def text(self) -> str:
        """What it says."""
        return self._body.decode("utf-8", "replace").strip()

    def in_json(self) -> Answer:
        """The same error as the SDKs of the v1 protocol read it."""
        body = {"error": _ERRORS.get(self.status, HTTPStatus(self.status).name.lower()), "error_description": self.text}
        return Answer(self.status, msgspec.json.encode(body), content_type=_JSON, headers=self._headers, reason=self.reason)


_ERRORS: Final = {400: "invalid_request", 401: "invalid_api_token", 408: "request_timeout", 413: "payload_too_large"}
"""What errors are called in the v1 protocol, where it isn't what HTTP calls them."""


def problem(status: int, text: str, reason: Rejection, *, headers: bytes = b"") -> Answer:
    """An error in plain text."""
    return Answer(status, text[:_MAX_TEXT].encode("utf-8", "replace") + b"\n", headers=headers, reason=reason)


def unavailable(text: str, retry_after: float, reason: Rejection = Rejection.BUSY) -> Answer:
    """503 with Retry-After in whole seconds, at least 1: senders drop on 429, and some ignore it (wire facts: What SDKs send)."""
    if not math.isfinite(retry_after):
        retry_after = _MAX_RETRY_AFTER
    return _unavailable(text, min(max(1, math.ceil(retry_after)), _MAX_RETRY_AFTER), reason)


@lru_cache(maxsize=256)
def _unavailable(text: str, seconds: int, reason: Rejection) -> Answer:
    return problem(503, text, reason, headers=b"Retry-After: %d\r\n" % seconds)


@lru_cache(maxsize=256)
def bad_request(text: str, reason: Rejection = Rejection.BAD_HTTP) -> Answer:
    """400."""
    return problem(400, text, reason)


_STATUSES: Final[tuple[tuple[type[ForwarderError], int], ...]] = (
    (InvalidRequest, 400),
    (InvalidToken, 401),
    (RequestTooLarge, 413),
    (UnsupportedMedia, 415),
)


def of_error(error: Exception) -> Answer | None:
    """The answer to what the intake raised; None if it may not raise that."""
    if isinstance(error, Backpressure):
        return unavailable(error.message, error.retry_after, _OF_CODES.get(error.code, Rejection.BUSY))
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            reason = _OF_CODES[error.code]
            return bad_request(error.message, reason) if status == 400 else problem(status, error.message, reason)
    return None


def of_results(results: EventResults) -> Answer:
    """200 with what became of each event; with Retry-After if some have to come again."""
    return Answer(200, results.body(), content_type=_JSON, headers=b"Retry-After: 1\r\n" if results.retries else b"")


@lru_cache(maxsize=256)
def in_json(answer: Answer) -> Answer:
    """An answer of the v1 protocol: errors are in JSON, all others as they are."""
    return answer.in_json() if answer.status >= 400 else answer


_ALLOW: Final = b"Allow: POST, OPTIONS\r\n"
_PASSED_ALLOW: Final = b"Allow: GET, HEAD, POST, OPTIONS\r\n"
_READ_ALLOW: Final = b"Allow: GET, HEAD, OPTIONS\r\n"

TAKEN: Final = Answer(200, b'{"status":"Ok"}', content_type=b"application/json")
TAKEN_SILENTLY: Final = Answer(204)
LATE_RESULTS: Final = Answer(200, b'{"results":{}}', content_type=_JSON)
"""Stands for the results of a request that isn't acknowledged yet."""
OPTIONS: Final = Answer(204, headers=_ALLOW)
PASSED_OPTIONS: Final = Answer(204, headers=_PASSED_ALLOW)
READ_OPTIONS: Final = Answer(204, headers=_READ_ALLOW)
NOT_FOUND: Final = problem(404, "Nothing is taken on this path.", Rejection.NOT_FOUND)
METHOD_NOT_ALLOWED: Final = problem(405, "Events are taken by POST.", Rejection.METHOD, headers=_ALLOW)
PASSED_METHOD_NOT_ALLOWED: Final = problem(405, "GET, HEAD and POST are passed through.", Rejection.METHOD, headers=_PASSED_ALLOW)
READ_METHOD_NOT_ALLOWED: Final = problem(405, "GET and HEAD are passed through.", Rejection.METHOD, headers=_READ_ALLOW)
HEADER_TIMEOUT: Final = problem(408, "The request's header did not arrive in time.", Rejection.STALLED)
BODY_TIMEOUT: Final = problem(408, "The request's body did not arrive in time.", Rejection.STALLED)
BODY_TOO_LARGE: Final = problem(413, "The body is larger than this listener takes.", Rejection.TOO_LARGE)
URL_TOO_LONG: Final = problem(414, "The URL is too long.", Rejection.BAD_HTTP)
EXPECTATION_FAILED: Final = problem(417, "Only 100-continue can be expected.", Rejection.BAD_HTTP)
HEADER_TOO_LARGE: Final = problem(431, "The request's header is too large.", Rejection.BAD_HTTP)
LOOP_DETECTED: Final = problem(
    508,
    f"This request is in a loop: it has passed this forwarder before, or {MAX_HOPS} others. Check upstream.url of the forwarder that "
    "sent it, and where a proxy or load balancer on the way sends it.",
    Rejection.LOOP,
    headers=f"{ERROR_HEADER}: {LOOP}\r\n".encode(),
)
INTERNAL_ERROR: Final = problem(500, "Something went wrong here; it was logged.", Rejection.INTERNAL)
VERSION_NOT_SUPPORTED: Final = problem(505, "HTTP/1.1 and HTTP/1.0 are spoken here, HTTP/2 is not.", Rejection.BAD_HTTP)

HOST_NEEDED: Final = bad_request("A request needs exactly one Host header.")
BAD_TRANSFER_ENCODING: Final = bad_request("Transfer-Encoding can only be chunked, and only in HTTP/1.1.")
