"""Arrivals as they happen: `/sandbox/live`, server-sent events, and `/sandbox/rates`, counts by
second.

Invariants: nothing is queued for a reader; it sends its position, and the database is queried for
what came since. So a slow reader costs no memory: it gets fewer events, and the number that it
missed; one that reconnects resumes at its position. All readers together use the store's thread
for a twentieth of the time, so that watching does not delay ingestion. A commit wakes readers,
never the other way round. Every group of messages ends with one that has an `id`, so a reader that
reconnects with it misses nothing that could be shown.

An update has at most `limit` events and requests, the newest, in the order of arrival; omitted
ones are counted. A query searches at most `REACH` arrivals back; an event of more than `LARGE`
bytes is shown without its bytes. Rates are computed from the stored requests, so they survive a
restart. Requests are numbered in the order in which they were stored, which is nearly that of
their times; a binary search finds the first one of an interval.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from aiohttp import web

from forwarder.sandbox.protocol.times import format_time
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import (
    ArrivalKind,
    SandboxSummary,
    StoredEvent,
    StoredRequest,
    like_pattern,
    where,
)
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.queries import show_event, show_request

READERS: Final = 64
"""Open streams at most; further readers get 503."""
FIRST: Final = 200
"""Existing events, and requests, that a new reader gets at most."""
MOST: Final = 100
"""Events, and requests, of each later update at most."""
WINDOW: Final = 300
"""Seconds of rates that a new reader gets."""
RECENT: Final = 5
"""Seconds of rates in each later update: those that can still change."""
PAUSE: Final = 0.25
"""Seconds between two updates of a reader, at least."""
SHARE: Final = 20
"""After an update a reader pauses this many times the update's time on the store's thread, times
the number of readers.
"""
HEARTBEAT: Final = 15.0
"""Seconds without news after which a reader gets a comment."""
GONE: Final = 1.0
"""Seconds within which a closed connection, or the end of the sandbox, is noticed."""
_LINES: Final = re.compile(r"\r\n|\r|\n")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "Content-Type": "text/event-stream",
}
REACH: Final = 100_000
"""Arrivals, and requests, that a query searches at most."""
LARGE: Final = 65_536
"""An event with more bytes is shown without them; `/sandbox/events` has them."""
MANY: Final = 1000
"""Events not ingested that a request with large ones is shown with."""
TEXT: Final = 200
"""Characters of a search text that count."""
_ARRIVED: Final = "SELECT id FROM events WHERE id > ? AND id <= ?"
_REQUESTED: Final = "SELECT id FROM requests WHERE id > ? AND id <= ?"
_PROBLEM: Final = "(status >= 400 OR status = 0 OR conflicts > 0 OR not_ingested > 0)"
Shown = TypeVar("Shown")
MAX_SECONDS: Final = 3600
"""Seconds of one query at most."""
SLOW: Final = 30
"""Seconds by which a request can be older than those stored before it: the time that its body took.
"""
_BY_SECOND: Final = """
    SELECT
        substr(received_at, 1, 19) AS second, sum(events + duplicates + conflicts),
        sum(conflicts), sum(status >= 400)
    FROM requests WHERE id >= ? AND received_at >= ? GROUP BY second
