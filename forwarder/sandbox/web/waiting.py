"""`GET /sandbox/wait`: an answer as soon as enough events are there, so that a test neither polls
nor sleeps.

The filters are those of `/sandbox/events`. A commit wakes those who wait; after a query, a wait
leaves the store's thread to others for a multiple of the time that the query took, so that waiting
does not delay ingestion. Time is real time, not that of the sandbox's clock: a test that moves the
clock waits no longer.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from forwarder.core.secrets import mask_secrets
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import EventFilter, ListingPage, StoredEvent
from forwarder.sandbox.store.thread import StoreThread
from forwarder.sandbox.web.queries import event_filter, listing_page, show_event
from forwarder.telemetry.readable import plural

TIMEOUT: Final = 10.0
MAX_TIMEOUT: Final = 300.0
MAX_COUNT: Final = 1_000_000_000
WAITERS: Final = 256
"""Requests that wait at the same time; further ones get 503."""
SHARE: Final = 4
"""After a query a wait pauses this many times the query's time."""
GONE: Final = 1.0
"""Seconds within which a closed connection is noticed."""
NAMES: Final = 10
"""Names of events that the answer after a timeout lists at most."""
_FILTERS: Final = (
    *(
        "event",
        "distinct_id",
        "uuid",
        "since",
        "until",
        "historical",
        "request",
        "import",
        "arrivals",
    ),
    *("person", "group_type", "group_key", "feature", "survey_id", "q"),
)
"""The filters that the answer after a timeout repeats: all but the project key."""


@dataclass(frozen=True, slots=True)
class ArrivalReport:
    """What the sandbox has besides the events that are waited for: it says
    why a test waits in vain.
    """

    names: tuple[tuple[str, int], ...]
    """The most frequent names of events, with their numbers."""
    events: int
    not_ingested: int
    rejected: int
    last_rejected: tuple[str, int, str] | None
    """Path, status and answer of the last rejected request."""

    def sentences(self) -> str:
        """In words."""
        if not self.events:
            texts = ["The sandbox has no events."]
        else:
            named = ", ".join(f"{name} {count}" for name, count in self.names)
            more = ", …" if sum(count for _, count in self.names) < self.events else ""
            texts = [f"The sandbox has {plural(self.events, 'event')}: {named}{more}."]
        if self.not_ingested:
            texts.append(
                f"{plural(self.not_ingested, 'event')} in accepted requests "
                f"{_was(self.not_ingested)} not ingested."
            )
        if self.last_rejected is not None:
            path, status, answer = self.last_rejected
            last = (
                f"{mask_secrets(path)} was answered {status}"
                if status
                else f"the connection of {mask_secrets(path)} was reset"
            )
            reason = f" ({mask_secrets(answer.strip())[:200]})" if answer.strip() else ""
            texts.append(
                f"{plural(self.rejected, 'request')} {_was(self.rejected)} rejected; the last "
                f"one: {last}{reason}."
            )
        return " ".join(texts)


def read_report(store: Store) -> ArrivalReport:
    """What there is, of all projects."""
    names = store.select(
        (
            "SELECT event, count(*) FROM events WHERE kind = 'new' GROUP BY event ORDER BY 2 "
            "DESC, 1 LIMIT ?"
        ),
        [NAMES],
    )
    rejected = "FROM requests WHERE status >= 400 OR status = 0"
    [(count,)] = store.select(f"SELECT count(*) {rejected}", [])
    last = store.select(f"SELECT path, status, answer {rejected} ORDER BY id DESC LIMIT 1", [])
    figures = store.figures()
    return ArrivalReport(
        tuple(names), figures.events, figures.not_ingested, count, last[0] if last else None
    )


