"""Polls for flag definitions: answered from the cache while an answer is fresh, and while the upstream is down.

Every process of an app polls for the same definitions, each half a minute, and evaluates flags by them: so one of many asks the
upstream, and what it said goes on being said when it can't be asked. Invariants: concurrent polls for the same share one request, which
goes on though the one who caused it has left; a refusal of the credentials (401, 403) ends what was kept under them; an error of the
upstream never takes the place of definitions that are there, whatever their age.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import aiohttp

from forwarder.core.clock import Clock
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.passthrough.cache import MAX_ENTRY, Cache, Entry, Whole, key_of, matches
from forwarder.sources.http.passthrough.headers import Line, for_sender, for_upstream, named, value_of
from forwarder.sources.http.passthrough.passage import PassedRequest
from forwarder.sources.http.passthrough.patience import Patience
from forwarder.sources.http.passthrough.upstream import Upstream

_OF_THE_SENDER: Final = frozenset({b"accept-encoding", b"cache-control", b"pragma"})
"""Headers that say what one sender wants, and are not sent on for all."""
_CONDITIONS: Final = frozenset({b"if-none-match", b"if-modified-since", b"if-match", b"if-unmodified-since", b"if-range"})
_SPECIAL: Final = (b"cookie", b"range")
_STALE: Final = (b"Warning", b'110 - "Response is Stale"')
_NOT_CONFIRMED: Final = (b"Warning", b'111 - "Revalidation Failed"')
_OF_A_BODY: Final = frozenset({b"content-type", b"content-encoding", b"content-language", b"content-range"})

MAX_UNKEPT: Final = 256
UNKEPT_SECONDS: Final = 60.0
"""For how long it is remembered that an answer can't be kept."""


@dataclass(frozen=True, slots=True)
class Unkept:
    """The answer is too large to be kept, or is of a kind that others couldn't use."""

    status: int


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer; what a sender is told who can't be helped. `tried`: whether the upstream was asked at all."""

    answer: Answer
    tried: bool


Fetched: TypeAlias = Whole | Failed | Unkept
"""What came of asking."""


