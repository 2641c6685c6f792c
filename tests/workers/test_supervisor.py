"""The supervisor's life, with workers' processes that say what a test wants them to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from forwarder.admin.event_lookup import WantedUuid
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.daemon import INTERRUPTED
from forwarder.deadletter.schema import open_readable, open_writable
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, State, balanced
from forwarder.telemetry.taps import TapFilter, TapRequest
from forwarder.workers import worker_process as workers
from forwarder.workers.channel import Command, SupervisorsEnd
from forwarder.workers.supervisor import Supervisor
from forwarder.workers.worker_process import Launch
from tests.support.clock import FakeClock
from tests.support.fake_workers import fake
from tests.support.snapshots import FULL
from tests.support.waiting import eventually, tick

LIMIT = 60.0
PROMPT = 0.3
"""Seconds in which a worker that responds does so, on a busy machine too."""
SHOWN = replace(FULL, workers=(), warnings=())
HOLDS_LETTERS = replace(
    SHOWN,
    lanes=(LaneSnapshot("a", {"http": 1}, dead_lettered={"refused": 1}),),
    dead_letters_wanted=0,
)
IDLE = replace(SHOWN, lanes=(), buffer_bytes=0, dead_letters_wanted=0)


def settings(**sections: Any) -> Settings:
    """Settings of two workers on free ports."""
    base = {
        "upstream": {"url": "https://a.example.com"},
        "sources": {"http": {"listen": "127.0.0.1:0"}},
        "admin": {"listen": "127.0.0.1:0"},
        "workers": 2,
    }
    return Settings.parse({**base, **sections})


class RunningSupervisor:
    """One supervisor, and its task."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.exits: list[int] = []
        self.logs: list[Any] = []
        self.configured: Callable[[], Settings] = settings
        self.pings: Counter[SupervisorsEnd] = Counter()
        """Questions whether a process responds that weren't answered, as `counting` counts them."""

    def begin(self, how: Launch, configuration: Settings | None = None) -> None:
        """Make the supervisor and run it."""
        given = configuration or settings()
        self.supervisor = Supervisor(
            given, self._load, how, clock=self.clock, exit_now=self.exits.append
        )
        self.task = asyncio.create_task(self.supervisor.run())

    def _load(self) -> Settings:
        return self.configured()

    async def started(self) -> dict[str, Any]:
        """Wait until it listens; what it says then."""
        return await self.logged("listening")

    async def logged(self, event: str) -> dict[str, Any]:
        """Wait for a log line of that name."""
        await eventually(
            lambda: self.task.done() or any(line["event"] == event for line in self.logs),
            explain=lambda: self.logs,
        )
        return dict(next(line for line in self.logs if line["event"] == event))

    async def until(self, holds: Callable[[Snapshot], object]) -> Snapshot:
        """Wait until what it shows is so. The clock is turned meanwhile."""
        async with asyncio.timeout(LIMIT):
            while not holds(snapshot := await self.supervisor.snapshot()):
                await self.clock.advance(0.1)
            return snapshot

    async def pings_until(self, event: str) -> int:
        """Have the workers asked whether they respond until there is a log line of that name; how
        many one process hasn't answered.
        """
        async with asyncio.timeout(LIMIT):
            while not any(line["event"] == event for line in self.logs):
                await self.clock.advance(workers.CHECK_EVERY)
                await tick()
        return max(self.pings.values(), default=0)

    async def ended(self) -> int:
        """Wait for the exit code."""
        return await asyncio.wait_for(asyncio.shield(self.task), LIMIT)

    async def stopped(self) -> int:
        """Stop it; the exit code."""
        os.kill(os.getpid(), signal.SIGTERM)
        return await self.ended()


def counting(life: RunningSupervisor) -> Callable[..., Awaitable[bytes]]:
    """`SupervisorsEnd.ask`, that counts the questions whether a worker
    responds that aren't answered.
    """
    ask = SupervisorsEnd.ask

    async def count(
        line: SupervisorsEnd, command: Command, seconds: float, text: str = ""
    ) -> bytes:
        answer = await ask(line, command, seconds, text)
        life.pings[line] += command is Command.PING and not answer
        return answer

    return count


@pytest.fixture
async def life(clock: FakeClock) -> AsyncIterator[RunningSupervisor]:
    """A supervisor to be; ended at the end, whatever happened."""
    life = RunningSupervisor(clock)
    with capture_logs() as life.logs:
        yield life
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)


