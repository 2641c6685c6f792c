"""The channel between a supervisor and one worker's process, and the assignment that the process
starts with.

The channel is a pair of connected sockets that no other process can reach. The supervisor writes
commands: one byte, a length of two bytes, and that much text. The worker writes messages: one
byte, a length of four bytes, and that much JSON. Questions are answered in order.

The assignment is a private variable of the process's environment. A worker reads the configuration
itself, at each start; where all workers must agree, the assignment overrides it.

Invariant: the end of one process closes the channel, so that a worker learns that its supervisor
is gone, however it died.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import structlog

from forwarder.admin.status import document, parse
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.daemon.roles import Role
from forwarder.telemetry.snapshot import Snapshot


class Command(Enum):
    """What the supervisor asks a worker for, or orders it to do."""

    PING = b"p"
    """Asks whether its loop turns."""
    SHOW = b"?"
    """Asks for a snapshot."""
    FIND = b"f"
    """Asks where the event with that uuid is."""
    TAP = b"t"
    """Asks for what a tap has collected; with a `TapRequest`."""
    STOP = b"s"
    MAKE_WAY = b"w"
    """Stop at once, without `shutdown.delay`: another process replaces it."""
    INTERRUPT = b"i"
    """Stop without draining: what memory holds becomes dead letters."""
    RELOAD = b"r"


class Message(Enum):
    """What a worker reports."""

    STARTED = b"S"
    """It has started; with a snapshot."""
    ANSWER = b"="
    """The answer to the oldest open question; empty if there is none."""
    ENDED = b"E"
    """It has ended; with its last snapshot."""
    FAILED = b"F"
    """It can't start; with the error."""
    INPUT_ENDED = b"I"
    """Standard input, which it reads, has ended, and all of it is settled."""


Answers: TypeAlias = Mapping[Command, Callable[[str], bytes]]
Actions: TypeAlias = Mapping[Command, Callable[[], None]]

