"""Load for `forwarder generate`: the shop's crowd, encoded as SDKs send it, at a steady rate, over
a few connections.

Invariants: a request that is answered 503 is repeated with the same events once Retry-After is
over, and until then none is sent; a rate that can't be kept is not caught up with later. Latencies
are those of single requests, from the first byte sent to the whole answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from math import ceil, floor, inf, log
from typing import Final
from uuid import uuid4

import aiohttp
import msgspec

from forwarder.core.clock import Clock, retry_after, wait_for_event
from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError
from forwarder.core.tls import client_context
from forwarder.demo.traffic import ShopEvent, crowd

CONNECTIONS: Final = 8
LONGEST_INTERVAL: Final = 0.5
"""Seconds between two requests, at most, as SDKs flush: at low rates they hold
fewer events than `batch`.
"""
CATCH_UP: Final = 1.0
"""Seconds that the load may lag behind its rate and still catch up."""
RECONNECT: Final = 0.5
DEFAULT_PAUSE: Final = 1.0
"""Seconds before a request is repeated that was not answered, or with 503 that names no time."""
_FINE: Final = 0.02
"""Width of a class of latencies, relative to them."""


class TargetUnreachable(ForwarderError):
    """Not even the first request could be sent."""

    code = "target_unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What is sent. `rate` is events a second, `seconds` and `count` (events) end it, whichever
    comes first; None for no limit.
    """

    rate: float | None
    users: int
    batch: int
    seconds: float | None = None
    count: int | None = None
    seed: int

    def request_events(self) -> int:
        """Events in a request."""
        return (
            self.batch
            if self.rate is None
            else max(1, min(self.batch, ceil(self.rate * LONGEST_INTERVAL)))
        )


@dataclass(frozen=True, slots=True)
class LoadEndpoint:
    """Where it is sent: a URL to post to, or that of a Unix socket."""

    url: str
    api_key: str
    socket: str = ""
    context: ssl.SSLContext | None = None


class Latencies:
    """Counts of latencies in classes that are 2 % wide, however many there are."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one."""
        self._classes[floor(log(max(seconds, 1e-6)) / log(1 + _FINE))] += 1

    def percentile(self, share: float) -> float:
        """Seconds that this share of them don't exceed, to 2 %; 0 if there are none."""
        left = ceil(share * self._classes.total())
        for number in sorted(self._classes):
            left -= self._classes[number]
            if left <= 0:
                return float((1 + _FINE) ** (number + 1))
        return 0.0


@dataclass(slots=True)
class LoadFigures:
    """What came of the load so far, in events unless said otherwise."""

    sent: int = 0
    accepted: int = 0
    rejected: int = 0
    """In requests with a final answer other than 200."""
    unanswered: int = 0
    """In requests that were given up at the end."""
    requests: int = 0
    bytes: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """Requests by status, or by what failed."""
    latencies: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    """How long events were sent."""

    @property
    def rate(self) -> float:
        """Accepted events a second."""
        return self.accepted / self.seconds if self.seconds else 0.0


