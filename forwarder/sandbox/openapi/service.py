"""The service's own endpoints: the three of the contract from its table, then those that SDKs use
beside them, and the two protocols whose key is a header.

An endpoint accepts more encodings than a schema can describe: JSON is described as the contract
has it, beside the content types in which SDKs send it encoded (docs/reference/http.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from forwarder.contract.ingestion import (
    BATCH,
    CAPTURE,
    DECIDE,
    INGESTION,
    AcceptedEvents,
    IngestionEndpoint,
)
from forwarder.contract.resources import ErrorBody
from forwarder.sandbox.flags.forms import FLAGS
from forwarder.sandbox.flags.remote_config import LIST_PATHS, SCRIPT
from forwarder.sandbox.flags.secret_endpoints import DEFINITIONS, LEGACY_DEFINITIONS
from forwarder.sandbox.ingest.capture import AI_PATH
from forwarder.sandbox.ingest.v1 import REQUIRED, V1_PATH
from forwarder.sandbox.openapi.schemas import (
    JSON,
    OBJECT,
    PLAIN,
    REJECTIONS,
    TEXT,
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
    operation_name,
    rejections,
)
from forwarder.sandbox.web.service import POST_HANDLERS, SCRIPT_HANDLERS, get_handlers

DEFINITIONS_KEY: Final = "secretKey"
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_VERSION: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 9999, "default": 1}
_COMPRESSION: Final[Schema] = {"enum": ["gzip", "gzip-js", "lz64", "lz-string", "base64", "b64"]}
_SENT: Final[Mapping[str, Schema]] = {
    "compression": _COMPRESSION,
    "beacon": {"enum": ["1"]},
    "_": {
        "type": "integer",
        "minimum": 0,
        "description": "the sender's clock, in milliseconds since 1970",
    },
}
_VALUES: Final[Schema] = {
    "anyOf": [
        {"type": "array", "items": TEXT},
        {"type": "object", "additionalProperties": {"type": ["boolean", "string"]}},
    ]
}
_EVALUATED: Final[Mapping[str, Schema]] = {
    "featureFlags": _VALUES,
    "featureFlagPayloads": OBJECT,
    "flags": OBJECT,
    "quotaLimited": {"type": "array", "items": {"enum": ["feature_flags"]}},
}
"""What there may be in an evaluation, by its version."""
_DEFINITIONS: Final = fields(
    {
        "flags": {"type": "array"},
        "group_type_mapping": OBJECT,
        "cohorts": OBJECT,
        "minimal_flag_called_events": _BOOLEAN,
        "property_matching_version": {"type": "integer"},
    }
)
_CONTRACT: Final = {endpoint.path.rstrip("/"): endpoint for endpoint in INGESTION}
_Parameters = list[dict[str, Any]]
PROJECT_KEY: Final = "projectKey"
SECURITY: Final = {
    PROJECT_KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": "The key of a project, where it is no part of the body.",
    },
    DEFINITIONS_KEY: {
        "type": "http",
        "scheme": "bearer",
        "description": (
            "A personal key with the scope feature_flag:read, or any that is no project key where "
            "the seed has no personal keys."
        ),
    },
}
_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
_HEADERS: Final[Mapping[str, Schema]] = {
    "posthog-attempt": {"type": "integer", "minimum": 1},
    "posthog-request-id": UUID,
    "posthog-request-timestamp": _MOMENT,
}
_OF_HTTP: Final = frozenset({"content-type", "user-agent"})
"""Headers that every client sends as it is."""
_EVENT: Final = fields(
    {"event": TEXT, "uuid": UUID, "distinct_id": TEXT, "timestamp": _MOMENT}, properties=OBJECT
)
_BODY: Final = fields(
    {"created_at": _MOMENT, "batch": {"type": "array", "minItems": 1, "items": _EVENT}},
    historical_migration={"type": "boolean"},
)
_RESULT: Final = fields({"result": {"enum": ["ok", "warning", "drop", "retry"]}}, details=TEXT)
_RESULTS: Final[Schema] = {"type": "object", "additionalProperties": _RESULT, "propertyNames": UUID}
_HEADER: Final[Schema] = {"type": ["string", "null"]}
_PART: Final = fields(
    {
        "name": TEXT,
        "length": {"type": "integer"},
        "content-type": _HEADER,
        "content-encoding": _HEADER,
    }
)


def service_paths(schemas: Schemas, *, strict: bool) -> Paths:
    """The paths of the service, by the contract, or (`strict`) of the real one."""
    paths: Paths = {}
    for path in POST_HANDLERS:
        paths.setdefault(_written(path), {})["post"] = _post_operation(path, schemas, strict=strict)
    for path in (*get_handlers(strict=strict), *SCRIPT_HANDLERS):
        paths.setdefault(_written(path), {})["get"] = _get_operation(path, schemas, strict=strict)
    return paths


def _written(path: str) -> str:
    """A path as the contract writes it, if it does, and without the patterns of its variables."""
    return _CONTRACT[path].path if path in _CONTRACT else re.sub(r"\{(\w+):[^}]*\}", r"{\1}", path)


def _post_operation(path: str, schemas: Schemas, *, strict: bool) -> Operation:
    if path == V1_PATH:
        return _v1_operation(schemas)
    if path == AI_PATH:
        return _ai_operation(schemas)
    if path in (DECIDE.path, FLAGS):
        return _evaluation(path, schemas, strict=strict)
    one = _CONTRACT.get(path)
    accepted = (
        schemas.body(one.request)
        if one
        else {"anyOf": [schemas.body(CAPTURE.request), schemas.body(BATCH.request)]}
    )
    responses = {
        "200": answer("Accepted", schemas.answer(AcceptedEvents)),
        "204": answer("Accepted, from a beacon"),
    }
    summary = one.summary if one else "Accept events, as SDKs send them here."
    return operation(
        operation_name("post", path),
        "ingestion",
        summary,
        {**responses, **rejections()},
        in_query(_SENT),
        content=_encoded(accepted),
    )


def _encoded(accepted: Schema) -> dict[str, Schema]:
    form = fields({"data": TEXT}, compression=_COMPRESSION)
    binary = {"type": "string", "format": "binary"}
    return {
        JSON: accepted,
        PLAIN: TEXT,
        "application/x-www-form-urlencoded": form,
        "application/octet-stream": binary,
    }


def _evaluation(path: str, schemas: Schemas, *, strict: bool) -> Operation:
    one = _CONTRACT.get(path)
    headers = [
        {"name": name, "in": "header", "schema": TEXT, "description": what}
        for name, what in (one.headers if one else {}).items()
    ]
    return operation(
        operation_name("post", path),
        "flags",
        one.summary if one else "Evaluate the feature flags of a user, in the newer form.",
        {**rejections(), **_flag_answers("The flags", path, schemas, strict=strict)},
        [
            *in_query(
                {
                    "v": _version(one),
                    "config": _BOOLEAN,
                    "only_evaluate_survey_feature_flags": _BOOLEAN,
                    "compression": _COMPRESSION,
                }
            ),
            *headers,
        ],
        content=_encoded(schemas.body(DECIDE.request)),
    )


def _version(endpoint: IngestionEndpoint[Any, Any] | None) -> Schema:
    return (
        _VERSION
        if endpoint is None
        else {**_VERSION, "description": f"the contract's is {endpoint.query['v']}"}
    )


def _flag_answers(what: str, path: str, schemas: Schemas, *, strict: bool) -> dict[str, Any]:
    """The answers to a request for flags; strictly a key is rejected in JSON."""
    rejected = answer(REJECTIONS["401"], schemas.answer(ErrorBody))
    return {
        "200": answer(what, _flags(path, schemas, strict=strict)),
        **({"401": rejected} if strict else {}),
    }


def _flags(path: str, schemas: Schemas, *, strict: bool) -> Schema:
    """Each version has a form of its own; the contract's is the first here."""
    of_request: Mapping[str, Schema] = {"requestId": UUID, "evaluatedAt": {"type": "integer"}}
    if path == FLAGS:
        return fields({"errorsWhileComputingFlags": _BOOLEAN, **of_request}, **_EVALUATED)
    if strict:
        return fields(of_request, errorsWhileComputingFlags=_BOOLEAN, **_EVALUATED)
    described = schemas.answer(DECIDE.response)
    always = {
        name: schema
        for name, schema in schemas.named["DecideResponse"]["properties"].items()
        if name not in _EVALUATED
    }
    return {"anyOf": [described, fields(always, **_EVALUATED)]}


