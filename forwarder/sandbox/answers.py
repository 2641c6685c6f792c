"""What the ingestion endpoints say, and how a project key may be shown.

Success is `{"status":"Ok"}` and failure is plain text in both modes: the interface document shows neither ("Gaps in the ingestion
endpoints"), so the real service's own form is used (wire facts: "Where contract and service disagree", "How the service decodes a body").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from forwarder.contract.errors import ErrorBody
from forwarder.core.errors import ForwarderError
from forwarder.core.secrets import mask_key
from forwarder.sandbox.management.call import ManagementError


class Refusal(ForwarderError):
    """The whole request is refused with `status`; nothing of it is ingested."""

    code = "refused"

    def __init__(self, status: int, message: str, *, api_key: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.api_key = api_key


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, before it is sent; `error` is what went wrong, for the request's record."""

    status: int
    body: str
    content_type: str = "application/json"
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        """The answer as aiohttp sends it."""
        if self.status in (204, 304):
            return web.Response(status=self.status, headers=self.headers)
        if not self.body:
            return web.Response(status=self.status, headers=self.headers)
        return web.Response(status=self.status, text=self.body, content_type=self.content_type, headers=self.headers)


TAKEN: Final = Answer(200, '{"status":"Ok"}')
BEACON: Final = Answer(204, "")


def refused(refusal: Refusal) -> Answer:
    """The answer to a request that failed validation."""
    return Answer(refusal.status, refusal.message, "text/plain", refusal.message)


def management_error(error: ManagementError) -> Answer:
    """An error as the management interface says it (wire facts: "Management API, where the contract says not shown")."""
    body = ErrorBody(type=error.kind, code=error.code, detail=error.detail, attr=error.attr)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return Answer(error.status, json.dumps(body), error=error.detail, headers=headers)


def masked(api_key: str | None) -> str | None:
    """A project key as it may be shown: its prefix and its last four characters; a short one not at all."""
    return None if api_key is None else mask_key(api_key)
