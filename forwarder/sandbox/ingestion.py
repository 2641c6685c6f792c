"""The service's endpoints over HTTP, from events to flags: reads a body, never more than the limit, and hands it to whoever answers.

Each path is served with and without the slash at its end and never redirected: a redirect breaks some SDKs (wire facts: "What SDKs send").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from aiohttp import web

from forwarder.sandbox.ai import AI_PATH, take_ai
from forwarder.sandbox.answers import Answer, Refusal
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.bodies import answer_early, read_body
from forwarder.sandbox.cors import headers_for, preflight
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.flags import DECIDE, DEFINITIONS, FLAGS, LISTED, define, evaluate, evaluate_nobody, list_definitions, payload_of_flag
from forwarder.sandbox.recording import Rules
from forwarder.sandbox.remote_config import LIST_PATHS, configure, configure_by_script, list_nothing, no_bundle
from forwarder.sandbox.store import Store
from forwarder.sandbox.taking import take, take_replay
from forwarder.sandbox.v1 import V1_PATH, refuse, take_v1

EVENT_PATHS: Final = ("/batch", "/capture", "/e", "/i/v0/e", "/track", "/engage", "/i/v0/ai/batch")

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
    LISTED: list_definitions,
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


def asked(*, strict: bool) -> dict[str, Taking]:
    """What GET is served for: by the contract (interface document, area B) `/decide` takes POST only, the real service answers both."""
    return {path: taking for path, taking in ASKED.items() if strict or path != DECIDE}


def served_methods(*, strict: bool) -> dict[str, list[str]]:
    """The paths with the methods that each is served for, with and without the slash at its end."""
    methods: dict[str, list[str]] = {}
    for method, paths in (("POST", POSTED), ("GET", asked(strict=strict))):
        for path in paths:
            for slash in ("", "/"):
                methods.setdefault(path + slash, ["OPTIONS"]).append(method)
    return methods


class Ingestion:
    """The endpoints that take events and evaluate flags. `now` is wall-clock time in seconds."""

    def __init__(self, arrivals: Arrivals, rules: Rules, now: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._rules = rules
        self._now = now

    def routes(self) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application."""
        posted = [web.post(path + slash, partial(self._serve, taking)) for path, taking in POSTED.items() for slash in ("", "/")]
        paths = asked(strict=self._rules.strict)
        gotten = [web.get(path + slash, partial(self._serve, taking)) for path, taking in paths.items() for slash in ("", "/")]
        files = [web.get(path, partial(self._serve, taking)) for path, taking in SCRIPTS.items()]
        preflights = [web.options(path + slash, preflight) for path in {**POSTED, **paths} for slash in ("", "/")]
        return [*posted, *gotten, *files, *preflights]

    async def _serve(self, taking: Taking, request: web.Request) -> web.Response:
        at = self._now()
        received = _received(request, b"")
        limit = self._rules.max_replay if taking is take_replay else self._rules.max_body
        try:
            received = _received(request, await read_body(request, limit))
        except Refusal as refusal:
            reason = refusal
            answer = await self._arrivals.run(lambda store: refuse(received, at, reason, store))
            return await answer_early(request, _response(request, answer))
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
