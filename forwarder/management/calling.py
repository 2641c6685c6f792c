"""One call of an endpoint from beginning to end: validate, send, retry, read.

Invariants: `timeout` bounds a whole call, its attempts and the waits between them; an error is
raised outside of any handler, so that it refers to no exception of a library, which would have the
request and its key.

A request is repeated only where that cannot do anything twice. Reading changes nothing, so every
temporary failure is retried. Any other request is retried only if the service rejected it for
being too early and said when to come back.

A 2xx response has a resource, a page of a list, or nothing; contract and
service can differ in which.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, cast
from urllib.parse import urlencode

from forwarder.contract.endpoints import Endpoint, Method
from forwarder.contract.resources import PageEnvelope
from forwarder.core.clock import Backoff, Clock
from forwarder.management.addresses import path_of
from forwarder.management.error_body import is_web_page
from forwarder.management.errors import (
    ApiError,
    CallContext,
    InvalidCall,
    connection_error,
    status_error,
    timeout_error,
    unreadable_error,
)
from forwarder.management.transport import (
    ConnectionFailure,
    ConnectionSettings,
    HttpReply,
    HttpRequest,
    Transport,
)

ATTEMPTS: Final = 4
INITIAL_WAIT: Final = 0.5
MAXIMUM_WAIT: Final = 8.0
"""Seconds: bounds of the first wait and of any."""
BACKOFF: Final = Backoff(INITIAL_WAIT, MAXIMUM_WAIT)
_TEMPORARY: Final = frozenset({408, 429})


class EndpointCaller:
    """Makes calls. Nothing is open before the first; `close` closes all."""

    def __init__(
        self, access: ConnectionSettings, timeout: float, clock: Clock, backoff: Backoff = BACKOFF
    ) -> None:
        self._access = access
        self._timeout = timeout
        self._clock = clock
        self._backoff = backoff
        self._transport = Transport(access)
        self._closed = False

    @property
    def base(self) -> str:
        """The base address."""
        return self._access.base

    async def call(
        self,
        endpoint: Endpoint[Any, Any],
        ids: Mapping[str, object],
        body: Any = None,
        query: Mapping[str, int] | None = None,
    ) -> Any:
        """What the endpoint answers. Raises `ApiError`. Cancellation drops the connection: what
        was sent may have been done.
        """
        if self._closed:
            raise InvalidCall(
                f"{endpoint.name}: the client is closed", hint="Make the call inside its `with`."
            )
        target = path_of(endpoint, ids) + (f"?{urlencode(query)}" if query else "")
        request = HttpRequest(str(endpoint.method), target, _encoded(endpoint, body))
        context = CallContext(endpoint, dict(ids), self.base, self._access.api_key)
        reply, error = await self._outcome(context, request)
        if error is not None:
            raise error
        return read_value(context, reply)

    async def close(self) -> None:
        """Close all connections; calls are rejected from then on. Cancellation leaves the closing
        to the garbage collector.
        """
        self._closed = True
        await self._transport.close()

    async def _outcome(
        self, context: CallContext, request: HttpRequest
    ) -> tuple[HttpReply, ApiError | None]:
        """The answer, or the error to raise (with a reply that says nothing)."""
        attempts = _Attempts(context)
        try:
            async with within(self._timeout, self._clock):
                await self._attempts(attempts, request)
        except TimeoutError:
            return HttpReply(0), timeout_error(context, self._timeout, attempts.made, attempts.last)
        outcome = attempts.outcome
        if isinstance(outcome, ConnectionFailure):
            return HttpReply(0), connection_error(context, outcome, attempts.made)
        return outcome, None if 200 <= outcome.status < 300 else status_error(
            context, outcome, attempts.made
        )

    async def _attempts(self, attempts: _Attempts, request: HttpRequest) -> None:
        end = self._clock.monotonic() + self._timeout
        while True:
            attempts.made += 1
            attempts.outcome = await self._transport.ask(request, self._clock.now())
            left = end - self._clock.monotonic()
            wait = wait_before_next(
                attempts.context.endpoint.method,
                attempts.outcome,
                attempts.made,
                left,
                self._backoff,
            )
            if wait is None or self._closed:
                return
            attempts.last = _summary(attempts.outcome)
            await self._clock.sleep(wait)
            if self._closed:
                return


class _Attempts:
    """The attempts of one call so far."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.made = 0
        self.last = ""
        """The result of the previous attempt, in short."""
        self.outcome: HttpReply | ConnectionFailure = HttpReply(0)


