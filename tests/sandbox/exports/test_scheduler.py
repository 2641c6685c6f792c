"""The scheduler of batch exports: states of runs, what they select, and in which order they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    GET_BATCH_EXPORT,
    LOGS_OF_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UNPAUSE_BATCH_EXPORT,
    UPDATE_BATCH_EXPORT,
)
from forwarder.sandbox.exports.scheduler import MOST_RUNNING
from forwarder.sandbox.protocol.clock import SandboxClock
from tests.sandbox.exports.scheduling import START, Scheduling
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.waiting import eventually


@asynccontextmanager
async def scheduling(path: Path | None = None) -> AsyncIterator[Scheduling]:
    """One that is open, closed at the end."""
    rig = Scheduling(path)
    await rig.open()
    try:
        yield rig
    finally:
        await rig.close()


S = "Starting"
R = "Running"
F = "FailedRetryable"
ATTEMPT: Final = [F, S, R]


@dataclass(frozen=True)
class Story:
    """What a destination does, what happens meanwhile, and the statuses that the runs have."""

    script: str
    steps: str
    runs: list[list[str]]
    error: str = ""
    """Of the last run."""
    log: list[str] = field(default_factory=list)
    """Words of the log, in order."""


STORIES: Final = {
    "everything is written": Story(
        "ok",
        "hour",
        [[S, R, "Completed"]],
        log=["Attempt 1", "3 of 4", "4 of 4", "Completed with 4"],
    ),
    "the destination fails once": Story(
        "down ok",
        "hour wait",
        [[S, R, *ATTEMPT, "Completed"]],
        log=["next at 2026-01-01T01:00:02Z", "Attempt 2"],
    ),
    "it is tried again when the wait is over, not before": Story(
        "down ok", "hour moment", [[S, R, F]], "the bucket is down"
    ),
    "it fails five times": Story(
        "down " * 5,
        "hour wait wait wait wait",
        [[S, R, *ATTEMPT * 4, "Failed"]],
        "the bucket is down",
        ["5 of 5", "Failed"],
    ),
    "a bug is like a failure": Story(
        "broken ok",
        "hour wait",
        [[S, R, *ATTEMPT, "Completed"]],
        log=["zero division", "Completed"],
    ),
    "the configuration is wrong": Story(
        "wrong", "hour wait", [[S, R, "Failed"]], "no such bucket", ["Failed: no such bucket"]
    ),
    "the export is deleted while it runs": Story(
        "hang", "begin delete", [[S, R, "Cancelled"]], "The batch export was deleted."
    ),
    "the export is deleted while it waits": Story(
        "down", "hour delete wait", [[S, R, F, "Cancelled"]], "The batch export was deleted."
    ),
    "a person stops it while it runs": Story(
        "hang", "begin stop", [[S, R, "Terminated"]], "A person stopped the run."
    ),
    "a person stops it while it waits": Story(
        "down", "hour stop wait", [[S, R, F, "Terminated"]], "A person stopped the run."
    ),
    "it takes longer than its interval": Story(
        "hang ok", "begin hour", [[S, R, "TimedOut"], [S, R, "Completed"]], log=["TimedOut"]
    ),
    "the sandbox stops meanwhile": Story(
        "hang ok",
        "begin restart moment",
        [[S, R, "ContinuedAsNew"], [S, R, "Completed"]],
        log=["resumes", "from 3 records on", "Completed with 4"],
    ),
    "the sandbox stops while it waits": Story(
        "down ok", "hour restart wait", [[S, R, *ATTEMPT, "Completed"]]
    ),
    "the sandbox stops in the second attempt": Story(
        "down hang down down down down",
        "hour hang restart moment wait wait wait",
        [[S, R, *ATTEMPT, "ContinuedAsNew"], [S, R, *ATTEMPT * 3, "Failed"]],
        "the bucket is down",
    ),
    "what failed is retried": Story(
        "wrong ok", "hour retry", [[S, R, "Failed"], [S, R, "Completed"]]
    ),
    "what was completed is retried": Story(
        "ok down ok", "hour retry wait", [[S, R, "Completed"], [S, R, *ATTEMPT, "Completed"]]
    ),
    "what was stopped is retried": Story(
        "hang ok", "begin stop retry", [[S, R, "Terminated"], [S, R, "Completed"]]
    ),
    "what waits is retried": Story(
        "down ok ok", "hour retry wait", [[S, R, *ATTEMPT, "Completed"], [S, R, "Completed"]]
    ),
}


@cases("name", STORIES)
async def test_a_run_goes_through_its_states(name: str, tmp_path: Path) -> None:
    """Each state and each transition, with what the run then says. What is written is what was to
    be, however often it was tried.
    """
    story = STORIES[name]
    async with scheduling(tmp_path / "sandbox.db") as rig:
        rig.destination.script.extend(story.script.split())
        uuids = await rig.arrive(*(START + timedelta(minutes=minute) for minute in (5, 10, 15, 59)))
        export = await rig.export()
        await rig.scheduler.settle()
        for step in story.steps.split():
            await play(rig, export, step)
        runs = await rig.runs()
        assert list((await rig.watch()).values()) == story.runs
        assert [run["status"] for run in runs] == [statuses[-1] for statuses in story.runs]
        assert all((run["finished_at"] is None) == (run["status"] in (S, R, F)) for run in runs)
        assert (runs[-1]["latest_error"], len({run["origin"] for run in runs[:1]})) == (
            story.error,
            1,
        )
        if runs[-1]["status"] == "Completed" and "TimedOut" not in story.runs[0]:
            assert (runs[-1]["records_completed"], runs[-1]["records_total_count"]) == (4, 4)
            assert rig.destination.records(runs[0]["origin"]) == uuids
        lines = await rig.do(
            lambda database: " ".join(
                row[0] for row in database.execute("SELECT message FROM export_logs ORDER BY id")
            )
        )
        for words in story.log:
            _, matched, lines = lines.partition(words)
            assert matched == words


async def play(rig: Scheduling, export: str, step: str) -> None:
    """One thing that happens."""
    if step == "begin":
        await rig.hang(hours=1)
    elif step == "hang":
        await rig.hang(seconds=20)
    elif step == "delete":
        await rig.delete(export)
        assert not rig.destination.running
    elif step == "restart":
        await rig.restart()
    elif step == "stop":
        (run,) = [run["id"] for run in await rig.runs() if run["finished_at"] is None]
        assert await rig.scheduler.terminate(run)
        assert not await rig.scheduler.terminate(run)
        assert not rig.destination.running
    elif step == "retry":
        (run,) = [run["id"] for run in await rig.runs()]
        await rig.call(RETRY_BATCH_EXPORT_RUN, batch_export_id=export, id=run)
        await rig.scheduler.settle()
    else:
        await rig.pass_time(
            **{"hour": {"hours": 1}, "wait": {"seconds": 20}, "moment": {"seconds": 1}}[step]
        )


async def test_an_attempt_does_not_wait_for_a_clock_that_was_moved(tmp_path: Path) -> None:
    """After a restart it is the system's time again, and the next attempt was due on the clock
    that was moved.
    """
    async with scheduling(tmp_path / "sandbox.db") as rig:
        rig.destination.script.append("down")
        await rig.export()
        await rig.pass_time(days=30)
        assert (await rig.runs())[0]["status"] == F
        rig.clock = SandboxClock(lambda: MIDNIGHT)
        await rig.restart()
        await rig.scheduler.settle()
        assert (await rig.runs())[0]["status"] == "Completed"


async def exported(rig: Scheduling, export: str) -> list[tuple[str, list[str]]]:
    """Of each run the first hours and minutes of its interval, and what it wrote."""
    return [
        (run["data_interval_start"][8:16], rig.destination.records(run["origin"]))
        for run in await rig.runs(export)
    ]


async def test_each_event_is_exported_once() -> None:
    """With the interval of its time; a late one with the run after its arrival, and one of the
    future in the interval of that.

    What was there before the export isn't exported.
    """
    async with scheduling() as rig:
        await rig.arrive(START - timedelta(days=1))
        await rig.pass_time(seconds=1)
        export = await rig.export()
        old, now = await rig.arrive(START - timedelta(days=3), START + timedelta(minutes=1))
        (future,) = await rig.arrive(START + timedelta(hours=2, minutes=30))
        await rig.pass_time(hours=1)
        late, early = await rig.arrive(START + timedelta(minutes=2), START - timedelta(days=2))
        await rig.pass_time(hours=1)
        await rig.pass_time(hours=1)
        assert await exported(rig, export) == [
            ("01T00:00", [old, now]),
            ("01T01:00", [late, early]),
            ("01T02:00", [future]),
        ]


async def test_a_schedule_has_its_bounds() -> None:
    """It begins in the interval of `start_at`, with nothing that is earlier, and ends with the
    last interval that ends by `end_at`.
    """
    async with scheduling() as rig:
        uuids = await rig.arrive(*(START - timedelta(minutes=minute) for minute in (120, 100, 30)))
        export = await rig.export(
            start="2025-12-31T22:10:00.000000Z", end="2026-01-01T01:30:00.000000Z"
        )
        await rig.pass_time(days=1)
        late = await rig.arrive(START - timedelta(hours=3))
        await rig.pass_time(days=1)
        assert await exported(rig, export) == [
            ("31T22:00", uuids[1:2]),
            ("31T23:00", uuids[2:]),
            ("01T00:00", []),
        ]
        assert late


async def test_a_pause_loses_nothing() -> None:
    """No run begins meanwhile but those that were requested; then every
    interval runs, the oldest first.
    """
    async with scheduling() as rig:
        export = await rig.export()
        assert await rig.call(PAUSE_BATCH_EXPORT, id=export) == {"paused": True}
        first, second = await rig.arrive(
            START + timedelta(minutes=1), START + timedelta(minutes=61)
        )
        await rig.pass_time(hours=3)
        assert await rig.runs() == []
        await rig.call(
            BACKFILL_BATCH_EXPORT,
            {"start_at": "2026-01-01T01:00:00Z", "end_at": "2026-01-01T02:00:00Z"},
            id=export,
        )
        await rig.scheduler.settle()
        assert await exported(rig, export) == [("01T01:00", [second])]
        await rig.call(UNPAUSE_BATCH_EXPORT, id=export)
        await rig.scheduler.settle()
        assert await exported(rig, export) == [
            ("01T01:00", [second]),
            ("01T00:00", [first]),
            ("01T01:00", [second]),
            ("01T02:00", []),
        ]


async def test_a_run_keeps_the_settings_that_it_began_with() -> None:
    """The next one has the new ones; so has a retry, of the same selection."""
    async with scheduling() as rig:
        rig.destination.script.extend(["down"])
        export = await rig.export()
        await rig.pass_time(hours=1)
        other = {"type": "Other", "config": {"url": "x"}}
        await rig.call(
            UPDATE_BATCH_EXPORT,
            {
                "model": "persons",
                "destination": other,
                "filters": [1],
                "interval": "every 15 minutes",
            },
            id=export,
        )
        await rig.pass_time(minutes=15)
        first, again, second = rig.destination.jobs
        assert (again.model, again.destination, again.filters) == (
            "events",
            {"type": "Fake", "config": {"secret": "s"}},
            None,
        )
        assert (first.selection, first.origin) == (again.selection, again.origin)
        assert (second.model, second.destination, second.filters) == ("persons", other, [1])
        assert (second.first, second.last) == (
            "2026-01-01T01:00:00.000000Z",
            "2026-01-01T01:15:00.000000Z",
        )
        await rig.call(RETRY_BATCH_EXPORT_RUN, batch_export_id=export, id=first.run)
        await rig.scheduler.settle()
        retry = rig.destination.jobs[-1]
        assert (retry.model, retry.selection, retry.origin, retry.cursor) == (
            "persons",
            first.selection,
            first.origin,
            "",
        )


async def test_the_queues_of_an_export_take_turns() -> None:
    """The schedule and what was requested run one by one, each in its order; a run that waits
    holds up its own queue only.
    """
    async with scheduling() as rig:
        export = await rig.export(start="2025-12-31T21:00:00.000000Z")
        await rig.call(PAUSE_BATCH_EXPORT, id=export)
        rig.destination.script.extend(["hang"])
        await rig.call(
            BACKFILL_BATCH_EXPORT,
            {"start_at": "2025-12-30T00:00:00Z", "end_at": "2025-12-30T03:00:00Z"},
            id=export,
        )
        await rig.hang()
        await rig.call(UNPAUSE_BATCH_EXPORT, id=export)
        rig.destination.script.extend(["ok", "dead"])
        rig.destination.release.set()
        await rig.scheduler.settle()
        await rig.pass_time(seconds=2)
        begun = [job.first[8:16] for job in rig.destination.jobs]
        assert begun == [
            "30T00:00",
            "31T21:00",
            "30T01:00",
            "31T22:00",
            "31T23:00",
            "30T01:00",
            "30T02:00",
        ]
        assert rig.destination.most == 1


async def test_few_runs_are_in_progress_at_a_time() -> None:
    """Of all exports together, however many are due; each has its turn."""
    async with scheduling() as rig:
        rig.destination.otherwise = "hang"
        for number in range(MOST_RUNNING + 3):
            await rig.export(number)
        rig.clock.advance(timedelta(hours=1))
        await eventually(lambda: len(rig.destination.hanging) == MOST_RUNNING)
        rig.destination.release.set()
        await rig.scheduler.settle()
        assert rig.destination.most == MOST_RUNNING
        assert [run["status"] for run in await rig.runs()] == ["Completed"] * (MOST_RUNNING + 3)


async def test_the_export_and_its_log_say_what_runs(tmp_path: Path) -> None:
    """What is stored and not run is said by every run; no line has a secret."""
    async with scheduling(tmp_path / "sandbox.db") as rig:
        rig.destination.script.extend(["down"])
        await rig.arrive(*[START + timedelta(minutes=1)] * 4)
        export = await rig.export(query="select 1")
        await rig.pass_time(hours=1)
        [run] = (await rig.call(GET_BATCH_EXPORT, id=export))["latest_runs"]
        assert (
            run["status"],
            run["cursor"],
            run["records_completed"],
            run["records_total_count"],
        ) == (F, "1", 3, 4)
        assert (run["latest_error"], run["finished_at"], run["last_updated_at"]) == (
            "the bucket is down",
            None,
            "2026-01-01T01:00:00.000000Z",
        )
        await rig.pass_time(seconds=2)
        [run] = (await rig.call(GET_BATCH_EXPORT, id=export))["latest_runs"]
        assert (run["status"], run["cursor"], run["records_completed"], run["finished_at"]) == (
            "Completed",
            "2",
            4,
            "2026-01-01T01:00:02.000000Z",
        )
        lines: list[dict[str, Any]] = (await rig.call(LOGS_OF_BATCH_EXPORT, id=export))["results"]
        assert {line["level"] for line in lines} == {"info", "warning", "error"}
        assert sum("hogql_query is stored, not run" in line["message"] for line in lines) == 2
        assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)


async def test_a_run_that_is_stopped_before_its_first_step_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a person stops it in the moment in which it begins."""
    stopped = list[asyncio.Task[Any]]()
    create = asyncio.create_task

    def create_and_cancel(work: Any, *, name: str) -> asyncio.Task[Any]:
        task = create(work, name=name)
        if not stopped:
            task.cancel()
            stopped.append(task)
        return task

    async with scheduling() as rig:
        export = await rig.export()
        await rig.scheduler.settle()
        monkeypatch.setattr(asyncio, "create_task", create_and_cancel)
        await rig.pass_time(hours=1)
        assert [task.cancelled() for task in stopped] == [True]
        assert [run["status"] for run in await rig.runs(export)] == ["Completed"]


async def test_cleared_arrivals_hide_no_new_ones() -> None:
    """Numbers of arrivals begin anew after the events were deleted."""
    async with scheduling() as rig:
        await rig.arrive(*[START] * 3)
        export = await rig.export()
        await rig.pass_time(hours=1)
        await rig.thread.run(lambda store: store.clear())
        (late,) = await rig.arrive(START + timedelta(minutes=1))
        await rig.pass_time(hours=1)
        assert (await exported(rig, export))[1] == ("01T01:00", [late])
