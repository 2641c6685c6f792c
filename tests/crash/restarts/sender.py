"""The load, in a process of its own: senders that never retry, half of them with a connection for
each request, half with kept ones.

They begin requests at a steady pace, whatever becomes of those before. A request that isn't
answered 200 has failed, for good.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Final

from tests.crash.children import Message
from tests.crash.journal import PROMISED, UNKNOWN, JournalWriter
from tests.crash.load_plan import EventKind, LoadPlan, PlannedRequest
from tests.crash.sender import serve
from tests.support.waiting import pause

KEPT: Final = 10
"""Connections that are kept."""
ANSWER_LIMIT: Final = 55.0
"""Seconds after which a request has failed: more than a restart takes on a
machine that is very busy.
"""


class Connection:
    """One connection, as an HTTP client has it: kept until an answer says that it ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> int:
        """Send a request; the status of its answer. Raises whatever goes wrong."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(
            b"POST /batch/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(
            int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        )
        if "connection: close" in head:
            self.close()
        return int(head.split(" ", 2)[1])

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class RestartSender:
    """The load. It begins paused."""

    def __init__(self, plan: LoadPlan, journal: JournalWriter, port: int, rate: float) -> None:
        self._plan = plan
        self._journal = journal
        self._port = port
        self._every = 2 / rate
        self._numbers = self._clean()
        self._going = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(KEPT):
            self._idle.put_nowait(Connection(port))
        self._failures: Counter[str] = Counter()
        self._sent = 0
        self._slowest = 0.0

    async def handle(self, message: Message) -> Message:
        """Obey a command: `go`, `pause` (answered once no request is in progress), `tell` (the
        figures since it was asked last).
        """
        if message["do"] == "go":
            self._going.set()
        elif message["do"] == "pause":
            self._going.clear()
            while self._under_way:
                await asyncio.wait(self._under_way)
        else:
            figures = {
                "sent": self._sent,
                "failures": dict(self._failures),
                "slowest": self._slowest,
            }
            self._sent = 0
            self._slowest = 0.0
            self._failures.clear()
            return figures
        return {}

    async def run(self) -> None:
        """Send, indefinitely. Cancellation ends it with what is in progress."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pace(persistent=False))
            tasks.create_task(self._pace(persistent=True))

    async def _pace(self, *, persistent: bool) -> None:
        due = time.monotonic()
        while True:
            if not self._going.is_set():
                await self._going.wait()
                due = time.monotonic()
            connection = await self._idle.get() if persistent else Connection(self._port)
            task = asyncio.create_task(
                self._send(next(self._numbers), connection, persistent=persistent)
            )
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            due = max(due + self._every, time.monotonic() - self._every)
            await pause(max(0.0, due - time.monotonic()))

    async def _send(
        self, request: PlannedRequest, connection: Connection, *, persistent: bool
    ) -> None:
        began = time.monotonic()
        status = UNKNOWN
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                status = await connection.post(self._plan.body(request))
            if status != PROMISED:
                self._failures[f"status {status}"] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            age = "kept" if persistent else "new"
            self._failures[f"{type(error).__name__} on a {age} connection"] += 1
            connection.close()
        self._journal.note(request.number, status)
        self._sent += 1
        self._slowest = max(self._slowest, time.monotonic() - began)
        if persistent:
            self._idle.put_nowait(connection)
        else:
            connection.close()

    def _clean(self) -> Iterator[PlannedRequest]:
        """Single clean events, which are promised at once."""
        for number in count():
            request = self._plan.request(number)
            if (
                request.count == 1
                and not request.delivered
                and self._plan.kind(request.events[0]) is EventKind.CLEAN
            ):
                yield request


if __name__ == "__main__":
    asyncio.run(serve(RestartSender))
