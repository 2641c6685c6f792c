"""TLS for the listener: certificate and key from files, renewed without a restart, and handshakes before a connection is one.

A loop's own TLS server starts a handshake for every client, and none of them counts as a connection before it has ended: an address
that connects and says nothing could hold every file that the process may open. So TLS addresses are listened to without TLS, and what
connects is either given a permit and its handshake, or closed at once: senders share the permits, as they share connections.

Invariant: a permit is held for as long as a handshake lasts, which has a time limit; then the connection has a place of its own, or is
closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.shares import Pool
from forwarder.sources.http.connection import HttpConnection, ListenerState

HANDSHAKES: Final = 256
"""TLS handshakes in progress at once."""


class Handshakes:
    """The TLS handshakes of one listener."""

    def __init__(self, state: ListenerState) -> None:
        self._state = state
        self._permits = Pool(HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> bool:
        """Whether any are in progress."""
        return bool(self._tasks)

    def begin(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Take a new connection over from `transport`, on which nothing was read yet, and shake hands; or close it."""
        sender = self._state.addresses.peer(transport.get_extra_info("peername")).sender
        try:
            if not self._permits.acquire(sender):
                self._state.rejected_connections += 1
                return
            try:
                accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            except OSError:  # no file left
                self._permits.release(sender)
                self._state.rejected_connections += 1
                return
        finally:
            transport.abort()
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, tls), name="shake hands")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._permits.release(sender))

    async def close(self) -> None:
        """End those in progress, each of which has begun: one that hasn't couldn't close its socket."""
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Cancellation closes the connection."""
        with suppress(OSError):  # a handshake that fails or takes too long is the sender's concern
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: HttpConnection(self._state), accepted, ssl=tls, ssl_handshake_timeout=self._state.policy.header_timeout
            )


class TlsGate(asyncio.Protocol):
    """The protocol of a TLS address: hands each connection over to `Handshakes` as soon as it is made."""

    def __init__(self, handshakes: Handshakes, tls: ssl.SSLContext) -> None:
        self._handshakes = handshakes
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`. Nothing is read before this returns."""
        self._handshakes.begin(cast("asyncio.Transport", transport), self._tls)


def load_tls(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """A context for `HttpListener.start`, for TLS 1.2 and newer. Raises `ConfigurationError` if the files can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    reload_tls(context, cert_file, key_file)
    return context


def reload_tls(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Use what the files hold now for connections from now on. Raises `ConfigurationError`, and then the old pair is kept."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for target in (probe, context):
        try:
            target.load_cert_chain(cert_file, key_file, password=_reject_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The certificate {cert_file} and its key {key_file} can't be used: {error_text(error)}",
                hint="Give a PEM certificate chain and its unencrypted PEM key, readable by this user.",
            ) from error


def _reject_password() -> str:
    raise ValueError("the key is encrypted")
