"""The endpoints that set flags and cohorts, and show who gets what."""

from __future__ import annotations

from typing import Any, Final

from forwarder.contract.resources import ErrorBody
from forwarder.sandbox.openapi.schemas import (
    JSON,
    OBJECT,
    PLAIN,
    TEXT,
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
from forwarder.sandbox.web.flag_endpoints import FlagDecision, FlagRow

_KEY: Final[Schema] = {"api_key": TEXT}
_CHANGE: Final[Schema] = {
    "type": "object",
    "properties": {
        "active": {"type": "boolean"},
        "rollout_percentage": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
        "condition": {
            "type": ["integer", "null"],
            "minimum": 0,
            "description": "the index of the only condition that changes",
        },
    },
    "additionalProperties": False,
}
_FLAG: Final = fields(
    {},
    active={"type": "boolean"},
    name=TEXT,
    filters={
        "type": "object",
        "properties": {
            "groups": {"type": "array", "items": OBJECT},
            "multivariate": {"type": ["object", "null"]},
        },
    },
    ensure_experience_continuity={"type": "boolean"},
)
_COHORT: Final = fields(
    {}, name=TEXT, filters=OBJECT, distinct_ids={"type": "array", "items": TEXT}
)
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NAMES: Final[Schema] = {"type": "array", "items": {"type": "string", "minLength": 1}}


def flag_paths(schemas: Schemas) -> Paths:
    """The paths of definitions, but for their listings."""
    group_types = operation(
        "put_group_types",
        "sandbox",
        "Name the types of a project's groups, from index 0 on.",
        {"200": answer("The names", _NAMES), **_errors(schemas, 400, 413), **_ELSEWHERE},
        in_query(_KEY),
        content={JSON: _NAMES},
    )
    return {
        "/sandbox/flags/{key}": _definition("flag", "/sandbox/flags/{key}", _FLAG, schemas),
        "/sandbox/cohorts/{id}": _definition("cohort", "/sandbox/cohorts/{id}", _COHORT, schemas),
        "/sandbox/group-types": {"put": group_types},
        "/sandbox/evaluations": {"get": _evaluations(schemas)},
    }


def flag_change(schemas: Schemas) -> Operation:
    """The operation that changes a flag in a few ways."""
    request = {
        "200": answer("The flag's row", schemas.answer(FlagRow)),
        **_errors(schemas, 400, 404, 413),
        **_ELSEWHERE,
    }
    summary = "Turn a flag on or off, or change its rollout."
    return operation(
        "change_flag",
        "sandbox",
        summary,
        request,
        in_query({"id": {"type": "integer", "minimum": 1}}),
        content={JSON: _CHANGE},
    )


_ELSEWHERE: Final = {"403": answer("A page of another site asks", TEXT, PLAIN)}
_WHY: Final = {
    400: "What is invalid, and where (`attr`)",
    404: "There is none",
    413: "The body is too large",
}


def _errors(schemas: Schemas, *statuses: int) -> dict[str, Any]:
    return {str(status): answer(_WHY[status], schemas.answer(ErrorBody)) for status in statuses}


def _definition(what: str, path: str, schema: Schema, schemas: Schemas) -> dict[str, Operation]:
    parameters = [*in_path(path, {"id": {"type": "integer", "minimum": 1}}), *in_query(_KEY)]
    answers = {"200": answer(f"The {what}, in the service's form", OBJECT)}
    absent = _errors(schemas, 400, 404)
    return {
        "get": operation(
            f"get_{what}",
            "sandbox",
            f"The definition of a {what}.",
            {**answers, **absent},
            parameters,
        ),
        "put": operation(
            f"put_{what}",
            "sandbox",
            f"Add or replace a {what}.",
            {**answers, **_errors(schemas, 400, 413), **_ELSEWHERE},
            parameters,
            content={JSON: schema},
        ),
        "delete": operation(
            f"delete_{what}",
            "sandbox",
            f"Delete a {what}.",
            {"204": answer("Deleted"), **absent, **_ELSEWHERE},
            parameters,
        ),
    }


def _evaluations(schemas: Schemas) -> Operation:
    results: Schema = {"type": "array", "items": schemas.answer(FlagDecision)}
    answers = {
        "200": answer(
            "Every flag of the project", fields({"count": {"type": "integer"}, "results": results})
        )
    }
    texts = ("api_key", "person", "distinct_id", "groups", "person_properties", "group_properties")
    parameters = in_query(
        {
            "flag": {"type": "integer", "minimum": 1},
            **dict.fromkeys(texts, TEXT),
            **dict.fromkeys(("limit", "offset"), _COUNT),
        }
    )
    return operation(
        "show_evaluations",
        "sandbox",
        "Who gets what, and why.",
        {**answers, **_errors(schemas, 400, 404)},
        parameters,
    )
