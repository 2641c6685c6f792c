"""Accepts batches of records, or of events made of them, from sources with positions; releases them, and buries what a halted lane holds.

Invariants: a batch is accepted whole, or nothing of it is accepted and counted. What is rejected of a record uses the dead letters' whole
room and is never dropped for want of it, and neither is an event because the buffer is full: its source waits. `when_full: drop_oldest` may
drop events later, for a newer request; those are counted, and count as settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from forwarder.core.ack import Ack, AckCallback, AckLevel
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    Draining,
    LaneFull,
    RequestTooLarge,
    StillDecoding,
    TogetherTooLarge,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import Buffer, DeadLetter, DropReason, Fate, Ledger, Reason, letters_of
from forwarder.core.records import AcceptedBatch, RecordBatch
from forwarder.intake.admission import Admission, ReceiptDeadLetters, Submission, log_buried
from forwarder.intake.decoder_jobs import RecordJob, encode_job
from forwarder.intake.intake import Intake
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.large import LargeBodies, LargeBody
from forwarder.intake.quotas import SharedBuffer, UnsharedBuffer
from forwarder.intake.record_reader import BatchContent, RecordBatchReader
from forwarder.intake.ruling import Ruling, check_work
from forwarder.intake.stamping import RejectedEvent, StampedEvents
from forwarder.wire.effort import TooMuchWork

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules

MAX_LARGE: Final = 4
"""Large records that are decoded, or were and wait for room in the buffer."""
STALE_SECONDS: Final = 60.0
"""A decoded record that was not requested for so long is discarded."""

_log = structlog.get_logger(__name__)


class ResendQueue(Protocol):
    """What delivery holds of a batch."""

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with these acks that wait to be sent again."""


class HaltedLanes(Protocol):
    """The halted lanes."""

    def since(self) -> Mapping[Lane, float]:
        """When each lane was halted, wall-clock seconds."""


class OnlyBuffer(Buffer, SharedBuffer, Protocol):
    """The buffer of a process with one source."""


class OnlyDelivery(ResendQueue, Protocol):
    """The delivery of a process with one source."""

    @property
    def halts(self) -> HaltedLanes:
        """The halted lanes."""

    def wake(self) -> None:
        """The buffer has new events."""


