"""The batch exports of projects as resources, and what is requested of them. `scheduler` runs them.

What the interface leaves open is decided so:

- pause-twice: pausing is idempotent, by either endpoint: `last_paused_at` stays; likewise
  unpausing. Pausing stops the schedule. A run that has begun ends as it would, and backfills and
  retries run all the same. Intervals that became due meanwhile run after unpausing.
- backfill: with a zone, start before end, not in the future, else 400. Without `start_at` it
  begins with the export's `start_at`, else with the project's first event; without `end_at` it
  ends now. It makes a run an interval, the oldest first, the first and the last clipped to the
  range; more than 100,000 are 400. Its `backfill_id` is the id of its first run.
- retry: of any run in any state. The run stays as it is. A new one exports the same selection (of
  a run that never began, or of a seed: the same interval) from the beginning, by the export's
  present destination, model and filters, and replaces what the first one wrote. It runs before the
  backfills that wait.
- export-changes: a run keeps the model, destination, filters and interval that it began with; the
  next one takes the new ones. After a change of `interval` or `start_at` the next interval begins
  where the last one ended, or later: what is earlier takes a backfill.
- export-deletion: unfinished runs are `Cancelled` and write no more once the deletion is answered.
  For the management API all runs are gone with it; `/sandbox/batch-export-runs` shows them.
- destination-types: any text of 1 to 64 characters is stored. A run to a type that can't be served
  is `Failed` and says so.
- export-settings: `hogql_query` and `schema` are stored, not run, and each run's log says so.
  `filters` are property conditions.
- logs-body: with strict `{results: [{timestamp, level, message}]}`, the newest 1,000 lines of all
  runs, the newest last; else no body.

Secrets of the destination are kept and not shown (`destinations`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, Final

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
from forwarder.sandbox.exports.intervals import EARLIEST, MOST, TimeRange, count, floor_before
from forwarder.sandbox.exports.runs import (
    add_backfill,
    add_retry,
    cancel_runs,
    export_log,
    run_resource,
)
from forwarder.sandbox.exports.scheduler import ExportScheduler
from forwarder.sandbox.manage.call import (
    AsyncHandler,
    Handler,
    ManagementCall,
    Result,
    Run,
    row,
    rows,
)
from forwarder.sandbox.protocol.http import invalid, not_found
from forwarder.sandbox.protocol.times import format_time, parse_time

LATEST_RUNS: Final = 10
"""Runs that a batch export is shown with."""
LOG_LINES: Final = 1_000
"""Of a batch export's log."""
_OF_PROJECT: Final = "SELECT * FROM batch_exports WHERE id = ? AND project = ?"
_FIRST_EVENT: Final = """
    SELECT min(timestamp) FROM events
    WHERE api_key = (SELECT api_token FROM projects WHERE id = ?)
"""
_OF_ORGANIZATION: Final = """
    SELECT batch_exports.*
    FROM batch_exports JOIN projects ON projects.id = batch_exports.project
    WHERE batch_exports.id = ? AND projects.organization = ?
"""
_UPDATE: Final = """
    UPDATE batch_exports SET
        name = :name, model = :model, destination = :destination, interval = :interval,
        paused = :paused, last_updated_at = :last_updated_at, last_paused_at = :last_paused_at,
        start_at = :start_at, end_at = :end_at, hogql_query = :hogql_query, filters = :filters
    WHERE id = :id
"""


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
    cancel_runs(call.database, export, call.now)
    call.database.execute("DELETE FROM batch_exports WHERE id = ?", (export,))


def _pause(call: ManagementCall) -> Result:
    _change(call, {"paused": True})
    return {"paused": True} if call.strict else None


def _unpause(call: ManagementCall) -> Result:
    _change(call, {"paused": False})
    return {"paused": False} if call.strict else None


def _logs(call: ManagementCall) -> Result:
    export = _find_export(call)["id"]
    return (
        {"results": [asdict(line) for line in export_log(call.database, export, LOG_LINES)]}
        if call.strict
        else None
    )


def _backfill(call: ManagementCall) -> Result:
    first = request_backfill(call.database, _find_export(call), call.body, call.now)
    return {"backfill_id": first} if call.strict else None


def _change(call: ManagementCall, body: Mapping[str, Any]) -> None:
    change_export(call.database, _find_export(call), body, call.now)


