"""Delivery with all its real neighbours (buffer, batcher, dead letters, books, sink), a scripted
upstream, and a clock that a test turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import msgspec

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.clock import Backoff
from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.outcome import HaltReason, Reply
from forwarder.core.ports import Ordering, Sink
from forwarder.deadletter.memory import MemoryDeadLetters
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.halting import Halts
from forwarder.delivery.keys import KeyCheck
from forwarder.delivery.lane_state import RetryPolicy
from forwarder.delivery.sink import HttpSink, UpstreamPolicy
from forwarder.telemetry.books import Books
from forwarder.wire.identity import ids_of
from tests.support.clock import FakeClock, settle
from tests.support.upstream import LIMIT_SECONDS, Upstream

LANE = Lane("phc_goodgoodgood1234")
STEP = 0.25
BATCHES = BatchPolicy(5_000_000, 5000, 1.0)
RETRIES = RetryPolicy()


def event(name: str, distinct_id: str | None = None, **properties: Any) -> bytes:
    """An event as it stands in the buffer; by default of a person of its own."""
    fields = {
        "event": name,
        "distinct_id": distinct_id or f"id-of-{name}",
        "properties": properties,
    }
    return msgspec.json.encode(
        {**fields, "uuid": f"uuid-{name}", "timestamp": "2026-01-01T00:00:00Z"}
    )


def events(count: int, prefix: str = "e") -> list[bytes]:
    """So many events, of as many persons, called e0, e1, …"""
    return [event(f"{prefix}{number}") for number in range(count)]


def chunk_of(
    raw: Sequence[bytes],
    now: float,
    lane: Lane = LANE,
    ordering: Ordering = Ordering.PER_DISTINCT_ID,
) -> Chunk:
    """One request's events."""
    ids = (
        frozenset().union(*map(ids_of, raw))
        if ordering is Ordering.PER_DISTINCT_ID
        else frozenset[str]()
    )
    return Chunk(lane, b",".join(raw), len(raw), ids, now)


def upper(_low: float, high: float) -> float:
    """In place of chance: always the longest wait."""
    return high


class CountingSink:
    """A sink that passes on, and says how much is in progress."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.busy = 0
        self.changed = asyncio.Event()

    async def send(self, batch: Batch) -> Reply:
        return await self._count(self.inner.send(batch))

    async def decide(self, api_key: str) -> Reply:
        """Ask about a key."""
        assert isinstance(self.inner, HttpSink)
        return await self._count(self.inner.decide(api_key))

    async def _count(self, sending: Any) -> Reply:
        self.busy += 1
        try:
            return await sending  # type: ignore[no-any-return]
        finally:
            self.busy -= 1
            self.changed.set()


class Rig:
    """Everything around one `Delivery`, as an asynchronous context manager. Time
    passes in `until` alone.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        ordering: Ordering = Ordering.PER_DISTINCT_ID,
        concurrency: int | None = 4,
        batch: BatchPolicy = BATCHES,
        retry: RetryPolicy = RETRIES,
        dead_letter_bytes: int = 10_000_000,
        timeout: float = LIMIT_SECONDS,
        verify_keys: bool = False,
        url: str = "",
        compression: bool = True,
        ca_file: str | None = None,
    ) -> None:
        self.upstream = upstream
        self.ordering = ordering
        self.clock = FakeClock()
        self.books = Books()
        self.buffer = MemoryBuffer(100_000_000)
        self.dead_letters = MemoryDeadLetters(dead_letter_bytes)
        self.sink = HttpSink(
            UpstreamPolicy(url or upstream.url, compression, timeout, ca_file), self.clock
        )
        self.tap = CountingSink(self.sink)
        self.keys = KeyCheck(self.tap.decide, self.clock) if verify_keys else None
        self.delivery = Delivery(
            batcher=Batcher(self.buffer, batch),
            buffer=self.buffer,
            sink=self.tap,
            dead_letters=self.dead_letters,
            books=self.books,
            clock=self.clock,
            retry=retry,
            concurrency=concurrency,
            ordering_of=lambda _: ordering,
            halts=Halts(Backoff(1.0, 60.0, upper)),
            keys=self.keys,
            backoff=Backoff(retry.initial, retry.maximum, upper),
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Rig:
        self._stack.push_async_callback(self.sink.close)
        self._stack.push_async_callback(self.delivery.close)
        self.delivery.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def offer(self, raw: Sequence[bytes], lane: Lane = LANE) -> None:
        """Put one request's events into the buffer."""
        self.books.receive(lane, "http", len(raw))
        self.buffer.offer([chunk_of(raw, self.clock.now(), lane, self.ordering)])
        self.delivery.wake()

    async def until(self, condition: Callable[[], bool], seconds: float = 600.0) -> float:
        """Let time pass until `condition` holds, and requests be answered as fast as they can; the
        seconds that passed.

        Raises `TimeoutError` after so many `seconds` of the fake clock, or when a request isn't
        answered in real time.
        """
        began = self.clock.monotonic()
        while not condition():
            if self.clock.monotonic() - began > seconds:
                raise TimeoutError(f"not so after {seconds} s")
            if self.tap.busy:
                await self.landing()
            else:
                await self.clock.advance(STEP)
        return self.clock.monotonic() - began

    async def landing(self) -> None:
        """Wait for the next request to end. Raises `TimeoutError` if none does in real time."""
        self.tap.changed.clear()
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.tap.changed.wait()
        await settle()

    async def run_until_empty(self) -> float:
        """Let time pass until nothing is left in the buffer. Return the seconds that passed."""
        return await self.until(lambda: self.buffer.used == 0)

    async def run_until_halted(self, reason: HaltReason, lane: Lane = LANE) -> None:
        """Let time pass until the lane is halted for `reason`."""
        await self.until(lambda: self.halt_reason(lane) is reason)

    def halt_reason(self, lane: Lane = LANE) -> HaltReason | None:
        """Why the lane is halted, if it is."""
        halted = self.delivery.halts.get(lane)
        return halted.reason if halted else None

    def dead_letter_names(self) -> list[str]:
        """The names of the events that became dead letters."""
        return [
            str(msgspec.json.decode(letter.data)["event"])
            for letter in self.dead_letters.dead_letters
        ]

    def times_accepted(self) -> Counter[str]:
        """How often each event was in a request that got 200."""
        return Counter(self.upstream.delivered)

    def assert_balanced(self) -> None:
        """The books agree with the buffer."""
        for lane, account in self.books.accounts.items():
            if lane is not None:
                assert account.buffered == self.buffer.count(lane)
