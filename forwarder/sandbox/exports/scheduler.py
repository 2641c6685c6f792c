"""Runs the batch exports: each when it is due on the sandbox's clock.

One task waits for the earliest due time, and is woken by changes; so a sandbox without exports
does nothing. Runs of different exports run beside one another, up to `MOST_RUNNING`; of one export
there is one at a time. Its schedule and what was requested of it (backfills, retries) are two
queues that take turns. Each keeps its order; a run that waits for its next attempt holds up its
own queue only. Pausing stops the schedule; what was requested runs all the same, and so does a run
that has begun.

What ends a run from outside (deletion, a person, its time limit) is first stored, then stops the
writing: a finished run never changes, so whatever comes first counts. Stopping the sandbox stores
nothing: the runs are continued at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias, TypeVar

from forwarder.core.error_text import error_text
from forwarder.sandbox.exports import runs
from forwarder.sandbox.exports.jobs import (
    DestinationFailed,
    ExportJob,
    ExportMisconfigured,
    ExportRecords,
)
from forwarder.sandbox.exports.runs import DueRun
from forwarder.sandbox.protocol.clock import SandboxClock
from forwarder.sandbox.store.thread import StoreThread

MOST_RUNNING: Final = 4
"""Runs at a time, of all exports."""
PAUSE: Final = timedelta(seconds=10)
"""Until the scheduler tries again what failed by a fault of its own."""
_LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")
_Change: TypeAlias = Callable[[sqlite3.Connection, datetime], object]


@dataclass(slots=True)
class _ActiveRun:
    """A run in progress."""

    export: str
    run: str
    deadline: datetime
    task: asyncio.Task[None]
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class _ExportTurn:
    """When a run of an export began last, by the count of all runs, and from which of
    its queues.
    """

    number: int = 0
    requested: bool = True


class ExportScheduler:
    """The scheduler of one sandbox. `export` writes what a run selects."""

    def __init__(self, thread: StoreThread, clock: SandboxClock, export: ExportRecords) -> None:
        self._thread = thread
        self._clock = clock
        self._export = export
        self._active: dict[str, _ActiveRun] = {}
        self._turns: dict[str, _ExportTurn] = {}
        self._held: dict[str, datetime] = {}
        self._begun = 0
        self._settling: list[asyncio.Future[None]] = []
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Continue what a stop interrupted, and begin to schedule. Cancelled, it hasn't begun."""
        await self._change(runs.continue_interrupted)
        self._task = asyncio.create_task(self._schedule(), name="batch exports")

    async def close(self) -> None:
        """Stop every run at once and schedule no more; a second call does nothing. Cancellation
        ends the wait only.
        """
        tasks = [
            task
            for task in (self._task, *(active.task for active in self._active.values()))
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for settled in self._settling:
            settled.cancel()

    def wake(self) -> None:
        """Look at the exports again: something has changed."""
        self._woken.set()

    async def settle(self) -> None:
        """Return once nothing runs and nothing is due, or once it is closed.
        Cancellation ends the wait.
        """
        if self._task is None or self._task.done():
            return
        settled = asyncio.get_running_loop().create_future()
        self._settling.append(settled)
        self.wake()
        await asyncio.wait([settled])

    async def stop(self, export: str) -> None:
        """Stop the run in progress of an export, if there is one; it is finished in the database.
        Cancellation ends the wait only.
        """
        if (active := self._active.get(export)) is not None:
            active.task.cancel()
            await asyncio.wait([active.task])

    async def terminate(self, run: str) -> bool:
        """Finish a run as `Terminated` and stop it; False if it was finished already. Cancellation
        ends the wait only.
        """
        done: bool = await self._change(
            lambda database, now: runs.finish_run(
                database, run, "Terminated", "A person stopped the run.", now
            )
        )
        for active in list(self._active.values()):
            if done and active.run == run:
                await self.stop(active.export)
        self.wake()
        return done

    async def _schedule(self) -> None:
        while True:
            self._woken.clear()
            try:
                following = await self._begin_due()
            except Exception:
                _LOG.exception("Batch exports could not be scheduled")
                following = self._clock.now() + PAUSE
            await self._clock.wait(following, self._woken)

    async def _begin_due(self) -> datetime | None:
        """Begin the runs that are due and have a place; returns when there is more to do."""
        asked = list(self._settling)
        await self._stop_late()
        due_runs = await self._change(runs.due_runs)
        now = self._clock.now()
        free = [
            replace(due, due=max(due.due, self._held.get(due.export, due.due)))
            for due in due_runs
            if due.export not in self._active
        ]
        ready = self._in_turn([due for due in free if due.due <= now])
        for chosen in ready[: MOST_RUNNING - len(self._active)]:
            await self._begin(chosen)
        if not ready and not self._active:
            self._settle(asked)
        times = [due.due for due in free if due.due > now] + [
            active.deadline for active in self._active.values() if not active.timed_out
        ]
        return min(times, default=None)

    def _settle(self, asked: Sequence[asyncio.Future[None]]) -> None:
        for settled in asked:
            self._settling.remove(settled)
            if not settled.done():
                settled.set_result(None)

    def _in_turn(self, ready: Sequence[DueRun]) -> list[DueRun]:
        """One run of each export, of the queue whose turn it is; the export that ran longest ago
        comes first.
        """
        chosen: dict[str, DueRun] = {}
        for due in ready:
            if due.export not in chosen or due.requested != self._turn(due).requested:
                chosen[due.export] = due
        return sorted(chosen.values(), key=lambda due: self._turn(due).number)

    def _turn(self, due: DueRun) -> _ExportTurn:
        return self._turns.get(due.export, _ExportTurn())

    async def _begin(self, chosen: DueRun) -> None:
        try:
            begun = await self._change(lambda database, now: runs.begin_run(database, chosen, now))
        except Exception:
            _LOG.exception("A run of the batch export %s could not begin", chosen.export)
            self._held[chosen.export] = self._clock.now() + PAUSE
            begun = None
        if begun is None:
            self.wake()  # what there is to do has changed
            return
        self._begun += 1
        self._turns[chosen.export] = _ExportTurn(self._begun, chosen.requested)
        task = asyncio.create_task(self._run(chosen.export, begun.job), name=f"run {begun.job.run}")
        self._active[chosen.export] = _ActiveRun(
            chosen.export, begun.job.run, self._clock.now() + begun.limit, task
        )
        # a task that is cancelled before its first step runs nothing itself
        task.add_done_callback(partial(self._ended, chosen.export))

    def _ended(self, export: str, _task: asyncio.Task[None]) -> None:
        del self._active[export]
        self.wake()

    async def _run(self, export: str, job: ExportJob) -> None:
        """One attempt, and what comes of it. Cancelled, it stores nothing."""
        try:
            await self._change(await self._attempt(job))
        except Exception:
            _LOG.exception("The end of the run %s could not be stored", job.run)
            self._held[export] = self._clock.now() + PAUSE

    async def _attempt(self, job: ExportJob) -> _Change:
        try:
            await self._export(job, partial(self._progress, job.run))
        except ExportMisconfigured as error:
            message = str(error)
            return lambda database, now: runs.finish_run(database, job.run, "Failed", message, now)
        except DestinationFailed as error:
            message = str(error)
        except Exception as error:
            _LOG.exception("The run %s failed", job.run)
            message = f"The sandbox failed ({error_text(error)}); its log says why."
        else:
            return lambda database, now: runs.complete_run(database, job.run, now)
        return lambda database, now: runs.fail_attempt(database, job.run, message, now)

    async def _progress(self, run: str, cursor: str, completed: int, total: int) -> None:
        await self._change(
            lambda database, now: runs.record_progress(
                database, run, now, cursor=cursor, completed=completed, total=total
            )
        )

    async def _stop_late(self) -> None:
        """Stop the runs whose time is over."""
        for active in list(self._active.values()):
            if not active.timed_out and active.deadline <= self._clock.now():
                active.timed_out = True
                await self._change(partial(_time_out, active.run))
                active.task.cancel()

    async def _change(self, change: Callable[[sqlite3.Connection, datetime], T]) -> T:
        return await self._thread.run(lambda store: change(store.connection, self._clock.now()))


def _time_out(run: str, database: sqlite3.Connection, now: datetime) -> None:
    runs.finish_run(
        database, run, "TimedOut", "The run took longer than the interval of its export.", now
    )
