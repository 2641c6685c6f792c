"""Passes requests through: begins passages, carries each, and ends them all.

Invariants: a passage holds a permit of one of two pools, flags or the others, which senders share (`core/shares.py`), until its task has
ended; each has a task of its own, which ends with its connection, and with `close` at the latest; events never come here, and nothing
that comes here is buffered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import aiohttp
import structlog
from multidict import CIMultiDict

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.shares import Headroom, Pool
from forwarder.sources.http import answers
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.passthrough.allowed import Allowed
from forwarder.sources.http.passthrough.body import Outgoing
from forwarder.sources.http.passthrough.cache import Whole
from forwarder.sources.http.passthrough.circuit import Attempt
from forwarder.sources.http.passthrough.definitions import Definitions
from forwarder.sources.http.passthrough.framing import framed, has_body, status_line
from forwarder.sources.http.passthrough.headers import Line, for_sender, for_upstream, value_of
from forwarder.sources.http.passthrough.passage import NotRead, Passage, PassedRequest, Sender
from forwarder.sources.http.passthrough.patience import Patience
from forwarder.sources.http.passthrough.policy import FLAG_PERMITS, OTHER_PERMITS, RETRY_AFTER, PassThroughPolicy
from forwarder.sources.http.passthrough.upstream import Upstream

log = structlog.get_logger(__name__)

_TOO_MANY: Final = answers.unavailable("Too many requests are being passed through.", RETRY_AFTER)
_NOT_TEXT: Final = answers.bad_request("A header can't be passed on: it is not UTF-8.")


@dataclass(frozen=True, slots=True)
class PassThroughStatistics:
    """What has been passed through since the start, and how it stands now."""

    requests: Mapping[tuple[str, int], int]
    """Answered requests by route and status."""
    under_way: int = 0
    failing: tuple[tuple[str, str], ...] = ()
    """The addresses that aren't asked for now, and why."""
    kept: int = 0
    """Answers in the cache."""
    kept_bytes: int = 0


class AnswerHead(NamedTuple):
    """The head of an answer, as it is to be given. `length`: what its body is said to have; None if it isn't known."""

    status: int
    reason: str | None
    lines: Iterable[Line]
    length: bytes | None