"""


class LiveEndpoints:
    """Both endpoints. `now` is wall-clock time in seconds."""

    def __init__(self, thread: StoreThread, now: Callable[[], float]) -> None:
        self._thread = thread
        self._now = now
        self._readers: list[_Reader] = []

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        return [web.get("/sandbox/live", self.live), web.get("/sandbox/rates", self.rates)]

    async def close(self, _application: web.Application) -> None:
        """End every stream, so that the shutdown waits for no reader."""
        for reader in self._readers:
            reader.closing.set()

    async def rates(self, request: web.Request) -> web.Response:
        """GET /sandbox/rates: counts by second, of the last `seconds`
        (default 300, at most an hour).
        """
        text = request.query.get("seconds", "")
        wanted = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else WINDOW
        now = self._now()
        seconds = min(max(1, wanted), MAX_SECONDS)
        figures = await self._thread.run(lambda store: count_rates(store, now, seconds))
        return web.json_response(asdict(figures))

    async def live(self, request: web.Request) -> web.StreamResponse:
        """GET /sandbox/live: existing arrivals, then new ones. Cancellation ends the stream."""
        if len(self._readers) >= READERS:
            raise web.HTTPServiceUnavailable(text=f"{READERS} streams are open already\n")
        place = LivePosition.parse(request.headers.get("Last-Event-ID", ""))
        reader = _Reader(
            request,
            web.StreamResponse(headers=_HEADERS),
            _filter(request),
            place or LivePosition(),
            first=place is None,
        )
        self._readers.append(reader)
        try:
            with suppress(ConnectionError):
                await self._stream(reader)
        finally:
            self._readers.remove(reader)
        return reader.response

    async def _stream(self, reader: _Reader) -> None:
        await reader.response.prepare(reader.request)
        await reader.response.write(b"retry: 1000\n\n")
        while not reader.gone:
            commit = self._thread.next_commit
            news = await self._thread.run(lambda store: self._update(store, reader))
            await reader.response.write(
                "".join(news.messages()).encode("utf-8", "backslashreplace")
            )
            reader.place = news.update.place
            reader.first = False
            await self._rest(reader, news.took)
            await self._fold(reader, news.update.place.arrival)
            await self._wait(reader, commit)

    def _update(self, store: Store, reader: _Reader) -> LiveMessages:
        began = time.perf_counter()
        update = read_update(store, reader.view, reader.place, FIRST if reader.first else MOST)
        seconds = WINDOW if reader.first or update.reset else RECENT
        return LiveMessages(
            update,
            store.figures(),
            count_rates(store, self._now(), seconds),
            reader.first,
            time.perf_counter() - began,
        )

    async def _fold(self, reader: _Reader, end: int) -> None:
        """Fold new arrivals into persons and groups, a step at a time."""
        left = True
        while left and not reader.gone:
            began = time.perf_counter()
            left = await self._thread.run(lambda store: store.effects.advance(end))
            if left:
                await self._rest(reader, time.perf_counter() - began)

    async def _rest(self, reader: _Reader, took: float) -> None:
        """Leave the store to others, unless the reader disconnects."""
        left = max(PAUSE, took * SHARE * len(self._readers))
        while left > 0 and not reader.gone:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, GONE)):
                    await reader.closing.wait()
            left -= GONE

    async def _wait(self, reader: _Reader, commit: asyncio.Event) -> None:
        """Wait for the next commit after `commit` was read; send a heartbeat meanwhile."""
        waited = 0.0
        while not (commit.is_set() or reader.gone):
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE):
                    await commit.wait()
            waited += GONE
            if waited >= HEARTBEAT:
                waited = 0.0
                await reader.response.write(b": nothing new\n\n")


@dataclass(frozen=True, slots=True)
class LiveMessages:
    """One update of a reader, as server-sent events."""

    update: LiveUpdate
    summary: SandboxSummary
    rates: Rates
    first: bool
    took: float
    """Seconds of the store's thread."""

    def messages(self) -> Iterator[str]:
        """The server-sent events, in order; the last one has the id to resume from."""
        if self.update.reset:
            yield _message("cleared", "{}")
        yield from self._omitted()
        for event in self.update.events.shown:
            yield _message("event", show_event(event))
        for request in self.update.requests.shown:
            yield _message("request", show_request(request))
        yield _message("rates", json.dumps(asdict(self.rates)))
        yield _message("summary", json.dumps(asdict(self.summary)), str(self.update.place))

    def _omitted(self) -> Iterator[str]:
        """For a new reader the number of older ones; for another the number that it missed."""
        left = {"events": self.update.events.omitted, "requests": self.update.requests.omitted}
        if self.first or self.update.reset:
            yield _message("opened", json.dumps(left))
        elif any(left.values()):
            yield _message("skipped", json.dumps(left))


@dataclass(slots=True)
class _Reader:
    """One open stream."""

    request: web.Request
    response: web.StreamResponse
    view: LiveFilter
    place: LivePosition
    first: bool
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gone(self) -> bool:
        """Whether the reader has disconnected, or the sandbox is closing."""
        return (
            self.closing.is_set()
            or self.request.transport is None
            or self.request.transport.is_closing()
        )