class Definitions:
    """The cache, and the requests that fill it."""

    def __init__(self, upstream: Upstream, clock: Clock, *, timeout: float, max_age: float) -> None:
        self.cache = Cache()
        self._upstream = upstream
        self._clock = clock
        self._timeout = timeout
        self._max_age = max_age
        self._fetching: dict[bytes, asyncio.Task[Fetched]] = {}
        self._unkept: OrderedDict[bytes, float] = OrderedDict()

    @staticmethod
    def serves(request: PassedRequest) -> bool:
        """Whether a request can be answered by what others were answered."""
        usual = request.passed.definitions and request.method == b"GET" and request.content_length == 0
        return usual and not any(value_of(request.lines, name) for name in _SPECIAL) and b"authorization" not in named(request.lines)

    async def get(self, request: PassedRequest) -> Whole | Answer | None:
        """The answer; None if it has to be passed through. Cancellation leaves the request to the upstream to others."""
        key = key_of(request.target, request.lines)
        if self._unkept.get(key, 0.0) > self._clock.monotonic():
            return None
        entry = self.cache.get(key)
        if entry is not None and self._clock.monotonic() - entry.confirmed < self._max_age:
            return self._of_entry(request, entry)
        fetched = await asyncio.shield(self._fetch_once(key, request, entry))
        kept = self.cache.get(key)
        if isinstance(fetched, Failed):
            return fetched.answer if kept is None else self._stale(request, kept, tried=fetched.tried)
        if kept is not None and fetched.status >= 500:
            return self._stale(request, kept, tried=True)
        if isinstance(fetched, Unkept):
            return None
        return fetched if kept is None or fetched.status not in (200, 304) else self._of_entry(request, kept)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stale(self, request: PassedRequest, entry: Entry, *, tried: bool) -> Whole:
        return self._of_entry(request, entry, _STALE, *([_NOT_CONFIRMED] if tried else []))

    def _of_entry(self, request: PassedRequest, entry: Entry, *warnings: Line) -> Whole:
        kept = entry.answer
        lines = [line for line in kept.lines if line[0].lower() != b"age"]
        lines += [(b"Age", b"%d" % entry.age(self._clock.monotonic())), *warnings]
        if matches(value_of(request.lines, b"if-none-match"), kept.etag):
            return Whole(304, None, [line for line in lines if line[0].lower() not in _OF_A_BODY], b"")
        return Whole(kept.status, kept.reason, lines, kept.body)

    def _fetch_once(self, key: bytes, request: PassedRequest, entry: Entry | None) -> asyncio.Task[Fetched]:
        task = self._fetching.get(key)
        if task is None:
            task = self._fetching[key] = asyncio.create_task(self._fetch(key, request, entry), name="ask for definitions")
            task.add_done_callback(lambda _: self._fetching.pop(key, None))
        return task

    async def _fetch(self, key: bytes, request: PassedRequest, entry: Entry | None) -> Fetched:
        fetched = await self._ask(request, entry)
        now = self._clock.monotonic()
        if isinstance(fetched, Failed):
            return fetched
        if fetched.status in (401, 403):
            self.cache.drop(key)
        elif fetched.status == 200:
            self._keep(key, fetched, now)
        elif fetched.status == 304 and entry is not None:
            self.cache.put(key, entry.answer, now)
        return fetched

    def _keep(self, key: bytes, fetched: Whole | Unkept, now: float) -> None:
        """Keep new definitions; if they can't be kept, the ones before are over too."""
        if isinstance(fetched, Whole):
            self.cache.put(key, fetched, now)
        else:
            self.cache.drop(key)
            self._remember_unkept(key, now)

    async def _ask(self, request: PassedRequest, entry: Entry | None) -> Fetched:
        attempt = self._upstream.begin()
        if isinstance(attempt, Answer):
            return Failed(attempt, tried=False)
        lines = [line for line in request.lines if line[0].lower() not in _OF_THE_SENDER | _CONDITIONS]
        lines.append((b"Accept-Encoding", b"identity"))
        if entry is not None and entry.answer.etag:
            lines.append((b"If-None-Match", entry.answer.etag))
        try:
            async with Patience(self._clock, self._timeout, whole=True):
                response = await self._upstream.ask(attempt, b"GET", request.target, for_upstream(lines, request.peer, request.path))
                try:
                    fetched = await _read(response)
                finally:
                    response.release()
        except (aiohttp.ClientError, OSError) as error:
            return Failed(self._upstream.failed(attempt, error), tried=True)
        except BaseException:
            self._upstream.circuit.abandoned(attempt)
            raise
        self._upstream.completed(response.status)
        return fetched

    def _remember_unkept(self, key: bytes, now: float) -> None:
        self._unkept[key] = now + UNKEPT_SECONDS
        self._unkept.move_to_end(key)
        if len(self._unkept) > MAX_UNKEPT:
            self._unkept.popitem(last=False)


async def _read(response: aiohttp.ClientResponse) -> Fetched:
    """The whole answer, if it can be kept. Raises `aiohttp.ClientError` or `OSError`."""
    lines = for_sender(response.raw_headers, cross_origin=True)  # each sender is told by its own Origin who may read it
    if not _is_for_all(lines):
        return Unkept(response.status)
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_ENTRY:
            return Unkept(response.status)
    return Whole(response.status, response.reason, lines, bytes(body))


def _is_for_all(lines: Sequence[Line]) -> bool:
    """Whether the answer is one that others may get: in no coding, and without a cookie for somebody."""
    coding = value_of(lines, b"content-encoding").strip().lower()
    return coding in (b"", b"identity") and not value_of(lines, b"set-cookie")
