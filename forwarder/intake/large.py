"""Large bodies: those that take more work than may be done while other requests wait. They take
turns in the decoder process.

`peek_key` reads the project key of one from its first bytes, so that nothing costly is done for a
key that is not allowed.

Invariants: one is worked on at a time, the senders take turns, and what waits is bounded in number
and bytes; each has its answer within `WAIT_SECONDS` and the decoder's limit. Of one sender they
are accepted in the order in which they came, and whatever comes on the same connection meanwhile
waits behind them. What is done on the loop is done in slices of `SLICE_SECONDS`, but for the last
step, which accepts the whole or nothing.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from forwarder.core.clock import Clock, Timer, wait_for_event
from forwarder.core.errors import BufferFull, Draining, InvalidRequest
from forwarder.core.ports import Incoming
from forwarder.core.shares import Headroom
from forwarder.intake.decoder_jobs import DecoderReply, LookUp, decode_head
from forwarder.wire.decompress import ZSTD_MAGIC, peek
from forwarder.wire.encodings import GZIP_MAGIC

MAX_WAITING: Final = 32
"""Large bodies that are pending."""
MAX_OF_SENDER: Final = 16
"""Pending bodies of one sender."""
WAIT_SECONDS: Final = 30.0
"""How long a body waits for its turn."""
DECODE_SECONDS: Final = 20.0
"""How long decoding one may take, on a machine that is busy; the process itself bounds its CPU
time.
"""
SLICE_SECONDS: Final = 0.005
"""How long the loop works on one before it turns to something else."""

_T = TypeVar("_T")

_SEEN: Final = 4096
"""Bytes of a text that are read."""
_FED: Final = 8192
"""Bytes of a compressed or encoded body that are read."""
_LAYERS: Final = 4
_JSON: Final = (b"{", b"[")
_MEMBER: Final = re.compile(
    rb"""
    [\s,]*+
    " ( (?: [^"\\] | \\. ){0,64} ) "
    \s{0,16} : \s{0,16}
    ( " (?: [^"\\] | \\. ){0,1024} " | [-0-9a-zA-Z.+]{1,64} )
    \s{0,16} (?= [,}] )
    """,
    re.VERBOSE,
)
_KEYS: Final = (b"token", b"$token", b"api_key")
"""The later ones count where there is none of those before."""
_DATA: Final = re.compile(rb"(?:^|&)data=([^&]*)")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=\r\n]*")


class Decoder(Protocol):
    """The process that reads large bodies."""

    async def decode(
        self, head: bytes, body: bytes, accept: Callable[[int], None], look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        """Have the process do `decoder_jobs.work`. `accept` is called with the size of its answer
        before that is read, and may raise; `look_up` answers what the process asks meanwhile.

        Raises `RequestTooLarge` for a body that takes more CPU time or memory than it may, and a
        `Backpressure` if there is no process to be had or the machine is too busy. Cancellation
        ends the process; the next call starts another.
        """


@dataclass(slots=True, eq=False)
class LargeBody:
    """A body that waits for the decoder, or is decoded."""

    sender: Hashable
    """Senders take turns."""
    origin: object | None
    """The connection: what comes on it later waits behind this."""
    size: int
    run: Callable[[], Awaitable[None]]
    fail: Callable[[Exception], None]
    """Called once if `run` isn't, or was cancelled."""
    timer: Timer | None = None


class LargeBodies:
    """The queue before the decoder."""

    def __init__(
        self,
        decoder: Decoder,
        clock: Clock,
        headroom: Headroom | None,
        on_change: Callable[[], None],
    ) -> None:
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
        """Pending bodies, the one that is decoded included."""
        return self._counts.total()

    def submit(self, body: LargeBody) -> None:
        """Queue it. Raises `BufferFull` if the queue is full, `Draining` after `close`."""
        if self._closed:
            raise Draining("shutting down", retry_after=2.0)
        if self.waiting >= MAX_WAITING or self._counts[body.sender] >= MAX_OF_SENDER:
            raise BufferFull(
                "too many large requests wait to be decoded",
                retry_after=2.0,
                hint="send smaller batches",
            )
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

    async def decode(self, head: bytes, body: bytes, look_up: LookUp) -> DecoderReply:
        """Read one. Raises what is wrong with it, and what the decoder raises."""
        reply, parts = await self._decoder.decode(head, body, self._headroom.check, look_up)
        decoded = DecoderReply(decode_head(reply), parts)
        decoded.check()
        return decoded

    async def sliced(self, items: Iterable[_T]) -> list[_T]:
        """All items, while others have their turn in between."""
        listed: list[_T] = []
        end = self._clock.monotonic() + SLICE_SECONDS
        for item in items:
            listed.append(item)
            if self._clock.monotonic() >= end:
                await asyncio.sleep(0)
                end = self._clock.monotonic() + SLICE_SECONDS
        return listed

    async def drain(self, seconds: float) -> bool:
        """Wait until none is pending, at most `seconds`; whether that is so. Cancellation only
        ends the wait.
        """
        return await wait_for_event(self._idle, seconds, self._clock)

    async def close(self) -> None:
        """Ask the senders of all pending bodies to repeat them."""
        self._closed = True
        task = self._task
        self._task = None
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
        self._drop(
            body,
            BufferFull(
                "too many large requests wait to be decoded",
                retry_after=5.0,
                hint="send smaller batches",
            ),
        )

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


def peek_key(incoming: Incoming, body: bytes) -> str | None:
    """The project key that the first members of the request's envelope name; None if they name
    none, or can't be read that simply.
    """
    seen = _first_bytes(incoming, body)
    members: dict[bytes, bytes] = {}
    if seen[:1] == b"{":
        at = 1
        while (match := _MEMBER.match(seen, at)) is not None:
            members[match[1]] = match[2]
            at = match.end()
    for name in _KEYS:
        if name in members and members[name] != b"null":
            try:
                key = msgspec.json.decode(members[name])
            except msgspec.DecodeError:
                return None
            return key if isinstance(key, str) else None
    return None


def _first_bytes(incoming: Incoming, body: bytes) -> bytes:
    """The first bytes of the request's text, as far as they can be decoded without the rest."""
    encoding = incoming.content_encoding.lower()
    seen = body[:_FED]
    try:
        if encoding in (b"br", b"deflate") and incoming.head is None:
            seen = peek(seen, encoding.decode(), _SEEN)
        seen = (
            _field(incoming.query)
            or (_field(seen) if _is_form(incoming.content_type) else b"")
            or seen
        )
        for _ in range(_LAYERS):
            if seen.startswith(_JSON):
                break
            seen = _layer(seen)
    except (InvalidRequest, binascii.Error):  # reading the whole body will report it
        return b""
    return seen.removeprefix(b"\xef\xbb\xbf").lstrip()[:_SEEN]


def _is_form(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/x-www-form-urlencoded"


def _field(fields: bytes) -> bytes:
    """The beginning of the value of `data`; empty if there is none among the first fields."""
    match = _DATA.search(fields[:_FED])
    return unquote_to_bytes(match[1].replace(b"+", b" ")) if match else b""


def _layer(seen: bytes) -> bytes:
    if seen.startswith(GZIP_MAGIC):
        return peek(seen, "gzip", _SEEN)
    if seen.startswith(ZSTD_MAGIC):
        return peek(seen, "zstd", _SEEN)
    characters = seen.replace(b" ", b"+").translate(None, b"\r\n")
    if not characters or _BASE64.fullmatch(characters) is None:
        return seen
    return binascii.a2b_base64(characters[: len(characters) // 4 * 4])
