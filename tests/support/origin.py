"""The upstream of calls that are passed through: a server on 127.0.0.1 on which a test reads and
writes every byte itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final, TypeAlias

from forwarder.sources.http.passthrough import PassThroughPolicy
from tests.support.listening import LIMIT

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Asked:
    """One request, with the connection that it came on."""

    method: str
    target: str
    lines: list[tuple[str, str]]
    """All headers, names in lower-case."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes = b""
    """As far as it was read."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its handler was cancelled or its connection lost."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of several lines the last."""
        return dict(self.lines)

    async def read(self) -> bytes:
        """The whole body."""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readuntil(b"\n"), 16):
                self.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        else:
            self.body += await self.reader.readexactly(int(self.headers.get("content-length", "0")))
        return self.body

    async def write(self, *pieces: bytes) -> None:
        """Write to the forwarder."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        """Reset the connection."""
        self.writer.get_extra_info("socket").setsockopt(
            SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()


Handler: TypeAlias = Callable[[Asked], Awaitable[None]]


async def ok(asked: Asked) -> None:
    """Read the request, and answer."""
    await asked.read()
    await asked.write(OK)


def always(answer: bytes) -> Handler:
    """Read the request, and answer this."""

    async def give(asked: Asked) -> None:
        await asked.read()
        await asked.write(answer)

    return give


async def hang(asked: Asked) -> None:
    """Read the request, and never answer."""
    await asked.read()
    await asked.reader.read()
    raise ConnectionResetError


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    return (
        "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]).encode(
            "latin-1"
        )
        + b"\r\n\r\n"
        + body
    )


class Origin:
    """The server. `handler` is called with each request; when it returns, the connection can be
    used for the next.
    """

    def __init__(self, handler: Handler = ok) -> None:
        self.handler = handler
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        """What was asked for, in order."""
        return [asked.target for asked in self.asked]

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=tls, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        asked: Asked | None = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8").rstrip("\r\n")
                first, *lines = head.split("\r\n")
                method, target, _ = first.split(" ")
                asked = Asked(
                    method,
                    target,
                    [(n.lower(), v) for n, _, v in (line.partition(": ") for line in lines)],
                    reader,
                    writer,
                )
                self.asked.append(asked)
                await self.handler(asked)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the end of the connection, however it came, is what tests look at
        finally:
            if asked is not None:
                asked.gone.set()
            self._tasks.discard(task)
            writer.transport.abort()


@contextlib.asynccontextmanager
async def origin(handler: Handler = ok) -> AsyncIterator[Origin]:
    """A started upstream."""
    server = Origin(handler)
    await server.start()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.stop(), LIMIT)


def through(upstream: Origin, assets: Origin | None = None, **options: Any) -> PassThroughPolicy:
    """The policy that passes calls to it. Connecting may take as long as a busy machine needs:
    that time runs on the real clock.
    """
    return PassThroughPolicy(
        url=upstream.url,
        assets_url=(assets or upstream).url,
        **{"connect_timeout": LIMIT, **options},
    )