def change_export(
    database: sqlite3.Connection, export: sqlite3.Row, body: Mapping[str, Any], now: datetime
) -> None:
    """Change the fields of an export that `body` has. Raises `ManagementError`."""
    old = dict(export)
    new = old | {
        field: value for field, value in body.items() if field not in ("destination", "filters")
    }
    new |= {
        field: _normalized(body[field])
        for field in ("last_paused_at", "start_at", "end_at")
        if field in body
    }
    _check_bounds(body, new)
    if "destination" in body:
        new["destination"] = json.dumps(
            change_destination(json.loads(old["destination"]), body["destination"])
        )
    if "filters" in body:
        new["filters"] = json.dumps(body["filters"])
    if new["paused"] and not old["paused"] and "last_paused_at" not in body:
        new["last_paused_at"] = format_time(now)
    if new != old:
        database.execute(_UPDATE, new | {"last_updated_at": format_time(now)})


def request_backfill(
    database: sqlite3.Connection, export: sqlite3.Row, body: Mapping[str, Any], now: datetime
) -> str:
    """Make the runs of a backfill from `start_at` to `end_at`; returns the id of the
    first. Raises `ManagementError`.
    """
    first, last = (parse_time(body.get(field)) for field in ("start_at", "end_at"))
    for field, time in (("start_at", first), ("end_at", last)):
        if time is not None and time > now:
            raise invalid(field, "A backfill can't reach into the future.", "invalid")
    until = last or now
    if (first or EARLIEST) >= until:
        raise invalid(
            "end_at" if last else "start_at",
            "A backfill's start_at must be before its end_at.",
            "invalid",
        )
    span = TimeRange(first or _beginning(database, export, until), until)
    if count(span, export["interval"]) > MOST:
        raise invalid("start_at", f"A backfill has at most {MOST:,} intervals.", "invalid")
    return add_backfill(database, export, span, now)


def _beginning(database: sqlite3.Connection, export: sqlite3.Row, until: datetime) -> datetime:
    """Where a backfill without `start_at` begins; without anything to export it is one interval."""
    (event,) = database.execute(_FIRST_EVENT, (export["project"],)).fetchone()
    known = [
        time
        for time in (parse_time(export["start_at"]), parse_time(event))
        if time is not None and time < until
    ]
    return known[0] if known else floor_before(until, export["interval"])


def _check_bounds(body: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    start = parse_time(new["start_at"])
    end = parse_time(new["end_at"])
    if (
        ("start_at" in body or "end_at" in body)
        and start is not None
        and end is not None
        and start >= end
    ):
        raise invalid(
            "end_at" if "end_at" in body else "start_at",
            "start_at must be before end_at.",
            "invalid",
        )


def _normalized(text: str | None) -> str | None:
    time = parse_time(text)
    return None if time is None else format_time(time)


def _find_export(call: ManagementCall) -> sqlite3.Row:
    """The batch export that is called: a project's, or any of the organization's."""
    statement, owner = (
        (_OF_ORGANIZATION, call.organization)
        if call.project is None
        else (_OF_PROJECT, call.project)
    )
    export = row(call.database, statement, call.ids["id"], owner)
    if export is None:
        raise not_found()
    return export


def latest_runs(database: sqlite3.Connection, export: str) -> list[BatchExportRun]:
    """The newest runs of a batch export, the newest first."""
    statement = (
        "SELECT * FROM batch_export_runs WHERE batch_export = ? ORDER BY number DESC LIMIT ?"
    )
    return [run_resource(run) for run in rows(database, statement, export, LATEST_RUNS)]


def _retry_run(call: ManagementCall) -> Result:
    run = row(
        call.database,
        """
        SELECT runs.*
        FROM batch_export_runs AS runs JOIN batch_exports ON batch_exports.id = runs.batch_export
        WHERE runs.id = ? AND batch_exports.id = ? AND batch_exports.project = ?
        """,
        *(call.ids["id"], call.ids["batch_export_id"], call.project),
    )
    if run is None:
        raise not_found()
    retry = add_retry(call.database, run, call.now)
    return {"backfill_id": retry} if call.strict else None


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


def async_handlers(scheduler: ExportScheduler) -> Mapping[Endpoint[Any, Any], AsyncHandler]:
    """The handlers of what changes batch exports, which the scheduler must know of."""

    async def change(handler: Handler, run: Run) -> Result:
        """Cancelled, the change is made all the same or not at all."""
        try:
            result: Result = await run(handler)
        finally:
            scheduler.wake()
        return result

    async def delete(run: Run) -> Result:
        """Delete the export, and wait until its run has stopped. Cancellation ends the
        wait only.
        """
        export = await run(_delete_found)
        await scheduler.stop(export["id"])
        return None

    handlers = {
        endpoint: handler
        for endpoint, handler in HANDLERS.items()
        if endpoint not in (GET_BATCH_EXPORT, LOGS_OF_BATCH_EXPORT)
    }
    return {
        **{endpoint: partial(change, handler) for endpoint, handler in handlers.items()},
        DELETE_BATCH_EXPORT: delete,
    }


def _delete_found(call: ManagementCall) -> Result:
    export = {"id": _find_export(call)["id"]}
    _delete(call)
    return export
