"""The services that events are delivered to, with a model of their own: what they store, what they
refuse, and how they fail for a while.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from tests.simulation.http import Message, events_of, read_message
from tests.simulation.network import EndingReader, passing

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Connected, Listening, Network

PAUSE = 30
"""Seconds of a Retry-After."""
LIMIT = 1500
"""Bytes of a body that a service accepts while it answers 413 to others."""

CHANGES: Final = 15.0
"""Seconds after which there are other definitions."""
OF_SERVICE: Final = "simulated"
"""A header that services' answers have, and the daemon's own don't."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as it came."""

    at: float
    text: str
    event: dict[str, Any]
    key: str


class Given(NamedTuple):
    """A call that has come to a service, whole, and its answer there."""

    at: float
    target: str
    status: int
    headers: str
    body: bytes


def echo_of(method: str, target: str, body: bytes) -> bytes:
    """What the answer to a call begins with: it says what came."""
    return f"{method} {target}, {len(body)} bytes, {crc32(body)}".encode()


def answer_of(message: Message, status: int, at: float) -> Given:
    """What a service answers to a call, if nothing keeps it from it."""
    method, target, _ = message.first.split()
    headers = f"{OF_SERVICE}: yes\r\n"
    body = echo_of(method, target, message.body)
    if target.startswith("/flags/definitions"):
        version = f'"{int(at // CHANGES)} for {message.headers.get("authorization")}"'
        headers += f"ETag: {version}\r\n"
        body = f"definitions {version}".encode()
        if status == 200 and message.headers.get("if-none-match") == version:
            status, body = 304, b""
    elif target.startswith("/static/"):
        body += b"x" * 3000
    return Given(at, target, status, headers, body)


@dataclass
class Service:
    """One of them, at an address. Until `serve` it refuses connections."""

    name: str
    address: tuple[str, int]
    network: Network
    loop: SimulatedLoop
    say: Callable[[str, str], None]
    stored: list[Stored] = field(default_factory=list)
    hasty: list[tuple[float, float]] = field(default_factory=list)
    """When it said of a key that its requests were to wait, and when one came too early."""
    _waits: dict[str, float] = field(default_factory=dict)
    """When it said so last, by key."""
    given: list[Given] = field(default_factory=list)
    """The answers to calls that bring no events."""
    trouble: str = ""
    refuses_poison: bool = True
    """Whether it answers 400 to a batch with a poisoned event in it. Where nothing else is left of
    a lane, that halts it until this ends.
    """
    _listening: Listening | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def serve(self) -> None:
        """Listen."""
        if self._listening is None:
            self._listening = self.network.listen(*self.address)
            self.loop.add_reader(self._listening, self._accept)

    def refuse(self) -> None:
        """Accept no connections."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def close(self) -> None:
        """End all that goes on."""
        self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        while self._listening is not None:
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            task = self.loop.create_task(self._talk(connected), name=f"service {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _talk(self, connected: Connected) -> None:
        reader = EndingReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        transport, _ = await self.loop.connect_accepted_socket(lambda: protocol, connected)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while (message := await read_message(reader)) is not None:
                    if not await self._answer(message, transport):
                        return
        finally:
            transport.close()

    async def _answer(self, message: Message, transport: asyncio.WriteTransport) -> bool:
        """Answer a request; whether the connection goes on."""
        what = self.trouble
        self.say(f"service {self.name}", f"gets {message.first.split()[1]}; {what or 'well'}")
        if what == "reset":
            transport.abort()
            return False
        if what == "silent":
            await passing(3600)
            return False
        if what == "slow":
            await passing(8)
        brings_events = message.first.split()[1].startswith("/batch/")
        if brings_events:
            self._note_haste(message)
        status, headers = self._decided(message, what, brings_events=brings_events)
        body = b'{"status": 1}'
        if not brings_events:
            call = answer_of(message, status, self.loop.time())
            status, headers, body = call.status, headers + call.headers, call.body
            self.given.append(call)
        elif what == "a web page":
            body = b"<html>log in</html>"
            headers += "Content-Type: text/html\r\n"
        elif status == 200:
            self._store(message)
        if what == "stored, reset":
            transport.abort()
            return False
        head = f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        answer = head.encode() + body
        if what == "half":
            transport.write(answer[: len(answer) // 2])
            transport.close()
            return False
        transport.write(answer)
        return True

    def _note_haste(self, message: Message) -> None:
        said = self._waits.get(_key(message), -math.inf)
        # what was on its way by then comes within half of the time
        if PAUSE / 2 < self.loop.time() - said < PAUSE - 1:
            self.hasty.append((said, self.loop.time()))

    def _decided(self, message: Message, what: str, *, brings_events: bool) -> tuple[int, str]:
        if what in ("500", "503", "429"):
            return int(what), ""
        if what == "429 with a time":
            if brings_events:
                self._waits[_key(message)] = self.loop.time()
            return 429, f"Retry-After: {PAUSE}\r\n"
        if what == "413" and len(message.body) > LIMIT:
            return 413, ""
        if what in ("401", "403", "404", "415"):
            return int(what), ""
        if what == "a loop":
            return 508, "Forwarder-Error: loop\r\n"
        if what == "a web page":
            return 200, ""
        if self.refuses_poison and b'"poison": true' in message.body:
            return 400, ""
        return 200, ""

    def _store(self, message: Message) -> None:
        text = message.body.decode()
        key = json.loads(text)["api_key"]
        for raw, event in events_of(text):
            self.stored.append(Stored(self.loop.time(), raw, event, key))


def _key(message: Message) -> str:
    return str(json.loads(message.body)["api_key"])
