"""Passes requests through: starts exchanges, runs each, and ends them all.

Invariants: an exchange holds a permit of one of two pools, flags or the others, which
senders share (`core/shares.py`), until its task has ended; each has a task of its own, which
ends with its connection, and with `close` at the latest; events never come here, and nothing
that comes here is buffered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.errors import RequestTooLarge
from forwarder.core.shares import Headroom, Pool
from forwarder.sources.http.passthrough.allowed import (
    PassedRequest,
    PassedRoutes,
    lines_for_sender,
    lines_for_upstream,
)
from forwarder.sources.http.passthrough.definitions import FlagDefinitions, UpstreamResponse
from forwarder.sources.http.passthrough.exchange import (
    WINDOW,
    PassedBody,
    PassedExchange,
    ResponseHead,
    SenderStalled,
)
from forwarder.sources.http.passthrough.own_keys import LARGEST_BODY, OwnKeys
from forwarder.sources.http.passthrough.upstream import (
    RETRY_AFTER,
    BreakerPermit,
    PassThroughPolicy,
    PassThroughUpstream,
    PausableTimeout,
)
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answer_queue import AnswerQueue
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.sources.http.protocol.lifecycle import Lifecycle
from forwarder.upstream.connection import OutgoingRequest

log = structlog.get_logger(__name__)

FLAG_PERMITS: Final = 128
"""Requests for flags and definitions that are in flight at once; further ones get 503, and so do
those of a sender that has its share.
"""

OTHER_PERMITS: Final = 128
"""The same for recordings, assets and everything else: however slow they are, they keep no permit
from flags.
"""

_TOO_MANY: Final = answers.unavailable("Too many requests are being passed through.", RETRY_AFTER)
_NO_ROOM: Final = answers.unavailable(
    "There is no room for a body that is searched for project keys.", RETRY_AFTER
)
_TOO_LARGE: Final = answers.problem(
    413,
    f"The body is searched for project keys, so it may have at most {LARGEST_BODY} bytes, "
    "decompressed too.",
    answers.Rejection.TOO_LARGE,
)
_NOT_TEXT: Final = answers.bad_request("A header can't be passed on: it is not UTF-8.")


class _BodyRejected(Exception):
    """A body isn't passed on; its sender gets `answer`."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__()
        self.answer = answer


