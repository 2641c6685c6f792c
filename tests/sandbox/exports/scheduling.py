"""A scheduler on a database and a clock of its own, with a destination that does what
a test says.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from forwarder.contract.endpoints import DELETE_BATCH_EXPORT, Endpoint
from forwarder.contract.resources import OWNER
from forwarder.sandbox.exports.batch_exports import HANDLERS, async_handlers
from forwarder.sandbox.exports.jobs import (
    DestinationFailed,
    ExportJob,
    ExportMisconfigured,
    Progress,
)
from forwarder.sandbox.exports.scheduler import ExportScheduler
from forwarder.sandbox.manage.call import CallingMember, Handler, ManagementCall, rows
from forwarder.sandbox.protocol.clock import SandboxClock
from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.thread import StoreThread
from tests.support.clock import MIDNIGHT
from tests.support.waiting import eventually

T = TypeVar("T")
START: Final = datetime.fromtimestamp(MIDNIGHT, UTC)
PROJECT: Final = 1
KEY: Final = "phc_scheduled"
PART: Final = 3
"""Records of a part."""
_REQUEST: Final = """
    INSERT INTO requests (
        received_at, path, query, headers, api_key, historical_migration, size, status, answer,
        events, duplicates, conflicts, not_ingested
    ) VALUES (?, '/batch/', '', '{}', ?, 0, 0, 200, '', 1, 0, 0, 0)
"""
_EVENT: Final = """
    INSERT INTO events (
        request, position, kind, api_key, historical, uuid, event, distinct_id, timestamp,
        properties, raw
    ) VALUES (?, 0, 'new', ?, 0, ?, 'seen', 'ann', ?, '{}', x'')
"""
_SELECTED: Final = """
    SELECT uuid FROM events
    WHERE api_key = :key AND id <= :arrival
        AND (:since IS NULL OR timestamp >= :since)
        AND (:before IS NULL OR timestamp < :before)
        AND NOT (
            :done_before IS NOT NULL AND timestamp < :done_before AND id <= :done_arrival
        )
    ORDER BY id
"""
_EXPORT: Final = """
    INSERT INTO batch_exports VALUES (
        NULL, ?, 1, ?, 'events', '{"type": "Fake", "config": {"secret": "s"}}', 'hour', 0, ?, ?,
        NULL, ?, ?, ?, 'null', 'null'
    )
"""
_PREPARE: Final = (
    "INSERT OR IGNORE INTO organizations VALUES (1, 'o', 'Example', '')",
    f"INSERT OR IGNORE INTO projects VALUES (1, 'p', 'o', '{KEY}', '', '', '', '{{}}')",
    "CREATE TEMP TABLE transitions (run TEXT, status TEXT)",
    """
    CREATE TEMP TRIGGER made AFTER INSERT ON main.batch_export_runs
    BEGIN INSERT INTO transitions VALUES (new.id, new.status); END
    """,
    """
    CREATE TEMP TRIGGER changed AFTER UPDATE OF status ON main.batch_export_runs
    WHEN old.status <> new.status
    BEGIN INSERT INTO transitions VALUES (new.id, new.status); END
    """,
)


class FakeDestination:
    """Writes parts of `PART` records, by their run's origin and number, and fails as the script
    says: `ok` once that is empty.

    `down` fails after the first part, `dead` before it; `wrong` is misconfigured, `broken` a bug;
    `hang` waits after the first part.
    """

    def __init__(self) -> None:
        self.script: deque[str] = deque()
        self.otherwise = "ok"
        self.written: defaultdict[str, dict[int, list[str]]] = defaultdict(dict)
        self.jobs: list[ExportJob] = []
        self.running: set[str] = set()
        self.hanging: set[str] = set()
        self.most = 0
        self.release = asyncio.Event()

    async def write(self, thread: StoreThread, job: ExportJob, progress: Progress) -> None:
        """As `ExportRecords`."""
        behaviour = self.script.popleft() if self.script else self.otherwise
        self.jobs.append(job)
        self.running.add(job.run)
        self.most = max(self.most, len(self.running))
        try:
            await self._write(thread, job, progress, behaviour)
        finally:
            self.running.discard(job.run)
            self.hanging.discard(job.run)

    async def _write(
        self, thread: StoreThread, job: ExportJob, progress: Progress, behaviour: str
    ) -> None:
        if behaviour == "wrong":
            raise ExportMisconfigured("no such bucket")
        if behaviour == "broken":
            raise ZeroDivisionError
        if behaviour == "dead":
            raise DestinationFailed("the bucket is down")
        one = job.selection
        values = {
            "key": job.api_key,
            "since": one.since,
            "before": one.before,
            "arrival": one.arrival,
        }
        values |= {"done_before": one.done_before, "done_arrival": one.done_arrival}
        uuids = await thread.run(
            lambda store: [row[0] for row in store.connection.execute(_SELECTED, values)]
        )
        parts = [uuids[first : first + PART] for first in range(0, len(uuids), PART)]
        for number in range(int(job.cursor or 0), len(parts)):
            self.written[job.origin][number] = parts[number]
            await progress(str(number + 1), sum(map(len, parts[: number + 1])), len(uuids))
            if behaviour in ("down", "hang"):
                break
        if behaviour == "hang":
            self.hanging.add(job.run)
            await self.release.wait()
        if behaviour == "down":
            raise DestinationFailed("the bucket is down")

    def records(self, origin: str) -> list[str]:
        """What is at the destination of one run's work."""
        return [uuid for _, part in sorted(self.written[origin].items()) for uuid in part]


