"""Takes a request into the pipeline: decode, split by lane, stamp, check quotas, offer to the buffer; all or none.

Invariant: when `take` returns, each event of the request is in the buffer, among the dead letters, or dropped and counted as such;
when it raises, none is, and nothing was counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from forwarder.core.clock import Clock
from forwarder.core.errors import Draining, InvalidRequest
from forwarder.core.event import Chunk, Lane
from forwarder.core.headroom import Headroom
from forwarder.core.ports import Books, Buffer, DeadLetter, DropReason, Incoming, Ordering, Reason
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.loose import Receipt
from forwarder.intake.quotas import Quotas
from forwarder.intake.single import read_single
from forwarder.intake.stamping import Rejected, stamp
from forwarder.wire.encodings import decode_body
from forwarder.wire.shapes import Request, check_count, read_request, split_by_token

LARGE_TEXT: Final = 1 << 20
"""Bytes from which on a request is worked on only if there is headroom for the copy that becomes of it."""

_WHY: Final = {
    Reason.MISSING_EVENT: "the event has no name",
    Reason.MISSING_DISTINCT_ID: "the event has no distinct_id",
    Reason.INVALID_EVENT: "the event is no object, or its name no string",
    Reason.LONE_SURROGATE: "a lone surrogate is no text",
    Reason.TOO_LARGE: "the event is over upstream.max_event",
}


class ReceiptDeadLetters(Protocol):
    """The dead letters, as far as they take what is refused at receipt."""

    def bury_at_receipt(self, letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share for such; how many those were."""


@dataclass(frozen=True, slots=True)
class IntakePolicy:
    """Limits in bytes; `clock_skew_tolerance` in seconds."""

    max_body: int
    max_event: int
    clock_skew_tolerance: float


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counted since the start."""

    nulled_numbers: int
    """NaN and Infinity that became null."""


class Intake:
    """See `core.ports.Intake`."""

    def __init__(
        self,
        buffer: Buffer,
        dead_letters: ReceiptDeadLetters,
        books: Books,
        lanes: LaneRegistry,
        quotas: Quotas,
        *,
        policy: IntakePolicy,
        ordering_of: Callable[[Lane], Ordering],
        clock: Clock,
        on_taken: Callable[[], None],
        headroom: Headroom | None = None,
    ) -> None:
        """`headroom`: how much may be worked on; None: anything that `policy` allows."""
        self._buffer = buffer
        self._dead_letters = dead_letters
        self._books = books
        self._lanes = lanes
        self._quotas = quotas
        self._max_body = policy.max_body
        self._max_event = policy.max_event
        self._clock_skew_tolerance = policy.clock_skew_tolerance
        self._ordering_of = ordering_of
        self._now = clock.now
        self._on_taken = on_taken
        self._headroom = headroom
        # the fast way needs it before it knows the lane; all live lanes are alike in it
        self._live_is_ordered = ordering_of(Lane("")) is Ordering.PER_DISTINCT_ID
        self._nulled_numbers = 0
        self.draining = False

    def take(self, incoming: Incoming) -> None:
        """See `core.ports.Intake.take`."""
        if self.draining:
            raise Draining("shutting down", retry_after=2.0)
        now = self._now()
        text = decode_body(incoming, self._max_body)
        if incoming.client is None and len(text) <= self._max_event and self._take_single(text, incoming.source, now):
            return
        if len(text) > LARGE_TEXT:
            incoming.body = b""  # what the text was decoded from isn't needed any more
            if self._headroom is not None:
                self._headroom.check(len(text))
        request = read_request(text, self._quotas.max_events)
        if request.token is None:
            check_count(request.events, self._quotas.max_events)
        parts, rejected = self._parts(request)
        self._lanes.check({lane for lane, _ in (*parts, *rejected)})
        chunks: list[Chunk] = []
        for lane, events in parts:
            self._quotas.check_room(lane, len(memoryview(events)))
            stamped = stamp(events, self._receipt(request, lane, incoming.client, now))
            rejected += [(lane, each) for each in stamped.rejected]
            if stamped.count:
                chunks.append(Chunk(lane, stamped.data, stamped.count, stamped.ids, now))
        if not chunks and not rejected:
            raise InvalidRequest("there are no events in the request")
        self._offer(chunks)
        self._count(chunks, rejected, incoming.source, now)
        self._nulled_numbers += request.nulled

    def _take_single(self, text: bytes, source: str, now: float) -> bool:
        """The fast way of one event that needs no stamp; False if the text isn't that, and then nothing was done."""
        single = read_single(text, ordered=self._live_is_ordered)
        if single is None:
            return False
        api_key, ids = single
        lane = self._lanes.live(api_key)
        chunks = (Chunk(lane, text, 1, ids, now),)
        self._offer(chunks)
        self._books.receive(lane, source, 1)
        self._on_taken()
        return True

    def _parts(self, request: Request) -> tuple[list[tuple[Lane, bytes | Raw]], list[tuple[Lane, Rejected]]]:
        """The request's events as an array a lane, and those that aren't text."""
        if request.token is not None:
            parts: list[tuple[Lane, bytes | Raw]] = [(Lane(request.token, request.historical), request.events)]
        else:
            parts = [(Lane(token, request.historical), events) for token, events in split_by_token(request.events).items()]
        rejected: list[tuple[Lane, Rejected]] = []
        for masked, original in request.garbled:
            token = request.token or next(iter(split_by_token(b"[%b]" % masked)))
            rejected.append((Lane(token, request.historical), Rejected(Reason.LONE_SURROGATE, original)))
        return parts, rejected

    def _receipt(self, request: Request, lane: Lane, client: str | None, now: float) -> Receipt:
        skew = 0.0 if request.sent_at is None else request.sent_at - now
        return Receipt(
            now,
            has_sent_at=request.sent_at is not None,
            skew=skew if abs(skew) >= self._clock_skew_tolerance else 0.0,
            ip=None if client is None else msgspec.json.encode(client),
            ordered=self._ordering_of(lane) is Ordering.PER_DISTINCT_ID,
            max_event=self._max_event,
            max_events=self._quotas.max_events,
        )

    def _offer(self, chunks: Sequence[Chunk]) -> None:
        """Into the buffer, or raise."""
        if chunks:
            self._lanes.admit(chunks)
            self._quotas.check(chunks)
            self._buffer.offer(chunks)

    def _count(self, chunks: Sequence[Chunk], rejected: Sequence[tuple[Lane, Rejected]], source: str, now: float) -> None:
        """Enter in the books what was taken; nothing can fail from here on."""
        for chunk in chunks:
            self._books.receive(chunk.lane, source, chunk.count)
        if rejected:
            self._bury(rejected, source, now)
        if chunks:
            self._on_taken()

    def _bury(self, rejected: Sequence[tuple[Lane, Rejected]], source: str, now: float) -> None:
        letters = [DeadLetter(each.reason, lane, each.data, now, _WHY[each.reason], source) for lane, each in rejected]
        kept = self._dead_letters.bury_at_receipt(letters)
        for at, letter in enumerate(letters):
            self._books.receive(letter.lane, source, 1)
            if at < kept:
                self._books.bury(letter.lane, letter.reason, 1)
            else:
                self._books.drop(letter.lane, DropReason.INVALID_OVERFLOW, 1)

    def statistics(self) -> IntakeStatistics:
        """Figures for metrics, health and tests."""
        return IntakeStatistics(self._nulled_numbers)