def _filter(request: web.Request) -> LiveFilter:
    query = request.query
    return LiveFilter(
        event=query.get("event") or None,
        distinct_id=query.get("distinct_id") or None,
        api_key=query.get("api_key") or None,
        text=query.get("text") or None,
        problems=query.get("problems", "").lower() in ("1", "true"),
    )


def _message(name: str, data: str, number: str | None = None) -> str:
    lines = "".join(f"data: {line}\n" for line in _LINES.split(data))
    return f"event: {name}\n{lines}" + (f"id: {number}\n\n" if number is not None else "\n")


@dataclass(frozen=True, slots=True)
class LivePosition:
    """A reader's position: the last arrival and the last request that it got, and the history that
    these belong to.
    """

    arrival: int = 0
    request: int = 0
    history: str = ""

    def __str__(self) -> str:
        return f"{self.arrival}.{self.request}.{self.history}"

    @classmethod
    def parse(cls, text: str) -> LivePosition | None:
        """The inverse of `str`; None if the text is not a position."""
        numbers, _, history = text.rpartition(".")
        arrival, _, request = numbers.partition(".")
        if not (_is_number(arrival) and _is_number(request)):
            return None
        return cls(int(arrival), int(request), history)


@dataclass(frozen=True, slots=True)
class LiveFilter:
    """What a reader sees. A project key is given in full or as it is shown (`phc_…last4`)."""

    event: str | None = None
    distinct_id: str | None = None
    api_key: str | None = None
    text: str | None = None
    """A part of the event's bytes; of a request, of its path, query, answer or error. The case of
    ASCII letters is ignored.
    """
    problems: bool = False
    """Only conflicts; of requests those that were rejected or reset, or have a conflict or an
    event that was not ingested.
    """

    def of_events(self) -> tuple[str, list[object]]:
        """The condition over `events`, with its parameters."""
        wanted = {"event = ?": self.event, "distinct_id = ?": self.distinct_id, **self._of_both()}
        if self.text:
            wanted["CAST(raw AS TEXT) LIKE ? ESCAPE '!'"] = like_pattern(self.text[:TEXT])
        if self.problems:
            wanted["kind = ?"] = ArrivalKind.CONFLICT
        return where(wanted)

    def of_requests(self, after: int, last: int) -> tuple[str, list[object]]:
        """The condition over `requests`, with its parameters; their events are searched among the
        arrivals up to `last`.
        """
        wanted = self._of_both()
        if self.text:
            searched = "path || '?' || query || ' ' || answer || ' ' || ifnull(error, '')"
            wanted[f"{searched} LIKE ? ESCAPE '!'"] = like_pattern(self.text[:TEXT])
        condition, parameters = where(wanted)
        held, more = where({"event = ?": self.event, "distinct_id = ?": self.distinct_id})
        if more:
            # S608: the conditions are constants, their values have placeholders.
            condition += f""" AND id IN (
                SELECT request FROM events WHERE id > ? AND id <= ? AND {held}
            )"""  # noqa: S608
            parameters += [max(after, last - REACH), last, *more]
        return (f"{condition} AND {_PROBLEM}" if self.problems else condition), parameters

    def _of_both(self) -> dict[str, str | None]:
        if self.api_key is None or "…" not in self.api_key:
            return {"api_key = ?": self.api_key}
        return {
            "api_key LIKE ? ESCAPE '!'": like_pattern(self.api_key.rpartition("…")[2][:TEXT])[:-1]
        }


@dataclass(frozen=True, slots=True)
class NewestItems(Generic[Shown]):
    """The newest matches, oldest first, and the number of omitted ones before them."""

    shown: list[Shown]
    omitted: int


@dataclass(frozen=True, slots=True)
class LiveUpdate:
    """The arrivals since a position, and the position after them."""

    place: LivePosition
    reset: bool
    """The reader's position is in a history that was deleted, or of another process."""
    events: NewestItems[StoredEvent]
    requests: NewestItems[StoredRequest]


