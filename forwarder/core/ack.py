"""Acknowledgement: what an answer of 200 promises, and the callback that confirms it.

The levels rise: `memory` (the events are in the buffer), `disk` (an fdatasync that covers them has
returned), `delivered` (the upstream answered 200 to each event, or refused it for good and it is a
durable dead letter). 200 never means more than the requested level.

Invariant: an `Ack` calls back once, whatever becomes of its events: cutting chunks and settling
parts only count down what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

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


AckCallback: TypeAlias = Callable[[Backpressure | None], None]
"""Called once, on the loop, never from within the call that it was handed to: with None when the
level is reached, else with the reason why it will not be reached. Of what failed nothing was kept.
"""


class Ack:
    """Counts a request's events down to the last that is settled.

    `at`: when they were received, if they can be found by that. `comes_again`: whether
    the sender is asked to repeat all of them when one is dropped to make room; else
    that one counts as settled.
    """

    __slots__ = ("_callback", "at", "comes_again", "left", "watch")

    def __init__(
        self, events: int, callback: AckCallback, at: float = math.inf, *, comes_again: bool = True
    ) -> None:
        self.left = events
        self.at = at
        self.comes_again = comes_again
        self.watch: Callable[[bytes, str], None] | None = None
        """Called with events as they are settled, as they stand in their chunk, and their fate;
        for senders that get a result per event.
        """
        self._callback: AckCallback | None = callback

    @property
    def settled(self) -> bool:
        """Whether the callback was called."""
        return self._callback is None

    def settle(self, events: int, data: bytes = b"", fate: str = "") -> None:
        """So many more of the events, which are `data` in their chunk, are delivered, or durable
        dead letters, or dropped and counted.
        """
        if self.watch is not None:
            self.watch(data, fate)
        self.left -= events
        if self.left <= 0:
            self.end(None)

    def end(self, error: Backpressure | None) -> None:
        """Call back, unless that was done before."""
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback(error)
