"""What both kinds of dead letter store keep account of: the room that letters take, and what is said of them.

Invariants: what a sender's request is refused for at receipt takes at most a tenth of the room, so that a sender of rubbish can't take it
from the events that the upstream refuses; those, and a source's records, have all the rest, and wait when it is used up (architecture:
Quotas). Room that was reserved counts as used until its letters come or it is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.ports import DeadLetter, DropReason, Reason
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
    failing: str = ""
    """Why letters can't be written now; empty if they can."""
    moved_aside: tuple[Path, ...] = ()
    """The files that this process couldn't read, where they are now."""
    wanted: int = 0
    """Letters that are marked to be replayed or dropped, and weren't yet."""
    path: Path | None = None
    """The file that they are in; None if they are in memory only."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        failing = (f"dead letters can't be written: {self.failing}; refused events wait in the buffer",) if self.failing else ()
        return failing + tuple(f"a file of dead letters couldn't be read, and was moved to {path}" for path in self.moved_aside)


@dataclass(slots=True)
class LetterAccount:
    """One lane's figures as the dead letters' file has them, in events."""

    dead_lettered: dict[Reason, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    """By source; of events that no log counts as received."""
    dropped: dict[DropReason, int] = field(default_factory=dict)


@dataclass(slots=True)
class Room:
    """How much of the limit is used, in bytes, and by how many letters."""

    limit: int
    used: int = 0
    used_at_receipt: int = 0
    letters: int = 0

    def fits(self, cost: int) -> bool:
        """Whether letters of this cost can be kept."""
        return self.used + cost <= self.limit

    def fits_at_receipt(self, cost: int) -> bool:
        """Whether a letter of this cost can be kept of what is refused at receipt."""
        return self.used_at_receipt + cost <= self.limit // RECEIPT_SHARE and self.fits(cost)

    def take(self, cost: int, letters: int, *, at_receipt: bool = False) -> None:
        """Letters are kept."""
        self.used += cost
        self.letters += letters
        if at_receipt:
            self.used_at_receipt += cost

    def reserve(self, size: int, count: int) -> int | None:
        """Take room for letters that may come, `size` bytes of data and words; how much, or None if there isn't as much."""
        cost = size + count * LETTER_OVERHEAD
        if not self.fits(cost):
            return None
        self.used += cost
        return cost

    def could_hold(self, size: int, count: int) -> bool:
        """Whether so many letters, `size` bytes of data and words, would have room if there were no others."""
        return size + count * LETTER_OVERHEAD <= self.limit

    def give(self, cost: int, letters: int, *, at_receipt: bool = False) -> None:
        """Letters are gone."""
        self.take(-cost, -letters, at_receipt=at_receipt)


def cost_of(letter: DeadLetter) -> int:
    """What the letter counts for against the limit, in bytes."""
    return len(letter.data) + len(letter.why) + len(letter.attributes) + LETTER_OVERHEAD


def how_many_fit_at_receipt(room: Room, letters: Sequence[DeadLetter]) -> int:
    """Take the room for as many of the letters, from the first on, as have it; how many those are. Logs what becomes of them."""
    kept = 0
    for letter in letters:
        cost = cost_of(letter)
        if not room.fits_at_receipt(cost):
            break
        room.take(cost, 1, at_receipt=True)
        kept += 1
    _log_buried(letters[:kept])
    if kept < len(letters):
        _log.warning("events refused at receipt were dropped: their share of the dead letters is full", events=len(letters) - kept)
    return kept


def _log_buried(letters: Sequence[DeadLetter]) -> None:
    """One line for each lane and reason; `why` is the first one's."""
    counted = Counter((letter.lane, letter.reason) for letter in letters)
    first = {(letter.lane, letter.reason): letter.why for letter in reversed(letters)}
    for (lane, reason), count in counted.items():
        label = lane_label(lane) if lane else UNDECODABLE
        _log.warning("events became dead letters", lane=label, reason=reason.value, events=count, why=first[lane, reason])