def _get_operation(path: str, schemas: Schemas, *, strict: bool) -> Operation:
    error = schemas.answer(ErrorBody)
    missing = {"404": answer("No project has this key", error)}
    not_allowed = {
        "400": answer("No project is named", error),
        "401": answer("No secret key, or one that isn't good for the project", error),
        "403": answer("A personal key without the scope", error),
    }
    token = in_query({"token": TEXT})
    stages = in_query({"stage": {"enum": ["concept", "alpha", "beta"]}})
    if path in (DECIDE.path, FLAGS):
        get_handlers = in_query({"v": _VERSION, **dict.fromkeys(("token", "api_key"), TEXT)})
        return _get(
            path,
            "What a client has to know before it has a user.",
            get_handlers,
            _flag_answers("No flags", path, schemas, strict=strict),
        )
    if path in DEFINITIONS:
        answers = {"200": answer("The definitions", _DEFINITIONS), "304": answer("As they were")}
        return _get(
            path,
            "The definitions that SDKs evaluate by themselves.",
            token,
            {**answers, **not_allowed},
            secret=True,
        )
    if path == LEGACY_DEFINITIONS:
        answers = {"200": answer("A list", OBJECT)}
        return _get(
            path,
            "The definitions, as the oldest SDKs ask for them.",
            token,
            {**answers, **not_allowed},
            secret=True,
        )
    if path.endswith("/remote_config"):
        answers = {
            "200": answer("The payload", {}),
            "404": answer("There is no such flag, or it has no payload", error),
        }
        return _get(
            path,
            "The payload of one flag, for all persons.",
            in_path(path) + token,
            {**answers, **not_allowed},
            secret=True,
        )
    if path in LIST_PATHS:
        listed = token + stages if path.endswith("features") else token
        return _get(
            path,
            "A list that a browser's SDK asks for.",
            listed,
            {"200": answer("The list", OBJECT), **missing},
        )
    if path in SCRIPT_HANDLERS:
        return _script(path, missing)
    return _get(
        path,
        "The settings of a project.",
        in_path(path),
        {"200": answer("The settings", OBJECT), **missing},
    )


