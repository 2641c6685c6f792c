"""A request's body on its way from the sender to the upstream, a window of it at a time.

Invariants: what it holds is never more than the window and one read; past the window no more is read from the sender until what it holds is
taken; what it holds is in the listener's account of bytes being received, and while that is over its bound, or over the sender's share of
it, the window is shut: others have the memory. Once nobody takes the body any more the rest of it is thrown away as it comes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

from forwarder.core.shares import Headroom
from forwarder.sources.http.passthrough.patience import Patience
from forwarder.sources.http.passthrough.policy import WINDOW


class Tap(Protocol):
    """The sender's connection, as far as it brings the body."""

    def hold(self) -> None:
        """Read no more for now."""

    def read_more(self) -> None:
        """Read on."""


class RequestBody:
    """The body of one request. Has what the protocol asks of a `Body`."""

    __slots__ = ("_arrived", "_ended", "_headroom", "_holding", "_patience", "_sender", "_tap", "_thrown_away", "_window", "length")

    def __init__(self, tap: Tap, headroom: Headroom, sender: str, patience: Patience) -> None:
        self._tap = tap
        self._headroom = headroom
        self._sender = sender
        self._patience = patience
        self._window = bytearray()
        self._arrived = asyncio.Event()
        self._ended = self._thrown_away = self._holding = False
        self.length = 0

    @property
    def held(self) -> int:
        """Bytes that wait to be taken."""
        return len(self._window)

    def add(self, piece: bytes) -> None:
        """The next piece arrived."""
        self.length += len(piece)
        if self._thrown_away:
            return
        self._window += piece
        self._headroom.add(self._sender, len(piece))
        self._arrived.set()
        if not self._holding and (len(self._window) > WINDOW or self._headroom.exceeded(self._sender)):
            self._holding = True
            self._tap.hold()

    def end(self) -> None:
        """All of it has arrived."""
        self._ended = True
        self._arrived.set()
        self._patience.sending(expected=True)

    def joined(self) -> bytes:
        """Not for use: the body isn't held whole."""
        raise TypeError("a body that is passed on can't be had whole")

    async def take(self) -> bytes:
        """What is there, waiting for it; empty at the end. Cancellation takes nothing."""
        if not (self._window or self._ended):
            self._arrived.clear()
            self._patience.sending(expected=False)
            await self._arrived.wait()
        self._patience.sending(expected=True)
        taken = bytes(self._window)
        self._empty()
        return taken

    def throw_away(self) -> None:
        """Nobody takes it any more. Safe to call twice."""
        self._thrown_away = True
        self._empty()
        if not self._ended:
            self._patience.sending(expected=False)

    def _empty(self) -> None:
        self._headroom.add(self._sender, -len(self._window))
        self._window.clear()
        if self._holding:
            self._holding = False
            self._tap.read_more()


class Outgoing(payload.Payload):
    """The body as aiohttp sends it: as it comes in, in chunks if its length isn't known (`size` is None)."""

    def __init__(self, body: RequestBody, size: int | None, patience: Patience) -> None:
        super().__init__(body, content_type="application/octet-stream")  # not sent: the sender says what it is, or nothing
        self._length = size
        self._patience = patience
        self._begun = False

    @property
    def size(self) -> int | None:
        """Bytes of the whole body."""
        return self._length

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - aiohttp's
        """Not for use: the body isn't held whole."""
        raise TypeError("a body that is passed on can't be shown")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body. However this ends, the rest of it is thrown away. Cancellation leaves it half written.

        Raises `ConnectionError` the second time, when aiohttp repeats a GET with a body: what was taken of that is gone.
        """
        if self._begun:
            raise ConnectionError("a body that is passed on can't be sent twice")
        self._begun = True
        body: RequestBody = self._value
        try:
            while taken := await body.take():
                await writer.write(taken)
                self._patience.progressed()
        finally:
            body.throw_away()

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002 - aiohttp's
        """As `write`: the parser of the request saw to the length."""
        await self.write(writer)
