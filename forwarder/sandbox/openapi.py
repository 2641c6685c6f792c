"""`GET /openapi.json`: the sandbox's endpoints for programs (OpenAPI 3.1): the service's own, and those that show what it holds.

What takes parameters or shows records is described as far as a client needs it; bodies of events come in too many shapes and encodings to
be anything but bytes here, docs/sandbox.md has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from pydantic import TypeAdapter

from forwarder.sandbox.groups import StoredGroup
from forwarder.sandbox.ingestion import ASKED, POSTED, SCRIPTS
from forwarder.sandbox.persons import StoredPerson
from forwarder.sandbox.records import StoredEvent, StoredRequest, Summary
from forwarder.sandbox.usage import FlagUse, SurveyUse

_PAGE: Final = ("limit", "offset")
_EVENT_FILTERS: Final = (
    *("event", "distinct_id", "uuid", "api_key", "since", "until", "historical", "request", "arrivals"),
    *("person", "group_type", "group_key", "feature", "survey_id", "q", "order"),
)
LISTINGS: Final[Mapping[str, tuple[type | None, tuple[str, ...]]]] = {
    "/sandbox/events": (StoredEvent, (*_EVENT_FILTERS, *_PAGE)),
    "/sandbox/requests": (StoredRequest, ("path", "status", "api_key", "order", *_PAGE)),
    "/sandbox/conflicts": (None, ("order", *_PAGE)),
    "/sandbox/persons": (StoredPerson, ("api_key", "distinct_id", "person", "order", *_PAGE)),
    "/sandbox/groups": (StoredGroup, ("api_key", "group_type", "group_key", "order", *_PAGE)),
    "/sandbox/surveys": (SurveyUse, ("api_key", *_PAGE)),
    "/sandbox/flag-calls": (FlagUse, ("api_key", *_PAGE)),
}
_TYPES: Final = {
    **dict.fromkeys(("limit", "offset", "request", "status"), "integer"),
    **dict.fromkeys(("historical", "arrivals"), "boolean"),
}
_ANYTHING: Final = {"description": "what docs/sandbox.md says"}


def document() -> dict[str, Any]:
    """The whole description."""
    paths = {_path(path): {"post": _service(path, body=True)} for path in POSTED}
    for path in (*ASKED, *SCRIPTS):
        paths.setdefault(_path(path), {})["get"] = _service(path, body=False)
    paths |= {path: {"get": _listing(record, names)} for path, (record, names) in LISTINGS.items()}
    paths["/sandbox/summary"] = {"get": _operation("The figures of everything that is kept", _schema(Summary))}
    paths["/sandbox/live"] = {"get": _operation("What arrives, as server-sent events", None)}
    paths["/sandbox/rates"] = {"get": _operation("Events, conflicts and refusals by second", {"type": "object"})}
    paths["/sandbox/events"]["delete"] = {"summary": "Forget everything", "responses": {"204": {"description": "forgotten"}}}
    paths["/livez"] = {"get": _operation("That it runs", None)}
    info = {"title": "forwarder sandbox", "version": "1", "description": "An analytics service in small (docs/sandbox.md)."}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def routes() -> list[web.AbstractRouteDef]:
    """The endpoint that shows it."""

    async def show(_request: web.Request) -> web.Response:
        return web.json_response(document())

    return [web.get("/openapi.json", show)]


def _path(path: str) -> str:
    """A path without the patterns of its variables."""
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", path)


def _service(path: str, *, body: bool) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)", path)
    operation: dict[str, Any] = {"summary": "An endpoint of the service", "responses": {"200": _ANYTHING, "4XX": _ANYTHING}}
    if names:
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {}, "*/*": {}}}
    return operation


def _listing(record: type | None, names: tuple[str, ...]) -> dict[str, Any]:
    results = {"type": "array", "items": {"type": "object"} if record is None else _schema(record)}
    count = {"type": "integer", "description": "of everything, not only of this page"}
    listing = {"type": "object", "required": ["count", "results"], "properties": {"count": count, "results": results}}
    operation = _operation("A listing", listing)
    operation["parameters"] = [{"name": name, "in": "query", "schema": _parameter(name)} for name in names]
    return operation


def _parameter(name: str) -> dict[str, Any]:
    if name == "order":
        return {"enum": ["oldest", "newest"], "default": "oldest"}
    return {"type": _TYPES.get(name, "string")}


def _operation(summary: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {"200": {"description": summary, **content}}}


def _schema(record: type) -> dict[str, Any]:
    """A record as it is shown."""
    schema: dict[str, Any] = TypeAdapter(record).json_schema(mode="serialization")
    shown = schema["properties"]
    if record is StoredEvent:
        shown |= {"raw": {"type": "string"}, "properties": {"type": "object"}, "groups": {"type": "object"}}
    if record is StoredRequest:
        left_out = {"index": {"type": "integer"}, "reason": {"type": "string"}, "raw": {"type": "string"}}
        shown["not_ingested"] = {"type": "array", "items": {"type": "object", "properties": left_out}}
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, definitions)
    return inlined


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema that needs no definitions beside it."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(each, definitions) for name, each in schema.items()}
