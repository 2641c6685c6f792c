"""The room that dead letters take, in memory or on disk, and the log lines about them.

Events rejected at receipt have a share: a tenth of the room, and at least what the largest event
needs. In it one rule over free bytes holds, as in the buffer: a key may have 7 x free, unknown
keys together free / 7 (7 x free while no key is known). Events that the service itself wouldn't
ingest are dropped when it is full, and never take more than the tenth; others have to be kept, or
their request is rejected. Events that the upstream refuses, and a source's records, have all the
rest, and wait when it is used up.

Invariant: reserved room counts as used until its dead letters come or it is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import structlog

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, DropCause, Reason
from forwarder.telemetry.labels import UNDECODABLE, lane_label

RECEIPT_SHARE: Final = 10
ALPHA: Final = 7
LONGEST_WHY: Final = 100
"""Most characters of the reason given for an event rejected at receipt."""
DEAD_LETTER_OVERHEAD: Final = 400
"""Bytes that a dead letter costs beside its event and its texts."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DeadLetterStatistics:
    """`bytes` is what counts against the limit."""

    bytes: int
    limit_bytes: int
    dead_letters: int
    failing: str = ""
    """Why nothing can be written now; empty if it can."""
    quarantined: tuple[Path, ...] = ()
    """The new paths of files that this process couldn't read."""
    marked: int = 0
    """How many are marked for replay or drop."""
    path: Path | None = None
    """The database; None in memory."""
    emptied: bool = False
    """Whether the database was an empty file when this process opened it."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for operators."""
        failing = (
            (f"dead letters can't be written: {self.failing}; refused events wait in the buffer",)
            if self.failing
            else ()
        )
        emptied = (
            (f"the dead letters' file {self.path} was empty at the start: what it held is gone",)
            if self.emptied
            else ()
        )
        return (
            *failing,
            *emptied,
            *(
                f"a file of dead letters couldn't be read, and was quarantined as {path}"
                for path in self.quarantined
            ),
        )


