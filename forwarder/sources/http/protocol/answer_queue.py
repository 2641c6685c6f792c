"""The answers of one connection, in the order of its requests, though some are acknowledged long
after others.

Invariants: while an answer is pending, all that come after it are pending too, whatever they are;
an answer is counted when it is written. No answer follows the one that says `Connection: close`.
While one that is streamed has its turn, nothing else is written. A connection with pending answers
isn't idle: it ends when the last is written, or when it is lost, and then the rest are forgotten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.errors import Backpressure, NotAcknowledged, drop_frames
from forwarder.core.ports import EventResults
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.sources.http.protocol.lifecycle import ENDING, IDLE, NEW, Lifecycle
from forwarder.sources.http.protocol.limits import RECEIVING_RETRY_AFTER
from forwarder.sources.http.protocol.routes import Route

log = structlog.get_logger(__name__)

MAX_PENDING: Final = 64
"""Answers that may be pending until no more is read; what one read brought is parsed all the same,
up to `MOST_PENDING`.
"""

MOST_PENDING: Final = 256
"""Past these the next request is rejected, and the connection ends with it: one read can hold
thousands of tiny requests.
"""


def answer_to(error: Exception) -> HttpAnswer:
    """The answer to what the intake raised; one that it may not raise is logged."""
    answer = answers.of_error(error)
    if answer is None:
        log.error("the intake failed", exc_info=error)
    drop_frames(error)
    return answers.INTERNAL_ERROR if answer is None else answer


class AnswerQueue:
    """The pending answers of one connection. What need not wait is written at once."""

    __slots__ = ("_idle", "_life", "_write", "pending", "sender", "spare")

    def __init__(self, life: Lifecycle, sender: str) -> None:
        self._life = life
        self._write = life.write
        self.sender = sender
        """Who shares with other senders (`core/shares.py`) what the last request
        with a large body needs.
        """
        self.pending: deque[PendingAnswer] = deque()
        """In the order of the requests."""
        self.spare = PendingAnswer(self)
        """The place of the answer to the next request, if the intake acknowledges that later."""
        self._idle: PendingAnswer | None = None
        """A place that was used before, and can be again."""

    # Answers to requests

    def send(
        self, route: Route, answer: HttpAnswer, headers: bytes, *, bodiless: bool = False
    ) -> None:
        """Answer a complete request: now, or behind those that are pending."""
        life = self._life
        last = life.last or answer is answers.INTERNAL_ERROR
        if route.protocol is not None:
            answer = route.protocol.error(answer)
        if self.pending:
            self._enqueue_known(route, answer, headers, bodiless=bodiless)
            if last:
                life.phase = ENDING
            return
        route.record(answer)
        if last:
            self._write(answer.render(answers.CLOSE + headers, without_body=bodiless))
            life.end(read=True)
        elif headers or bodiless:
            self._write(answer.render(headers, without_body=bodiless))
        else:
            self._write(answer.plain)

    def send_last(
        self, route: Route, answer: HttpAnswer, headers: bytes, *, bodiless: bool = False
    ) -> None:
        """Answer a request that isn't read to its end, and end the connection: now, or behind
        those that are pending.
        """
        if route.protocol is not None:
            answer = route.protocol.error(answer)
        if self.pending:
            self._enqueue_known(route, answer, headers, bodiless=bodiless).unfinished = True
            self._life.phase = ENDING
        else:
            route.record(answer)
            self._write(answer.render(answers.CLOSE + headers, without_body=bodiless))
            self._life.end(read=False)

    def send_interim(self, answer: bytes) -> None:
        """Send what goes before an answer, in its place."""
        if self.pending:
            self._enqueue_known(None, None, b"").accepted = answer
        else:
            self._write(answer)

    def send_when_acknowledged(
        self,
        route: Route,
        answer: HttpAnswer,
        headers: bytes,
        accepted: bytes = b"",
        results: EventResults | None = None,
    ) -> None:
        """The intake, which has `spare`, acknowledges the request later. `accepted`: the whole
        answer on a connection that stays open.

        With `results` the answer is made of them, then.
        """
        pending = self.spare
        self.spare = self._idle or PendingAnswer(self)
        self._idle = None
        pending.answer = answer
        pending.accepted = accepted
        pending.results = results
        self.enqueue(pending, route, headers)
        if self._life.last:
            self._life.phase = ENDING

    def _enqueue_known(
        self,
        route: Route | None,
        answer: HttpAnswer | None,
        headers: bytes,
        *,
        bodiless: bool = False,
    ) -> PendingAnswer:
        pending = PendingAnswer(self)
        pending.due = True
        pending.answer = answer
        pending.bodiless = bodiless
        self.enqueue(pending, route, headers)
        return pending

    def enqueue(self, pending: PendingAnswer, route: Route | None, headers: bytes) -> None:
        """Put an answer behind those that are pending."""
        pending.route = route
        pending.headers = headers
        self.pending.append(pending)
        if len(self.pending) >= MAX_PENDING:
            self._life.limit_answers(full=True)

    # Answers that have become due

    def acknowledge(self, pending: PendingAnswer, error: Exception | None) -> None:
        """The request of `pending` is acknowledged, or fails: write the answers that are due."""
        queue = self.pending
        life = self._life
        if (
            error is None
            and len(queue) == 1
            and pending.accepted
            and life.phase == IDLE
            and not life.last
        ):
            queue.clear()  # the usual case: a sender that waits for each answer
            life.since = NEW
            pending.since = 0.0
            pending.more = 0.0
            if pending.route is not None:
                pending.route.accepted += 1
            self._idle = pending
            self._write(pending.accepted)
            return
        if error is not None:
            answer = answer_to(error)
            protocol = None if pending.route is None else pending.route.protocol
            pending.answer = answer if protocol is None else protocol.error(answer)
            pending.accepted = b""
        elif pending.results is not None and pending.route is not None:
            pending.answer = pending.route.answer_with(pending.results)
            pending.results = None
        pending.due = True
        self.write_due()

    def write_due(self) -> None:
        """Write the answers that are due, as far as none before them is pending."""
        queue = self.pending
        while queue and queue[0].due:
            self._write_first(queue.popleft())
        if queue and (stream := queue[0].stream) is not None:
            stream.has_turn.set()
        if len(queue) <= MAX_PENDING // 2:
            self._life.limit_answers(full=False)

    def _write_first(self, pending: PendingAnswer) -> None:
        pending.queue = None
        life = self._life
        answer = pending.answer
        ends = not self.pending and (life.phase == ENDING or (life.phase == IDLE and life.last))
        if life.phase == IDLE:
            life.since = NEW
        if answer is not None and pending.route is not None:
            pending.route.record(answer)
        if answer is None or (pending.accepted and not ends):
            self._write(pending.accepted)
        else:
            headers = answers.CLOSE + pending.headers if ends else pending.headers
            self._write(answer.render(headers, without_body=pending.bodiless))
        if ends:
            life.end(read=not pending.unfinished)

    # What the connection tells

    def expire(self, now: float, timeout: float) -> None:
        """Answer the requests that the intake hasn't acknowledged in time. Called by each sweep."""
        for pending in list(self.pending):
            # a streamed answer has time limits of its own
            if pending.due or pending.stream is not None:
                continue
            pending.since = pending.since or now
            if now - pending.since >= timeout + pending.more:
                pending(
                    NotAcknowledged(
                        "the events could not be written in time", retry_after=RECEIVING_RETRY_AFTER
                    )
                )

    def resume_writing(self) -> None:
        """The sender reads its answers again."""
        if self.pending and (stream := self.pending[0].stream) is not None:
            stream.readable.set()

    def forget(self) -> None:
        """Forget what is pending: the sender gets no more answers."""
        while self.pending:
            pending = self.pending.popleft()
            pending.queue = None
            stream = pending.stream
            pending.stream = None
            if stream is not None:
                stream.on_lost()

    def close(self) -> None:
        """The connection is lost."""
        self.forget()
        self.spare.queue = self._idle = None

    def end_streams(self) -> bool:
        """The sender sends no more: end its answers if all of them are streamed, for the upstream
        needn't work for one that has left.
        """
        if not self.pending or any(pending.stream is None for pending in self.pending):
            return False
        first = self.pending[0].stream
        if first is not None and first.begun:
            first.drop()
        else:
            self.forget()
        return True


