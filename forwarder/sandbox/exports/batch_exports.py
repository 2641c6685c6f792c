"""The batch exports of projects and their runs, as resources. Nothing exports yet: a requested run stays `Starting`.

Pausing is idempotent, by either endpoint. Secrets of the destination are kept and not shown (`destinations`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    DELETE_BATCH_EXPORT,
    GET_BATCH_EXPORT,
    LOGS_OF_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    PAUSE_ORGANIZATION_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UNPAUSE_BATCH_EXPORT,
    UNPAUSE_ORGANIZATION_BATCH_EXPORT,
    UPDATE_BATCH_EXPORT,
    Endpoint,
)
from forwarder.contract.resources import BatchExport, BatchExportRun, Destination
from forwarder.sandbox.exports.destinations import change_destination, without_secrets
from forwarder.sandbox.manage.call import Handler, ManagementCall, Result, row, rows
from forwarder.sandbox.protocol.http import invalid, not_found
from forwarder.sandbox.protocol.times import format_time, parse_time

LATEST_RUNS: Final = 10
"""Runs that a batch export is shown with."""
_OF_PROJECT: Final = "SELECT * FROM batch_exports WHERE id = ? AND project = ?"
_OF_ORGANIZATION: Final = """SELECT batch_exports.* FROM batch_exports JOIN projects ON projects.id = batch_exports.project
WHERE batch_exports.id = ? AND projects.organization = ?"""
_UPDATE: Final = """UPDATE batch_exports SET name = :name, model = :model, destination = :destination, interval = :interval,
paused = :paused, last_updated_at = :last_updated_at, last_paused_at = :last_paused_at, start_at = :start_at, end_at = :end_at,
hogql_query = :hogql_query, filters = :filters WHERE id = :id"""


def batch_export_resource(database: sqlite3.Connection, export: sqlite3.Row) -> BatchExport:
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
        latest_runs=latest_runs(database, export["id"]),
        hogql_query=export["hogql_query"],
        schema=json.loads(export["schema"]),
        filters=json.loads(export["filters"]),
    )


def _get(call: ManagementCall) -> BatchExport:
    return batch_export_resource(call.database, _find_export(call))


def _update(call: ManagementCall) -> BatchExport:
    _change(call, call.body)
    return _get(call)


def _delete(call: ManagementCall) -> None:
    export = _find_export(call)["id"]
    call.database.execute("DELETE FROM batch_export_runs WHERE batch_export = ?", (export,))
    call.database.execute("DELETE FROM batch_exports WHERE id = ?", (export,))


def _pause(call: ManagementCall) -> Result:
    _change(call, {"paused": True})
    return {"paused": True} if call.strict else None


def _unpause(call: ManagementCall) -> Result:
    _change(call, {"paused": False})
    return {"paused": False} if call.strict else None


def _logs(call: ManagementCall) -> None:
    _find_export(call)


def _backfill(call: ManagementCall) -> Result:
    export = _find_export(call)["id"]
    first, last = (parse_time(call.body.get(field)) for field in ("start_at", "end_at"))
    for field, time in (("start_at", first), ("end_at", last)):
        if time is not None and time > call.now:
            raise invalid(field, "A backfill can't reach into the future.", "invalid")
    until = last or call.now
    if first is not None and first >= until:
        raise invalid("end_at" if last else "start_at", "A backfill's start_at must be before its end_at.", "invalid")
    return start_run(call, export, None if first is None else format_time(first), format_time(until))


def _change(call: ManagementCall, body: Mapping[str, Any]) -> None:
    old = dict(_find_export(call))
    new = old | {field: value for field, value in body.items() if field not in ("destination", "filters")}
    new |= {field: _normalized(body[field]) for field in ("last_paused_at", "start_at", "end_at") if field in body}
    _check_bounds(body, new)
    if "destination" in body:
        new["destination"] = json.dumps(change_destination(json.loads(old["destination"]), body["destination"]))
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


def _normalized(text: str | None) -> str | None:
    time = parse_time(text)
    return None if time is None else format_time(time)


def _find_export(call: ManagementCall) -> sqlite3.Row:
    """The batch export that is called: a project's, or any of the organization's."""
    statement, owner = (_OF_ORGANIZATION, call.organization) if call.project is None else (_OF_PROJECT, call.project)
    export = row(call.database, statement, call.ids["id"], owner)
    if export is None:
        raise not_found()
    return export


def run_resource(run: sqlite3.Row) -> BatchExportRun:
    """A run as it is answered."""
    return BatchExportRun(
        id=run["id"],
        status=run["status"],
        records_completed=run["records_completed"],
        latest_error=run["latest_error"],
        data_interval_start=run["data_interval_start"],
        data_interval_end=run["data_interval_end"],
        cursor=run["cursor"],
        created_at=run["created_at"],
        finished_at=run["finished_at"],
        last_updated_at=run["last_updated_at"],
        records_total_count=run["records_total_count"],
        batch_export=run["batch_export"],
    )


def latest_runs(database: sqlite3.Connection, export: str) -> list[BatchExportRun]:
    """The newest runs of a batch export, the newest first."""
    statement = "SELECT * FROM batch_export_runs WHERE batch_export = ? ORDER BY number DESC LIMIT ?"
    return [run_resource(run) for run in rows(database, statement, export, LATEST_RUNS)]


def start_run(call: ManagementCall, export: str, first: str | None, last: str | None) -> Result:
    """Begin a run over a range of time, and answer as a backfill does."""
    identity, now = str(uuid4()), format_time(call.now)
    call.database.execute(
        "INSERT INTO batch_export_runs VALUES (NULL, ?, ?, 'Starting', 0, '', ?, ?, '', ?, NULL, ?, NULL)",
        (identity, export, first, last, now, now),
    )
    return {"backfill_id": identity} if call.strict else None


def _retry_run(call: ManagementCall) -> Result:
    run = row(
        call.database,
        "SELECT runs.* FROM batch_export_runs AS runs JOIN batch_exports ON batch_exports.id = runs.batch_export"
        " WHERE runs.id = ? AND batch_exports.id = ? AND batch_exports.project = ?",
        *(call.ids["id"], call.ids["batch_export_id"], call.project),
    )
    if run is None:
        raise not_found()
    return start_run(call, run["batch_export"], run["data_interval_start"], run["data_interval_end"])


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
    RETRY_BATCH_EXPORT_RUN: _retry_run,
}
