"""The daemon's life: start, signals, drain, exit code; with a fake pipeline and a fake clock, real
signals and a real admin server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest
from structlog.testing import capture_logs

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.daemon.daemon import INTERRUPT_SECONDS, INTERRUPTED, Daemon
from forwarder.daemon.restart import InPlaceRestart
from forwarder.daemon.roles import Role
from forwarder.telemetry.labels import lane_label
from tests.support.clock import FakeClock, settle
from tests.support.pipelines import FakePipeline
from tests.support.snapshots import FULL

LIMIT = 30.0
BAD_RELOAD = "the configuration can't be read again; the one in use stays"


def settings(**sections: Mapping[str, Any]) -> Settings:
    """Settings with an admin server on a free port."""
    return Settings.parse(
        {
            "upstream": {"url": "https://analytics.example.com"},
            "admin": {"listen": "127.0.0.1:0"},
            **sections,
        }
    )


class FakeRestart(InPlaceRestart):
    """A restart in place that goes as far as the new program's beginning."""

    def __init__(self) -> None:
        super().__init__((), ())
        self.why = ""
        self.done: list[str] = []

    async def objection(self) -> str:
        """What was reported."""
        self.done.append("check")
        return self.why

    def block_signals(self) -> None:
        """Note it: the test needs its signals."""
        self.done.append("hold signals")


class RunningDaemon:
    """One daemon, its parts, and its task."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.exits: list[int] = []
        self.configured: Callable[[], Settings] = settings
        self.logs: list[Any] = []
        self.prepare: Callable[[FakePipeline], None] = lambda _: None
        self.restart = FakeRestart()

    def begin(self, configuration: Settings) -> None:
        """Make the daemon and run it."""
        self.daemon = Daemon(
            configuration,
            self._build,
            self._load,
            clock=self.clock,
            exit_now=self.exits.append,
            restart=self.restart,
        )
        self.task = asyncio.create_task(self.daemon.run())

    def _build(self, configuration: Settings, clock: Clock, _: Role) -> FakePipeline:
        self.pipeline = FakePipeline(configuration, clock)
        self.prepare(self.pipeline)
        return self.pipeline

    def _load(self) -> Settings:
        return self.configured()

    async def started(self) -> None:
        """Wait until the pipeline runs."""
        await asyncio.wait_for(self.pipeline.started.wait(), LIMIT)
        await self.clock.advance(0)

    async def ended(self) -> int:
        """Wait for the exit code."""
        return await asyncio.wait_for(asyncio.shield(self.task), LIMIT)

    async def signalled(self, number: signal.Signals, *, seen: Callable[[], bool]) -> None:
        """Send this process a signal, and wait until the daemon has noticed."""
        os.kill(os.getpid(), number)
        async with asyncio.timeout(LIMIT):
            while not seen():
                await settle(1)

    async def ask(self, path: str) -> int:
        """The admin server's status code for `path`."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.daemon.admin_address}{path}") as response,
        ):
            return response.status

    def logged(self, event: str) -> dict[str, Any]:
        """The one log line of that name."""
        (line,) = [line for line in self.logs if line["event"] == event]
        return dict(line)


@pytest.fixture
async def life(clock: FakeClock) -> AsyncIterator[RunningDaemon]:
    """A daemon to be; ended at the end, whatever happened."""
    life = RunningDaemon(clock)
    with capture_logs() as life.logs:
        yield life
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_with_0(life: RunningDaemon, number: signal.Signals) -> None:
    """SIGTERM and SIGINT stop taking, drain for `shutdown.drain_timeout`, close, and end with 0
    when nothing is left.
    """
    life.begin(settings(shutdown={"drain_timeout": "7s"}))
    await life.started()
    await life.signalled(number, seen=lambda: life.daemon.snapshot().state == "draining")
    assert await life.ended() == 0
    assert life.pipeline.done == ["start", "shut_down 7", "close"]


async def test_the_end_of_standard_input_ends_it_as_a_signal_does(life: RunningDaemon) -> None:
    """It drains, closes, and ends with 0; what comes after that changes nothing."""
    life.begin(settings(shutdown={"drain_timeout": "7s"}))
    await life.started()
    life.pipeline.input_ended()
    life.pipeline.input_ended()
    assert await life.ended() == 0
    assert life.pipeline.done == ["start", "shut_down 7", "close"]
    assert life.logged("stopping: standard input has ended")["log_level"] == "info"


