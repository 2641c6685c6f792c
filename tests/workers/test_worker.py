"""The daemon as a worker: with a fake pipeline and a fake clock, over a real
channel to its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from forwarder.admin.event_lookup import Sighting
from forwarder.config.settings import Settings
from forwarder.core.clock import Clock
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.daemon.roles import Role
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.channel import Assignment, Command, SupervisorsEnd
from forwarder.workers.worker import CANT_START, live
from tests.support.clock import FakeClock, settle
from tests.support.pipelines import FakePipeline
from tests.support.snapshots import FULL
from tests.support.waiting import eventually

LIMIT = 30.0
IDLE = replace(FULL, lanes=(), dead_letters_wanted=0)
ONE_OF_TWO = Role(1, 2)


class RunningWorker:
    """One worker, what its supervisor hears, and its task."""

    def __init__(self, clock: FakeClock) -> None:
        own, its = socket.socketpair()
        self.clock = clock
        self.channel = its.detach()
        self.inputs_ended = 0
        self.line = SupervisorsEnd(
            own,
            on_started=self.on_started,
            on_snapshot=self.on_snapshot,
            on_failed=self.on_failed,
            on_input_end=self.on_input_end,
        )
        self.heard: list[Snapshot] = []
        self.works = False
        self.failures: list[ForwarderError] = []
        self.logs: list[Any] = []
        self.prepare: Callable[[FakePipeline], None] = lambda _: None

    async def begin(self, role: Role = ONE_OF_TWO, kind: str = "memory", **sections: Any) -> None:
        """Run the worker."""
        configuration = Settings.parse(
            {"upstream": {"url": "https://a.example.com"}, "buffer": {"kind": kind}, **sections}
        )
        given = Assignment.of(configuration, role, self.channel, "127.0.0.1:4711")
        await self.line.open()
        self.task = asyncio.create_task(
            live(
                given.applied(configuration), self._build, lambda: configuration, given, self.clock
            )
        )

    def _build(self, configuration: Settings, clock: Clock, role: Role) -> FakePipeline:
        self.pipeline = FakePipeline(configuration, clock)
        self.prepare(self.pipeline)
        return self.pipeline

    def on_started(self) -> None:
        self.works = True

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.heard.append(snapshot)

    def on_failed(self, error: ForwarderError) -> None:
        self.failures.append(error)

    def on_input_end(self) -> None:
        self.inputs_ended += 1

    async def ended(self) -> int:
        """Wait for the exit code; the clock continues meanwhile."""
        async with asyncio.timeout(LIMIT):
            while not self.task.done():
                await self.clock.advance(0.5)
            return await self.task

    def leave(self) -> None:
        """Be gone, as a supervisor that was killed is."""
        self.line._socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
async def a_life(clock: FakeClock) -> AsyncIterator[RunningWorker]:
    """A worker to be; ended at the end, whatever happened."""
    life = RunningWorker(clock)
    with capture_logs() as life.logs:
        yield life
        life.task.cancel()
        await asyncio.gather(life.task, return_exceptions=True)
    await asyncio.wait_for(life.line.close(), LIMIT)


async def test_it_says_that_it_works_and_its_last_words(a_life: RunningWorker) -> None:
    """The supervisor hears of the start, gets answers, stops it, and hears how it was
    at its end.
    """
    await a_life.begin()
    await eventually(lambda: a_life.works)
    assert await a_life.line.ask(Command.SHOW, LIMIT)
    a_life.line.command(Command.STOP)
    assert await a_life.ended() == 0
    await eventually(lambda: len(a_life.heard) == 3)
    assert [shown.ready for shown in a_life.heard] == [True, True, False]
    assert a_life.pipeline.done == ["start", "shut_down 25", "close"]


async def test_it_is_asked_where_an_event_is(a_life: RunningWorker) -> None:
    """A question about one event is answered by the pipeline; one that
    makes no sense, with nothing.
    """
    await a_life.begin()
    await eventually(lambda: a_life.works)
    answer = await a_life.line.ask(Command.FIND, LIMIT, "01890a5d-ac96-774b-bcce-b302099a8057")
    assert isinstance(msgspec.json.decode(answer, type=list[Sighting]), list)
    assert await a_life.line.ask(Command.FIND, LIMIT, "no uuid") == b""


async def test_it_reads_the_configuration_again(a_life: RunningWorker) -> None:
    """A reload reaches the pipeline; the supervisor has said what needs a restart,
    the worker says nothing.
    """
    await a_life.begin()
    await eventually(lambda: a_life.works)
    a_life.line.command(Command.RELOAD)
    await eventually(lambda: "reload" in a_life.pipeline.done)
    assert not [
        line
        for line in a_life.logs
        if line["event"] == "configuration read again" and line["log_level"] != "debug"
    ]


async def test_the_end_of_standard_input_is_reported(a_life: RunningWorker) -> None:
    """The worker runs on until it is stopped: the supervisor ends all of them."""
    await a_life.begin()
    await eventually(lambda: a_life.works)
    a_life.pipeline.input_ended()
    await eventually(lambda: a_life.inputs_ended == 1)
    await a_life.clock.advance(60.0)
    assert not a_life.task.done()


async def test_a_stop_is_obeyed_once(a_life: RunningWorker) -> None:
    """A signal to the whole group beside the supervisor's command doesn't cut the drain short."""
    await a_life.begin(shutdown={"delay": "10s"})
    await eventually(lambda: a_life.works)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
        a_life.line.command(Command.STOP)
        await settle()
    assert not a_life.task.done()
    assert await a_life.ended() == 0
    assert "shut_down 25" in a_life.pipeline.done


async def test_alone_it_drains_a_memory_buffer_without_delay(a_life: RunningWorker) -> None:
    """When the supervisor is gone no one will take over what memory holds: it is
    drained at once.
    """
    await a_life.begin(shutdown={"delay": "1h"})
    await eventually(lambda: a_life.works)
    a_life.leave()
    assert await asyncio.wait_for(asyncio.shield(a_life.task), LIMIT) == 0
    assert "shut_down 25" in a_life.pipeline.done


async def test_alone_it_leaves_a_disk_buffer_to_the_next(a_life: RunningWorker) -> None:
    """With a disk buffer it ends at once: the next supervisor needs the directory, and finds the
    backlog there.
    """
    await a_life.begin(kind="disk")
    await eventually(lambda: a_life.works)
    a_life.leave()
    assert await asyncio.wait_for(asyncio.shield(a_life.task), LIMIT) == 0
    assert a_life.pipeline.done == ["start", "stop_accepting", "close"]


async def test_the_reason_of_a_failed_start_is_reported(a_life: RunningWorker) -> None:
    """An error at the start reaches the supervisor, with exit code 2, and no books that would hide
    the last ones.
    """
    a_life.prepare = lambda pipeline: setattr(
        pipeline, "failure", ConfigurationError("in use", hint="stop it")
    )
    await a_life.begin()
    assert await a_life.ended() == CANT_START
    await eventually(lambda: a_life.failures)
    assert [(error.message, error.hint) for error in a_life.failures] == [("in use", "stop it")]
    assert not a_life.heard


async def test_without_a_listener_it_ends_when_nothing_is_left(a_life: RunningWorker) -> None:
    """One that empties a directory continues while events wait or dead letters are required, and
    ends a moment after.
    """
    a_life.prepare = lambda pipeline: setattr(pipeline, "shown", FULL)
    await a_life.begin(Role(3, 2, listens=False), shutdown={"delay": "1h"})
    await eventually(lambda: a_life.works)
    await a_life.clock.advance(30)
    a_life.pipeline.shown = replace(IDLE, dead_letters_wanted=1)
    await a_life.clock.advance(30)
    assert not a_life.task.done()
    a_life.pipeline.shown = IDLE
    assert await a_life.ended() == 0
    assert a_life.pipeline.done[-1] == "close"


async def test_without_a_listener_it_can_be_stopped(a_life: RunningWorker) -> None:
    """A stop ends it as any other worker, without the delay that is for senders."""
    a_life.prepare = lambda pipeline: setattr(pipeline, "shown", FULL)
    await a_life.begin(Role(3, 2, listens=False), shutdown={"delay": "1h"})
    await eventually(lambda: a_life.works)
    a_life.line.command(Command.STOP)
    assert await asyncio.wait_for(asyncio.shield(a_life.task), LIMIT) == 0
