"""The books of the log: what was received, delivered and dropped, per lane, by all records up to
an offset.

Dead letters aren't among them: their database counts them, and what was received only to become
one (docs/decisions/0010). A lane that has nothing in the buffer may be folded into `others`, so
that senders with made-up keys can't make a checkpoint grow.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import Any, Final

import msgspec

from forwarder.core.event import Lane
from forwarder.core.ports import Fate, drop_cause

MAX_LANES: Final = 1000


class LaneTotals(msgspec.Struct):
    """One lane's figures, in events."""

    received: dict[str, int] = msgspec.field(default_factory=dict)
    """By source."""
    delivered: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    """By reason."""

    def add(self, other: LaneTotals) -> None:
        """Add the figures of another lane."""
        self.delivered += other.delivered
        for mine, its in ((self.received, other.received), (self.dropped, other.dropped)):
            for key, count in its.items():
                mine[key] = mine.get(key, 0) + count

    @property
    def open(self) -> int:
        """Events that are neither delivered nor dropped."""
        return sum(self.received.values()) - self.delivered - sum(self.dropped.values())


class _LaneEntry(msgspec.Struct, array_like=True):
    api_key: str | None
    historical: bool
    account: LaneTotals


class LogBooks:
    """The figures of all lanes; lane None is that of events whose lane is unknown."""

    def __init__(self) -> None:
        self.lanes: defaultdict[Lane | None, LaneTotals] = defaultdict(LaneTotals)
        self.others = LaneTotals()

    def receive(self, lane: Lane | None, source: str, count: int) -> None:
        """Count received events."""
        received = self.lanes[lane].received
        received[source] = received.get(source, 0) + count

    def settle(self, lane: Lane, fate: str, count: int) -> None:
        """Count settled events; the dead letters count burials."""
        if fate == Fate.DELIVERED:
            self.lanes[lane].delivered += count
        elif fate != Fate.DEAD_LETTERED:
            self.drop(lane, fate, count)

    def drop(self, lane: Lane | None, reason: str, count: int) -> None:
        """Count dropped events."""
        dropped = self.lanes[lane].dropped
        dropped[drop_cause(reason).value] = dropped.get(reason, 0) + count

    def fold(self, most: int = MAX_LANES) -> None:
        """Fold lanes that have nothing in the buffer and nothing among the dead letters into
        `others`, when there are too many.
        """
        if len(self.lanes) <= min(most, MAX_LANES):
            return
        for lane in [
            lane for lane, account in self.lanes.items() if lane is not None and not account.open
        ]:
            self.others.add(self.lanes.pop(lane))

    def merge(self, other: LogBooks) -> None:
        """Add all figures of other books."""
        for lane, account in other.lanes.items():
            self.lanes[lane].add(account)
        self.others.add(other.others)

    def copy(self) -> LogBooks:
        """A copy."""
        return deepcopy(self)

    def plain(self) -> dict[str, Any]:
        """The figures for JSON."""
        entries = [
            _LaneEntry(lane.api_key if lane else None, bool(lane and lane.historical), account)
            for lane, account in self.lanes.items()
        ]
        return {"lanes": entries, "others": self.others}

    @classmethod
    def of_plain(cls, plain: Any) -> LogBooks:
        """The books of `plain`. Raises `msgspec.ValidationError`."""
        books = cls()
        books.others = msgspec.convert(plain["others"], LaneTotals)
        for entry in msgspec.convert(plain["lanes"], list[_LaneEntry]):
            books.lanes[
                None if entry.api_key is None else Lane(entry.api_key, entry.historical)
            ] = entry.account
        return books
