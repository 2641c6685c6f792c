"""Accepts requests, whole or not at all. `Intake.accept` is the way of every event that comes over
HTTP: decode, read and stamp (`requests.py`), then rules, routes and admission (`admission.py`).

A body that takes more work than other requests may wait for is read by the decoder process
(`large.py`) and admitted when it comes back.

Invariant: when `accept` returns True, each event of the request is in the buffer, among the dead
letters, or dropped and counted as such; when it returns False, that holds once the callback is
called without an error; when it raises, nothing was accepted and nothing counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import Backpressure, InvalidAck, InvalidRequest
from forwarder.core.event import Chunk
from forwarder.core.path import ForwarderPath, RequestPath
from forwarder.core.ports import EventResults, Incoming, OtlpHead, PatientWaiter, V1Head
from forwarder.core.shares import Headroom
from forwarder.intake.admission import Gate, IntakeStatistics
from forwarder.intake.content import Content
from forwarder.intake.decoder_jobs import DecoderReply, RequestJob, encode_job, no_files
from forwarder.intake.large import (
    DECODE_SECONDS,
    WAIT_SECONDS,
    LargeBodies,
    LargeBody,
    peek_key,
)
from forwarder.intake.requests import (
    USUAL,
    KeyedForm,
    RequestForm,
    RequestReader,
    V1Form,
    dead_letter_at_receipt,
)
from forwarder.stamping.stamp import read_single
from forwarder.stamping.stamp_event import AT_RECEIPT
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork
from forwarder.wire.identity import check_token

if TYPE_CHECKING:
    from forwarder.intake.otlp import OtlpMapping

OTLP: Final = "otlp"
"""The source of events that were log records of OpenTelemetry; all others that come over HTTP have
the source `http`.
"""

LARGE_TEXT: Final = 1 << 20
"""Bytes from which on a request is read only if there is headroom for its copy."""


@dataclass(frozen=True, slots=True)
class IntakePolicy:
    """What an answer of 200 promises."""

    ack: AckLevel = AckLevel.MEMORY
    """At least; a sender may request more."""
    durable: bool = False
    """Whether the buffer is on disk, so that the level `disk` is available."""


class Intake:
    """The intake of requests."""

    def __init__(
        self,
        gate: Gate,
        policy: IntakePolicy,
        *,
        headroom: Headroom | None = None,
        path: ForwarderPath | None = None,
        otlp: OtlpMapping | None = None,
    ) -> None:
        """`headroom`: bounds the bytes in progress; None: the limits of the gate alone do. `path`:
        remembers the forwarders that events have passed. `otlp`: makes events of log records.
        """
        self.gate = gate
        self.admitter = admitter = gate.admitter
        self._conditions = gate.conditions
        self._lanes = admitter.lanes
        self.clock = admitter.clock
        self._now = admitter.clock.now
        self._level = policy.ack
        self._durable = policy.durable
        self._headroom = headroom
        self._path = path or ForwarderPath(admitter.clock)
        self._otlp = otlp
        self._turn = gate.conditions.turn
        self._enter_one = gate.enter_one
        self.rules = rules = gate.conditions.reading
        self._reader = RequestReader(
            rules, self._lanes, admitter.check_room if admitter.rejects_when_full else None
        )
        self._effort = gate.conditions.effort
        self._short_effort = self._effort.shortened()
        self._max_single = min(rules.max_event, self._effort.text)
        self._usual_text = min(LARGE_TEXT, self._effort.text)
        # `read_single` needs it before the lane is known: all live lanes are alike in it
        self._live_is_ordered = rules.ordered[0]

    def accept(self, incoming: Incoming, callback: AckCallback) -> bool:
        if self._conditions.needs_check and self._is_behind_large(incoming, callback):
            return False
        level = self._level
        effort = self._short_effort if self._turn.over else self._effort
        if incoming.ack is not None or incoming.replayed is not None:
            level = self._level_of(incoming)
            effort = effort if incoming.replayed is None else UNBOUNDED
        now = self._now()
        head = incoming.head
        form: RequestForm = USUAL if head is None else self._form_of(incoming, head)
        body = incoming.body
        try:
            text = form.decode(incoming, self.rules.max_body, effort)
            if head is None and len(text) <= self._max_single:
                # in front of all others: a request of one event takes half as long by this
                chunk = self._read_single(text, incoming, now)
                if chunk is not None:
                    return self._enter_one(chunk, level, callback, effort)
            try:
                if len(text) > self._usual_text:
                    self._check_headroom(incoming, len(text), effort)
                content = form.read(self._reader, text, incoming, now, effort)
                if head is not None:
                    head.results = form.results(content)
                self._finish(content, incoming, now)
                return self.gate.enter(content, level, callback, effort=effort) is None
            finally:
                self._turn.spend(self._now() - now)
        except TooMuchWork:
            return self._decode_elsewhere(incoming, body, level, now, callback)

    def _is_behind_large(self, incoming: Incoming, callback: AckCallback) -> bool:
        """Whether the request was queued behind a large one of its connection. Raises `Draining`,
        `MemoryShort`, and what is wrong with its key.
        """
        self._conditions.check()
        large = self._conditions.large
        origin = callback.origin if isinstance(callback, PatientWaiter) else None
        if large is None or origin is None or origin not in large.origins:
            return False
        level = self._level if incoming.ack is None else self._level_of(incoming)
        if incoming.head is not None:
            self._form_of(incoming, incoming.head)
        return not self._decode_elsewhere(incoming, incoming.body, level, self._now(), callback)

    def _level_of(self, incoming: Incoming) -> AckLevel:
        """The required level: the configured one, or the higher one that the sender requests.
        Raises `InvalidAck`.
        """
        # never `delivered`: what isn't delivered in time is dropped, for its sender still has it
        if incoming.replayed is not None:
            return AckLevel.DISK if self._durable else AckLevel.MEMORY
        asked = incoming.ack or self._level
        level = asked if asked.rank > self._level.rank else self._level
        if level is AckLevel.DISK and not self._durable:
            raise InvalidAck(
                "Forwarder-Ack: disk is not available: the buffer is in memory (buffer.kind)."
            )
        return level

    def _form_of(self, incoming: Incoming, head: V1Head | OtlpHead) -> KeyedForm:
        """How a request with this head is read, which is told whose events it has. Raises what is
        wrong with its key.
        """
        form: KeyedForm
        if isinstance(head, V1Head):
            form = V1Form(head)
        elif self._otlp is None:
            raise TypeError("there is no mapping for log records")
        else:
            form = self._otlp.of_request(head)
            # who exports log records isn't the one whom they are about
            incoming.source = OTLP
            incoming.client = None
        self._lanes.check_key(form.key())
        return form

    def _read_single(self, text: bytes, incoming: Incoming, now: float) -> Chunk | None:
        """The event that a text is, in its usual form; None if it is anything else."""
        query = incoming.query
        if (
            incoming.client is not None
            or incoming.replayed is not None
            or (query and b"_=" in query)
        ):
            return None
        single = read_single(text, now, self._max_single, ordered=self._live_is_ordered)
        if single is None:
            return None
        api_key, ids, data = single
        lane = self._lanes.live(api_key)
        if incoming.path is not None or self._path.active:
            self._path.note(lane, incoming.path)
        return Chunk(lane, data, 1, ids, now, incoming.source)

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

    def _finish(self, content: Content, incoming: Incoming, now: float) -> None:
        """Make dead letters of what was rejected, and note what is known of the request beside its
        events. Raises `InvalidRequest` for a replayed dead letter that would be rejected again.
        """
        self.note_path(content, incoming.path)
        replayed = incoming.replayed
        if replayed is None:
            source = incoming.source
            content.dead_letters = [
                dead_letter_at_receipt(lane, rejection, source, now)
                for lane, rejection in content.rejected
            ]
            content.rejected = ()
        elif content.rejected:
            raise InvalidRequest(AT_RECEIPT[content.rejected[0][1].reason].why)
        else:
            content.replayed = replayed
            for chunk in content.chunks:
                chunk.origin = replayed.number

    def note_path(self, content: Content, path: RequestPath | None) -> None:
        """Remember the forwarders that the content's events have passed."""
        if path is not None or self._path.active:
            for lane in {chunk.lane: None for chunk in content.chunks}:
                self._path.note(lane, path)

    def _decode_elsewhere(
        self, incoming: Incoming, body: bytes, level: AckLevel, now: float, callback: AckCallback
    ) -> bool:
        """Have the decoder process read the request; never acknowledged at once. Raises
        `InvalidToken` if its first bytes show the key.
        """
        large = self._conditions.large
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
            *self.gate.steps_of_job(incoming.source),
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

    def may_change(self, level: AckLevel) -> bool:
        """Whether the results of a request's events may still change after it was read."""
        return level is AckLevel.DELIVERED or not self.admitter.rejects_when_full

    def statistics(self) -> IntakeStatistics:
        """Figures for metrics, health and tests."""
        return self.admitter.statistics()


