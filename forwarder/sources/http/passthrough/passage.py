"""One request that is passed through, from its head to the end of its answer.

Invariants: nothing of the answer is written before the request is complete and every request before it on its connection is answered; an
answer that the upstream cuts ends the connection, so that nobody takes a part of a body for all of it; no more is written while the
sender doesn't read. A passage that fails before its answer has begun is answered by an error of ours; it ends once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forwarder.core.clock import Clock, wait_for_event
from forwarder.core.shares import Headroom
from forwarder.sources.http.answers import Answer
from forwarder.sources.http.passthrough.allowed import PassedRoute
from forwarder.sources.http.passthrough.body import RequestBody, Tap
from forwarder.sources.http.passthrough.headers import Line
from forwarder.sources.http.passthrough.patience import Patience
from forwarder.sources.http.passthrough.policy import STALLED


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedRequest:
    """A request's head, as it came."""

    passed: PassedRoute
    method: bytes
    target: bytes
    lines: Sequence[Line]
    content_length: int | None
    """None for a body in chunks; 0 for none."""
    modern: bool = True
    """Whether its sender speaks HTTP/1.1, and so understands chunks."""
    origin: bytes = b""
    peer: str | None = None
    """The sender's address, if it is to be told."""
    sender: str = ""
    """Who shares the permits and the headroom with others."""
    path: str = ""
    """The forwarders that it has passed, this one too, as the header says it; empty for no header."""


class NotRead(Exception):
    """The sender doesn't read its answer."""


class Sender(Tap, Protocol):
    """The sender's connection."""

    @property
    def unread(self) -> bool:
        """Whether it doesn't read what was written."""

    def begin_answer(self, passage: Passage, status: int, start: bytes) -> None:
        """Write the head of the answer: `start` without the empty line. Counts it."""

    def write_answer(self, data: bytes) -> None:
        """Write a piece of the body, as it is to be on the wire."""

    def end_answer(self, passage: Passage) -> None:
        """The answer is complete: others have their turn."""

    def refuse(self, passage: Passage) -> None:
        """Answer `passage.refusal` in its turn, if the request is complete; else when it is."""

    def drop(self, passage: Passage) -> None:
        """The answer can't be completed: end the connection."""


class Passage:
    """One request under way."""

    __slots__ = ("_clock", "_complete", "_resumed", "_sender", "_turn", "begun", "body", "patience", "refusal", "request", "task")

    def __init__(self, request: PassedRequest, sender: Sender, headroom: Headroom, clock: Clock, patience: Patience) -> None:
        self.request = request
        self.patience = patience
        self.body = RequestBody(sender, headroom, request.sender, patience)
        self.refusal: Answer | None = None
        """What is answered in place of the upstream's answer."""
        self.begun = False
        """Whether the answer has begun."""
        self.task: asyncio.Task[None] | None = None
        self._sender = sender
        self._clock = clock
        self._complete = asyncio.Event()
        self._turn = asyncio.Event()
        self._resumed = asyncio.Event()

    # What the connection tells

    def complete(self) -> None:
        """The request is complete."""
        self.body.end()
        self._complete.set()

    def first(self) -> None:
        """Every request before it is answered."""
        self._turn.set()

    def resumed(self) -> None:
        """The sender reads again."""
        self._resumed.set()

    def cancel(self) -> None:
        """Nobody is there any more for the answer."""
        self.body.throw_away()
        if self.task is not None:
            self.task.cancel()

    # What the way to the upstream tells

    async def answer(self, status: int, start: bytes, pieces: AsyncIterable[bytes], framing: Framing) -> None:
        """Give the answer, in its turn and as fast as it is read. Raises what `pieces` raises; cancelled or failed, it is not complete.

        `start`: its head without the empty line, framing included.
        """
        await self._until_turn()
        self.begun = True
        self._sender.begin_answer(self, status, start)
        async for piece in pieces:
            self.patience.progressed()
            if piece:
                self._sender.write_answer(framing.wrap(piece))
            if self._sender.unread:
                await self._until_read()
        if framing.end:
            self._sender.write_answer(framing.end)
        self._sender.end_answer(self)

    def fail(self, answer: Answer) -> None:
        """Answer this, if that is still possible; else end the connection."""
        self.body.throw_away()
        if self.begun:
            self._sender.drop(self)
        else:
            self.refusal = answer
            self._sender.refuse(self)

    async def _until_turn(self) -> None:
        await self._complete.wait()
        self.patience.reading(expected=False)
        await self._turn.wait()
        self.patience.reading(expected=True)

    async def _until_read(self) -> None:
        self.patience.reading(expected=False)
        while self._sender.unread:
            self._resumed.clear()
            if not await wait_for_event(self._resumed, STALLED, self._clock):
                raise NotRead
        self.patience.reading(expected=True)


class Framing(Protocol):
    """How the end of an answer's body is told."""

    end: bytes

    def wrap(self, piece: bytes) -> bytes:
        """A piece of the body as it is on the wire."""
