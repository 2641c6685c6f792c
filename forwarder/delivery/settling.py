"""Where an event's way ends: delivered, or a dead letter.

Order of the steps, so that nothing can be lost between them: the dead letter first, then the books, then the buffer forgets the event.
Each settlement is logged here, once (a delivery only if the answer was odd, and then once a lane and kind).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog

from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.outcome import Delivered
from forwarder.core.ports import Books, DeadLetters, DropReason, Fate, Reason, letters_of
from forwarder.telemetry.labels import lane_label

_MAX_REMEMBERED = 10_000
"""Warnings given already that are remembered; past that they may be given again."""

_log = structlog.get_logger()


class Settles(Protocol):
    """The part of the buffer that settling needs."""

    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropReason) -> None:
        """Forget chunks of one lane."""


class Settler:
    """Settles batches with the dead letters, the books and the buffer. Invariant: each batch handed in is settled whole or not at all."""

    def __init__(self, buffer: Settles, dead_letters: DeadLetters, books: Books) -> None:
        self._buffer = buffer
        self._dead_letters = dead_letters
        self._books = books
        self._warned: set[tuple[Lane, str]] = set()
        self.delivered = 0
        self.warnings: Counter[str] = Counter()

    def deliver(self, batch: Batch, outcome: Delivered) -> None:
        """The upstream took the batch."""
        if outcome.warning:
            self._warn(batch, outcome.warning)
        count = batch.count
        self._books.deliver(batch.lane, count)
        self.delivered += count
        self._buffer.settle(batch.chunks, Fate.DELIVERED)

    def bury(self, batch: Batch, reason: Reason, why: str, wall: float) -> bool:
        """Make dead letters of the batch's events; False if there is no room for them, and then nothing changed."""
        letters = [letter for chunk in batch.chunks for letter in letters_of(chunk, reason, why, wall)]
        if not self._dead_letters.bury(letters):
            return False
        self._books.bury(batch.lane, reason, len(letters))
        self._buffer.settle(batch.chunks, Fate.BURIED)
        _log.warning("events became dead letters", lane=lane_label(batch.lane), reason=reason.value, events=len(letters), upstream_said=why)
        return True

    def _warn(self, batch: Batch, kind: str) -> None:
        self.warnings[kind] += 1
        if (batch.lane, kind) not in self._warned:
            if len(self._warned) >= _MAX_REMEMBERED:
                self._warned.clear()
            self._warned.add((batch.lane, kind))
            _log.warning("delivered, but the answer was odd", lane=lane_label(batch.lane), reason=kind, events=batch.count)