class SourceIntake:
    """See `core.records.RecordIntake` and `core.records.EventIntake`. `intake_for_one_source` makes the one of a process with no other."""

    def __init__(
        self, admission: Admission, delivery: ResendQueue, halts: HaltedLanes, requests: Intake | None = None, *, source: str
    ) -> None:
        """`requests`: records are read within its limits, and in its decoder process; None: only events are accepted that are made."""
        self._admission = admission
        self._delivery = delivery
        self._halts = halts
        self._source = source
        self._buffer = admission.buffer
        self._letters = admission.dead_letters
        self._now = admission.clock.now
        self._reading = None if requests is None else _RecordReading(requests, source)

    def accept_made(self, chunks: Sequence[Chunk], letters: Sequence[DeadLetter], callback: AckCallback) -> AcceptedBatch | None:
        """See `core.records.EventIntake.accept_made`."""
        try:
            return self._submit(chunks, BatchContent(letters=list(letters)), callback, AckLevel.DELIVERED, self._now())
        except RequestTooLarge as error:
            raise _no_room(error) from None

    def accept(self, records: RecordBatch, callback: AckCallback, level: AckLevel, given_up: Collection[Lane] = ()) -> AcceptedBatch | None:
        """See `core.records.RecordIntake.accept`."""
        reading, now = self._reading, self._now()
        if reading is None:
            raise TypeError("this intake reads no records")
        content = reading.read(records, now)
        try:
            accepted = self._admit(content, callback, level, now, given_up)
        except RequestTooLarge as error:
            if len(records.values) + len(records.rejected) > 1:
                raise TogetherTooLarge(error.message) from None
            accepted = self._admit_letter(reading.too_large(records, content, error.message, now), callback, level, now)
        reading.forget(records)
        return accepted

    def _admit(
        self, content: BatchContent, callback: AckCallback, level: AckLevel, now: float, given_up: Collection[Lane]
    ) -> AcceptedBatch | None:
        """What was read of a batch into buffer, dead letters and books. Raises a `Backpressure`, or `RequestTooLarge` if it never fits."""
        chunks = [Chunk(lane, events.data, events.count, events.ids, now, self._source) for lane, events in content.events]
        rules = None if self._reading is None else self._reading.event_rules
        if rules is not None and content.ruling is None:
            content.ruling = ruling = Ruling()
            for chunk, (_, stamped) in zip(chunks, content.events, strict=True):
                ruling.add(rules, chunk, stamped.names)
            chunks = ruling.chunks
        if content.ruling is not None:
            content.letters += content.ruling.failed
        keys = len({chunk.lane for chunk in chunks})
        if keys > max(self._admission.lanes.max_lanes // 2, 1):
            raise RequestTooLarge(f"events of {keys} project keys are more than can be accepted at once")
        try:
            return self._submit(chunks, content, callback, level, now)
        except LaneFull:
            halted = self._halts.since()
            left = [chunk for chunk in chunks if chunk.lane not in given_up or chunk.lane not in halted]
            if len(left) == len(chunks):
                raise
        why = "its project key was halted for too long, and the buffer has no room for its events"
        for chunk in chunks:
            if chunk not in left:
                content.letters += letters_of(chunk, Reason.LANE_HALTED, why, now)
        return self._submit(left, content, callback, level, now)

    def _submit(
        self, chunks: Sequence[Chunk], content: BatchContent, callback: AckCallback, level: AckLevel, now: float
    ) -> AcceptedBatch | None:
        submission = Submission(self._admission, chunks, self._source, callback, source_waits=True)
        submission.letters, submission.nulled, submission.ruling = content.letters, content.nulled, content.ruling
        return None if self._admission.admit(submission, level) else _SubmittedBatch(now, _sizes(chunks), submission)

    def _admit_letter(self, letter: DeadLetter, callback: AckCallback, level: AckLevel, now: float) -> AcceptedBatch | None:
        """Admit a dead letter instead of its record. It can't be made smaller: if there is no room for it, its source waits."""
        try:
            return self._submit((), BatchContent(letters=[letter]), callback, level, now)
        except RequestTooLarge as error:
            raise _no_room(error) from None

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        """See `core.records.RecordIntake.give_back`. What waits for its fsync stays in the buffer, too."""
        mine = [batch for batch in batches if isinstance(batch, _SubmittedBatch)]
        for batch in mine:
            batch.submission.callback = None
        chunks = self._withdraw(mine, None)
        self._admission.drop(chunks, DropReason.RETURNED_TO_BROKER)
        return sum([chunk.count for chunk in chunks])

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        """See `core.records.RecordIntake.keep`."""
        for batch in batches:
            if isinstance(batch, _SubmittedBatch):
                batch.submission.callback = None
                if batch.submission.ack is not None:
                    batch.submission.ack.comes_again = True

    def bury(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        """See `core.records.RecordIntake.bury`."""
        mine = [batch for batch in batches if isinstance(batch, _SubmittedBatch) and lane in batch.lanes]
        sizes = [batch.sizes[lane] for batch in mine]
        count = sum([events for _, events in sizes])
        reserved = self._letters.reserve(sum([size for size, _ in sizes]) + count * len(why), count)
        if reserved is None:
            return False
        chunks = self._withdraw(mine, lane)
        letters = [letter for chunk in chunks for letter in letters_of(chunk, Reason.LANE_HALTED, why, self._now())]
        self._letters.bury_reserved(letters, reserved)
        if letters:
            self._admission.books.bury(lane, Reason.LANE_HALTED, len(letters))
            self._buffer.settle(chunks, Fate.BURIED)
            log_buried(letters)
        return True

    def _withdraw(self, batches: Sequence[_SubmittedBatch], lane: Lane | None) -> list[Chunk]:
        """The pending chunks of these batches, to be sent again or for the first time."""
        acks = [batch.submission.ack for batch in batches if batch.submission.ack is not None and not batch.submission.ack.settled]
        return self._delivery.withdraw(acks, lane) + self._buffer.withdraw(acks, lane) if acks else []

    def halted(self) -> Mapping[Lane, float]:
        """See `core.records.RecordIntake.halted`."""
        return self._halts.since()


@dataclass(frozen=True, slots=True, eq=False)
class _SubmittedBatch:
    """See `core.records.AcceptedBatch`."""

    at: float
    sizes: Mapping[Lane, tuple[int, int]]
    """Bytes and events that it had of each lane when it was accepted."""
    submission: Submission

    @property
    def lanes(self) -> Collection[Lane]:
        """See `core.records.AcceptedBatch`."""
        return self.sizes.keys()


class _RecordReading:
    """Reads batches of records, and large records in the decoder process."""

    def __init__(self, requests: Intake, source: str) -> None:
        self._requests = requests
        self._source = source
        self._max_bytes = requests.admission.quotas.max_lane_bytes
        lanes, rules, effort = requests.admission.lanes, requests.rules, requests.effort
        self._reader = RecordBatchReader(lanes, rules, source, self._max_bytes, report=_report, effort=effort)
        self._decoded: dict[int, _LargeRecord] = {}
        """Records in the decoder process or back from it, by the identity of their batches."""

    @property
    def event_rules(self) -> EventRules | None:
        """The rules for events that hold now."""
        return self._requests.event_rules

    def read(self, records: RecordBatch, now: float) -> BatchContent:
        """What is in the batch. Raises `TogetherTooLarge`, `Draining`, and `StillDecoding` for one large record that is not read yet."""
        if self._requests.draining:
            raise Draining("shutting down", retry_after=2.0)
        large = self._decoded.get(id(records)) if self._decoded else None
        if large is None:
            try:
                content = self._reader.read(records, now)
                if self.event_rules is not None:
                    self._check_work(self.event_rules, records, content)
            except TooMuchWork:
                large = self._decode(records, now)
            else:
                return content
        if large.error is not None:
            del self._decoded[id(records)]
            raise large.error
        if large.content is None:
            error = StillDecoding("a large record is being decoded")
            error.when_done = large.done.append
            raise error
        large.requested = now
        content = large.content
        return BatchContent(
            list(content.events), list(content.letters), content.nulled, content.ruling
        )  # it is requested again if there is no room now

    def _check_work(self, rules: EventRules, records: RecordBatch, content: BatchContent) -> None:
        """Raises `TooMuchWork` for one record, `TogetherTooLarge` for several, on which the rules would hold the loop for too long."""
        try:
            check_work(rules, [(lane, stamped.count) for lane, stamped in content.events], self._requests.effort.events)
        except TooMuchWork:
            if len(records.values) > 1:
                raise TogetherTooLarge("the rules take too long for so many records at once") from None
            raise

    def _decode(self, records: RecordBatch, now: float) -> _LargeRecord:
        """Have the only record of a batch read by the decoder process. Raises a `Backpressure` if that can't be done now."""
        bodies, requests = self._requests.large, self._requests
        if bodies is None:
            raise TypeError("there is no decoder process")
        self._decoded = {key: each for key, each in self._decoded.items() if each.content is None or now - each.requested < STALE_SECONDS}
        if len(self._decoded) >= MAX_LARGE:
            raise BufferFull("other large records wait for room in the buffer")
        job = RecordJob(requests.rules, self._max_bytes, now, records.facts(0), records.api_key, foreign=records.foreign)
        large = _LargeRecord(records, self._reader, now, self._source)
        bodies.submit(LargeBody(self, None, len(records.values[0]), partial(large.run, bodies, job, requests), large.fail))
        self._decoded[id(records)] = large
        return large

    def forget(self, records: RecordBatch) -> None:
        """The batch was accepted."""
        if self._decoded:
            self._decoded.pop(id(records), None)

    def too_large(self, records: RecordBatch, content: BatchContent, why: str, now: float) -> DeadLetter:
        """The dead letter of a batch's only record, as it was read, because it can't be accepted."""
        lanes = {lane for lane, _ in content.events}
        lane = lanes.pop() if len(lanes) == 1 else None
        rejected = RejectedEvent(Reason.TOO_LARGE, records.values[0], why=why)
        return self._reader.letter(lane, rejected, records.facts(0), records.attributes(0), now)


class _LargeRecord:
    """A record that is read by the decoder process, until it is accepted."""

    def __init__(self, records: RecordBatch, reader: RecordBatchReader, now: float, source: str) -> None:
        self._records = records
        """Kept, so that its identity is not reused."""
        self._reader = reader
        self._source = source
        self.requested = now
        """When its source requested it last, wall-clock seconds."""
        self.content: BatchContent | None = None
        self.error: Backpressure | None = None
        """Why it couldn't be read; its source repeats it."""
        self.done: list[Callable[[], None]] = []

    async def run(self, bodies: LargeBodies, job: RecordJob, requests: Intake) -> None:
        """Have it read."""
        value, content = self._records.values[0], BatchContent()
        try:
            decoded = await bodies.decode(encode_job(job), value)
        except Exception as error:
            if isinstance(error, Backpressure):
                raise
            reason = Reason.TOO_LARGE if isinstance(error, RequestTooLarge) else Reason.UNDECODABLE
            content.letters = [self._letter(None, RejectedEvent(reason, value, why=error_text(error)))]
        else:
            content.nulled = decoded.head.nulled
            chunks: Iterable[Chunk] = decoded.chunks(self.requested, self._source)
            if requests.event_rules is not None:
                content.ruling = ruling = Ruling()
                await bodies.sliced(ruling.sliced(requests.event_rules, chunks))
                chunks = ruling.chunks
            for chunk in await bodies.sliced(chunks):
                content.events.append((chunk.lane, StampedEvents(chunk.data, chunk.count, chunk.ids)))
            for group in await bodies.sliced(decoded.rejected()):
                content.letters += [self._letter(lane, each) for lane, each in group]
        self.content = content
        self._finish()

    def _letter(self, lane: Lane | None, rejected: RejectedEvent) -> DeadLetter:
        records = self._records
        return self._reader.letter(lane, rejected, records.facts(0), records.attributes(0), self.requested)

    def fail(self, error: Exception) -> None:
        """It couldn't be read now: its source repeats it."""
        self.error = error if isinstance(error, Backpressure) else Backpressure(f"a large record could not be decoded: {error_text(error)}")
        self._finish()

    def _finish(self) -> None:
        done, self.done = self.done, []
        for each in done:
            each()


def _report(name: str) -> None:
    _log.exception("reading a record failed in an unforeseen way; it becomes a dead letter", record=name)


def _no_room(error: RequestTooLarge) -> DeadLettersFull:
    """What is raised for dead letters that can't be made smaller and never fit: their source waits."""
    return DeadLettersFull(error.message, retry_after=5.0, hint="raise dead_letters.max_bytes")


def intake_for_one_source(
    buffer: OnlyBuffer,
    dead_letters: ReceiptDeadLetters,
    books: Ledger,
    delivery: OnlyDelivery,
    clock: Clock,
    *,
    lane: Lane,
    source: str,
) -> SourceIntake:
    """The intake of a process whose only source makes its events itself, all of one lane, which may use the whole buffer."""
    known = KnownKeys(source_keys=[lane.api_key])
    lanes = LaneRegistry(1, buffer.holdings, known)
    quotas = UnsharedBuffer(buffer, (), known)
    admission = Admission(buffer, dead_letters, books, lanes, quotas, clock=clock, on_accepted=delivery.wake, logs_rejected=False)
    return SourceIntake(admission, delivery, delivery.halts, source=source)


def _sizes(chunks: Sequence[Chunk]) -> dict[Lane, tuple[int, int]]:
    """Bytes and events by lane."""
    sizes: dict[Lane, tuple[int, int]] = {}
    for chunk in chunks:
        size, count = sizes.get(chunk.lane, (0, 0))
        sizes[chunk.lane] = size + len(chunk.data), count + chunk.count
    return sizes
