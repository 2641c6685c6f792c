"""One connection to an upstream: a request goes out, its response comes in, as bytes; then the
next.

A request's head is written as bytes, its body as it comes; a response is read as it comes, a
window of it at a time. Nothing is followed, decompressed or remembered. Invariants: a connection
is free again only after a whole response to a whole request; bytes that belong to no response
close it; a response that ends early raises, so that a part of a body never passes for all of it;
what is read ahead of an answer that its sender doesn't read is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, Protocol

import httptools

from forwarder.core.headers import HeaderLine

READ_AHEAD: Final = 64 * 1024
"""Bytes of a response that may wait for its sender to read them; past it no more
is read from the upstream.
"""

MAX_HEAD: Final = 128 * 1024
"""Bytes that come in before the end of a response's head, or without any of its body, at most."""

_BODILESS: Final = frozenset({204, 304})
_SWITCHING: Final = 101
_LENGTH_BYTES: Final = len(b"content-length")
_CODING_BYTES: Final = len(b"transfer-encoding")
LAST_CHUNK: Final = b"0\r\n\r\n"


class BrokenAnswer(ConnectionError):
    """The upstream's response is no HTTP, or ends early."""


class OutgoingBody(Protocol):
    """The body of a request."""

    def whole(self) -> Sequence[bytes] | None:
        """All of it in pieces, if it has come in, may be written at once, and was not read yet;
        that reads it.
        """

    async def read(self) -> bytes | memoryview:
        """What has come in, waiting for it; empty at the end."""

    def discard(self) -> None:
        """The rest isn't needed."""

    def progressed(self) -> None:
        """The upstream took what was read."""


class OutgoingRequest(NamedTuple):
    """A request to send on."""

    method: bytes
    target: bytes
    lines: bytes
    """Its header lines but those of host and framing, each with its end."""
    length: int | None
    """Of its body; None: in chunks."""
    body: OutgoingBody | None


class ArrivingAnswer:
    """A response, of which the head has come in."""

    __slots__ = (
        "_arrived",
        "_connection",
        "_error",
        "_pieces",
        "_size",
        "chunked",
        "complete",
        "length",
        "lines",
        "reason",
        "status",
    )

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._arrived: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.complete = False
        """Whether all of it has come in."""
        self.status = 0
        self.reason = b""
        self.lines: list[HeaderLine] = []
        self.length: bytes | None = None
        """What `Content-Length` says."""
        self.chunked = False

    def body(self) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """What has come in of the body, and what follows; None if that is all."""
        first = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._connection.resume()
        return first, None if self.complete else self.pieces()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `BrokenAnswer` where it is cut short; cancellation reads
        nothing more.
        """
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._size -= len(piece)
                if self._size <= READ_AHEAD:
                    self._connection.resume()
                yield piece
            self._check()
            if self.complete:
                return
            await self.wait()

    async def wait(self) -> None:
        """Wait until more of it comes in, or it ends."""
        self._arrived = asyncio.get_running_loop().create_future()
        try:
            await self._arrived
        finally:
            self._arrived = None

    async def head(self) -> None:
        """Wait for the head. Raises `BrokenAnswer`, or what ended the connection."""
        while not self.status:
            self._check()
            await self.wait()

    def _check(self) -> None:
        """Raises what ended it, which is kept here no longer: it would be part of its own
        traceback. Whoever asks again gets another error with the same words.
        """
        error = self._error
        if error is not None:
            self._error = BrokenAnswer(str(error))
            try:
                raise error
            finally:
                del error

    def add(self, piece: bytes) -> None:
        """More of the body came in."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > READ_AHEAD:
            self._connection.pause()
        self.wake()

    def end(self, error: Exception | None = None) -> None:
        """All of it came in, or no more will."""
        self.complete = error is None
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def release(self) -> None:
        """The sender has it, or needs no more of it: the connection is free, or closed if more
        would come. Safe to call twice.
        """
        self._connection.release(self)


