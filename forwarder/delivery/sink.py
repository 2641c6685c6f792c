"""The HTTP client of the upstream: one request an attempt, and whatever happens to it as a `Reply`.

A request holds its compressed body alone in memory, in pieces (with compression `none`, one piece
at a time of what the buffer holds anyway). An answer is read up to 64 KiB; one that is shorter
than its length says is no answer. Redirects aren't followed, cookies aren't kept, and proxies
aren't read from the environment. A POST is sent once.

Error texts say what to look at. They name hosts, never addresses with credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, cast

import msgspec
from isal import isal_zlib

from forwarder import __version__
from forwarder.core.clock import Clock, retry_after
from forwarder.core.error_text import error_text
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.core.path import ERROR_HEADER, HEADER, LOOP, ForwarderPath
from forwarder.core.tls import client_context
from forwarder.upstream.connection import ArrivingAnswer, OutgoingRequest
from forwarder.upstream.connections import UpstreamConnections
from forwarder.wire.envelope import body_pieces

MAX_ANSWER: Final = 64 * 1024
MAX_RETRY_AFTER: Final = 3600.0
"""Longest wait in seconds that an answer can ask for: a slip in a proxy's configuration mustn't
stop delivery for days (decision 8).
"""
DECIDE_SECONDS: Final = 10.0
"""Most seconds that a key check waits for its answer."""

_GZIP_WBITS: Final = 31
# its stub calls the class an instance
_ZLIB_ERROR: Final = cast("type[Exception]", isal_zlib.IsalError)
_ANY_WBITS: Final = 47
"""gzip or zlib, whichever it is."""
_LEVEL: Final = 1
_YIELD_BYTES: Final = 1 << 20
"""Bytes (about a millisecond of compression) after which the loop runs other tasks."""
_AT_ONCE_BYTES: Final = 1 << 20
"""A body up to this size is written at once, a larger one as fast as the upstream reads: what
waits to be encrypted is a copy.
"""
_SLICE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """Where and how to send. `timeout` is for the whole request, in seconds."""

    url: str
    compression: bool = True
    timeout: float = 30.0
    ca_file: str | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of batches."""


class HttpSink:
    """Sends batches to `{url}/batch/` and asks `{url}/decide`. A connection opens with the first
    request; `close` drops them.
    """

    def __init__(
        self, policy: UpstreamPolicy, clock: Clock, path: ForwarderPath | None = None
    ) -> None:
        """`path`: tells requests which forwarders they have passed.

        Raises `OSError` or `ssl.SSLError` if `ca_file` can't be used.
        """
        self._policy = policy
        self._clock = clock
        self._path = path or ForwarderPath(clock)
        self.tls = client_context(policy.ca_file) if policy.ca_file else None
        """What the upstream's certificate is checked with, if not the system's authorities; others
        that connect to it use it too.
        """
        self._lines = b"".join([_line(name, value) for name, value in _USUAL])
        self._batch_lines = self._lines + b"".join(
            [_line(name, value) for name, value in policy.headers]
        )
        self._connections = UpstreamConnections(
            policy.url, tls=self.tls, proxy=policy.proxy, connect_timeout=policy.timeout
        )

    async def send(self, batch: Batch) -> Reply:
        lines = self._batch_lines + _line(HEADER, self._path.header(batch.lane))
        if self._policy.compression:
            compressed = await _compress(body_pieces(batch))
            lines += b"Content-Encoding: gzip\r\n"
            body = BodyInPieces(compressed, sum([len(piece) for piece in compressed]))
        else:
            body = BodyInPieces(body_pieces(batch), batch.size)
        return await self._post(b"/batch/", lines, body, self._policy.timeout)

    async def decide(self, api_key: str) -> Reply:
        """Ask the upstream whether it knows a project key, by evaluating flags of a made-up
        person. Cancellation drops the connection.
        """
        data = msgspec.json.encode({"api_key": api_key, "distinct_id": "forwarder-key-check"})
        lines = self._lines + _line(HEADER, self._path.header())
        return await self._post(
            b"/decide?v=3",
            lines,
            BodyInPieces([data], len(data)),
            min(self._policy.timeout, DECIDE_SECONDS),
        )

    async def close(self) -> None:
        """Drop all connections."""
        self._connections.close()

    async def _post(self, target: bytes, lines: bytes, body: BodyInPieces, timeout: float) -> Reply:
        try:
            async with asyncio.timeout(timeout):
                answer = await self._connections.ask(
                    OutgoingRequest(b"POST", target, lines, body.size, body)
                )
                try:
                    return await self._reply(answer)
                finally:
                    answer.release()
        except TimeoutError:
            return Reply(None, error=f"no whole answer within {timeout:g} s", is_late=True)
        except OSError as error:
            return Reply(None, error=error_text(error))

    async def _reply(self, answer: ArrivingAnswer) -> Reply:
        status = answer.status
        lines = answer.lines
        said = {name.lower(): value.decode("utf-8", "replace") for name, value in lines}
        wait = _retry_after(said.get(b"retry-after"), self._clock.now())
        try:
            content = await _read(answer)
        except OSError as error:
            return Reply(None, retry_after=wait, error=f"HTTP {status}, but {error_text(error)}")
        return Reply(
            status,
            said.get(b"content-type", ""),
            wait,
            _decompressed(content) if b"content-encoding" in said else content,
            loop=status == 508 and said.get(ERROR_HEADER.lower().encode()) == LOOP,
            location=said.get(b"location", ""),
            date=said.get(b"date", ""),
            asks_login=b"www-authenticate" in said or b"proxy-authenticate" in said,
        )


