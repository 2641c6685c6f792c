"""A network in memory: connections that deliver what is written in segments of any size, after
any time, in order; that break off, close by halves, or are reset.

A `Connected` stands for a socket, a `Listening` for one that listens; the loop makes transports of
them (`loop.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.process import PROCESS, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

HIGH_WATER: Final = 64 * 1024
"""Bytes on their way past which a writer is paused."""
LOW_WATER: Final = 16 * 1024
MOST_SEGMENTS: Final = 30
"""Of what is written at once; the last one holds all the rest. More of them show nothing else."""
_WIRE: Final = Context()
"""What is on its way is of no process."""


async def passing(seconds: float) -> None:
    """Return when so much virtual time has passed. Cancellation ends it at once."""
    passed = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(max(0.0, seconds), passed.set)
    try:
        await passed.wait()
    finally:
        timer.cancel()


@dataclass(slots=True)
class Weather:
    """How a connection is."""

    latency: float = 0.001
    """Seconds that a segment takes at most."""
    segment: int = 65536
    """Bytes that it holds at most."""


class EndingReader(asyncio.StreamReader):
    """One whose reading ends with a reset: asyncio's own waits on if bytes came just before it."""

    def set_exception(self, exc: Exception) -> None:
        """The connection was reset."""
        super().set_exception(exc)
        self.feed_eof()


class Network:
    """Who listens where."""

    def __init__(self, loop: SimulatedLoop, chance: Random) -> None:
        self._loop = loop
        self._chance = chance
        self._listening: list[Listening] = []
        """All sockets that listen, the duplicates too."""
        self.weather = Weather()
        """Of new connections."""
        self._ports = 40_000
        self.open: dict[SimulatedTransport, None] = {}
        """All ends that aren't closed."""

    def listen(self, host: str, port: int) -> Listening:
        """A socket that is bound to an address."""
        if not port:
            self._ports += 1
            port = self._ports
        return self._listens(Listening(self, (host, port), PendingConnections()))

    def _listens(self, listening: Listening) -> Listening:
        self._listening.append(listening)
        return listening

    def forget(self, listening: Listening) -> bool:
        """It doesn't listen any more; whether it was the last one with its queue."""
        if listening in self._listening:
            self._listening.remove(listening)
        return not any(other.arrivals is listening.arrivals for other in self._listening)

    def duplicates(self, sockets: Iterable[Listening]) -> tuple[int, ...]:
        made = [
            self._listens(Listening(self, listener.name, listener.arrivals)) for listener in sockets
        ]
        return tuple(map(id, made))

    def adopt(self, descriptor: int) -> Listening:
        return next(listener for listener in self._listening if id(listener) == descriptor)

    def hand_over(self, descriptors: Iterable[int], process: SimulatedProcess) -> None:
        """The duplicates are another process's."""
        for descriptor in descriptors:
            self.adopt(descriptor).owner = process

    def accepted(self, *prefixes: str) -> int:
        """Connections from addresses that begin so which have been accepted."""
        return sum(
            end.owner is not None and end.peer.name[0].startswith(prefixes) for end in self.open
        )

    def held_by(self, process: SimulatedProcess) -> list[str]:
        """What the process has open."""
        listening = [listener.name for listener in self._listening if listener.owner is process]
        return [f"a socket that listens on {name}" for name in listening] + [
            f"a connection from {end.name} to {end.peer.name}"
            for end in self.open
            if end.owner is process
        ]

    def end(self, process: SimulatedProcess) -> None:
        """The process has ended, whatever it had open: its kernel closes that."""
        for listening in list(self._listening):
            if listening.owner is process:
                listening.close()
        for end in list(self.open):
            if end.owner is process:
                end.vanish()

    async def connect(self, host: str, port: int, peer: str = "10.0.0.1") -> Connected:
        """Connect to an address. Raises `ConnectionRefusedError` if nobody listens."""
        await passing(self._chance.uniform(0.0, self.weather.latency))
        listening = next(
            (listener for listener in self._listening if listener.name == (host, port)), None
        )
        if listening is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._ports += 1
        here = SimulatedTransport(self, self._loop, self._chance, self.weather, (peer, self._ports))
        there = SimulatedTransport(self, self._loop, self._chance, self.weather, (host, port))
        here.peer, there.peer = there, here
        here.owner = PROCESS.get()
        self.open[here] = self.open[there] = None
        listening.arrivals.waiting.append((Connected(there), (peer, self._ports)))
        if listening.arrivals.on_arrival is not None:
            listening.arrivals.on_arrival()
        return Connected(here)

    async def dial(
        self, host: str, port: int, peer: str
    ) -> tuple[asyncio.StreamReader, SimulatedTransport]:
        """A connection to an address, ready to be read and written. Raises
        `ConnectionRefusedError` as `connect` does.
        """
        connected = await self.connect(host, port, peer)
        reader = EndingReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.create_connection(lambda: protocol, sock=connected)
        return reader, transport


@dataclass(slots=True, eq=False)
class PendingConnections:
    """The queue of a socket that listens, which it shares with its duplicates."""

    waiting: deque[tuple[Connected, tuple[str, int]]] = field(default_factory=deque)
    on_arrival: Callable[[], object] | None = None


