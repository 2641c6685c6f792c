"""Polls for flag definitions: answered from a cache while an answer is fresh, and while the
upstream is down.

Every process of an app polls for the same definitions, each half a minute, and evaluates flags by
them: so one of many asks the upstream, and its last answer is repeated while it can't be asked.
Invariants: concurrent polls for the same share one request, which continues although the sender
that caused it has left; a refusal of the credentials (401, 403) ends what was kept under them; an
error of the upstream never takes the place of definitions that are there, whatever their age.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from forwarder.core.clock import Clock
from forwarder.core.headers import HeaderLine, value_of
from forwarder.sources.http.passthrough.allowed import (
    PassedRequest,
    lines_for_sender,
    lines_for_upstream,
    named_by_connection,
)
from forwarder.sources.http.passthrough.upstream import PassThroughUpstream, PausableTimeout
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.upstream.connection import ArrivingAnswer, OutgoingRequest

_OF_THE_SENDER: Final = frozenset({b"accept-encoding", b"cache-control", b"pragma"})
"""Headers that say what one sender wants, and are not sent on for all."""
_CONDITIONS: Final = frozenset(
    {b"if-none-match", b"if-modified-since", b"if-match", b"if-unmodified-since", b"if-range"}
)
_SPECIAL: Final = (b"cookie", b"range")
_STALE: Final = (b"Warning", b'110 - "Response is Stale"')
_NOT_CONFIRMED: Final = (b"Warning", b'111 - "Revalidation Failed"')
_OF_A_BODY: Final = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"content-range"}
)

MAX_UNCACHEABLE: Final = 256
UNCACHEABLE_SECONDS: Final = 60.0
"""For how long it is remembered that an answer can't be cached."""


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A response of the upstream, all of it."""

    status: int
    reason: bytes | None
    lines: Sequence[HeaderLine]
    """Its headers, as they are to be passed on."""
    body: bytes

    @property
    def etag(self) -> bytes:
        """Its entity tag; empty for none."""
        return value_of(self.lines, b"etag")

    @property
    def cost(self) -> int:
        """Bytes that it counts for in the cache."""
        return (
            len(self.body)
            + sum([len(name) + len(value) for name, value in self.lines])
            + ENTRY_OVERHEAD
        )


@dataclass(frozen=True, slots=True)
class UncacheableResponse:
    """The response is too large to be cached, or is of a kind that other senders can't use."""

    status: int


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """There is no response. `answer`: for a sender without a cached one; `tried`: whether the
    upstream was asked at all.
    """

    answer: HttpAnswer
    tried: bool


Fetched: TypeAlias = UpstreamResponse | FetchFailure | UncacheableResponse
"""The outcome of a request to the upstream."""


class FlagDefinitions:
    """The cache, and the requests that fill it."""

    def __init__(
        self, upstream: PassThroughUpstream, clock: Clock, *, timeout: float, max_age: float
    ) -> None:
        self.cache = ResponseCache()
        self._upstream = upstream
        self._clock = clock
        self._timeout = timeout
        self._max_age = max_age
        self._fetching: dict[bytes, asyncio.Task[Fetched]] = {}
        self._uncacheable: OrderedDict[bytes, float] = OrderedDict()

    @staticmethod
    def serves(request: PassedRequest) -> bool:
        """Whether a request can be answered by a cached response."""
        if not request.route.definitions or request.method != b"GET" or request.content_length != 0:
            return False
        return not any(
            value_of(request.lines, name) for name in _SPECIAL
        ) and b"authorization" not in named_by_connection(request.lines)

    async def get(self, request: PassedRequest) -> UpstreamResponse | HttpAnswer | None:
        """The answer; None if it has to be passed through. Cancellation leaves the request to the
        upstream to others.
        """
        key = cache_key(request.target, request.lines)
        if self._uncacheable.get(key, 0.0) > self._clock.monotonic():
            return None
        entry = self.cache.get(key)
        if entry is not None and self._clock.monotonic() - entry.confirmed < self._max_age:
            return self._of_entry(request, entry)
        fetched = await asyncio.shield(self._fetch_once(key, request, entry))
        cached = self.cache.get(key)
        if isinstance(fetched, FetchFailure):
            return (
                fetched.answer
                if cached is None
                else self._stale(request, cached, tried=fetched.tried)
            )
        if cached is not None and fetched.status >= 500:
            return self._stale(request, cached, tried=True)
        if isinstance(fetched, UncacheableResponse):
            return None
        return (
            fetched
            if cached is None or fetched.status not in (200, 304)
            else self._of_entry(request, cached)
        )

    async def close(self) -> None:
        """End the requests in flight."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stale(
        self, request: PassedRequest, entry: CachedResponse, *, tried: bool
    ) -> UpstreamResponse:
        return self._of_entry(request, entry, _STALE, *([_NOT_CONFIRMED] if tried else []))

    def _of_entry(
        self, request: PassedRequest, entry: CachedResponse, *warnings: HeaderLine
    ) -> UpstreamResponse:
        response = entry.response
        lines = [line for line in response.lines if line[0].lower() != b"age"]
        lines += [(b"Age", b"%d" % entry.age(self._clock.monotonic())), *warnings]
        if matches(value_of(request.lines, b"if-none-match"), response.etag):
            return UpstreamResponse(
                304, None, [line for line in lines if line[0].lower() not in _OF_A_BODY], b""
            )
        return UpstreamResponse(response.status, response.reason, lines, response.body)

    def _fetch_once(
        self, key: bytes, request: PassedRequest, entry: CachedResponse | None
    ) -> asyncio.Task[Fetched]:
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.create_task(
                self._fetch(key, request, entry), name="ask for definitions"
            )
            task.add_done_callback(lambda _: self._fetching.pop(key, None))
        return task

    async def _fetch(
        self, key: bytes, request: PassedRequest, entry: CachedResponse | None
    ) -> Fetched:
        fetched = await self._ask(request, entry)
        now = self._clock.monotonic()
        if isinstance(fetched, FetchFailure):
            return fetched
        if fetched.status in (401, 403):
            self.cache.drop(key)
        elif fetched.status == 200:
            self._keep(key, fetched, now)
        elif fetched.status == 304 and entry is not None:
            self.cache.put(key, entry.response, now)
        return fetched

    def _keep(
        self, key: bytes, fetched: UpstreamResponse | UncacheableResponse, now: float
    ) -> None:
        """Keep new definitions; if they can't be kept, the ones before are over too."""
        if isinstance(fetched, UpstreamResponse):
            self.cache.put(key, fetched, now)
        else:
            self.cache.drop(key)
            self._remember_uncacheable(key, now)

    async def _ask(self, request: PassedRequest, entry: CachedResponse | None) -> Fetched:
        permit = self._upstream.begin()
        if isinstance(permit, HttpAnswer):
            return FetchFailure(permit, tried=False)
        lines = [
            line for line in request.lines if line[0].lower() not in _OF_THE_SENDER | _CONDITIONS
        ]
        lines.append((b"Accept-Encoding", b"identity"))
        if entry is not None and entry.response.etag:
            lines.append((b"If-None-Match", entry.response.etag))
        try:
            async with PausableTimeout(self._clock, self._timeout, total=True):
                sent = lines_for_upstream(lines, request.peer, request.path)
                response = await self._upstream.ask(
                    permit, OutgoingRequest(b"GET", request.target, sent, 0, None)
                )
                try:
                    fetched = await _read_whole(response)
                finally:
                    response.release()
        except OSError as error:
            return FetchFailure(self._upstream.failed(permit, error), tried=True)
        except BaseException:
            self._upstream.breaker.abandoned(permit)
            raise
        self._upstream.completed(response.status)
        return fetched

    def _remember_uncacheable(self, key: bytes, now: float) -> None:
        self._uncacheable[key] = now + UNCACHEABLE_SECONDS
        self._uncacheable.move_to_end(key)
        if len(self._uncacheable) > MAX_UNCACHEABLE:
            self._uncacheable.popitem(last=False)