class LateResults:
    """The results of a request that is read later (`core.ports.EventResults`)."""

    def __init__(self) -> None:
        self.results: EventResults | None = None
        """Set where they can still change."""
        self.answer = b'{"results":{}}'

    @property
    def retries(self) -> bool:
        return self.results is not None and self.results.retries

    def body(self) -> bytes:
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
        self._rules = intake.gate.conditions.rules
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
        content = await self._content(decoded, large)
        if self._abandoned:
            return
        intake = self._intake
        intake.note_path(content, self._path)
        lanes = {chunk.lane for chunk in content.chunks}
        lanes.update(
            dead_letter.lane for dead_letter in content.dead_letters if dead_letter.lane is not None
        )
        intake.admitter.lanes.check(lanes)
        if intake.gate.enter(content, self._level, self._callback) is None:
            self._callback(None)

    async def _content(self, decoded: DecoderReply, large: LargeBodies) -> Content:
        """What is to be admitted of it."""
        source = self._source
        now = self._intake.clock.now()  # the buffer's queues are in this order
        content = decoded.content(self._rules, now, source)
        content.chunks = await large.sliced(decoded.chunks(now, source))
        content.dead_letters = await large.sliced(
            dead_letter_at_receipt(lane, rejection, source, now)
            for lane, rejection in decoded.rejected()
            if lane is not None
        )
        results = decoded.results()
        if self._results is not None and results is not None:
            self._results.answer, restore = results
            if restore is not None and self._intake.may_change(self._level):
                content.results = self._results.results = restore()
        return content

    def fail(self, error: Exception) -> None:
        """Answer its sender with the reason why it is not accepted."""
        if isinstance(self._callback, PatientWaiter):
            self._callback.failed(error)
        elif isinstance(error, Backpressure):
            self._callback(error)