@dataclass(frozen=True, slots=True)
class AwaitedEvents:
    """What a request waits for."""

    wanted: EventFilter
    page: ListingPage
    count: int
    timeout: float
    filters: dict[str, str]
    """The filters as they were given."""

    @classmethod
    def parse(cls, request: web.Request) -> AwaitedEvents:
        """Raises 400 if a number is none: a test would otherwise wait for something else."""
        count = _number(request, "count", "1")
        if not count.is_integer() or count > MAX_COUNT:
            raise web.HTTPBadRequest(text=f"count is not a whole number up to {MAX_COUNT}\n")
        timeout = min(_number(request, "timeout", str(TIMEOUT)), MAX_TIMEOUT)
        filters = {name: request.query[name] for name in _FILTERS if name in request.query}
        return cls(event_filter(request), listing_page(request), int(count), timeout, filters)

    def shortage(self, count: int) -> str:
        """That there are only `count`, in words."""
        criteria = " and ".join(f"{name} {value!r}" for name, value in self.filters.items())
        if self.wanted.api_key is not None:
            criteria += f"{' and ' if criteria else ''}the given api_key"
        which = f" with {criteria}" if criteria else ""
        return f"{count} of {plural(self.count, 'event')}{which} arrived within {self.timeout:g} s."


class WaitingEndpoint:
    """The endpoint, and the requests that wait at it."""

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread
        self._closing = asyncio.Event()
        self._waiters = 0

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoint, for an application."""
        return [web.get("/sandbox/wait", self.wait, allow_head=False)]

    async def close(self, _application: web.Application) -> None:
        """End every wait, so that the shutdown waits for none."""
        self._closing.set()

    async def wait(self, request: web.Request) -> web.Response:
        """GET /sandbox/wait: 200 with the events once `count` of them are there, 408 after
        `timeout` seconds. Cancellation ends it.
        """
        awaited = AwaitedEvents.parse(request)
        if self._waiters >= WAITERS:
            raise web.HTTPServiceUnavailable(text=f"{WAITERS} requests wait already\n")
        self._waiters += 1
        try:
            count, events = await self._await(request, awaited)
        finally:
            self._waiters -= 1
        if count >= awaited.count:
            return _answer(200, count, events)
        if self._closing.is_set():
            raise web.HTTPServiceUnavailable(text="the sandbox is stopping\n")
        report = await self._thread.run(read_report)
        detail = f"{awaited.shortage(count)} {report.sentences()}"
        return _answer(
            408, count, events, expected=awaited.count, detail=detail, events=dict(report.names)
        )

    async def _await(
        self, request: web.Request, awaited: AwaitedEvents
    ) -> tuple[int, list[StoredEvent]]:
        """The number of events and a page of them, once it is the awaited one, or the
        time is up.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + awaited.timeout
        while True:
            last = now() >= deadline or self._ended(request)
            commit = self._thread.next_commit
            began = now()
            count, events = await self._thread.ask(
                lambda store: store.events(awaited.wanted, awaited.page)
            )
            if count >= awaited.count or last:
                return count, events
            await self._until(self._closing, min(deadline, now() + (now() - began) * SHARE))
            while not (commit.is_set() or now() >= deadline or self._ended(request)):
                await self._until(commit, min(deadline, now() + GONE))

    async def _until(self, event: asyncio.Event, moment: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(moment):
                await event.wait()

    def _ended(self, request: web.Request) -> bool:
        """Whether the client has disconnected, or the sandbox is closing."""
        return self._closing.is_set() or request.transport is None or request.transport.is_closing()


def _answer(status: int, count: int, stored: list[StoredEvent], **more: object) -> web.Response:
    begin = json.dumps({"count": count, **more})[:-1]
    results = ", ".join(map(show_event, stored))
    return web.Response(
        status=status, text=f'{begin}, "results": [{results}]}}', content_type="application/json"
    )


def _number(request: web.Request, name: str, default: str) -> float:
    text = request.query.get(name, default).strip()
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and number >= 0):
        raise web.HTTPBadRequest(text=f"{name} is not a number from 0 on\n")
    return number


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
