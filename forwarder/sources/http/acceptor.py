"""From a listening socket to connections: who of several workers accepts the next one, and TLS
before it is one.

Workers accept from the same sockets, so that one that is stopped or busy holds up no sender: the
others accept instead. Where the next connection is another worker's (`core/connection_loads.py`),
a worker leaves it to the others, but only for `PAUSE` seconds. Each time that nobody else accepted
meanwhile, it accepts twice as many before it waits again: a worker that doesn't accept costs the
senders little.

A loop's own TLS server starts a handshake for every client, and none of them counts as a
connection before it has ended: an address that connects and says nothing could hold every file
that the process may open. So each has a permit, or is closed at once; senders share the permits,
as they share connections.

Invariants: what was accepted is among `ListenerState.arriving` until it is a connection, or
closed; a permit is held for as long as a handshake lasts, which has a time limit.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from forwarder.core.clock import Clock, Timer
from forwarder.core.connection_loads import WorkerLoad
from forwarder.core.shares import Pool
from forwarder.sources.http.connection import HttpConnection, ListenerState

HANDSHAKES: Final = 256
"""TLS handshakes in progress at once."""

MOST_AT_ONCE: Final = 16
"""Connections that are accepted at most in a turn of the loop."""

PAUSE: Final = 0.001
"""Seconds that a worker leaves the next connection to those that have fewer, unless connections of
its own end meanwhile.
"""

MAX_PATIENCE: Final = 16
"""Connections that a worker accepts at most before it waits again for those that have fewer."""

UNASKED: Final = 0.01
"""Seconds within which it does so."""

RETRY: Final = 0.1
"""Seconds after which accepting is tried again when the system refused it, mostly because no more
files can be opened.
"""


class Acceptor:
    """Accepts connections of one listening socket, which it closes at its end."""

    def __init__(
        self,
        listening: socket.socket,
        begin: Callable[[socket.socket, object], None],
        clock: Clock,
        load: WorkerLoad | None,
    ) -> None:
        """`begin` gets each connection's socket, and the peer's name. `load`: its part of several
        workers' loads, unless it is alone.
        """
        self.socket = listening
        self._begin = begin
        self._clock = clock
        self._load = load
        self._timer: Timer | None = None
        self._unasked = 0
        self._unasked_until = 0.0
        """Connections that it accepts although others have fewer, and until when."""
        self._patience = 1
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept what is in the queue, then no more."""
        if self._timer is None:
            asyncio.get_running_loop().remove_reader(self.socket)
        else:
            self._end_pause()
        with suppress(OSError):
            while True:
                self._accept()
        self.socket.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self.socket, self._on_readable)

    def _on_readable(self) -> None:
        most = self._due()
        if not most:
            self._pause(PAUSE)
            return
        accepted = 0
        try:
            while accepted < most:
                self._accept()
                accepted += 1
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another process accepted the connection, or the sender has gone.
            pass
        except OSError:  # the listener's log says when no more files can be opened
            self._pause(RETRY)
        if accepted and self._load is not None:
            self._load.add(accepted)

    def _due(self) -> int:
        """How many connections it accepts now at most; 0: others get time to do so."""
        room = MOST_AT_ONCE if self._load is None else self._load.room
        if room > 0:
            self._unasked = 0
            self._patience = 1
            return min(room, MOST_AT_ONCE)
        now = self._clock.monotonic()
        if self._unasked and now < self._unasked_until:
            self._unasked -= 1
            return 1
        if self._load is not None:
            self._load.leave_turn()
        self._unasked = self._patience
        self._unasked_until = now + PAUSE + UNASKED
        self._patience = min(2 * self._patience, MAX_PATIENCE)
        return 0

    def _pause(self, seconds: float) -> None:
        """Accept nothing for a while, or until it has room for more."""
        asyncio.get_running_loop().remove_reader(self.socket)
        self._timer = self._clock.call_later(seconds, self._resume)
        if self._load is not None:
            self._load.wait(self._resume)

    def _resume(self) -> None:
        self._end_pause()
        self._listen()

    def _end_pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._load is not None:
            self._load.stop_waiting(self._resume)

    def _accept(self) -> None:
        """Accept one connection. Raises `OSError`: `BlockingIOError` if there is none."""
        accepted, peername = self.socket.accept()
        accepted.setblocking(False)
        self._begin(accepted, peername)


class Arrivals:
    """Sockets of one listener that were accepted and aren't connections yet."""

    def __init__(self, state: ListenerState) -> None:
        self._state = state
        self._permits = Pool(HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> bool:
        """Whether there are any."""
        return bool(self._tasks)

    def begin(self, tls: ssl.SSLContext | None, accepted: socket.socket, peername: object) -> None:
        """Make a connection of a socket, after a handshake if there is `tls`; or close it, if
        there are too many of these.
        """
        state = self._state
        sender = state.addresses.peer(peername).sender if tls is not None else ""
        if tls is not None and not self._permits.acquire(sender):
            state.rejected_connections += 1
            accepted.close()
            return
        connection = HttpConnection(state)
        task = asyncio.get_running_loop().create_task(
            self._connect(connection, accepted, tls), name="accept a connection"
        )

        def end(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if connection in state.arriving:  # it failed
                state.arriving.discard(connection)
                state.report_load()
            if tls is not None:
                self._permits.release(sender)

        self._tasks.add(task)
        task.add_done_callback(end)
        state.arriving.add(connection)

    async def close(self) -> None:
        """End those in progress, each of which has begun: one that hasn't
        couldn't close its socket.
        """
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(
        self, connection: HttpConnection, accepted: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        """Cancellation closes the connection."""
        limit = None if tls is None else self._state.policy.header_timeout
        with suppress(OSError):  # a handshake that fails or takes too long is the sender's concern
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=limit
            )
