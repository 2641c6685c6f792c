"""The management endpoints, of the contract's table: a row is an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    ENDPOINTS,
    LOGS_OF_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    PAUSE_ORGANIZATION_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UNPAUSE_BATCH_EXPORT,
    UNPAUSE_ORGANIZATION_BATCH_EXPORT,
    VERIFY_DOMAIN,
    Endpoint,
    IdKind,
    Method,
)
from forwarder.contract.payloads import MOST_INVITES
from forwarder.contract.resources import (
    LARGEST_PAGE,
    LEVELS,
    PAGE_SIZE,
    Domain,
    ErrorBody,
    PageEnvelope,
)
from forwarder.sandbox.exports.runs import LogLine
from forwarder.sandbox.openapi.schemas import (
    JSON,
    UUID,
    Operation,
    Paths,
    Schema,
    Schemas,
    answer,
    fields,
    in_path,
    in_query,
    operation,
)

KEY: Final = "personalKey"
SECURITY: Final = {
    KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "A personal API key, which begins with phx_.",
    }
}
_IDS: Final[Mapping[IdKind, Schema]] = {
    IdKind.UUID: UUID,
    IdKind.INTEGER: {"type": "integer", "minimum": 1},
}
_PAGE: Final[Mapping[str, Schema]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE_SIZE},
    "offset": {"type": "integer", "minimum": 0, "default": 0},
}
_ERRORS: Final = {
    "401": "No personal key, or none that is known",
    "403": "The key lacks the scope, or the membership the level",
    "404": "There is no such thing, or not for this caller",
}
_ERRORS_OF_WRITING: Final = {"400": "A field, or what it meets, doesn't allow it"}
_ERRORS_OF_BODIES: Final = {
    "413": "The body is too large",
    "415": "The body is not said to be JSON",
}
_PAUSED: Final = fields({"paused": {"type": "boolean"}})
_BACKFILLED: Final = fields({"backfill_id": UUID})


def management_paths(schemas: Schemas, *, strict: bool) -> Paths:
    """The paths of the management API, with the bodies that the service has, or (`strict`) those
    of the real one.
    """
    error = schemas.answer(ErrorBody)
    paths: Paths = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, schemas, error, strict=strict
        )
    return paths


def _operation(
    endpoint: Endpoint[Any, Any], schemas: Schemas, error: Schema, *, strict: bool
) -> Operation:
    kinds = {parameter.name: _IDS[parameter.kind] for parameter in endpoint.parameters}
    responses = {
        str(endpoint.status): answer(endpoint.summary, _answered(endpoint, schemas, strict=strict))
    }
    responses |= {status: answer(meaning, error) for status, meaning in _errors(endpoint).items()}
    parameters = in_path(endpoint.path, kinds) + (in_query(_PAGE) if endpoint.paginated else [])
    return operation(
        endpoint.name.replace(" ", "_").replace("-", "_"),
        endpoint.resource,
        endpoint.summary,
        responses,
        parameters,
        content={JSON: _accepted(endpoint, schemas)} if endpoint.takes_body else None,
        body_required=bool(getattr(endpoint.request, "__required_keys__", ())),
        description=(
            f"Scope {endpoint.scope}; membership of level {endpoint.level} "
            f"({LEVELS[endpoint.level]}) or above."
        ),
        security=[{KEY: [str(endpoint.scope)]}],
    )


def _accepted(endpoint: Endpoint[Any, Any], schemas: Schemas) -> Schema:
    one = schemas.body(endpoint.request)
    return (
        {"anyOf": [{"type": "array", "items": one, "maxItems": MOST_INVITES}, one]}
        if endpoint.several
        else one
    )


def _answered(endpoint: Endpoint[Any, Any], schemas: Schemas, *, strict: bool) -> Schema | None:
    if strict and (real := _real_body(endpoint, schemas)):
        return real
    if not endpoint.answers_body:
        return None
    if endpoint.paginated:
        # The endpoint's response is a type that only exists at run time.
        page = PageEnvelope[endpoint.response]  # type: ignore[name-defined]
        return schemas.answer(page, f"{endpoint.response.__name__}Page")
    return schemas.answer(endpoint.response)


def _real_body(endpoint: Endpoint[Any, Any], schemas: Schemas) -> Schema | None:
    """What only the real service answers, where the contract has no body (wire facts: "Where
    contract and service disagree").
    """
    if endpoint is VERIFY_DOMAIN:
        return schemas.answer(Domain)
    if endpoint is LOGS_OF_BATCH_EXPORT:
        return schemas.add(
            "BatchExportLog",
            fields({"results": {"type": "array", "items": schemas.answer(LogLine)}}),
        )
    if endpoint in (BACKFILL_BATCH_EXPORT, RETRY_BATCH_EXPORT_RUN):
        return schemas.add("Backfill", _BACKFILLED)
    pausing = (
        PAUSE_BATCH_EXPORT,
        UNPAUSE_BATCH_EXPORT,
        PAUSE_ORGANIZATION_BATCH_EXPORT,
        UNPAUSE_ORGANIZATION_BATCH_EXPORT,
    )
    return schemas.add("Paused", _PAUSED) if endpoint in pausing else None


def _errors(endpoint: Endpoint[Any, Any]) -> dict[str, str]:
    writing = {} if endpoint.method is Method.GET else _ERRORS_OF_WRITING
    return {**_ERRORS, **writing, **(_ERRORS_OF_BODIES if endpoint.takes_body else {})}
