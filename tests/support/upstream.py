"""A scripted upstream: a server on 127.0.0.1 that answers each request as the test says, and keeps
what it was sent.

Raw asyncio, so that it can do what a decent server wouldn't: reset a connection in the middle of a
body, promise more bytes than it sends, answer before it has read, never answer. Requests are kept
in the order in which they began to arrive; `began` and `ended` are positions in one sequence over
all requests, so a test can say which overlapped.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Any, Final

import msgspec

LIMIT_SECONDS: Final = 30.0
"""How long a test waits for something to happen before it fails."""

_MAX_HEAD: Final = 64 * 1024


class Fault(Enum):
    """How an answer fails to be one."""

    NONE = auto()
    RESET_IN_REQUEST = auto()
    """Reset the connection after half of the request's body (from the script only: nobody has read
    the request yet).
    """
    RESET = auto()
    """Read all of the request, then reset the connection."""
    CLOSE = auto()
    """Read all of the request, then close the connection."""
    HANG = auto()
    """Read all of the request, and never answer."""
    TRUNCATE = auto()
    """Answer with a Content-Length above what is sent, and close."""
    EARLY = auto()
    """Answer after the request's head, without reading the body, and close (from the script only).
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer."""

    status: int = 200
    body: bytes = b'{"status":"Ok"}'
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    fault: Fault = Fault.NONE
    when: asyncio.Event | None = None
    """Answer only once this is set."""

    @property
    def accepts(self) -> bool:
        """Whether it tells the sender that the events were taken: 200, whole, and not
        a web page.
        """
        return (
            self.status == 200
            and self.fault is Fault.NONE
            and not self.headers.get("Content-Type", "").startswith("text/html")
        )


OK: Final = Answer()
UNAUTHORIZED: Final = Answer(401, b"no such project")


def plain(status: int, words: str = "", **headers: str) -> Answer:
    """A plain text answer; `retry_after="3"` becomes the header Retry-After."""
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Answer(status, words.encode(), {"Content-Type": "text/plain", **named})


def failing(fault: Fault) -> Answer:
    """An answer that is none."""
    return Answer(fault=fault)


@dataclass(eq=False, slots=True)
class Request:
    """One request as it was received. `ended` is None until it was answered
    (or the connection failed).
    """

    path: str
    headers: Mapping[str, str]
    began: int
    wire: bytes = b""
    """The body as it was on the wire."""
    ended: int | None = None

    @property
    def body(self) -> bytes:
        """The decoded body."""
        return (
            gzip.decompress(self.wire)
            if self.headers.get("content-encoding") == "gzip"
            else self.wire
        )

    @property
    def json(self) -> Any:
        """The decoded body as Python objects."""
        return msgspec.json.decode(self.body)

    @property
    def api_key(self) -> str:
        """The project key."""
        return str(self.json["api_key"])

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events, as Python objects."""
        return list(self.json.get("batch", []))

    @property
    def names(self) -> list[str]:
        """The events' names."""
        return [str(event["event"]) for event in self.events]


Decide = Callable[[Request], Answer]


class Upstream:
    """The server, as an asynchronous context manager.

    `script` is answered first, one answer a request; then `answer` decides. `/decide` has its own:
    `decide`. `in_flight` and `most_in_flight` count requests to `/batch/` between the end of their
    head and their answer. With `keeps` false it keeps no request: for long runs, in which `answer`
    takes what it needs.
    """

    def __init__(
        self,
        answer: Decide = lambda _: OK,
        *,
        decide: Decide = lambda _: OK,
        tls: ssl.SSLContext | None = None,
        keeps: bool = True,
    ) -> None:
        self.answer = answer
        self.decide = decide
        self.script: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.decides: list[Request] = []
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._tls = tls
        self._keeps = keeps
        self._sequence = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._held: socket.socket | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address to configure as `upstream.url`."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    @property
    def delivered(self) -> list[str]:
        """The names of all events in requests that were accepted, in order of their answers."""
        answered = sorted(self._answered, key=lambda request: request.ended or 0)
        return [name for request in answered for name in request.names]

    async def __aenter__(self) -> Upstream:
        self._answered: list[Request] = []
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=_MAX_HEAD
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._release()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()
        self._release()

    async def stop(self) -> None:
        """Refuse and close all connections. Entering again opens the same port, which no one else
        gets meanwhile: tests run beside this.
        """
        if self._server is None:
            return
        await self._close()
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", self.port))

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    async def _close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def until(self, condition: Callable[[], bool], limit: float = LIMIT_SECONDS) -> None:
        """Wait until `condition` holds; it is asked again after each step of any request. Raises
        `TimeoutError` after `limit` real seconds.
        """
        async with asyncio.timeout(limit):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            self._step()
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection can serve another."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").strip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (field.partition(":") for field in fields)
        }
        request = Request(line.split(" ")[1], headers, self._step())
        is_decide = request.path.startswith("/decide")
        if self._keeps:
            (self.decides if is_decide else self.requests).append(request)
        if is_decide:
            return await self._respond(request, reader, writer, self.decide)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._respond(request, reader, writer, self.answer)
        finally:
            self.in_flight -= 1
            request.ended = self._step()

    async def _respond(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decide: Decide,
    ) -> bool:
        length = int(request.headers.get("content-length", "0"))
        scripted = self.script.popleft() if self.script and decide is self.answer else None
        if scripted is None or scripted.fault not in (Fault.EARLY, Fault.RESET_IN_REQUEST):
            request.wire = await reader.readexactly(length)
        elif scripted.fault is Fault.RESET_IN_REQUEST:
            await reader.readexactly(length // 2)
        answer = scripted or decide(request)
        if answer.when is not None:
            await answer.when.wait()
        return await self._act(request, answer, reader, writer)

    async def _act(
        self,
        request: Request,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        if answer.fault in (Fault.RESET, Fault.RESET_IN_REQUEST):
            _reset(writer)
            return False
        if answer.fault is Fault.CLOSE:
            writer.close()
            return False
        if answer.fault is Fault.HANG:
            await reader.read()
            return False
        if answer.accepts and request.path.startswith("/batch"):
            request.ended = self._step()
            if self._keeps:
                self._answered.append(request)
        cut = len(answer.body) // 2 if answer.fault is Fault.TRUNCATE else len(answer.body)
        writer.write(_head(answer) + answer.body[:cut])
        await writer.drain()
        if answer.fault is not Fault.NONE:
            writer.close()
        return answer.fault is Fault.NONE

    def _step(self) -> int:
        self._sequence += 1
        self._changed.set()
        return self._sequence


def _head(answer: Answer) -> bytes:
    fields = {**answer.headers, "Content-Length": str(len(answer.body))}
    lines = [
        f"HTTP/1.1 {answer.status} {'OK' if answer.status == 200 else 'No'}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset in place of an orderly end."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()
