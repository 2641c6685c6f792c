"""The channel between a supervisor and a worker, over a real pair of sockets;
the assignment of a worker.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forwarder.config.environment import read_environment
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.daemon.roles import Role
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.channel import (
    Assignment,
    Command,
    Message,
    SupervisorsEnd,
    WorkersEnd,
    encode_snapshot,
    read_assignment,
)
from tests.support.snapshots import FULL
from tests.support.waiting import eventually

LIMIT = 30.0


class Heard:
    """What the supervisor has heard."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []
        self.started = 0
        self.failures: list[ForwarderError] = []

    def on_started(self) -> None:
        self.started += 1

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)

    def on_failed(self, error: ForwarderError) -> None:
        self.failures.append(error)


class Pair:
    """Both ends, and what happened at each."""

    def __init__(self) -> None:
        own, its = socket.socketpair()
        self.heard = heard = Heard()
        self.supervisor = SupervisorsEnd(
            own,
            on_started=heard.on_started,
            on_snapshot=heard.on_snapshot,
            on_failed=heard.on_failed,
        )
        self.worker = WorkersEnd(its.detach())
        self.actions: list[str] = []
        self.broken = False

    async def open(self) -> None:
        """Have both listen."""
        await self.supervisor.open()
        await self.worker.open()
        actions = {
            Command.STOP: lambda: self.actions.append("stop"),
            Command.RELOAD: lambda: self.actions.append("reload"),
        }
        answers = {Command.SHOW: self._show, Command.FIND: lambda uuid: f'["{uuid}"]'.encode()}
        self.worker.serve(answers, actions, lambda: self.actions.append("alone"))

    def _show(self, _: str) -> bytes:
        if self.broken:
            raise ZeroDivisionError
        return encode_snapshot(FULL)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two ends that listen to each other."""
    pair = Pair()
    await pair.open()
    yield pair
    await pair.worker.close()
    await asyncio.wait_for(pair.supervisor.close(), LIMIT)


async def test_questions_are_answered_in_order(pair: Pair) -> None:
    """Questions that are asked at once get their own answers; a snapshot is
    also passed to the listener.
    """
    ask = pair.supervisor.ask
    answers = await asyncio.gather(
        ask(Command.SHOW, LIMIT), ask(Command.FIND, LIMIT, "some uuid"), ask(Command.SHOW, LIMIT)
    )
    assert answers[1] == b'["some uuid"]'
    assert pair.heard.shown == [FULL, FULL]


async def test_a_question_that_fails_leaves_the_others_alone(pair: Pair) -> None:
    """What can't be encoded is answered with nothing, and the next question gets its own answer."""
    pair.broken = True
    assert await pair.supervisor.ask(Command.SHOW, LIMIT) == b""
    pair.broken = False
    assert await pair.supervisor.ask(Command.FIND, LIMIT, "x") == b'["x"]'
    assert await pair.supervisor.ask(Command.SHOW, LIMIT)


async def test_no_answer_in_time(pair: Pair) -> None:
    """A worker that is too slow is not waited for; its answer, when it comes,
    isn't taken for another's.
    """
    assert await pair.supervisor.ask(Command.SHOW, 0) == b""
    assert await pair.supervisor.ask(Command.FIND, LIMIT, "x") == b'["x"]'


async def test_commands_are_obeyed(pair: Pair) -> None:
    """Stop and reload reach the worker, in order."""
    pair.supervisor.command(Command.RELOAD)
    pair.supervisor.command(Command.STOP)
    await eventually(lambda: pair.actions == ["reload", "stop"])


async def test_start_and_last_words_are_heard(pair: Pair) -> None:
    """What a worker says unasked is reported to the listener, up to its last word."""
    pair.worker.send(Message.STARTED, encode_snapshot(FULL))
    pair.worker.fail(ConfigurationError("no room", hint="make some"))
    pair.worker.send(Message.ENDED, encode_snapshot(FULL))
    await pair.worker.close()
    await asyncio.wait_for(pair.supervisor.close(), LIMIT)
    assert (pair.heard.started, pair.heard.shown) == (1, [FULL, FULL])
    assert [(error.message, error.hint) for error in pair.heard.failures] == [
        ("no room", "make some")
    ]
    assert await pair.supervisor.ask(Command.SHOW, LIMIT) == b""


async def test_a_worker_learns_that_it_is_alone() -> None:
    """When the supervisor's end closes, however that came, the worker is notified;
    speaking on does no harm.
    """
    pair = Pair()
    await pair.open()
    closing = asyncio.create_task(pair.supervisor.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await eventually(lambda: pair.actions == ["alone"])
    pair.worker.send(Message.ENDED, encode_snapshot(FULL))
    await pair.worker.close()


async def test_questions_end_with_the_worker(pair: Pair) -> None:
    """A question that is in progress when the worker ends is answered with nothing."""
    pair.broken = True
    asking = asyncio.create_task(pair.supervisor.ask(Command.SHOW, LIMIT))
    await pair.worker.close()
    assert await asyncio.wait_for(asking, LIMIT) == b""


async def test_ends_that_never_opened_can_be_closed() -> None:
    """Close may be called whatever happened before."""
    pair = Pair()
    await pair.worker.close()
    await pair.supervisor.close()


SETTINGS = Settings.parse(
    {
        "upstream": {"url": "https://a.example.com"},
        "buffer": {"kind": "disk", "path": "/var/lib/one"},
        "workers": 4,
        "dead_letters": {"path": "/d"},
    }
)
GIVEN = Assignment.of(SETTINGS, Role(3, 4, descriptors=(9,)), 7, "127.0.0.1:4711")


def test_it_goes_through_the_environment() -> None:
    """What is written into a process's environment is what the process reads; no one else's is an
    assignment, nor a setting.
    """
    assert read_assignment(GIVEN.variable()) == GIVEN
    assert read_assignment({}) is None
    assert not read_environment(GIVEN.variable()).problems


def test_the_supervisors_word_holds() -> None:
    """A worker that reads another configuration than its supervisor keeps the address, the
    directories and the number of workers.
    """
    other = Settings.parse(
        {"upstream": {"url": "https://a.example.com"}, "batch": {"max_age": "9s"}}
    )
    applied = GIVEN.applied(other)
    assert (applied.workers, applied.sources.http.listen) == (4, "127.0.0.1:4711")
    assert (applied.buffer.kind, applied.buffer.path, applied.dead_letters.path) == (
        "disk",
        Path("/var/lib/one"),
        Path("/d"),
    )
    assert applied.batch.max_age == 9.0