@asynccontextmanager
async def within(seconds: float, clock: Clock) -> AsyncIterator[None]:
    """As `asyncio.timeout`, on `clock`. Cancellation goes through."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        timer = clock.call_later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()


def _summary(outcome: HttpReply | ConnectionFailure) -> str:
    return outcome.words if isinstance(outcome, ConnectionFailure) else f"HTTP {outcome.status}"


def _encoded(endpoint: Endpoint[Any, Any], body: Any) -> bytes | None:
    """The body as JSON; `{}` where fields are accepted and none are given. Raises `InvalidCall`."""
    if not endpoint.takes_body:
        if body is not None:
            raise InvalidCall(f"{endpoint.name}: it takes no fields")
        return None
    try:
        return json.dumps(
            {} if body is None else body, allow_nan=False, separators=(",", ":")
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        words = str(error)
    hint = "Use texts, numbers, booleans, None, lists and dicts."
    raise InvalidCall(f"{endpoint.name}: what is given can't be sent as JSON: {words}", hint=hint)


def read_value(context: CallContext, reply: HttpReply) -> Any:
    """What the endpoint answered; None if nothing, where the contract has
    nothing. Raises `ApiError`.
    """
    if context.endpoint.paginated:
        return read_page(context, reply)
    if context.endpoint.answers_body:
        return _read_resource(context, reply)
    if is_web_page(reply):
        raise unreadable_error(context, reply, "what the service answers")
    value = _json(reply.body)
    return value if isinstance(value, dict | list) else None


def read_page(context: CallContext, reply: HttpReply) -> PageEnvelope[Any]:
    """A page of a list. Raises `ApiError`."""
    body = _json(reply.body)
    if not (
        isinstance(body, dict)
        and isinstance(body.get("results"), list)
        and all(isinstance(item, dict) for item in body["results"])
    ):
        raise unreadable_error(context, reply, "a page of a list")
    count = body.get("count")
    links = {name: body.get(name) for name in ("next", "previous")}
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not all(isinstance(link, str | None) for link in links.values())
    ):
        raise unreadable_error(context, reply, "a page of a list")
    return cast("PageEnvelope[Any]", {"count": count, **links, **body})


def _read_resource(context: CallContext, reply: HttpReply) -> dict[str, Any]:
    body = _json(reply.body)
    if not isinstance(body, dict):
        raise unreadable_error(context, reply, "a resource")
    return body


def _json(body: bytes) -> Any:
    """The body as JSON; None if it isn't."""
    try:
        return json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")


def wait_before_next(
    method: Method,
    outcome: HttpReply | ConnectionFailure,
    attempt: int,
    left: float,
    backoff: Backoff,
) -> float | None:
    """Seconds to wait after attempt `attempt` (from 1), or None if it was the last: a retry is
    useless, or there is no time.

    `left` are the remaining seconds of the call. A wait that the service requires is not shortened.
    """
    if attempt >= ATTEMPTS or not _repeatable(method, outcome):
        return None
    context = outcome.retry_after if isinstance(outcome, HttpReply) else None
    wait = max(context or 0.0, backoff.full_jitter(attempt))
    return wait if wait < left else None


def _repeatable(method: Method, outcome: HttpReply | ConnectionFailure) -> bool:
    if method is not Method.GET:
        return (
            isinstance(outcome, HttpReply)
            and outcome.status == 429
            and outcome.retry_after is not None
        )
    if isinstance(outcome, ConnectionFailure):
        return outcome.again
    return outcome.status in _TEMPORARY or outcome.status >= 500
