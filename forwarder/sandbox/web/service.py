"""The service's own endpoints over HTTP, from events to flags: reads a body up to the limit and
passes it to the path's handler.

Each path is served with and without a trailing slash and never redirects: a redirect breaks some
SDKs (wire facts: "What SDKs send"). Pages of any origin can call these endpoints, as they can at
the real service (Fetch standard: "HTTP CORS protocol"); what the sandbox shows is not for other
sites' pages (`queries`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import web

from forwarder.sandbox.flags.endpoints import evaluate_flags, evaluate_without_user
from forwarder.sandbox.flags.forms import DECIDE, FLAGS
from forwarder.sandbox.flags.remote_config import (
    LIST_PATHS,
    serve_config,
    serve_config_script,
    serve_list,
    serve_no_bundle,
)
from forwarder.sandbox.flags.secret_endpoints import (
    DEFINITIONS,
    LEGACY_DEFINITIONS,
    flag_payload,
    list_flag_definitions,
    list_legacy_definitions,
)
from forwarder.sandbox.ingest.capture import AI_PATH, accept_ai_event, accept_events, accept_replay
from forwarder.sandbox.ingest.decoding import ReceivedRequest
from forwarder.sandbox.ingest.recording import (
    Exchange,
    IngestPolicy,
    RequestHandler,
    answer_request,
)
from forwarder.sandbox.ingest.v1 import V1_PATH, accept_v1, v1_rejection_response
from forwarder.sandbox.protocol.http import (
    RequestRejected,
    ServiceResponse,
    answer_early,
    read_body,
    rejection_response,
)
from forwarder.sandbox.store.thread import StoreThread

EVENT_PATHS: Final = ("/batch", "/capture", "/e", "/i/v0/e", "/track", "/engage", "/i/v0/ai/batch")
POST_HANDLERS: Final[dict[str, RequestHandler]] = {
    **dict.fromkeys(EVENT_PATHS, accept_events),
    V1_PATH: accept_v1,
    AI_PATH: accept_ai_event,
    "/s": accept_replay,
    DECIDE: evaluate_flags,
    FLAGS: evaluate_flags,
}
_GET_HANDLERS: Final[dict[str, RequestHandler]] = {
    DECIDE: evaluate_without_user,
    FLAGS: evaluate_without_user,
    **dict.fromkeys(DEFINITIONS, list_flag_definitions),
    LEGACY_DEFINITIONS: list_legacy_definitions,
    **dict.fromkeys(LIST_PATHS, serve_list),
    "/array/{token}/config": serve_config,
    "/api/projects/{project}/feature_flags/{key}/remote_config": flag_payload,
}
SCRIPT_HANDLERS: Final[dict[str, RequestHandler]] = {
    "/array/{token}/config.js": serve_config_script,
    "/array/{token}/array.js": serve_no_bundle,
    "/static/{name:.+}": serve_no_bundle,
}
"""Files: these have no trailing slash."""
_OF_PERSONS: Final = frozenset({DECIDE, FLAGS, *DEFINITIONS})
"""The paths whose handlers ask for persons and groups."""
_CORS_METHODS: Final = "GET, POST, OPTIONS"
_CORS_HEADERS: Final = "Authorization, Content-Encoding, Content-Type, X-Requested-With"
"""Request headers that are allowed if the preflight names none."""
_CORS_EXPOSED: Final = "ETag, Retry-After"
_MAX_AGE: Final = "86400"
"""Seconds for which a browser caches the preflight."""


class ServiceEndpoints:
    """The endpoints that accept events and evaluate flags. `now` is wall-clock time in seconds."""

    def __init__(self, thread: StoreThread, policy: IngestPolicy, now: Callable[[], float]) -> None:
        self._thread = thread
        self._policy = policy
        self._now = now
        self._instead: dict[int, ServiceResponse] = {}

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application: those of a path together, which aiohttp then keeps as
        one resource.
        """
        posted = [
            web.post(path + slash, partial(self.serve, handler))
            for path, handler in POST_HANDLERS.items()
            for slash in ("", "/")
        ]
        paths = get_handlers(strict=self._policy.strict)
        gotten = [
            web.get(path + slash, partial(self.serve, handler))
            for path, handler in paths.items()
            for slash in ("", "/")
        ]
        files = [
            web.get(path, partial(self.serve, handler)) for path, handler in SCRIPT_HANDLERS.items()
        ]
        preflights = [
            web.options(path + slash, preflight)
            for path in {**POST_HANDLERS, **paths}
            for slash in ("", "/")
        ]
        return [*sorted([*posted, *gotten, *files, *preflights], key=lambda route: route.path)]

    async def record(self, request: web.Request, answer: ServiceResponse) -> bool:
        """Keep a request that gets this answer without its endpoint; whether a part of its body is
        unread. Cancellation ends the wait.
        """
        at = self._now()
        body, rejection = await _read(request, self._policy.max_replay)
        await self._answer(lambda _exchange: (answer, None), request, body, at)
        return rejection is not None

    def answer_instead(self, request: web.Request, answer: ServiceResponse) -> None:
        """Have a request recorded and answered so, once its endpoint has done its work.
        `forget_instead` ends it.
        """
        self._instead[id(request)] = answer

    def forget_instead(self, request: web.Request) -> bool:
        """Whether no endpoint of these has recorded the answer of `answer_instead`."""
        return self._instead.pop(id(request), None) is not None

    async def serve(self, handler: RequestHandler, request: web.Request) -> web.Response:
        """Have a handler answer a request. Cancellation ends the wait for its body."""
        at = self._now()
        body, rejection = await _read(
            request, self._policy.max_replay if handler is accept_replay else self._policy.max_body
        )
        if rejection is not None:
            handler = _rejecting(rejection)
        if (instead := self._instead.pop(id(request), None)) is not None:
            handler = _answering(handler, instead)
        answer = await self._answer(handler, request, body, at)
        response = answer.response()
        response.headers.update(cors_headers(request))
        return (
            await answer_early(request, response)
            if rejection is not None and answer.status
            else response
        )

    async def _answer(
        self, handler: RequestHandler, request: web.Request, body: bytes, at: float
    ) -> ServiceResponse:
        received = _received(request, body)
        do = self._thread.ask if received.path in _OF_PERSONS else self._thread.run
        return await do(lambda store: answer_request(handler, received, at, self._policy, store))


