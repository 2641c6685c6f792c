"""One call of an endpoint from beginning to end: what is checked, sent, tried again and read. Groups, pages and commands all come here.

Invariants: `timeout` bounds a whole call, its attempts and the waits between them; an error is raised outside of any handler, so that no
exception of a library hangs on it, with a request and its key inside.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

from forwarder.contract.endpoints import Endpoint
from forwarder.core.clock import Backoff, Clock
from forwarder.management.addresses import path_of
from forwarder.management.answers import value_of
from forwarder.management.errors import ApiError, InvalidCall
from forwarder.management.refusals import Asked, failed, refused, too_late
from forwarder.management.replies import Failure, Reply
from forwarder.management.retrying import INITIAL, MAXIMUM, wait_before_next
from forwarder.management.transport import Access, Request, Transport

BACKOFF: Final = Backoff(INITIAL, MAXIMUM)


class Caller:
    """Makes calls. Nothing is open before the first; `close` closes all."""

    def __init__(self, access: Access, timeout: float, clock: Clock, backoff: Backoff = BACKOFF) -> None:
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
        self, endpoint: Endpoint[Any, Any], ids: Mapping[str, object], body: Any = None, query: Mapping[str, int] | None = None
    ) -> Any:
        """What the endpoint answers. Raises `ApiError`. Cancellation drops the connection: what was sent may have been done."""
        if self._closed:
            raise InvalidCall(f"{endpoint.name}: the client is closed", hint="Make the call inside its `with`.")
        target = path_of(endpoint, ids) + (f"?{urlencode(query)}" if query else "")
        request = Request(str(endpoint.method), target, _encoded(endpoint, body))
        asked = Asked(endpoint, dict(ids), self.base, self._access.api_key)
        reply, error = await self._outcome(asked, request)
        if error is not None:
            raise error
        return value_of(asked, reply)

    async def close(self) -> None:
        """Close all connections; calls are refused from then on. Cancellation leaves the closing to the garbage collector."""
        self._closed = True
        await self._transport.close()

    async def _outcome(self, asked: Asked, request: Request) -> tuple[Reply, ApiError | None]:
        """The answer, or the error to raise (with a reply that says nothing)."""
        attempts = Attempts(asked)
        try:
            async with within(self._timeout, self._clock):
                await self._attempts(attempts, request)
        except TimeoutError:
            return Reply(0), too_late(asked, self._timeout, attempts.made, attempts.last)
        outcome = attempts.outcome
        if isinstance(outcome, Failure):
            return Reply(0), failed(asked, outcome, attempts.made)
        return outcome, None if 200 <= outcome.status < 300 else refused(asked, outcome, attempts.made)

    async def _attempts(self, attempts: Attempts, request: Request) -> None:
        end = self._clock.monotonic() + self._timeout
        while True:
            attempts.made += 1
            attempts.outcome = await self._transport.ask(request, self._clock.now())
            left = end - self._clock.monotonic()
            wait = wait_before_next(attempts.asked.endpoint.method, attempts.outcome, attempts.made, left, self._backoff)
            if wait is None or self._closed:
                return
            attempts.last = _in_short(attempts.outcome)
            await self._clock.sleep(wait)
            if self._closed:
                return


class Attempts:
    """What has been tried so far of one call."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.made = 0
        self.last = ""
        """What became of the attempt before, in short."""
        self.outcome: Reply | Failure = Reply(0)


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


def _in_short(outcome: Reply | Failure) -> str:
    return outcome.words if isinstance(outcome, Failure) else f"HTTP {outcome.status}"


def _encoded(endpoint: Endpoint[Any, Any], body: Any) -> bytes | None:
    """The body as JSON; `{}` where fields are accepted and none are given. Raises `InvalidCall`."""
    if not endpoint.takes_body:
        if body is not None:
            raise InvalidCall(f"{endpoint.name}: it takes no fields")
        return None
    try:
        return json.dumps({} if body is None else body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        words = str(error)
    hint = "Use texts, numbers, booleans, None, lists and dicts."
    raise InvalidCall(f"{endpoint.name}: what is given can't be sent as JSON: {words}", hint=hint)
