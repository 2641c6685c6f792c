"""The way to the service: one HTTP request, and whatever happens to it as a `Reply` or a `Failure`.

Nothing is followed, repeated or remembered: no redirects, no cookies, no proxy from the environment, no request twice. The key goes to the
base address only. An answer is read to `LARGEST_ANSWER` bytes, decompressed. Whatever isn't a GET has a connection of its own: on a kept
one, which the service may be closing just then, nobody could tell whether it was done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Final, NoReturn
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from forwarder import __version__
from forwarder.core.clock import retry_after
from forwarder.management.connection_errors import failure, unrepeated
from forwarder.management.replies import TOO_LARGE, Failure, Reply

LARGEST_ANSWER: Final = 64 * 1024 * 1024
LARGEST_ERROR: Final = 64 * 1024
"""Of an error no more is read."""
KEPT: Final = 5.0
"""Seconds that an idle connection is kept: less than servers keep theirs, or a request often meets one that is being closed."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the service is, and how it is spoken to."""

    base: str
    api_key: str = field(repr=False)
    tls: SSLContext | None = field(repr=False)
    proxy: str | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a key: it can't be copied or pickled, nor can what it is part of")


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `target` is its path with its query, encoded."""

    method: str
    target: str
    body: bytes | None = None


class Transport:
    """The connections to the service. They open with the first request; `close` ends them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether their connections are kept."""

    async def ask(self, request: Request, now: float) -> Reply | Failure:
        """Make the request once. `now` is for dates in `Retry-After`. Cancellation drops the connection."""
        kept = request.method == "GET"
        try:
            return await self._exchange(self._sessions.get(kept) or self._open(kept=kept), request, now)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return failure(error)

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def _exchange(self, session: aiohttp.ClientSession, request: Request, now: float) -> Reply | Failure:
        url = self._access.base + request.target
        async with session.request(
            request.method,
            URL(url, encoded=True),
            data=request.body,
            headers=self._headers(request),
            allow_redirects=False,
            proxy=self._access.proxy,
        ) as response:
            try:
                body = await _read(response)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                broken = failure(error)
                return Failure(broken.code, f"HTTP {response.status}, but {broken.words}", broken.hint, sent=True, status=response.status)
            if body is None:
                words = f"the answer is larger than {LARGEST_ANSWER >> 20} MiB"
                return Failure(TOO_LARGE, words, "Ask for smaller pages.", sent=True, again=False, status=response.status)
            headers = response.headers
            waits = retry_after(headers.get("Retry-After"), now)
            return Reply(response.status, body, headers.get("Content-Type", ""), waits, _target(url, headers.get("Location", "")))

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._access.api_key}"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        return headers

    def _open(self, *, kept: bool) -> aiohttp.ClientSession:
        tls = self._access.tls or True
        session = self._sessions[kept] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, keepalive_timeout=KEPT) if kept else aiohttp.TCPConnector(ssl=tls, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": f"forwarder/{__version__}"},
            skip_auto_headers=["Content-Type"],
            middlewares=[unrepeated],
        )
        return session


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The answer's body, None if it is too large; of an error the beginning."""
    refused = response.status >= 300
    limit = LARGEST_ERROR if refused else LARGEST_ANSWER
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            response.close()
            return b"".join(pieces)[:limit] if refused else None
    return b"".join(pieces)


def _target(url: str, location: str) -> str:
    try:
        return urljoin(url, location) if location else ""
    except ValueError:
        return ""
