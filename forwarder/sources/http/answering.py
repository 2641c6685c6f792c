"""How a connection gives its answers: in the order of its requests, though some are acknowledged long after others.

Invariants: while an answer waits, all that come after it wait behind it, whatever they are; an answer is counted when it is given. No
answer follows the one that says `Connection: close`. A connection with waiting answers isn't idle: it ends when the last is given, or
when it is lost, and then nobody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import structlog

from forwarder.core.errors import NotAcknowledged
from forwarder.core.ports import EventResults
from forwarder.sources.http import answers
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.connection import ENDING, IDLE, NEW, Connection
from forwarder.sources.http.limits import RECEIVING_RETRY_AFTER
from forwarder.sources.http.pending import MAX_PENDING, Pending
from forwarder.sources.http.routes import Route

log = structlog.get_logger(__name__)


def answer_to(error: Exception) -> Answer:
    """The answer to what the intake raised; one that it may not raise is logged."""
    answer = answers.of_error(error)
    if answer is None:
        log.error("The intake failed.", exc_info=error)
        return answers.INTERNAL_ERROR
    error.__traceback__ = None  # an error that is raised again and again must not collect the frames of every request
    return answer


class Answering(Connection):
    """A connection that answers."""

    __slots__ = ("_idle_pending", "_spare")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `Connection.connection_made`."""
        self._spare = Pending(self)
        """Who waits for the answer to the next request, if that has to be waited for."""
        self._idle_pending: Pending | None = None
        """Who has waited before, and may again."""
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `Connection.connection_lost`."""
        super().connection_lost(exc)
        self._spare.connection = self._idle_pending = None

    def check(self, now: float) -> None:
        """See `Connection.check`. A request that isn't acknowledged in time is answered all the same."""
        for pending in list(self._waiting):
            if pending.overdue(now, self._shared.policy.answer_timeout):
                pending(NotAcknowledged("the events could not be written in time", retry_after=RECEIVING_RETRY_AFTER))
        super().check(now)

    def _send(self, route: Route, answer: Answer, headers: bytes, *, bodiless: bool = False) -> None:
        """Answer a complete request: now, or behind those that wait."""
        last = self._last or answer is answers.INTERNAL_ERROR
        if route.v1:
            answer = answers.in_json(answer)
        if self._waiting:
            self._queue(route, answer, headers, bodiless=bodiless)
            if last:
                self._phase = ENDING
            return
        route.give(answer)
        if last:
            self._write(answer.render(answers.CLOSE + headers, without_body=bodiless))
            self._finish()
        elif headers or bodiless:
            self._write(answer.render(headers, without_body=bodiless))
        else:
            self._write(answer.plain)

    def _send_refusal(self, route: Route, answer: Answer, headers: bytes, *, bodiless: bool = False) -> None:
        """Give the last answer, to a request that isn't read to its end: now, or behind those that wait."""
        if route.v1:
            answer = answers.in_json(answer)
        if self._waiting:
            self._queue(route, answer, headers, bodiless=bodiless).refusal = True
            self._phase = ENDING
            self._release()
        else:
            route.give(answer)
            self._write(answer.render(answers.CLOSE + headers, without_body=bodiless))
            self._linger()

    def _send_interim(self, answer: bytes) -> None:
        """Say something before the answer, in its place."""
        if self._waiting:
            pending = self._queue(None, None, b"")
            pending.taken = answer
        else:
            self._write(answer)

    def _queue(self, route: Route | None, answer: Answer | None, headers: bytes, *, bodiless: bool = False) -> Pending:
        """Put an answer that is known behind those that wait."""
        pending = Pending(self)
        pending.due, pending.answer, pending.bodiless = True, answer, bodiless
        self._wait(pending, route, headers)
        return pending

    def _wait_for_intake(
        self, route: Route, answer: Answer, headers: bytes, taken: bytes = b"", results: EventResults | None = None
    ) -> None:
        """The intake tells `_spare` when `answer` can be given; `taken`: as it will be written on a connection that stays open.

        With `results` the answer is made of them, then.
        """
        pending, self._spare = self._spare, self._idle_pending or Pending(self)
        self._idle_pending = None
        pending.answer, pending.taken, pending.results = answer, taken, results
        self._wait(pending, route, headers)
        if self._last:
            self._phase = ENDING

    def _wait(self, pending: Pending, route: Route | None, headers: bytes) -> None:
        pending.route, pending.headers = route, headers
        self._waiting.append(pending)
        if len(self._waiting) >= MAX_PENDING and not self._full:
            self._full = True
            self._transport.pause_reading()

    @property
    def sender(self) -> Hashable:
        """Who shares with others (`core.ports.PatientWaiter`)."""
        return self._sender or self._peer.sender

    def answer_late(self, pending: Pending, error: Exception | None) -> None:
        """The request of `pending` is acknowledged, or it won't be: give the answers that are due."""
        waiting = self._waiting
        if error is None and len(waiting) == 1 and pending.taken and self._phase == IDLE and not self._last:
            waiting.clear()  # the usual case: a sender that waits for each answer
            self._since, pending.since, pending.more = NEW, 0.0, 0.0
            if pending.route is not None:
                pending.route.taken += 1
            self._idle_pending = pending
            self._write(pending.taken)
            return
        if error is not None:
            answer = answer_to(error)
            pending.answer, pending.taken = answers.in_json(answer) if pending.route is not None and pending.route.v1 else answer, b""
        elif pending.results is not None:
            pending.answer, pending.results = answers.of_results(pending.results), None
        pending.due = True
        self._give_due()

    def _give_due(self) -> None:
        """Give the answers that are due, as far as none before them waits."""
        waiting = self._waiting
        while waiting and waiting[0].due:
            self._give(waiting.popleft())
        if waiting:
            waiting[0].first()
        if self._full and len(waiting) <= MAX_PENDING // 2:
            self._full = False
            self._read_on()

    def _give(self, pending: Pending) -> None:
        """Give the answer that is first in turn."""
        pending.connection = None
        answer, phase = pending.answer, self._phase
        ends = not self._waiting and (phase == ENDING or (phase == IDLE and self._last))
        if phase == IDLE:
            self._since = NEW
        if answer is not None and pending.route is not None:
            pending.route.give(answer)
        if answer is None or (pending.taken and not ends):
            self._write(pending.taken)
        else:
            headers = answers.CLOSE + pending.headers if ends else pending.headers
            self._write(answer.render(headers, without_body=pending.bodiless))
        if ends:
            self._end(read=not pending.refusal)

    def _end(self, *, read: bool) -> None:
        """End it after the last answer; `read`: to a request that was read completely."""
        if self._eof:
            self._shut()
        elif read:
            self._finish()
        else:
            self._linger()
