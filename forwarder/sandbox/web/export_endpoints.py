"""The runs of batch exports and their logs, for tests and the page, and what a person does about
them there: no personal key is required.

`GET /sandbox/batch-export-runs?batch_export=ID` lists runs, the newest first, those of deleted
exports included. What changes something is rejected for pages of other sites. Errors have the form
of the management API.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from aiohttp import web

from forwarder.contract.endpoints import BACKFILL_BATCH_EXPORT
from forwarder.contract.resources import BatchExportRun, ErrorType, Timestamp
from forwarder.core.near_names import propose_name
from forwarder.pages.hosts import reject_other_sites
from forwarder.sandbox.exports.batch_exports import change_export, request_backfill
from forwarder.sandbox.exports.runs import add_retry, run_log, run_resource
from forwarder.sandbox.exports.scheduler import ExportScheduler
from forwarder.sandbox.manage.call import row, rows
from forwarder.sandbox.manage.validation import SentBody, body_of
from forwarder.sandbox.protocol.clock import SandboxClock
from forwarder.sandbox.protocol.http import (
    ManagementError,
    RequestRejected,
    invalid,
    management_error_response,
    not_found,
    read_body,
)
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.queries import listing_page

LARGEST_BODY: Final = 10_000
"""Bytes."""
_CHANGES: Final = ("pause", "unpause", "backfill")


class ShownExportRun(BatchExportRun):
    """A run, with what the management API doesn't say of it."""

    trigger: str
    """`schedule`, `backfill`, `retry` or `seed`."""
    attempt: int
    origin: str
    """The first run of the same work."""
    next_attempt_at: Timestamp | None


class ExportEndpoints:
    """The endpoints of batch exports and their runs."""

    def __init__(
        self, thread: StoreThread, clock: SandboxClock, scheduler: ExportScheduler
    ) -> None:
        self._thread = thread
        self._clock = clock
        self._scheduler = scheduler

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        run = "/sandbox/batch-export-runs/{id}"
        return [
            web.get("/sandbox/batch-export-runs", self.runs),
            web.get(f"{run}/logs", self.logs),
            web.post(f"{run}/retry", partial(self._post, self._retry)),
            web.post(f"{run}/terminate", self.terminate),
            *(
                web.post(
                    f"/sandbox/batch-exports/{{id}}/{name}",
                    partial(self._post, partial(_change, name)),
                )
                for name in _CHANGES
            ),
        ]

    async def runs(self, request: web.Request) -> web.Response:
        """GET /sandbox/batch-export-runs: all runs, or those of a batch export or with a status."""
        query = request.query
        wanted = {
            "batch_export = ?": query.get("batch_export"),
            "status = ?": query.get("status"),
            "cause = ?": query.get("trigger"),
        }
        conditions = {condition: value for condition, value in wanted.items() if value}
        page = replace(listing_page(request), newest_first=query.get("order") != "oldest")
        where = " AND ".join(conditions) or "TRUE"
        selected = f"FROM batch_export_runs WHERE {where}"
        counting = f"SELECT count(*) {selected}"
        listing = f"SELECT * {selected}{page.ordered('number')}"

        def read(database: sqlite3.Connection) -> dict[str, Any]:
            ((count,),) = database.execute(counting, [*conditions.values()])
            run_rows = rows(database, listing, *conditions.values(), *page.bounds())
            return {"count": count, "results": [shown_run(run) for run in run_rows]}

        return web.json_response(await self._thread.run(lambda store: read(store.connection)))

    async def logs(self, request: web.Request) -> web.Response:
        """GET /sandbox/batch-export-runs/{id}/logs: the lines of a run's log, the newest last."""
        number = request.match_info["id"]

        def read(database: sqlite3.Connection) -> list[dict[str, Any]]:
            _find(database, "batch_export_runs", number)
            return [asdict(line) for line in run_log(database, number)]

        try:
            return web.json_response(
                {"results": await self._thread.run(lambda store: read(store.connection))}
            )
        except ManagementError as error:
            return management_error_response(error).response()

    async def terminate(self, request: web.Request) -> web.Response:
        """POST /sandbox/batch-export-runs/{id}/terminate: stop a run; 409 if it is finished.
        Cancellation ends the wait only.
        """
        reject_other_sites(request)
        number = request.match_info["id"]
        try:
            await self._thread.run(
                lambda store: _find(store.connection, "batch_export_runs", number)
            )
        except ManagementError as error:
            return management_error_response(error).response()
        if await self._scheduler.terminate(number):
            return web.json_response({"status": "Terminated"})
        finished = ManagementError(
            409, ErrorType.INVALID_REQUEST, "finished", "The run is finished."
        )
        return management_error_response(finished).response()

    async def _post(self, change: _Change, request: web.Request) -> web.Response:
        """A change, as one transaction. Cancelled, it is made or not."""
        reject_other_sites(request)
        try:
            sent = SentBody(await read_body(request, LARGEST_BODY), "application/json")
            target = request.match_info["id"]
            answer = await self._thread.run(
                lambda store: change(store.connection, target, sent, self._clock.now())
            )
        except RequestRejected as rejection:
            error = invalid(None, rejection.message, "parse_error")
            return management_error_response(error).response()
        except ManagementError as error:
            return management_error_response(error).response()
        finally:
            self._scheduler.wake()
        return web.json_response(answer)

    @staticmethod
    def _retry(
        database: sqlite3.Connection, target: str, _sent: SentBody, now: datetime
    ) -> Mapping[str, Any]:
        run = _find(database, "batch_export_runs", target)
        _find(database, "batch_exports", run["batch_export"])
        return {"run": add_retry(database, run, now)}


_Change = Callable[[sqlite3.Connection, str, SentBody, datetime], Mapping[str, Any]]


def shown_run(run: sqlite3.Row) -> ShownExportRun:
    """A run as the sandbox shows it."""
    return ShownExportRun(
        **run_resource(run),
        trigger=run["cause"],
        attempt=run["attempt"],
        origin=run["origin"] or run["id"],
        next_attempt_at=run["due_at"],
    )


def _change(
    name: str, database: sqlite3.Connection, target: str, sent: SentBody, now: datetime
) -> Mapping[str, Any]:
    export = _find(database, "batch_exports", target)
    if name == "backfill":
        wanted = body_of(BACKFILL_BATCH_EXPORT, sent)
        _reject_unknown(sent)
        return {"backfill_id": request_backfill(database, export, wanted, now)}
    change_export(database, export, {"paused": name == "pause"}, now)
    return {"paused": name == "pause"}


def _reject_unknown(sent: SentBody) -> None:
    """Raise `ManagementError` for a field of a backfill that there isn't: misspelt, it would be one
    of everything. The service's own endpoint ignores it.
    """
    known = BACKFILL_BATCH_EXPORT.request.__annotations__
    unknown = next((name for name in json.loads(sent.content or b"{}") if name not in known), None)
    if unknown is not None:
        raise invalid(unknown, f"There is no such field, {propose_name(unknown, known)}")


def _find(database: sqlite3.Connection, table: str, identity: str) -> sqlite3.Row:
    # S608: the table is one of two, which the callers above name.
    stored = row(database, f"SELECT * FROM {table} WHERE id = ?", identity)  # noqa: S608
    if stored is None:
        raise not_found()
    return stored
