"""Acknowledgement: what a sender may take an answer of 200 to mean, and how it gets to know.

The levels rise: `memory` (the events are in the buffer), `disk` (an fdatasync that covers them has returned), `delivered` (the upstream
answered 200 to each event, or refused it for good and it is a durable dead letter). 200 never means more than the level that was asked for.

Invariant: an `Ack` settles once, whatever becomes of its events: cutting chunks and settling parts only count down what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from forwarder.core.errors import Backpressure


class AckLevel(StrEnum):
    """What an answer of 200 promises."""

    MEMORY = "memory"
    DISK = "disk"
    DELIVERED = "delivered"

    @property
    def rank(self) -> int:
        """The higher, the more is promised."""
        return _RANKS[self]


_RANKS = {AckLevel.MEMORY: 0, AckLevel.DISK: 1, AckLevel.DELIVERED: 2}


class Waiter(Protocol):
    """Who waits for an answer."""

    def acknowledged(self, error: Backpressure | None) -> None:
        """Called once, on the loop, never from within the call that asked: the level is reached, or it won't be and why."""


class Held(Protocol):
    """Who wants to know when events that were offered to a buffer are in it as safely as it can hold them."""

    def held(self, error: Backpressure | None) -> None:
        """Called once, on the loop, never from within `offer`. With an error the buffer has kept none of the events."""


class Ack:
    """Counts a request's events down to the last that is settled.

    `at`: when they were received, if they can be looked for by that. `comes_again`: whether its sender is told to bring all of them again
    when one is dropped to make room; else that one counts as settled.
    """

    __slots__ = ("_waiter", "at", "comes_again", "left", "watch")

    def __init__(self, events: int, waiter: Waiter, at: float = math.inf, *, comes_again: bool = True) -> None:
        self.left = events
        self.at = at
        self.comes_again = comes_again
        self.watch: Callable[[bytes, str], None] | None = None
        """Told of events as they are settled, as they stand in their chunk, and their fate, if somebody wants to know event by event."""
        self._waiter: Waiter | None = waiter

    @property
    def settled(self) -> bool:
        """Whether its waiter has been told."""
        return self._waiter is None

    def settle(self, events: int, data: bytes = b"", fate: str = "") -> None:
        """So many more of the events, which are `data` in their chunk, are delivered, or durable dead letters, or dropped and counted."""
        if self.watch is not None:
            self.watch(data, fate)
        self.left -= events
        if self.left <= 0:
            self.end(None)

    def end(self, error: Backpressure | None) -> None:
        """Tell the waiter, if it hasn't been told."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.acknowledged(error)
