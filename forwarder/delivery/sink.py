"""The HTTP client of the upstream: one request an attempt, and whatever happens to it as a `Reply`.

A request holds its compressed body alone in memory, in pieces (with compression `none`, one piece at a time of what the buffer holds
anyway). An answer is read up to 64 KiB; one that is shorter than its length says is no answer. Redirects aren't followed, cookies aren't
kept, and proxies aren't read from the environment. aiohttp sends a POST once, it never repeats one by itself.

Error texts say what to look at. They name hosts, never addresses with credentials.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from isal import isal_zlib

from forwarder import __version__
from forwarder.core.clock import Clock, retry_after
from forwarder.core.error_text import error_text
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.core.path import ERROR_HEADER, HEADER, LOOP, ForwarderPath
from forwarder.wire.envelope import PIECE_BYTES, body_pieces

MAX_ANSWER: Final = 64 * 1024
MAX_RETRY_AFTER: Final = 3600.0
"""Longest wait in seconds that an answer can ask for: a slip in a proxy's configuration mustn't stop delivery for days (decision 8)."""
DECIDE_SECONDS: Final = 10.0
"""Most seconds that a key check waits for its answer."""

_GZIP_WBITS: Final = 31
_LEVEL: Final = 1
_YIELD_BYTES: Final = 1 << 20
"""Bytes (about a millisecond of compression) after which the loop runs other tasks."""


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
    """Sends batches to `{url}/batch/` and asks `{url}/decide`. The session opens with the first request; `close` ends it."""

    def __init__(self, policy: UpstreamPolicy, clock: Clock, path: ForwarderPath | None = None) -> None:
        """`path`: tells requests which forwarders they have passed.

        Raises `OSError` or `ssl.SSLError` if `ca_file` can't be used.
        """
        self._policy = policy
        self._clock = clock
        self._path = path or ForwarderPath(clock)
        base = policy.url.rstrip("/")
        self._batch_url = f"{base}/batch/"
        self._decide_url = f"{base}/decide?v=3"
        self.tls = ssl.create_default_context(cafile=policy.ca_file) if policy.ca_file else None
        """What the upstream's certificate is checked with, if not the system's authorities; others that connect to it use it too."""
        self._session: aiohttp.ClientSession | None = None

    async def send(self, batch: Batch) -> Reply:
        """See `Sink.send`."""
        headers = {HEADER: self._path.header(batch.lane), **dict(self._policy.headers)}
        if not self._policy.compression:
            return await self._post(self._batch_url, BodyPieces(body_pieces(batch), batch.size), headers, self._policy.timeout)
        compressed = await _compress(body_pieces(batch))
        body = BodyPieces(compressed, sum([len(piece) for piece in compressed]))
        return await self._post(self._batch_url, body, {**headers, "Content-Encoding": "gzip"}, self._policy.timeout)

    async def decide(self, api_key: str) -> Reply:
        """Ask the upstream whether it knows a project key, by evaluating flags of a made-up person. Cancellation drops the connection."""
        data = msgspec.json.encode({"api_key": api_key, "distinct_id": "forwarder-key-check"})
        headers = {HEADER: self._path.header()}
        return await self._post(self._decide_url, BodyPieces([data], len(data)), headers, min(self._policy.timeout, DECIDE_SECONDS))

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, url: str, body: BodyPieces, headers: dict[str, str], timeout: float) -> Reply:
        session = self._session or self._open()
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(session, url, body, headers)
        except TimeoutError:
            return Reply(None, error=f"no whole answer within {timeout:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Reply(None, error=error_text(error))

    async def _exchange(self, session: aiohttp.ClientSession, url: str, body: BodyPieces, headers: dict[str, str]) -> Reply:
        async with session.post(url, data=body, headers=headers, allow_redirects=False, proxy=self._policy.proxy) as response:
            wait = _retry_after(response.headers.get("Retry-After"), self._clock.now())
            try:
                answer = await _read(response)
            except (aiohttp.ClientError, OSError) as error:
                return Reply(None, retry_after=wait, error=f"HTTP {response.status}, but {error_text(error)}")
            loop = response.status == 508 and response.headers.get(ERROR_HEADER) == LOOP
            received = response.headers
            return Reply(
                response.status,
                received.get("Content-Type", ""),
                wait,
                answer,
                loop=loop,
                location=received.get("Location", ""),
                date=received.get("Date", ""),
                asks_login="WWW-Authenticate" in received or "Proxy-Authenticate" in received,
            )

    def _open(self) -> aiohttp.ClientSession:
        """A session. Its connections aren't limited here: the limiter and the key check do that."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Content-Type": "application/json", "User-Agent": f"forwarder/{__version__}", "Accept-Encoding": "identity"},
        )
        return self._session


class BodyPieces(aiohttp.payload.Payload):
    """A request's body of known length that is written piece by piece."""

    def __init__(self, pieces: Iterable[bytes], size: int) -> None:
        super().__init__(pieces, content_type="application/json")
        self._length = size

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return self._length

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - aiohttp's
        """Not for use: the body isn't held whole."""
        raise TypeError("a body that is sent in pieces can't be shown")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body. Cancellation leaves it half written, and the connection unusable."""
        for piece in self._value:
            for part in _slices(piece):
                await writer.write(part)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002 - aiohttp's
        """As `write`: the length is known."""
        await self.write(writer)


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
    """The piece in slices of at most `PIECE_BYTES`, without copying: a request's events may be one piece of many megabytes."""
    view = memoryview(piece)
    for start in range(0, len(view), PIECE_BYTES):
        yield view[start : start + PIECE_BYTES]


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The answer's body, cut at `MAX_ANSWER`. Raises `aiohttp.ClientPayloadError` if it ends too early."""
    answer = bytearray()
    async for data in response.content.iter_any():
        answer += data
        if len(answer) >= MAX_ANSWER:
            response.close()
            break
    return bytes(answer[:MAX_ANSWER])


def _retry_after(value: str | None, now: float) -> float | None:
    """The wait that an answer asks for, at most `MAX_RETRY_AFTER`."""
    seconds = retry_after(value, now)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER)