class Listening:
    """Stands for a socket that listens."""

    family = socket.AF_INET

    def __init__(
        self, network: Network, name: tuple[str, int], arrivals: PendingConnections
    ) -> None:
        self._network = network
        self.name = name
        self.owner = PROCESS.get()
        """The process that listens."""
        self.arrivals = arrivals

    def accept(self) -> tuple[Connected, tuple[str, int]]:
        """Raises `BlockingIOError` if nobody has connected."""
        waiting = self.arrivals.waiting
        if not waiting:
            raise BlockingIOError
        waiting[0][0].transport.owner = PROCESS.get()
        return waiting.popleft()

    def listen(self, _: int) -> None:
        """It does."""

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def getsockname(self) -> tuple[str, int]:
        """Its address."""
        return self.name

    def close(self) -> None:
        """Those that wait in its queue are reset, unless it has a duplicate."""
        if self._network.forget(self):
            while self.arrivals.waiting:
                self.arrivals.waiting.popleft()[0].close()


class Connected:
    """Stands for the socket of a connection."""

    def __init__(self, transport: SimulatedTransport) -> None:
        self.transport = transport

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_: object) -> None:
        """There is nothing to set."""

    def close(self) -> None:
        """Before it became a transport."""
        self.transport.abort()


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimulatedTransport

    def __init__(
        self,
        network: Network,
        loop: SimulatedLoop,
        chance: Random,
        weather: Weather,
        name: tuple[str, int],
    ) -> None:
        super().__init__()
        self._network = network
        self._loop = loop
        self._chance = chance
        self._weather = weather
        self.name = name
        self._protocol: Any = None
        self.owner: SimulatedProcess | None = None
        """The process whose end it is."""
        self._context = Context()
        self._inbox: deque[bytes | ConnectionResetError | None] = deque()
        """What has arrived and wasn't read: bytes, the end (None), a reset."""
        self._outbox: deque[bytes | ConnectionResetError | None] = deque()
        """What is on its way from here."""
        self._reads = True
        self._on_way = 0
        """Bytes that were written and haven't been read."""
        self._writer_paused = False
        self._free_at = 0.0
        """When the last segment arrives: the next can't arrive before it."""
        self.written = 0
        """Bytes, ever."""
        self._wrote_end = False
        self._closing = False
        self._lost = False

    def begin(self, protocol: Any) -> None:
        """It has a protocol from now on."""
        self._protocol = protocol
        self.owner = PROCESS.get()
        self._context = copy_context()
        protocol.connection_made(self)
        self._deliver()

    @property
    def begun(self) -> bool:
        """Whether it has had a protocol: what was accepted gets one a turn later."""
        return self._protocol is not None

    def _tell(self, method: str, *args: object) -> Any:
        """Call the protocol, as its process."""
        if self.owner is not None and self.owner.killed:
            return None
        return self._context.copy().run(getattr(self._protocol, method), *args)

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost or self._wrote_end or not data:
            return
        data = bytes(data)
        self._on_way += len(data)
        self.written += len(data)
        at = 0
        for _ in range(MOST_SEGMENTS):
            size = self._chance.randint(1, self._weather.segment)
            if at + size >= len(data):
                break
            self._send(data[at : at + size])
            at += size
        self._send(data[at:])
        if self._on_way > HIGH_WATER and not self._writer_paused:
            self._writer_paused = True
            self._protocol.pause_writing()

    def _send(self, item: bytes | ConnectionResetError | None) -> None:
        now = self._loop.time()
        self._free_at = max(self._free_at, now + self._chance.uniform(0.0, self._weather.latency))
        # timers of one instant have no order: each takes the next
        self._outbox.append(item)
        self._loop.call_at(self._free_at, self._pass_on, context=_WIRE)

    def _pass_on(self) -> None:
        self.peer.arrive(self._outbox.popleft())

    def write_eof(self) -> None:
        if not self._wrote_end and not self._lost:
            self._wrote_end = True
            self._send(None)

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def get_write_buffer_size(self) -> int:
        return self._on_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are as they are."""

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    # Reading

    def arrive(self, item: bytes | ConnectionResetError | None) -> None:
        """Something has arrived here."""
        if self._lost:
            if isinstance(item, bytes) and not self.peer._lost:
                self._send(ConnectionResetError(104, "Connection reset by peer"))
            return
        self._inbox.append(item)
        self._deliver()

    def _deliver(self) -> None:
        while self._inbox and not self._lost and self._protocol is not None:
            item = self._inbox[0]
            if isinstance(item, ConnectionResetError):
                self._inbox.clear()
                self._lose(item)
                return
            if not self._reads:
                return
            self._inbox.popleft()
            if item is None:
                if not self._tell("eof_received"):
                    self.close()
                continue
            self._loop.trace.data(f"{self.name[0]}:{self.name[1]}", item)
            self.peer._arrived(len(item))
            self._tell("data_received", item)

    def _arrived(self, size: int) -> None:
        """So many of its bytes were read."""
        self._on_way -= size
        if self._writer_paused and self._on_way < LOW_WATER and not self._lost:
            self._writer_paused = False
            self._tell("resume_writing")

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    # The end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written still arrives."""
        if not self._closing:
            self._closing = True
            self._reads = False
            self.write_eof()
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """What was written and hasn't arrived may be lost."""
        if self._lost:
            return
        self._closing = True
        self._wrote_end = True
        self._send(ConnectionResetError(104, "Connection reset by peer"))
        self._loop.call_soon(self._lose, None)

    def vanish(self) -> None:
        """Its process is gone: what was written still arrives, and then the end; a reset if there
        is something that it hasn't read.
        """
        if self._inbox:
            self._send(ConnectionResetError(104, "Connection reset by peer"))
        elif not self._wrote_end:
            self._send(None)
        self._wrote_end = True
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.open.pop(self, None)
        if self._protocol is not None:
            self._tell("connection_lost", error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.name, "sockname": self.name}.get(name, default)