async def test_during_the_delay_events_are_accepted_but_readiness_fails(
    life: RunningDaemon,
) -> None:
    """During `shutdown.delay` events are taken, while `/readyz` fails so that no one is routed
    here any more.
    """
    life.begin(settings(shutdown={"delay": "10s"}))
    await life.started()
    assert await life.ask("/readyz") == 200
    await life.signalled(signal.SIGTERM, seen=lambda: not life.daemon.snapshot().ready)
    await life.clock.advance(9.9)
    assert life.pipeline.done == ["start"]
    assert (await life.ask("/readyz"), await life.ask("/livez")) == (503, 200)
    await life.clock.advance(0.2)
    assert await life.ended() == 0


@pytest.mark.parametrize(
    ("kept_at", "meaning"),
    [
        ("", "lost when this process ends"),
        ("/var/lib/one", "kept at /var/lib/one: `forwarder dead-letters replay"),
    ],
)
async def test_events_left_behind_make_1_and_are_named(
    life: RunningDaemon, kept_at: str, meaning: str
) -> None:
    """What memory still held is reported per lane label with the oldest's time, and where it is
    now; the exit code is 1.
    """
    lane = Lane("phc_abcdefghijklmnop")
    letters = [
        DeadLetter(Reason.UNDELIVERED_AT_EXIT, lane, b"{}", at)
        for at in (1_767_225_660.0, 1_767_225_600.0)
    ]

    def prepare(pipeline: FakePipeline) -> None:
        pipeline.left.extend(letters)
        pipeline.shown = replace(pipeline.shown, dead_letters_path=kept_at)

    life.prepare = prepare
    life.begin(settings())
    await life.started()
    await life.signalled(signal.SIGTERM, seen=life.task.done)
    assert await life.ended() == 1
    line = life.logged("events were left behind")
    assert line["lanes"] == {lane_label(lane): 2}
    assert line["oldest"] == "2026-01-01T00:00:00+00:00"
    assert meaning in line["meaning"]
    assert lane.api_key not in str(life.logs)


async def test_a_second_signal_ends_the_drain(life: RunningDaemon) -> None:
    """The second signal doesn't wait for delay or drain: everything is closed, which makes dead
    letters of what is in memory, and the exit code is 130. One that comes with the first is none.
    """
    life.prepare = lambda pipeline: setattr(pipeline, "shown", FULL)
    life.begin(settings(shutdown={"delay": "1h"}))
    await life.started()
    await life.signalled(signal.SIGTERM, seen=lambda: not life.daemon.snapshot().ready)
    await life.clock.advance(0.9)
    life.daemon.on_stop_signal(signal.SIGINT)
    await life.clock.advance(0.1)
    assert not life.task.done()
    await life.signalled(signal.SIGINT, seen=life.task.done)
    assert await life.ended() == INTERRUPTED
    assert life.exits == []
    assert life.pipeline.done[-1] == "close"
    assert life.logged("interrupted")["events_waiting"] == 70


@pytest.mark.parametrize("by", ["signal", "clock"])
async def test_a_stop_that_takes_too_long_is_cut_off(life: RunningDaemon, by: str) -> None:
    """A third signal, or a disk that doesn't write, ends the process, and the log says what is
    lost.
    """
    life.prepare = lambda pipeline: setattr(pipeline, "shown", FULL)
    life.begin(settings())
    await life.started()
    held = asyncio.Event()

    async def close() -> list[DeadLetter]:
        await held.wait()
        return []

    with patch.object(life.pipeline, "close", close):
        for _ in range(2):
            life.daemon.on_stop_signal(signal.SIGTERM)
            await life.clock.advance(1.0)
        if by == "signal":
            life.daemon.on_stop_signal(signal.SIGTERM)
        else:
            assert life.exits == []
            await life.clock.advance(INTERRUPT_SECONDS)
        held.set()
        assert await life.ended() == INTERRUPTED
    assert life.exits == [INTERRUPTED]
    assert life.logged("ended at once")["events_lost"] == 70


