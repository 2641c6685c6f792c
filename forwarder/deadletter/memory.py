"""Dead letters in memory: bounded in bytes, gone with the process, each logged when it is buried.

Invariant: what is refused at receipt takes at most a tenth of the room, so that a sender of rubbish can't take it from the events that the
upstream refuses; those have all the rest, and their lane waits when it is used up (architecture: Quotas).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from forwarder.core.ports import DeadLetter
from forwarder.telemetry.labels import UNDECODABLE, lane_label

RECEIPT_SHARE: Final = 10
LETTER_OVERHEAD: Final = 400
"""Bytes that a letter costs beside its event and its words."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DeadLetterStatistics:
    """Bytes count as against the limit."""

    bytes: int
    limit_bytes: int
    letters: int


class MemoryDeadLetters:
    """See `core.ports.DeadLetters`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.letters: list[DeadLetter] = []
        self._used = 0
        self._used_at_receipt = 0

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep all of the letters, or none and answer False: there is no room."""
        cost = sum(map(_cost, letters))
        if self._used + cost > self.max_bytes:
            return False
        self._keep(letters, cost)
        return True

    def bury_at_receipt(self, letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share of what is refused at receipt; how many those were."""
        kept = 0
        for letter in letters:
            cost = _cost(letter)
            if self._used_at_receipt + cost > self.max_bytes // RECEIPT_SHARE or self._used + cost > self.max_bytes:
                break
            self._used_at_receipt += cost
            self._keep([letter], cost)
            kept += 1
        _log_buried(letters[:kept])
        if kept < len(letters):
            _log.warning("events refused at receipt were dropped: their share of the dead letters is full", events=len(letters) - kept)
        return kept

    def bury_at_exit(self, letters: Sequence[DeadLetter]) -> None:
        """Keep the letters whatever the limit: what they held of the buffer is free with them."""
        self._keep(letters, sum(map(_cost, letters)))

    def _keep(self, letters: Sequence[DeadLetter], cost: int) -> None:
        self.letters += letters
        self._used += cost

    def statistics(self) -> DeadLetterStatistics:
        """Figures for metrics, health and tests."""
        return DeadLetterStatistics(self._used, self.max_bytes, len(self.letters))


def _cost(letter: DeadLetter) -> int:
    return len(letter.data) + len(letter.why) + LETTER_OVERHEAD


def _log_buried(letters: Sequence[DeadLetter]) -> None:
    """One line for each lane and reason."""
    counted = Counter((letter.lane, letter.reason, letter.why) for letter in letters)
    for (lane, reason, why), count in counted.items():
        label = lane_label(lane) if lane else UNDECODABLE
        _log.warning("events became dead letters", lane=label, reason=reason.value, events=count, why=why)
