"""Starts and stops the ingestion listener, and says what it has counted.

Order of stopping: `draining = True` (answers say `Connection: close`, new requests get 503), `stop_listening()`, `close(grace)`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from forwarder.core.clock import Clock, Timer, wait_for_event
from forwarder.core.errors import cannot_listen
from forwarder.core.headroom import Headroom
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Intake
from forwarder.sources.http.connection import Shared
from forwarder.sources.http.handshakes import Handshakes, TlsGate
from forwarder.sources.http.limits import HttpPolicy
from forwarder.sources.http.passthrough.service import PassThrough
from forwarder.sources.http.protocol import HttpProtocol
from forwarder.sources.http.sockets import KEY, bind_unix, describe, parse_listen, remove_unix

log = structlog.get_logger(__name__)

_BACKLOG: Final = 1024

_OTHERS_SOCKET: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""The file of a socket that was inherited isn't removed: from 3.13 on the loop would, and others may listen on it."""


@dataclass(frozen=True, slots=True)
class HttpStatistics:
    """What the listener has counted since it was made. Routes are a closed set of names, `other` for all that is not taken."""

    requests: Mapping[tuple[str, int], int]
    """Answered requests by route and status."""
    connections: int
    rejected_connections: int
    """Connections that found no place."""
    receiving_bytes: int
    """Bytes held of bodies that are not complete."""


class HttpListener:
    """Listens on any number of addresses and offers what comes in to `intake`, under one policy and one set of counts."""

    def __init__(
        self,
        policy: HttpPolicy,
        intake: Intake,
        clock: Clock,
        headroom: Headroom | None = None,
        passthrough: PassThrough | None = None,
        *,
        path: ForwarderPath | None = None,
    ) -> None:
        """`headroom`: how much may be received, and the account of it; by itself `policy.max_receiving` at any time.

        `passthrough`: what takes requests that bring no events; it is the caller's to close, after this. `path`: what recognizes a loop.
        """
        self._shared = Shared(policy, intake, headroom, passthrough, path=path)
        self._handshakes = Handshakes(self._shared)
        self._clock = clock
        self._servers: list[asyncio.Server] = []
        self._unix: list[tuple[Path, int]] = []
        self._timer: Timer | None = None
        self._reported = 0
        """Of the connections that were rejected, those that the log knows."""
        self._out_of_files = False
        self.addresses: list[str] = []
        """Where it listens, as it would be written in the configuration; with the real port where 0 was asked for."""

    @property
    def draining(self) -> bool:
        """Whether new requests get 503 and every answer ends its connection."""
        return self._shared.draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._shared.drain(draining=draining)

    async def start(
        self, listen: str, tls: ssl.SSLContext | None = None, *, reuse_port: bool = False, inherited: socket.socket | None = None
    ) -> None:
        """Listen on `listen` (`host:port`, `[v6]:port`, `:port` or `unix:/path`) too.

        With `reuse_port`, other processes may listen on the same TCP address; `inherited` is a bound Unix socket that others share, to be
        used in place of `listen`, and closed here. Raises `ConfigurationError` if the address is none or can't be had. Cancellation leaves
        nothing listening on it.
        """
        address = parse_listen(listen)
        loop = asyncio.get_running_loop()
        connection = self._connection if tls is None else partial(TlsGate, self._handshakes, tls)
        if inherited is not None:
            server = await loop.create_unix_server(
                connection, sock=inherited, backlog=_BACKLOG, **_OTHERS_SOCKET
            )
        elif isinstance(address, Path):
            bound = bind_unix(address)
            self._unix.append((address, address.lstat().st_ino))
            try:
                server = await loop.create_unix_server(connection, sock=bound, backlog=_BACKLOG)
            except BaseException:
                bound.close()
                remove_unix(*self._unix.pop())
                raise
        else:
            try:
                server = await loop.create_server(
                    connection,
                    address.host,
                    address.port,
                    backlog=_BACKLOG,
                    reuse_port=reuse_port or None,
                )
            except OSError as error:
                raise cannot_listen(KEY, listen, error) from error
        self._servers.append(server)
        self.addresses += [describe(bound) for bound in server.sockets]
        if self._timer is None:
            self._sweep()

    async def stop_listening(self) -> None:
        """Accept no more connections; those that are there go on. Safe to call twice. Never waits for long."""
        while self._servers:
            self._servers.pop().close()
        while self._unix:
            remove_unix(*self._unix.pop())
        self.addresses = []
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    async def close(self, grace: float) -> None:
        """Stop listening, close idle connections, wait at most `grace` seconds for requests in progress, drop what remains.

        Cancellation ends the wait: everything is dropped at once.
        """
        self._shared.drain(draining=True)
        await self.stop_listening()
        await self._handshakes.close()
        try:
            for connection in list(self._shared.connections):
                connection.close_if_idle()
            await wait_for_event(self._shared.empty, grace, self._clock)
        finally:
            for connection in list(self._shared.connections):
                connection.abort()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        await self._shared.empty.wait()

    def statistics(self) -> HttpStatistics:
        """What has been counted, and what there is now."""
        shared = self._shared
        return HttpStatistics(shared.routes.requests(), len(shared.connections), shared.rejected, shared.headroom.receiving)

    def _connection(self) -> HttpProtocol:
        return HttpProtocol(self._shared)

    def _sweep(self) -> None:
        self._shared.sweep(self._clock.monotonic())
        self._report_rejected()
        self._report_files()
        self._timer = self._clock.call_later(self._shared.policy.sweep_interval, self._sweep)

    def _report_rejected(self) -> None:
        shared = self._shared
        rejected, self._reported = shared.rejected - self._reported, shared.rejected
        if rejected:
            most, held = shared.places.largest() if shared.places.held else ("", 0)
            log.warning(
                "connections are rejected: there are too many",
                rejected=rejected,
                open=shared.places.held,
                max_connections=shared.places.size,
                most_from=most,
                held=held,
                hint="One address may hold 7/8 of sources.http.max_connections: raise it if these senders are yours.",
            )

    def _report_files(self) -> None:
        """Say when no more files can be opened, and when they can again: the loop drops what connects meanwhile without a word."""
        why = _why_no_file_opens()
        if why and not self._out_of_files:
            log.error(
                "no more files can be opened: new connections are dropped",
                why=why,
                hint="Raise the limit on open files (of the system, if it has too many), or lower sources.http.max_connections.",
            )
        elif self._out_of_files and not why:
            log.info("files can be opened again")
        self._out_of_files = bool(why)


def _why_no_file_opens() -> str:
    """Why the process can open no more files; empty if it can."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return os.strerror(error.errno) if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return ""
