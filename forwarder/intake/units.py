"""A unit of records that was taken, on its way to being settled.

Invariants: its waiter is told at most once, and never after it was given back; not before each of its events is delivered, a durable dead
letter, or dropped and counted (at the level `disk`: before each is durable), what of it was refused at receipt included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from forwarder.core.ack import Ack, AckCallback
from forwarder.core.errors import Backpressure
from forwarder.core.event import Lane


class Durable(Protocol):
    """What a unit asks of the dead letters."""

    def when_durable(self, held: AckCallback) -> bool:
        """Whether all letters that were buried so far are durable; else `held` is called once, later."""


class Unit:
    """See `core.records.Taken`. It waits for its events or their fsync, and for its letters."""

    __slots__ = ("_dead_letters", "_sizes", "_waiter", "ack", "at", "enter")

    def __init__(self, at: float, sizes: Mapping[Lane, tuple[int, int]], waiter: AckCallback, dead_letters: Durable) -> None:
        """`sizes`: bytes and events of each of its lanes."""
        self.at = at
        self.ack: Ack | None = None
        """Counts its events down, at the level `delivered`."""
        self.enter: Callable[[Backpressure | None], None] | None = None
        """Called when the buffer keeps its events, or doesn't, at the level `disk`: it enters the books."""
        self._sizes = sizes
        self._waiter: AckCallback | None = waiter
        self._dead_letters = dead_letters

    @property
    def lanes(self) -> Collection[Lane]:
        """See `core.records.Taken`."""
        return self._sizes.keys()

    def size_of(self, lane: Lane) -> tuple[int, int]:
        """Bytes and events that it had of a lane when it was taken."""
        return self._sizes.get(lane, (0, 0))

    def let_go(self) -> None:
        """Nobody waits for it any more."""
        self._waiter = None

    def acknowledged(self, error: Backpressure | None) -> None:
        """All its events are settled."""
        if error is not None:
            self.tell(error)
        elif self._waiter is not None and self._dead_letters.when_durable(self.letters_are_durable):
            self.tell(None)

    def held(self, error: Backpressure | None) -> None:
        """The buffer has its events as safely as it can, or none of them."""
        enter, self.enter = self.enter, None
        if enter is not None:
            enter(error)
        self.acknowledged(error)

    def tell(self, error: Backpressure | None) -> None:
        """Tell its waiter, if there is one still."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter(error)

    def letters_are_durable(self, error: Backpressure | None) -> None:
        """Its dead letters are durable. What can't be written now is tried again, and waited for again."""
        if error is None:
            self.tell(None)
        else:
            self.acknowledged(None)
