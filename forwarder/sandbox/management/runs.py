"""The runs of batch exports. Nothing runs them in the sandbox yet: one that is asked for stays `Starting`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from forwarder.contract.endpoints import RETRY_BATCH_EXPORT_RUN, Endpoint
from forwarder.contract.resources import BatchExportRun
from forwarder.sandbox.management.call import Call, Handler, Result, not_found
from forwarder.sandbox.management.rows import row, rows
from forwarder.sandbox.timing import format_time

LATEST: Final = 10
"""How many runs a batch export is shown with."""


def shown(run: sqlite3.Row) -> BatchExportRun:
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


def latest(database: sqlite3.Connection, export: str) -> list[BatchExportRun]:
    """The newest runs of a batch export, the newest first."""
    statement = "SELECT * FROM batch_export_runs WHERE batch_export = ? ORDER BY number DESC LIMIT ?"
    return [shown(run) for run in rows(database, statement, export, LATEST)]


def start(call: Call, export: str, first: str | None, last: str | None) -> Result:
    """Begin a run over a range of time, and answer as a backfill does."""
    identity, now = str(uuid4()), format_time(call.now)
    call.database.execute(
        "INSERT INTO batch_export_runs VALUES (NULL, ?, ?, 'Starting', 0, '', ?, ?, '', ?, NULL, ?, NULL)",
        (identity, export, first, last, now, now),
    )
    return {"backfill_id": identity} if call.strict else None


def _retry(call: Call) -> Result:
    run = row(
        call.database,
        "SELECT runs.* FROM batch_export_runs AS runs JOIN batch_exports ON batch_exports.id = runs.batch_export"
        " WHERE runs.id = ? AND batch_exports.id = ? AND batch_exports.project = ?",
        *(call.ids["id"], call.ids["batch_export_id"], call.project),
    )
    if run is None:
        raise not_found()
    return start(call, run["batch_export"], run["data_interval_start"], run["data_interval_end"])


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {RETRY_BATCH_EXPORT_RUN: _retry}