async def test_a_signal_after_the_end_of_standard_input_is_the_first(life: RunningDaemon) -> None:
    """The daemon drains already, and continues with it."""
    life.begin(settings(shutdown={"delay": "1h"}))
    await life.started()
    life.pipeline.input_ended()
    await life.signalled(signal.SIGTERM, seen=lambda: not life.daemon.snapshot().ready)
    await life.clock.advance(3600)
    assert await life.ended() == 0


async def test_start_says_what_a_memory_buffer_means(life: RunningDaemon) -> None:
    """The first lines name the addresses, and what a memory buffer means with
    the keys that change it.
    """
    life.begin(settings())
    await life.started()
    assert life.logged("listening")["admin"] == life.daemon.admin_address
    assert life.logged("listening")["ingestion"] == list(FULL.addresses)
    line = life.logged("events wait in memory")
    assert "64.0 MiB" in line["meaning"]
    assert line["keys"]["kind"] == "buffer.kind"


async def test_a_disk_buffer_keeps_its_backlog(life: RunningDaemon, tmp_path: Path) -> None:
    """With a disk buffer the start says where events wait and how many were found, and a stop that
    leaves some there ends with 0.
    """
    life.prepare = lambda pipeline: setattr(pipeline, "shown", FULL)
    life.begin(settings(buffer={"kind": "disk", "path": str(tmp_path)}))
    await life.started()
    line = life.logged("events wait on disk")
    assert (line["path"], line["found"]) == (str(tmp_path / "worker-0"), 70)
    await life.signalled(signal.SIGTERM, seen=life.task.done)
    assert await life.ended() == 0
    assert life.logged("events wait on disk for the next start")["events"] == 70


async def test_files_that_a_memory_buffer_leaves_alone_are_named(
    life: RunningDaemon, tmp_path: Path
) -> None:
    """After a change from disk to memory the start says that a disk buffer's files are there, and
    how to look into them.
    """
    (tmp_path / "worker-0" / "log").mkdir(parents=True)
    life.begin(settings(buffer={"path": str(tmp_path)}))
    await life.started()
    assert (
        f"forwarder buffer ls {tmp_path}"
        in life.logged("the files of a disk buffer aren't used")["hint"]
    )


async def test_hangup_reads_the_configuration_again(life: RunningDaemon) -> None:
    """SIGHUP hands new settings to the pipeline, and says which keys need a restart."""
    life.prepare = lambda pipeline: pipeline.fixed.append("buffer.max_bytes")
    life.configured = lambda: settings(shutdown={"drain_timeout": "1s"})
    life.begin(settings())
    await life.started()
    await life.signalled(signal.SIGHUP, seen=lambda: "reload" in life.pipeline.done)
    assert life.logged("configuration read again")["needs_restart"] == ["buffer.max_bytes"]
    await life.signalled(signal.SIGTERM, seen=life.task.done)
    assert "shut_down 1" in life.pipeline.done


async def test_a_bad_configuration_on_hangup_changes_nothing(life: RunningDaemon) -> None:
    """A configuration that can't be used is logged with what to do, and the daemon continues with
    the one it has.
    """

    def broken() -> Settings:
        raise ConfigurationError("upstream.url is missing", hint="set it")

    life.configured = broken
    life.begin(settings())
    await life.started()
    await life.signalled(
        signal.SIGHUP, seen=lambda: any(line["event"] == BAD_RELOAD for line in life.logs)
    )
    assert life.logged(BAD_RELOAD)["hint"] == "set it"
    assert life.pipeline.done == ["start"]


async def test_hangup_without_a_configuration_to_read(life: RunningDaemon) -> None:
    """A daemon that was given its settings by a caller says that it can't reload, and continues."""
    life.daemon = Daemon(settings(), life._build, clock=life.clock)
    life.task = asyncio.create_task(life.daemon.run())
    await life.started()
    await life.signalled(
        signal.SIGHUP,
        seen=lambda: any(
            line["event"] == "there is no configuration to read again" for line in life.logs
        ),
    )
    assert life.pipeline.done == ["start"]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (OSError(98, "Address already in use"), "Address already in use"),
        (ConfigurationError("cert.pem isn't there"), "cert.pem"),
    ],
)
async def test_a_failed_start_is_one_clear_error(
    life: RunningDaemon, failure: Exception, message: str
) -> None:
    """A port in use or an unusable certificate is raised as one error, with
    everything closed again.
    """
    life.prepare = lambda pipeline: setattr(pipeline, "failure", failure)
    life.begin(settings())
    with pytest.raises(ConfigurationError, match=message):
        await life.ended()
    assert life.pipeline.done == ["start", "close"]
    with pytest.raises(aiohttp.ClientConnectionError):
        await life.ask("/livez")


