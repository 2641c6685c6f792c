"""The channel between a supervisor and one worker's process, and the assignment that the process starts with.

The channel is a pair of connected sockets that no other process can reach. The supervisor writes commands: one byte, a length of one byte,
and that much text. The worker writes messages: one byte, a length of four bytes, and that much JSON. Questions are answered in order.

The assignment is a private variable of the process's environment. A worker reads the configuration itself, at each start; where all
workers must agree, the assignment overrides it.

Invariant: the end of one process closes the channel, so that a worker learns that its supervisor is gone, however it died.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
import structlog

from forwarder.admin.status import document, parse
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.daemon.roles import Role
from forwarder.telemetry.snapshot import Snapshot


class Command(Enum):
    """What the supervisor says."""

    SHOW = b"?"
    """Asks for a snapshot."""
    FIND = b"f"
    """Asks where the event with that uuid is."""
    STOP = b"s"
    MAKE_WAY = b"w"
    """Stop at once, without `shutdown.delay`: another process takes its place."""
    RELOAD = b"r"


class Message(Enum):
    """What a worker says."""

    STARTED = b"S"
    """It works; with a snapshot."""
    ANSWER = b"="
    """The answer to the first question that has none; empty if it can't be told."""
    ENDED = b"E"
    """Its last words: a snapshot."""
    FAILED = b"F"
    """It can't start; with what was wrong."""


Answers: TypeAlias = Mapping[Command, Callable[[str], bytes]]
Deeds: TypeAlias = Mapping[Command, Callable[[], None]]

_HEAD: Final = 5
_log = structlog.get_logger(__name__)


def written(snapshot: Snapshot) -> bytes:
    """A snapshot as it is sent."""
    return msgspec.json.encode(document(snapshot))


class WorkersEnd:
    """The worker's end of the channel."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Be able to speak. Cancelled or failed, `close` cleans up."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)

    def obey(self, answers: Answers, deeds: Deeds, on_alone: Callable[[], None]) -> None:
        """Answer and obey from now on, and call `on_alone` when the supervisor is gone. Does nothing unless it is open."""
        if self._reader is not None:
            self._task = asyncio.create_task(self._listen(self._reader, answers, deeds, on_alone), name="commands of the supervisor")

    def say(self, message: Message, body: bytes) -> None:
        """Send a message, unless the supervisor is gone."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(message.value + len(body).to_bytes(4, "big") + body)

    def fail(self, error: ForwarderError) -> None:
        """Say why it can't start."""
        self.say(Message.FAILED, msgspec.json.encode({"message": error.message, "hint": error.hint}))

    async def close(self) -> None:
        """Send what was said, and close. Cancellation closes at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is None:
            self._socket.close()
            return
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)  # the supervisor may be gone

    async def _listen(self, reader: asyncio.StreamReader, answers: Answers, deeds: Deeds, on_alone: Callable[[], None]) -> None:
        try:
            while True:
                head = await reader.readexactly(2)
                command, text = Command(head[:1]), (await reader.readexactly(head[1])).decode()
                if command in answers:
                    self.say(Message.ANSWER, _answer(answers[command], text))
                else:
                    deeds[command]()
        except (asyncio.IncompleteReadError, ConnectionError):
            on_alone()


def _answer(tell: Callable[[str], bytes], text: str) -> bytes:
    try:
        return tell(text)
    except Exception:  # each question is answered, or later answers would be taken for those of earlier questions
        _log.exception("a question of the supervisor can't be answered")
        return b""


class Listener(Protocol):
    """Who is told what a worker says."""

    def on_started(self) -> None:
        """It works."""

    def on_shown(self, snapshot: Snapshot) -> None:
        """How it is: at its start, when it was asked, and at its end."""

    def on_failed(self, error: ForwarderError) -> None:
        """It can't start."""


class SupervisorsEnd:
    """The supervisor's end of the channel to one process."""

    def __init__(self, own: socket.socket, listener: Listener) -> None:
        self._socket = own
        self._listener = listener
        self._questions: deque[tuple[Command, asyncio.Future[bytes]]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen to the worker from now on."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._task = asyncio.create_task(self._listen(reader), name="words of a worker")

    def command(self, command: Command, text: str = "") -> None:
        """Say what to do; nothing happens if the worker is gone."""
        if self._writer is not None and not self._writer.is_closing():
            body = text.encode()
            self._writer.write(command.value + bytes([len(body)]) + body)

    async def ask(self, command: Command, seconds: float, text: str = "") -> bytes:
        """The answer; empty if none came in that time, or the worker is gone. Cancellation only ends the wait."""
        if self._task is None or self._task.done():
            return b""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions.append((command, answer))
        self.command(command, text)
        await asyncio.wait({answer}, timeout=seconds)
        return answer.result() if answer.done() and not answer.cancelled() else b""

    async def close(self) -> None:
        """Hear the worker's last words and close. The process must have ended; cancelled, it closes without."""
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
                self._hear(Message(head[:1]), await reader.readexactly(int.from_bytes(head[1:], "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            while self._questions:
                self._questions.popleft()[1].cancel()

    def _hear(self, message: Message, body: bytes) -> None:
        if message is Message.FAILED:
            words: dict[str, Any] = msgspec.json.decode(body)
            self._listener.on_failed(ConfigurationError(words["message"], hint=words["hint"]))
        elif message is Message.ANSWER:
            self._hear_answer(*self._questions.popleft(), body)
        else:
            self._listener.on_shown(parse(body))
            if message is Message.STARTED:
                self._listener.on_started()

    def _hear_answer(self, question: Command, answer: asyncio.Future[bytes], body: bytes) -> None:
        if question is Command.SHOW and body:
            self._listener.on_shown(parse(body))
        if not answer.done():
            answer.set_result(body)


VARIABLE: Final = "_FORWARDER_WORKER"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's role, its end of the channel to the supervisor, and the settings that don't change as long as the supervisor lives."""

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
        letters = settings.dead_letters.path
        return cls(role, channel, listen, settings.buffer.kind, str(settings.buffer.path), str(letters) if letters else None)

    def applied(self, settings: Settings) -> Settings:
        """The settings that the worker has read, with the supervisor's word in them."""
        return replace(
            settings,
            workers=self.role.workers,
            sources=replace(settings.sources, http=replace(settings.sources.http, listen=self.listen)),
            buffer=replace(settings.buffer, kind=self.kind, path=Path(self.path)),
            dead_letters=replace(settings.dead_letters, path=Path(self.dead_letters) if self.dead_letters else None),
        )

    def variable(self) -> dict[str, str]:
        """It, for the environment of the worker's process."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def assignment(environment: Mapping[str, str]) -> Assignment | None:
    """What this process was handed; None if it is no worker."""
    written = environment.get(VARIABLE)
    return msgspec.json.decode(written, type=Assignment) if written else None
