"""Takes a request into the pipeline: decode, split by lane, stamp, check quotas, offer to the buffer; all or none.

Invariant: when `take` answers True, each event of the request is in the buffer, among the dead letters, or dropped and counted as such;
when it answers False, it is so only once the buffer has said that it keeps them; when it raises, none is, and nothing was counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from forwarder.core.ack import AckLevel, Waiter
from forwarder.core.clock import Clock
from forwarder.core.errors import Draining, InvalidRequest
from forwarder.core.event import Chunk, Lane
from forwarder.core.headroom import Headroom
from forwarder.core.path import ForwarderPath
from forwarder.core.ports import Books, Buffer, Incoming, Ordering, Reason, Revived, V1Head, WhenFull
from forwarder.intake.admission import WHY, Admission, ReceiptDeadLetters
from forwarder.intake.entry import Entry
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.loose import Receipt
from forwarder.intake.quotas import Quotas
from forwarder.intake.single import read_single
from forwarder.intake.stamping import Rejected, stamp
from forwarder.intake.v1 import note_stamps, refused_by_form
from forwarder.wire.encodings import decode_body
from forwarder.wire.sender_clock import SenderClock, read_sender_clock
from forwarder.wire.shapes import Request, check_count, read_request, split_by_token
from forwarder.wire.v1 import V1Request, read_v1
from forwarder.wire.v1_head import bearer_token, decode_v1_body

LARGE_TEXT: Final = 1 << 20
"""Bytes from which on a request is worked on only if there is headroom for the copy that becomes of it."""


@dataclass(frozen=True, slots=True)
class IntakePolicy:
    """Limits in bytes; `clock_skew_tolerance` and `ack_timeout` in seconds."""

    max_body: int
    max_event: int
    clock_skew_tolerance: float
    ack: AckLevel = AckLevel.MEMORY
    """What an answer of 200 promises at least; a sender may ask for more."""
    ack_timeout: float = 5.0
    """How long a sender waits for its events' delivery; then it is told to come back."""
    when_full: WhenFull = WhenFull.REJECT
    durable: bool = False
    """Whether the buffer is on disk, so that the level `disk` can be had."""


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counted since the start, but for `awaiting_delivery`."""

    nulled_numbers: int
    """NaN and Infinity that became null."""
    awaiting_delivery: int = 0
    """Requests whose senders wait now until their events are delivered."""
    not_acknowledged: int = 0
    """Requests whose senders waited for that in vain."""


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
        path: ForwarderPath | None = None,
    ) -> None:
        """`headroom`: how much may be worked on; None: anything that `policy` allows. `path`: where it is noted how events came here."""
        self.admission = Admission(
            buffer,
            dead_letters,
            books,
            lanes,
            quotas,
            when_full=policy.when_full,
            ack_timeout=policy.ack_timeout,
            clock=clock,
            on_taken=on_taken,
        )
        self.policy = policy
        self.ordering_of = ordering_of
        self.clock = clock
        self._lanes = lanes
        self._quotas = quotas
        self._max_body = policy.max_body
        self._max_event = policy.max_event
        self._clock_skew_tolerance = policy.clock_skew_tolerance
        self._now = clock.now
        self._level = policy.ack
        self._durable = policy.durable
        self._rejects = policy.when_full is WhenFull.REJECT
        self._headroom = headroom
        self._path = path or ForwarderPath(clock)
        # the fast way needs it before it knows the lane; all live lanes are alike in it
        self._live_is_ordered = ordering_of(Lane("")) is Ordering.PER_DISTINCT_ID
        self.draining = False

    def take(self, incoming: Incoming, waiter: Waiter) -> bool:
        """See `core.ports.Intake.take`."""
        if self.draining:
            raise Draining("shutting down", retry_after=2.0)
        level = self._level if incoming.ack is None and incoming.revived is None else self._level_of(incoming)
        now = self._now()
        if incoming.v1 is not None:
            return self.admission.put(self._entry(self._read_v1(incoming, incoming.v1), incoming, now, waiter), level)
        text = decode_body(incoming, self._max_body)
        if incoming.client is None and len(text) <= self._max_event and incoming.revived is None and b"_=" not in incoming.query:
            single = read_single(text, ordered=self._live_is_ordered)
            if single is not None:
                api_key, ids = single
                lane = self._lanes.live(api_key)
                if incoming.path is not None or self._path.active:
                    self._path.note(lane, incoming.path)
                return self.admission.put_one(Chunk(lane, text, 1, ids, now, incoming.source), level, waiter)
        self._clear_way(incoming, len(text))
        return self.admission.put(self._entry(read_request(text, self._quotas.max_events), incoming, now, waiter), level)

    def _clear_way(self, incoming: Incoming, size: int) -> None:
        """Before a large text of `size` bytes is worked on. Raises `BufferFull` if there is no headroom for it."""
        if size > LARGE_TEXT:
            incoming.body = b""  # what the text was decoded from isn't needed any more
            if self._headroom is not None:
                self._headroom.check(size)

    def _level_of(self, incoming: Incoming) -> AckLevel:
        """The level that is due: the configured one, or the higher one that the sender asks for. Raises `InvalidRequest`."""
        if incoming.revived is not None:  # never `delivered`: what isn't delivered in time is dropped, for its sender still has it
            return AckLevel.DISK if self._durable else AckLevel.MEMORY
        asked = incoming.ack or self._level
        level = asked if asked.rank > self._level.rank else self._level
        if level is AckLevel.DISK and not self._durable:
            raise InvalidRequest("Forwarder-Ack: disk can't be had here: the buffer is in memory (buffer.kind).")
        return level

    def _read_v1(self, incoming: Incoming, head: V1Head) -> V1Request:
        """The request in the classic shape; its text is gone when this returns."""
        self._lanes.check_key(bearer_token(head.authorization))
        text = decode_v1_body(incoming, self._max_body)
        self._clear_way(incoming, len(text))
        return read_v1(text, head, self._quotas.max_events)

    def _entry(self, request: Request, incoming: Incoming, now: float, waiter: Waiter) -> Entry:
        """The request, stamped."""
        v1 = request if isinstance(request, V1Request) else None
        if request.token is None:
            check_count(request.events, self._quotas.max_events)
        parts, rejected = self._parts(request)
        self._lanes.check({lane for lane, _ in (*parts, *rejected)})
        chunks: list[Chunk] = []
        if incoming.path is not None or self._path.active:
            for lane, _ in parts:
                self._path.note(lane, incoming.path)
        received = now if incoming.revived is None or incoming.revived.at is None else incoming.revived.at
        for lane, events in parts:
            if self._rejects:
                self._quotas.check_room(lane, len(memoryview(events)))
            stamped = stamp(events, self._receipt(request, lane, incoming, received))
            if v1 is not None:
                note_stamps(v1, stamped)
            rejected += [(lane, each) for each in stamped.rejected]
            if stamped.count:
                chunks.append(Chunk(lane, stamped.data, stamped.count, stamped.ids, now, incoming.source))
        if not chunks and not rejected:
            raise InvalidRequest("there are no events in the request")
        entry = Entry(self.admission, chunks, incoming.source, now, waiter)
        entry.rejected, entry.nulled = rejected, request.nulled
        if v1 is not None and incoming.v1 is not None:
            entry.results = incoming.v1.results = v1.results
        if incoming.revived is not None:
            self._revive(entry, incoming.revived)
        return entry

    def _revive(self, entry: Entry, revived: Revived) -> None:
        """The request is a dead letter on its way back. Raises `InvalidRequest` if it would be refused at receipt again."""
        if entry.rejected:
            raise InvalidRequest(WHY[entry.rejected[0][1].reason])
        entry.revived = revived
        for chunk in entry.chunks:
            chunk.origin = revived.number

    def _parts(self, request: Request) -> tuple[list[tuple[Lane, bytes | Raw]], list[tuple[Lane, Rejected]]]:
        """The request's events as an array a lane, and those that aren't text."""
        if request.token is not None:
            parts: list[tuple[Lane, bytes | Raw]] = [(Lane(request.token, request.historical), request.events)]
        else:
            parts = [(Lane(token, request.historical), events) for token, events in split_by_token(request.events).items()]
        rejected: list[tuple[Lane, Rejected]] = []
        if isinstance(request, V1Request):
            rejected += [(parts[0][0], each) for each in refused_by_form(request)]
        for masked, original in request.garbled:
            token = request.token or next(iter(split_by_token(b"[%b]" % masked)))
            rejected.append((Lane(token, request.historical), Rejected(Reason.LONE_SURROGATE, original)))
        return parts, rejected

    def _receipt(self, request: Request, lane: Lane, incoming: Incoming, now: float) -> Receipt:
        clock = SenderClock(request.sent_at) if request.sent_at is not None else read_sender_clock(incoming.query, now)
        skew = 0.0 if clock.sent_at is None else clock.sent_at - now
        client = incoming.client
        return Receipt(
            now,
            has_sent_at=clock.sent_at is not None,
            offset_base=clock.offset_base,
            skew=skew if abs(skew) >= self._clock_skew_tolerance else 0.0,
            ip=None if client is None or lane.historical else msgspec.json.encode(client),  # who brings history wasn't there
            ordered=self.ordering_of(lane) is Ordering.PER_DISTINCT_ID,
            max_event=self._max_event,
            max_events=self._quotas.max_events,
            tells=isinstance(request, V1Request),
            event=incoming.event,
        )

    def end_waiting(self) -> None:
        """Answer every sender that still waits for delivery: to be called when nothing will be delivered any more."""
        self.admission.end_waiting()

    def statistics(self) -> IntakeStatistics:
        """Figures for metrics, health and tests."""
        admission = self.admission
        return IntakeStatistics(admission.nulled_numbers, admission.awaited, admission.not_acknowledged)
