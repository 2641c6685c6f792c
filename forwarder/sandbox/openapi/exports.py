"""The sandbox's clock, and the endpoints by which a test or a person follows
and steers batch exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forwarder.contract.payloads import BatchExportChange
from forwarder.contract.resources import ErrorBody
from forwarder.sandbox.exports.runs import LogLine
from forwarder.sandbox.openapi.schemas import (
    JSON,
    PLAIN,
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
)
from forwarder.sandbox.openapi.schemas import operation as described
from forwarder.sandbox.store.stored_records import LIMIT, MAXIMUM_LIMIT
from forwarder.sandbox.web.export_endpoints import ShownExportRun

_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_INTEGER: Final[Schema] = {"type": "integer", "minimum": 0}
_PAGE: Final[Mapping[str, Schema]] = {
    "order": {"enum": ["oldest", "newest"], "default": "newest"},
    "limit": {**_INTEGER, "maximum": MAXIMUM_LIMIT, "default": LIMIT},
    "offset": {**_INTEGER, "default": 0},
}
_FOREIGN: Final = answer("A page of another site asks", TEXT, PLAIN)
_RUN: Final = "/sandbox/batch-export-runs/{id}"
_EXPORT: Final = "/sandbox/batch-exports/{id}"
_TAGS: Final = {_RUN: "sandbox-batch-export-runs", _EXPORT: "sandbox-batch-exports"}
"""Of the operations on one run or export, by the path that they are below."""


def export_paths(schemas: Schemas) -> Paths:
    """The paths of the clock, of runs and of what is done about them."""
    error = schemas.answer(ErrorBody)
    listing = fields(
        {"count": _INTEGER, "results": {"type": "array", "items": schemas.answer(ShownExportRun)}}
    )
    lines = fields({"results": {"type": "array", "items": schemas.answer(LogLine)}})
    filters = in_query({**dict.fromkeys(("batch_export", "status", "trigger"), TEXT), **_PAGE})
    missing = {"404": answer("There is no such run", error)}
    change = schemas.body(BatchExportChange)
    return {
        "/sandbox/clock": _clock(error),
        "/sandbox/batch-export-runs": {
            "get": _operation(
                "show_runs", "Runs of batch exports.", "", {"200": answer("Runs", listing)}, filters
            )
        },
        f"{_RUN}/logs": {
            "get": _operation(
                "show_run_log",
                "The log of a run.",
                _RUN,
                {"200": answer("The log", lines), **missing},
            )
        },
        f"{_RUN}/retry": {
            "post": _change(
                "retry_run", "Export the same once more.", _RUN, fields({"run": UUID}), error
            )
        },
        f"{_RUN}/terminate": {
            "post": _change("terminate_run", "Stop a run.", _RUN, fields({"status": TEXT}), error)
        },
        f"{_EXPORT}/pause": {
            "post": _change(
                "pause_export", "Pause the schedule.", _EXPORT, fields({"paused": _BOOLEAN}), error
            )
        },
        f"{_EXPORT}/unpause": {
            "post": _change(
                "unpause_export",
                "Resume the schedule.",
                _EXPORT,
                fields({"paused": _BOOLEAN}),
                error,
            )
        },
        f"{_EXPORT}/backfill": {
            "post": _change(
                "backfill_export",
                "Export a time range again.",
                _EXPORT,
                fields({"backfill_id": UUID}),
                error,
                change,
            )
        },
    }


def _change(  # noqa: PLR0917 - a table's row
    name: str, summary: str, path: str, changed: Schema, error: Schema, body: Schema | None = None
) -> Operation:
    answers = {
        "200": answer("Done", changed),
        "400": answer("The body doesn't allow it", error),
        "403": _FOREIGN,
        "404": answer("There is no such thing", error),
        "409": answer("The run is finished", error),
    }
    return _operation(
        name, summary, path, answers, content={JSON: body} if body else None, body_required=False
    )


def _operation(
    name: str, summary: str, path: str, answers: Mapping[str, Any], query: Any = (), **more: Any
) -> Operation:
    return described(
        name, _TAGS.get(path, "sandbox"), summary, answers, [*in_path(path), *query], **more
    )


def _clock(error: Schema) -> dict[str, Operation]:
    time = fields({"now": _MOMENT, "offset": {"type": "number", "minimum": 0}})
    moves: Schema = {
        "advance": {"type": ["number", "string", "null"]},
        "now": {"type": ["string", "null"]},
        "settle": {},
    }
    answers = {
        "200": answer("The time", time),
        "400": answer("The clock can't be moved so", error),
        "403": _FOREIGN,
    }
    body: Schema = {"type": "object", "properties": moves, "additionalProperties": False}
    query = in_query({"advance": TEXT, "now": _MOMENT, "settle": _BOOLEAN})
    summary = (
        "Move the sandbox's time forward; with settle, answer once everything that is due has run."
    )
    return {
        "get": _operation(
            "show_clock", "The sandbox's time.", "", {"200": answer("The time", time)}
        ),
        "post": _operation(
            "move_clock", summary, "", answers, query, content={JSON: body}, body_required=False
        ),
    }
