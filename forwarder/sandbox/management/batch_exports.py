"""The batch exports of projects, as resources: nothing exports anything in the sandbox yet.

To pause twice is to pause once, by whichever way. Secrets of the destination are kept and not shown (`destination_secrets`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    DELETE_BATCH_EXPORT,
    GET_BATCH_EXPORT,
    LOGS_OF_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    PAUSE_ORGANIZATION_BATCH_EXPORT,
    UNPAUSE_BATCH_EXPORT,
    UNPAUSE_ORGANIZATION_BATCH_EXPORT,
    UPDATE_BATCH_EXPORT,
    Endpoint,
)
from forwarder.contract.resources import BatchExport, Destination
from forwarder.sandbox.management import runs
from forwarder.sandbox.management.call import Call, Handler, Result, invalid, not_found
from forwarder.sandbox.management.destination_secrets import changed, without_secrets
from forwarder.sandbox.management.rows import row
from forwarder.sandbox.timing import format_time, parse_time

_OF_PROJECT: Final = "SELECT * FROM batch_exports WHERE id = ? AND project = ?"
_OF_ORGANIZATION: Final = """SELECT batch_exports.* FROM batch_exports JOIN projects ON projects.id = batch_exports.project
WHERE batch_exports.id = ? AND projects.organization = ?"""
_UPDATE: Final = """UPDATE batch_exports SET name = :name, model = :model, destination = :destination, interval = :interval,
paused = :paused, last_updated_at = :last_updated_at, last_paused_at = :last_paused_at, start_at = :start_at, end_at = :end_at,
hogql_query = :hogql_query, filters = :filters WHERE id = :id"""


def shown(database: sqlite3.Connection, export: sqlite3.Row) -> BatchExport:
    """A batch export as it is answered."""
    destination = without_secrets(json.loads(export["destination"]))
    return BatchExport(
        id=export["id"],
        team_id=export["project"],
        name=export["name"],
        model=export["model"],
        destination=Destination(type=destination["type"], config=destination["config"]),
        interval=export["interval"],
        paused=bool(export["paused"]),
        created_at=export["created_at"],
        last_updated_at=export["last_updated_at"],
        last_paused_at=export["last_paused_at"],
        start_at=export["start_at"],
        end_at=export["end_at"],
        latest_runs=runs.latest(database, export["id"]),
        hogql_query=export["hogql_query"],
        schema=json.loads(export["schema"]),
        filters=json.loads(export["filters"]),
    )


def _get(call: Call) -> BatchExport:
    return shown(call.database, _found(call))


def _update(call: Call) -> BatchExport:
    _change(call, call.body)
    return _get(call)


def _delete(call: Call) -> None:
    export = _found(call)["id"]
    call.database.execute("DELETE FROM batch_export_runs WHERE batch_export = ?", (export,))
    call.database.execute("DELETE FROM batch_exports WHERE id = ?", (export,))


def _pause(call: Call) -> Result:
    _change(call, {"paused": True})
    return {"paused": True} if call.strict else None


def _unpause(call: Call) -> Result:
    _change(call, {"paused": False})
    return {"paused": False} if call.strict else None


def _logs(call: Call) -> None:
    _found(call)


def _backfill(call: Call) -> Result:
    export = _found(call)["id"]
    first, last = (parse_time(call.body.get(field)) for field in ("start_at", "end_at"))
    for field, time in (("start_at", first), ("end_at", last)):
        if time is not None and time > call.now:
            raise invalid(field, "A backfill can't reach into the future.", "invalid")
    until = last or call.now
    if first is not None and first >= until:
        raise invalid("end_at" if last else "start_at", "A backfill's start_at must be before its end_at.", "invalid")
    return runs.start(call, export, None if first is None else format_time(first), format_time(until))


def _change(call: Call, body: Mapping[str, Any]) -> None:
    old = dict(_found(call))
    new = old | {field: value for field, value in body.items() if field not in ("destination", "filters")}
    new |= {field: _normalised(body[field]) for field in ("last_paused_at", "start_at", "end_at") if field in body}
    _check_bounds(body, new)
    if "destination" in body:
        new["destination"] = json.dumps(changed(json.loads(old["destination"]), body["destination"]))
    if "filters" in body:
        new["filters"] = json.dumps(body["filters"])
    if new["paused"] and not old["paused"] and "last_paused_at" not in body:
        new["last_paused_at"] = format_time(call.now)
    if new != old:
        call.database.execute(_UPDATE, new | {"last_updated_at": format_time(call.now)})


def _check_bounds(body: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    start, end = parse_time(new["start_at"]), parse_time(new["end_at"])
    if ("start_at" in body or "end_at" in body) and start is not None and end is not None and start >= end:
        raise invalid("end_at" if "end_at" in body else "start_at", "start_at must be before end_at.", "invalid")


def _normalised(text: str | None) -> str | None:
    time = parse_time(text)
    return None if time is None else format_time(time)


def _found(call: Call) -> sqlite3.Row:
    """The batch export that is called: a project's, or any of the organization's."""
    statement, owner = (_OF_ORGANIZATION, call.organization) if call.project is None else (_OF_PROJECT, call.project)
    export = row(call.database, statement, call.ids["id"], owner)
    if export is None:
        raise not_found()
    return export


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    PAUSE_ORGANIZATION_BATCH_EXPORT: _pause,
    UNPAUSE_ORGANIZATION_BATCH_EXPORT: _unpause,
    GET_BATCH_EXPORT: _get,
    UPDATE_BATCH_EXPORT: _update,
    DELETE_BATCH_EXPORT: _delete,
    BACKFILL_BATCH_EXPORT: _backfill,
    PAUSE_BATCH_EXPORT: _pause,
    UNPAUSE_BATCH_EXPORT: _unpause,
    LOGS_OF_BATCH_EXPORT: _logs,
}