def read_update(store: Store, view: LiveFilter, place: LivePosition, limit: int) -> LiveUpdate:
    """The arrivals after `place` that match `view`: at most `limit` events and as many requests."""
    history = _history_id(store)
    end = LivePosition(_newest(store, "events"), _newest(store, "requests"), history)
    reset = (
        place.history not in ("", history)
        or place.arrival > end.arrival
        or place.request > end.request
    )
    start = LivePosition() if reset else place
    events = _matching(store, _ARRIVED, view.of_events(), start.arrival, end.arrival)
    requests = _matching(
        store, _REQUESTED, view.of_requests(start.arrival, end.arrival), start.request, end.request
    )
    return LiveUpdate(
        end,
        reset,
        _newest_items(events, limit, lambda number: _shorten(store.arrival(number))),
        _newest_items(requests, limit, lambda number: _shorten_request(store.request(number))),
    )


def _history_id(store: Store) -> str:
    """Identifies a history, which `clear` ends: a digest of the time of its first request."""
    rows = store.select("SELECT received_at FROM requests ORDER BY id LIMIT 1", [])
    return hashlib.sha256(rows[0][0].encode()).hexdigest()[:12] if rows else ""


def _newest(store: Store, table: str) -> int:
    # S608: the table is one of two, which the callers above name.
    return int(store.select(f"SELECT coalesce(max(id), 0) FROM {table}", [])[0][0])  # noqa: S608


def _matching(
    store: Store, statement: str, wanted: tuple[str, list[object]], after: int, last: int
) -> list[int]:
    condition, parameters = wanted
    rows = store.select(
        f"{statement} AND {condition} ORDER BY id", [max(after, last - REACH), last, *parameters]
    )
    return [number for (number,) in rows]


def _newest_items(
    numbers: list[int], limit: int, read: Callable[[int], Shown]
) -> NewestItems[Shown]:
    chosen = numbers[-limit:]
    return NewestItems([read(number) for number in chosen], len(numbers) - len(chosen))


def _shorten(event: StoredEvent) -> StoredEvent:
    size = len(event.raw) + len(event.person_properties or "")
    return (
        event
        if size <= LARGE
        else replace(event, raw=b"", properties="null", person_properties=None)
    )


def _shorten_request(request: StoredRequest) -> StoredRequest:
    """Without the bytes of events not ingested, if they are many; index and reason stay."""
    if sum(len(event.raw) for event in request.not_ingested) <= LARGE:
        return request
    return replace(
        request, not_ingested=[event._replace(raw=b"") for event in request.not_ingested[:MANY]]
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


@dataclass(frozen=True, slots=True)
class Rates:
    """Counts by second: the first is that of the second `start` (since 1970), each next one that
    of `step` seconds later.
    """

    start: int
    events: list[int]
    """Arrivals of events, repeats included."""
    conflicts: list[int]
    refused: list[int]
    """Requests that were answered 4xx or 5xx."""
    step: int = 1


def count_rates(store: Store, now: float, seconds: int) -> Rates:
    """The counts of the last `seconds` seconds until `now`, wall-clock seconds, whose own second
    is the last.
    """
    start = int(now) - seconds + 1
    figures = Rates(start, [0] * seconds, [0] * seconds, [0] * seconds)
    since, earlier = (
        format_time(datetime.fromtimestamp(second, UTC)) for second in (start, start - SLOW)
    )
    for second, events, conflicts, refused in store.select(
        _BY_SECOND, [_first_since(store, earlier), since]
    ):
        place = int(datetime.fromisoformat(f"{second}+00:00").timestamp()) - start
        if place < seconds:
            figures.events[place] = events
            figures.conflicts[place] = conflicts
            figures.refused[place] = refused
    return figures


def _first_since(store: Store, since: str) -> int:
    """The number of the first request at `since` or later; one past the last if there is none."""
    low = 1
    high = 1 + int(store.select("SELECT coalesce(max(id), 0) FROM requests", [])[0][0])
    while low < high:
        middle = (low + high) // 2
        if (
            store.select(
                "SELECT received_at FROM requests WHERE id >= ? ORDER BY id LIMIT 1", [middle]
            )[0][0]
            < since
        ):
            low = middle + 1
        else:
            high = middle
    return low