async def test_the_sum_is_shown_once_all_have_started(life: RunningSupervisor) -> None:
    """The log names the address once, with the number of workers; the snapshot is the workers'
    sum, and names each.
    """
    life.begin(fake(SHOWN))
    assert (await life.started())["workers"] == 2
    shown = await life.supervisor.snapshot()
    assert balanced(shown)
    assert shown.buffer_bytes == 2 * FULL.buffer_bytes
    assert [(worker.name, worker.state) for worker in shown.workers] == [
        ("worker-0", "running"),
        ("worker-1", "running"),
    ]
    assert (shown.ready, shown.state) == (True, State.RUNNING)
    assert sum(line["event"] == "events wait in memory" for line in life.logs) == 1
    assert await life.stopped() == 0


async def test_the_real_port_is_named_though_no_worker_says_it(life: RunningSupervisor) -> None:
    """As when none responds in time on a busy machine."""
    life.begin(fake(replace(SHOWN, addresses=())))
    (address,) = (await life.started())["ingestion"]
    assert not address.endswith(":0")
    assert await life.stopped() == 0


async def test_before_the_workers_run_it_is_starting(life: RunningSupervisor) -> None:
    """The admin server listens first, and says that nothing can be taken yet."""
    life.begin(fake(SHOWN, w0={"late": True}, w1={"late": True}))
    shown = await life.until(lambda now: len(now.workers) == 2)
    assert [worker.state for worker in shown.workers] == ["starting", "starting"]
    assert (shown.state, shown.ready) == (State.STARTING, False)
    assert await life.stopped() == 0


async def test_the_worst_exit_code_counts(life: RunningSupervisor) -> None:
    """A worker that leaves events behind makes the daemon's exit code 1; while they drain nothing
    is ready.
    """
    life.begin(fake(SHOWN, w1={"code": 1}))
    await life.started()
    assert await life.stopped() == 1


async def test_the_end_of_standard_input_ends_it(life: RunningSupervisor, tmp_path: Path) -> None:
    """The first worker has it and reports its end; then all of them end. The others have nothing
    to read.
    """
    (tmp_path / "empty").touch()
    log = {"stdin": True, "mapping": {"event": ".e", "distinct_id": ".u"}, "api_key": "phc_a"}
    configuration = settings(sources={"http": {"listen": "127.0.0.1:0"}, "logs": [log]})
    with (tmp_path / "empty").open() as empty:
        saved_stdin = os.dup(0)
        os.dup2(empty.fileno(), 0)
        try:
            life.begin(fake(SHOWN, w0={"input": True}), configuration)
            assert await life.ended() == 0
        finally:
            os.dup2(saved_stdin, 0)
            os.close(saved_stdin)
    assert (await life.logged("stopping: standard input has ended"))["log_level"] == "info"


async def test_a_worker_that_cant_start_ends_it(life: RunningSupervisor) -> None:
    """Its reason is raised as the daemon's own, once the other has drained, and
    nothing is started again.
    """
    life.begin(fake(SHOWN, w1={"fails": "the directory is in use"}))
    with pytest.raises(ConfigurationError, match="the directory is in use") as raised:
        await life.ended()
    assert raised.value.hint == "mend it"
    assert not [line for line in life.logs if line["event"] == "listening"]


async def test_a_worker_that_ends_with_2_without_a_word(life: RunningSupervisor) -> None:
    """A worker whose configuration can't be read has said so itself."""
    life.begin(fake(SHOWN, w0={"exits": 2}))
    with pytest.raises(ConfigurationError, match="worker-0 can't start"):
        await life.ended()


async def test_a_worker_that_keeps_dying_is_started_with_growing_pauses(
    life: RunningSupervisor, tmp_path: Path
) -> None:
    """Each end is reported with the pause that follows; the other worker continues,
    and the daemon is ready.
    """
    life.begin(fake(SHOWN, w1={"exits": 1}))
    await life.started()

    def ends() -> list[dict[str, Any]]:
        return [dict(line) for line in life.logs if line["event"] == "a worker ended"]

    shown = await life.until(lambda _: len(ends()) == 4)
    assert [line["starts_again_in_seconds"] for line in ends()] == [0.2, 0.4, 0.8, 1.6]
    assert ends()[0]["why"] == "it ended with exit code 1"
    assert shown.ready
    assert any("worker-1: it ended with exit code 1" in warning for warning in shown.warnings)
    assert await life.stopped() == 0