@dataclass(slots=True)
class DeadLetterTotals:
    """One lane's figures in the dead letters' database, in events."""

    dead_lettered: dict[Reason, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    """By source; of events that no log counts as received."""
    dropped: dict[DropCause, int] = field(default_factory=dict)


class KnownKeyLookup(Protocol):
    """Tells known project keys from unknown ones."""

    def __contains__(self, api_key: str) -> bool: ...

    @property
    def protects(self) -> bool:
        """Whether there are any, whose room is protected from unknown ones."""


class _NoKeys:
    """Treats all keys as known."""

    protects = False

    def __contains__(self, api_key: str) -> bool:
        return True


class Room:
    """How much of the limit is used, in bytes, and by how many dead letters; of those rejected at
    receipt also by which keys.
    """

    def __init__(self, limit: int, largest: int = 0) -> None:
        """`largest`: bytes of the largest event that a request may bring."""
        self.limit = limit
        self.used = 0
        self.dead_letters = 0
        self.used_at_receipt = 0
        self._largest = largest
        self._by_key: dict[str, int] = {}
        self._unknown = 0
        self._known: KnownKeyLookup = _NoKeys()

    @property
    def share(self) -> int:
        """What events rejected at receipt may take together, including the
        reserve that one key leaves.
        """
        largest = self._largest + DEAD_LETTER_OVERHEAD + LONGEST_WHY
        return min(self.limit, max(self.limit // RECEIPT_SHARE, -(-largest * (ALPHA + 1) // ALPHA)))

    def distinguish(self, known: KnownKeyLookup) -> None:
        """Distinguish known keys from unknown ones from now on; call it again whenever
        they change.
        """
        self._known = known
        self._unknown = sum([size for key, size in self._by_key.items() if key not in known])

    def fits(self, cost: int) -> bool:
        """Whether there is room for this cost."""
        return self.used + cost <= self.limit

    def fits_at_receipt(self, costs: Mapping[str, int], share: int) -> bool:
        """Whether `share` has room for these costs, by key, of events rejected at receipt."""
        total = sum(costs.values())
        free = share - self.used_at_receipt - total
        if free < 0 or not self.fits(total):
            return False
        if any(self._by_key.get(key, 0) + cost > ALPHA * free for key, cost in costs.items()):
            return False
        unknown = sum([cost for key, cost in costs.items() if key not in self._known])
        return not unknown or self._unknown + unknown <= (
            free // ALPHA if self._known.protects else ALPHA * free
        )

    def could_hold_at_receipt(self, costs: Mapping[str, int]) -> bool:
        """Whether these costs, by key, would have room in an empty share, if all keys
        were known.
        """
        free = self.share - sum(costs.values())
        return all(cost <= ALPHA * free for cost in costs.values())

    def take(self, cost: int, dead_letters: int) -> None:
        """Count dead letters that are kept."""
        self.used += cost
        self.dead_letters += dead_letters

    def take_at_receipt(self, api_key: str, cost: int, dead_letters: int) -> None:
        """Count dead letters of a key that were rejected at receipt."""
        self.take(cost, dead_letters)
        self.used_at_receipt += cost
        left = self._by_key.pop(api_key, 0) + cost
        if left:
            self._by_key[api_key] = left
        if api_key not in self._known:
            self._unknown += cost

    def reserve(self, size: int, count: int) -> int | None:
        """Reserve room for `count` dead letters, `size` bytes of data and texts; return how much,
        or None if there is less.
        """
        cost = size + count * DEAD_LETTER_OVERHEAD
        if not self.fits(cost):
            return None
        self.used += cost
        return cost

    def could_hold(self, size: int, count: int) -> bool:
        """Whether `count` dead letters, `size` bytes of data and texts, would have room in an
        empty store.
        """
        return size + count * DEAD_LETTER_OVERHEAD <= self.limit

    def give(self, cost: int, dead_letters: int) -> None:
        """Count dead letters that are removed."""
        self.take(-cost, -dead_letters)

    def reserve_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Reserve room for events rejected at receipt that have to be kept, all or none; return
        whether there was room.
        """
        return self.take_all_at_receipt(dead_letters, self.share)

    def take_all_at_receipt(self, dead_letters: Sequence[DeadLetter], share: int) -> bool:
        """Count dead letters rejected at receipt if `share` has room for all of them; return
        whether it has.
        """
        costs = costs_by_key(dead_letters)
        if not self.fits_at_receipt(costs, share):
            return False
        for key, cost in costs.items():
            self.take_at_receipt(key, cost, 0)
        self.dead_letters += len(dead_letters)
        return True

    def release_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Give back room that was reserved at receipt."""
        for key, cost in costs_by_key(dead_letters).items():
            self.take_at_receipt(key, -cost, 0)
        self.dead_letters -= len(dead_letters)


def cost_of(dead_letter: DeadLetter) -> int:
    """What a dead letter counts for against the limit, in bytes."""
    return (
        len(dead_letter.data)
        + len(dead_letter.why)
        + len(dead_letter.attributes)
        + DEAD_LETTER_OVERHEAD
    )


def key_of(lane: Lane | None) -> str:
    """The project key of a dead letter's lane, or empty."""
    return "" if lane is None else lane.api_key


def costs_by_key(dead_letters: Sequence[DeadLetter]) -> dict[str, int]:
    """What dead letters count for, by project key."""
    costs: dict[str, int] = {}
    for dead_letter in dead_letters:
        key = key_of(dead_letter.lane)
        costs[key] = costs.get(key, 0) + cost_of(dead_letter)
    return costs


def reserve_some_at_receipt(room: Room, dead_letters: Sequence[DeadLetter]) -> int:
    """Reserve room at receipt for as many as have it, from the first on; return how many. Logs
    what becomes of them.
    """
    share = room.limit // RECEIPT_SHARE
    accepted = len(dead_letters)
    if not room.take_all_at_receipt(dead_letters, share):
        accepted = 0
        for dead_letter in dead_letters:
            key = key_of(dead_letter.lane)
            cost = cost_of(dead_letter)
            if not room.fits_at_receipt({key: cost}, share):
                break
            room.take_at_receipt(key, cost, 1)
            accepted += 1
    log_dead_lettered(dead_letters[:accepted])
    if accepted < len(dead_letters):
        _log.warning(
            "events rejected at receipt were dropped: their share of the dead letters is full",
            events=len(dead_letters) - accepted,
        )
    return accepted


def log_dead_lettered(dead_letters: Sequence[DeadLetter]) -> None:
    """Log events rejected at receipt: one line for each lane and reason; `why` is the
    first one's.
    """
    counted = Counter((dead_letter.lane, dead_letter.reason) for dead_letter in dead_letters)
    first = {
        (dead_letter.lane, dead_letter.reason): dead_letter.why
        for dead_letter in reversed(dead_letters)
    }
    for (lane, reason), count in counted.items():
        label = lane_label(lane) if lane else UNDECODABLE
        _log.warning(
            "events became dead letters",
            lane=label,
            reason=reason.value,
            events=count,
            why=first[lane, reason],
        )
