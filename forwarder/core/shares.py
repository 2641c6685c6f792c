"""How senders share something of which there is a bounded amount: connections, permits, bytes being received.

The rule: a sender may hold at most `ALPHA` times what is free. A sender that is alone has 7/8 of the whole; n greedy ones have
7/(1 + 7n) of it each; and a newcomer always finds something free, of which it may have 7/8 at once. So nothing is divided in advance: what
others don't use isn't kept from the sender that needs it, which matters where everybody comes from the one address of a proxy.

Invariants: `held` is the sum of what the senders hold; a sender that holds nothing takes no memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

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
        """Whether the sender holds more than its share of a whole of `size`, or all together hold more than there is."""
        free = size - self.held
        return free < 0 or self._held.get(sender, 0) > ALPHA * free

    def largest(self) -> tuple[Hashable, int]:
        """The sender that holds most, and how much. There is one that holds something."""
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
        """One permit more for the sender, to be released; False if it holds its share, or there is none left."""
        if self._shares.of(sender) >= ALPHA * (self.size - self._shares.held):
            return False
        self._shares.add(sender, 1)
        return True

    def release(self, sender: Hashable) -> None:
        """One permit of the sender's is free again."""
        self._shares.add(sender, -1)

    def largest(self) -> tuple[Hashable, int]:
        """The sender that holds most, and how many. There is one that holds some."""
        return self._shares.largest()