async def test_what_a_dead_worker_showed_last_stays_until_it_is_back(
    life: RunningSupervisor,
) -> None:
    """A scrape between death and return shows the books as they were: they balance, and no counter
    goes back.
    """
    life.begin(fake(SHOWN))
    await life.started()
    victim = (await life.supervisor.snapshot()).workers[1].process
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    line = await life.logged("a worker ended")
    assert (line["why"], line["events_lost"]) == ("it was ended by SIGKILL", 70)
    away = await life.supervisor.snapshot()
    assert away.workers[1].state == "away"
    assert away.connections == FULL.connections
    assert [lane.delivered for lane in away.lanes] == [2 * lane.delivered for lane in FULL.lanes]
    back = await life.until(lambda now: now.workers[1].state == "running")
    assert back.workers[1].restarts == 1
    assert not [warning for warning in back.warnings if "worker-1" in warning]
    assert await life.stopped() == 0


async def test_a_worker_that_isnt_there_any_more_when_it_stops(life: RunningSupervisor) -> None:
    """A stop during the pause before a restart starts nothing any more."""
    life.begin(fake(SHOWN, w1={"exits": 1}))
    await life.logged("a worker ended")
    assert await life.stopped() == 0


async def test_a_process_that_is_stopped_before_it_listens(
    life: RunningSupervisor,
) -> None:
    """A service manager's signal to every process meets one that has only begun:
    nothing was left behind.
    """
    life.begin(fake(SHOWN, w1={"deaf": True}))
    starting = await life.until(
        lambda now: (
            len(now.workers) == 2 and now.workers[0].state == "running" and now.workers[1].process
        )
    )
    assert starting.workers[1].process is not None
    life.supervisor.on_stop_signal(signal.SIGTERM)
    os.kill(starting.workers[1].process, signal.SIGTERM)
    assert await life.ended() == 0


async def test_a_process_that_cant_be_made(life: RunningSupervisor) -> None:
    """Without an interpreter nothing starts; that is reported, and tried again."""
    life.begin(Launch(["/nowhere/python"], {}))
    assert "/nowhere/python" in (await life.logged("a worker ended"))["why"]
    assert not (await life.supervisor.snapshot()).ready
    assert await life.stopped() == 0


