"""The second floor: split, validate and join the same bodies, without a network. Nothing that
looks at each event can be faster.

Each body's envelope is decoded with its events left raw; each event is decoded as far
as validation and routing need it; and the raw events are joined into bodies as they
would go to the upstream.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from benchmarks.bodies import API_KEY, Request

BATCH_BYTES: Final = 5_000_000
BATCH_EVENTS: Final = 5_000


class Envelope(msgspec.Struct, gc=False):
    """A body with several events."""

    api_key: str
    batch: msgspec.Raw


class Event(msgspec.Struct, gc=False):
    """What validation and routing need of an event; everything else is passed over."""

    event: str
    distinct_id: str
    uuid: str = ""
    timestamp: Any = None


class Splitter:
    """Takes bodies, makes upstream bodies."""

    def __init__(self) -> None:
        self._envelope = msgspec.json.Decoder(Envelope).decode
        self._events = msgspec.json.Decoder(list[Event]).decode
        self._waiting: list[bytes] = []
        self._size = self._count = 0
        self.joined = 0

    def take(self, body: bytes) -> int:
        """Take a body; how many events it holds."""
        batch = self._envelope(body).batch
        events = self._events(batch)
        self._add(bytes(batch)[1:-1], len(events))
        return len(events)

    def _add(self, events: bytes, count: int) -> None:
        if self._size + len(events) > BATCH_BYTES or self._count + count > BATCH_EVENTS:
            body = b'{"api_key":"%b","batch":[%b]}' % (API_KEY.encode(), b",".join(self._waiting))
            self.joined += len(body)
            self._waiting = []
            self._size = 0
            self._count = 0
        self._waiting.append(events)
        self._size += len(events)
        self._count += count


def split_floor(requests: list[Request], seconds: float) -> float:
    """Events per CPU-second. Blocks for `seconds`, on whatever core this process is pinned to."""
    bodies = [request.body() for request in requests]
    splitter = Splitter()
    events = 0
    began = time.process_time()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for body in bodies:
            events += splitter.take(body)
    return events / (time.process_time() - began)
