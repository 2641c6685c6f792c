"""Runs of batch exports in the database: which is next, what it exports, its states and its log.

    Starting -> Running -> Completed
                        -> FailedRetryable -> Starting: the destination failed; after `ATTEMPTS`
                        attempts Failed -> Failed: the export is misconfigured
                        -> TimedOut: an attempt took longer than the export's interval
                        -> ContinuedAsNew: the sandbox stopped meanwhile; a new run resumes from
                        the cursor
    any of the unfinished -> Cancelled: the export was deleted; -> Terminated: a person stopped it

Invariants: a finished run never changes. A run's `selection` is stored when it first begins, with
the settings that it keeps to its end; until then it is empty, or that of the run that it retries.
Runs of one `origin` select the same times and arrivals. Of a schedule at most one run is
unfinished, and each interval has one run, retries and continuations aside: the last one made says
where the schedule is. Runs of a seed are only shown. Runs and logs outlive their export.

Everything here blocks, and belongs to the store's thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import uuid4

from forwarder.contract.resources import BatchExportRun, RunStatus
from forwarder.core.secrets import mask_secrets
from forwarder.sandbox.exports.intervals import (
    LENGTHS,
    ExportSchedule,
    TimeRange,
    next_of_schedule,
    split,
)
from forwarder.sandbox.exports.jobs import ExportJob, Selection
from forwarder.sandbox.manage.call import row, rows
from forwarder.sandbox.protocol.times import format_time, parse_time
from forwarder.telemetry.readable import plural

ATTEMPTS: Final = 5
FIRST_WAIT: Final = timedelta(seconds=2)
"""Before the second attempt; each later wait is twice as long."""
LOG_LINES: Final = 500
"""Of one run; the oldest are deleted."""
LONGEST_MESSAGE: Final = 2_000
"""Characters."""
Cause = Literal["schedule", "backfill", "retry"]
LogLevel = Literal["info", "warning", "error"]
_LEVELS: Final[Mapping[str, LogLevel]] = {
    "ContinuedAsNew": "info",
    "Cancelled": "warning",
    "Terminated": "warning",
    "TimedOut": "error",
    "Failed": "error",
}
_SELECTED: Final = tuple(field.name for field in fields(Selection))
_INSERT: Final = """
    INSERT INTO batch_export_runs (
        id, batch_export, status, records_completed, latest_error, data_interval_start,
        data_interval_end, cursor, created_at, last_updated_at, records_total_count, origin,
        cause, attempt, selection
    ) VALUES (?, ?, 'Starting', ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_HEAD: Final = """
    SELECT * FROM batch_export_runs
    WHERE batch_export = ? AND cause = ? AND finished_at IS NULL
    ORDER BY selection = '', number LIMIT 1
"""
_LAST_OF_SCHEDULE: Final = (
    "SELECT * FROM batch_export_runs WHERE batch_export = ? AND cause = 'schedule' ORDER BY "
    "number DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class DueRun:
    """The next run of an export's schedule, or of those that were requested: backfills
    and retries.
    """

    export: str
    requested: bool
    due: datetime


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run that is running, and how long it may."""

    job: ExportJob
    limit: timedelta


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a run's log."""

    timestamp: str
    level: str
    message: str


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


def due_runs(database: sqlite3.Connection, now: datetime) -> list[DueRun]:
    """The next runs of all exports, those in the future included: of each at most one of the
    schedule and one that was requested.
    """
    return [
        due
        for export in rows(database, "SELECT * FROM batch_exports")
        for due in _of_export(database, export, now)
    ]


def begin_run(database: sqlite3.Connection, chosen: DueRun, now: datetime) -> BegunRun | None:
    """Begin the next run, if there still is one that is due. No other run of
    the export may be running.
    """
    export = row(database, "SELECT * FROM batch_exports WHERE id = ?", chosen.export)
    if export is None or not any(
        due.requested == chosen.requested and due.due <= now
        for due in _of_export(database, export, now)
    ):
        return None
    run = (
        _requested(database, chosen.export)
        if chosen.requested
        else _head(database, chosen.export, "schedule")
    )
    if run is None:
        run = _schedule(database, export, now)
    if run["status"] == "FailedRetryable":
        _update(database, run["id"], now, status="Starting", attempt=run["attempt"] + 1)
    stored = (
        json.loads(run["selection"]) if run["selection"] else asdict(_of_backfill(database, run))
    )
    if "model" not in stored:
        stored |= {
            "model": export["model"],
            "interval": export["interval"],
            "destination": json.loads(export["destination"]),
        }
        stored |= {"filters": json.loads(export["filters"])}
    _update(database, run["id"], now, status="Running", due_at=None, selection=json.dumps(stored))
    run = _find(database, run["id"])
    _log_beginning(database, export, run, now)
    return BegunRun(
        _job(database, export, run, stored), LENGTHS.get(stored["interval"], LENGTHS["hour"])
    )


def record_progress(
    database: sqlite3.Connection,
    run: str,
    now: datetime,
    *,
    cursor: str,
    completed: int,
    total: int,
) -> None:
    """Store how far a run is, unless it is finished."""
    if _update(
        database, run, now, cursor=cursor, records_completed=completed, records_total_count=total
    ):
        write_log(database, run, "info", f"{completed:,} of {total:,} records are written.", now)


def complete_run(database: sqlite3.Connection, run: str, now: datetime) -> None:
    """Finish a run whose records are all written."""
    run_row = _find(database, run)
    total = (
        run_row["records_completed"]
        if run_row["records_total_count"] is None
        else run_row["records_total_count"]
    )
    done = format_time(now)
    if _update(
        database,
        run,
        now,
        status="Completed",
        finished_at=done,
        due_at=None,
        latest_error="",
        records_total_count=total,
    ):
        write_log(
            database,
            run,
            "info",
            f"Completed with {plural(run_row['records_completed'], 'record')}.",
            now,
        )


def finish_run(
    database: sqlite3.Connection, run: str, status: RunStatus, message: str, now: datetime
) -> bool:
    """Finish a run that isn't completed; False if it is finished already. The message is its
    error, but for `ContinuedAsNew`.
    """
    error = "" if status == "ContinuedAsNew" else clean_message(message)
    done = _update(
        database,
        run,
        now,
        status=status,
        finished_at=format_time(now),
        due_at=None,
        latest_error=error,
    )
    if done:
        write_log(database, run, _LEVELS[status], f"{status}: {message}", now)
    return done


def fail_attempt(database: sqlite3.Connection, run: str, message: str, now: datetime) -> None:
    """Let a run wait for its next attempt, or fail if that was the last one. A finished run stays
    as it is.
    """
    attempt = _find(database, run)["attempt"]
    if attempt >= ATTEMPTS:
        finish_run(database, run, "Failed", message, now)
        return
    due = now + FIRST_WAIT * 2 ** (attempt - 1)
    if _update(
        database,
        run,
        now,
        status="FailedRetryable",
        latest_error=clean_message(message),
        due_at=format_time(due),
    ):
        write_log(
            database,
            run,
            "error",
            (
                f"Attempt {attempt} of {ATTEMPTS} failed, next at {_short(format_time(due))}: "
                f"{message}"
            ),
            now,
        )


def continue_interrupted(database: sqlite3.Connection, now: datetime) -> int:
    """Replace each run that a stop of the sandbox interrupted by one that resumes from its cursor;
    returns how many.

    The machine's clock may have been set back meanwhile: a run whose next attempt is too far ahead
    for that is due now.
    """
    latest = format_time(now + FIRST_WAIT * 2 ** (ATTEMPTS - 2))
    database.execute(
        "UPDATE batch_export_runs SET due_at = NULL WHERE finished_at IS NULL AND due_at > ?",
        (latest,),
    )
    interrupted = rows(
        database,
        (
            "SELECT * FROM batch_export_runs WHERE status = 'Running' AND cause <> 'seed' ORDER "
            "BY number"
        ),
    )
    for run in interrupted:
        identity = _insert(
            database, run, run["cause"], now, cursor=run["cursor"], selection=run["selection"]
        )
        finish_run(
            database,
            run["id"],
            "ContinuedAsNew",
            f"The sandbox stopped meanwhile; run {identity} resumes.",
            now,
        )
    return len(interrupted)


def add_backfill(
    database: sqlite3.Connection, export: sqlite3.Row, span: TimeRange, now: datetime
) -> str:
    """Make the runs of a backfill, one an interval, the oldest first; returns
    the id of the first one.
    """
    made = format_time(now)
    parts = [
        (str(uuid4()), format_time(part.first), format_time(part.last))
        for part in split(span, export["interval"])
    ]
    database.executemany(
        _INSERT,
        [
            (run, export["id"], 0, first, last, "", made, made, None, run, "backfill", 1, "")
            for run, first, last in parts
        ],
    )
    return parts[0][0]


def add_retry(database: sqlite3.Connection, run: sqlite3.Row, now: datetime) -> str:
    """Make a run that exports the same selection from its beginning, by the settings that the
    export then has; returns its id.

    A run that hasn't begun, or of a seed, has no selection: the retry is like a
    backfill of its interval.
    """
    selection = json.loads(run["selection"]) if run["selection"] else {}
    selected = json.dumps({name: selection[name] for name in _SELECTED}) if selection else ""
    return _insert(database, run, "retry", now, cursor="", selection=selected)


def cancel_runs(database: sqlite3.Connection, export: str, now: datetime) -> None:
    """Cancel the unfinished runs of an export that is deleted."""
    for run in rows(
        database,
        (
            "SELECT id FROM batch_export_runs WHERE batch_export = ? AND finished_at IS NULL AND "
            "cause <> 'seed'"
        ),
        export,
    ):
        finish_run(database, run["id"], "Cancelled", "The batch export was deleted.", now)


def write_log(
    database: sqlite3.Connection, run: str, level: LogLevel, message: str, now: datetime
) -> None:
    """Add a line to a run's log, which keeps the newest `LOG_LINES`."""
    database.execute(
        "INSERT INTO export_logs VALUES (NULL, ?, ?, ?, ?)",
        (run, format_time(now), level, clean_message(message)),
    )
    database.execute(
        (
            "DELETE FROM export_logs WHERE run = ? AND id <= (SELECT id FROM export_logs WHERE "
            "run = ? ORDER BY id DESC LIMIT 1 OFFSET ?)"
        ),
        (run, run, LOG_LINES),
    )


def run_log(database: sqlite3.Connection, run: str) -> list[LogLine]:
    """The log of a run, the newest line last."""
    lines = rows(
        database, "SELECT at, level, message FROM export_logs WHERE run = ? ORDER BY id", run
    )
    return [LogLine(*line) for line in lines]


def export_log(database: sqlite3.Connection, export: str, limit: int) -> list[LogLine]:
    """The newest lines of all runs of an export, the newest last; each says which run it is of."""
    statement = """
        SELECT at, level, 'Run ' || run || ': ' || message FROM export_logs
        WHERE run IN (SELECT id FROM batch_export_runs WHERE batch_export = ?)
        ORDER BY id DESC LIMIT ?
    """
    return [LogLine(*line) for line in reversed(rows(database, statement, export, limit))]


def clean_message(text: str) -> str:
    """A message as it may be shown: without keys, credentials in addresses
    and NUL, and not too long.
    """
    return mask_secrets(text).replace("\0", "")[:LONGEST_MESSAGE]


def _of_export(
    database: sqlite3.Connection, export: sqlite3.Row, now: datetime
) -> Iterable[DueRun]:
    if (run := _requested(database, export["id"])) is not None:
        yield DueRun(export["id"], requested=True, due=parse_time(run["due_at"]) or now)
    if (run := _head(database, export["id"], "schedule")) is not None:
        yield DueRun(export["id"], requested=False, due=parse_time(run["due_at"]) or now)
    elif not export["paused"] and (following := _next_interval(database, export, now)) is not None:
        yield DueRun(export["id"], requested=False, due=following.last)


def _requested(database: sqlite3.Connection, export: str) -> sqlite3.Row | None:
    """The run of backfills and retries that is next: one whose selection is known already, else
    the oldest.
    """
    causes: Sequence[Cause] = ("backfill", "retry")
    heads = [head for cause in causes if (head := _head(database, export, cause)) is not None]
    return min(heads, key=lambda head: (head["selection"] == "", head["number"]), default=None)


def _head(database: sqlite3.Connection, export: str, cause: Cause) -> sqlite3.Row | None:
    return row(database, _HEAD, export, cause)


def _next_interval(
    database: sqlite3.Connection, export: sqlite3.Row, now: datetime
) -> TimeRange | None:
    if export["interval"] not in LENGTHS or (created := parse_time(export["created_at"])) is None:
        return None
    last = row(database, _LAST_OF_SCHEDULE, export["id"])
    done = None if last is None else parse_time(last["data_interval_end"])
    schedule = ExportSchedule(
        export["interval"], created, parse_time(export["start_at"]), parse_time(export["end_at"])
    )
    return next_of_schedule(schedule, done, now)


def _schedule(database: sqlite3.Connection, export: sqlite3.Row, now: datetime) -> sqlite3.Row:
    """Make the run of the schedule's next interval, which there is."""
    before = row(database, _LAST_OF_SCHEDULE, export["id"])
    span = _next_interval(database, export, now)
    if span is None:
        raise ValueError("the schedule has ended")
    identity = str(uuid4())
    made = format_time(now)
    first = format_time(span.first)
    last = format_time(span.last)
    done = (
        json.loads(before["selection"])
        if before is not None
        else _before_it_was_made(database, export, first)
    )
    selection = Selection(
        since=export["start_at"],
        before=last,
        arrival=_last_arrival(database),
        done_before=done.get("before"),
        done_arrival=done.get("arrival", 0),
    )
    values = (
        identity,
        export["id"],
        0,
        first,
        last,
        "",
        made,
        made,
        None,
        identity,
        "schedule",
        1,
        json.dumps(asdict(selection)),
    )
    database.execute(_INSERT, values)
    return _find(database, identity)


def _before_it_was_made(
    database: sqlite3.Connection, export: sqlite3.Row, first: str
) -> dict[str, Any]:
    """What the schedule leaves out from its beginning: what had arrived, or came with the same
    seed, and is of an earlier time.
    """
    statement = """
        SELECT coalesce(max(id), 0) FROM events
        WHERE request <= (
            SELECT max(id) FROM requests
            WHERE received_at < :made OR (received_at = :made AND method = 'SEED')
        )
    """
    ((arrival,),) = database.execute(statement, {"made": export["created_at"]})
    return {"before": first, "arrival": arrival}


def _of_backfill(database: sqlite3.Connection, run: sqlite3.Row) -> Selection:
    return Selection(
        since=run["data_interval_start"],
        before=run["data_interval_end"],
        arrival=_last_arrival(database),
    )


def _job(
    database: sqlite3.Connection, export: sqlite3.Row, run: sqlite3.Row, stored: Mapping[str, Any]
) -> ExportJob:
    (project,) = rows(database, "SELECT api_token FROM projects WHERE id = ?", export["project"])
    last = run["data_interval_end"] or run["created_at"]
    return ExportJob(
        origin=run["origin"],
        run=run["id"],
        project=export["project"],
        api_key=project["api_token"],
        model=stored["model"],
        destination=stored["destination"],
        filters=stored["filters"],
        selection=Selection(**{name: stored[name] for name in _SELECTED}),
        cursor=run["cursor"],
        first=run["data_interval_start"] or last,
        last=last,
    )


def _log_beginning(
    database: sqlite3.Connection, export: sqlite3.Row, run: sqlite3.Row, now: datetime
) -> None:
    span = (
        f"{_short(run['data_interval_start']) or 'the beginning'} to "
        f"{_short(run['data_interval_end']) or 'the end'}"
    )
    resumed = f", from {run['records_completed']:,} records on" if run["cursor"] else ""
    write_log(
        database,
        run["id"],
        "info",
        f"Attempt {run['attempt']} of {ATTEMPTS} ({run['cause']}), {span}{resumed}.",
        now,
    )
    for field, content in (
        ("hogql_query", export["hogql_query"]),
        ("schema", json.loads(export["schema"])),
    ):
        if content:
            write_log(
                database,
                run["id"],
                "warning",
                f"{field} is stored, not run: the run exports every field of its model.",
                now,
            )


def _short(time: str | None) -> str:
    """A time without microseconds, if it has none."""
    return (time or "").replace(".000000Z", "Z")


def _insert(
    database: sqlite3.Connection,
    run: sqlite3.Row,
    cause: str,
    now: datetime,
    *,
    cursor: str,
    selection: str,
) -> str:
    """Make a run of the same work as another one, which resumes from a cursor if there is one."""
    identity = str(uuid4())
    made = format_time(now)
    counted = (run["records_completed"], run["records_total_count"]) if cursor else (0, None)
    values = (
        identity,
        run["batch_export"],
        counted[0],
        run["data_interval_start"],
        run["data_interval_end"],
        cursor,
        made,
        made,
        counted[1],
    )
    attempt = run["attempt"] if cause == run["cause"] else 1
    database.execute(_INSERT, (*values, run["origin"] or run["id"], cause, attempt, selection))
    return identity


def _update(database: sqlite3.Connection, run: str, now: datetime, **changes: object) -> bool:
    """Change an unfinished run; False if it is finished."""
    values = {**changes, "last_updated_at": format_time(now)}
    columns = ", ".join(f"{name} = :{name}" for name in values)
    # S608: the names of the columns are this module's keyword arguments.
    statement = f"""
        UPDATE batch_export_runs SET {columns} WHERE id = :run AND finished_at IS NULL
    """  # noqa: S608
    return database.execute(statement, {**values, "run": run}).rowcount > 0


def _find(database: sqlite3.Connection, run: str) -> sqlite3.Row:
    (run_row,) = rows(database, "SELECT * FROM batch_export_runs WHERE id = ?", run)
    return run_row


def _last_arrival(database: sqlite3.Connection) -> int:
    (number,) = database.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
    return int(number)
