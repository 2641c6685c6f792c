"""A connection whose requests may be passed through: the passage whose request comes in, and those that wait for their turn or have it.

A passage has its place in the order of the connection's answers like any other request, and writes its answer itself
when its turn comes. Invariants: while one has its turn nothing else is written; a passage whose connection ends is cancelled; while an
upstream doesn't take what the sender brings, nothing is read from the sender, and it isn't late.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from forwarder.sources.http import answers
from forwarder.sources.http.answering import Answering
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.connection import ENDING, IDLE, NEW
from forwarder.sources.http.head import Head
from forwarder.sources.http.passthrough.allowed import PassedRoute
from forwarder.sources.http.passthrough.passage import Passage, PassedRequest
from forwarder.sources.http.pending import Answers, Pending
from forwarder.sources.http.routes import Route

_RESET: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: on, for no time."""


class Turn(Pending):
    """A passage's place in the order of answers."""

    __slots__ = ("passage",)

    def __init__(self, connection: Answers, passage: Passage) -> None:
        super().__init__(connection)
        self.passage = passage

    def overdue(self, now: float, timeout: float) -> bool:  # noqa: ARG002 — a passage has its own limits
        """Never."""
        return False

    def first(self) -> None:
        """See `Pending.first`."""
        self.passage.first()

    def resumed(self) -> None:
        """See `Pending.resumed`."""
        self.passage.resumed()

    def forget(self) -> None:
        """See `Pending.forget`."""
        super().forget()
        self.passage.cancel()


class Passing(Answering):
    """A connection that passes requests through. It is the `Sender` of its passages."""

    __slots__ = ("_passage", "_passed")

    _passage: Passage | None
    """The passage whose request is coming in."""
    _passed: PassedRoute | None
    """The route of the request that is coming in, if it is one that goes through."""

    @property
    def unread(self) -> bool:
        """Whether the sender doesn't read its answers."""
        return self._unread

    def _find_passed(self, url: bytes) -> PassedRoute | None:
        """The route of a target that goes through."""
        service = self._shared.passthrough
        self._passed = None if service is None else service.allowed.find(self._shared.routes.target(url))
        return self._passed

    def _sender_of_request(self, head: Head) -> str:
        """Who shares, with the request whose head has come in."""
        return self._shared.addresses.sender(self._peer, head.forwarded_for, head.forwarded)

    def _pass_on(self, passed: PassedRoute, head: Head, method: bytes, *, modern: bool) -> Answer | None:
        """Pass on the request whose head has come in; or its answer, if that is clear already."""
        service = self._shared.passthrough
        request = PassedRequest(
            passed=passed,
            method=method,
            target=self._shared.routes.target(head.url),
            lines=tuple(head.lines),
            content_length=None if b"transfer-encoding" in head.rare else max(0, head.content_length),
            modern=modern,
            origin=head.origin,
            path="" if self._shared.path is None else self._shared.path.after(head.path),
            peer=None if self._peer.address is None else str(self._peer.address),
            sender=self._sender_of_request(head),
        )
        begun = answers.NOT_FOUND if service is None else service.begin(request, self, self._shared.headroom)
        if isinstance(begun, Answer):
            return begun
        self._passage = begun
        return None

    def _complete_passage(self, passage: Passage, route: Route, headers: bytes) -> None:
        """Its request is complete: it waits for its turn, which may be now."""
        turn = Turn(self, passage)
        turn.bodiless = passage.request.method == b"HEAD"
        self._wait(turn, route, headers)
        if self._last:
            self._phase = ENDING
        passage.complete()
        if passage.refusal is not None:
            self.refuse(passage)
        elif self._waiting[0] is turn:
            turn.first()

    def eof_received(self) -> bool:
        """See `Connection.eof_received`. A sender that waits for nothing but the upstream has left: the upstream needn't work for it."""
        passages = [pending.passage for pending in self._waiting if isinstance(pending, Turn)]
        if not passages or len(passages) < len(self._waiting):
            return super().eof_received()
        if passages[0].begun:
            self.drop(passages[0])
        else:
            self._forget_waiting()
        return False

    def hold(self) -> None:
        """See `Tap.hold`."""
        self._ahead += 1
        self._transport.pause_reading()

    def read_more(self) -> None:
        """See `Tap.read_more`."""
        self._ahead -= 1
        self._read_on()

    def begin_answer(self, passage: Passage, status: int, start: bytes) -> None:  # noqa: ARG002 — the first in turn, always
        """See `Sender.begin_answer`."""
        turn = self._waiting[0]
        if turn.route is not None:
            turn.route.count(status)
        if self._ends_with_first():
            self._phase = ENDING
            start += answers.CLOSE
        self._write(start + turn.headers + b"\r\n")

    def write_answer(self, data: bytes) -> None:
        """See `Sender.write_answer`."""
        self._write(data)

    def end_answer(self, passage: Passage) -> None:  # noqa: ARG002 — the first in turn, always
        """See `Sender.end_answer`."""
        ends = self._ends_with_first()
        self._waiting.popleft().connection = None
        if ends:
            self._end(read=True)
            return
        if self._phase == IDLE:
            self._since = NEW
        self._give_due()

    def refuse(self, passage: Passage) -> None:
        """See `Sender.refuse`."""
        for turn in self._waiting:
            if isinstance(turn, Turn) and turn.passage is passage:
                turn.answer, turn.due = passage.refusal, True
        self._give_due()

    def drop(self, passage: Passage) -> None:  # noqa: ARG002 — its connection goes, and everything with it
        """See `Sender.drop`. It is reset: where the end of the connection is that of the body, an ordinary end would pass for one."""
        bound = self._transport.get_extra_info("socket")
        if bound is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def _ends_with_first(self) -> bool:
        """Whether the answer that is first in turn is the last."""
        return len(self._waiting) == 1 and (self._phase == ENDING or (self._phase == IDLE and self._last))
