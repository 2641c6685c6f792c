"""A request on its way from the intake to its answer, at each level of acknowledgement.

Invariants: a request enters the books in the same callback in which the buffer begins to count its events, and not at all if the buffer
refuses them late; its waiter is told once. What is dropped because its sender was told to come back had not been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forwarder.core.ack import Ack, AckCallback
from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import Backpressure, NotAcknowledged
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Revived
from forwarder.intake.stamping import Rejected
from forwarder.wire.v1_results import Results


class Accounting(Protocol):
    """What a request asks of the intake when it is its turn."""

    def enter(self, entry: Entry) -> None:
        """Count the request in the books; bury what of it was refused at receipt."""

    def leave(self, entry: Entry) -> None:
        """The request isn't accepted after all."""

    def written(self, held: AckCallback) -> bool:
        """Whether all dead letters are durable; else `held` is called when they are."""

    def withdraw(self, ack: Ack) -> list[Chunk]:
        """Take what still waits of a request out of the buffer."""

    def drop_withdrawn(self, chunks: Sequence[Chunk]) -> None:
        """Settle and count what was withdrawn."""

    def ended(self, delivery: AwaitedDelivery, error: Backpressure | None) -> None:
        """Its waiter is being told."""


class Entry:
    """One request that is being taken. At the level `disk` it waits for the buffer itself: there is one for each event of many senders."""

    __slots__ = ("accounting", "chunks", "now", "nulled", "overflow", "rejected", "reserved", "results", "revived", "source", "waiter")

    def __init__(self, accounting: Accounting, chunks: Sequence[Chunk], source: str, now: float, waiter: AckCallback) -> None:
        self.accounting = accounting
        self.chunks = chunks
        self.source = source
        self.now = now
        self.waiter = waiter
        self.rejected: Sequence[tuple[Lane, Rejected]] = ()
        self.reserved: Sequence[DeadLetter] = ()
        """Letters of those that have to be kept; their room is taken already."""
        self.overflow: Sequence[tuple[Lane, int]] = ()
        """Further rejected events, which are dropped: no request may bring so many dead letters."""
        self.revived: Revived | None = None
        self.nulled = 0
        self.results: Results | None = None
        """For a sender that is told event by event."""

    def held(self, error: Backpressure | None) -> None:
        """See `core.ack.AckCallback`."""
        if error is None:
            self.accounting.enter(self)
            if self.rejected and not self.accounting.written(self.waiter):
                return
        else:
            self.accounting.leave(self)
        self.waiter(error)


class AwaitedDelivery:
    """A request whose sender waits until all its events are delivered, or durable dead letters."""

    __slots__ = ("_entered", "_entry", "_timer", "_waiter", "ack")

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._waiter: AckCallback | None = entry.waiter
        self._timer: Timer | None = None
        self._entered = False
        self.ack = Ack(sum([chunk.count for chunk in entry.chunks]), self.acknowledged, entry.now)
        if entry.results is not None:
            self.ack.watch = entry.results.settled
        for chunk in entry.chunks:
            chunk.ack = self.ack

    def start(self, clock: Clock, timeout: float) -> None:
        """Wait no longer than `timeout` seconds from now on."""
        self._timer = clock.call_later(timeout, self.expire)

    def held(self, error: Backpressure | None) -> None:
        """The buffer has the events, or none of them. They are withdrawn at once if the time is over already."""
        if error is not None:
            self._entry.accounting.leave(self._entry)
            self.ack.end(error)
            return
        self._entered = True
        accounting = self._entry.accounting
        accounting.enter(self._entry)
        if self._waiter is None:
            accounting.drop_withdrawn(accounting.withdraw(self.ack))

    def acknowledged(self, error: Backpressure | None) -> None:
        """All events are settled, or one was dropped. What became a dead letter has to be written before the sender may forget it."""
        if self._waiter is None:
            return
        if error is not None:
            self.fail(error)
        elif self._entry.accounting.written(self._finish):
            self._finish(None)

    def expire(self) -> None:
        """The time is over."""
        self.fail(NotAcknowledged("the events could not be delivered in time"))

    def fail(self, error: Backpressure) -> None:
        """Tell the sender to come back, and drop what it will bring again: all that wasn't sent yet."""
        accounting, results = self._entry.accounting, self._entry.results
        chunks = accounting.withdraw(self.ack) if self._entered else []
        self.ack.watch = None  # what is heard from now on comes too late: a dead letter, say, that is not durable when the answer is given
        if results is not None and self._entered and results.retry_rest([chunk.data for chunk in chunks]):
            waiter = self._leave(error)
            if waiter is not None and accounting.written(waiter):
                waiter(None)
        else:
            self._finish(error)
        self.ack.end(error)
        accounting.drop_withdrawn(chunks)

    def _finish(self, error: Backpressure | None) -> None:
        waiter = self._leave(error)
        if waiter is not None:
            waiter(error)

    def _leave(self, error: Backpressure | None) -> AckCallback | None:
        """Wait no longer; who has to be told, if nobody did."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._entry.accounting.ended(self, error)
        return waiter
