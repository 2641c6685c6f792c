"""The management API over HTTP: routes made of the contract's table, and nothing below `/api/` that answers in another form.

A call is one piece of work on the store's thread, from its key to what its handler does, and so one transaction: it happens as a whole, or
it didn't. Requests leave no record: they would be among those for events, and carry what is secret.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from forwarder.contract.endpoints import ENDPOINTS, GET_PROJECT, Endpoint, Method
from forwarder.contract.errors import ErrorType
from forwarder.sandbox.answers import Answer, Refusal, management_error
from forwarder.sandbox.arrivals import Arrivals
from forwarder.sandbox.bodies import answer_early, read_body
from forwarder.sandbox.management.call import AsyncHandler, Handler, Listing, ManagementError, Result, not_found
from forwarder.sandbox.management.letting_in import Asked, let_in
from forwarder.sandbox.management.pages import bounds_of, enveloped
from forwarder.sandbox.management.validation import LARGEST_BODY, Sent
from forwarder.sandbox.management.wiring import HANDLERS
from forwarder.sandbox.store import Store

T = TypeVar("T")
PREFIX: Final = "/api"
_ANY: Final = "*"
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """How calls are answered: at what time (wall clock, in seconds), and as the real service or by the contract."""

    now: Callable[[], float]
    strict: bool


class Management:
    """The endpoints of the management API."""

    def __init__(self, arrivals: Arrivals, waiting: Mapping[Endpoint[Any, Any], AsyncHandler], terms: Terms) -> None:
        self._arrivals = arrivals
        self._waiting = waiting
        self._terms = terms

    def routes(self, others: Mapping[str, Iterable[str]]) -> list[web.AbstractRouteDef]:
        """The endpoints, for an application that has served `others`, paths with their methods, before."""
        served = [web.route(_ANY, path, partial(self._serve, endpoints)) for path, endpoints in _fixed_first(_by_path())]
        wrong = [web.route(_ANY, path, partial(_refuse_method, methods)) for path, methods in others.items() if path.startswith(PREFIX)]
        return [*served, *wrong, *(web.route(_ANY, path, _nowhere) for path in (PREFIX, PREFIX + "/{rest:(?s:.*)}"))]

    async def _serve(self, endpoints: Mapping[str, Endpoint[Any, Any]], request: web.Request) -> web.Response:
        endpoint = endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            return await _refuse_method(endpoints, request)
        sent = await _sent(request)
        response = (await self._answer(self._asked(endpoint, request, sent), request)).response()
        return await answer_early(request, response) if sent.content is None else response

    def _asked(self, endpoint: Endpoint[Any, Any], request: web.Request, sent: Sent) -> Asked:
        authorization = request.headers.get("Authorization", "")
        return Asked(endpoint, authorization, request.match_info, bounds_of(request.query), sent, self._now(), self._terms.strict)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._terms.now(), UTC)

    async def _answer(self, asked: Asked, request: web.Request) -> Answer:
        try:
            result = await self._result(asked)
        except ManagementError as error:
            return management_error(error)
        except Exception:
            _LOG.exception("%s failed", asked.endpoint.name)
            return management_error(ManagementError(500, ErrorType.SERVER, "error", "The sandbox failed; its log says why."))
        if isinstance(result, Listing):
            url = f"{request.scheme}://{request.host}{request.rel_url.raw_path}"
            result = enveloped(result, asked.page, url, request.query.items())
        return Answer(asked.endpoint.status, "" if result is None else json.dumps(result))

    async def _result(self, asked: Asked) -> Result:
        if (waiting := self._waiting.get(asked.endpoint)) is not None:
            return await waiting(partial(self._run, asked))
        result: Result = await self._run(asked, HANDLERS[asked.endpoint])
        return result

    async def _run(self, asked: Asked, handler: Handler) -> Any:
        """Let the call in and run its handler. Whether a project has group types is known once what arrived has had its effects."""

        def work(store: Store) -> Any:
            return handler(let_in(replace(asked, now=self._now()), store.connection))

        return await (self._arrivals.ask(work) if asked.endpoint is GET_PROJECT else self._arrivals.run(work))


def _by_path() -> dict[str, dict[str, Endpoint[Any, Any]]]:
    """The endpoints by path, with and without the slash at its end, and method."""
    table: dict[str, dict[str, Endpoint[Any, Any]]] = {}
    for endpoint in ENDPOINTS:
        for path in (endpoint.path, endpoint.path.removesuffix("/")):
            table.setdefault(path, {})[str(endpoint.method)] = endpoint
    return table


def _fixed_first(table: Mapping[str, T]) -> list[tuple[str, T]]:
    """In the order in which paths are to be tried: `invites/bulk` before `invites/{id}`."""
    return sorted(table.items(), key=lambda entry: entry[0].count("{"))


async def _sent(request: web.Request) -> Sent:
    """What came as a body. Cancellation ends the reading."""
    content_type, encoding = request.headers.get("Content-Type", ""), request.headers.get("Content-Encoding", "")
    try:
        content = await read_body(request, LARGEST_BODY + 1)
    except Refusal as refusal:
        return Sent(None) if refusal.status == 413 else Sent(cut_off=True)
    return Sent(content, content_type.partition(";")[0].strip(), encoding.strip())


async def _refuse_method(methods: Iterable[str], request: web.Request) -> web.Response:
    """There is something at this path, for other methods."""
    allowed = {*methods, *(("HEAD",) if Method.GET in methods else ())}
    detail = f"{request.method} is not allowed here."
    response = management_error(ManagementError(405, ErrorType.INVALID_REQUEST, "method_not_allowed", detail)).response()
    response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


async def _nowhere(_request: web.Request) -> web.Response:
    """There is nothing at this path."""
    return management_error(not_found()).response()