def _script(path: str, missing: Mapping[str, dict[str, Any]]) -> Operation:
    if path.endswith("/config.js"):
        answers = {"200": answer("The script", TEXT, SCRIPT), **missing}
        return _get(path, "The settings of a project, as a script.", in_path(path), answers)
    return _get(
        path,
        "A bundle of the SDK.",
        in_path(_written(path)),
        {"404": answer("The sandbox has no bundles", TEXT, PLAIN)},
    )


def _get(
    path: str,
    summary: str,
    parameters: _Parameters,
    answers: Mapping[str, dict[str, Any]],
    *,
    secret: bool = False,
) -> Operation:
    """A GET operation. Its body is optional, and rejected if it is too large."""
    more: dict[str, Any] = {"security": [{DEFINITIONS_KEY: []}]} if secret else {}
    return operation(
        operation_name("get", path), "sdk", summary, {**rejections(), **answers}, parameters, **more
    )


def _v1_operation(schemas: Schemas) -> Operation:
    """The operation of events with a result for each."""
    error = schemas.add("V1Error", fields({"error": TEXT, "error_description": TEXT}))
    refusals = {**REJECTIONS, "415": "The content type or encoding is unknown"}
    headers = [name for name in REQUIRED if name not in _OF_HTTP]
    return operation(
        operation_name("post", V1_PATH),
        "ingestion",
        "Accept events by the newer protocol, with a result for each.",
        {
            "200": answer("What became of each event", fields({"results": _RESULTS})),
            **{status: answer(why, error) for status, why in refusals.items()},
        },
        [
            {"name": name, "in": "header", "required": True, "schema": _HEADERS.get(name, TEXT)}
            for name in headers
        ],
        content={JSON: _BODY},
        security=[{PROJECT_KEY: []}],
    )


def _ai_operation(schemas: Schemas) -> Operation:
    """The operation of an event with large values as parts of their own."""
    event = {
        name: schema
        for name, schema in schemas.described(CAPTURE.request)["properties"].items()
        if name != "api_key"
    }
    form = fields(
        {"event": {"type": "object", "required": ["event", "distinct_id"], "properties": event}},
        **{"event.properties": OBJECT},
    )
    return operation(
        operation_name("post", AI_PATH),
        "ingestion",
        "Accept one event of a language model, with large values as parts of their own.",
        {
            "200": answer(
                "The accepted parts", fields({"accepted_parts": {"type": "array", "items": _PART}})
            ),
            **rejections(),
        },
        content={"multipart/form-data": form},
        security=[{PROJECT_KEY: []}],
    )
