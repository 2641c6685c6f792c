"""The connections to one upstream: kept open, one request at a time on each (`connection.py`).

A request without a body that asks only (GET, HEAD) is sent a second time, on a new connection, if
the kept one turned out to be closed before any of the response came (RFC 9112, 9.3.1).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from aiohappyeyeballs import AddrInfoType, start_connection
from yarl import URL

from forwarder.core.error_text import unreachable_text
from forwarder.core.errors import drop_frames
from forwarder.core.tls import client_context
from forwarder.upstream.connection import ArrivingAnswer, OutgoingRequest, UpstreamConnection
from forwarder.upstream.proxies import ProxyRefusal, UpstreamProxy

KEPT_SECONDS: Final = 15.0
"""For how long a connection without a request is kept."""

MAX_KEPT: Final = 256
"""Connections that are kept without a request."""

_FALLBACK_DELAY: Final = 0.1
"""Seconds until the next of several addresses is tried beside one that doesn't answer (RFC 8305).
"""

_REPEATED: Final = frozenset({b"GET", b"HEAD"})


class NoConnection(ConnectionError):
    """No connection comes about; its text says to whom, and why."""


class UpstreamConnections:
    """The connections to one address, or to the proxy before it."""

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | None, proxy: str | None, connect_timeout: float
    ) -> None:
        address = URL(url)
        self._tls = (tls or client_context()) if address.scheme == "https" else None
        self._host = address.raw_host or ""
        self._port = address.port or 80
        self._authority = address.raw_authority.rpartition("@")[2].encode()
        self._connect_timeout = connect_timeout
        self._proxy = None if proxy is None else UpstreamProxy(proxy, tls)
        self._prefix = address.raw_path.rstrip("/").encode()
        if self._proxy is not None and self._tls is None:
            self._prefix = b"http://%b%b" % (self._authority, self._prefix)
        self._kept: list[UpstreamConnection] = []
        self._open: dict[UpstreamConnection, None] = {}
        self._question: asyncio.Future[Sequence[AddrInfoType]] | None = None

    async def ask(self, request: OutgoingRequest) -> ArrivingAnswer:
        """The response, of which the head has come in; the caller releases it.

        Raises `OSError`: `TimeoutError` where no connection comes about in time, `NoConnection`
        where none does. Cancellation drops the connection.
        """
        head = self._head(request)
        connection = self._take()
        if connection is not None:
            try:
                return await _with_head(connection.ask(request, head))
            except OSError:
                if connection.begun or request.method not in _REPEATED or request.body is not None:
                    raise
        connection = await self._connect()
        return await _with_head(connection.ask(request, head))

    def close(self) -> None:
        """Drop all connections."""
        if self._question is not None:
            self._question.cancel()
        for connection in list(self._open):
            connection.abort()

    def _head(self, request: OutgoingRequest) -> bytes:
        method, target, lines, length, body = request
        if body is None:
            framing = b"" if method in _REPEATED else b"Content-Length: 0\r\n"
        else:
            framing = (
                b"Transfer-Encoding: chunked\r\n"
                if length is None
                else b"Content-Length: %d\r\n" % length
            )
        login = b"" if self._proxy is None or self._tls is not None else self._proxy.login
        return b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b%b\r\n" % (
            method,
            self._prefix,
            target,
            self._authority,
            login,
            lines,
            framing,
        )

    def _take(self) -> UpstreamConnection | None:
        """The kept connection that was used last, if it is not too old."""
        oldest = asyncio.get_running_loop().time() - KEPT_SECONDS
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _free(self, connection: UpstreamConnection) -> None:
        now = asyncio.get_running_loop().time()
        connection.idle_since = now
        self._kept.append(connection)
        while self._kept[0].idle_since < now - KEPT_SECONDS or len(self._kept) > MAX_KEPT:
            self._kept.pop(0).abort()

    async def _connect(self) -> UpstreamConnection:
        connection = UpstreamConnection(self._opened, self._free, self._lost)
        proxy = self._proxy
        async with asyncio.timeout(self._connect_timeout):
            if proxy is None:
                with _named(self._host, f"{self._host}:{self._port}"):
                    await self._open_to(self._host, self._port, self._tls, connection)
            elif self._tls is None:
                with _named(proxy.host, "the proxy"):
                    await self._open_to(proxy.host, proxy.port, proxy.tls, connection)
            else:
                with _named(proxy.host, "the proxy"):
                    await self._open_through(proxy, self._tls, connection)
        return connection

    async def _open_to(
        self, host: str, port: int, tls: ssl.SSLContext | None, connection: UpstreamConnection
    ) -> None:
        connected = await self._connected(host, port)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: connection, sock=connected, ssl=tls, server_hostname=host if tls else None
            )
        except BaseException:
            connected.close()
            raise

    async def _open_through(
        self, proxy: UpstreamProxy, tls: ssl.SSLContext, connection: UpstreamConnection
    ) -> None:
        connected = await self._connected(proxy.host, proxy.port)
        host = self._host.encode()
        try:
            transport = await proxy.tunnel(
                connected, b"%b:%d" % (b"[%b]" % host if b":" in host else host, self._port)
            )
        except BaseException:
            connected.close()
            raise
        try:
            with _named(self._host, f"{self._host}:{self._port}"):
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport, connection, tls, server_hostname=self._host
                )
        except BaseException:
            transport.abort()
            raise
        if encrypted is None or encrypted.is_closing():
            raise ConnectionResetError("the connection was closed")
        connection.connection_made(encrypted)

    async def _connected(self, host: str, port: int) -> socket.socket:
        addresses = await self._addresses(host, port)
        try:
            connected = await start_connection(
                addresses, happy_eyeballs_delay=_FALLBACK_DELAY, interleave=1
            )
        except BaseException as error:
            drop_frames(error)  # one of them keeps it, and cancellation too
            raise
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        """What the name stands for. Connections that are made at once share one question: the
        system answers only a few at a time.
        """
        if self._question is None:
            self._question = asyncio.create_task(_look_up(host, port), name="look up an upstream")
            self._question.add_done_callback(self._answered)
        return await asyncio.shield(self._question)

    def _answered(self, _: asyncio.Future[Sequence[AddrInfoType]]) -> None:
        self._question = None

    def _opened(self, connection: UpstreamConnection) -> None:
        self._open[connection] = None

    def _lost(self, connection: UpstreamConnection) -> None:
        self._open.pop(connection, None)
        if connection in self._kept:
            self._kept.remove(connection)


@contextmanager
def _named(host: str, where: str) -> Iterator[None]:
    """Says of an error of the system to whom there is no connection."""
    try:
        yield
    except (NoConnection, ProxyRefusal, TimeoutError):
        raise
    except OSError as error:
        drop_frames(error)  # since Python 3.12 the frame of this generator leads back to it
        raise NoConnection(unreachable_text(error, host, where)) from error


async def _look_up(host: str, port: int) -> Sequence[AddrInfoType]:
    with suppress(socket.gaierror):  # an address isn't looked up, and needs no thread
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _with_head(answer: ArrivingAnswer) -> ArrivingAnswer:
    try:
        await answer.head()
    except BaseException:
        answer.release()
        raise
    return answer
