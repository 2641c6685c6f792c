"""Accepts requests, whole or not at all. `Intake.accept` is the way of every event that comes over
HTTP.

The steps, in order: decode the body (`wire`), read its shape and stamp its events by lane
(`stamping.py`, `requests.py`), admit them (`admission.py`: lanes, quotas, buffer, books, dead
letters, acknowledgement). A body that takes more work than other requests may wait for is decoded
by another process (`large.py`) and admitted when it comes back.

Invariant: when `accept` returns True, each event of the request is in the buffer, among the dead
letters, or dropped and counted as such; when it returns False, that holds once the callback is
called without an error; when it raises, nothing was accepted and nothing counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import (
    Backpressure,
    Draining,
    ForwarderError,
    InvalidAck,
    InvalidRequest,
    MemoryShort,
    RequestTooLarge,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.loop_turn import LoopTurn
from forwarder.core.path import ForwarderPath, RequestPath
from forwarder.core.ports import (
    DeadLetter,
    EventResults,
    Incoming,
    Ordering,
    OtlpHead,
    PatientWaiter,
    V1Head,
)
from forwarder.core.shares import Headroom
from forwarder.core.uuids import new_uuid7
from forwarder.intake.admission import Admission, Submission
from forwarder.intake.decoder_jobs import (
    DecoderReply,
    RequestJob,
    RoutesOfJob,
    RulesOfJob,
    encode_job,
    no_files,
)
from forwarder.intake.fan_out import FanOut
from forwarder.intake.large import (
    DECODE_SECONDS,
    WAIT_SECONDS,
    Decoder,
    LargeBodies,
    LargeBody,
    peek_key,
)
from forwarder.intake.requests import ReadingRules, RequestContent, RequestReader
from forwarder.intake.result_protocols import ResultProtocol, V1Protocol
from forwarder.intake.ruling import Ruling, ruling_of, ruling_of_one, ruling_of_revived
from forwarder.intake.stamp_event import AT_RECEIPT, NOT_INGESTED
from forwarder.intake.stamping import RejectedEvent, read_single
from forwarder.wire.decompress import ZSTD_MAGIC
from forwarder.wire.effort import INLINE, UNBOUNDED, Effort, TooMuchWork
from forwarder.wire.encodings import GZIP_MAGIC, decode_body
from forwarder.wire.identity import check_token
from forwarder.wire.shapes import MALFORMED, is_utf8, read_outline, read_request

if TYPE_CHECKING:
    from forwarder.intake.otlp import OtlpMapping
    from forwarder.rules.rules import EventRules

OTLP: Final = "otlp"
"""The source of events that were log records of OpenTelemetry; all others that come over HTTP have
the source `http`.
"""

LARGE_TEXT: Final = 1 << 20
"""Bytes from which on a request is read only if there is headroom for its copy."""

SMALL_BODY: Final = 64 * 1024
"""Bytes on the wire up to which decoding takes little time, whatever they are."""

OUTLINED_TEXT: Final = 2048
"""Bytes of a text from which on a batch is outlined first: for less it would not pay."""

_COMPRESSED: Final = (GZIP_MAGIC, ZSTD_MAGIC)
_BY_HEADER: Final = (b"br", b"deflate")


@dataclass(frozen=True, slots=True)
class IntakePolicy:
    """Limits in bytes; `clock_skew_tolerance` in seconds."""

    max_body: int
    max_event: int
    clock_skew_tolerance: float
    ack: AckLevel = AckLevel.MEMORY
    """What an answer of 200 promises at least; a sender may request more."""
    durable: bool = False
    """Whether the buffer is on disk, so that the level `disk` is available."""


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counted since the start, but for `awaiting_delivery`."""

    nulled_numbers: int
    """NaN and Infinity that became null."""
    awaiting_delivery: int = 0
    """Requests whose senders wait for the delivery of their events."""
    not_acknowledged: int = 0
    """Requests that were answered 503 because that took too long."""
    filtered_records: int = 0
    """Log records of OTLP that the mapping leaves out."""


