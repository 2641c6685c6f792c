"""One address that requests are passed to: its connections, its circuit, and what its failures mean for a sender.

Nothing is followed, repeated, decompressed or remembered: no redirects, no cookies, no headers of aiohttp's but Host, length and chunks.
The target goes on byte for byte. (aiohttp repeats a GET or HEAD by itself if a connection that was kept turns out to be closed.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import aiohttp
import structlog
from multidict import CIMultiDict
from yarl import URL

from forwarder.core.clock import Clock
from forwarder.sources.http import answers
from forwarder.sources.http.answers import Answer, Rejection
from forwarder.sources.http.passthrough.body import Outgoing
from forwarder.sources.http.passthrough.circuit import Attempt, Circuit
from forwarder.sources.http.passthrough.policy import RETRY_AFTER, PassThroughPolicy

log = structlog.get_logger(__name__)

GATEWAY: Final = frozenset({502, 503, 504})
"""Answers of whoever stands before an upstream that isn't there."""

_NOT_SET: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_MAX_LINE: Final = 32 * 1024
_READ: Final = 32 * 1024
"""Half of what is read ahead of an answer that its sender doesn't take."""

_BROKEN: Final = re.compile(rb"[\r\n\0]")
"""In a header's value: an answer could be read as two."""

_OUT_OF_TIME: Final = answers.unavailable("The upstream did not answer in time.", RETRY_AFTER, Rejection.UPSTREAM)
_FAILED: Final = answers.unavailable("The upstream could not be reached, or broke off.", RETRY_AFTER, Rejection.UPSTREAM)
"""Not 502 and 504: SDKs repeat a call for flags on just these, and their application waits for longer (docs/sdks.md)."""


class Upstream:
    """One address. The session opens with the first request; `close` ends it."""

    def __init__(self, url: str, policy: PassThroughPolicy, describe: Callable[[Exception], str], clock: Clock) -> None:
        """`describe`: an error in words that name nothing secret."""
        self.url = url
        self.circuit = Circuit()
        self._base = url.rstrip("/")
        self._policy = policy
        self._describe = describe
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    def begin(self) -> Attempt | Answer:
        """The leave to ask, or the answer to those who needn't wait."""
        now = self._clock.monotonic()
        attempt = self.circuit.begin(now)
        if attempt is not None:
            return attempt
        return answers.unavailable("The upstream fails; it will be asked again soon.", self.circuit.retry_after(now), Rejection.UPSTREAM)

    async def ask(
        self, attempt: Attempt, method: bytes, target: bytes, headers: CIMultiDict[str], body: Outgoing | None = None
    ) -> aiohttp.ClientResponse:
        """The answer, of which the head is there; whoever asks releases it. Raises `aiohttp.ClientError` or `OSError`, for `failed`.

        Cancellation drops the connection; it is for the caller to tell the circuit, `abandoned`.
        """
        response = await self._open().request(
            method.decode(),
            URL(self._base + target.decode(), encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            proxy=self._policy.proxy,
        )
        if response.status < 200 or any(_BROKEN.search(value) for _, value in response.raw_headers):
            response.close()
            raise aiohttp.ClientPayloadError(f"an answer that can't be passed on, HTTP {response.status}")
        if response.status in GATEWAY:
            self._tell_failure(attempt, f"HTTP {response.status}")
        else:
            self._tell_life()
        return response

    def failed(self, attempt: Attempt, error: Exception) -> Answer:
        """What an error of `ask`, of reading its answer, or `TimeoutError` means for the sender."""
        if isinstance(error, TimeoutError):
            self._tell_failure(attempt, "no answer in time")
            return _OUT_OF_TIME
        self._tell_failure(attempt, self._describe(error))
        return _FAILED

    def completed(self, status: int) -> None:
        """An answer is complete."""
        if status not in GATEWAY:
            self.circuit.succeeded()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _tell_failure(self, attempt: Attempt, why: str) -> None:
        before = self.circuit.open
        self.circuit.failed(attempt, self._clock.monotonic(), why)
        if before is None and self.circuit.open is not None:
            log.warning("nothing is passed through for now", upstream=self.url, why=why)

    def _tell_life(self) -> None:
        before = self.circuit.open
        self.circuit.answered()
        if before is not None:
            log.info("calls are passed through again", upstream=self.url, after=round(self._clock.monotonic() - before.since, 1))

    def _open(self) -> aiohttp.ClientSession:
        """A session. Its connections aren't limited here: the number of passages is."""
        if self._session is None:
            policy = self._policy
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=policy.tls or True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=policy.connect_timeout),
                skip_auto_headers=_NOT_SET,
                auto_decompress=False,
                read_bufsize=_READ,
                max_line_size=_MAX_LINE,
                max_field_size=_MAX_LINE,
            )
        return self._session