async def test_a_signal_during_the_start_is_obeyed(life: RunningDaemon) -> None:
    """A stop that comes before the pipeline runs is obeyed as soon as it does."""
    life.begin(settings())
    life.daemon.on_stop_signal(signal.SIGTERM)
    assert await life.ended() == 0
    assert life.pipeline.done[-1] == "close"


async def test_cancellation_closes_without_draining(life: RunningDaemon) -> None:
    """A cancelled daemon leaves no server and no signal handler behind."""
    life.begin(settings())
    await life.started()
    address = life.daemon.admin_address
    life.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life.ended()
    assert "shut_down 25" not in life.pipeline.done
    assert life.pipeline.done[-1] == "close"
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/livez"):
            pass


async def test_a_restart_in_place_keeps_sockets_and_waits_for_no_client(
    life: RunningDaemon,
) -> None:
    """SIGUSR2 ends the pipeline without `shutdown.delay`, while it stays ready, and keeps the
    sockets for the new program.
    """
    life.begin(settings(shutdown={"delay": "1h", "drain_timeout": "7s"}))
    await life.started()
    await life.signalled(signal.SIGUSR2, seen=lambda: life.daemon.restarting.decided)
    assert life.daemon.snapshot().ready
    assert await life.ended() == 0
    assert life.pipeline.done == ["start", "keep", "shut_down 7", "close"]
    assert life.restart.done == ["check", "hold signals"]
    sockets = life.daemon.restarting.kept
    assert sockets is not None
    assert (sockets.admin_listen, len(sockets.admin)) == ("127.0.0.1:0", 1)
    sockets.close()


async def test_a_restart_that_the_new_program_objects_to(life: RunningDaemon) -> None:
    """The reason is in the log, the daemon continues, and the next signal has it checked anew."""
    life.restart.why = "upstream.url is missing"
    life.begin(settings())
    await life.started()
    await life.signalled(
        signal.SIGUSR2, seen=lambda: any("can't restart" in line["event"] for line in life.logs)
    )
    assert (
        life.logged("can't restart in place; this process continues")["why"]
        == "upstream.url is missing"
    )
    assert life.pipeline.done == ["start"]
    life.restart.why = ""
    await life.signalled(signal.SIGUSR2, seen=lambda: life.daemon.restarting.decided)
    assert await life.ended() == 0
    assert life.restart.done == ["check", "check", "hold signals"]
    assert life.daemon.restarting.kept is not None
    life.daemon.restarting.kept.close()


async def test_a_stop_during_a_restart_ends_it(life: RunningDaemon) -> None:
    """SIGTERM after SIGUSR2 means that nothing is to run any more: nothing is kept, and it isn't a
    second signal.
    """
    life.begin(settings())
    await life.started()
    await life.signalled(signal.SIGUSR2, seen=lambda: life.daemon.restarting.decided)
    life.daemon.on_stop_signal(signal.SIGTERM)
    assert await life.ended() == 0
    assert (life.exits, life.daemon.restarting.kept) == ([], None)


LEAVES_A_CYCLE = """
import asyncio, gc, weakref
from forwarder.daemon.daemon import run_tuned

gc.disable()  # as `forwarder run` does before it loads anything

class Leak: pass

def leave(found):
    cycle = Leak()
    cycle.itself = cycle
    weakref.finalize(cycle, found.set)

async def main():
    found = asyncio.Event()
    leave(found)
    await asyncio.wait_for(found.wait(), 30)
    await asyncio.sleep(0)
    print(gc.isenabled(), gc.get_freeze_count() > 1000)
    return 0

run_tuned(main)
"""


@pytest.mark.slow
def test_garbage_of_the_start_is_collected_later() -> None:
    """A start looks for no garbage; the running daemon does, and what is alive then is set aside
    for good.
    """
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_A_CYCLE],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert done.stdout.split() == ["True", "True"]
