"""Takes a request into the pipeline: decode, split by lane, stamp, check quotas, offer to the buffer; all or none.

Invariant: when `take` answers True, each event of the request is in the buffer, among the dead letters, or dropped and counted as such;
when it answers False, it is so only once the buffer has said that it keeps them; when it raises, none is, and nothing was counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.clock import Clock
from forwarder.core.errors import Backpressure, Draining, InvalidAck, InvalidRequest, RequestTooLarge
from forwarder.core.event import Chunk, Lane
from forwarder.core.path import ForwarderPath, RequestPath
from forwarder.core.ports import Books, Buffer, EventResults, Incoming, Ordering, PatientWaiter, Revived, V1Head, WhenFull
from forwarder.core.shares import Headroom
from forwarder.intake.admission import NOT_INGESTED, WHY, Admission, ReceiptDeadLetters
from forwarder.intake.decoding import Decoded, RequestJob, encode_job
from forwarder.intake.early_key import early_key
from forwarder.intake.entry import Entry
from forwarder.intake.lanes import LaneRegistry
from forwarder.intake.large import DECODE_SECONDS, WAIT_SECONDS, Decoder, LargeBodies, LargeBody
from forwarder.intake.quotas import Quotas
from forwarder.intake.request_reader import ReadingRules, RequestContent, RequestReader
from forwarder.intake.single import read_single
from forwarder.wire.decompress import ZSTD_MAGIC
from forwarder.wire.effort import INLINE, UNBOUNDED, Effort, TooMuchWork
from forwarder.wire.encodings import GZIP_MAGIC, decode_body
from forwarder.wire.shapes import read_request
from forwarder.wire.token import check_token
from forwarder.wire.v1 import read_v1
from forwarder.wire.v1_head import bearer_token, decode_v1_body

LARGE_TEXT: Final = 1 << 20
"""Bytes from which on a request is worked on only if there is headroom for the copy that becomes of it."""

SMALL_BODY: Final = 64 * 1024
"""Bytes on the wire up to which decoding takes no time worth speaking of, whatever they are."""

_COMPRESSED: Final = (GZIP_MAGIC, ZSTD_MAGIC)
_BY_HEADER: Final = (b"br", b"deflate")


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
        decoder: Decoder | None = None,
        effort: Effort = INLINE,
        path: ForwarderPath | None = None,
    ) -> None:
        """`headroom`: how much may be worked on; None: anything that `policy` allows.

        `decoder`: does what takes more than `effort`; None: it is done at once, however long it takes. `path`: where it is
        noted how events came here.
        """
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
        self._now = clock.now
        self._level = policy.ack
        self._durable = policy.durable
        self._rejects = policy.when_full is WhenFull.REJECT
        self._headroom = headroom
        self._path = path or ForwarderPath(clock)
        # the fast way needs it before it knows the lane; all live lanes are alike in it
        self._live_is_ordered = ordering_of(Lane("")) is Ordering.PER_DISTINCT_ID
        self.ordered = self._live_is_ordered, ordering_of(Lane("", historical=True)) is Ordering.PER_DISTINCT_ID
        self.rules = ReadingRules(policy.max_body, policy.max_event, quotas.max_events, policy.clock_skew_tolerance)
        self._reader = RequestReader(self.rules, _Gate(lanes, quotas, rejects=self._rejects), self._is_ordered)
        self._large = None if decoder is None else LargeBodies(decoder, clock, headroom, self._on_change)
        self.effort = UNBOUNDED if decoder is None else effort
        self._inline_body = min(policy.max_body, self.effort.text)
        self._max_single = min(policy.max_event, self.effort.text)
        self._usual_text = min(LARGE_TEXT, self.effort.text)
        self._draining = self._attentive = False

    def _is_ordered(self, lane: Lane) -> bool:
        return self.ordering_of(lane) is Ordering.PER_DISTINCT_ID

    def take(self, incoming: Incoming, waiter: AckCallback) -> bool:
        """See `core.ports.Intake.take`."""
        if self._attentive and self._attend(incoming, waiter):
            return False
        level = self._level if incoming.ack is None and incoming.revived is None else self._level_of(incoming)
        now = self._now()
        if incoming.v1 is not None:
            return self._take_v1(incoming, incoming.v1, level, now, waiter)
        body = incoming.body
        try:
            text = decode_body(incoming, self._inline_body) if len(body) <= SMALL_BODY else self._decode_medium(incoming)
        except (RequestTooLarge, TooMuchWork) as error:
            self._check_elsewhere(incoming, error)
            return self._take_large(incoming, body, level, now, waiter)
        if incoming.client is None and len(text) <= self._max_single and incoming.revived is None and b"_=" not in incoming.query:
            single = read_single(text, ordered=self._live_is_ordered)
            if single is not None:
                api_key, ids = single
                lane = self._lanes.live(api_key)
                if incoming.path is not None or self._path.active:
                    self._path.note(lane, incoming.path)
                return self.admission.put_one(Chunk(lane, text, 1, ids, now, incoming.source), level, waiter)
        effort = self.effort if incoming.revived is None else UNBOUNDED
        try:
            if len(text) > self._usual_text:
                self._clear_way(incoming, len(text), effort)
            request = read_request(text, self._quotas.max_events, effort=effort)
            content = self._reader.read(request, incoming, self._received(incoming, now), effort)
        except TooMuchWork:
            return self._take_large(incoming, body, level, now, waiter)
        return self.admission.put(self._entry(content, incoming, now, waiter), level)

    def _attend(self, incoming: Incoming, waiter: AckCallback) -> bool:
        """What is asked of a request only at times: whether it has to wait behind a large one of its connection. Raises `Draining`."""
        if self._draining:
            raise Draining("shutting down", retry_after=2.0)
        origin = waiter.origin if isinstance(waiter, PatientWaiter) else None
        if self._large is None or origin is None or origin not in self._large.origins:
            return False
        level = self._level if incoming.ack is None else self._level_of(incoming)
        return not self._take_large(incoming, incoming.body, level, self._now(), waiter)

    def _check_elsewhere(self, incoming: Incoming, error: Exception) -> None:
        """Raises `error` where decoding elsewhere would end with it, too. A dead letter on its way back is one event: never too much."""
        if incoming.revived is not None or self._large is None:
            raise error
        if isinstance(error, RequestTooLarge) and self._inline_body >= self.rules.max_body:
            raise error

    def _decode_medium(self, incoming: Incoming) -> bytes:
        """The text of a body that isn't small. Raises `TooMuchWork` if decoding it could take long."""
        body, limit = incoming.body, self.effort
        plain = body.startswith((b"{", b"[")) and not incoming.content_encoding and b"data=" not in incoming.query
        if incoming.revived is None and len(body) > (limit.text if plain else limit.encoded):
            raise TooMuchWork
        form = not plain and not body.startswith(_COMPRESSED) and incoming.content_encoding.lower() not in _BY_HEADER
        if form and incoming.revived is None and len(body) > limit.repaired:
            raise TooMuchWork
        return decode_body(incoming, self._inline_body)

    def _clear_way(self, incoming: Incoming, size: int, effort: Effort) -> None:
        """Before a large text of `size` bytes is worked on. Raises `TooMuchWork`, or `BufferFull` if there is no headroom for it here."""
        if size > effort.text:
            raise TooMuchWork
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
            raise InvalidAck("Forwarder-Ack: disk can't be had here: the buffer is in memory (buffer.kind).")
        return level

    def _take_v1(self, incoming: Incoming, head: V1Head, level: AckLevel, now: float, waiter: AckCallback) -> bool:
        """A request of the protocol with a result for each event."""
        self._lanes.check_key(bearer_token(head.authorization))
        body = incoming.body
        try:
            text = self._decode_v1(incoming)
        except (RequestTooLarge, TooMuchWork) as error:
            self._check_elsewhere(incoming, error)
            return self._take_large(incoming, body, level, now, waiter)
        try:
            if len(text) > self._usual_text:
                self._clear_way(incoming, len(text), self.effort)
            request = read_v1(text, head, self._quotas.max_events, self.effort)
            content = self._reader.read(request, incoming, now, self.effort)
        except TooMuchWork:
            return self._take_large(incoming, body, level, now, waiter)
        head.results = content.results
        return self.admission.put(self._entry(content, incoming, now, waiter), level)

    def _decode_v1(self, incoming: Incoming) -> bytes:
        """The request's text. Raises `TooMuchWork` if decoding it could take long."""
        size = len(incoming.body)
        if size > self.effort.encoded and (incoming.content_encoding or size > self.effort.text):
            raise TooMuchWork
        return decode_v1_body(incoming, self._inline_body)

    def _received(self, incoming: Incoming, now: float) -> float:
        """When the events were received: those of a dead letter, when it became one."""
        return now if incoming.revived is None or incoming.revived.at is None else incoming.revived.at

    def _entry(self, content: RequestContent, incoming: Incoming, now: float, waiter: AckCallback) -> Entry:
        """What is to be accepted of a request."""
        source = incoming.source
        self.note_path([lane for lane, _ in content.stamped], incoming.path)
        chunks = [Chunk(lane, stamped.data, stamped.count, stamped.ids, now, source) for lane, stamped in content.stamped]
        entry = Entry(self.admission, chunks, source, now, waiter)
        entry.rejected, entry.nulled, entry.results = content.rejected, content.nulled, content.results
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

    def _take_large(self, incoming: Incoming, body: bytes, level: AckLevel, now: float, waiter: AckCallback) -> bool:
        """Have the request read by the decoder process; never acknowledged at once. Raises `InvalidToken` where its key shows already."""
        large, v1 = self._large, incoming.v1
        if large is None:
            raise TypeError("there is no decoder process")
        if v1 is None:
            key = early_key(incoming, body)
            if key is not None:
                self._lanes.check_key(check_token(key))
        job = RequestJob(
            self.rules,
            self.ordered,
            self._lanes.max_lanes,
            list(self._lanes.api_keys),
            now,
            incoming.query,
            incoming.content_type,
            incoming.content_encoding,
            incoming.client,
            incoming.event,
            None if v1 is None else (v1.authorization, v1.sdk_info, v1.request_timestamp),
        )
        results = None if v1 is None else LateResults()
        request = _LargeRequest(self, job, body, origin=(incoming.source, incoming.path), level=level, waiter=waiter, results=results)
        patient = waiter if isinstance(waiter, PatientWaiter) else None
        sender, origin = (None, None) if patient is None else (patient.sender, patient.origin)
        large.submit(LargeBody(sender, origin, len(body), partial(request.run, large), request.fail))
        if v1 is not None:
            v1.results = results
        if patient is not None:
            patient.postpone(WAIT_SECONDS + DECODE_SECONDS)
        incoming.body = b""
        return False

    def may_change(self, level: AckLevel) -> bool:
        """Whether the results of a request's events may be others than what reading it has found."""
        return level is AckLevel.DELIVERED or not self._rejects

    def note_path(self, lanes: Iterable[Lane], path: RequestPath | None) -> None:
        """Note how events of these lanes came here."""
        if path is not None or self._path.active:
            for lane in lanes:
                self._path.note(lane, path)

    def accept_decoded(self, entry: Entry, level: AckLevel) -> bool:
        """Accept what the decoder process has read of a large body. Raises what `take` raises."""
        self._lanes.check({lane for lane, _ in entry.rejected}.union([chunk.lane for chunk in entry.chunks]))
        return self.admission.put(entry, level)

    def _on_change(self) -> None:
        """Whether there is something to be attended to with each request."""
        self._attentive = self._draining or bool(self._large is not None and self._large.origins)

    @property
    def draining(self) -> bool:
        """Whether new requests are rejected; those that were received before are still accepted."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._on_change()

    @property
    def large(self) -> LargeBodies | None:
        """The queue before the decoder process; None if there is none, and everything is done at once."""
        return self._large

    async def drain(self, seconds: float) -> bool:
        """Wait until no large body waits or is worked on, at most `seconds`; whether that is so."""
        return self._large is None or await self._large.drain(seconds)

    async def close(self) -> None:
        """Ask the senders of large bodies that aren't accepted to come back."""
        if self._large is not None:
            await self._large.close()

    def end_waiting(self) -> None:
        """Answer every sender that still waits for delivery: to be called when nothing will be delivered any more."""
        self.admission.end_waiting()

    def statistics(self) -> IntakeStatistics:
        """Figures for metrics, health and tests."""
        admission = self.admission
        return IntakeStatistics(admission.nulled_numbers, admission.awaited, admission.not_acknowledged)


