"""One request that is passed through, from its head to the end of its answer.

Invariants: nothing of the answer is written before the request is complete and every request
before it on its connection is answered; an answer that the upstream cuts ends the connection, so
that a part of a body doesn't pass for all of it; no more is written while the sender doesn't read.
An exchange that fails before its answer has begun is answered by an error of ours; it ends once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Iterable
from http import HTTPStatus
from typing import Final, NamedTuple

from forwarder.core.clock import Clock
from forwarder.core.headers import HeaderLine
from forwarder.core.shares import Headroom
from forwarder.sources.http.passthrough.allowed import PassedRequest
from forwarder.sources.http.passthrough.upstream import PausableTimeout
from forwarder.sources.http.protocol.answer_queue import AnswerQueue, StreamedAnswer
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.sources.http.protocol.lifecycle import Lifecycle
from forwarder.sources.http.protocol.routes import Route
from forwarder.upstream.connection import LAST_CHUNK, chunk

WINDOW: Final = 64 * 1024
"""Bytes of one request's body that may wait for the upstream to read them; past it no more is read
from its sender.
"""

STALLED: Final = 75.0
"""Seconds for which a sender may leave an answer unread before its connection is dropped."""

_BODILESS: Final = frozenset({204, 304})
_PRINTABLE: Final = re.compile(rb"[ -~]*")


class SenderStalled(Exception):
    """The sender doesn't read its answer."""


class ResponseHead(NamedTuple):
    """The head of the upstream's response, as it is to be written. `length`: of its body; None if
    it isn't known.
    """

    status: int
    reason: bytes | None
    lines: Iterable[HeaderLine]
    length: bytes | None


class PassedExchange:
    """One request in flight."""

    __slots__ = ("_answer", "_clock", "_complete", "body", "request", "task", "timeout")

    def __init__(
        self,
        request: PassedRequest,
        queue: AnswerQueue,
        life: Lifecycle,
        headroom: Headroom,
        *,
        clock: Clock,
        timeout: PausableTimeout,
        window: int = WINDOW,
    ) -> None:
        """`window`: bytes of its body that may wait to be read."""
        self.request = request
        self.timeout = timeout
        self.body = PassedBody(life, headroom, request.sender, timeout, window)
        self.task: asyncio.Task[None] | None = None
        self._answer = StreamedAnswer(queue, life, self.cancel)
        self._clock = clock
        self._complete = asyncio.Event()

    # What the connection tells

    def complete(self, route: Route, headers: bytes) -> None:
        """The request is complete. `headers`: further lines of the answer."""
        self.body.end()
        self._complete.set()
        self._answer.enqueue(route, headers, bodiless=self.request.method == b"HEAD")

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self.body.discard()
        if self.task is not None:
            self.task.cancel()

    def ended(self) -> None:
        """Its task has ended. What referred to it in a circle would wait for the garbage
        collector: a fifth of all that a call costs.
        """
        self.body.discard()
        self.task = None
        self._answer.on_lost = _nothing

    # What the upstream brings

    async def answer(
        self, head: ResponseHead, first: bytes, more: AsyncIterable[bytes] | None
    ) -> None:
        """Write the answer, in its turn and as fast as it is read. `first`: what is there of its
        body; `more`: what follows, if any does.

        Raises what `more` raises; cancelled or failed, the answer is not complete.
        """
        bodiless = self.request.method == b"HEAD" or head.status in _BODILESS
        framing, chunked = _framing(
            head, bodiless=bodiless, chunks_understood=self.request.chunks_understood
        )
        start = b"".join(
            [_status_line(head), *[b"%b: %b\r\n" % line for line in head.lines], framing]
        )
        answer = self._answer
        await self._until_turn()
        piece = chunk(first) if chunked and first else first
        answer.begin(
            head.status, start, piece if more is not None or not chunked else piece + LAST_CHUNK
        )
        if more is not None:
            await self._write(more, chunked=chunked)
        answer.end()

    async def _write(self, pieces: AsyncIterable[bytes], *, chunked: bool) -> None:
        answer = self._answer
        if answer.unread:
            await self._until_read()
        async for piece in pieces:
            self.timeout.progressed()
            if piece:
                answer.write(chunk(piece) if chunked else piece)
            if answer.unread:
                await self._until_read()
        if chunked:
            answer.write(LAST_CHUNK)

    def fail(self, answer: HttpAnswer) -> None:
        """Answer this, if that is still possible; else end the connection."""
        self.body.discard()
        self._answer.fail(answer)

    async def _until_turn(self) -> None:
        if self._answer.has_turn.is_set():
            return
        await self._complete.wait()
        self.timeout.reading(expected=False)
        await self._answer.has_turn.wait()
        self.timeout.reading(expected=True)

    async def _until_read(self) -> None:
        self.timeout.reading(expected=False)
        if not await self._answer.until_read(STALLED, self._clock):
            raise SenderStalled
        self.timeout.reading(expected=True)


