"""The management API over HTTP: routes from the contract's table, and errors in the API's form
everywhere below `/api/`.

A call is one unit of work on the store's thread, from its key to its handler, and so one
transaction: it happens as a whole or not at all. Requests leave no record: records are of
ingestion requests, and these carry secrets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from aiohttp import web

from forwarder.contract.endpoints import ENDPOINTS, GET_PROJECT, Endpoint, Method
from forwarder.contract.resources import LARGEST_PAGE, PAGE_SIZE, ErrorType, PageEnvelope
from forwarder.sandbox.manage.authorize import UncheckedCall, authorize
from forwarder.sandbox.manage.call import AsyncHandler, Handler, Listing, PageBounds, Result
from forwarder.sandbox.manage.validation import LARGEST_BODY, SentBody
from forwarder.sandbox.protocol.http import (
    ManagementError,
    RequestRejected,
    ServiceResponse,
    answer_early,
    management_error_response,
    not_found,
    read_body,
)
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.thread import StoreThread

T = TypeVar("T")
PREFIX: Final = "/api"
_ANY: Final = "*"
_LOG: Final = logging.getLogger(__name__)
_FARTHEST: Final = 10**18
"""Beyond any item, and still a number that the database accepts."""


class ManagementEndpoints:
    """The endpoints of the management API, each with a handler that runs on the store's thread, or
    an asynchronous one.

    `now` is wall-clock time in seconds; `strict`: answer as the real service does, instead of by
    the contract.
    """

    def __init__(
        self,
        thread: StoreThread,
        handlers: Mapping[Endpoint[Any, Any], Handler],
        waiting: Mapping[Endpoint[Any, Any], AsyncHandler],
        now: Callable[[], float],
        *,
        strict: bool,
    ) -> None:
        self._thread = thread
        self._handlers = handlers
        self._waiting = waiting
        self._wall_clock = now
        self._strict = strict

    def routes(self, others: Mapping[str, Iterable[str]]) -> list[web.AbstractRouteDef]:
        """The routes, for an application that already serves `others`, paths with their methods."""
        served = [
            web.route(_ANY, path, partial(self._serve, endpoints))
            for path, endpoints in _fixed_first(_by_path())
        ]
        wrong = [
            web.route(_ANY, path, partial(_reject_method, methods))
            for path, methods in others.items()
            if path.startswith(PREFIX)
        ]
        return [
            *served,
            *wrong,
            *(web.route(_ANY, path, _reject_path) for path in (PREFIX, PREFIX + "/{rest:(?s:.*)}")),
        ]

    async def _serve(
        self, endpoints: Mapping[str, Endpoint[Any, Any]], request: web.Request
    ) -> web.Response:
        endpoint = endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            return await _reject_method(endpoints, request)
        sent = await _read_sent(request)
        answer = await self._answer(self._unchecked(endpoint, request, sent), request)
        response = answer.response()
        return await answer_early(request, response) if sent.content is None else response

    def _unchecked(
        self, endpoint: Endpoint[Any, Any], request: web.Request, sent: SentBody
    ) -> UncheckedCall:
        authorization = request.headers.get("Authorization", "")
        return UncheckedCall(
            endpoint,
            authorization,
            request.match_info,
            page_bounds(request.query),
            sent,
            self._now(),
            self._strict,
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock(), UTC)

    async def _answer(self, call: UncheckedCall, request: web.Request) -> ServiceResponse:
        try:
            result = await self._result(call)
        except ManagementError as error:
            return management_error_response(error)
        except Exception:
            _LOG.exception("%s failed", call.endpoint.name)
            return management_error_response(
                ManagementError(
                    500, ErrorType.SERVER, "error", "The sandbox failed; its log says why."
                )
            )
        if isinstance(result, Listing):
            url = f"{request.scheme}://{request.host}{request.rel_url.raw_path}"
            result = page_envelope(result, call.page, url, request.query.items())
        return ServiceResponse(call.endpoint.status, "" if result is None else json.dumps(result))

    async def _result(self, call: UncheckedCall) -> Result:
        if (waiting := self._waiting.get(call.endpoint)) is not None:
            return await waiting(partial(self._run, call))
        result: Result = await self._run(call, self._handlers[call.endpoint])
        return result

    async def _run(self, call: UncheckedCall, handler: Handler) -> Any:
        """Authorize the call and run its handler. Group types of a project are known once all
        arrivals are folded in.
        """

        def work(store: Store) -> Any:
            return handler(authorize(replace(call, now=self._now()), store.connection))

        return await (
            self._thread.ask(work) if call.endpoint is GET_PROJECT else self._thread.run(work)
        )


def _by_path() -> dict[str, dict[str, Endpoint[Any, Any]]]:
    """The endpoints by path, with and without the slash at its end, and method."""
    table: dict[str, dict[str, Endpoint[Any, Any]]] = {}
    for endpoint in ENDPOINTS:
        for path in (endpoint.path, endpoint.path.removesuffix("/")):
            table.setdefault(path, {})[str(endpoint.method)] = endpoint
    return table


def _fixed_first(table: Mapping[str, T]) -> list[tuple[str, T]]:
    """In the order of matching: `invites/bulk` before `invites/{id}`."""
    return sorted(table.items(), key=lambda entry: entry[0].count("{"))


async def _read_sent(request: web.Request) -> SentBody:
    """The body, as far as it could be read. Cancellation ends the reading."""
    content_type = request.headers.get("Content-Type", "")
    encoding = request.headers.get("Content-Encoding", "")
    try:
        content = await read_body(request, LARGEST_BODY + 1)
    except RequestRejected as rejection:
        return SentBody(None) if rejection.status == 413 else SentBody(cut_off=True)
    return SentBody(content, content_type.partition(";")[0].strip(), encoding.strip())


async def _reject_method(methods: Iterable[str], request: web.Request) -> web.Response:
    """The path exists for other methods."""
    allowed = {*methods, *(("HEAD",) if Method.GET in methods else ())}
    detail = f"{request.method} is not allowed here."
    error = ManagementError(405, ErrorType.INVALID_REQUEST, "method_not_allowed", detail)
    response = management_error_response(error).response()
    response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


async def _reject_path(_request: web.Request) -> web.Response:
    """The path does not exist."""
    return management_error_response(not_found()).response()


def page_bounds(query: Mapping[str, str]) -> PageBounds:
    """Limit and offset of a query; what isn't a number that makes sense
    counts as if it weren't there.
    """
    limit = _number(query.get("limit"))
    offset = _number(query.get("offset"))
    return PageBounds(min(limit or PAGE_SIZE, LARGEST_PAGE), offset or 0)


def page_envelope(
    listing: Listing, page: PageBounds, url: str, query: Iterable[tuple[str, str]]
) -> PageEnvelope[Mapping[str, Any]]:
    """A page as it is answered. `url` is the request's, without `query`, whose other parameters
    the links keep.
    """
    others = [(name, value) for name, value in query if name not in ("limit", "offset")]

    def link(offset: int) -> str:
        query = [*others, ("limit", page.limit), ("offset", offset)]
        return f"{url}?{urlencode(query, errors='replace')}"

    after = page.offset + page.limit
    before = max(0, page.offset - page.limit)
    return PageEnvelope(
        count=listing.count,
        next=link(after) if after < listing.count else None,
        previous=link(before) if page.offset > 0 else None,
        results=list(listing.items),
    )


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= len(str(_FARTHEST)) - 1 else _FARTHEST
