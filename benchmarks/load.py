"""The load generator: keep-alive connections, each with one request under way, over a plain epoll loop.

It does as little as it can for a request: one write of bytes made beforehand, one read, one look-up. It is a well-behaved client:
after 503 a connection waits for as long as Retry-After says, and a closed connection is opened again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from benchmarks.answers import Answer, AnswerReader
from benchmarks.bodies import Request, sent_at_now

READ_SIZE: Final = 65536
LAST_ANSWERS: Final = 30.0
"""Seconds that requests under way get to be answered, after the last one was sent."""
FRESH: Final = 0.05
"""Seconds that a `sent_at` is used before it is written anew: far below any tolerance for skewed clocks."""
RECONNECT: Final = 0.2
"""Seconds before a refused connection is tried again."""


@dataclass(slots=True)
class Tally:
    """What came of the requests."""

    accepted: int = 0
    """Events answered 200 (or any other 2xx)."""
    unanswered: int = 0
    """Events in requests whose connection ended without an answer: taken or not, nobody knows."""
    broken: int = 0
    """Connections that the other side ended."""
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return self.statuses.total()


@dataclass(slots=True, eq=False)
class Connection:
    """One keep-alive connection."""

    socket: socket.socket
    request: Request | None = None
    unsent: memoryview | None = None
    received: bytes = b""


class Load:
    """Sends `requests` round and round to 127.0.0.1:`port`."""

    def __init__(self, requests: list[Request], connections: int, port: int, *, longest_pause: float = 60.0) -> None:
        """`longest_pause` bounds, in seconds, how long a 503 is respected: for a load that does not let go."""
        self._requests = requests
        self._wanted = connections
        self._port = port
        self._longest_pause = longest_pause
        self._next = 0
        self._reader = AnswerReader()
        self._connections: dict[int, Connection] = {}
        self._paused: list[tuple[float, Connection | None]] = []
        self._sent_at = b""
        self._tally = Tally()

    def run(self, seconds: float) -> Tally:
        """Send for `seconds`, then wait for the last answers. Blocks."""
        self._tally = Tally()
        began = time.monotonic()
        with select.epoll() as poll:
            for _ in range(self._wanted):
                self._open(poll)
            self._turn(poll, began + seconds, sending=True)
            self._tally.seconds = time.monotonic() - began
            self._turn(poll, time.monotonic() + LAST_ANSWERS, sending=False)
            for connection in list(self._connections.values()):
                self._close(poll, connection)
        self._paused.clear()
        return self._tally

    def _turn(self, poll: select.epoll, until: float, *, sending: bool) -> None:
        refreshed = 0.0
        while (now := time.monotonic()) < until and (sending or any(c.request for c in self._connections.values())):
            if now - refreshed > FRESH:
                self._sent_at, refreshed = sent_at_now(), now
                if sending:
                    self._resume(poll, now)
            for number, mask in poll.poll(FRESH):
                connection = self._connections.get(number)
                if connection is not None:
                    self._handle(poll, connection, mask, sending=sending)

    def _handle(self, poll: select.epoll, connection: Connection, mask: int, *, sending: bool) -> None:
        try:
            if mask & ~select.EPOLLOUT:
                self._read(poll, connection, sending=sending)
            elif connection.unsent is not None:
                self._write(poll, connection, connection.unsent)
        except OSError:
            self._lost(poll, connection)

    def _read(self, poll: select.epoll, connection: Connection, *, sending: bool) -> None:
        received = connection.socket.recv(READ_SIZE)
        if not received:
            raise ConnectionResetError
        connection.received = received if not connection.received else connection.received + received
        answer = self._reader.read(connection.received)
        if answer is not None:
            connection.received = b""
            self._answered(poll, connection, answer, sending=sending)

    def _answered(self, poll: select.epoll, connection: Connection, answer: Answer, *, sending: bool) -> None:
        tally, request = self._tally, connection.request
        tally.statuses[answer.status] += 1
        if request is not None and 200 <= answer.status < 300:
            tally.accepted += request.events
        connection.request = None
        wait = min(answer.retry_after, self._longest_pause) if answer.status == 503 else 0.0
        if answer.close or connection.unsent is not None:
            self._close(poll, connection)
            self._paused.append((time.monotonic() + wait, None))
        elif wait:
            self._paused.append((time.monotonic() + wait, connection))
        elif sending:
            self._send(poll, connection)

    def _send(self, poll: select.epoll, connection: Connection) -> None:
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        if request.sent_at >= 0:
            request.data[request.sent_at : request.sent_at + len(self._sent_at)] = self._sent_at
        connection.request = request
        sent = connection.socket.send(request.data)
        if sent < len(request.data):
            self._write(poll, connection, memoryview(request.data)[sent:])

    def _write(self, poll: select.epoll, connection: Connection, unsent: memoryview) -> None:
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[connection.socket.send(unsent) :]
        writing = len(unsent) > 0
        if writing != (connection.unsent is not None):
            poll.modify(connection.socket, select.EPOLLIN | (select.EPOLLOUT if writing else 0))
        connection.unsent = unsent if writing else None

    def _open(self, poll: select.epoll) -> None:
        try:
            opened = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        except OSError:
            self._paused.append((time.monotonic() + RECONNECT, None))
            return
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(opened)
        self._connections[opened.fileno()] = connection
        poll.register(opened, select.EPOLLIN)
        self._try_send(poll, connection)

    def _resume(self, poll: select.epoll, now: float) -> None:
        due = [connection for when, connection in self._paused if when <= now]
        self._paused = [pause for pause in self._paused if pause[0] > now]
        for connection in due:
            if connection is None:
                self._open(poll)
            elif connection.socket.fileno() >= 0:
                self._try_send(poll, connection)

    def _try_send(self, poll: select.epoll, connection: Connection) -> None:
        try:
            self._send(poll, connection)
        except OSError:
            self._lost(poll, connection)

    def _lost(self, poll: select.epoll, connection: Connection) -> None:
        """The connection ended by itself: a new one takes its place shortly."""
        self._tally.unanswered += connection.request.events if connection.request else 0
        self._tally.broken += 1
        self._close(poll, connection)
        self._paused.append((time.monotonic() + RECONNECT, None))

    def _close(self, poll: select.epoll, connection: Connection) -> None:
        del self._connections[connection.socket.fileno()]
        poll.unregister(connection.socket)
        connection.socket.close()
