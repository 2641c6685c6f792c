"""Runs of batch exports in the database."""

from __future__ import annotations

from forwarder.sandbox.exports import runs
from forwarder.sandbox.exports.intervals import TimeRange
from forwarder.sandbox.manage.call import rows
from tests.sandbox.exporting import Exports


def made(exports: Exports) -> str:
    """A run that hasn't begun."""
    (export,) = rows(exports.half.database, "SELECT * FROM batch_exports WHERE id = ?", exports.id)
    now = exports.half.now
    return runs.add_backfill(
        exports.half.database, export, TimeRange(now.replace(year=2025, month=12, day=31), now), now
    )


def test_a_log_keeps_its_newest_lines(exports: Exports) -> None:
    """Without keys or passwords, and none is too long; another run's stay."""
    database = exports.half.database
    now = exports.half.now
    run = made(exports)
    other = made(exports)
    runs.write_log(database, other, "info", "first", now)
    for number in range(runs.LOG_LINES + 3):
        runs.write_log(database, run, "info", f"line {number}", now)
    assert [line.message for line in runs.run_log(database, run)] == [
        f"line {number}" for number in range(3, runs.LOG_LINES + 3)
    ]
    assert [line.message for line in runs.run_log(database, other)] == ["first"]
    runs.write_log(
        database,
        other,
        "error",
        f"phx_secret_key_0001 at http://ann:word@example.com\0 {'x' * 5_000}",
        now,
    )
    message = runs.run_log(database, other)[-1].message
    assert (len(message), "secret" in message, "word" in message, "\0" in message) == (
        runs.LONGEST_MESSAGE,
        False,
        False,
        False,
    )
    assert [line.message for line in runs.export_log(database, exports.id, 2)][-1].startswith(
        f"Run {other}: phx_…0001 at"
    )


def test_a_finished_run_never_changes(exports: Exports) -> None:
    """No matter who finishes it first; neither progress nor a failure counts afterwards."""
    database = exports.half.database
    now = exports.half.now
    run = made(exports)
    assert runs.finish_run(database, run, "Terminated", "stopped", now)
    before = rows(database, "SELECT * FROM batch_export_runs WHERE id = ?", run)
    exports.half.later(hours=1)
    assert not runs.finish_run(database, run, "Failed", "late", exports.half.now)
    runs.record_progress(database, run, exports.half.now, cursor="9", completed=9, total=9)
    runs.fail_attempt(database, run, "late", exports.half.now)
    runs.complete_run(database, run, exports.half.now)
    runs.cancel_runs(database, exports.id, exports.half.now)
    after = rows(database, "SELECT * FROM batch_export_runs WHERE id = ?", run)
    assert [tuple(row) for row in after] == [tuple(row) for row in before]
    assert len(runs.run_log(database, run)) == 1


def test_runs_of_a_seed_are_only_shown(exports: Exports) -> None:
    """Whatever their status says: they are neither begun, continued nor cancelled."""
    database = exports.half.database
    now = exports.half.now
    run = made(exports)
    database.execute(
        "UPDATE batch_export_runs SET cause = 'seed', status = 'Running' WHERE id = ?", (run,)
    )
    database.execute("UPDATE batch_exports SET paused = 1")
    database.execute("DELETE FROM batch_export_runs WHERE id <> ?", (run,))
    assert runs.due_runs(database, now) == []
    assert runs.continue_interrupted(database, now) == 0
    runs.cancel_runs(database, exports.id, now)
    assert [row["status"] for row in rows(database, "SELECT status FROM batch_export_runs")] == [
        "Running"
    ]
    (row,) = rows(database, "SELECT * FROM batch_export_runs")
    retry = runs.add_retry(database, row, now)
    assert [due.requested for due in runs.due_runs(database, now)] == [True]
    begun = runs.begin_run(database, runs.due_runs(database, now)[0], now)
    assert begun is not None
    assert (begun.job.run, begun.job.origin, begun.job.first) == (
        retry,
        run,
        row["data_interval_start"],
    )