async def _read_whole(response: ArrivingAnswer) -> Fetched:
    """The whole response, if it can be cached. Raises `OSError`."""
    # CORS headers depend on the Origin of each sender
    lines = lines_for_sender(response.lines, cross_origin=True)
    if not _is_for_all(lines):
        return UncacheableResponse(response.status)
    body = bytearray()
    async for piece in response.pieces():
        body += piece
        if len(body) > MAX_ENTRY:
            return UncacheableResponse(response.status)
    return UpstreamResponse(response.status, response.reason, lines, bytes(body))


def _is_for_all(lines: Sequence[HeaderLine]) -> bool:
    """Whether all senders may get the response: it is in no coding, and sets no cookie."""
    coding = value_of(lines, b"content-encoding").strip().lower()
    return coding in (b"", b"identity") and not value_of(lines, b"set-cookie")


MAX_ENTRIES: Final = 256
MAX_BYTES: Final = 16_000_000
"""Of all entries together."""
MAX_ENTRY: Final = 8_000_000
"""Of one entry: larger answers are passed through, each for itself."""
ENTRY_OVERHEAD: Final = 1024
"""What an entry counts for beside its bytes."""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A response, and when the upstream last confirmed it (monotonic seconds)."""

    response: UpstreamResponse
    confirmed: float

    def age(self, now: float) -> int:
        """Whole seconds since then."""
        return max(0, int(now - self.confirmed))


def cache_key(target: bytes, lines: Sequence[HeaderLine]) -> bytes:
    """What a response depends on: the path, with or without its slash, the
    query, and the credentials.
    """
    path, _, query = target.partition(b"?")
    parts = (path.rstrip(b"/"), query, value_of(lines, b"authorization"))
    return hashlib.sha256(b"".join([b"%d:%b" % (len(part), part) for part in parts])).digest()


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether a sender that has what `If-None-Match` names has the answer with this tag (RFC 9110,
    13.1.2: weak comparison).
    """
    if not etag:
        return False
    wanted = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
    return b"*" in wanted or etag.removeprefix(b"W/") in wanted


class ResponseCache:
    """Responses to polls, kept so that they can be given again.

    Invariants: an entry is for one path, query, and credentials, of which only a digest is kept;
    what is held is bounded in bytes and number, and the entry that was used longest ago is dropped
    first; only whole responses with status 200 are kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> CachedResponse | None:
        """The entry, if there is one; it was used now."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, response: UpstreamResponse, now: float) -> None:
        """Keep a response, in place of the one before."""
        self.drop(key)
        if response.cost > self._max_bytes:
            return
        self._entries[key] = CachedResponse(response, now)
        self.bytes += response.cost
        while self.bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self.drop(next(iter(self._entries)))

    def drop(self, key: bytes) -> None:
        """Remove an entry, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.response.cost