class WholeBody:
    """A body of which all is there."""

    __slots__ = ("_left", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._left = data

    async def read(self) -> bytes:
        """All of it; then nothing."""
        left = self._left
        self._left = b""
        return left

    def whole(self) -> tuple[bytes] | None:
        """All of it."""
        return (self.data,)

    def progressed(self) -> None:
        """The upstream took it."""

    def discard(self) -> None:
        """Nobody reads it any more."""


@dataclass(frozen=True, slots=True)
class PassThroughStatistics:
    """What has been passed through since the start, and what is in flight now."""

    requests: Mapping[tuple[str, int], int]
    """Answered requests by route and status."""
    in_flight: int = 0
    failing: tuple[tuple[str, str], ...] = ()
    """The addresses whose circuit breaker is open, and why."""
    cached: int = 0
    """Responses in the cache."""
    cached_bytes: int = 0


class PassThrough:
    """The pass-through of one listener."""

    def __init__(self, policy: PassThroughPolicy, clock: Clock) -> None:
        self.allowed = PassedRoutes()
        self.max_body = policy.max_body
        self._policy = policy
        self._clock = clock
        self._main = PassThroughUpstream(policy.url, policy, clock)
        self._assets = (
            self._main
            if policy.assets_url == policy.url
            else PassThroughUpstream(policy.assets_url, policy, clock)
        )
        self._definitions = FlagDefinitions(
            self._main, clock, timeout=policy.flags_timeout, max_age=policy.definitions_max_age
        )
        self._own_keys = OwnKeys(policy.api_keys) if policy.api_keys else None
        self._flags = Pool(FLAG_PERMITS)
        self._others = Pool(OTHER_PERMITS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(
        self, request: PassedRequest, queue: AnswerQueue, life: Lifecycle, headroom: Headroom
    ) -> PassedExchange | HttpAnswer:
        """Pass a request through, of which the head is there; or its answer, if it isn't passed
        through.

        `queue` and `life`: of the connection that it comes on.
        """
        if self._own_keys is not None:
            request = request._replace(
                target=self._own_keys.in_target(request.target),
                lines=self._own_keys.in_lines(request.lines),
            )
        cacheable = self._definitions.serves(request)
        upstream = self._assets if request.route.assets else self._main
        try:
            lines = lines_for_upstream(request.lines, request.peer, request.path)
        except UnicodeDecodeError:
            return _NOT_TEXT
        pool = self._flags if request.route.latency_sensitive else self._others
        if not pool.acquire(request.sender):
            return _TOO_MANY
        permit = None if cacheable else upstream.begin()
        if isinstance(permit, HttpAnswer):
            pool.release(request.sender)
            return permit
        exchange = PassedExchange(
            request,
            queue,
            life,
            headroom,
            clock=self._clock,
            timeout=self._timeout(request),
            window=WINDOW if self._own_keys is None else LARGEST_BODY,
        )
        serving = (
            self._serve(exchange, upstream, lines)
            if permit is None
            else self._forward(exchange, upstream, permit, lines)
        )
        task = exchange.task = asyncio.create_task(
            _guard(exchange, serving), name="pass a request through"
        )
        self._tasks.add(task)
        self._idle.clear()

        def ended(task: asyncio.Task[None]) -> None:
            serving.close()  # a task that is cancelled before it starts runs nothing
            exchange.ended()
            pool.release(request.sender)
            if permit is not None:
                upstream.breaker.abandoned(permit)
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

        task.add_done_callback(ended)
        return exchange

    async def until_idle(self, seconds: float) -> bool:
        """Wait until nothing is in flight, at most so many seconds; whether nothing is.
        Cancellation ends the wait at once.
        """
        return await wait_for_event(self._idle, seconds, self._clock)

    async def close(self) -> None:
        """End what is in flight, and close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._definitions.close()
        for upstream in self._upstreams():
            upstream.close()

    def statistics(self) -> PassThroughStatistics:
        """Counts since the start, and the state now."""
        failing = [
            (upstream.url, upstream.breaker.open.why)
            for upstream in self._upstreams()
            if upstream.breaker.open
        ]
        cache = self._definitions.cache
        return PassThroughStatistics(
            self.allowed.requests(), len(self._tasks), tuple(failing), len(cache), cache.bytes
        )

    def _upstreams(self) -> tuple[PassThroughUpstream, ...]:
        return (self._main,) if self._assets is self._main else (self._main, self._assets)

    def _timeout(self, request: PassedRequest) -> PausableTimeout:
        if request.route.latency_sensitive:
            return PausableTimeout(self._clock, self._policy.flags_timeout, total=True)
        return PausableTimeout(self._clock, self._policy.timeout, total=False)

    async def _serve(
        self, exchange: PassedExchange, upstream: PassThroughUpstream, lines: bytes
    ) -> None:
        """Answer from the cache, if that will do."""
        definitions = await self._definitions.get(exchange.request)
        if isinstance(definitions, UpstreamResponse):
            length = b"%d" % len(definitions.body) if definitions.status != 304 else None
            await exchange.answer(
                ResponseHead(definitions.status, definitions.reason, definitions.lines, length),
                definitions.body,
                None,
            )
            return
        permit = upstream.begin() if definitions is None else definitions
        if isinstance(permit, HttpAnswer):
            exchange.fail(permit)
        else:
            await self._forward(exchange, upstream, permit, lines)

    async def _forward(
        self,
        exchange: PassedExchange,
        upstream: PassThroughUpstream,
        permit: BreakerPermit,
        lines: bytes,
    ) -> None:
        """Ask the upstream, and give its answer."""
        try:
            async with exchange.timeout:
                status = await self._exchange(exchange, upstream, permit, lines)
        except OSError as error:
            exchange.fail(upstream.failed(permit, error))
        except _BodyRejected as rejection:
            upstream.breaker.abandoned(permit)
            exchange.fail(rejection.answer)
        except BaseException:
            upstream.breaker.abandoned(permit)
            raise
        else:
            upstream.completed(status)

    @staticmethod
    async def _with_own_keys(body: PassedBody, keys: OwnKeys) -> WholeBody:
        """The body with the destination's keys, once all of it is there. Raises `_BodyRejected`."""
        data = await body.collect()
        if data is None:
            raise _BodyRejected(_NO_ROOM if body.length <= LARGEST_BODY else _TOO_LARGE)
        try:
            return WholeBody(keys.in_body(data))
        except RequestTooLarge:
            raise _BodyRejected(_TOO_LARGE) from None

    async def _exchange(
        self,
        exchange: PassedExchange,
        upstream: PassThroughUpstream,
        permit: BreakerPermit,
        lines: bytes,
    ) -> int:
        request = exchange.request
        length = request.content_length
        body: PassedBody | WholeBody | None = exchange.body if length != 0 else None
        if body is not None and self._own_keys is not None:
            body = await self._with_own_keys(exchange.body, self._own_keys)
            length = len(body.data)
        response = await upstream.ask(
            permit, OutgoingRequest(request.method, request.target, lines, length, body)
        )
        try:
            answer_lines = lines_for_sender(response.lines, cross_origin=bool(request.origin))
            head = ResponseHead(
                response.status,
                response.reason,
                answer_lines,
                None if response.chunked else response.length,
            )
            await exchange.answer(head, *response.body())
        finally:
            response.release()
        return response.status


async def _guard(exchange: PassedExchange, serving: Coroutine[Any, Any, None]) -> None:
    """Whatever happens, the sender gets an answer or the end of its connection."""
    try:
        await serving
    except SenderStalled:
        exchange.fail(_TOO_MANY)  # never written: its answer has begun
    except Exception:
        log.exception("a request could not be passed through")
        exchange.fail(answers.INTERNAL_ERROR)
