"""Starts and stops the ingestion listener, and reports its counts.

Order of stopping: `end_connections()` (answers say `Connection: close`, requests are
accepted as before), `stop_listening()`, `finish_requests()`, `draining = True` (new requests
get 503), `close(grace)`.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.clock import Clock, Timer, wait_for_event
from forwarder.core.connection_loads import WorkerLoad
from forwarder.core.error_text import cannot_listen, error_text
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import RequestIntake
from forwarder.core.shares import Headroom
from forwarder.sources.http.acceptor import Acceptor, Arrivals
from forwarder.sources.http.connection import HttpConnection, ListenerState
from forwarder.sources.http.passthrough.service import PassThrough
from forwarder.sources.http.protocol.answers import Rejection
from forwarder.sources.http.protocol.limits import HttpPolicy
from forwarder.sources.http.protocol.routes import RejectionCount
from forwarder.sources.http.sockets import (
    KEY,
    TcpAddress,
    bind_tcp,
    bind_unix,
    describe,
    duplicates,
    parse_listen,
    remove_unix,
)

log = structlog.get_logger(__name__)

BACKLOG: Final = 4096
"""Connections that the kernel keeps until they are accepted, unless `net.core.somaxconn` is less:
those that arrive during a restart.
"""

FIRST_REQUEST: Final = 0.2
"""Seconds that the connections which were accepted last get for their first request, once no more
are accepted.
"""

CHECK_EVERY: Final = 0.02
"""Seconds between two checks of connections that are to end."""

REPORT_EVERY: Final = 60.0
"""Seconds between two lines in the log about requests of one path that are rejected for one reason.
"""

_EXPECTED_REASONS: Final = frozenset({Rejection.NOT_FOUND, Rejection.METHOD, Rejection.BAD_HTTP})
"""Reasons that are usual on the internet: no warnings."""


@dataclass(frozen=True, slots=True)
class HttpStatistics:
    """What the listener has counted since it was made. Routes are a closed set of names, `other`
    for all that bring no events.
    """

    requests: Mapping[tuple[str, int], int]
    """Answered requests by route and status."""
    connections: int
    rejected_connections: int
    """Connections over the limit, and those that got no TLS handshake."""
    receiving_bytes: int
    """Bytes held of bodies that are not complete."""
    rejected: Mapping[tuple[str, str], int]
    """Requests that were rejected here, those to be passed through too, by route
    and reason (`answers.Rejection`).
    """


class HttpListener:
    """Listens on any number of addresses and offers what comes in to `intake`, under one policy
    and one set of counts.
    """

    def __init__(
        self,
        policy: HttpPolicy,
        intake: RequestIntake,
        clock: Clock,
        headroom: Headroom | None = None,
        passthrough: PassThrough | None = None,
        *,
        path: ForwarderPath | None = None,
        load: WorkerLoad | None = None,
    ) -> None:
        """`headroom`: how much may be received, and the account of it; by itself
        `policy.max_receiving` at any time.

        `passthrough`: where requests go that bring no events; it is the caller's to close, after
        this. `path`: what recognizes a loop. `load`: its part of the workers' loads, if several
        accept from the same sockets; closed with this.
        """
        self._state = ListenerState(policy, intake, headroom, passthrough, path=path, load=load)
        self._arrivals = Arrivals(self._state)
        self._clock = clock
        self._acceptors: list[Acceptor] = []
        self._unix: list[tuple[Path, int]] = []
        self._timer: Timer | None = None
        self._reported = 0
        """Rejected connections that are logged."""
        self._out_of_files = False
        self.addresses: list[str] = []
        """Where it listens, as it would be written in the configuration; with the real port where
        0 was asked for.
        """

    @property
    def draining(self) -> bool:
        """Whether new requests get 503 and every answer ends its connection."""
        return self._state.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._state.drain(draining=draining)

    @property
    def memory_short(self) -> bool:
        """Whether new requests with events get 503, and their bodies are discarded as they come."""
        return self._state.memory_short

    @memory_short.setter
    def memory_short(self, short: bool) -> None:
        self._state.memory_short = short

    async def start(
        self,
        listen: str,
        tls: ssl.SSLContext | None = None,
        *,
        inherited: Sequence[socket.socket] = (),
        removes_file: bool = False,
    ) -> None:
        """Listen on `listen` (`host:port`, `[v6]:port`, `:port` or `unix:/path`) too.

        `inherited` are bound sockets, which others may share, to be used in place of `listen`, and
        closed here; `removes_file`: the file of a Unix socket among them is removed as if it had
        been bound here. Raises `ConfigurationError` if the address is invalid or in use.
        Cancellation leaves nothing listening on it.
        """
        address = parse_listen(listen)
        bound = list(inherited)
        if isinstance(address, Path) and (removes_file or not bound):
            bound = bound or [bind_unix(address)]
            self._unix.append((address, address.lstat().st_ino))
        try:
            if isinstance(address, TcpAddress) and not bound:
                bound = bind_tcp(address)
            for sock in bound:
                sock.listen(BACKLOG)
        except OSError as error:
            for sock in bound:
                sock.close()
            if isinstance(address, Path) and not inherited:
                remove_unix(*self._unix.pop())
            raise cannot_listen(KEY, listen, error) from error
        begin = partial(self._arrivals.begin, tls)
        self._acceptors += [Acceptor(sock, begin, self._clock, self._state.load) for sock in bound]
        self.addresses += map(describe, bound)
        if self._timer is None:
            self._sweep()

    def duplicate_sockets(self) -> tuple[int, ...]:
        """Further descriptors of its sockets, with which they outlive it, and a Unix socket's file
        as well.
        """
        self._unix.clear()
        return duplicates(acceptor.socket for acceptor in self._acceptors)

    async def end_connections(self, grace: float, limit: float) -> None:
        """Keep accepting connections and requests, but each answer says that it is its
        connection's last.

        Returns as soon as the connections that are open now have ended. Those that are idle are
        closed after `grace` seconds: their senders have not learned of the end, and a request may
        cross it. Requests in progress are waited for `limit` seconds longer. Cancellation only
        ends the wait.
        """
        state = self._state
        state.end_connections()
        before = list(state.connections)

        def left() -> list[HttpConnection]:
            return [connection for connection in before if connection in state.connections]

        await self._until(lambda: not left(), grace)
        for connection in left():
            connection.close_if_idle()
        await self._until(lambda: not any(connection.is_busy for connection in left()), limit)

    async def finish_requests(self, limit: float) -> None:
        """Once nothing is accepted any more, answer what the last connections bring, for at most
        `limit` seconds after their first bytes.

        Cancellation only ends the wait.
        """
        connections = self._state.connections
        await self._until(lambda: not (connections or self._arrivals.pending), FIRST_REQUEST)
        for connection in list(connections):
            connection.close_if_idle()
        await self._until(lambda: not any(connection.is_busy for connection in connections), limit)

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while not done() and self._clock.monotonic() < end:
            await self._clock.sleep(CHECK_EVERY)

    async def stop_listening(self) -> None:
        """Accept the connections that have arrived, and no more; open ones are kept. Safe to call
        twice. Never waits.
        """
        while self._acceptors:
            self._acceptors.pop().close()
        while self._unix:
            remove_unix(*self._unix.pop())
        self.addresses = []

    async def close(self, grace: float) -> None:
        """Stop listening, close idle connections, wait at most `grace` seconds for requests in
        progress, drop what remains.

        Cancellation ends the wait: everything is dropped at once.
        """
        self._state.drain(draining=True)
        await self.stop_listening()
        await self._arrivals.close()
        try:
            for connection in list(self._state.connections):
                connection.close_if_idle()
            await wait_for_event(self._state.empty, grace, self._clock)
        finally:
            for connection in list(self._state.connections):
                connection.abort()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        await self._state.empty.wait()
        if self._state.load is not None:
            self._state.load.close()

    def statistics(self) -> HttpStatistics:
        """What has been counted, and what there is now."""
        state = self._state
        requests = state.routes.requests()
        rejected = {(name, reason.value): tally.count for name, reason, tally in self._rejected()}
        return HttpStatistics(
            requests,
            len(state.connections),
            state.rejected_connections,
            state.headroom.receiving,
            rejected,
        )

    def _rejected(self) -> Iterator[tuple[str, Rejection, RejectionCount]]:
        """What was rejected, by route and reason, in a fixed order."""
        state = self._state
        routes = [
            *state.routes.all(),
            *([] if state.passthrough is None else state.passthrough.allowed.all()),
        ]
        rejecting = [route for route in routes if route.rejected]  # each second: mostly none
        for route in sorted(rejecting, key=lambda route: route.name):
            yield from [
                (route.name, reason, tally) for reason, tally in sorted(route.rejected.items())
            ]

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        self._state.sweep(now)
        self._report_rejected()
        self._report_requests(now)
        self._report_files()
        self._timer = self._clock.call_later(self._state.policy.sweep_interval, self._sweep)

    def _report_rejected(self) -> None:
        state = self._state
        rejected = state.rejected_connections - self._reported
        self._reported = state.rejected_connections
        if rejected:
            most, held = state.places.largest() if state.places.held else ("", 0)
            log.warning(
                "connections are rejected: there are too many",
                rejected=rejected,
                open=state.places.held,
                max_connections=state.places.size,
                most_from=most,
                held=held,
                hint=(
                    "One address may hold 7/8 of sources.http.max_connections: raise it if "
                    "these senders are yours."
                ),
            )

    def _report_requests(self, now: float) -> None:
        """Log which requests were rejected: of each route and reason the first at once, then their
        number, each minute.
        """
        for name, reason, tally in self._rejected():
            if (
                tally.count == tally.reported
                or now < tally.report_after
                or reason is Rejection.TOO_MANY_CONNECTIONS
            ):
                continue  # connections have a line of their own
            rejected = tally.count - tally.reported
            tally.reported = tally.count
            tally.report_after = now + REPORT_EVERY
            say = log.info if reason in _EXPECTED_REASONS else log.warning
            why = "" if tally.last is None else tally.last.text
            say(
                "requests are rejected",
                path=name,
                reason=reason.value,
                rejected=rejected,
                in_all=tally.count,
                why=why,
            )

    def _report_files(self) -> None:
        """Log when no more files can be opened, and when they can again: connections wait in the
        sockets' queues meanwhile.
        """
        why = _why_no_file_opens()
        if why and not self._out_of_files:
            log.error(
                "no more files can be opened: new connections wait",
                why=why,
                hint=(
                    "Raise the limit on open files (of the system, if it has too many), or "
                    "lower sources.http.max_connections."
                ),
            )
        elif self._out_of_files and not why:
            log.info("files can be opened again")
        self._out_of_files = bool(why)


def _why_no_file_opens() -> str:
    """Why the process can open no more files; empty if it can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error_text(error) if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return ""