_USUAL: Final = (
    ("Content-Type", "application/json"),
    ("User-Agent", f"forwarder/{__version__}"),
    ("Accept", "*/*"),
    ("Accept-Encoding", "identity"),
)


def _line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode()


class BodyInPieces:
    """A request's body of known size, in pieces that are made as they are
    read: an `OutgoingBody`.
    """

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        self._pieces = iter(pieces)
        self._slices: Iterator[memoryview] = iter(())
        self.size = size

    def whole(self) -> list[bytes] | None:
        """All of it, unless it is large."""
        return list(self._pieces) if self.size <= _AT_ONCE_BYTES else None

    async def read(self) -> bytes | memoryview:
        """The next piece; empty at the end."""
        for part in self._slices:
            return part
        for piece in self._pieces:
            self._slices = _slices(piece)
            return next(self._slices)
        return b""

    def discard(self) -> None:
        """Make no more pieces."""
        self._pieces = iter(())
        self._slices = iter(())

    def progressed(self) -> None:
        """Nothing waits for it: the time limit is for the whole request."""


async def _compress(pieces: Iterator[bytes]) -> list[bytes]:
    """The pieces as one gzip stream. The loop runs other tasks after each megabyte."""
    deflate = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP_WBITS)
    compressed: list[bytes] = []
    since = 0
    for piece in pieces:
        for part in _slices(piece):
            if since >= _YIELD_BYTES:
                since = 0
                await asyncio.sleep(0)
            since += len(part)
            compressed.append(deflate.compress(part))
    compressed.append(deflate.flush())
    return [piece for piece in compressed if piece]


def _slices(piece: bytes) -> Iterator[memoryview]:
    """The piece in slices, without copying: a request's events may be one piece of
    many megabytes.
    """
    view = memoryview(piece)
    for start in range(0, len(view), _SLICE_BYTES):
        yield view[start : start + _SLICE_BYTES]


async def _read(answer: ArrivingAnswer) -> bytes:
    """The answer's body, cut at `MAX_ANSWER`. Raises `OSError` if it ends too early."""
    content, more = answer.body()
    if more is not None:
        async for piece in more:
            content += piece
            if len(content) >= MAX_ANSWER:
                break
    return content[:MAX_ANSWER]


def _decompressed(content: bytes) -> bytes:
    """What a server compressed although it was asked not to; as it is, if it is no gzip."""
    try:
        return isal_zlib.decompressobj(_ANY_WBITS).decompress(content, MAX_ANSWER)
    except _ZLIB_ERROR:
        return content


def _retry_after(value: str | None, now: float) -> float | None:
    """The wait that an answer asks for, at most `MAX_RETRY_AFTER`."""
    seconds = retry_after(value, now)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER)
