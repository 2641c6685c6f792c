"""Live events at a steady rate, each a request of its own, as many sites send them: `python -m benchmarks.live PORT EVENTS RATE`.

An event is due at its time whether or not those before it were answered: a target that is slow for a moment is sent no fewer. Prints
`{"began", "answered"}`: the monotonic time of the first event, and how many were answered 2xx.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from datetime import UTC, datetime
from typing import Final

import uvloop

from benchmarks.answers import AnswerReader
from benchmarks.arrivals import DIGITS, LIVE
from benchmarks.bodies import API_KEY
from benchmarks.events import MARKER, EventMaker

CONNECTIONS: Final = 64
TEMPLATES: Final = 500
LAST_ANSWERS: Final = 30.0
_PLACE: Final = LIVE + b"#" * DIGITS


def requests() -> list[tuple[bytes, bytes]]:
    """Different requests, each in the two halves around its event's number."""
    maker = EventMaker(seed=7, beginning=datetime.now(UTC))
    halves = []
    for _ in range(TEMPLATES):
        event = json.dumps({"api_key": API_KEY, **maker.event()}, ensure_ascii=False, separators=(",", ":")).encode()
        body = event.replace(MARKER, _PLACE)
        head = f"POST /capture/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        before, after = (head.encode() + body).split(_PLACE)
        halves.append((before + LIVE, after))
    return halves


class _Sender(asyncio.Protocol):
    """One connection, with one request under way."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self.transport = transport  # type: ignore[assignment]
        self._live.idle.append(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        self._received += data
        answer = self._live.reader.read(self._received)
        if answer is not None:
            self._received = b""
            self._live.note(answer.status)
            self._live.idle.append(self)


class Live:
    """Sends so many events a second."""

    def __init__(self, port: int, events: int, rate: float) -> None:
        self._port, self._events, self._rate = port, events, rate
        self.idle: deque[_Sender] = deque()
        self.reader = AnswerReader()
        self.answered = 0
        self.all_answered = asyncio.Event()

    def note(self, status: int) -> None:
        """A request was answered."""
        self.answered += 200 <= status < 300
        if self.answered == self._events:
            self.all_answered.set()

    async def run(self) -> float:
        """Send all of them; when the first was due, monotonic."""
        loop, halves = asyncio.get_running_loop(), requests()
        for _ in range(CONNECTIONS):
            await loop.create_connection(lambda: _Sender(self), "127.0.0.1", self._port)
        began, sent = time.monotonic(), 0
        while sent < self._events:
            due = min(self._events, int((time.monotonic() - began) * self._rate) + 1)
            while sent < due and self.idle:
                before, after = halves[sent % len(halves)]
                self.idle.popleft().transport.write(b"%b%0*d%b" % (before, DIGITS, sent, after))
                sent += 1
            await asyncio.sleep(0.5 / self._rate)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.all_answered.wait(), LAST_ANSWERS)
        return began


async def main(port: int, events: int, rate: float) -> None:
    """Send, and say what came of it."""
    live = Live(port, events, rate)
    began = await live.run()
    print(json.dumps({"began": began, "answered": live.answered}))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