async def _read(request: web.Request, limit: int) -> tuple[bytes, RequestRejected | None]:
    """The body, or why it could not be read to its end."""
    try:
        return await read_body(request, limit), None
    except RequestRejected as rejection:
        return b"", rejection


def _answering(handler: RequestHandler, instead: ServiceResponse) -> RequestHandler:
    """A handler that does what `handler` does and answers otherwise."""

    def handle(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
        try:
            answer, api_key = handler(exchange)
        except RequestRejected as rejection:
            answer = rejection_response(rejection)
            api_key = rejection.api_key
        return replace(instead, error=f"{instead.error}, instead of {answer.status}"), api_key

    return handle


def _rejecting(rejection: RequestRejected) -> RequestHandler:
    """The handler of a request whose body could not be read to its end."""

    def handle(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
        v1 = exchange.received.path == V1_PATH
        return (v1_rejection_response if v1 else rejection_response)(rejection), None

    return handle


def get_handlers(*, strict: bool) -> dict[str, RequestHandler]:
    """The handlers of GET: by the contract (interface document, area B) `/decide` accepts POST
    only, the real service answers both.
    """
    return {path: handler for path, handler in _GET_HANDLERS.items() if strict or path != DECIDE}


def served_methods(*, strict: bool) -> dict[str, list[str]]:
    """The methods of each path, with and without a trailing slash."""
    methods: dict[str, list[str]] = {}
    for method, paths in (("POST", POST_HANDLERS), ("GET", get_handlers(strict=strict))):
        for path in paths:
            for slash in ("", "/"):
                methods.setdefault(path + slash, ["OPTIONS"]).append(method)
    return methods


def _received(request: web.Request, body: bytes) -> ReceivedRequest:
    headers = {name.lower(): value for name, value in request.headers.items()}
    path, _, query = request.raw_path.encode("ascii", "backslashreplace").decode().partition("?")
    return ReceivedRequest(path, query, headers, body, request.method, request.remote or "")


def cors_headers(request: web.Request) -> dict[str, str]:
    """The headers with which a browser shows a response to the page; none for
    a request without Origin.
    """
    origin = request.headers.get("Origin")
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": _CORS_EXPOSED,
        "Vary": "Origin",
    }


async def preflight(request: web.Request) -> web.Response:
    """Answer a browser's preflight request."""
    wanted = request.headers.get("Access-Control-Request-Headers", _CORS_HEADERS)
    allowed = {
        "Access-Control-Allow-Methods": _CORS_METHODS,
        "Access-Control-Allow-Headers": wanted,
        "Access-Control-Max-Age": _MAX_AGE,
    }
    return web.Response(headers={**cors_headers(request), **allowed})
