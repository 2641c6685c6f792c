"""The endpoints that show what the sandbox holds, for tests and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forwarder.sandbox.openapi.schemas import PLAIN, TEXT, Operation, Paths, Schema, Schemas, answer, in_query, operation
from forwarder.sandbox.store.aggregates import FlagUse, ImportedEventKey, StoredImport, SurveyUse
from forwarder.sandbox.store.effects import StoredGroup, StoredPerson
from forwarder.sandbox.store.records import LIMIT, MAXIMUM_LIMIT, SandboxSummary, StoredConflict, StoredEvent, StoredRequest
from forwarder.sandbox.web.live import MAX_SECONDS, Rates
from forwarder.sandbox.web.management_view import MANAGEMENT_LISTINGS

_PAGE: Final = ("limit", "offset")
_EVENT_FILTERS: Final = (
    *("event", "distinct_id", "uuid", "api_key", "since", "until", "historical", "request", "import", "arrivals"),
    *("person", "group_type", "group_key", "feature", "survey_id", "q", "order"),
)
LISTINGS: Final[Mapping[str, tuple[type, tuple[str, ...]]]] = {
    "/sandbox/events": (StoredEvent, (*_EVENT_FILTERS, *_PAGE)),
    "/sandbox/requests": (StoredRequest, ("path", "status", "api_key", "order", *_PAGE)),
    "/sandbox/conflicts": (StoredConflict, ("order", *_PAGE)),
    "/sandbox/persons": (StoredPerson, ("api_key", "distinct_id", "person", "order", *_PAGE)),
    "/sandbox/groups": (StoredGroup, ("api_key", "group_type", "group_key", "order", *_PAGE)),
    "/sandbox/surveys": (SurveyUse, ("api_key", *_PAGE)),
    "/sandbox/imports": (StoredImport, ("import", "api_key", "order", *_PAGE)),
    "/sandbox/flag-calls": (FlagUse, ("api_key", *_PAGE)),
    **{f"/sandbox/{name}": (listed.record, (*listed.parameters, "order", *_PAGE)) for name, listed in MANAGEMENT_LISTINGS.items()},
}
"""The record of each listing, and its parameters."""
_ANYTHING: Final[Schema] = {}
_INTEGER: Final[Schema] = {"type": "integer", "minimum": 0}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
_PARAMETERS: Final[Mapping[str, Schema]] = {
    "limit": {**_INTEGER, "maximum": MAXIMUM_LIMIT, "default": LIMIT},
    "offset": {**_INTEGER, "default": 0},
    "order": {"enum": ["oldest", "newest"], "default": "oldest"},
    **dict.fromkeys(("since", "until"), _MOMENT),
    **dict.fromkeys(("request", "status"), _INTEGER),
    **dict.fromkeys(("historical", "arrivals"), _BOOLEAN),
}
_LEFT_OUT: Final[Schema] = {"index": {"type": "integer"}, "reason": TEXT, "raw": TEXT}
OVERRIDES: Final[Mapping[str, Mapping[str, Schema]]] = {
    "StoredEvent": {"raw": TEXT, "properties": _ANYTHING, "groups": {"type": "object", "additionalProperties": TEXT}},
    "StoredRequest": {"not_ingested": {"type": "array", "items": {"type": "object", "required": list(_LEFT_OUT), "properties": _LEFT_OUT}}},
    "Conflict": {"uuid": TEXT},
}
"""Fields that are shown otherwise than they are stored, by the name of the record."""


def sandbox_paths(schemas: Schemas) -> Paths:
    """The paths of the sandbox itself.

    `/sandbox/live` is not among them: its answer has no end, which neither a schema nor a client made of this document can say.
    """
    paths: Paths = {path: {"get": _listing(path, record, names, schemas)} for path, (record, names) in LISTINGS.items()}
    summary, rates = schemas.answer(SandboxSummary), schemas.answer(Rates)
    paths["/sandbox/summary"] = {"get": _show("/sandbox/summary", "The figures of everything that is kept.", summary)}
    paths["/sandbox/rates"] = {"get": _show("/sandbox/rates", "Events, conflicts and refusals by second.", rates, _SECONDS)}
    paths["/sandbox/import-events"] = {"get": _import_events(schemas)}
    paths["/sandbox/events"]["delete"] = _forgetting()
    alive = answer("It runs", TEXT, PLAIN)
    paths["/livez"] = {"get": operation("livez", "sandbox", "That it runs.", {"200": alive})}
    return paths


_SECONDS: Final[Mapping[str, Schema]] = {"seconds": {"type": "integer", "minimum": 1, "maximum": MAX_SECONDS, "default": 300}}


def _listing(path: str, record: type, names: tuple[str, ...], schemas: Schemas) -> Operation:
    results = {"type": "array", "items": schemas.answer(record)}
    count = {**_INTEGER, "description": "of everything, not only of this page"}
    page = {"type": "object", "required": ["count", "results"], "properties": {"count": count, "results": results}}
    return _show(path, f"What is kept: {path.removeprefix('/sandbox/')}.", page, {name: _PARAMETERS.get(name, TEXT) for name in names})


def _import_events(schemas: Schemas) -> Operation:
    results = {"type": "array", "items": schemas.answer(ImportedEventKey)}
    following = {"type": ["string", "null"], "description": "`after` of the next page; null on the last one"}
    page = {"type": "object", "required": ["next", "results"], "properties": {"next": following, "results": results}}
    parameters = {**dict.fromkeys(("import", "api_key", "after"), TEXT), "limit": _PARAMETERS["limit"]}
    return _show("/sandbox/import-events", "Times and uuids of imported events, page by page.", page, parameters)


def _show(path: str, summary: str, schema: Schema, parameters: Mapping[str, Schema] | None = None) -> Operation:
    found = {"200": answer(summary.rstrip("."), schema)}
    if parameters and "since" in parameters:
        found["400"] = answer("since or until is not a time", TEXT, PLAIN)
    return operation(f"show_{_last(path)}", "sandbox", summary, found, in_query(parameters or {}))


def _forgetting() -> Operation:
    answers = {"204": answer("Forgotten"), "403": answer("A page of another site asks", TEXT, PLAIN)}
    return operation("forget_events", "sandbox", "Forget everything that arrived.", answers)


def _last(path: str) -> str:
    return path.rpartition("/")[2].replace("-", "_")