class Pace:
    """When the next request is due."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate = rate
        self._next = now

    def due(self, events: int, now: float) -> float:
        """The time at which a request of `events` is due; it counts as sent then."""
        if self._rate is None:
            return now
        when = max(self._next, now - CATCH_UP)
        self._next = when + events / self._rate
        return when


class LoadGenerator:
    """Sends the load; `figures` is how far it is."""

    def __init__(self, plan: LoadPlan, endpoint: LoadEndpoint, clock: Clock) -> None:
        self.figures = LoadFigures()
        self._plan = plan
        self._endpoint = endpoint
        self._clock = clock
        self._events = crowd(plan.users, plan.seed)
        self._left = plan.count
        self._paused_until = 0.0
        self._began = 0.0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Send nothing more; requests in flight are still answered."""
        self._stopping.set()

    async def run(self) -> None:
        """Send until the plan is fulfilled or `stop` is called. Raises `TargetUnreachable`.
        Cancelled, it drops requests in flight.
        """
        self._began = self._clock.monotonic()
        pace = Pace(self._plan.rate, self._began)
        connector = (
            aiohttp.UnixConnector(self._endpoint.socket) if self._endpoint.socket else self._tcp()
        )
        timeout = aiohttp.ClientTimeout(total=60, connect=5)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(CONNECTIONS):
                        group.create_task(self._send_all(session, pace))
            except* TargetUnreachable as errors:
                raise errors.exceptions[0] from None

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic() - self._began

    def _tcp(self) -> aiohttp.TCPConnector:
        tls = self._endpoint.context
        if tls is None and self._endpoint.url.startswith("https:"):
            tls = client_context()
        return aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls or True)

    async def _send_all(self, session: aiohttp.ClientSession, pace: Pace) -> None:
        while not self._stopping.is_set():
            wanted = self._reserve()
            if not wanted or not await self._until(pace.due(wanted, self._clock.monotonic())):
                return
            body = self._body(list(islice(self._events, wanted)))
            self.figures.sent += wanted
            await self._send(session, body, wanted)

    def _reserve(self) -> int:
        """How many events the next request holds; 0: all are sent."""
        wanted = self._plan.request_events()
        if self._left is not None:
            wanted = min(wanted, self._left)
            self._left -= wanted
        return wanted

    async def _send(self, session: aiohttp.ClientSession, body: bytes, events: int) -> None:
        """Post it until it has a final answer, or the load ends."""
        while True:
            if self._paused_until > self._clock.monotonic() and not await self._until(
                self._paused_until
            ):
                self.figures.unanswered += events
                return
            began = self._clock.monotonic()
            status, pause = await self._post(session, body)
            ended = self._clock.monotonic()
            self.figures.seconds = ended - self._began
            if status:
                self.figures.latencies.add(ended - began)
            if status == 200:
                self.figures.accepted += events
                return
            if status not in {0, 503}:
                self.figures.rejected += events
                return
            self._paused_until = max(self._paused_until, ended + pause)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, float]:
        """Status (0: no answer) and the seconds before a repeat. Raises `TargetUnreachable` if no
        request was ever answered.
        """
        figures = self.figures
        try:
            async with session.post(
                self._endpoint.url, data=body, headers={"Content-Type": "application/json"}
            ) as response:
                await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = error_text(error)
            if not figures.requests:
                self.stop()
                raise TargetUnreachable(what) from error
            figures.answers[what] += 1
            return 0, RECONNECT
        figures.requests += 1
        figures.bytes += len(body)
        figures.answers[str(response.status)] += 1
        pause = retry_after(response.headers.get("Retry-After"), self._clock.now())
        return response.status, DEFAULT_PAUSE if pause is None else pause

    async def _until(self, when: float) -> bool:
        """Wait until then; whether the load goes on."""
        now = self._clock.monotonic()
        end = self._began + (inf if self._plan.seconds is None else self._plan.seconds)
        if when > now:
            await wait_for_event(self._stopping, min(when, end) - now, self._clock)
        return not self._stopping.is_set() and self._clock.monotonic() < end

    def _body(self, events: list[ShopEvent]) -> bytes:
        now = datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds")
        return b'{"api_key":%b,"batch":[%b],"sent_at":"%b"}' % (
            msgspec.json.encode(self._endpoint.api_key),
            b",".join(encoded(events, now)),
            now.encode(),
        )


def encoded(events: list[ShopEvent], now: str) -> Iterator[bytes]:
    """Events as SDKs send them, each with a uuid of its own."""
    for event in events:
        stamps = {"uuid": str(uuid4()), "timestamp": now}
        yield msgspec.json.encode(
            {
                "event": event.event,
                "distinct_id": event.distinct_id,
                **stamps,
                "properties": event.properties,
            }
        )