_HEAD: Final = 5
_log = structlog.get_logger(__name__)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A snapshot as it is sent over the channel."""
    return msgspec.json.encode(document(snapshot))


class WorkersEnd:
    """The worker's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Be able to send messages. Cancelled or failed, `close` cleans up."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)

    def serve(self, answers: Answers, actions: Actions, on_orphaned: Callable[[], None]) -> None:
        """Answer and obey from now on, and call `on_orphaned` when the supervisor is gone. Does
        nothing unless it is open.
        """
        if self._reader is not None:
            self._task = asyncio.create_task(
                self._listen(self._reader, answers, actions, on_orphaned),
                name="commands of the supervisor",
            )

    def send(self, message: Message, body: bytes) -> None:
        """Send a message, unless the supervisor is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(message.value + len(body).to_bytes(4, "big") + body)

    def fail(self, error: ForwarderError) -> None:
        """Report why it can't start."""
        self.send(
            Message.FAILED, msgspec.json.encode({"message": error.message, "hint": error.hint})
        )

    async def close(self) -> None:
        """Send pending messages, and close. Cancellation closes at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is None:
            self._socket.close()
            return
        self._writer.close()
        # the supervisor may be gone
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def _listen(
        self,
        reader: asyncio.StreamReader,
        answers: Answers,
        actions: Actions,
        on_orphaned: Callable[[], None],
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(3)
                command = Command(head[:1])
                text = (await reader.readexactly(int.from_bytes(head[1:], "big"))).decode()
                if command in answers:
                    self.send(Message.ANSWER, _answer(answers[command], text))
                else:
                    actions[command]()
        except (asyncio.IncompleteReadError, ConnectionError):
            on_orphaned()


def _answer(compute: Callable[[str], bytes], text: str) -> bytes:
    try:
        return compute(text)
    except Exception:
        # Each question is answered, or later answers would be matched with earlier questions.
        _log.exception("a question of the supervisor can't be answered")
        return b""


class SupervisorsEnd:
    """The supervisor's end of the channel to one process."""

    def __init__(
        self,
        own: socket.socket,
        *,
        on_started: Callable[[], None],
        on_snapshot: Callable[[Snapshot], None],
        on_failed: Callable[[ForwarderError], None],
        on_input_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_snapshot`: called at the worker's start, after each question for it, and at the
        worker's end.
        """
        self._socket = own
        self._on_started = on_started
        self._on_snapshot = on_snapshot
        self._on_failed = on_failed
        self._on_input_end = on_input_end
        self._questions: deque[tuple[Command, asyncio.Future[bytes]]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Receive the worker's messages from now on."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._task = asyncio.create_task(self._listen(reader), name="messages of a worker")

    def command(self, command: Command, text: str = "") -> None:
        """Send a command; nothing happens if the worker is gone."""
        if self._writer is not None and not self._writer.is_closing():
            body = text.encode()
            self._writer.write(command.value + len(body).to_bytes(2, "big") + body)

    async def ask(self, command: Command, seconds: float, text: str = "") -> bytes:
        """The answer; empty if none came in that time, or the worker is gone. Cancellation only
        ends the wait.
        """
        if self._task is None or self._task.done():
            return b""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions.append((command, answer))
        self.command(command, text)
        await asyncio.wait({answer}, timeout=seconds)
        return answer.result() if answer.done() and not answer.cancelled() else b""

    async def close(self) -> None:
        """Receive the worker's last messages and close. The process must have ended; cancelled, it
        closes at once.
        """
        if self._writer is None or self._task is None:
            self._socket.close()
            return
        try:
            await self._task
        finally:
            self._task.cancel()
            self._writer.close()
            await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(_HEAD)
                self._receive(
                    Message(head[:1]), await reader.readexactly(int.from_bytes(head[1:], "big"))
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            while self._questions:
                self._questions.popleft()[1].cancel()

    def _receive(self, message: Message, body: bytes) -> None:
        if message is Message.FAILED:
            error: dict[str, Any] = msgspec.json.decode(body)
            self._on_failed(ConfigurationError(error["message"], hint=error["hint"]))
        elif message is Message.ANSWER:
            self._receive_answer(*self._questions.popleft(), body)
        elif message is Message.INPUT_ENDED:
            self._on_input_end()
        else:
            self._on_snapshot(parse(body))
            if message is Message.STARTED:
                self._on_started()

    def _receive_answer(
        self, question: Command, answer: asyncio.Future[bytes], body: bytes
    ) -> None:
        if question is Command.SHOW and body:
            self._on_snapshot(parse(body))
        if not answer.done():
            answer.set_result(body)


VARIABLE: Final = "_FORWARDER_WORKER"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's role, its end of the channel to the supervisor, and the settings that don't
    change as long as the supervisor lives.
    """

    role: Role
    channel: int
    """Descriptor of its end of a pair of sockets."""
    listen: str
    """The address to listen on, with its real port."""
    kind: Literal["memory", "disk"]
    path: str
    dead_letters: str | None

    @classmethod
    def of(cls, settings: Settings, role: Role, channel: int, listen: str) -> Assignment:
        """The assignment under the supervisor's settings."""
        dead_letters = settings.dead_letters.path
        return cls(
            role,
            channel,
            listen,
            settings.buffer.kind,
            str(settings.buffer.path),
            str(dead_letters) if dead_letters else None,
        )

    def applied(self, settings: Settings) -> Settings:
        """The settings that the worker has read, overridden by the assignment."""
        return replace(
            settings,
            workers=self.role.workers,
            sources=replace(
                settings.sources, http=replace(settings.sources.http, listen=self.listen)
            ),
            buffer=replace(settings.buffer, kind=self.kind, path=Path(self.path)),
            dead_letters=replace(
                settings.dead_letters, path=Path(self.dead_letters) if self.dead_letters else None
            ),
        )

    def variable(self) -> dict[str, str]:
        """The variable for the environment of the worker's process."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def read_assignment(environment: Mapping[str, str]) -> Assignment | None:
    """The assignment in a process's environment; None if it isn't a worker."""
    value = environment.get(VARIABLE)
    return msgspec.json.decode(value, type=Assignment) if value else None
