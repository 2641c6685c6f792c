"""The load generator: keep-alive connections, each with at most one request under way, over a
plain epoll loop.

It does as little as it can for a request: one write of bytes made beforehand, one read, one
look-up. It is a well-behaved client: after 503 a connection waits for as long as Retry-After says,
and a closed connection is opened again.

Without a rate each connection sends its next request as soon as the last one is answered: as much
as the other side takes. With a rate each request is due at its time, whether or not those before
it were answered, and its latency counts from then: a side that is slow for a moment is sent no
less, and what had to wait for a connection counts as what it is.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Protocol

from benchmarks.answers import Answer, AnswerReader
from benchmarks.bodies import NUMBER, Request, sent_at_now

READ_SIZE: Final = 65536
LAST_ANSWERS: Final = 30.0
"""Seconds that requests under way get to be answered, after the last one was sent."""
FRESH: Final = 0.05
"""Seconds that a `sent_at` is used before it is written anew: far below any
tolerance for skewed clocks.
"""
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
    began: float = 0.0
    """When it began, by the monotonic clock: with a rate request N was due N / rate later."""
    latencies: list[float] = field(default_factory=list)
    """With a rate: seconds from when each request was due to its answer."""
    delays: list[float] = field(default_factory=list)
    """With a rate: seconds from when each request was due to when it was sent."""

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return self.statuses.total()


class LoadWatch(Protocol):
    """Who prepares each request of a load, and hears what came of it.
    Requests have numbers from 0 on.
    """

    def prepare(self, request: Request, number: int) -> None:
        """It is about to be sent."""

    def note(self, number: int, request: Request, status: int, due: float, seconds: float) -> None:
        """It was answered so many seconds after it was due, by the monotonic clock; status 0: its
        connection ended before.
        """


@dataclass(slots=True, eq=False)
class Connection:
    """One keep-alive connection."""

    socket: socket.socket
    request: Request | None = None
    number: int = 0
    """Of its request."""
    due: float = 0.0
    """When its request was due."""
    unsent: memoryview | None = None
    received: bytes = b""


class Load:
    """Sends `requests` round and round to 127.0.0.1:`port`."""

    def __init__(
        self,
        requests: Sequence[Request],
        connections: int,
        port: int,
        *,
        longest_pause: float = 60.0,
        rate: float | None = None,
        watch: LoadWatch | None = None,
    ) -> None:
        """`longest_pause` bounds, in seconds, how long a 503 is respected: for a load that does
        not let go. `rate`: requests a second. `watch`: of a load with a rate; the tally then holds
        no latencies.
        """
        self._requests = requests
        self._watch = watch
        self._stopping = False
        self._wanted = connections
        self._port = port
        self._longest_pause = longest_pause
        self._rate = rate
        self._next = 0
        self._reader = AnswerReader()
        self._connections: dict[int, Connection] = {}
        self._idle: deque[Connection] = deque()
        """With a rate: those that wait for a request that is due."""
        self._paused: list[tuple[float, Connection | None]] = []
        self._sent_at = b""
        self._left = 0
        """With a rate: requests that are still to be sent."""
        self._sent = 0
        self._tally = Tally()

    def run(self, seconds: float) -> Tally:
        """Send for `seconds`, then wait for the last answers. Blocks."""
        self._tally = Tally()
        with select.epoll() as poll:
            for _ in range(self._wanted):
                self._open(poll)
            began = self._tally.began = time.monotonic()
            self._sent = 0
            self._left = 0 if self._rate is None else ceil(seconds * self._rate)
            self._turn(poll, began + seconds, sending=True)
            self._tally.seconds = time.monotonic() - began
            if self._stopping:
                self._left = 0
            self._turn(poll, time.monotonic() + LAST_ANSWERS, sending=False)
            for connection in list(self._connections.values()):
                self._close(poll, connection)
        self._paused.clear()
        self._idle.clear()
        return self._tally

    def stop(self) -> None:
        """Send nothing more; requests under way are still answered. For another thread than the
        one that runs it.
        """
        self._stopping = True

    def _turn(self, poll: select.epoll, until: float, *, sending: bool) -> None:
        refreshed = 0.0
        while (now := time.monotonic()) < until and self._goes_on(sending=sending):
            if now - refreshed > FRESH:
                self._sent_at = sent_at_now()
                refreshed = now
                if sending or self._left:
                    self._resume(poll, now)
            if self._left:
                now = self._send_due(poll, now)
            for number, mask in self._ready(poll, now):
                connection = self._connections.get(number)
                if connection is not None:
                    self._handle(poll, connection, mask, sending=sending)

    def _goes_on(self, *, sending: bool) -> bool:
        """Whether there is something to send, or to wait for."""
        if sending:
            return not self._stopping
        return self._left > 0 or any(
            connection.request for connection in self._connections.values()
        )

    def _ready(self, poll: select.epoll, now: float) -> list[tuple[int, int]]:
        """The connections that something has happened on. With a rate, none as soon as another
        request is due.
        """
        if not self._left or not self._idle:
            return poll.poll(FRESH)
        found = poll.poll(0)
        if not found and (wait := self._due() - now) > 0:
            # to the microsecond: epoll counts in milliseconds
            select.select([poll], [], [], min(FRESH, wait))
            found = poll.poll(0)
        return found

    def _due(self) -> float:
        """When the next request is due."""
        return self._tally.began + self._sent / (self._rate or 1)

    def _send_due(self, poll: select.epoll, now: float) -> float:
        """Send what is due, as far as connections are idle; the time after that."""
        while self._left and self._idle and (due := self._due()) <= now:
            connection = self._idle.popleft()
            if connection.socket.fileno() < 0:
                continue
            connection.due = due
            if self._watch is None:
                self._tally.delays.append(now - due)
            self._try_send(poll, connection)
            now = time.monotonic()
        return now

    def _handle(
        self, poll: select.epoll, connection: Connection, mask: int, *, sending: bool
    ) -> None:
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
        connection.received = (
            received if not connection.received else connection.received + received
        )
        answer = self._reader.read(connection.received)
        if answer is not None:
            connection.received = b""
            self._answered(poll, connection, answer, sending=sending)

    def _answered(
        self, poll: select.epoll, connection: Connection, answer: Answer, *, sending: bool
    ) -> None:
        tally = self._tally
        request = connection.request
        tally.statuses[answer.status] += 1
        if self._rate is not None:
            self._note(connection, answer.status)
        if request is not None and 200 <= answer.status < 300:
            tally.accepted += request.events
        connection.request = None
        wait = min(answer.retry_after, self._longest_pause) if answer.status == 503 else 0.0
        if answer.close or connection.unsent is not None:
            self._close(poll, connection)
            self._paused.append((time.monotonic() + wait, None))
        elif wait:
            self._paused.append((time.monotonic() + wait, connection))
        elif self._rate is not None:
            self._idle.append(connection)
        elif sending:
            self._send(poll, connection)

    def _note(self, connection: Connection, status: int) -> None:
        """With a rate: how long a request took."""
        seconds = time.monotonic() - connection.due
        if self._watch is None:
            self._tally.latencies.append(seconds)
        elif connection.request is not None:
            self._watch.note(connection.number, connection.request, status, connection.due, seconds)

    def _send(self, poll: select.epoll, connection: Connection) -> None:
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        if request.sent_at >= 0:
            request.data[request.sent_at : request.sent_at + len(self._sent_at)] = self._sent_at
        if request.number >= 0:
            request.data[request.number : request.number + NUMBER] = b"%0*d" % (NUMBER, self._sent)
        if self._watch is not None:
            self._watch.prepare(request, self._sent)
        connection.number = self._sent
        self._sent += 1
        self._left -= self._rate is not None
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
        self._begin(poll, connection)

    def _begin(self, poll: select.epoll, connection: Connection) -> None:
        """Have a connection send again: at once, or what is due next."""
        if self._rate is None:
            self._try_send(poll, connection)
        else:
            self._idle.append(connection)

    def _resume(self, poll: select.epoll, now: float) -> None:
        due = [connection for when, connection in self._paused if when <= now]
        self._paused = [pause for pause in self._paused if pause[0] > now]
        for connection in due:
            if connection is None:
                self._open(poll)
            elif connection.socket.fileno() >= 0:
                self._begin(poll, connection)

    def _try_send(self, poll: select.epoll, connection: Connection) -> None:
        try:
            self._send(poll, connection)
        except OSError:
            self._lost(poll, connection)

    def _lost(self, poll: select.epoll, connection: Connection) -> None:
        """The connection ended by itself: a new one takes its place shortly."""
        self._tally.unanswered += connection.request.events if connection.request else 0
        self._tally.broken += 1
        if self._watch is not None:
            self._note(connection, 0)
        self._close(poll, connection)
        self._paused.append((time.monotonic() + RECONNECT, None))

    def _close(self, poll: select.epoll, connection: Connection) -> None:
        del self._connections[connection.socket.fileno()]
        poll.unregister(connection.socket)
        connection.socket.close()