class UpstreamConnection(asyncio.Protocol):
    """One connection. `sent` and `answer` belong to the request that is on it."""

    _parser: httptools.HttpResponseParser
    """Only while it is open: they refer to each other."""

    def __init__(
        self,
        on_made: Callable[[UpstreamConnection], None],
        on_free: Callable[[UpstreamConnection], None],
        on_lost: Callable[[UpstreamConnection], None],
    ) -> None:
        self._on_made = on_made
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._answer: ArrivingAnswer | None = None
        self._bodiless = self._interim = self._until_end = self._paused = False
        self._writer: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._head_bytes = 0
        self._reusable = False
        self.begun = False
        """Whether anything has come in since the last request."""
        self.idle_since = 0.0

    # What a request does

    def ask(self, request: OutgoingRequest, head: bytes) -> ArrivingAnswer:
        """Send a request, `head` to its empty line; its response, of which nothing has come in."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._answer = answer = ArrivingAnswer(self)
        self._bodiless = request.method == b"HEAD"
        self._interim = self._until_end = self.begun = False
        self._head_bytes = 0
        body = request.body
        if body is None:
            transport.write(head)
            return answer
        whole = None if request.length is None else body.whole()
        if whole is None:
            transport.write(head)
            writing = self._write(body, chunked=request.length is None)
            self._writer = asyncio.create_task(writing, name="send the body of a request")
            return answer
        transport.writelines([head, *whole])
        body.progressed()
        body.discard()
        return answer

    def release(self, answer: ArrivingAnswer) -> None:
        if answer is not self._answer:
            return
        self._answer = None
        writer = self._writer
        self._writer = None
        if writer is not None and not writer.done():
            writer.cancel()
        elif answer.complete and self._reusable and self.is_usable:
            self.resume()
            self._on_free(self)
            return
        self.abort()

    @property
    def is_usable(self) -> bool:
        """Whether it can be written to."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    async def _write(self, body: OutgoingBody, *, chunked: bool) -> None:
        """Send the body as it comes. However this ends, the rest of it is discarded."""
        try:
            while piece := await body.read():
                if self._transport is None:
                    return  # `connection_lost` has ended the response
                self._transport.write(chunk(piece) if chunked else piece)
                if self._writable is not None:
                    await self._writable
                body.progressed()
            if chunked and self._transport is not None:
                self._transport.write(LAST_CHUNK)
        finally:
            body.discard()

    # What the transport does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called once: with TLS, after the handshake, and not at all if that fails."""
        self._transport = transport  # type: ignore[assignment]  # a stream's
        self._parser = httptools.HttpResponseParser(self)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the response; of none, if there is no request."""
        answer = self._answer
        if answer is None or answer.complete:
            self.abort()
            return
        self.begun = True
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken("the answer isn't valid HTTP")
        else:
            if self._head_bytes > MAX_HEAD and not answer.complete:
                self._broken("the head of the answer is too large, or what is about its chunks")

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is over: that may be the end of a response."""
        self._transport = None
        vars(self).pop("_parser", None)  # if TLS through a proxy fails, there was never one
        self.resume_writing()
        answer = self._answer
        if answer is not None and not answer.complete:
            if error is None and self._until_end and answer.status:
                answer.end()
            else:
                why = (
                    "the answer was cut off before its end"
                    if answer.status
                    else "the connection was closed before an answer came"
                )
                answer.end(error if isinstance(error, OSError) else BrokenAnswer(why))
        self._on_lost(self)

    def pause_writing(self) -> None:
        """The upstream doesn't read."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It reads."""
        writable = self._writable
        self._writable = None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # What the parser finds

    def on_message_begin(self) -> None:
        """A response begins; behind a complete one none should."""
        answer = self._answer
        if answer is not None and answer.complete:
            self._broken("the upstream answers twice")

    def on_status(self, status: bytes) -> None:
        """The words of the status line, or a part of them."""
        if self._answer is not None and not self._answer.complete:
            self._answer.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line."""
        answer = self._answer
        if answer is None or answer.status:
            return
        answer.lines.append((name, value))
        if len(name) == _LENGTH_BYTES and name.lower() == b"content-length":
            answer.length = value
        elif len(name) == _CODING_BYTES and name.lower() == b"transfer-encoding":
            answer.chunked = True

    def on_headers_complete(self) -> None:
        """The head has come in; a preliminary one is skipped."""
        answer = self._answer
        if answer is None or answer.complete:
            return  # what comes behind a complete answer changes nothing of it
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200 and status != _SWITCHING
        if self._interim:
            answer.lines.clear()
            answer.reason = b""
            answer.length = None
            answer.chunked = False
            return
        answer.status = status
        bodiless = self._bodiless or status in _BODILESS
        self._until_end = not bodiless and answer.length is None and not answer.chunked
        if self._bodiless and status not in _BODILESS:
            self._reusable = self._parser.should_keep_alive()
            # The parser so far would wait for a body, and there is none.
            self._parser = httptools.HttpResponseParser(self)
            answer.end()
        else:
            answer.wake()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._answer is None or self._answer.complete:
            self._broken("the answer has no end")
        else:
            self._head_bytes = 0
            self._answer.add(piece)

    def on_message_complete(self) -> None:
        """All of the response has come in."""
        answer = self._answer
        if answer is None or answer.complete or self._interim:
            return
        self._reusable = self._parser.should_keep_alive() and not self._until_end
        answer.end()

    def _broken(self, why: str) -> None:
        self._reusable = False
        if self._answer is not None and not self._answer.complete:
            self._answer.end(BrokenAnswer(why))
        self.abort()


def chunk(piece: bytes | memoryview) -> bytes:
    """A piece of a body, as it stands in one that is sent in chunks."""
    return b"".join((b"%x\r\n" % len(piece), piece, b"\r\n"))
