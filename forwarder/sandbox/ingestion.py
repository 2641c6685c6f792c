"""The ingestion endpoints over HTTP: reads a body, never more than the limit, and hands it to `taking`.

Each path is served with and without the slash at its end and never redirected: a redirect breaks some SDKs (wire facts: "What SDKs send").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from aiohttp import ClientPayloadError, web

from forwarder.sandbox.answers import Answer, Refusal
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.store import Store
from forwarder.sandbox.taking import Rules, decide, refuse, take

EVENT_PATHS: Final = ("/batch", "/capture", "/e", "/i/v0/e", "/track", "/engage")
LINGER: Final = 5.0
"""Seconds for which the rest of a body that was refused is read and dropped."""

Taking: TypeAlias = Callable[[Received, float, Rules, Store], Answer]


class Ingestion:
    """The endpoints that take events and evaluate flags. `now` is wall-clock time in seconds."""

    def __init__(self, arrivals: Arrivals, rules: Rules, now: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._rules = rules
        self._now = now

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        served: dict[str, Taking] = {**dict.fromkeys(EVENT_PATHS, take), "/decide": decide}
        return [web.post(path + slash, partial(self._serve, taking)) for path, taking in served.items() for slash in ("", "/")]

    async def _serve(self, taking: Taking, request: web.Request) -> web.Response:
        at = self._now()
        received = _received(request, b"")
        try:
            received = _received(request, await _read(request, self._rules.max_body))
        except Refusal as refusal:
            reason = refusal
            answer = await self._arrivals.run(lambda store: refuse(received, at, reason, store))
            return await _answer_early(request, answer.response())
        answer = await self._arrivals.run(lambda store: taking(received, at, self._rules, store))
        return answer.response()


def _received(request: web.Request, body: bytes) -> Received:
    headers = {name.lower(): value for name, value in request.headers.items()}
    path, _, query = request.raw_path.encode("ascii", "backslashreplace").decode().partition("?")
    return Received(path, query, headers, body)


async def _read(request: web.Request, limit: int) -> bytes:
    """The body as it is on the wire. Raises `Refusal`: 413 as soon as it is not smaller than `limit`, 400 if its end never comes."""
    too_large = Refusal(413, f"the body is not smaller than {limit} bytes")
    if (request.content_length or 0) >= limit:
        raise too_large
    try:
        return await _joined(request, limit, too_large)
    except (ConnectionError, ClientPayloadError):
        raise Refusal(400, "the body was cut off") from None


async def _answer_early(request: web.Request, response: web.Response) -> web.Response:
    """Answer while the body is still coming, and let what comes of it go by: a connection closed too early would lose the answer."""
    await response.prepare(request)
    await response.write_eof()
    with suppress(TimeoutError, ConnectionError, ClientPayloadError):
        async with asyncio.timeout(LINGER):
            while await request.content.readany():
                continue
    return response


async def _joined(request: web.Request, limit: int, too_large: Refusal) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size >= limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)
