"""How many bytes of requests may be in hand, being received or worked on, beside what the buffer holds.

A request that is in hand takes memory as one that is buffered does, and while the buffer is full most of it would be refused in the end.
So the bound on what is in hand shrinks as the buffer fills; both together stay within the buffer's limit and a little more.

Invariant: at least `least` bytes may be in hand, however full the buffer is, so that usual requests reach the buffer and get its answer.
A buffer that is small beside the largest request never shrinks the bound below that: a request that could never fit is told so (413).
What is being received is counted by sender: each has its share of the bound (`shares.py`), so that one sender can't take it from others.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from forwarder.core.errors import BufferFull
from forwarder.core.shares import Shares

LEAST: Final = 4_000_000
"""Bytes that may be in hand beside a full buffer."""


class Holds(Protocol):
    """What is asked of a buffer."""

    used: int
    """Bytes held, the overhead of holding them included."""
    max_bytes: int


class Headroom:
    """One for a listener and the intake behind it.

    `decoding` is the intake's account of bytes of large bodies that are decoded elsewhere, or wait for that.
    """

    def __init__(self, most: int, buffer: Holds | None = None) -> None:
        """`most`: bytes that may be in hand at any time. Without a buffer they always may."""
        self._most = most
        self._buffer = buffer
        self._receiving = Shares()
        self.decoding = 0

    @property
    def receiving(self) -> int:
        """The listener's account of bytes of bodies that aren't complete, of all senders."""
        return self._receiving.held

    def add(self, sender: Hashable, size: int) -> None:
        """So many bytes of the sender's bodies arrived; with a negative `size`, so many are gone."""
        self._receiving.add(sender, size)

    def exceeded(self, sender: Hashable) -> bool:
        """Whether too much is being received, from all senders or from this one."""
        return self._receiving.exceeded(sender, self.bound())

    def bound(self) -> int:
        """Bytes that may be in hand now."""
        buffer = self._buffer
        return self._most if buffer is None else max(min(self._most, self._left(buffer) - self.decoding), min(LEAST, self._most))

    def check(self, size: int) -> None:
        """May a request's text of `size` bytes be worked on, beside what is being received? Raises `BufferFull` if not.

        It is there twice for a moment: as it was received, and as what is to be buffered of it.
        """
        if self._buffer is not None and self.receiving + self.decoding + 2 * size > self._left(self._buffer) + LEAST:
            raise BufferFull("too much is buffered and being received for a request of this size", hint="the upstream is slow, or down")

    def _left(self, buffer: Holds) -> int:
        return max(buffer.max_bytes, 2 * self._most) - buffer.used
