"""The proxy before an upstream: how it is spoken to, and the way through it to an upstream with
TLS (`CONNECT`: RFC 9110, 9.3.6).
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
from typing import Final

from yarl import URL

from forwarder.core.tls import client_context

_MAX_HEAD: Final = 16 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


class ProxyRefusal(ConnectionError):
    """The proxy doesn't connect to the upstream."""


class UpstreamProxy:
    """An HTTP proxy. With an address that begins with https, whatever it is told is encrypted: the
    password too.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        address = URL(url)
        self.host = address.raw_host or ""
        self.port = address.port or 80
        self.tls = (tls or client_context()) if address.scheme == "https" else None
        self.login = _login(address)
        """The header line that logs in; empty without a user."""

    async def tunnel(self, connected: socket.socket, target: bytes) -> asyncio.Transport:
        """A transport to `target` (host:port) over a socket that is connected to the proxy. Raises
        `ProxyRefusal`, and `OSError`.
        """
        loop = asyncio.get_running_loop()
        name = self.host if self.tls else None
        transport, tunnel = await loop.create_connection(
            _Tunnel, sock=connected, ssl=self.tls, server_hostname=name
        )
        try:
            transport.write(
                b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, target, self.login)
            )
            _check(await tunnel.head)
        except BaseException:
            transport.abort()
            raise
        return transport


class _Tunnel(asyncio.Protocol):
    """Receives the proxy's answer: behind its head comes what the upstream sends, and that sends
    nothing of itself.
    """

    def __init__(self) -> None:
        self._received = b""
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """What came, when it is complete, too large or cut off."""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if _HEAD_END in self._received or len(self._received) > _MAX_HEAD:
            self._end()

    def connection_lost(self, _: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.head.done():
            self.head.set_result(self._received)


def _check(head: bytes) -> None:
    if _HEAD_END not in head:
        raise ProxyRefusal(
            "the proxy closed the connection"
            if len(head) <= _MAX_HEAD
            else "the head of the proxy's answer is too large"
        )
    first = _STATUS_LINE.match(head)
    if first is None:
        raise ProxyRefusal("the proxy's answer is no HTTP")
    if not first[1].startswith(b"2"):
        raise ProxyRefusal(f"the proxy refuses the connection: HTTP {first[1].decode()}")


def _login(proxy: URL) -> bytes:
    if proxy.user is None:
        return b""
    pair = f"{proxy.user}:{proxy.password or ''}".encode()
    return b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(pair)