class _Gate:
    """See `request_reader.Gate`."""

    def __init__(self, lanes: LaneRegistry, quotas: Quotas, *, rejects: bool) -> None:
        """`rejects`: whether a full lane's events are rejected; else there is always room, for something is dropped."""
        self.check = lanes.check
        self._quotas = quotas
        self._rejects = rejects

    def check_room(self, lane: Lane, size: int) -> None:
        """See `request_reader.Gate.check_room`."""
        if self._rejects:
            self._quotas.check_room(lane, size)


class LateResults:
    """The results of a request that is read later (`core.ports.EventResults`)."""

    def __init__(self) -> None:
        self.results: EventResults | None = None
        """Set where they can still change."""
        self.answer = b'{"results":{}}'

    @property
    def retries(self) -> bool:
        """See `EventResults`."""
        return self.results is not None and self.results.retries

    def body(self) -> bytes:
        """See `EventResults`."""
        return self.answer if self.results is None else self.results.body()


class _LargeRequest:
    """A request whose body is read by the decoder process."""

    def __init__(
        self,
        intake: Intake,
        job: RequestJob,
        body: bytes,
        *,
        origin: tuple[str, RequestPath | None],
        level: AckLevel,
        waiter: AckCallback,
        results: LateResults | None,
    ) -> None:
        """`origin`: its source, and the forwarders that it has passed."""
        self._intake = intake
        self._job = job
        self._body = body
        self._source, self._path = origin
        self._level = level
        self._waiter = waiter
        self._results = results

    @property
    def _abandoned(self) -> bool:
        """Whether its connection is gone: its sender will bring it again."""
        return isinstance(self._waiter, PatientWaiter) and self._waiter.origin is None

    async def run(self, large: LargeBodies) -> None:
        """Have it read, and accept it. Raises what is wrong with it."""
        if self._abandoned:
            return
        body, self._body = self._body, b""
        decoded = await large.decode(encode_job(self._job), body)
        del body
        entry = await self._entry(decoded, large)
        if self._abandoned:
            return
        self._intake.note_path({chunk.lane for chunk in entry.chunks}, self._path)
        if self._intake.accept_decoded(entry, self._level):
            self._waiter(None)

    async def _entry(self, decoded: Decoded, large: LargeBodies) -> Entry:
        """What is to be accepted of it."""
        now = self._intake.clock.now()  # the buffer's queues are in this order
        chunks = await large.sliced(decoded.chunks(now, self._source))
        entry = Entry(self._intake.admission, chunks, self._source, now, self._waiter)
        groups = await large.sliced(decoded.rejected())
        entry.rejected = [(lane, each) for group in groups for lane, each in group if lane is not None]
        entry.overflow = _droppable(decoded)
        entry.nulled = decoded.outcome.nulled
        results = decoded.results()
        if self._results is not None and results is not None:
            self._results.answer, restore = results
            if self._intake.may_change(self._level):
                entry.results = self._results.results = restore()
        return entry

    def fail(self, error: Exception) -> None:
        """Tell its sender why it isn't accepted."""
        if isinstance(self._waiter, PatientWaiter):
            self._waiter.failed(error)
        elif isinstance(error, Backpressure):
            self._waiter(error)


def _droppable(decoded: Decoded) -> list[tuple[Lane, int]]:
    """How many rejected events of each lane have no room, whatever the dead letters hold. Raises for those that mustn't be dropped."""
    counts: Counter[Lane] = Counter()
    for lane, reason, count in decoded.overflow():
        if lane is None or reason not in NOT_INGESTED:
            raise RequestTooLarge("more of its events are rejected than one request may bring dead letters")
        counts[lane] += count
    return list(counts.items())
