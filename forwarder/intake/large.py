"""Large bodies: those that take more work than may be done while other requests wait. They take turns in the decoder process.

Invariants: one is worked on at a time, the senders take turns, and what waits is bounded in number and bytes; each has its answer within
`WAIT_SECONDS` and the decoder's limit. Of one sender they are accepted in the order in which they came, and whatever comes on the same
connection meanwhile waits behind them. What is done on the loop is done in slices of `SLICE_SECONDS`, but for the last step, which
accepts the whole or nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from forwarder.core.clock import Clock, Timer, wait_for_event
from forwarder.core.errors import BufferFull, Draining
from forwarder.core.shares import Headroom
from forwarder.intake.decoding import Decoded, decode_outcome

MAX_WAITING: Final = 32
"""Large bodies that wait or are worked on."""
MAX_OF_SENDER: Final = 16
"""Those of one sender."""
WAIT_SECONDS: Final = 30.0
"""How long one waits for its turn."""
DECODE_SECONDS: Final = 20.0
"""How long decoding one may take, on a machine that is busy; the process itself bounds its CPU time."""
SLICE_SECONDS: Final = 0.005
"""How long the loop works on one before it turns to something else."""

_T = TypeVar("_T")


class Decoder(Protocol):
    """The process that reads large bodies."""

    async def decode(self, head: bytes, body: bytes, accept: Callable[[int], None]) -> tuple[bytes, list[bytes]]:
        """Have `decoding.work` done elsewhere. `accept` is called with the bytes that are about to come back, and may raise.

        Raises `RequestTooLarge` for a body that takes more CPU time or memory than it may, and a `Backpressure` if there is no process to
        be had or the machine is too busy. Cancellation ends the process; the next call starts another.
        """


@dataclass(slots=True, eq=False)
class LargeBody:
    """A body on its way through the decoder."""

    sender: Hashable
    """Who takes turns with others."""
    origin: object | None
    """The connection: what comes on it later waits behind this."""
    size: int
    run: Callable[[], Awaitable[None]]
    fail: Callable[[Exception], None]
    """Called once if `run` isn't, or was cancelled."""
    timer: Timer | None = None


class LargeBodies:
    """The queue before the decoder."""

    def __init__(self, decoder: Decoder, clock: Clock, headroom: Headroom | None, on_change: Callable[[], None]) -> None:
        """`on_change`: called when `origins` has become empty, or isn't empty any more."""
        self._decoder = decoder
        self._clock = clock
        self._headroom = headroom or Headroom(0)
        self._on_change = on_change
        self._queues: dict[Hashable, deque[LargeBody]] = {}
        self._counts: Counter[Hashable] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.origins: Counter[object] = Counter()
        """Connections with large bodies that aren't accepted yet."""
        self.finished = 0
        """Bodies that were worked on since the start."""

    @property
    def waiting(self) -> int:
        """Bodies that wait or are worked on."""
        return self._counts.total()

    def submit(self, body: LargeBody) -> None:
        """Have it worked on when its turn comes. Raises `BufferFull` if there is no place, `Draining` after `close`."""
        if self._closed:
            raise Draining("shutting down", retry_after=2.0)
        if self.waiting >= MAX_WAITING or self._counts[body.sender] >= MAX_OF_SENDER:
            raise BufferFull("too many large requests wait to be decoded", retry_after=2.0, hint="send smaller batches")
        self._headroom.check(body.size)
        self._headroom.decoding += body.size
        self._counts[body.sender] += 1
        if body.origin is not None:
            self.origins[body.origin] += 1
            self._on_change()
        self._queues.setdefault(body.sender, deque()).append(body)
        body.timer = self._clock.call_later(WAIT_SECONDS, lambda: self._expire(body))
        self._idle.clear()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="large bodies")

    async def decode(self, head: bytes, body: bytes) -> Decoded:
        """Read one. Raises what is wrong with it, and what the decoder raises."""
        outcome, parts = await self._decoder.decode(head, body, self._headroom.check)
        decoded = Decoded(decode_outcome(outcome), parts)
        error = decoded.error()
        if error is not None:
            raise error
        return decoded

    async def sliced(self, items: Iterable[_T]) -> list[_T]:
        """All items, while others have their turn in between."""
        found: list[_T] = []
        end = self._clock.monotonic() + SLICE_SECONDS
        for item in items:
            found.append(item)
            if self._clock.monotonic() >= end:
                await asyncio.sleep(0)
                end = self._clock.monotonic() + SLICE_SECONDS
        return found

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing waits any more, at most `seconds`; whether that is so. Cancellation only ends the wait."""
        return await wait_for_event(self._idle, seconds, self._clock)

    async def close(self) -> None:
        """Ask the senders of all that is left to come back."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for body in [body for queue in self._queues.values() for body in queue]:
            self._drop(body, Draining("shutting down", retry_after=2.0))
        self._queues.clear()

    async def _run(self) -> None:
        while self._queues:
            sender = next(iter(self._queues))
            queue = self._queues.pop(sender)
            body = queue.popleft()
            if queue:
                self._queues[sender] = queue  # the others' turn comes first
            await self._work(body)
        self._task = None

    async def _work(self, body: LargeBody) -> None:
        _stop(body)
        try:
            await body.run()
        except asyncio.CancelledError:
            self._drop(body, Draining("shutting down", retry_after=2.0))
            raise
        except Exception as error:
            self._drop(body, error)
        else:
            self.finished += 1
            self._end(body)

    def _expire(self, body: LargeBody) -> None:
        """It has waited for too long."""
        queue = self._queues[body.sender]
        queue.remove(body)
        if not queue:
            del self._queues[body.sender]
        self._drop(body, BufferFull("too many large requests wait to be decoded", retry_after=5.0, hint="send smaller batches"))

    def _drop(self, body: LargeBody, error: Exception) -> None:
        _stop(body)
        self._end(body)
        body.fail(error)

    def _end(self, body: LargeBody) -> None:
        self._headroom.decoding -= body.size
        self._counts -= Counter((body.sender,))
        if body.origin is not None:
            self.origins -= Counter((body.origin,))
            self._on_change()
        if not self._counts:
            self._idle.set()


def _stop(body: LargeBody) -> None:
    if body.timer is not None:
        body.timer.cancel()
        body.timer = None