class Intake:
    """See `core.ports.RequestIntake`."""

    def __init__(
        self,
        admission: Admission | FanOut,
        *,
        policy: IntakePolicy,
        ordering_of: Callable[[Lane], Ordering],
        headroom: Headroom | None = None,
        decoder: Decoder | None = None,
        effort: Effort = INLINE,
        path: ForwarderPath | None = None,
        otlp: OtlpMapping | None = None,
        event_rules: EventRules | None = None,
    ) -> None:
        """`headroom`: bounds the bytes in progress; None: `policy` alone does. `decoder`: does
        what takes more than `effort`; None: it is done at once, however long it takes. `path`:
        remembers the forwarders that events have passed. `otlp`: makes events of log records.
        """
        self.admission = admission
        self.clock = clock = admission.clock
        lanes = admission.lanes
        quotas = admission.quotas
        self._lanes = lanes
        self._quotas = quotas
        self._now = clock.now
        self._level = policy.ack
        self._durable = policy.durable
        self._rejects = admission.rejects
        self._headroom = headroom
        self._path = path or ForwarderPath(clock)
        ordered = [
            ordering_of(Lane("", historical)) is Ordering.PER_DISTINCT_ID
            for historical in (False, True)
        ]
        # `read_single` needs it before the lane is known: all live lanes are alike in it
        self._live_is_ordered = ordered[0]
        limits = policy.max_body, policy.max_event, quotas.max_events
        self.rules = ReadingRules(
            *limits, policy.clock_skew_tolerance, ordered=(ordered[0], ordered[1])
        )
        self._otlp = otlp
        self._turn = LoopTurn()
        self._reader = RequestReader(
            self.rules, lanes, admission.check_room if self._rejects else None
        )
        self._large = (
            None if decoder is None else LargeBodies(decoder, clock, headroom, self._on_change)
        )
        self.effort = UNBOUNDED if decoder is None else effort
        self._short_effort = self.effort.shortened()
        self._inline_body = min(policy.max_body, self.effort.text)
        self._max_single = min(policy.max_event, self.effort.text)
        self._usual_text = min(LARGE_TEXT, self.effort.text)
        self._draining = self._memory_short = self._attentive = False
        self.event_rules = event_rules
        """The rules for events; a reload sets others."""

    def accept(self, incoming: Incoming, callback: AckCallback) -> bool:
        """See `core.ports.RequestIntake.accept`."""
        if self._attentive and self._is_behind_large(incoming, callback):
            return False
        level = (
            self._level
            if incoming.ack is None and incoming.revived is None
            else self._level_of(incoming)
        )
        now = self._now()
        if incoming.head is not None:
            return self._accept_with_results(incoming, incoming.head, level, now, callback)
        body = incoming.body
        try:
            text = (
                decode_body(incoming, self._inline_body)
                if len(body) <= SMALL_BODY
                else self._decode_medium(incoming)
            )
        except (RequestTooLarge, TooMuchWork) as error:
            if not self._may_fit_elsewhere(incoming, error):
                raise
            return self._decode_elsewhere(incoming, body, level, now, callback)
        if (
            incoming.client is None
            and len(text) <= self._max_single
            and incoming.revived is None
            and b"_=" not in incoming.query
        ):
            single = read_single(text, now, self._max_single, ordered=self._live_is_ordered)
            if single is not None:
                api_key, ids, data = single
                lane = self._lanes.live(api_key)
                if incoming.path is not None or self._path.active:
                    self._path.note(lane, incoming.path)
                chunk = Chunk(lane, data, 1, ids, now, incoming.source)
                try:
                    if self.event_rules is not None:
                        return self._accept_ruled(self.event_rules, chunk, level, callback)
                    return self.admission.admit_one(chunk, level, callback)
                except TooMuchWork:
                    return self._decode_elsewhere(incoming, body, level, now, callback)
        try:
            submission = self._read(text, incoming, now, callback)
            return self.admission.admit(submission, level)
        except TooMuchWork:
            return self._decode_elsewhere(incoming, body, level, now, callback)
        finally:
            self._turn.spend(self._now() - now)

    def _read(
        self, text: bytes, incoming: Incoming, now: float, callback: AckCallback
    ) -> Submission:
        """What is to be admitted of a request. Raises what is wrong with it, and `TooMuchWork`."""
        effort = self._effort() if incoming.revived is None else UNBOUNDED
        if len(text) > self._usual_text:
            self._check_headroom(incoming, len(text), effort)
        outlined = len(text) > OUTLINED_TEXT and incoming.revived is None and text.startswith(b"{")
        content = self._read_outlined(text, incoming, now, effort) if outlined else None
        if content is None:
            request = read_request(text, self._quotas.max_events, effort=effort)
            content = self._reader.read(request, incoming, self._received(incoming, now), effort)
        return self._submission(content, incoming, now, callback, effort)

    def _effort(self) -> Effort:
        """What may be done at once now."""
        return self._short_effort if self._turn.over else self.effort

    def _read_outlined(
        self, text: bytes, incoming: Incoming, now: float, effort: Effort
    ) -> RequestContent | None:
        """What is in a batch in its usual form, without a pass that only finds its events; None:
        all else, which is read the whole way.
        """
        try:
            request = read_outline(text) if text.isascii() or is_utf8(text) else None
            if request is None:
                return None
            return self._reader.read_together(request, incoming, now, effort)
        except (ForwarderError, *MALFORMED):  # the whole way says what is wrong
            return None

    def _is_behind_large(self, incoming: Incoming, callback: AckCallback) -> bool:
        """Whether the request was queued behind a large one of its connection. Raises `Draining`,
        `MemoryShort`, and what is wrong with its key.
        """
        if self._draining:
            raise Draining("shutting down", retry_after=2.0)
        self.check_memory()
        origin = callback.origin if isinstance(callback, PatientWaiter) else None
        if self._large is None or origin is None or origin not in self._large.origins:
            return False
        level = self._level if incoming.ack is None else self._level_of(incoming)
        if incoming.head is not None:
            self._checked_protocol(incoming, incoming.head)
        return not self._decode_elsewhere(incoming, incoming.body, level, self._now(), callback)

    def _may_fit_elsewhere(self, incoming: Incoming, error: Exception) -> bool:
        """Whether the decoder process may do what ended with `error` here. A replayed dead letter
        is one event: never too much.
        """
        if incoming.revived is not None or self._large is None:
            return False
        return not (isinstance(error, RequestTooLarge) and self._inline_body >= self.rules.max_body)

    def _decode_medium(self, incoming: Incoming) -> bytes:
        """The text of a body that is not small. Raises `TooMuchWork` if decoding it could take
        long.
        """
        body = incoming.body
        limit = self.effort
        plain = (
            body.startswith((b"{", b"["))
            and not incoming.content_encoding
            and b"data=" not in incoming.query
        )
        if incoming.revived is None and len(body) > (limit.text if plain else limit.encoded):
            raise TooMuchWork
        form = (
            not plain
            and not body.startswith(_COMPRESSED)
            and incoming.content_encoding.lower() not in _BY_HEADER
        )
        if form and incoming.revived is None and len(body) > limit.repaired:
            raise TooMuchWork
        return decode_body(incoming, self._inline_body)

    def _check_headroom(self, incoming: Incoming, size: int, effort: Effort) -> None:
        """Called before a text of `size` bytes is read. Raises `TooMuchWork`, or `BufferFull` if
        there is no headroom for it.
        """
        if size > effort.text:
            raise TooMuchWork
        if size > LARGE_TEXT:
            incoming.body = b""  # the text was decoded from it
            if self._headroom is not None:
                self._headroom.check(size)

    def _level_of(self, incoming: Incoming) -> AckLevel:
        """The required level: the configured one, or the higher one that the sender requests.
        Raises `InvalidAck`.
        """
        # never `delivered`: what isn't delivered in time is dropped, for its sender still has it
        if incoming.revived is not None:
            return AckLevel.DISK if self._durable else AckLevel.MEMORY
        asked = incoming.ack or self._level
        level = asked if asked.rank > self._level.rank else self._level
        if level is AckLevel.DISK and not self._durable:
            raise InvalidAck(
                "Forwarder-Ack: disk is not available: the buffer is in memory (buffer.kind)."
            )
        return level

    def _accept_with_results(
        self,
        incoming: Incoming,
        head: V1Head | OtlpHead,
        level: AckLevel,
        now: float,
        callback: AckCallback,
    ) -> bool:
        """A request of a protocol whose answers say what became of the events."""
        protocol = self._checked_protocol(incoming, head)
        body = incoming.body
        try:
            text = self._decode_unless_large(incoming, protocol)
        except (RequestTooLarge, TooMuchWork) as error:
            if not self._may_fit_elsewhere(incoming, error):
                raise
            return self._decode_elsewhere(incoming, body, level, now, callback)
        effort = self._effort()
        try:
            if len(text) > self._usual_text:
                self._check_headroom(incoming, len(text), effort)
            request = protocol.read(text, self._quotas.max_events, effort)
            content = self._reader.read(request, incoming, now, effort)
            head.results = protocol.results(content)
            submission = self._submission(content, incoming, now, callback, effort)
            return self.admission.admit(submission, level)
        except TooMuchWork:
            return self._decode_elsewhere(incoming, body, level, now, callback)
        finally:
            self._turn.spend(self._now() - now)

    def _checked_protocol(self, incoming: Incoming, head: V1Head | OtlpHead) -> ResultProtocol:
        """How the request is read, which is told whose events it has. Raises what is wrong with
        its key.
        """
        protocol = self._protocol_of(head)
        if isinstance(head, OtlpHead):
            # who exports log records isn't the one whom they are about
            incoming.source = OTLP
            incoming.client = None
        self._lanes.check_key(protocol.key())
        return protocol

    def _protocol_of(self, head: V1Head | OtlpHead) -> ResultProtocol:
        """How a request with this head is read."""
        if isinstance(head, V1Head):
            return V1Protocol(head)
        if self._otlp is None:
            raise TypeError("there is no mapping for log records")
        return self._otlp.of_request(head)

    def _decode_unless_large(self, incoming: Incoming, protocol: ResultProtocol) -> bytes:
        """The request's text. Raises `TooMuchWork` if decoding it could take long."""
        size = len(incoming.body)
        if size > self.effort.encoded and (incoming.content_encoding or size > self.effort.text):
            raise TooMuchWork
        return protocol.decode(incoming, self._inline_body)

    def _received(self, incoming: Incoming, now: float) -> float:
        """When the events were received; that of a replayed dead letter, when it became one."""
        return (
            now if incoming.revived is None or incoming.revived.at is None else incoming.revived.at
        )

    def _submission(
        self,
        content: RequestContent,
        incoming: Incoming,
        now: float,
        callback: AckCallback,
        effort: Effort,
    ) -> Submission:
        """What is to be admitted of a request. Raises `TooMuchWork` if rules take too long."""
        source = incoming.source
        revived = incoming.revived
        self.note_path([lane for lane, _ in content.stamped], incoming.path)
        chunks = [
            Chunk(lane, stamped.data, stamped.count, stamped.ids, now, source)
            for lane, stamped in content.stamped
        ]
        ruling: Ruling | None = None
        rules = self.event_rules
        if rules is not None and revived is None:
            known = [stamped.names for _, stamped in content.stamped]
            ruling = ruling_of(rules, chunks, known, effort.ruled)
            ruling.note(content.results)
        elif rules is not None and revived is not None and not revived.ruled:
            ruling = ruling_of_revived(rules, chunks, revived)
            if ruling.refusal:
                raise InvalidRequest(ruling.refusal)  # it stays the dead letter that it is
        if ruling is not None:
            chunks = ruling.chunks
        submission = self.admission.submission(chunks, source, callback)
        if content.rejected:
            if revived is not None:
                # it would be rejected at receipt again
                raise InvalidRequest(AT_RECEIPT[content.rejected[0][1].reason].why)
            submission.letters, submission.droppable = _divided(
                _letters(content.rejected, source, now)
            )
        if ruling is not None:
            submission.ruling = ruling
            submission.letters = [*submission.letters, *ruling.failed]
        submission.nulled = content.nulled
        submission.filtered = content.filtered
        submission.results = content.results
        if revived is not None:
            submission.revived = revived
            for chunk in chunks:
                chunk.origin = revived.number
        return submission

    def _accept_ruled(
        self, rules: EventRules, chunk: Chunk, level: AckLevel, callback: AckCallback
    ) -> bool:
        """One event, which rules may change or drop. Raises `TooMuchWork` as `Effort` says."""
        try:
            ruling = ruling_of_one(rules, chunk, self._effort().ruled)
        finally:
            self._turn.spend(self._now() - chunk.received_at)
        if ruling is None:
            return self.admission.admit_one(chunk, level, callback)
        submission = self.admission.submission(ruling.chunks, chunk.source, callback)
        submission.ruling = ruling
        submission.letters = ruling.failed
        return self.admission.admit(submission, level)

    def _decode_elsewhere(
        self, incoming: Incoming, body: bytes, level: AckLevel, now: float, callback: AckCallback
    ) -> bool:
        """Have the decoder process read the request; never acknowledged at once. Raises
        `InvalidToken` if its first bytes show the key.
        """
        large = self._large
        head = incoming.head
        otlp = self._otlp
        if large is None:
            raise TypeError("there is no decoder process")
        if head is None:
            key = peek_key(incoming, body)
            if key is not None:
                self._lanes.check_key(check_token(key))
        job = RequestJob(
            self.rules,
            self._lanes.max_lanes,
            list(self._lanes.api_keys),
            now,
            incoming.query,
            incoming.content_type,
            incoming.content_encoding,
            incoming.client,
            incoming.event,
            (head.authorization, head.sdk_info, head.request_timestamp)
            if isinstance(head, V1Head)
            else None,
            (otlp.encoded, head.authorization, head.protobuf)
            if isinstance(head, OtlpHead) and otlp is not None
            else None,
            self.rules_of_job(incoming.source),
            self.routes_of_job(incoming.source),
        )
        results = None if head is None else LateResults()
        request = _LargeRequest(
            self,
            job,
            body,
            origin=(incoming.source, incoming.path),
            level=level,
            callback=callback,
            results=results,
        )
        patient = callback if isinstance(callback, PatientWaiter) else None
        sender, origin = (None, None) if patient is None else (patient.sender, patient.origin)
        large.submit(
            LargeBody(sender, origin, len(body), partial(request.run, large), request.fail)
        )
        if head is not None:
            head.results = results
        if patient is not None:
            patient.postpone(WAIT_SECONDS + DECODE_SECONDS)
        incoming.body = b""
        return False

    def rules_of_job(self, source: str) -> RulesOfJob | None:
        """The rules that the decoder process applies to what it reads; None: there are none."""
        if self.event_rules is None:
            return None
        return RulesOfJob(self.event_rules.encoded, source, self._quotas.max_lane_bytes)

    def routes_of_job(self, source: str) -> RoutesOfJob | None:
        """The routes by which the decoder process divides what it reads; None: it needs none."""
        routes = self.admission.routes
        return None if routes is None else RoutesOfJob(routes, source)

    def may_change(self, level: AckLevel) -> bool:
        """Whether the results of a request's events may still change after it was read."""
        return level is AckLevel.DELIVERED or not self._rejects

    def note_path(self, lanes: Iterable[Lane], path: RequestPath | None) -> None:
        """Remember the forwarders that events of these lanes have passed."""
        if path is not None or self._path.active:
            for lane in lanes:
                self._path.note(lane, path)

    def _on_change(self) -> None:
        """Whether each request needs a closer look, changed."""
        self._attentive = (
            self._draining
            or self._memory_short
            or bool(self._large is not None and self._large.origins)
        )

    @property
    def draining(self) -> bool:
        """Whether new requests are rejected; those that were received before are still accepted."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._on_change()

    @property
    def memory_short(self) -> bool:
        """Whether new requests and records are rejected for want of memory."""
        return self._memory_short

    @memory_short.setter
    def memory_short(self, short: bool) -> None:
        self._memory_short = short
        self._on_change()

    def check_memory(self) -> None:
        """Raises `MemoryShort` while memory is short."""
        if self._memory_short:
            raise MemoryShort(
                "memory is short",
                retry_after=2.0,
                hint="the daemon's status says how much there is, and what limits it",
            )

    @property
    def large(self) -> LargeBodies | None:
        """The queue before the decoder process; None if there is none, and everything is done at
        once.
        """
        return self._large

    async def drain(self, seconds: float) -> bool:
        """Wait until no large body is pending, at most `seconds`; whether that is so."""
        return self._large is None or await self._large.drain(seconds)

    async def close(self) -> None:
        """Ask the senders of large bodies that are not accepted to repeat them."""
        if self._large is not None:
            await self._large.close()

    def end_waiting(self) -> None:
        """Answer every sender that still waits for delivery. Call it when nothing will be
        delivered any more.
        """
        self.admission.end_waiting()

    def statistics(self) -> IntakeStatistics:
        """Figures for metrics, health and tests."""
        admission = self.admission
        return IntakeStatistics(
            admission.nulled_numbers,
            admission.awaited,
            admission.not_acknowledged,
            admission.filtered_records,
        )


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
        callback: AckCallback,
        results: LateResults | None,
    ) -> None:
        """`origin`: its source, and the forwarders that it has passed."""
        self._intake = intake
        self._job = job
        self._rules = intake.event_rules
        """Those of the job: others may hold when it is read."""
        self._body = body
        self._source, self._path = origin
        self._level = level
        self._callback = callback
        self._results = results

    @property
    def _abandoned(self) -> bool:
        """Whether its connection is gone: its sender will repeat it."""
        return isinstance(self._callback, PatientWaiter) and self._callback.origin is None

    async def run(self, large: LargeBodies) -> None:
        """Have it read, and admit it. Raises what is wrong with it."""
        if self._abandoned:
            return
        body = self._body
        self._body = b""
        look_up = no_files if self._rules is None else self._rules.known
        decoded = await large.decode(encode_job(self._job), body, look_up)
        del body
        submission = await self._submission(decoded, large)
        if self._abandoned:
            return
        lanes = {chunk.lane for chunk in submission.chunks}
        self._intake.note_path(lanes, self._path)
        rejected = [
            letter.lane
            for letters in (submission.letters, submission.droppable)
            for letter in letters
            if letter.lane
        ]
        self._intake.admission.lanes.check(lanes.union(rejected))
        if self._intake.admission.admit(submission, self._level):
            self._callback(None)

    async def _submission(self, decoded: DecoderReply, large: LargeBodies) -> Submission:
        """What is to be admitted of it."""
        now = self._intake.clock.now()  # the buffer's queues are in this order
        chunks = await large.sliced(decoded.chunks(now, self._source))
        submission = self._intake.admission.submission(chunks, self._source, self._callback)
        letters = await large.sliced(_letters(decoded.rejected(), self._source, now))
        submission.letters, submission.droppable = _divided(letters)
        submission.ruling = decoded.ruling(self._rules, now, self._source)
        submission.overflow = _overflow(decoded)
        submission.nulled = decoded.head.nulled
        submission.filtered = decoded.head.filtered
        results = decoded.results()
        if self._results is not None and results is not None:
            self._results.answer, restore = results
            if restore is not None and self._intake.may_change(self._level):
                submission.results = self._results.results = restore()
        return submission

    def fail(self, error: Exception) -> None:
        """Answer its sender with the reason why it is not accepted."""
        if isinstance(self._callback, PatientWaiter):
            self._callback.failed(error)
        elif isinstance(error, Backpressure):
            self._callback(error)


def _letters(
    rejected: Iterable[tuple[Lane | None, RejectedEvent]], source: str, now: float
) -> Iterator[DeadLetter]:
    """The dead letters of rejected events, but for those without a lane."""
    for lane, each in rejected:
        if lane is not None:
            yield DeadLetter(
                each.reason,
                lane,
                each.data,
                now,
                each.why or AT_RECEIPT[each.reason].why,
                source,
                to=each.to,
                new_uuid=new_uuid7(now).decode(),
            )


def _divided(letters: Iterable[DeadLetter]) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Those that have to be kept, and those that may be dropped."""
    kept: list[DeadLetter] = []
    droppable: list[DeadLetter] = []
    for letter in letters:
        (droppable if letter.reason in NOT_INGESTED else kept).append(letter)
    return kept, droppable


def _overflow(decoded: DecoderReply) -> list[tuple[Lane, int]]:
    """How many rejected events of each lane exceed what one request may bring. Raises for those
    that must not be dropped.
    """
    counts: Counter[Lane] = Counter()
    for lane, reason, count in decoded.overflow():
        if lane is None or reason not in NOT_INGESTED:
            raise RequestTooLarge(
                "more of its events are rejected than one request may bring dead letters"
            )
        counts[lane] += count
    return list(counts.items())