class PassThrough:
    """What is passed through, for one listener."""

    def __init__(
        self, policy: PassThroughPolicy, clock: Clock, describe: Callable[[Exception], str] = lambda error: type(error).__name__
    ) -> None:
        """`describe`: an error on the way to the upstream in words that name nothing secret."""
        self.allowed = Allowed()
        self.max_body = policy.max_body
        self._policy = policy
        self._clock = clock
        self._main = Upstream(policy.url, policy, describe, clock)
        self._assets = self._main if policy.assets_url == policy.url else Upstream(policy.assets_url, policy, describe, clock)
        self._definitions = Definitions(self._main, clock, timeout=policy.flags_timeout, max_age=policy.definitions_max_age)
        self._flags = Pool(FLAG_PERMITS)
        self._others = Pool(OTHER_PERMITS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, request: PassedRequest, sender: Sender, headroom: Headroom) -> Passage | Answer:
        """Pass a request through, of which the head is there; or the answer to one that isn't."""
        kept = self._definitions.serves(request)
        upstream = self._assets if request.passed.assets else self._main
        try:
            headers = for_upstream(request.lines, request.peer, request.path)
        except UnicodeDecodeError:
            return _NOT_TEXT
        pool = self._flags if request.passed.swift else self._others
        if not pool.acquire(request.sender):
            return _TOO_MANY
        attempt = None if kept else upstream.begin()
        if isinstance(attempt, Answer):
            pool.release(request.sender)
            return attempt
        passage = Passage(request, sender, headroom, self._clock, self._patience(request))
        if attempt is None:
            task = self._run(passage, lambda: self._serve(passage, upstream, headers))
        else:
            task = self._run(passage, lambda: self._carry(passage, upstream, attempt, headers))
            task.add_done_callback(lambda _: upstream.circuit.abandoned(attempt))  # one that is cancelled before it starts runs nothing
        task.add_done_callback(lambda _: pool.release(request.sender))
        return passage

    async def until_idle(self, seconds: float) -> bool:
        """Wait until nothing is under way, at most so many seconds; whether nothing is. Cancellation ends the wait at once."""
        return await wait_for_event(self._idle, seconds, self._clock)

    async def close(self) -> None:
        """End what is under way, and close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._definitions.close()
        for upstream in self._upstreams():
            await upstream.close()

    def statistics(self) -> PassThroughStatistics:
        """What was counted, and how it stands."""
        failing = [(upstream.url, upstream.circuit.open.why) for upstream in self._upstreams() if upstream.circuit.open]
        cache = self._definitions.cache
        return PassThroughStatistics(self.allowed.requests(), len(self._tasks), tuple(failing), len(cache), cache.bytes)

    def _upstreams(self) -> tuple[Upstream, ...]:
        return (self._main,) if self._assets is self._main else (self._main, self._assets)

    def _patience(self, request: PassedRequest) -> Patience:
        swift = request.passed.swift
        return Patience(self._clock, self._policy.flags_timeout if swift else self._policy.timeout, whole=swift)

    def _run(self, passage: Passage, carry: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = passage.task = asyncio.create_task(_guarded(passage, carry), name="pass a request through")
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    async def _serve(self, passage: Passage, upstream: Upstream, headers: CIMultiDict[str]) -> None:
        """Answer from the cache, if what others were answered will do."""
        found = await self._definitions.get(passage.request)
        if isinstance(found, Whole):
            length = b"%d" % len(found.body) if found.status != 304 else None
            await _give(passage, AnswerHead(found.status, found.reason, found.lines, length), _once(found.body))
            return
        attempt = upstream.begin() if found is None else found
        if isinstance(attempt, Answer):
            passage.fail(attempt)
        else:
            await self._carry(passage, upstream, attempt, headers)

    async def _carry(self, passage: Passage, upstream: Upstream, attempt: Attempt, headers: CIMultiDict[str]) -> None:
        """Ask the upstream, and give its answer."""
        try:
            async with passage.patience:
                status = await self._exchange(passage, upstream, attempt, headers)
        except (aiohttp.ClientError, OSError) as error:
            passage.fail(upstream.failed(attempt, error))
        except BaseException:
            upstream.circuit.abandoned(attempt)
            raise
        else:
            upstream.completed(status)

    async def _exchange(self, passage: Passage, upstream: Upstream, attempt: Attempt, headers: CIMultiDict[str]) -> int:
        request = passage.request
        body = Outgoing(passage.body, request.content_length, passage.patience) if request.content_length != 0 else None
        response = await upstream.ask(attempt, request.method, request.target, headers, body)
        try:
            length = None if b"transfer-encoding" in _names(response.raw_headers) else value_of(response.raw_headers, b"content-length")
            lines = for_sender(response.raw_headers, cross_origin=bool(request.origin))
            head = AnswerHead(response.status, response.reason, lines, length or None)
            await _give(passage, head, response.content.iter_any())
        finally:
            response.release()
        return response.status


async def _guarded(passage: Passage, carry: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Whatever happens, the sender gets an answer or the end of its connection."""
    try:
        await carry()
    except NotRead:
        passage.fail(_TOO_MANY)  # which nobody will read: its answer has begun
    except Exception:
        log.exception("A request could not be passed through.")
        passage.fail(answers.INTERNAL_ERROR)


async def _give(passage: Passage, head: AnswerHead, pieces: AsyncIterable[bytes]) -> None:
    """Give an answer of which the head is there. Raises what `pieces` raises."""
    request, (status, reason, lines, length) = passage.request, head
    bodiless = not has_body(request.method, status)
    framing_line, framing = framed(bodiless=bodiless, status=status, length=length, modern=request.modern)
    start = b"".join([status_line(status, reason), *[b"%b: %b\r\n" % line for line in lines], framing_line])
    await passage.answer(status, start, pieces, framing)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _names(lines: Iterable[Line]) -> set[bytes]:
    return {name.lower() for name, _ in lines}
