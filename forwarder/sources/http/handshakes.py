"""TLS handshakes before a connection is one: senders share them, as they share connections.

A loop's own TLS server starts a handshake for whoever connects, and none of them counts as a connection before it has ended: an address
that connects and says nothing could hold every file that the process may open. So TLS addresses are listened to without TLS, and what
connects is either given a permit and its handshake, or closed at once.

Invariant: a permit is held for as long as a handshake lasts, which has a time limit; then the connection has a place of its own, or is
closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Final, cast

from forwarder.core.shares import Pool
from forwarder.sources.http.connection import Shared
from forwarder.sources.http.protocol import HttpProtocol

HANDSHAKES: Final = 256
"""TLS handshakes in progress at once."""


class Handshakes:
    """Those of one listener."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._permits = Pool(HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> bool:
        """Whether any are in progress."""
        return bool(self._tasks)

    def begin(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Take a new connection over from `transport`, on which nothing was read yet, and shake hands; or close it."""
        sender = self._shared.addresses.peer(transport.get_extra_info("peername")).sender
        try:
            if not self._permits.acquire(sender):
                self._shared.rejected += 1
                return
            try:
                taken = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            except OSError:  # no file left
                self._permits.release(sender)
                self._shared.rejected += 1
                return
        finally:
            transport.abort()
        taken.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._shake_hands(taken, tls), name="shake hands")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._permits.release(sender))

    async def close(self) -> None:
        """End those in progress, each of which has begun: one that hasn't couldn't close its socket."""
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _shake_hands(self, taken: socket.socket, tls: ssl.SSLContext) -> None:
        """Cancellation closes the connection."""
        with suppress(OSError):  # a handshake that fails or takes too long is the sender's affair
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpProtocol(self._shared), taken, ssl=tls, ssl_handshake_timeout=self._shared.policy.header_timeout
            )


class TlsGate(asyncio.Protocol):
    """What a TLS address is listened to with: hands the connection over as soon as it is made."""

    def __init__(self, handshakes: Handshakes, tls: ssl.SSLContext) -> None:
        self._handshakes = handshakes
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. Nothing is read before this returns."""
        self._handshakes.begin(cast("asyncio.Transport", transport), self._tls)
