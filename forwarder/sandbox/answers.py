"""What the ingestion endpoints say, and how a project key may be shown.

Success is `{"status":"Ok"}` and failure is plain text in both modes: the interface document shows neither ("Gaps in the ingestion
endpoints"), so the real service's own form is used (wire facts: "Where contract and service disagree", "How the service decodes a body").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from forwarder.core.errors import ForwarderError


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

    def response(self) -> web.Response:
        """The answer as aiohttp sends it."""
        if self.status == 204:
            return web.Response(status=204)
        return web.Response(status=self.status, text=self.body, content_type=self.content_type)


TAKEN: Final = Answer(200, '{"status":"Ok"}')
BEACON: Final = Answer(204, "")


def refused(refusal: Refusal) -> Answer:
    """The answer to a request that failed validation."""
    return Answer(refusal.status, refusal.message, "text/plain", refusal.message)


def decided(version: int, *, strict: bool) -> Answer:
    """The answer of `/decide` where no flag exists (interface document: "POST /decide?v=3").

    Versions 1 and 2 differ in `featureFlags` (a list of keys, then a mapping) and have no payloads; later ones are answered as 3.
    """
    answer: dict[str, Any] = {
        "config": {"enable_collect_everything": True},
        "toolbarParams": {},
        "errorsWhileComputingFlags": False,
        "isAuthenticated": False,
        "supportedCompression": ["gzip", "gzip-js"] if strict else ["gzip", "lz64"],
        "featureFlags": [] if version == 1 else {},
    }
    if version >= 3:
        answer["featureFlagPayloads"] = {}
    return Answer(200, json.dumps(answer))


def masked(api_key: str | None) -> str | None:
    """A project key as it may be shown: its beginning, if it is `phc_`, and its last four characters; a short one not at all."""
    if api_key is None:
        return None
    prefix = "phc_" if api_key.startswith("phc_") else ""
    return f"{prefix}…{api_key[-4:]}" if len(api_key) >= len(prefix) + 8 else f"{prefix}…"