def _nothing() -> None:
    """There is nothing to end."""


def _framing(head: ResponseHead, *, bodiless: bool, chunks_understood: bool) -> tuple[bytes, bool]:
    """The header line that frames the body, and whether it is in chunks; without either, the end
    of the connection ends the body.

    Where there is no body, a length is that of the body that there would be; a 204 has none (RFC
    9110, 8.6).
    """
    if head.length is not None and head.status != 204:
        return b"Content-Length: %b\r\n" % head.length, False
    if bodiless or not chunks_understood:
        return b"", False
    return b"Transfer-Encoding: chunked\r\n", True


def _status_line(head: ResponseHead) -> bytes:
    """The first line of an answer, with the upstream's words if they can be repeated."""
    status = head.status
    reason = head.reason
    if reason is None or _PRINTABLE.fullmatch(reason) is None:
        reason = (
            HTTPStatus(status).phrase.encode() if status in HTTPStatus._value2member_map_ else b""
        )
    return b"HTTP/1.1 %d %b\r\n" % (status, reason)


class PassedBody:
    """The body of one request on its way from the sender to the upstream, a window of it at a
    time. Added to like a `BodyBuffer`.

    Invariants: what it holds is never more than the window and one read; past the window no more
    is read from the sender until the upstream has read what it holds; what it holds is in the
    listener's account of bytes being received, and while that is over its bound, or over the
    sender's share of it, the window is shut: others have the memory. Once the upstream reads no
    more, the rest is discarded.
    """

    __slots__ = (
        "_arrived",
        "_discarded",
        "_ended",
        "_headroom",
        "_holding",
        "_life",
        "_room",
        "_sender",
        "_timeout",
        "_window",
        "length",
    )

    def __init__(
        self,
        life: Lifecycle,
        headroom: Headroom,
        sender: str,
        timeout: PausableTimeout,
        room: int = WINDOW,
    ) -> None:
        self._life = life
        self._headroom = headroom
        self._sender = sender
        self._timeout = timeout
        self._window = bytearray()
        self._room = room
        self._arrived = asyncio.Event()
        self._ended = self._discarded = self._holding = False
        self.length = 0

    def add(self, piece: bytes) -> None:
        """The next piece arrived."""
        self.length += len(piece)
        if self._discarded:
            return
        self._window += piece
        self._headroom.add(self._sender, len(piece))
        self._arrived.set()
        if not self._holding and (
            len(self._window) > self._room or self._headroom.exceeded(self._sender)
        ):
            self._holding = True
            self._life.hold_body()

    def end(self) -> None:
        """All of it has arrived."""
        self._ended = True
        self._arrived.set()
        self._timeout.sending(expected=True)

    async def read(self) -> bytes:
        """What has arrived, waiting for it; empty at the end alone: what was discarded has none,
        and is waited for until the reader is cancelled. Cancellation reads nothing.
        """
        while not self._window and (self._discarded or not self._ended):
            self._arrived.clear()
            self._timeout.sending(expected=False)
            await self._arrived.wait()
        self._timeout.sending(expected=True)
        piece = bytes(self._window)
        self._empty()
        return piece

    async def collect(self) -> bytes | None:
        """All of it, waiting for it; None if it is more than the window, or than there is headroom
        for. Cancellation reads nothing.
        """
        while not self._ended:
            if self._holding:
                return None
            self._arrived.clear()
            self._timeout.sending(expected=False)
            await self._arrived.wait()
        self._timeout.sending(expected=True)
        whole = self.whole()
        return None if whole is None or len(whole[0]) > self._room else whole[0]

    def whole(self) -> tuple[bytes] | None:
        """All of it, if it has arrived and none of it was read; that reads it."""
        if not self._ended or self._discarded or len(self._window) < self.length:
            return None
        piece = bytes(self._window)
        self._empty()
        return (piece,)

    def progressed(self) -> None:
        """The upstream took what was read."""
        self._timeout.progressed()

    def discard(self) -> None:
        """Nobody reads it any more. Safe to call twice."""
        self._discarded = True
        self._empty()
        if not self._ended:
            self._timeout.sending(expected=False)

    def _empty(self) -> None:
        self._headroom.add(self._sender, -len(self._window))
        self._window.clear()
        if self._holding:
            self._holding = False
            self._life.release_body()
