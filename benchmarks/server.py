"""A small HTTP server on httptools under uvloop: the frame of the counting
sink and of the bare server.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final, cast

import httptools
import uvloop

OK: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    b'{"status":"Ok"}'
)


class Exchange(asyncio.Protocol):
    """One connection: collects a request and writes what `handle` answers. Subclasses say what a
    request is worth.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.answer(
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            if self._transport:
                self._transport.close()

    def answer(self, data: bytes) -> None:
        """Write a whole answer."""
        if self._transport is not None:
            self._transport.write(data)


def serve(protocol: Callable[[], Exchange], port: int) -> None:
    """Serve on 127.0.0.1:`port` until SIGTERM or SIGINT. Blocks."""
    uvloop.run(_serve(protocol, port))


async def _serve(protocol: Callable[[], Exchange], port: int) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(protocol, "127.0.0.1", port, backlog=1024)
    await stopped.wait()
    server.close()
