"""Dead letters in memory: bounded in bytes, gone with the process, each logged when it
is dead-lettered.
"""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.core.ack import AckCallback
from forwarder.core.ports import DeadLetter
from forwarder.deadletter.room import (
    DeadLetterStatistics,
    KnownKeyLookup,
    Room,
    cost_of,
    costs_by_key,
    log_dead_lettered,
    reserve_some_at_receipt,
)


class MemoryDeadLetters:
    """Dead letters that are lost with the process."""

    def __init__(self, max_bytes: int, largest: int = 0) -> None:
        """`largest`: bytes of the largest event that a request may bring."""
        self.dead_letters: list[DeadLetter] = []
        self._room = Room(max_bytes, largest)

    @property
    def max_bytes(self) -> int:
        """Most bytes that dead letters may take."""
        return self._room.limit

    @max_bytes.setter
    def max_bytes(self, limit: int) -> None:
        self._room.limit = limit

    def add(self, dead_letters: Sequence[DeadLetter]) -> bool:
        cost = sum(map(cost_of, dead_letters))
        if not self._room.fits(cost):
            return False
        self._room.take(cost, len(dead_letters))
        self.dead_letters += dead_letters
        return True

    def add_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Keep as many, from the first on, as fit the share for events rejected at receipt; return
        how many.
        """
        accepted = reserve_some_at_receipt(self._room, dead_letters)
        self.dead_letters += dead_letters[:accepted]
        return accepted

    def reserve_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Reserve room for events rejected at receipt that have to be kept, all or none; return
        whether there was room.
        """
        return self._room.reserve_at_receipt(dead_letters)

    def could_hold_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Whether they would have room in an empty share."""
        return self._room.could_hold_at_receipt(costs_by_key(dead_letters))

    def release_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Give back room that was reserved at receipt."""
        self._room.release_at_receipt(dead_letters)

    def add_reserved_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters that room was reserved for at receipt."""
        log_dead_lettered(dead_letters)
        self.dead_letters += dead_letters

    def distinguish(self, known: KnownKeyLookup) -> None:
        """Distinguish known keys from unknown ones from now on; call it again whenever
        they change.
        """
        self._room.distinguish(known)

    def reserve(self, size: int, count: int) -> int | None:
        """Reserve room for `count` dead letters of `size` bytes together; return how much, or None
        if there is less.
        """
        return self._room.reserve(size, count)

    def could_hold(self, size: int, count: int) -> bool:
        """Whether `count` dead letters of `size` bytes together would have room in an
        empty store.
        """
        return self._room.could_hold(size, count)

    def release(self, reserved: int) -> None:
        """Give back reserved room."""
        self._room.give(reserved, 0)

    def add_reserved(self, dead_letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep dead letters in their reserved room."""
        self.release(reserved)
        self.add_at_exit(dead_letters)

    def add_at_exit(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keep dead letters even beyond the limit: they free as much of the buffer."""
        self._room.take(sum(map(cost_of, dead_letters)), len(dead_letters))
        self.dead_letters += dead_letters

    # Only the store on disk calls `on_durable` later.
    def when_durable(self, on_durable: AckCallback) -> bool:  # noqa: ARG002
        """In memory they are as safe as they can be at once."""
        return True

    def statistics(self) -> DeadLetterStatistics:
        """Figures for metrics, health and tests."""
        return DeadLetterStatistics(self._room.used, self._room.limit, self._room.dead_letters)
