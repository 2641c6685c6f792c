"""An answer that is not given yet, with its place in the order of its connection's requests."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from forwarder.core.errors import Backpressure
from forwarder.core.ports import EventResults
from forwarder.sources.http.answers import TAKEN, Answer
from forwarder.sources.http.routes import Route

MAX_PENDING: Final = 64
"""Answers that wait on one connection until no more is read from it; what one read brought is parsed all the same, up to `MOST_PENDING`."""

MOST_PENDING: Final = 256
"""Past these the next request is refused, and the connection ends with it: one read can hold thousands of tiny requests."""


class Answers(Protocol):
    """A connection, as far as it gives answers."""

    @property
    def sender(self) -> Hashable:
        """Who is at its other end."""

    def answer_late(self, pending: Pending, error: Exception | None) -> None:
        """The request of `pending` is acknowledged, or it won't be."""


class Pending:
    """Waits for the intake (`core.ports.PatientWaiter`), or for the answers before it. One that isn't needed serves the next request."""

    __slots__ = ("answer", "bodiless", "connection", "due", "headers", "more", "refusal", "results", "route", "since", "taken")

    def __init__(self, connection: Answers) -> None:
        self.connection: Answers | None = connection
        """None once the connection is gone: nobody is told."""
        self.answer: Answer | None = TAKEN
        """What will be said if the request is acknowledged; None: `taken` is no answer, but goes before one."""
        self.route: Route | None = None
        self.headers = b""
        self.results: EventResults | None = None
        """In place of `answer`, where there is a result for each event: it is put together when the request is acknowledged."""
        self.taken = b""
        """The whole answer, if it was put together before."""
        self.due = False
        """Whether it can be given as soon as those before it are."""
        self.bodiless = False
        self.refusal = False
        """Whether its request wasn't read to the end."""
        self.since = 0.0
        """When a sweep first saw it wait."""
        self.more = 0.0
        """Seconds that it may wait beyond what others may."""

    def overdue(self, now: float, timeout: float) -> bool:
        """Whether its request has waited for too long for the intake. Called by each sweep."""
        if self.due:
            return False
        self.since = self.since or now
        return now - self.since >= timeout + self.more

    @property
    def sender(self) -> Hashable:
        """See `core.ports.PatientWaiter`."""
        return None if self.connection is None else self.connection.sender

    @property
    def origin(self) -> object:
        """See `core.ports.PatientWaiter`."""
        return self.connection

    def postpone(self, seconds: float) -> None:
        """See `core.ports.PatientWaiter`."""
        self.more = seconds

    def failed(self, error: Exception) -> None:
        """See `core.ports.PatientWaiter`."""
        if self.connection is not None:
            self.connection.answer_late(self, error)

    def first(self) -> None:
        """It isn't due, and every answer before it is given."""

    def resumed(self) -> None:
        """It is first, and the sender reads again."""

    def forget(self) -> None:
        """The connection is gone."""
        self.connection = None

    def __call__(self, error: Backpressure | None) -> None:
        """See `core.ack.AckCallback`. Harmless when the connection is gone."""
        connection = self.connection
        if connection is not None:
            connection.answer_late(self, error)
