"""What all endpoints share: reading a request body up to a limit, the response before it is sent,
and errors in both of the service's forms.

An ingestion endpoint answers success with `{"status":"Ok"}` and failure with plain text, in both
modes: the interface document shows neither ("Gaps in the ingestion endpoints"), so the real
service's form is used (wire facts: "Where contract and service disagree", "How the service decodes
a body"). A management endpoint answers errors as JSON (wire facts: "Management API, where the
contract says not shown").
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from aiohttp import ClientPayloadError, web

from forwarder.contract.resources import ErrorBody, ErrorType
from forwarder.core.errors import ForwarderError
from forwarder.core.secrets import mask_key

LINGER: Final = 5.0
"""Seconds for which the rest of a rejected body is read and discarded."""


class RequestRejected(ForwarderError):
    """The whole request is rejected with `status`; none of it is ingested."""

    code = "refused"

    def __init__(self, status: int, message: str, *, api_key: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.api_key = api_key


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """One HTTP response, before it is sent; `error` is the reason for the request's record."""

    status: int
    body: str
    content_type: str = "application/json"
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        """The response as aiohttp sends it."""
        if self.status in (204, 304):
            return web.Response(status=self.status, headers=self.headers)
        if not self.body:
            return web.Response(status=self.status, headers=self.headers)
        return web.Response(
            status=self.status, text=self.body, content_type=self.content_type, headers=self.headers
        )


ACCEPTED: Final = ServiceResponse(200, '{"status":"Ok"}')


ACCEPTED_BEACON: Final = ServiceResponse(204, "")


def rejection_response(rejection: RequestRejected) -> ServiceResponse:
    """The response to a request that failed validation."""
    return ServiceResponse(rejection.status, rejection.message, "text/plain", rejection.message)


def management_error_response(error: ManagementError) -> ServiceResponse:
    """An error in the form of the management API (wire facts: "Management API, where the contract
    says not shown").
    """
    body = ErrorBody(type=error.kind, code=error.code, detail=error.detail, attr=error.attr)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return ServiceResponse(error.status, json.dumps(body), error=error.detail, headers=headers)


def masked_key(api_key: str | None) -> str | None:
    """A project key as it may be shown: its prefix and its last four characters; a short one not
    at all.
    """
    return None if api_key is None else mask_key(api_key)


class ManagementError(Exception):
    """An error response: its status and its body."""

    def __init__(
        self, status: int, kind: ErrorType, code: str, detail: str, attr: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.code = code
        self.detail = detail
        self.attr = attr


def not_authenticated() -> ManagementError:
    """The request has no key."""
    return ManagementError(
        401,
        ErrorType.AUTHENTICATION,
        "not_authenticated",
        "Authentication credentials were not provided.",
    )


def authentication_failed() -> ManagementError:
    """The key is unknown."""
    return ManagementError(
        401,
        ErrorType.AUTHENTICATION,
        "authentication_failed",
        "Incorrect authentication credentials.",
    )


def not_found() -> ManagementError:
    """The resource does not exist, or not for this caller."""
    return ManagementError(404, ErrorType.INVALID_REQUEST, "not_found", "Not found.")


def forbidden(detail: str) -> ManagementError:
    """The caller lacks permission."""
    return ManagementError(403, ErrorType.AUTHENTICATION, "permission_denied", detail)


def invalid(attr: str | None, detail: str, code: str = "invalid_input") -> ManagementError:
    """A field of the body is invalid, by itself or in the current state."""
    return ManagementError(400, ErrorType.VALIDATION, code, detail, attr)


async def read_body(request: web.Request, limit: int) -> bytes:
    """The body as it is on the wire. Raises `RequestRejected`: 413 at `limit`, 400 if the client
    disconnects before its end.

    Cancellation ends the reading.
    """
    too_large = RequestRejected(413, f"the body is not smaller than {limit} bytes")
    if (request.content_length or 0) >= limit:
        raise too_large
    try:
        return await _joined(request, limit, too_large)
    except (ConnectionError, ClientPayloadError):
        raise RequestRejected(400, "the body was cut off") from None


async def answer_early(request: web.Request, response: web.Response) -> web.Response:
    """Respond before the end of the body, and discard the rest: closing the connection too early
    would lose the response.

    Cancellation ends the reading; the response has been sent.
    """
    # the client can have disconnected
    with suppress(TimeoutError, ConnectionError, ClientPayloadError):
        await response.prepare(request)
        await response.write_eof()
        async with asyncio.timeout(LINGER):
            while await request.content.readany():
                continue
    return response


async def _joined(request: web.Request, limit: int, too_large: RequestRejected) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size >= limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)
