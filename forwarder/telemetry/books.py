"""The accounts of the pipeline, per lane: received = delivered + buffered + dead-lettered +
dropped(reason).

Invariants: plain integers, changed only by the verbs `open`, `receive`, `deliver`, `dead_letter`,
`restore`, `uncount_dead_letter`, `discard`, `drop_at_receipt` and `drop`, on the loop's thread;
nothing here is estimated. `buffered` isn't kept here: it is what the other figures leave, and the
buffer's own count must agree with it.
However many keys senders make up, at most `MAX_ACCOUNTS` lanes have an account beside those that
have something buffered: what idle ones hold is put together in `others`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from forwarder.core.event import Lane
from forwarder.core.ports import DropCause, DropReason, Reason
from forwarder.telemetry.labels import MAX_LABELS

K = TypeVar("K")


@dataclass(slots=True)
class Account:
    """One lane's figures, in events."""

    received: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By source."""
    delivered: int = 0
    dead_lettered: defaultdict[Reason, int] = field(default_factory=lambda: defaultdict(int))
    dropped: defaultdict[DropCause, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(
        cls,
        received: Mapping[str, int],
        dropped: Mapping[DropCause, int],
        *,
        delivered: int = 0,
        dead_lettered: Mapping[Reason, int] | None = None,
    ) -> Account:
        """An account with a copy of these figures."""
        return cls(
            defaultdict(int, received),
            delivered,
            defaultdict(int, dead_lettered or {}),
            defaultdict(int, dropped),
        )

    def add(self, other: Account) -> None:
        """Take over another account's figures."""
        self.delivered += other.delivered
        _add(self.received, other.received)
        _add(self.dead_lettered, other.dead_lettered)
        _add(self.dropped, other.dropped)

    @property
    def buffered(self) -> int:
        """What must still be in the buffer, waiting or in flight, if the books are right."""
        return (
            sum(self.received.values())
            - self.delivered
            - sum(self.dead_lettered.values())
            - sum(self.dropped.values())
        )


def _add(mine: defaultdict[K, int], its: Mapping[K, int]) -> None:
    for key, count in its.items():
        mine[key] += count


MAX_ACCOUNTS: Final = 1000


class Accounts(dict[Lane | None, Account]):
    """Accounts by lane, opened when they are asked for; key None is the account of events whose
    lane is unknown.
    """

    def __init__(self, limit: int = MAX_ACCOUNTS) -> None:
        super().__init__()
        self.limit = limit
        self.others = Account()
        """What lanes without an account of their own did."""

    def __missing__(self, lane: Lane | None) -> Account:
        if len(self) >= self.limit:
            self._fold()
        account = self[lane] = Account()
        return account

    def _fold(self) -> None:
        """Put the accounts of idle lanes together; not the oldest ones', which have a label of
        their own: no counter goes back.
        """
        younger = list(self.items())[min(MAX_LABELS, self.limit // 2) :]
        for lane in [
            lane for lane, account in younger if lane is not None and not account.buffered
        ]:
            self.others.add(self.pop(lane))


class Books:
    """The accounts of all lanes."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self.on_dropped_at_receipt: Callable[[Lane | None, str, DropCause, int], None] | None = None
        """Told of what was received and dropped at once: no record of a log says so."""

    def open(self, earlier: Mapping[Lane | None, Account], others: Account | None = None) -> None:
        """Accounts begin with figures of before the start. `others`: those of lanes that were put
        together.
        """
        for lane, account in earlier.items():
            self.accounts[lane].add(account)
        if others is not None:
            self.accounts.others.add(others)

    def receive(self, lane: Lane | None, source: str, count: int) -> None:
        """Events came in: accepted, or kept as dead letters at receipt."""
        self.accounts[lane].received[source] += count

    def deliver(self, lane: Lane, count: int) -> None:
        """The upstream took events."""
        self.accounts[lane].delivered += count

    def dead_letter(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events became dead letters."""
        self.accounts[lane].dead_lettered[reason] += count

    def restore(self, lane: Lane, reason: Reason, count: int) -> None:
        """Dead letters went back into the buffer."""
        self.accounts[lane].dead_lettered[reason] -= count

    def uncount_dead_letter(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events turned out to have been dead letters before, and counted."""
        self.accounts[lane].dead_lettered[reason] -= count

    def discard(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """An operator dropped dead letters."""
        self.accounts[lane].dead_lettered[reason] -= count
        self.accounts[lane].dropped[DropReason.OPERATOR] += count

    def drop_at_receipt(
        self, lane: Lane | None, source: str, reason: DropCause, count: int
    ) -> None:
        """Events came in and were dropped at once."""
        self.receive(lane, source, count)
        self.drop(lane, reason, count)
        if self.on_dropped_at_receipt is not None:
            self.on_dropped_at_receipt(lane, source, reason, count)

    def drop(self, lane: Lane | None, reason: DropCause, count: int) -> None:
        """Events were dropped."""
        self.accounts[lane].dropped[reason] += count