class PendingAnswer:
    """The place of an answer in the queue, and the intake's callback (`core.ports.PatientWaiter`).
    Unused, it serves the next request.
    """

    __slots__ = (
        "accepted",
        "answer",
        "bodiless",
        "due",
        "headers",
        "more",
        "queue",
        "results",
        "route",
        "since",
        "stream",
        "unfinished",
    )

    def __init__(self, queue: AnswerQueue) -> None:
        self.queue: AnswerQueue | None = queue
        """None once it is answered, or the connection is gone: then nothing that happens to the
        request matters.
        """
        self.answer: HttpAnswer | None = answers.ACCEPTED
        """The answer if the request is acknowledged; None: `accepted` is no answer, but goes
        before one.
        """
        self.accepted = b""
        """The whole answer, if it was put together before."""
        self.results: EventResults | None = None
        """In place of `answer`, where there is a result for each event: it is put together when
        the request is acknowledged.
        """
        self.stream: StreamedAnswer | None = None
        """Set if the answer is written piece by piece."""
        self.route: Route | None = None
        self.headers = b""
        self.bodiless = False
        self.unfinished = False
        """Whether its request wasn't read to the end."""
        self.due = False
        """Whether it can be written as soon as those before it are."""
        self.since = 0.0
        """When a sweep first saw it pending."""
        self.more = 0.0
        """Seconds that it may wait beyond what others may."""

    @property
    def sender(self) -> str | None:
        return None if self.queue is None else self.queue.sender

    @property
    def origin(self) -> object:
        return self.queue

    def postpone(self, seconds: float) -> None:
        self.more = seconds

    def failed(self, error: Exception) -> None:
        if self.queue is not None:
            self.queue.acknowledge(self, error)

    def __call__(self, error: Backpressure | None) -> None:
        """Harmless when the connection is gone."""
        if self.queue is not None:
            self.queue.acknowledge(self, error)


