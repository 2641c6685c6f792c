"""One HTTP request to the service, and its result: an `HttpReply` or a `ConnectionFailure`.

Nothing is followed, repeated or stored: no redirects, no cookies, no proxy from the environment,
no request twice. The key is sent to the base address only. A response is read up to
`LARGEST_ANSWER` bytes, decompressed. A request other than GET has a connection of its own: on a
kept one, which the service can be closing at that moment, its effect would be unknown. A failure
names hosts, never addresses or headers, and what to check.
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
from forwarder.core.error_text import error_text

LARGEST_ANSWER: Final = 64 * 1024 * 1024
LARGEST_ERROR: Final = 64 * 1024
"""Of an error no more is read."""
KEPT: Final = 5.0
"""Seconds that an idle connection is kept: less than servers keep theirs, so that requests rarely
use one that is closing.
"""
TIMEOUT: Final = "timeout"
UNREACHABLE: Final = "unreachable"
UNTRUSTED: Final = "untrusted"
PROXY: Final = "proxy"
BROKEN: Final = "broken"
TOO_LARGE: Final = "too_large"
_CHECK_URL: Final = "Check `url`, the network, and whether a `proxy` is needed."
_CHECK_PROXY: Final = "Check `proxy`."
_TRUST: Final = "If the service has an authority of its own, name its certificate in `ca_file`."
_ODD: Final = "Check that `url` is the service's, and that it speaks http or https as `url` says."
_CHECK_SERVICE: Final = "If it persists, check the service and the proxies before it."


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The service's address, the key, and how to connect."""

    base: str
    api_key: str = field(repr=False)
    tls: SSLContext | None = field(repr=False)
    proxy: str | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a key: it can't be copied or pickled, nor can what it is part of")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; `target` is its path with its query, encoded."""

    method: str
    target: str
    body: bytes | None = None


class Transport:
    """The connections to the service. They open with the first request; `close` ends them."""

    def __init__(self, access: ConnectionSettings) -> None:
        self._access = access
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether their connections are kept."""

    async def ask(self, request: HttpRequest, now: float) -> HttpReply | ConnectionFailure:
        """Make the request once. `now` is for dates in `Retry-After`.
        Cancellation drops the connection.
        """
        pooled = request.method == "GET"
        try:
            return await self._exchange(
                self._sessions.get(pooled) or self._open(pooled=pooled), request, now
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return connection_failure(error)

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        sessions = self._sessions
        self._sessions = {}
        for session in sessions.values():
            await session.close()

    async def _exchange(
        self, session: aiohttp.ClientSession, request: HttpRequest, now: float
    ) -> HttpReply | ConnectionFailure:
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
                broken = connection_failure(error)
                return ConnectionFailure(
                    broken.code,
                    f"HTTP {response.status}, but {broken.words}",
                    broken.hint,
                    sent=True,
                    status=response.status,
                )
            if body is None:
                words = f"the answer is larger than {LARGEST_ANSWER >> 20} MiB"
                return ConnectionFailure(
                    TOO_LARGE,
                    words,
                    "Ask for smaller pages.",
                    sent=True,
                    again=False,
                    status=response.status,
                )
            headers = response.headers
            waits = retry_after(headers.get("Retry-After"), now)
            return HttpReply(
                response.status,
                body,
                headers.get("Content-Type", ""),
                waits,
                _target(url, headers.get("Location", "")),
            )

    def _headers(self, request: HttpRequest) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._access.api_key}"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        return headers

    def _open(self, *, pooled: bool) -> aiohttp.ClientSession:
        tls = self._access.tls or True
        session = self._sessions[pooled] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, keepalive_timeout=KEPT)
            if pooled
            else aiohttp.TCPConnector(ssl=tls, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
                "User-Agent": f"forwarder/{__version__}",
            },
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


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, as far as it was read."""

    status: int
    body: bytes = b""
    content_type: str = ""
    retry_after: float | None = None
    """Seconds."""
    location: str = ""
    """Where it redirects to, absolute."""


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """No answer, or none that is whole."""

    code: str
    """One of this module's."""
    words: str
    hint: str
    sent: bool
    """Whether the request, or a part of it, may have reached the service."""
    again: bool = True
    """Whether trying again may help."""
    status: int | None = None
    """Of the answer that broke off."""


class ConnectionBroken(aiohttp.ClientError):
    """A connection that ended while a request was on it. Not one of those errors after which
    aiohttp repeats a request by itself.
    """


def connection_failure(error: Exception) -> ConnectionFailure:
    """The failure of a request."""
    return _connect_failure(error) or _exchange_failure(error)


def _connect_failure(error: Exception) -> ConnectionFailure | None:
    """The failure to get a connection, if that is what it is: nothing was sent."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ConnectionFailure(UNTRUSTED, error_text(error), _TRUST, sent=False, again=False)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ConnectionFailure(
            PROXY, error_text(error), _CHECK_PROXY, sent=False, again=error.status >= 500
        )
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return ConnectionFailure(PROXY, error_text(error), _CHECK_PROXY, sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        hint = _ODD if isinstance(error, aiohttp.ClientConnectorSSLError) else _CHECK_URL
        return ConnectionFailure(UNREACHABLE, error_text(error), hint, sent=False)
    return None


def _exchange_failure(error: Exception) -> ConnectionFailure:
    if isinstance(error, aiohttp.ClientPayloadError):
        words = "the answer was cut off before its end, or can't be decompressed"
    elif isinstance(error, ConnectionBroken):
        words = str(error)
    elif isinstance(error, OSError):
        words = error_text(error)
    else:
        return ConnectionFailure(BROKEN, "the answer isn't valid HTTP", _ODD, sent=True)
    return ConnectionFailure(BROKEN, words, _CHECK_SERVICE, sent=True)


async def unrepeated(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A middleware that keeps aiohttp from repeating requests when a connection ends: it would
    repeat a DELETE, unseen.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except aiohttp.ServerDisconnectedError:
        words = "the connection was closed before an answer came"
    except aiohttp.ClientOSError as error:
        # without a number it is aiohttp's own: it found the connection closed
        words = (
            error_text(error)
            if error.errno
            else "the connection was closed while the request was being sent"
        )
    raise ConnectionBroken(words)
