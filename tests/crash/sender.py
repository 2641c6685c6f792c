"""The load, in a process of its own: four connections, each with one request in progress, at a
steady pace while the daemon is up.

A request is sent once, never again: so no event is accepted twice, and what the dead letters hold
twice was put there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from tests.crash.children import Message, obey
from tests.crash.journal import ENTRIES, UNKNOWN, JournalWriter
from tests.crash.load_plan import LANES, LoadPlan, PlannedRequest
from tests.support.waiting import pause

CONNECTIONS: Final = 4
ANSWER_LIMIT: Final = 10.0
"""Seconds after which a request counts as unanswered."""
CATCH_UP: Final = 0.1
"""Seconds by which a connection may lag behind its pace and still make up for it."""
RECONNECT: Final = 0.02
"""Seconds before a refused connection is tried again."""
TRICKLE: Final = 0.05
"""Seconds between two requests of a lane while there is only to be a proof
that its events are taken.
"""


class Link:
    """One connection, opened again when it is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> bool:
        """Whether it is open now."""
        if self._streams is not None and not self._streams[0].at_eof():
            return True
        self.close()
        with contextlib.suppress(OSError):
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self._streams is not None

    async def post(self, body: bytes, *, delivered: bool) -> int:
        """Send a request; the status of its answer, or `UNKNOWN`."""
        assert self._streams is not None
        reader, writer = self._streams
        wish = b"Forwarder-Ack: delivered\r\n" if delivered else b""
        writer.write(
            b"POST /batch/ HTTP/1.1\r\nHost: f\r\n%bContent-Length: %d\r\n\r\n" % (wish, len(body))
        )
        writer.write(body)
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                return await self._answer(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.close()
            return UNKNOWN

    async def _answer(self, reader: asyncio.StreamReader) -> int:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        await reader.readexactly(int(length or 0))
        if "connection: close" in head:
            self.close()
        return int(head.split(" ", 2)[1])

    def close(self) -> None:
        """Drop it."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class CrashSender:
    """The load. It begins paused."""

    def __init__(self, plan: LoadPlan, journal: JournalWriter, port: int, rate: float) -> None:
        self._plan = plan
        self._journal = journal
        self._port = port
        self._per_connection = rate / CONNECTIONS
        self._going = asyncio.Event()
        self._trickling = False
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def handle(self, message: Message) -> Message:
        """Obey a command: `go`, `trickle` (single clean events of each lane), `pause` (answered
        once no request is in progress).
        """
        self._trickling = message["do"] == "trickle"
        if message["do"] == "pause":
            self._going.clear()
            await self._quiet.wait()
        else:
            self._going.set()
        return {}

    async def run(self) -> None:
        """Send, indefinitely. Cancellation closes the connections."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(CONNECTIONS):
                tasks.create_task(self._work(number))

    async def _work(self, own: int) -> None:
        link = Link(self._port)
        numbers = count(own, CONNECTIONS)
        due = time.monotonic()
        try:
            while True:
                await self._going.wait()
                if not await link.open():
                    await pause(RECONNECT)
                    continue
                request = self._next(numbers, own)
                body = self._plan.body(request)
                now = time.monotonic()
                due = max(due, now - CATCH_UP) + (
                    TRICKLE if self._trickling else request.count / self._per_connection
                )
                await self._send(link, request, body)
                await pause(max(0.0, due - time.monotonic()))
        finally:
            link.close()

    def _next(self, numbers: count[int], own: int) -> PlannedRequest:
        number = next(numbers)
        while self._trickling and not self._plan.harmless(number, LANES[own % len(LANES)]):
            number = next(numbers)
        return self._plan.request(number)

    async def _send(self, link: Link, request: PlannedRequest, body: bytes) -> None:
        if not self._going.is_set():
            return
        self._under_way += 1
        self._quiet.clear()
        status = await link.post(body, delivered=request.delivered)
        self._journal.note(request.number, status)
        self._under_way -= 1
        if not self._under_way:
            self._quiet.set()


class Load(Protocol):
    """A load as its process runs it."""

    async def handle(self, message: Message) -> Message:
        """Obey a command of the campaign."""

    async def run(self) -> None:
        """Send, indefinitely."""


async def serve(make: Callable[[LoadPlan, JournalWriter, int, float], Load]) -> None:
    """In the child: send until the parent closes its input. The arguments are seed, journal, port
    and rate.
    """
    parser = argparse.ArgumentParser()
    for name, kind in (("seed", int), ("journal", Path), ("port", int), ("rate", float)):
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    journal = JournalWriter(given.journal, ENTRIES)
    sender = make(LoadPlan(given.seed), journal, given.port, given.rate)
    load = asyncio.create_task(sender.run())
    await obey(sender.handle)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    journal.close()


if __name__ == "__main__":
    asyncio.run(serve(CrashSender))
