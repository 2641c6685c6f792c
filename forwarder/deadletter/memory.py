"""Dead letters in memory: bounded in bytes, gone with the process, each logged when it is buried."""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.core.ack import AckCallback
from forwarder.core.ports import DeadLetter
from forwarder.deadletter.records import (
    LETTER_OVERHEAD,
    RECEIPT_SHARE,
    DeadLetterStatistics,
    KnownKeys,
    Room,
    cost_of,
    costs_by_key,
    how_many_fit_at_receipt,
    log_buried,
)

__all__ = ["LETTER_OVERHEAD", "RECEIPT_SHARE", "DeadLetterStatistics", "MemoryDeadLetters"]


class MemoryDeadLetters:
    """See `core.ports.DeadLetters`."""

    def __init__(self, max_bytes: int, largest: int = 0) -> None:
        """`largest`: bytes of the largest event that a request may bring."""
        self.letters: list[DeadLetter] = []
        self._room = Room(max_bytes, largest)

    @property
    def max_bytes(self) -> int:
        """The limit."""
        return self._room.limit

    @max_bytes.setter
    def max_bytes(self, limit: int) -> None:
        self._room.limit = limit

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep all of the letters, or none and answer False: there is no room."""
        cost = sum(map(cost_of, letters))
        if not self._room.fits(cost):
            return False
        self._room.take(cost, len(letters))
        self.letters += letters
        return True

    def bury_at_receipt(self, letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share of what is refused at receipt; how many those were."""
        kept = how_many_fit_at_receipt(self._room, letters)
        self.letters += letters[:kept]
        return kept

    def reserve_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Take the room for letters at receipt that have to be kept, all or none; whether there was room."""
        return self._room.reserve_at_receipt(letters)

    def could_hold_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Whether letters at receipt would have room if there were no others."""
        return self._room.could_hold_at_receipt(costs_by_key(letters))

    def release_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Letters that room was taken for aren't needed."""
        self._room.release_at_receipt(letters)

    def bury_reserved_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters that room was taken for."""
        log_buried(letters)
        self.letters += letters

    def distinguish(self, known: KnownKeys) -> None:
        """Tell known keys from unknown ones, from now on; to be called again whenever they change."""
        self._room.distinguish(known)

    def reserve(self, size: int, count: int) -> int | None:
        """Keep room free for so many letters of `size` bytes together; how much that is, or None if there isn't as much."""
        return self._room.reserve(size, count)

    def could_hold(self, size: int, count: int) -> bool:
        """Whether so many letters of `size` bytes together would have room if there were no others."""
        return self._room.could_hold(size, count)

    def release(self, reserved: int) -> None:
        """Room that was kept free isn't needed."""
        self._room.give(reserved, 0)

    def bury_reserved(self, letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep letters in the room that was kept free for them."""
        self.release(reserved)
        self.bury_at_exit(letters)

    def bury_at_exit(self, letters: Sequence[DeadLetter]) -> None:
        """Keep the letters whatever the limit: what they held of the buffer is free with them."""
        self._room.take(sum(map(cost_of, letters)), len(letters))
        self.letters += letters

    def when_durable(self, held: AckCallback) -> bool:  # noqa: ARG002 - the store on disk makes it wait
        """Whether all letters are as safe as they can be: in memory they are at once."""
        return True

    def statistics(self) -> DeadLetterStatistics:
        """Figures for metrics, health and tests."""
        return DeadLetterStatistics(self._room.used, self._room.limit, self._room.letters)
