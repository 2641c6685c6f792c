"""The way of a request's chunks into the buffer and the books: at the level of acknowledgement that is due, by the rule for a full buffer.

Invariant: books and buffer move in the same callback, so that a look at both between any two finds them balanced. Of a request that the
buffer refuses, at once or later, nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol

from forwarder.core.ack import Ack, AckCallback, AckLevel
from forwarder.core.clock import Clock
from forwarder.core.errors import Backpressure, BufferFull, DeadLettersFull, Draining, LaneFull, NotAcknowledged, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import Books, Buffer, DeadLetter, DropReason, Reason, WhenFull
from forwarder.intake.entry import AwaitedDelivery, Entry
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.quotas import Quotas
from forwarder.intake.stamping import Rejected
from forwarder.wire.v1_results import BUFFER_FULL

WHY: Final = {
    Reason.MISSING_EVENT: "the event has no name",
    Reason.MISSING_DISTINCT_ID: "the event has no distinct_id",
    Reason.INVALID_EVENT: "the event is no object, or its name no string",
    Reason.LONE_SURROGATE: "a lone surrogate is no text",
    Reason.TOO_LARGE: "the event is over upstream.max_event",
    Reason.MISSING_TIMESTAMP: "neither the event nor its record has a time",
}
"""What a dead letter says that was refused at receipt."""

_FULL: Final = (BufferFull, LaneFull)
"""What `when_full` is about: exactly these, no others that are like them (a disk that can't be written, say)."""


NOT_INGESTED: Final = frozenset({Reason.MISSING_EVENT, Reason.MISSING_DISTINCT_ID, Reason.INVALID_EVENT})
"""Events that the service itself answers with 200, or drops by its own rules, and doesn't ingest."""


class ReceiptDeadLetters(Protocol):
    """The dead letters, as far as they take what is refused at receipt, and what is refused of a source's records."""

    def bury_at_receipt(self, letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share for such; how many those were."""

    def reserve_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Take the room for letters at receipt that have to be kept, all or none; whether there was room."""

    def could_hold_at_receipt(self, letters: Sequence[DeadLetter]) -> bool:
        """Whether letters at receipt would have room if there were no others."""

    def release_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Letters that room was taken for aren't needed."""

    def bury_reserved_at_receipt(self, letters: Sequence[DeadLetter]) -> None:
        """Keep letters that room was taken for."""

    def reserve(self, size: int, count: int) -> int | None:
        """Keep room free for so many letters of `size` bytes together; how much that is. None: there is none, or nothing can be written."""

    def could_hold(self, size: int, count: int) -> bool:
        """Whether so many letters of `size` bytes together would have room if there were no others."""

    def release(self, reserved: int) -> None:
        """Room that was kept free isn't needed."""

    def bury_reserved(self, letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep letters in the room that was kept free for them; what they don't need of it is free again."""

    def when_durable(self, held: AckCallback) -> bool:
        """Whether all letters that were buried so far are durable, or never will be; else `held` is called once, later."""


class Admission:
    """Puts requests into the buffer, and counts them."""

    def __init__(
        self,
        buffer: Buffer,
        dead_letters: ReceiptDeadLetters,
        books: Books,
        lanes: LaneRegistry,
        quotas: Quotas,
        *,
        when_full: WhenFull,
        ack_timeout: float,
        clock: Clock,
        on_taken: Callable[[], None],
    ) -> None:
        """`ack_timeout`: how long a sender waits for delivery, in seconds."""
        self.buffer = buffer
        self.dead_letters = dead_letters
        self.books = books
        self.lanes = lanes
        self.quotas = quotas
        self._when_full = when_full
        self._rejects = when_full is WhenFull.REJECT
        self._ack_timeout = ack_timeout
        self.clock = clock
        self.on_taken = on_taken
        self._awaited: dict[AwaitedDelivery, None] = {}
        self.nulled_numbers = 0
        """NaN and Infinity that became null."""
        self.not_acknowledged = 0
        """Requests whose senders were told to come back because their events weren't delivered in time."""

    @property
    def awaited(self) -> int:
        """Requests whose senders wait for their events' delivery."""
        return len(self._awaited)

    def put_one(self, chunk: Chunk, level: AckLevel, waiter: AckCallback) -> bool:
        """`put` for one chunk with nothing beside it, the most frequent of all."""
        chunks = (chunk,)
        if level is AckLevel.MEMORY:
            try:
                self.lanes.admit(chunks)
                self.quotas.check(chunks)
                self.buffer.offer(chunks)
            except _FULL:
                if self._when_full is WhenFull.REJECT:
                    raise
            else:
                self.books.receive(chunk.lane, chunk.source, chunk.count)
                self.on_taken()
                return True
        entry = Entry(self, chunks, chunk.source, chunk.received_at, waiter)
        if level is AckLevel.DISK and self._rejects:
            self.lanes.admit(chunks)
            self.quotas.check(chunks)
            if not self.buffer.offer(chunks, entry.held):
                return False
            return self._entered(entry, level)
        return self.put(entry, level)

    def put(self, entry: Entry, level: AckLevel) -> bool:
        """Put a request's chunks into the buffer and what was refused of it to the dead letters; whether `level` is reached.

        If not, the entry's waiter is told later. Raises what the lanes, the quotas and the buffer raise, and then nothing was taken.
        """
        if not entry.rejected:
            return self._put(entry, level)
        self._reserve(entry)
        try:
            return self._put(entry, level)
        except BaseException:
            self.leave(entry)
            raise

    def _put(self, entry: Entry, level: AckLevel) -> bool:
        if level is AckLevel.DELIVERED and entry.chunks:
            return self._put_until_delivered(entry)
        if entry.chunks and not self._offer(entry, None if level is AckLevel.MEMORY else entry.held):
            return False
        return self._entered(entry, level)

    def _entered(self, entry: Entry, level: AckLevel) -> bool:
        """Count what can be counted at once; whether there is nothing to wait for."""
        self.enter(entry)
        return level is AckLevel.MEMORY or not entry.rejected or self.written(entry.waiter)

    def _put_until_delivered(self, entry: Entry) -> bool:
        awaited = AwaitedDelivery(entry)
        try:
            held = self._offer(entry, awaited.held)
        except Backpressure:
            entry.chunks = ()  # they refer to each other, and would wait for the garbage collector
            raise
        if not entry.chunks:  # they were dropped
            return self._entered(entry, AckLevel.DELIVERED)
        awaited.start(self.clock, self._ack_timeout)
        self._awaited[awaited] = None
        if held:
            awaited.held(None)
        return False

    def _offer(self, entry: Entry, held: AckCallback | None) -> bool:
        """Into the buffer, or raise; whether the chunks are held already. Where new events are dropped instead, the entry has none left."""
        try:
            return self._try(entry.chunks, held)
        except _FULL as error:
            if self._when_full is WhenFull.REJECT or entry.revived is not None or type(error) not in _FULL:
                raise
            full: Backpressure = error
        if self._when_full is WhenFull.DROP_NEWEST:
            self._drop_newest(entry)
            return True
        while True:
            self._drop_oldest(entry.chunks, full)
            try:
                return self._try(entry.chunks, held)
            except _FULL as error:
                full = error

    def _try(self, chunks: Sequence[Chunk], held: AckCallback | None) -> bool:
        self.lanes.admit(chunks)
        self.quotas.check(chunks)
        return self.buffer.offer(chunks, held)

    def _drop_newest(self, entry: Entry) -> None:
        for chunk in entry.chunks:
            self.books.turn_away(chunk.lane, chunk.source, DropReason.DROP_NEWEST, chunk.count)
        entry.chunks = ()
        if entry.results is not None:
            entry.results.drop_rest(BUFFER_FULL)

    def _drop_oldest(self, chunks: Sequence[Chunk], full: Backpressure) -> None:
        """Make some room: in the lane whose share is full, or anywhere. Raises `full` if nothing waits there."""
        for lane in self.quotas.lanes_to_shorten(chunks) if isinstance(full, LaneFull) else (None,):
            dropped = self.buffer.drop_oldest(lane)
            if dropped:
                self._drop(dropped, DropReason.DROP_OLDEST)
                return
        raise full

    def _drop(self, chunks: Sequence[Chunk], reason: DropReason) -> None:
        """Count and settle chunks that were taken off their queues. Whoever waits for their delivery is told to come back."""
        for lane, group in groupby(chunks, attrgetter("lane")):
            of_lane = list(group)
            self.books.drop(lane, reason, sum([chunk.count for chunk in of_lane]))
            for chunk in of_lane:
                if chunk.ack is not None and chunk.ack.comes_again:
                    chunk.ack.end(NotAcknowledged("the events had to make room for newer ones"))
            self.buffer.settle(of_lane, reason)

    def end_waiting(self) -> None:
        """Tell every sender that waits for delivery to come back, and drop what it will bring again."""
        for awaited in list(self._awaited):
            awaited.fail(Draining("shutting down", retry_after=2.0))

    # What a request asks for when it is its turn: see `entry.Accounting`

    def enter(self, entry: Entry) -> None:
        """Count a request in the books; bury what of it was refused at receipt. Nothing can fail from here on."""
        if entry.revived is None:
            for chunk in entry.chunks:
                self.books.receive(chunk.lane, chunk.source, chunk.count)
        else:
            for chunk in entry.chunks:
                self.books.revive(chunk.lane, entry.revived.reason, chunk.count)
        if entry.rejected:
            self._bury(entry)
        self.nulled_numbers += entry.nulled
        if entry.chunks:
            self.on_taken()

    def _reserve(self, entry: Entry) -> None:
        """Room among the dead letters for what has to be kept. Raises `DeadLettersFull`, or `RequestTooLarge` if there is never enough."""
        letters = [_letter(entry, lane, each) for lane, each in entry.rejected if each.reason not in NOT_INGESTED]
        if letters and not self.dead_letters.reserve_at_receipt(letters):
            what = f"{len(letters)} events of the request can't be delivered ({letters[0].why}), and the dead letters"
            if not self.dead_letters.could_hold_at_receipt(letters):
                raise RequestTooLarge(f"{what} could never hold them (dead_letters.max_bytes)")
            for key in {letter.lane.api_key for letter in letters if letter.lane}:
                self.quotas.ask_if_unknown(key)
            hint = "look at them with `forwarder dead-letters ls`, or raise dead_letters.max_bytes"
            raise DeadLettersFull(f"{what} have no room for them", retry_after=5.0, hint=hint)
        entry.reserved = letters

    def leave(self, entry: Entry) -> None:
        """A request isn't accepted after all: its room among the dead letters is free again."""
        letters, entry.reserved = entry.reserved, ()
        if letters:
            self.dead_letters.release_at_receipt(letters)

    def _bury(self, entry: Entry) -> None:
        source = entry.source
        reserved, entry.reserved = entry.reserved, ()
        if reserved:
            self.dead_letters.bury_reserved_at_receipt(reserved)
            self._count_buried(reserved, source)
        letters = [_letter(entry, lane, each) for lane, each in entry.rejected if each.reason in NOT_INGESTED]
        kept = self.dead_letters.bury_at_receipt(letters)
        self._count_buried(letters[:kept], source)
        dropped = Counter(letter.lane for letter in letters[kept:])
        dropped.update(dict(entry.overflow))
        for lane, count in dropped.items():
            self.books.turn_away(lane, source, DropReason.INVALID_OVERFLOW, count)

    def _count_buried(self, letters: Sequence[DeadLetter], source: str) -> None:
        for (lane, reason), count in Counter((letter.lane, letter.reason) for letter in letters).items():
            self.books.receive(lane, source, count)
            self.books.bury(lane, reason, count)

    def written(self, held: AckCallback) -> bool:
        """Whether all dead letters are durable; else `held` is called when they are."""
        return self.dead_letters.when_durable(held)

    def withdraw(self, ack: Ack) -> list[Chunk]:
        """Take what still waits of a request out of the buffer."""
        return self.buffer.withdraw((ack,))

    def drop_withdrawn(self, chunks: Sequence[Chunk]) -> None:
        """Settle and count what was withdrawn."""
        self._drop(chunks, DropReason.WITHDRAWN)

    def ended(self, delivery: AwaitedDelivery, error: Backpressure | None) -> None:
        """The sender of a request that was awaited gets its answer."""
        self._awaited.pop(delivery, None)
        if error is not None:
            self.not_acknowledged += 1


def _letter(entry: Entry, lane: Lane, rejected: Rejected) -> DeadLetter:
    why = rejected.why or WHY[rejected.reason]
    return DeadLetter(rejected.reason, lane, rejected.data, entry.now, why, entry.source)
