"""A listener on real sockets for tests: a scripted intake, a raw client, and answers
as they came.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from forwarder.core.ack import AckCallback
from forwarder.core.connection_loads import WorkerLoad
from forwarder.core.errors import Backpressure
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Incoming
from forwarder.core.shares import Headroom
from forwarder.sources.http import HttpListener, HttpPolicy
from forwarder.sources.http.passthrough import PassThrough, PassThroughPolicy
from tests.support.clock import FakeClock

LIMIT = 30.0
"""Seconds of real time after which a test that waits for a socket has failed."""

Result = TypeVar("Result")


@dataclass
class FakeHttpIntake:
    """Keeps what it is offered, or raises a scripted error; what is
    `later` waits in `waiters`.
    """

    accepted: list[Incoming] = field(default_factory=list)
    refuse: Callable[[Incoming], Exception | None] = lambda _: None
    later: Callable[[Incoming], bool] = lambda _: False
    waiters: list[AckCallback] = field(default_factory=list)

    def accept(self, incoming: Incoming, callback: AckCallback) -> bool:
        error = self.refuse(incoming)
        if error is not None:
            raise error
        self.accepted.append(replace(incoming))
        if self.later(incoming):
            self.waiters.append(callback)
            return False
        return True

    def acknowledge(self, count: int = 1, error: Backpressure | None = None) -> None:
        """Tell those that have waited longest."""
        for _ in range(count):
            self.waiters.pop(0)(error)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies that were taken, in order."""
        return [incoming.body for incoming in self.accepted]


@dataclass(frozen=True)
class RawReply:
    """One answer, as it was on the wire. Names of headers are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def within(what: Awaitable[Result]) -> Result:
    """The result of what is waited for, within the limit. Unlike `asyncio.wait_for` of Python 3.11
    it never swallows a cancellation.
    """
    async with asyncio.timeout(LIMIT):
        return await what


class RawConnection:
    """A connection on which a test says exactly what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces, each read by the listener before the next is written (as far as that
        can be arranged).
        """
        for number, piece in enumerate(pieces):
            if number:
                await turns()
            self.writer.write(piece)
            await within(self.writer.drain())

    async def reply(self, *, head: bool = False) -> RawReply:
        """Read one answer; `head` if it answers a HEAD request, and so has no body."""
        raw = await within(self.reader.readuntil(b"\r\n\r\n"))
        return await self._reply(raw, head=head)

    async def ask(self, request: bytes) -> RawReply:
        """Send one request and read its answer."""
        await self.send(request)
        return await self.reply(head=request.startswith(b"HEAD "))

    async def ended(self) -> bytes:
        """What else comes until the listener closes its side."""
        return await within(self.reader.read(-1))

    async def close(self) -> None:
        """Close it."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await within(self.writer.wait_closed())

    async def _reply(self, raw: bytes, *, head: bool) -> RawReply:
        start, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        version, status, _ = start.split(" ", 2)
        assert version == "HTTP/1.1", start
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        assert len(headers) == len(lines), lines
        length = 0 if head else int(headers.get("content-length", "0"))
        return RawReply(int(status), headers, await within(self.reader.readexactly(length)))


@dataclass
class ListenerRig:
    """A listener under test, with everything that surrounds it."""

    listener: HttpListener
    intake: FakeHttpIntake
    clock: FakeClock
    passthrough: PassThrough | None = None
    clients: list[RawConnection] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """What the loop's exception handler was told: nothing, ever."""

    @property
    def port(self) -> int:
        """Of the first address."""
        return int(self.listener.addresses[0].rpartition(":")[2])

    async def connect(self, **options: Any) -> RawConnection:
        """A new connection to the first address; closed at the end."""
        address = self.listener.addresses[0]
        if address.startswith("unix:"):
            opening = asyncio.open_unix_connection(address.removeprefix("unix:"), **options)
        else:
            opening = asyncio.open_connection("127.0.0.1", self.port, **options)
        client = RawConnection(*await within(opening))
        self.clients.append(client)
        return client

    async def ask(self, request: bytes) -> RawReply:
        """Send one request on its own connection."""
        client = await self.connect()
        reply = await client.ask(request)
        await client.close()
        return reply

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the listener's side has noticed."""
        async with asyncio.timeout(LIMIT):
            # ASYNC110: the listener's own state changes without setting an event.
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Turn the clock second by second, as the sweep looks at connections about
        once a second.
        """
        for _ in range(int(seconds)):
            await self.clock.advance(1)


async def turns(count: int = 5) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def listening(
    policy: HttpPolicy | None = None,
    listen: str = "127.0.0.1:0",
    *,
    bugs: int = 0,
    headroom: Headroom | None = None,
    passthrough: PassThroughPolicy | None = None,
    path: ForwarderPath | None = None,
    load: WorkerLoad | None = None,
    **options: Any,
) -> AsyncIterator[ListenerRig]:
    """A started listener. At the end nothing may be left of its connections, and the loop may have
    had nothing to complain about.

    `path`: what recognizes a loop. `load`: its part of the workers' loads.
    `bugs` is how many requests may have been answered 500. With `passthrough`, calls that bring no
    events are passed through by it.
    """
    clock = FakeClock()
    intake = FakeHttpIntake()
    passed = None if passthrough is None else PassThrough(passthrough, clock)
    listener = HttpListener(
        policy or HttpPolicy(), intake, clock, headroom, passed, path=path, load=load
    )
    under_test = ListenerRig(listener, intake, clock, passed)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: under_test.failures.append(context)
    )
    await under_test.listener.start(listen, **options)
    try:
        yield under_test
    finally:
        for client in under_test.clients:
            await client.close()
        await within(under_test.listener.close(0))
        if passed is not None:
            await within(passed.close())
        await turns()
    statistics = under_test.listener.statistics()
    assert (statistics.connections, statistics.receiving_bytes) == (0, 0)
    assert under_test.failures == [], str(under_test.failures)
    assert sum([count for (_, code), count in statistics.requests.items() if code == 500]) == bugs
    assert clock.pending == 0


def post(path: str = "/batch/", body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    """A usual request."""
    lines = [
        f"POST {path} HTTP/{version}",
        "Host: localhost",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(*chunks: bytes, path: str = "/batch/", trailer: bytes = b"") -> bytes:
    """A request whose body comes in chunks."""
    coded = b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])
    return b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (
        path.encode(),
        coded,
        trailer,
    )
