"""`/tap`: events as they pass, as lines of JSON, for as long as the client reads.

The stream fetches what its tap has collected (`telemetry.taps`), several times a second: a client
that reads slowly is fetched for less often, and one that takes nothing for `STALLED_SECONDS` is
disconnected.

Invariants: taps show what people do, so they answer the clients that `admin.tap`
permits, and no page of another site; there are at most `MAX_STREAMS` at once. Whatever
ends a stream closes its tap.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias

import msgspec
from aiohttp import web

from forwarder.core.errors import ForwarderError
from forwarder.core.proposals import proposed
from forwarder.core.taps import TapOutcome
from forwarder.pages.hosts import reject_other_sites
from forwarder.telemetry.taps import MAX_RATE, RATE, TapBatch, TapFilter, TapRequest

MAX_STREAMS: Final = 4
MAX_VALUES: Final = 20
"""Of a parameter."""
POLL_SECONDS: Final = 0.25
HEARTBEAT_SECONDS: Final = 1.0
"""Between two lines at most: one without events is empty."""
STALLED_SECONDS: Final = 30.0

TapPermission: TypeAlias = Literal["local", "any", "never"]
PollTap: TypeAlias = Callable[[TapRequest], TapBatch | Awaitable[TapBatch]]


def _local() -> str:
    return (
        "/tap shows the contents of events, so it answers clients on the daemon's own machine "
        f"only: run `{proposed('tap')}` there "
        "(`docker exec`, `kubectl exec`), or set `admin.tap` to `any`.\n"
    )


_HEADERS: Final = {
    "Content-Type": "application/x-ndjson",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class NotATapFilter(ForwarderError):
    """The query doesn't say which events are wanted."""

    code = "not_a_tap_filter"


class TapEndpoint:
    """Answers `/tap`."""

    def __init__(self, poll: PollTap, permission: TapPermission) -> None:
        self._poll = poll
        self._permission = permission
        self._streams = 0
        self._ending = False

    def add_to(self, application: web.Application) -> None:
        """Answer in this application; its shutdown ends all streams."""
        application.router.add_get("/tap", self._answer, allow_head=False)
        application.on_shutdown.append(self._end)

    async def _end(self, _: web.Application) -> None:
        self._ending = True

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Stream until the client leaves or the server ends. Cancellation closes the tap."""
        if self._permission == "never":
            raise web.HTTPForbidden(text="/tap is disabled (`admin.tap`).\n")
        if self._permission == "local" and (
            request.transport is None or not is_local(request.transport.get_extra_info("peername"))
        ):
            raise web.HTTPForbidden(text=_local())
        reject_other_sites(request)
        try:
            wanted = parse_filter(request)
        except NotATapFilter as error:
            raise web.HTTPBadRequest(text=f"{error.message}\n") from error
        if self._streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(
                text=f"There are {MAX_STREAMS} taps already: end one of them.\n"
            )
        self._streams += 1
        tap = secrets.token_hex(8)
        try:
            return await self._stream(request, TapRequest(tap, wanted))
        finally:
            self._streams -= 1
            await self._fetch(TapRequest(tap))

    async def _stream(self, request: web.Request, asked: TapRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        silent = 0.0
        try:
            while not self._ending:
                lines = encode_batch(await self._fetch(asked))
                silent += POLL_SECONDS
                if lines or silent >= HEARTBEAT_SECONDS:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await response.write(lines or b"\n")
                    silent = 0.0
                await asyncio.sleep(POLL_SECONDS)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _fetch(self, asked: TapRequest) -> TapBatch:
        batch = self._poll(asked)
        return await batch if inspect.isawaitable(batch) else batch


def parse_filter(request: web.Request) -> TapFilter:
    """The filter that the query describes. Raises `NotATapFilter`."""
    query = request.query
    unknown = set(query) - {"event", "key", "source", "outcome", "rate"}
    if unknown:
        raise NotATapFilter(f"unknown parameter: {min(unknown)!r}")
    try:
        outcomes = tuple(map(TapOutcome, query.getall("outcome", ())))
        rate = float(query.get("rate", RATE))
    except ValueError as error:
        raise NotATapFilter(
            f"{error}; an outcome is one of {', '.join(TapOutcome)}, a rate a number of events a "
            "second"
        ) from error
    if not 0 < rate <= MAX_RATE:
        raise NotATapFilter(f"the rate is above 0 and at most {MAX_RATE:g} events a second")
    events, keys, sources = (_values(query.getall(name, ())) for name in ("event", "key", "source"))
    return TapFilter(events, keys, sources, outcomes, rate)


def _values(given: Sequence[str]) -> tuple[str, ...]:
    if "" in given:
        raise NotATapFilter("a parameter is empty")
    if len(given) > MAX_VALUES:
        raise NotATapFilter(
            f"a parameter has {len(given)} values; at most {MAX_VALUES} are possible"
        )
    return tuple(given)


def encode_batch(batch: TapBatch) -> bytes:
    """A line for each event, then one with what isn't shown, if anything isn't."""
    lines = [bytes(event) for event in batch.events]
    if batch.skipped or batch.lost:
        lines.append(msgspec.json.encode({"skipped": batch.skipped, "lost": batch.lost}))
    return b"".join([line + b"\n" for line in lines])


def is_local(peer: object) -> bool:
    """Whether a peer's name, as the transport has it, is of this machine: it came over a Unix
    socket, or the loopback interface.
    """
    if not isinstance(peer, tuple):
        return True
    try:
        address = ip_address(peer[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
