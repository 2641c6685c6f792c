"""What arrives, told as it arrives: `/sandbox/live`, server-sent events, and `/sandbox/rates`, how many came in each second.

Invariants: nothing is queued for a reader (`watching.py`): one that reads slowly is told less, and how much less; readers together
have the store's thread for a twentieth of the time, so that watching doesn't hold up ingestion; a commit wakes readers, never the other
way round. Every batch of messages ends with one that has an `id`, so a reader that comes back with it misses nothing that it could be told.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

from aiohttp import web

from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.queries import show_event, show_request
from forwarder.sandbox.rates import LONGEST, Rates, rates
from forwarder.sandbox.records import Summary
from forwarder.sandbox.store import Store
from forwarder.sandbox.watching import Look, Place, View, look

READERS: Final = 64
"""At once; more are told 503."""
FIRST: Final = 200
"""Events, and requests, that a new reader is told of those that are here already."""
MOST: Final = 100
"""Events, and requests, that it is told at once later on."""
WINDOW: Final = 300
"""Seconds of rates that a new reader is told."""
RECENT: Final = 5
"""Seconds of rates that it is told later on: those that may still have changed."""
PAUSE: Final = 0.25
"""Seconds between two looks, at least."""
SHARE: Final = 20
"""A look is followed by a rest this many times as long as it took on the store's thread, for each reader."""
HEARTBEAT: Final = 15.0
"""Seconds after which a reader to whom there is nothing to tell is told that."""
GONE: Final = 1.0
"""Seconds after which it is noticed that a reader has gone, or that the sandbox ends."""
_LINES: Final = re.compile(r"\r\n|\r|\n")
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class News:
    """What a reader is told at once."""

    look: Look
    summary: Summary
    rates: Rates
    first: bool
    took: float
    """Seconds of the store's thread."""

    def messages(self) -> Iterator[str]:
        """The server-sent events, in order; the last one has the id to go on from."""
        if self.look.anew:
            yield _message("cleared", "{}")
        yield from self._left_out()
        for event in self.look.events.shown:
            yield _message("event", show_event(event))
        for request in self.look.requests.shown:
            yield _message("request", show_request(request))
        yield _message("rates", json.dumps(asdict(self.rates)))
        yield _message("summary", json.dumps(asdict(self.summary)), str(self.look.place))

    def _left_out(self) -> Iterator[str]:
        """To a new reader, how much older there is; to another, how much it missed."""
        left = {"events": self.look.events.left_out, "requests": self.look.requests.left_out}
        if self.first or self.look.anew:
            yield _message("opened", json.dumps(left))
        elif any(left.values()):
            yield _message("skipped", json.dumps(left))


@dataclass(slots=True)
class _Reader:
    """One open stream."""

    request: web.Request
    response: web.StreamResponse
    view: View
    place: Place
    first: bool
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gone(self) -> bool:
        """Whether nobody reads any more."""
        return self.closing.is_set() or self.request.transport is None or self.request.transport.is_closing()


class Live:
    """The two endpoints. `now` is wall-clock time in seconds."""

    def __init__(self, arrivals: Arrivals, now: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._now = now
        self._readers: list[_Reader] = []
        self._commit = asyncio.Event()
        arrivals.written = self._written

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        return [web.get("/sandbox/live", self.live), web.get("/sandbox/rates", self.rates)]

    async def close(self, _application: web.Application) -> None:
        """End every stream, so that nothing waits for its reader to go."""
        for reader in self._readers:
            reader.closing.set()

    async def rates(self, request: web.Request) -> web.Response:
        """GET /sandbox/rates: counts by second, of the last `seconds` (300 unless said, an hour at most)."""
        text = request.query.get("seconds", "")
        wanted = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else WINDOW
        now, seconds = self._now(), min(max(1, wanted), LONGEST)
        found = await self._arrivals.run(lambda store: rates(store, now, seconds))
        return web.json_response(asdict(found))

    async def live(self, request: web.Request) -> web.StreamResponse:
        """GET /sandbox/live: what is here, then what comes. Cancellation ends the stream."""
        if len(self._readers) >= READERS:
            raise web.HTTPServiceUnavailable(text=f"{READERS} streams are open already\n")
        place = Place.parse(request.headers.get("Last-Event-ID", ""))
        reader = _Reader(request, web.StreamResponse(headers=_HEADERS), _view(request), place or Place(), first=place is None)
        self._readers.append(reader)
        try:
            with suppress(ConnectionError):
                await self._tell(reader)
        finally:
            self._readers.remove(reader)
        return reader.response

    async def _tell(self, reader: _Reader) -> None:
        await reader.response.prepare(reader.request)
        await reader.response.write(b"retry: 1000\n\n")
        while not reader.gone:
            commit = self._commit
            news = await self._arrivals.run(lambda store: self._look(store, reader))
            await reader.response.write("".join(news.messages()).encode("utf-8", "backslashreplace"))
            reader.place, reader.first = news.look.place, False
            await self._rest(reader, news.took)
            await self._work_out(reader, news.look.place.arrival)
            await self._wait(reader, commit)

    def _look(self, store: Store, reader: _Reader) -> News:
        began = time.perf_counter()
        found = look(store, reader.view, reader.place, FIRST if reader.first else MOST)
        seconds = WINDOW if reader.first or found.anew else RECENT
        return News(found, store.figures(), rates(store, self._now(), seconds), reader.first, time.perf_counter() - began)

    async def _work_out(self, reader: _Reader, end: int) -> None:
        """Have persons and groups follow what arrived, a step at a time."""
        left = True
        while left and not reader.gone:
            began = time.perf_counter()
            left = await self._arrivals.run(lambda store: store.effects.advance(end))
            if left:
                await self._rest(reader, time.perf_counter() - began)

    async def _rest(self, reader: _Reader, took: float) -> None:
        """Leave the store to others, unless the reader goes: what it took is then free again at once."""
        left = max(PAUSE, took * SHARE * len(self._readers))
        while left > 0 and not reader.gone:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.closing.wait(), min(left, GONE))
            left -= GONE

    async def _wait(self, reader: _Reader, commit: asyncio.Event) -> None:
        """Wait until something was written since `commit` was the one to wait for; meanwhile say now and then that nothing was."""
        waited = 0.0
        while not (commit.is_set() or reader.gone):
            with suppress(TimeoutError):
                await asyncio.wait_for(commit.wait(), GONE)
            waited += GONE
            if waited >= HEARTBEAT:
                waited = 0.0
                await reader.response.write(b": nothing new\n\n")

    def _written(self) -> None:
        self._commit.set()
        self._commit = asyncio.Event()


def _view(request: web.Request) -> View:
    query = request.query
    return View(
        event=query.get("event"),
        distinct_id=query.get("distinct_id"),
        api_key=query.get("api_key"),
        text=query.get("text"),
        problems=query.get("problems", "").lower() in ("1", "true"),
    )


def _message(name: str, data: str, number: str | None = None) -> str:
    lines = "".join(f"data: {line}\n" for line in _LINES.split(data))
    return f"event: {name}\n{lines}" + (f"id: {number}\n\n" if number is not None else "\n")
