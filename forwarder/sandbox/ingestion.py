"""The service's endpoints over HTTP, from events to flags: reads a body, never more than the limit, and hands it to whoever answers.

Each path is served with and without the slash at its end and never redirected: a redirect breaks some SDKs (wire facts: "What SDKs send").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from aiohttp import ClientPayloadError, web

from forwarder.sandbox.ai import AI_PATH, take_ai
from forwarder.sandbox.answers import Answer, Refusal
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.cors import headers_for, preflight
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.flags import DECIDE, DEFINITIONS, FLAGS, define, evaluate, evaluate_nobody, payload_of_flag
from forwarder.sandbox.recording import Rules
from forwarder.sandbox.remote_config import LIST_PATHS, configure, configure_by_script, list_nothing, no_bundle
from forwarder.sandbox.store import Store
from forwarder.sandbox.taking import take, take_replay
from forwarder.sandbox.v1 import V1_PATH, refuse, take_v1

EVENT_PATHS: Final = ("/batch", "/capture", "/e", "/i/v0/e", "/track", "/engage", "/i/v0/ai/batch")
LINGER: Final = 5.0
"""Seconds for which the rest of a body that was refused is read and dropped."""

Taking: TypeAlias = Callable[[Received, float, Rules, Store], Answer]

POSTED: Final[dict[str, Taking]] = {
    **dict.fromkeys(EVENT_PATHS, take),
    V1_PATH: take_v1,
    AI_PATH: take_ai,
    "/s": take_replay,
    DECIDE: evaluate,
    FLAGS: evaluate,
}
ASKED: Final[dict[str, Taking]] = {
    DECIDE: evaluate_nobody,
    FLAGS: evaluate_nobody,
    **dict.fromkeys(DEFINITIONS, define),
    **dict.fromkeys(LIST_PATHS, list_nothing),
    "/array/{token}/config": configure,
    "/api/projects/{project}/feature_flags/{key}/remote_config": payload_of_flag,
}
SCRIPTS: Final[dict[str, Taking]] = {
    "/array/{token}/config.js": configure_by_script,
    "/array/{token}/array.js": no_bundle,
    "/static/{name:.+}": no_bundle,
}
"""Files: these have no slash at the end."""


class Ingestion:
    """The endpoints that take events and evaluate flags. `now` is wall-clock time in seconds."""

    def __init__(self, arrivals: Arrivals, rules: Rules, now: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._rules = rules
        self._now = now

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        posted = [web.post(path + slash, partial(self._serve, taking)) for path, taking in POSTED.items() for slash in ("", "/")]
        asked = [web.get(path + slash, partial(self._serve, taking)) for path, taking in ASKED.items() for slash in ("", "/")]
        files = [web.get(path, partial(self._serve, taking)) for path, taking in SCRIPTS.items()]
        paths = {**POSTED, **ASKED}
        return [*posted, *asked, *files, *(web.options(path + slash, preflight) for path in paths for slash in ("", "/"))]

    async def _serve(self, taking: Taking, request: web.Request) -> web.Response:
        at = self._now()
        received = _received(request, b"")
        try:
            received = _received(request, await _read(request, self._rules.max_body))
        except Refusal as refusal:
            reason = refusal
            answer = await self._arrivals.run(lambda store: refuse(received, at, reason, store))
            return await _answer_early(request, _response(request, answer))
        answer = await self._arrivals.run(lambda store: taking(received, at, self._rules, store))
        return _response(request, answer)


def _response(request: web.Request, answer: Answer) -> web.Response:
    response = answer.response()
    response.headers.update(headers_for(request))
    return response


def _received(request: web.Request, body: bytes) -> Received:
    headers = {name.lower(): value for name, value in request.headers.items()}
    path, _, query = request.raw_path.encode("ascii", "backslashreplace").decode().partition("?")
    return Received(path, query, headers, body, request.method)


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