class Scheduling:
    """An organization's project with batch exports, and what runs them. `path` is needed to
    restart it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.clock = SandboxClock(lambda: MIDNIGHT)
        self.destination = FakeDestination()
        self.events = 0
        self.transitions: dict[str, list[str]] = {}

    async def open(self) -> None:
        """Open the database, and start to schedule."""
        self.thread = StoreThread(self.path)
        await self.do(self._prepare)
        self.scheduler = ExportScheduler(
            self.thread,
            self.clock,
            lambda job, progress: self.destination.write(self.thread, job, progress),
        )
        await self.scheduler.start()

    async def close(self) -> None:
        """Stop at once, as a kill does."""
        await self.scheduler.close()
        await self.watch()
        await self.thread.close()

    async def restart(self) -> None:
        """Drop everything, and open the database again."""
        await self.close()
        await self.open()

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run something on the database."""
        return await self.thread.run(lambda store: work(store.connection))

    async def export(
        self, number: int = 1, start: str | None = None, end: str | None = None, query: str = ""
    ) -> str:
        """A batch export per hour, made now; its id."""
        identity = f"00000000-0000-4000-8000-{number:012}"
        now = format_time(self.clock.now())
        await self.do(
            lambda database: database.execute(
                _EXPORT, (identity, f"Export {number}", now, now, start, end, query)
            )
        )
        self.scheduler.wake()
        return identity

    async def arrive(self, *times: datetime) -> list[str]:
        """Events with these times arrive; their uuids."""
        uuids = [f"event-{self.events + number}" for number in range(len(times))]
        self.events += len(times)

        def insert(database: sqlite3.Connection) -> None:
            for uuid, time in zip(uuids, times, strict=True):
                request = database.execute(_REQUEST, (format_time(self.clock.now()), KEY)).lastrowid
                database.execute(_EVENT, (request, KEY, uuid, format_time(time)))

        await self.do(insert)
        return uuids

    async def pass_time(self, **by: float) -> None:
        """Move the clock, and wait until everything due has run."""
        self.clock.advance(timedelta(**by))
        await self.scheduler.settle()

    async def hang(self, **by: float) -> str:
        """Move the clock, and wait until a run hangs; its id."""
        self.clock.advance(timedelta(**by))
        self.scheduler.wake()
        await eventually(lambda: self.destination.hanging)
        (run,) = self.destination.hanging
        return run

    async def call(
        self, endpoint: Endpoint[Any, Any], body: Any = None, *, strict: bool = True, **ids: str
    ) -> Any:
        """Call a management endpoint as it is served."""

        async def run(handler: Handler) -> Any:
            def work(database: sqlite3.Connection) -> Any:
                caller = CallingMember(0, "", OWNER)
                return handler(
                    ManagementCall(
                        endpoint,
                        database,
                        self.clock.now(),
                        caller,
                        "",
                        PROJECT,
                        ids,
                        body or {},
                        strict=strict,
                    )
                )

            return await self.do(work)

        served = async_handlers(self.scheduler)
        return await (served[endpoint](run) if endpoint in served else run(HANDLERS[endpoint]))

    async def delete(self, export: str) -> None:
        """Delete a batch export."""
        await self.call(DELETE_BATCH_EXPORT, id=export)

    async def runs(self, export: str | None = None) -> list[sqlite3.Row]:
        """The runs of an export, or all, the oldest first."""
        condition = "batch_export = ?" if export else "? IS NULL"
        return await self.do(
            lambda database: rows(
                database,
                f"SELECT * FROM batch_export_runs WHERE {condition} ORDER BY number",
                export,
            )
        )

    async def watch(self) -> dict[str, list[str]]:
        """The statuses that each run has had, by run in the order of their making."""
        transitions = await self.do(
            lambda database: database.execute("SELECT run, status FROM temp.transitions").fetchall()
        )
        await self.do(lambda database: database.execute("DELETE FROM temp.transitions"))
        for run, status in transitions:
            self.transitions.setdefault(run, []).append(status)
        return self.transitions

    @staticmethod
    def _prepare(database: sqlite3.Connection) -> None:
        for statement in _PREPARE:
            database.execute(statement)
