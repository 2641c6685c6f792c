"""The pieces of which operations are made: parameters, bodies, answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from forwarder.sandbox.openapi.schemas import Schema

Operation: TypeAlias = dict[str, Any]
Paths: TypeAlias = dict[str, dict[str, Operation]]
JSON: Final = "application/json"
PLAIN: Final = "text/plain"
TEXT: Final[Schema] = {"type": "string"}
OBJECT: Final[Schema] = {"type": "object"}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
REFUSALS: Final = {
    "400": "The body can't be read, or is not of a known form",
    "401": "No key of a project",
    "413": "The body is not smaller than the limit",
}
"""How the endpoints of the service refuse a request, in a line of text."""


def answer(description: str, schema: Schema | None = None, content_type: str = JSON) -> dict[str, Any]:
    """An answer; without a schema it has no body."""
    return {"description": description, **({} if schema is None else {"content": {content_type: {"schema": schema}}})}


def in_path(path: str, schemas: Mapping[str, Schema] | None = None) -> list[dict[str, Any]]:
    """The parameters in a path: text, unless `schemas` says otherwise."""
    known = schemas or {}
    return [{"name": name, "in": "path", "required": True, "schema": known.get(name, TEXT)} for name in re.findall(r"\{(\w+)\}", path)]


def in_query(schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """Parameters of the query; all of them may be left out."""
    return [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]


def operation(
    name: str,
    tag: str,
    summary: str,
    responses: Mapping[str, dict[str, Any]],
    parameters: Sequence[dict[str, Any]] = (),
    *,
    content: Mapping[str, Schema] | None = None,
    body_required: bool = True,
    **more: Any,
) -> Operation:
    """An operation. `content` has the schema of each content type that its body may have."""
    described: Operation = {"operationId": name, "tags": [tag], "summary": summary, **more}
    if parameters:
        described["parameters"] = list(parameters)
    if content:
        bodies = {content_type: {"schema": schema} for content_type, schema in content.items()}
        described["requestBody"] = {"required": body_required, "content": bodies}
    return {**described, "responses": dict(sorted(responses.items()))}


def refused() -> dict[str, dict[str, Any]]:
    """The answers of the service's endpoints to what they don't take."""
    return {status: answer(why, TEXT, PLAIN) for status, why in REFUSALS.items()}


def named(method: str, path: str) -> str:
    """The name of an operation that no table names."""
    return "_".join((method, *re.findall(r"\w+", re.sub(r":[^}]*\}", "}", path))))