class StreamedAnswer:
    """An answer that its owner writes piece by piece, once it is first in the queue. It ends once:
    by `end`, or by `fail`.
    """

    __slots__ = (
        "_life",
        "_pending",
        "_queue",
        "begun",
        "failure",
        "has_turn",
        "on_lost",
        "readable",
    )

    def __init__(self, queue: AnswerQueue, life: Lifecycle, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called if the connection is lost before the end of the answer."""
        self._queue = queue
        self._life = life
        self._pending: PendingAnswer | None = None
        self.on_lost = on_lost
        self.begun = False
        """Whether its head is written."""
        self.failure: HttpAnswer | None = None
        """What is answered in its place."""
        self.has_turn = asyncio.Event()
        """Set when the request is complete and every request before it is answered."""
        self.readable = asyncio.Event()
        """Set when the sender reads again."""

    def enqueue(self, route: Route, headers: bytes, *, bodiless: bool) -> None:
        """Its request is complete: it waits for its turn, which may be now."""
        self._pending = pending = PendingAnswer(self._queue)
        pending.stream = self
        pending.bodiless = bodiless
        self._queue.enqueue(pending, route, headers)
        if self._life.last:
            self._life.phase = ENDING
        if self.failure is not None:
            self.fail(self.failure)
        elif self._queue.pending[0] is pending:
            self.has_turn.set()

    def begin(self, status: int, start: bytes, first: bytes) -> None:
        """Write the head (`start`, without the empty line) and the `first` piece of the body, and
        count it. Only in its turn.
        """
        self.begun = True
        pending = self._queue.pending[0]
        if pending.route is not None:
            pending.route.count(status)
        if self._is_last():
            self._life.phase = ENDING
            start += answers.CLOSE
        self._life.write(b"%b%b\r\n%b" % (start, pending.headers, first))

    def write(self, data: bytes) -> None:
        """Write a piece of the body, as it is to be on the wire."""
        self._life.write(data)

    @property
    def unread(self) -> bool:
        """Whether the sender doesn't read what was written."""
        return self._life.unread

    async def until_read(self, seconds: float, clock: Clock) -> bool:
        """Wait until the sender reads again; false: it hasn't for so many seconds. Cancellation
        changes nothing.
        """
        while self.unread:
            self.readable.clear()
            if not await wait_for_event(self.readable, seconds, clock):
                return False
        return True

    def end(self) -> None:
        """The answer is complete: others have their turn."""
        life = self._life
        queue = self._queue
        last = self._is_last()
        pending = queue.pending.popleft()
        pending.queue = pending.stream = self._pending = None
        if last:
            life.end(read=True)
            return
        if life.phase == IDLE:
            life.since = NEW
        queue.write_due()

    def fail(self, answer: HttpAnswer) -> None:
        """Answer this instead, in its turn; if the answer has begun, drop the connection, so that
        a part of it doesn't pass for all.
        """
        if self.begun:
            self.drop()
            return
        self.failure = answer
        pending = self._pending
        self._pending = None
        if pending is not None and pending.queue is not None:
            pending.answer = answer
            pending.due = True
            self._queue.write_due()

    def drop(self) -> None:
        """Reset the connection, and forget everything that is pending on it."""
        self._queue.forget()
        self._life.reset()

    def _is_last(self) -> bool:
        """Whether the answer that is first in the queue is the last."""
        life = self._life
        return len(self._queue.pending) == 1 and (
            life.phase == ENDING or (life.phase == IDLE and life.last)
        )
