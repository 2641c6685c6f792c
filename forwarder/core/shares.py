"""Bounded resources and how senders share them: connections, permits, and the bytes of requests
that are received or decoded.

A sender may hold at most `ALPHA` times what is free. A sender that is alone has 7/8 of the whole;
n greedy ones have 7/(1 + 7n) of it each; a newcomer always finds something free, of which it may
have 7/8 at once. Nothing is divided in advance: what others do not use is available to the sender
that needs it, which matters where all requests come from the one address of a proxy.

`Headroom` bounds the bytes of requests in progress. A request in progress takes memory as a
buffered one does, and while the buffer is full most of it would be rejected in the end. So the
bound shrinks as the buffer fills; both together stay within the buffer's limit and a little more.
At least `LEAST` bytes may be in progress, however full the buffer is, so that usual requests reach
the buffer and get its answer. A buffer that is small beside the largest request never shrinks the
bound below that: a request that could never fit gets a 413.

Invariants: `held` is the sum of what the senders hold; a sender that holds nothing takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from forwarder.core.errors import BufferFull

ALPHA: Final = 7
"""How many times what is free a sender may hold."""


def size_for(most: int) -> int:
    """The whole of which a sender that is alone may hold `most`."""
    return -(-most * (ALPHA + 1) // ALPHA)


class Shares:
    """Who holds how much. The size of the whole is the caller's, for it may change."""

    __slots__ = ("_held", "held")

    def __init__(self) -> None:
        self.held = 0
        self._held: dict[Hashable, int] = {}

    def add(self, sender: Hashable, amount: int) -> None:
        """The sender holds so much more; less, if `amount` is negative."""
        self.held += amount
        held = self._held.get(sender, 0) + amount
        if held:
            self._held[sender] = held
        else:
            self._held.pop(sender, None)

    def of(self, sender: Hashable) -> int:
        """What the sender holds."""
        return self._held.get(sender, 0)

    def exceeded(self, sender: Hashable, size: int) -> bool:
        """Whether the sender holds more than its share of a whole of `size`, or all together hold
        more than there is.
        """
        free = size - self.held
        return free < 0 or self._held.get(sender, 0) > ALPHA * free

    def largest(self) -> tuple[Hashable, int]:
        """The sender that holds most, and how much. Some sender holds something."""
        return max(self._held.items(), key=lambda item: item[1])


class Pool:
    """Permits, of which a sender may hold its share."""

    __slots__ = ("_shares", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._shares = Shares()

    @property
    def held(self) -> int:
        """Permits that are held."""
        return self._shares.held

    def acquire(self, sender: Hashable) -> bool:
        """One permit more for the sender, to be released; False if it holds its share, or there is
        none left.
        """
        if self._shares.of(sender) >= ALPHA * (self.size - self._shares.held):
            return False
        self._shares.add(sender, 1)
        return True

    def release(self, sender: Hashable) -> None:
        """One permit of the sender's is free again."""
        self._shares.add(sender, -1)

    def largest(self) -> tuple[Hashable, int]:
        """The sender that holds most, and how many. Some sender holds one."""
        return self._shares.largest()


WATCHED: Final = 4_000_000
"""Bytes after whose receipt memory is measured, if it has a limit."""

LEAST: Final = 4_000_000
"""Bytes that may be in progress beside a full buffer."""


class Holds(Protocol):
    """What headroom needs of a buffer."""

    @property
    def used(self) -> int:
        """Bytes held, the overhead of holding them included."""

    @property
    def max_bytes(self) -> int:
        """The most that it may hold."""


class HeldTogether:
    """Several buffers as one."""

    def __init__(self, buffers: Sequence[Holds]) -> None:
        self._buffers = buffers
        self.max_bytes = sum(buffer.max_bytes for buffer in buffers)

    @property
    def used(self) -> int:
        return sum([buffer.used for buffer in self._buffers])


class Headroom:
    """One for a listener and the intake behind it.

    `decoding` is what the intake counts: bytes of large bodies in the decoder process, or waiting
    for it.
    """

    def __init__(self, most: int, buffer: Holds | None = None) -> None:
        """`most`: bytes that may be in progress at any time. Without a buffer they always may."""
        self._most = most
        self._buffer = buffer
        self._receiving = Shares()
        self._unwatched = 0
        self.on_received: Callable[[], None] | None = None
        """Called whenever `WATCHED` further bytes were received of bodies that aren't complete."""
        self.decoding = 0

    @property
    def receiving(self) -> int:
        """Bytes of incomplete bodies of all senders, counted by the listener."""
        return self._receiving.held

    def add(self, sender: Hashable, size: int) -> None:
        """So many bytes of the sender's bodies arrived; with a negative `size`, so
        many are gone.
        """
        self._receiving.add(sender, size)
        if size > 0 and self.on_received is not None:
            self._unwatched += size
            if self._unwatched >= WATCHED:
                self._unwatched = 0
                self.on_received()

    def exceeded(self, sender: Hashable) -> bool:
        """Whether too much is being received, from all senders or from this one."""
        return self._receiving.exceeded(sender, self.bound())

    def bound(self) -> int:
        """Bytes that may be in progress now."""
        buffer = self._buffer
        return (
            self._most
            if buffer is None
            else max(min(self._most, self._left(buffer) - self.decoding), min(LEAST, self._most))
        )

    def check(self, size: int) -> None:
        """May a request's text of `size` bytes be worked on, beside what is being received? Raises
        `BufferFull` if not.

        It is in memory twice for a moment: as it was received, and as it will be buffered.
        """
        if (
            self._buffer is not None
            and self.receiving + self.decoding + 2 * size > self._left(self._buffer) + LEAST
        ):
            raise BufferFull(
                "too much is buffered and being received for a request of this size",
                hint="the upstream is slow, or down",
            )

    def _left(self, buffer: Holds) -> int:
        return max(buffer.max_bytes, 2 * self._most) - buffer.used
