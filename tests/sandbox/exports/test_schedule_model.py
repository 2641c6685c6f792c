"""Whatever comes between, each interval is exported once, with each event once: the scheduler
against a plain model.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UNPAUSE_BATCH_EXPORT,
    UPDATE_BATCH_EXPORT,
)
from forwarder.sandbox.exports.intervals import floor
from forwarder.sandbox.protocol.times import format_time, parse_time
from tests.sandbox.exports.scheduling import START, Scheduling
from tests.support.waiting import eventually

HEALTH: Final = st.sampled_from(["ok", "ok", "down", "dead", "wrong", "broken"])
MINUTES: Final = st.sampled_from([1, 10, 30, 60, 100])


class ScheduleMachine(RuleBasedStateMachine):
    """Events, clock, person and destination do what they will; at the end the destination is well,
    and what failed is retried.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.rig = Scheduling(Path(self.folder.name) / "sandbox.db")
        self.times: dict[str, datetime] = {}
        self.backfills: list[tuple[datetime, datetime, set[str]]] = []

    @initialize(minutes=st.integers(0, 59), start=st.booleans())
    def open(self, minutes: int, start: bool) -> None:
        """An export begins somewhere in an hour, or some time ago."""
        self.runner.run(self.rig.open())
        self.runner.run(self.rig.pass_time(minutes=minutes))
        self.start = START - timedelta(hours=1, minutes=20) if start else None
        self.export = self.runner.run(
            self.rig.export(start=None if self.start is None else format_time(self.start))
        )

    @rule(ages=st.lists(st.integers(-100, 300), min_size=1, max_size=5))
    def arrive(self, ages: list[int]) -> None:
        """Events arrive: of now, late, or of the future."""
        times = [self.now() - timedelta(minutes=age) for age in ages]
        self.times |= dict(zip(self.runner.run(self.rig.arrive(*times)), times, strict=True))

    @rule(minutes=MINUTES)
    def pass_time(self, minutes: int) -> None:
        """Everything due runs."""
        self.runner.run(self.rig.pass_time(minutes=minutes))

    @rule(minutes=MINUTES)
    def jump(self, minutes: int) -> None:
        """The clock moves, and something else happens before all has run."""
        self.rig.clock.advance(timedelta(minutes=minutes))
        self.runner.run(asyncio.sleep(0))

    @rule(health=HEALTH)
    def change_health(self, health: str) -> None:
        """The destination fails from now on, or works."""
        self.rig.destination.otherwise = health

    @rule()
    def kill(self) -> None:
        """Everything is dropped, and the database opened again."""
        self.runner.run(self.rig.restart())

    @rule(minutes=MINUTES)
    def kill_a_run(self, minutes: int) -> None:
        """The same in the middle of the next run, if one is due."""
        self.runner.run(self.die(minutes))

    async def die(self, minutes: int) -> None:
        """Move the clock; stop once a run has written its first part, or none runs."""
        self.rig.destination.script.append("hang")
        self.rig.clock.advance(timedelta(minutes=minutes))
        settling = asyncio.create_task(self.rig.scheduler.settle())
        await eventually(lambda: self.rig.destination.hanging or settling.done())
        self.rig.destination.script.clear()
        await self.rig.restart()
        await settling

    @rule(pause=st.booleans())
    def pause(self, pause: bool) -> None:
        """A person pauses the export, or resumes it."""
        self.call(PAUSE_BATCH_EXPORT if pause else UNPAUSE_BATCH_EXPORT)

    @rule(interval=st.sampled_from(["hour", "every 15 minutes"]))
    def change_interval(self, interval: str) -> None:
        """A person changes the interval."""
        self.call(UPDATE_BATCH_EXPORT, {"interval": interval})

    @rule(age=st.integers(1, 300), minutes=st.integers(1, 150))
    def backfill(self, age: int, minutes: int) -> None:
        """A person exports a range again."""
        first = self.now() - timedelta(minutes=age)
        last = min(self.now(), first + timedelta(minutes=minutes))
        self.call(
            BACKFILL_BATCH_EXPORT, {"start_at": format_time(first), "end_at": format_time(last)}
        )
        self.backfills.append((first, last, set(self.times)))

    @rule()
    def terminate(self) -> None:
        """A person stops whatever runs or waits."""
        for run in self.runner.run(self.rig.runs()):
            if run["finished_at"] is None and run["selection"]:
                self.runner.run(self.rig.scheduler.terminate(run["id"]))

    def now(self) -> datetime:
        """The sandbox's time."""
        return self.rig.clock.now()

    def call(self, endpoint: Any, body: Any = None, **ids: str) -> Any:
        """Call a management endpoint about the export."""
        return self.runner.run(
            self.rig.call(endpoint, body, strict=True, **{"id": self.export, **ids})
        )

    def teardown(self) -> None:
        """In the end everything is exported as it was to be."""
        try:
            if hasattr(self, "export"):
                self.recover()
                self.check()
        finally:
            self.runner.run(self.rig.close())
            self.runner.close()
            self.folder.cleanup()

    def recover(self) -> None:
        """The destination is well, the export resumed, and what has failed is retried."""
        self.kill()
        self.rig.destination.otherwise = "ok"
        self.call(UNPAUSE_BATCH_EXPORT)
        for _ in range(2):
            self.runner.run(self.rig.pass_time(seconds=40))
        runs = self.runner.run(self.rig.runs())
        done = {run["origin"] for run in runs if run["status"] == "Completed"}
        for origin, run in {
            run["origin"]: run["id"] for run in runs if run["origin"] not in done
        }.items():
            assert origin
            self.call(RETRY_BATCH_EXPORT_RUN, batch_export_id=self.export, id=run)
        self.runner.run(self.rig.scheduler.settle())

    def check(self) -> None:
        """Each interval has one completed run, each event one record, and each
        backfill its range.
        """
        runs = self.runner.run(self.rig.runs())
        assert {run["status"] for run in runs} <= {
            "Completed",
            "Failed",
            "TimedOut",
            "Terminated",
            "ContinuedAsNew",
        }
        completed = Counter(run["origin"] for run in runs if run["status"] == "Completed")
        assert set(completed) == {run["origin"] for run in runs}
        assert set(completed.values()) <= {1}
        self.check_schedule(
            [run for run in runs if run["origin"] == run["id"] and run["cause"] == "schedule"]
        )
        self.check_backfills(
            [run for run in runs if run["origin"] == run["id"] and run["cause"] == "backfill"]
        )

    def check_schedule(self, runs: list[Any]) -> None:
        """From the first interval to the last one that has ended, without a hole; each event in
        one of them.
        """
        spans = [
            (parse_time(run["data_interval_start"]), parse_time(run["data_interval_end"]))
            for run in runs
        ]
        assert [first for first, _ in spans[1:]] == [last for _, last in spans[:-1]]
        if not runs:
            return
        (begin, _) = spans[0]
        (_, end) = spans[-1]
        assert begin is not None
        assert end is not None
        assert begin == floor(self.start or self.rig_created, "hour") or begin == floor(
            self.start or self.rig_created, "every 15 minutes"
        )
        exported = Counter(
            uuid for run in runs for uuid in self.rig.destination.records(run["origin"])
        )
        assert set(exported.values()) <= {1}
        expected = {uuid for uuid, time in self.times.items() if time < end}
        if self.start is not None:
            expected = {uuid for uuid in expected if self.times[uuid] >= self.start}
        missing = expected - set(exported)
        last_arrival = json.loads(runs[-1]["selection"])["arrival"]
        assert missing <= set(list(self.times)[last_arrival:])
        assert set(exported) <= expected

    def check_backfills(self, runs: list[Any]) -> None:
        """Each range is cut into runs without a hole. They have its events: at least those that
        were there when it was asked for.
        """
        for first, last, there in self.backfills:
            parts = list[Any]()
            at = first
            while at < last:
                part = next(
                    run
                    for run in runs
                    if run["data_interval_start"] == format_time(at) and run not in parts
                )
                runs.remove(part)
                parts.append(part)
                at = parse_time(part["data_interval_end"]) or last
            assert at == last
            exported = [
                uuid for part in parts for uuid in self.rig.destination.records(part["origin"])
            ]
            within = {uuid for uuid, time in self.times.items() if first <= time < last}
            assert len(exported) == len(set(exported))
            assert within & there <= set(exported) <= within
        assert runs == []

    @property
    def rig_created(self) -> datetime:
        """When the export was made."""
        ((created,),) = self.runner.run(
            self.rig.do(
                lambda database: database.execute("SELECT created_at FROM batch_exports").fetchall()
            )
        )
        return parse_time(created) or START


ScheduleTest = ScheduleMachine.TestCase
ScheduleTest.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
