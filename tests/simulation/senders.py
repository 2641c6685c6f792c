"""Senders: each sends its requests in order on a connection that it keeps, and repeats what was not
accepted, as SDKs do.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.http import read_message
from tests.simulation.network import passing
from tests.simulation.plan import Send, body_of

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Network, SimulatedTransport

PATIENCE = 60.0
"""Seconds that a sender waits for an answer."""


@dataclass(slots=True)
class Answered:
    """What became of a request: the statuses of its tries, 0 for none."""

    send: Send
    began: float
    """When its first try began."""
    statuses: list[int] = field(default_factory=list)
    at: float = 0.0
    """When the last answer came."""
    part: str = ""
    """What it is a part of, in order; else it is a whole by itself."""

    @property
    def whole(self) -> object:
        """What has an order of its own: a request, or a partition."""
        return self.part or self.send.events

    @property
    def accepted(self) -> bool:
        """Whether it was answered 200."""
        return 200 in self.statuses

    @property
    def maybe(self) -> int:
        """Tries that were accepted, perhaps."""
        return sum(status in (0, 200, 503) for status in self.statuses)


class Sender:
    """One of them."""

    def __init__(
        self,
        number: int,
        loop: SimulatedLoop,
        network: Network,
        to: Callable[[], tuple[str, int]],
        say: Callable[[str, str], None],
    ) -> None:
        self._name = f"sender {number}"
        self._peer = f"10.0.1.{number + 1}"
        self._loop = loop
        self._network = network
        self._to = to
        self._say = say
        self._queue: asyncio.Queue[Send | None] = asyncio.Queue()
        self._transport: SimulatedTransport | None = None
        self._reader: asyncio.StreamReader | None = None
        self.answers: list[Answered] = []
        self.on_accepted: Callable[[Send], None] = lambda _: None
        """Called at the moment of a 200."""

    def send(self, request: Send | None) -> None:
        """Send a request after those before it; None: it was the last."""
        self._queue.put_nowait(request)

    async def run(self) -> None:
        """Until the last request has its answer."""
        try:
            while (request := await self._queue.get()) is not None:
                await self._ask(request)
        finally:
            self._hang_up()

    async def _ask(self, request: Send) -> None:
        answered = Answered(request, self._loop.time())
        self.answers.append(answered)
        for number in range(request.tries):
            if number:
                await passing(0.5 * 2**number)
            status = await self._try(request, breaks_off=request.breaks_off and not number)
            answered.statuses.append(status)
            answered.at = self._loop.time()
            first = request.events[0].number
            self._say(self._name, f"event {first} and what is with it: {status or 'no answer'}")
            if status == 200:
                self.on_accepted(request)
            if status and status < 500 and status != 429:
                return

    async def _try(self, request: Send, *, breaks_off: bool) -> int:
        """The answer's status; 0 without one."""
        body = body_of(request)
        headers = ""
        if request.gzip:
            body = gzip.compress(body, mtime=0)
            headers += "Content-Encoding: gzip\r\n"
        if request.ack:
            headers += f"Forwarder-Ack: {request.ack}\r\n"
        head = (
            f"POST /batch/ HTTP/1.1\r\nHost: localhost\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(PATIENCE):
                reader, transport = await self._connection()
                if breaks_off:
                    transport.write(head.encode() + body[: len(body) // 2])
                    self._hang_up()
                    return 0
                transport.write(head.encode() + body)
                message = await read_message(reader)
        except (OSError, asyncio.IncompleteReadError):
            self._hang_up()
            return 0
        if message is None:
            self._hang_up()
            return 0
        if message.headers.get("connection") == "close":
            self._hang_up()
        return int(message.first.split()[1])

    async def _connection(self) -> tuple[asyncio.StreamReader, SimulatedTransport]:
        if self._transport is None or self._transport.is_closing() or self._reader is None:
            connected = await self._network.connect(*self._to(), peer=self._peer)
            reader = asyncio.StreamReader(loop=self._loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
            self._transport, _ = await self._loop.create_connection(
                lambda: protocol, sock=connected
            )
            self._reader = reader
        return self._reader, self._transport

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = self._reader = None
