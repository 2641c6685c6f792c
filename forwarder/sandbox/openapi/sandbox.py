"""The endpoints that show what the sandbox holds, for tests and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forwarder.sandbox.openapi.flags import flag_change, flag_paths
from forwarder.sandbox.openapi.schemas import (
    JSON,
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
from forwarder.sandbox.store.aggregates import FlagUse, ImportedEventKey, StoredImport, SurveyUse
from forwarder.sandbox.store.effects import StoredGroup
from forwarder.sandbox.store.persons import PersonDetails, StoredPerson, StoredWarning
from forwarder.sandbox.store.stored_records import (
    LIMIT,
    MAXIMUM_LIMIT,
    SandboxSummary,
    StoredConflict,
    StoredEvent,
    StoredRequest,
)
from forwarder.sandbox.web.faults import FaultSpec
from forwarder.sandbox.web.flag_endpoints import CohortRow, FlagRow
from forwarder.sandbox.web.live import MAX_SECONDS, Rates
from forwarder.sandbox.web.management_view import MANAGEMENT_LISTINGS
from forwarder.sandbox.web.waiting import MAX_TIMEOUT, TIMEOUT

_PAGE: Final = ("limit", "offset")
_EVENT_FILTERS: Final = (
    *(
        "event",
        "distinct_id",
        "uuid",
        "api_key",
        "since",
        "until",
        "historical",
        "request",
        "import",
        "arrivals",
    ),
    *("person", "group_type", "group_key", "feature", "survey_id", "q", "order"),
)
LISTINGS: Final[Mapping[str, tuple[type, tuple[str, ...]]]] = {
    "/sandbox/events": (StoredEvent, (*_EVENT_FILTERS, *_PAGE)),
    "/sandbox/requests": (StoredRequest, ("path", "status", "api_key", "order", *_PAGE)),
    "/sandbox/conflicts": (StoredConflict, ("order", *_PAGE)),
    "/sandbox/persons": (StoredPerson, ("api_key", "distinct_id", "person", "order", *_PAGE)),
    "/sandbox/groups": (StoredGroup, ("api_key", "group_type", "group_key", "order", *_PAGE)),
    "/sandbox/warnings": (
        StoredWarning,
        ("type", "person", "distinct_id", "uuid", "api_key", "order", *_PAGE),
    ),
    "/sandbox/surveys": (SurveyUse, ("api_key", *_PAGE)),
    "/sandbox/imports": (StoredImport, ("import", "api_key", "order", *_PAGE)),
    "/sandbox/flag-calls": (FlagUse, ("api_key", *_PAGE)),
    "/sandbox/flags": (FlagRow, ("id", "api_key", "project", "organization", "text", *_PAGE)),
    "/sandbox/cohorts": (CohortRow, ("api_key", *_PAGE)),
    **{
        f"/sandbox/{name}": (listed.record, (*listed.parameters, "order", *_PAGE))
        for name, listed in MANAGEMENT_LISTINGS.items()
    },
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
    "StoredEvent": {
        "raw": TEXT,
        "properties": _ANYTHING,
        "person_properties": {"type": ["object", "null"]},
        "groups": {"type": "object", "additionalProperties": TEXT},
        "timestamp_note": {"type": ["string", "null"]},
    },
    "StoredRequest": {
        "not_ingested": {
            "type": "array",
            "items": {"type": "object", "required": list(_LEFT_OUT), "properties": _LEFT_OUT},
        }
    },
    "Conflict": {"uuid": TEXT},
}
"""Fields that are shown otherwise than they are stored, by the name of the record."""


def sandbox_paths(schemas: Schemas) -> Paths:
    """The paths of the sandbox itself.

    `/sandbox/live` is not among them: its answer has no end, which neither a schema nor a client
    made of this document can say.
    """
    paths: Paths = {
        path: {"get": _listing(path, record, names, schemas)}
        for path, (record, names) in LISTINGS.items()
    }
    summary = schemas.answer(SandboxSummary)
    rates = schemas.answer(Rates)
    paths["/sandbox/summary"] = {
        "get": _show("/sandbox/summary", "The figures of everything that is kept.", summary)
    }
    paths["/sandbox/rates"] = {
        "get": _show("/sandbox/rates", "Events, conflicts and refusals by second.", rates, _SECONDS)
    }
    paths["/sandbox/persons/{person}"] = {"get": _person(schemas)}
    paths["/sandbox/import-events"] = {"get": _import_events(schemas)}
    paths["/sandbox/events"]["delete"] = _forgetting()
    paths["/sandbox/wait"] = {"get": _waiting(schemas)}
    paths["/sandbox/faults"] = _faults(schemas)
    paths["/sandbox/flags"]["patch"] = flag_change(schemas)
    paths |= flag_paths(schemas)
    alive = answer("It runs", TEXT, PLAIN)
    paths["/livez"] = {"get": operation("livez", "sandbox", "That it runs.", {"200": alive})}
    return paths


_SECONDS: Final[Mapping[str, Schema]] = {
    "seconds": {"type": "integer", "minimum": 1, "maximum": MAX_SECONDS, "default": 300}
}


def _listing(path: str, record: type, names: tuple[str, ...], schemas: Schemas) -> Operation:
    results = {"type": "array", "items": schemas.answer(record)}
    count = {**_INTEGER, "description": "of everything, not only of this page"}
    page = {
        "type": "object",
        "required": ["count", "results"],
        "properties": {"count": count, "results": results},
    }
    return _show(
        path,
        f"What is kept: {path.removeprefix('/sandbox/')}.",
        page,
        {name: _PARAMETERS.get(name, TEXT) for name in names},
    )


def _person(schemas: Schemas) -> Operation:
    path = "/sandbox/persons/{person}"
    answers = {
        "200": answer("The person", schemas.answer(PersonDetails)),
        "404": answer("No person has this id", TEXT, PLAIN),
    }
    summary = "A person, where its properties come from, its merges, groups and warnings."
    return operation("show_person", "sandbox", summary, answers, in_path(path))


def _import_events(schemas: Schemas) -> Operation:
    results = {"type": "array", "items": schemas.answer(ImportedEventKey)}
    following = {
        "type": ["string", "null"],
        "description": "`after` of the next page; null on the last one",
    }
    page = {
        "type": "object",
        "required": ["next", "results"],
        "properties": {"next": following, "results": results},
    }
    parameters = {
        **dict.fromkeys(("import", "api_key", "after"), TEXT),
        "limit": _PARAMETERS["limit"],
    }
    return _show(
        "/sandbox/import-events",
        "Times and uuids of imported events, page by page.",
        page,
        parameters,
    )


def _show(
    path: str, summary: str, schema: Schema, parameters: Mapping[str, Schema] | None = None
) -> Operation:
    answers = {"200": answer(summary.rstrip("."), schema)}
    if parameters and "since" in parameters:
        answers["400"] = answer("since or until is not a time", TEXT, PLAIN)
    return operation(f"show_{_last(path)}", "sandbox", summary, answers, in_query(parameters or {}))


def _forgetting() -> Operation:
    answers = {
        "204": answer("Forgotten"),
        "403": answer("A page of another site asks", TEXT, PLAIN),
    }
    return operation("forget_events", "sandbox", "Forget everything that arrived.", answers)


def _waiting(schemas: Schemas) -> Operation:
    members: dict[str, Schema] = {
        "count": _INTEGER,
        "results": {"type": "array", "items": schemas.answer(StoredEvent)},
    }
    names: Schema = {
        "type": "object",
        "additionalProperties": _INTEGER,
        "description": "the most frequent names of events, with numbers",
    }
    late = fields({**members, "expected": _INTEGER, "detail": TEXT, "events": names})
    answers = {
        "200": answer("At least `count` events are there", fields(members)),
        "400": answer("count, timeout, since or until is invalid", TEXT, PLAIN),
        "408": answer("There were fewer until the timeout; `detail` says what is there", late),
        "503": answer("Too many requests wait, or the sandbox stops", TEXT, PLAIN),
    }
    timeout: Schema = {
        "type": "number",
        "minimum": 0,
        "maximum": MAX_TIMEOUT,
        "default": TIMEOUT,
        "description": "in seconds",
    }
    filters = {name: _PARAMETERS.get(name, TEXT) for name in (*_EVENT_FILTERS, *_PAGE)}
    parameters = in_query({"count": {**_INTEGER, "default": 1}, "timeout": timeout, **filters})
    return operation(
        "wait_for_events", "sandbox", "Answer once enough events are there.", answers, parameters
    )


def _faults(schemas: Schemas) -> dict[str, Operation]:
    spec = schemas.body(FaultSpec)
    state = fields(
        {
            "id": _INTEGER,
            "left": {"type": ["integer", "null"]},
            "seconds_left": {"type": ["number", "null"]},
            "applied": _INTEGER,
        }
    )
    faults: Schema = {"type": "array", "items": {"allOf": [spec, state], "type": "object"}}
    listed = fields({"count": _INTEGER, "results": faults, "finished": faults})
    foreign = answer("A page of another site asks", TEXT, PLAIN)
    added = {
        "201": answer("They are added, after those that are there", listed),
        "400": answer("It is not a fault", TEXT, PLAIN),
        "403": foreign,
        "413": answer("The body is too large", TEXT, PLAIN),
    }
    content = {JSON: {"anyOf": [spec, {"type": "array", "items": spec, "minItems": 1}]}}
    return {
        "get": operation(
            "show_faults",
            "sandbox",
            "Show the faults that are left.",
            {"200": answer("The faults", listed)},
        ),
        "post": operation(
            "add_faults", "sandbox", "Make the next requests fail or wait.", added, content=content
        ),
        "delete": operation(
            "clear_faults",
            "sandbox",
            "Remove all faults.",
            {"204": answer("Removed"), "403": foreign},
        ),
    }


def _last(path: str) -> str:
    return path.rpartition("/")[2].replace("-", "_")