async def test_a_mute_worker_is_shown_as_it_was(
    life: RunningSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that doesn't answer in time doesn't take the others' figures away."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.2)
    life.begin(fake(SHOWN, w1={"mute": True}), settings())
    await life.started()
    shown = await life.supervisor.snapshot()
    assert shown.buffer_bytes == 2 * FULL.buffer_bytes
    assert any(warning.startswith("worker-1 is slow to answer") for warning in shown.warnings)
    assert await life.stopped() == 0


async def test_a_worker_that_hangs_is_started_again(
    life: RunningSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that hasn't answered for a minute is killed, and another takes its place."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", PROMPT)
    monkeypatch.setattr(SupervisorsEnd, "ask", counting(life))
    life.begin(fake(SHOWN, w1={"mute": True}))
    await life.started()
    assert await life.pings_until("a worker ended") == workers.MAX_UNANSWERED
    assert (await life.logged("a worker ended"))["why"] == "it didn't respond, and was killed"
    assert (await life.until(lambda now: now.workers[1].restarts == 1)).workers[0].restarts == 0
    assert await life.stopped() == 0


async def test_a_worker_that_is_stopped_is_shown_until_it_continues(
    life: RunningSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log, status and warnings name it; nothing waits for it, others accept; when it responds
    again, that is all over.
    """
    monkeypatch.setattr(workers, "ANSWER_SECONDS", PROMPT)
    life.begin(fake(SHOWN))
    await life.started()
    process = (await life.supervisor.snapshot()).workers[1].process
    assert process is not None
    began = life.clock.now()
    os.kill(process, signal.SIGSTOP)
    await life.pings_until("a worker doesn't respond")
    monkeypatch.setattr(workers, "ANSWER_SECONDS", LIMIT)
    line = await life.logged("a worker doesn't respond")
    assert (line["worker"], line["process"], line["log_level"]) == ("worker-1", process, "error")
    assert f"kill -CONT {process}" in line["hint"]
    assert "lost" in line["meaning"]
    shown = await asyncio.wait_for(life.supervisor.snapshot(), LIMIT / 2)
    assert (shown.ready, shown.workers[0].silent_since) == (True, None)
    assert shown.workers[1].silent_since is not None
    assert began <= shown.workers[1].silent_since <= life.clock.now()
    assert [
        warning
        for warning in shown.warnings
        if warning.startswith("worker-1 hasn't responded for ")
    ]
    os.kill(process, signal.SIGCONT)
    await life.pings_until("a worker responds again")
    shown = await life.supervisor.snapshot()
    assert (shown.workers[1].silent_since, shown.workers[1].process, shown.warnings) == (
        None,
        process,
        (),
    )
    assert await life.stopped() == 0


async def test_without_a_worker_that_responds_nothing_is_ready(
    life: RunningSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures are the last ones, but none of the workers accepts anything."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 0.01)
    life.begin(fake(SHOWN, w0={"mute": True}, w1={"mute": True}))
    await life.started()
    await life.pings_until("a worker doesn't respond")
    shown = await life.until(lambda now: not now.ready)
    assert set(shown.not_ready) == {"worker-0: it doesn't respond", "worker-1: it doesn't respond"}
    assert shown.buffer_bytes == 2 * FULL.buffer_bytes
    await life.stopped()


async def test_a_stop_waits_less_for_a_worker_that_doesnt_respond(
    life: RunningSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others have ended by then: it is killed after a quarter of the time, and what it held
    counts as lost.
    """
    monkeypatch.setattr(workers, "ANSWER_SECONDS", PROMPT)
    life.begin(fake(SHOWN))
    await life.started()
    process = (await life.supervisor.snapshot()).workers[1].process
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    await life.pings_until("a worker doesn't respond")
    monkeypatch.setattr(SupervisorsEnd, "ask", counting(life))
    life.supervisor.on_stop_signal(signal.SIGTERM)
    assert await life.pings_until("stopped") < workers.MAX_UNANSWERED / 2
    assert await life.ended() == 1


async def test_a_second_signal_ends_the_drain(life: RunningSupervisor) -> None:
    """The second signal, one that comes a second later, has all workers save what they hold; the
    exit code is 130.
    """
    life.begin(fake(SHOWN, w0={"ends": "i"}, w1={"ends": "i", "code": 1}))
    await life.started()
    life.supervisor.on_stop_signal(signal.SIGTERM)
    life.supervisor.on_stop_signal(signal.SIGTERM)
    await life.clock.advance(1.0)
    assert not life.task.done()
    life.supervisor.on_stop_signal(signal.SIGINT)
    assert await life.ended() == INTERRUPTED
    assert life.exits == []
    assert (await life.logged("interrupted"))["events_waiting"] == 140


async def test_a_third_signal_kills(life: RunningSupervisor) -> None:
    """Workers that don't end are killed then; the log says what is lost, and the process ends at
    once with 130.
    """
    life.begin(fake(SHOWN, w0={"ends": "-"}, w1={"ends": "-"}))
    await life.started()
    for _ in range(3):
        life.supervisor.on_stop_signal(signal.SIGTERM)
        await life.clock.advance(1.0)
    assert life.exits == [INTERRUPTED]
    assert (await life.logged("ended at once"))["events_lost"] == 140
    assert await life.ended() == INTERRUPTED


async def test_hangup_is_passed_on(life: RunningSupervisor) -> None:
    """SIGHUP reaches the workers if the configuration can be used; what needs a restart is said
    once, by the supervisor.
    """
    life.begin(fake(SHOWN))
    await life.started()

    def broken() -> Settings:
        raise ConfigurationError("upstream.url is missing", hint="set it")

    life.configured = broken
    os.kill(os.getpid(), signal.SIGHUP)
    await life.logged("the configuration can't be read again; the one in use stays")
    assert "reloaded" not in (await life.supervisor.snapshot()).warnings
    life.configured = lambda: settings(workers=3, batch={"max_age": "9s"})
    os.kill(os.getpid(), signal.SIGHUP)
    assert (await life.logged("configuration read again"))["needs_restart"] == ["workers"]
    assert (await life.until(lambda now: "reloaded" in now.warnings)).warnings == ("reloaded",)
    assert await life.stopped() == 0


async def test_a_question_about_one_event_goes_to_all(life: RunningSupervisor) -> None:
    """Where an event is available, each worker is asked."""
    life.begin(fake(SHOWN))
    await life.started()
    sightings = await life.supervisor.find(WantedUuid.parse("01890a5d-ac96-774b-bcce-b302099a8057"))
    assert [sighting.where for sighting in sightings] == ["worker 0", "worker 1"]
    assert await life.stopped() == 0


async def test_a_tap_goes_to_all(life: RunningSupervisor) -> None:
    """Each worker has its part of the rate, and what they have collected is one batch; a long
    filter reaches them whole.
    """
    life.begin(fake(SHOWN))
    await life.started()
    wanted = TapFilter(events=("x" * 1000,), rate=20)
    batch = await life.supervisor.tap(TapRequest("one", wanted))
    asked = [msgspec.json.decode(event, type=TapRequest) for event in batch.events]
    assert asked == [TapRequest("one", msgspec.structs.replace(wanted, rate=10))] * 2
    assert (batch.skipped, batch.lost) == (4, 1)
    assert len((await life.supervisor.tap(TapRequest("one"))).events) == 2
    assert await life.stopped() == 0


async def test_the_admin_server_shows_the_sum(life: RunningSupervisor) -> None:
    """One admin address serves metrics, health and status of all."""
    life.begin(fake(SHOWN))
    admin = (await life.started())["admin"]
    async with aiohttp.ClientSession(f"http://{admin}") as client:
        async with client.get("/readyz") as answer:
            assert answer.status == 200
        async with client.get("/metrics") as answer:
            assert 'forwarder_events_buffered{lane="phc_…good#0a1b2c"} 80.0' in await answer.text()
    assert await life.stopped() == 0


async def test_directories_that_were_left_are_emptied(
    life: RunningSupervisor, tmp_path: Path
) -> None:
    """A worker without a listener works on a directory of a former worker; when it is empty it
    goes, its books stay in the sum.
    """
    log = tmp_path / "log"
    for number in (2, 3):
        (tmp_path / f"worker-{number}" / "log").mkdir(parents=True)
    disk = settings(buffer={"kind": "disk", "path": str(tmp_path)})
    life.begin(
        fake(IDLE, w2={"log": str(log)}, w3={"log": str(log), "shown": SHOWN, "idle": True}), disk
    )
    await life.started()
    shown = await life.until(
        lambda now: (
            [worker.state for worker in now.workers] == ["running", "running", "done", "running"]
        )
    )
    assert [lane.buffered for lane in shown.lanes] == [lane.buffered for lane in FULL.lanes]
    await life.until(lambda _: not (tmp_path / "worker-2").exists())  # a moment after its state
    roles = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(role["number"], role["workers"], role["listens"]) for role in roles} == {
        (2, 2, False),
        (3, 2, False),
    }
    assert await life.stopped() == 0
    assert (tmp_path / "worker-3").exists()


async def test_letters_that_are_marked_later_are_seen(
    life: RunningSupervisor, tmp_path: Path
) -> None:
    """A directory that stays for its dead letters gets a worker again as soon as someone has
    marked one, even if that is in the database's log alone; not when they are only looked at.
    """
    letters = tmp_path / "worker-2" / "dead-letters.db"
    letters.parent.mkdir()
    with closing(open_writable(letters)) as writing:
        writing.execute(
            "INSERT INTO letters (reason, historical, at, why, source, coordinates, receipt, cost, "
            "crc, data) VALUES ('refused', 0, 1.0, '', 'http', '', 0, 1, 0, x'7b7d')"
        )
    life.begin(
        fake(SHOWN, w2={"log": str(tmp_path / "log"), "shown": HOLDS_LETTERS}),
        settings(dead_letters={"path": str(tmp_path)}),
    )
    await life.started()
    await life.until(lambda now: len(now.workers) == 3 and now.workers[2].state == "done")
    with closing(open_readable(letters)) as reading:
        reading.execute("SELECT count(*) FROM letters").fetchone()
        await life.clock.advance(5)
        assert len((tmp_path / "log").read_text().splitlines()) == 1
        unchanged = letters.read_bytes()
        with closing(open_writable(letters)) as writing:
            writing.execute("UPDATE letters SET mark = 'replay'")
    assert letters.read_bytes() == unchanged
    async with asyncio.timeout(LIMIT):
        while len((tmp_path / "log").read_text().splitlines()) < 2:
            await life.clock.advance(0.5)
            await tick()
    assert await life.stopped() == 0


async def test_cancellation_kills_the_workers(life: RunningSupervisor) -> None:
    """A cancelled supervisor leaves no process, no server and no signal handler behind."""
    life.begin(fake(SHOWN))
    await life.started()
    processes = [worker.process for worker in (await life.supervisor.snapshot()).workers]
    life.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life.ended()
    for process in processes:
        assert process is not None
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
