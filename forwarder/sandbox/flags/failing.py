"""What the service answers about flags when it doesn't want to or can't: over a project's quota, at
too high a rate, without the definitions. Faults of the sandbox answer so.

The source is the service's code: `rust/feature-flags/src/api/flag_definitions.rs` of
PostHog/posthog for the order (authorization, rate, quota), `tests/test_rate_limiting.rs` at
00ad20ecc565, and `api/errors.rs`, read in its copy at ghostventuresai/Post_Hog 6e3052c3bcbc.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from forwarder.contract.resources import ErrorBody
from forwarder.sandbox.flags.endpoints import evaluate_over_quota, evaluate_without_user
from forwarder.sandbox.flags.forms import DECIDE, FLAGS
from forwarder.sandbox.flags.secret_endpoints import DEFINITIONS, authorized_project
from forwarder.sandbox.ingest.recording import Exchange, RequestHandler
from forwarder.sandbox.protocol.http import (
    ManagementError,
    ServiceResponse,
    management_error_response,
)

FAILING_PATHS: Final = (FLAGS, DECIDE, *DEFINITIONS)


class FlagFailure(StrEnum):
    """Why the service has no flags for a request."""

    OVER_QUOTA = "over_quota"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"


def _over_quota(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """No flags, with a note, of a user; 402 for definitions."""
    received = exchange.received
    if received.path not in DEFINITIONS:
        get = received.method == "GET"
        return (evaluate_without_user if get else evaluate_over_quota)(exchange)
    try:
        authorized_project(exchange)
    except ManagementError as error:
        return management_error_response(error), received.parameter("token")
    return _error(
        402,
        "quota_limited",
        "payment_required",
        "The project has used up its quota of requests for flags",
    ), received.parameter("token")


def _rate_limited(_exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    return _error(429, "validation_error", "rate_limit_exceeded", "Rate limit exceeded"), None


def _unavailable(_exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    text = "The flags are not available at the moment, try again later.\n"
    return ServiceResponse(503, text, "text/plain", "a fault: unavailable"), None


def _error(status: int, kind: str, code: str, detail: str) -> ServiceResponse:
    body = ErrorBody(type=kind, code=code, detail=detail, attr=None)
    return ServiceResponse(status, json.dumps(body), error=f"a fault: {detail}")


FAILING_HANDLERS: Final[Mapping[FlagFailure, RequestHandler]] = {
    FlagFailure.OVER_QUOTA: _over_quota,
    FlagFailure.RATE_LIMITED: _rate_limited,
    FlagFailure.UNAVAILABLE: _unavailable,
}
