"""Accepts batches of records, or of events made of them, from sources with positions; releases
them, and buries what a halted lane holds.

Invariants: a batch is accepted whole, or nothing of it is accepted and counted. What is rejected
of a record uses the dead letters' whole room and is never dropped for want of it, and neither is
an event because the buffer is full: its source waits. `when_full: drop_oldest` may drop events
later, for a newer request; those are counted, and count as settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.clock import Clock
from forwarder.core.error_text import error_text
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    Draining,
    RequestTooLarge,
    StillDecoding,
    TogetherTooLarge,
    drop_frames,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.garbage import note_body
from forwarder.core.ports import Buffer, DeadLetter, DropReason, Fate, Ledger, Reason, letters_of
from forwarder.core.records import AcceptedBatch, RecordBatch
from forwarder.intake.admission import Admission, ReceiptDeadLetters, log_buried
from forwarder.intake.decoder_jobs import RecordJob, encode_job, no_files
from forwarder.intake.fan_out import (
    Branch,
    FanOut,
    HaltedLanes,
    ResendQueue,
    SubmissionPart,
    sizes_of,
)
from forwarder.intake.intake import Intake
from forwarder.intake.lanes import KnownKeys, LaneRegistry
from forwarder.intake.large import LargeBodies, LargeBody
from forwarder.intake.quotas import SharedBuffer, UnsharedBuffer
from forwarder.intake.record_reader import BatchContent, RecordBatchReader
from forwarder.intake.ruling import ruling_of
from forwarder.intake.stamping import RejectedEvent, StampedEvents
from forwarder.wire.effort import TooMuchWork

if TYPE_CHECKING:
    from forwarder.rules.rules import EventRules, FailedEvent

MAX_LARGE: Final = 4
"""Large records that are decoded, or were and wait for room in the buffer."""
STALE_SECONDS: Final = 60.0
"""A decoded record that was not requested for so long is discarded."""

_log = structlog.get_logger(__name__)


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
    """See `core.records.RecordIntake` and `core.records.EventIntake`. `intake_for_one_source`
    makes the one of a process with no other.
    """

    def __init__(
        self,
        admission: Admission | FanOut,
        branches: Sequence[Branch],
        requests: Intake | None = None,
        *,
        source: str,
    ) -> None:
        """`admission`: to all of `branches`. `requests`: records are read within its limits, and
        in its decoder process; None: only events are accepted that are made.
        """
        self._admission = admission
        self._branches = branches
        self._source = source
        self._now = admission.clock.now
        self._reading = None if requests is None else _RecordReading(requests, source)

    def accept_made(
        self, chunks: Sequence[Chunk], letters: Sequence[DeadLetter], callback: AckCallback
    ) -> AcceptedBatch | None:
        """See `core.records.EventIntake.accept_made`."""
        try:
            return self._submit(
                chunks,
                BatchContent(letters=list(letters)),
                callback,
                AckLevel.DELIVERED,
                self._now(),
            )
        except RequestTooLarge as error:
            raise _no_room(error) from None

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        """See `core.records.RecordIntake.accept`."""
        reading = self._reading
        now = self._now()
        if reading is None:
            raise TypeError("this intake reads no records")
        reading.check_memory()
        note_body(sum(map(len, records.values)))
        content = reading.read(records, now)
        with suppress(TooMuchWork):
            return self._accept_read(reading, records, content, (callback, level, now, given_up))
        content = reading.read_elsewhere(records, now)
        return self._accept_read(reading, records, content, (callback, level, now, given_up))

    def _accept_read(
        self,
        reading: _RecordReading,
        records: RecordBatch,
        content: BatchContent,
        how: tuple[AckCallback, AckLevel, float, Collection[Lane]],
    ) -> AcceptedBatch | None:
        """Accept what was read of records. Raises `TooMuchWork` if routes would take too long."""
        callback, level, now, given_up = how
        try:
            accepted = self._admit(content, callback, level, now, given_up)
        except RequestTooLarge as error:
            if len(records.values) + len(records.rejected) > 1:
                raise TogetherTooLarge(error.message) from None
            accepted = self._admit_letter(
                reading.too_large(records, content, error.message, now), callback, level, now
            )
        reading.forget(records)
        return accepted

    def _admit(
        self,
        content: BatchContent,
        callback: AckCallback,
        level: AckLevel,
        now: float,
        given_up: Collection[Lane],
    ) -> AcceptedBatch | None:
        """What was read of a batch into buffer, dead letters and books. Raises a `Backpressure`,
        `RequestTooLarge` if it never fits, or `TooMuchWork` if routes would take too long.
        """
        chunks: list[Chunk] = []
        for lane, events in content.events:
            chunk = Chunk(lane, events.data, events.count, events.ids, now, self._source)
            chunk.to = events.to
            chunks.append(chunk)
        keys = len({chunk.lane for chunk in chunks})
        if keys > max(self._admission.lanes.max_lanes // 2, 1):
            raise RequestTooLarge(
                f"events of {keys} project keys are more than can be accepted at once"
            )
        return self._submit(chunks, content, callback, level, now, given_up)

    def _submit(  # noqa: PLR0917 - one for each batch
        self,
        chunks: Sequence[Chunk],
        content: BatchContent,
        callback: AckCallback,
        level: AckLevel,
        now: float,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        submission = self._admission.submission(chunks, self._source, callback, source_waits=True)
        submission.letters = content.letters
        submission.nulled = content.nulled
        submission.ruling = content.ruling
        submission.given_up = self.halted().keys() & given_up if given_up else ()
        if isinstance(self._admission, FanOut):
            parts = self._admission.divide(submission)
            settled = self._admission.admit_parts(parts, level, callback)
        else:
            parts = [SubmissionPart(self._branches[0], submission, sizes_of(chunks))]
            settled = self._admission.admit(submission, level)
        return (
            None
            if settled
            else _SubmittedBatch(now, [part for part in parts if part.branch.required])
        )

    def _admit_letter(
        self, letter: DeadLetter, callback: AckCallback, level: AckLevel, now: float
    ) -> AcceptedBatch | None:
        """Admit a dead letter instead of its record. It can't be made smaller: if there is no room
        for it, its source waits.
        """
        try:
            return self._submit((), BatchContent(letters=[letter]), callback, level, now)
        except RequestTooLarge as error:
            raise _no_room(error) from None

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        """See `core.records.RecordIntake.give_back`. What waits for its fsync stays in the buffer,
        too.
        """
        parts = _parts(batches)
        for part in parts:
            part.submission.callback = None
        count = 0
        for branch, chunks in self._withdraw(parts, None):
            branch.admission.drop(chunks, DropReason.RETURNED_TO_BROKER)
            count += sum([chunk.count for chunk in chunks])
        return count

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        """See `core.records.RecordIntake.keep`."""
        for part in _parts(batches):
            part.submission.callback = None
            if part.submission.ack is not None:
                part.submission.ack.comes_again = True

    def bury(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        """See `core.records.RecordIntake.bury`: at each destination where the lane is halted."""
        parts = [part for part in _parts(batches) if lane in part.sizes]
        branches = [
            branch
            for branch in self._branches
            if len(self._branches) == 1 or lane in branch.halts.since()
        ]
        kept = [
            self._bury(branch, [part for part in parts if part.branch is branch], lane, why)
            for branch in branches
        ]
        return all(kept)

    def _bury(self, branch: Branch, parts: Sequence[SubmissionPart], lane: Lane, why: str) -> bool:
        admission = branch.admission
        sizes = [part.sizes[lane] for part in parts]
        count = sum([events for _, events in sizes])
        reserved = admission.dead_letters.reserve(
            sum([size for size, _ in sizes]) + count * len(why), count
        )
        if reserved is None:
            return False
        chunks = [chunk for _, group in self._withdraw(parts, lane) for chunk in group]
        letters = [
            letter
            for chunk in chunks
            for letter in letters_of(chunk, Reason.LANE_HALTED, why, self._now())
        ]
        admission.dead_letters.bury_reserved(letters, reserved)
        if letters:
            admission.books.bury(lane, Reason.LANE_HALTED, len(letters))
            admission.buffer.settle(chunks, Fate.BURIED)
            log_buried(letters)
        return True

    def _withdraw(
        self, parts: Sequence[SubmissionPart], lane: Lane | None
    ) -> Iterator[tuple[Branch, list[Chunk]]]:
        """The pending chunks of these parts, to be sent again or for the first time, by
        destination.
        """
        for branch in self._branches:
            mine = [part.submission.ack for part in parts if part.branch is branch]
            acks = [ack for ack in mine if ack is not None and not ack.settled]
            if acks:
                yield (
                    branch,
                    branch.delivery.withdraw(acks, lane)
                    + branch.admission.buffer.withdraw(acks, lane),
                )

    def halted(self) -> Mapping[Lane, float]:
        """See `core.records.RecordIntake.halted`: at any destination, the longest first."""
        if len(self._branches) == 1:
            return self._branches[0].halts.since()
        found: dict[Lane, float] = {}
        for branch in self._branches:
            for lane, since in branch.halts.since().items() if branch.required else ():
                found[lane] = min(since, found.get(lane, since))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _SubmittedBatch:
    """See `core.records.AcceptedBatch`."""

    at: float
    parts: Sequence[SubmissionPart]

    @property
    def lanes(self) -> Collection[Lane]:
        """See `core.records.AcceptedBatch`: those of the destinations."""
        return (
            self.parts[0].sizes.keys()
            if len(self.parts) == 1
            else {lane for part in self.parts for lane in part.sizes}
        )


def _parts(batches: Collection[AcceptedBatch]) -> list[SubmissionPart]:
    return [part for batch in batches if isinstance(batch, _SubmittedBatch) for part in batch.parts]


class _RecordReading:
    """Reads batches of records, and large records in the decoder process."""

    def __init__(self, requests: Intake, source: str) -> None:
        self._requests = requests
        self._source = source
        self._max_bytes = requests.admission.quotas.max_lane_bytes
        lanes = requests.admission.lanes
        rules = requests.rules
        effort = requests.effort
        self._reader = RecordBatchReader(
            lanes, rules, source, self._max_bytes, report=_report, effort=effort
        )
        self._decoded: dict[int, _LargeRecord] = {}
        """Records in the decoder process or back from it, by the identity of their batches."""

    def check_memory(self) -> None:
        """Raises `MemoryShort` while memory is short."""
        self._requests.check_memory()

    def read(self, records: RecordBatch, now: float) -> BatchContent:
        """What is in the batch. Raises `TogetherTooLarge`, `Draining`, and `StillDecoding` for one
        large record that is not read yet.
        """
        if self._requests.draining:
            raise Draining("shutting down", retry_after=2.0)
        large = self._decoded.get(id(records)) if self._decoded else None
        if large is None:
            with suppress(TooMuchWork):
                content = self._reader.read(records, now)
                self._apply_rules(records, content, now)
                return content
            return self.read_elsewhere(records, now)
        return self._content_of(large, now)

    def read_elsewhere(self, records: RecordBatch, now: float) -> BatchContent:
        """`read`, of what would hold the loop for too long. Raises as it does."""
        if len(records.values) + len(records.rejected) > 1:
            raise TogetherTooLarge("rules and routes take too long for so many records at once")
        return self._content_of(self._decode(records, now), now)

    def _content_of(self, large: _LargeRecord, now: float) -> BatchContent:
        error = large.error
        if error is not None:
            self.forget(large.records)
            large.error = None
            try:
                raise error
            finally:
                del error
        if large.content is None:
            raise StillDecoding("a large record is being decoded", when_done=large.done.append)
        large.requested = now
        content = large.content
        return BatchContent(
            list(content.events), list(content.letters), content.nulled, content.ruling
        )  # it is requested again if there is no room now

    def _apply_rules(self, records: RecordBatch, content: BatchContent, now: float) -> None:
        """Raises `TooMuchWork` if the rules would hold the loop for too long."""
        requests = self._requests
        if requests.event_rules is None:
            return
        chunks = [
            Chunk(lane, events.data, events.count, events.ids, now, self._source)
            for lane, events in content.events
        ]

        def letter(chunk: int, failed: FailedEvent) -> DeadLetter:
            lane, events = content.events[chunk]
            return self._reader.letter_of_rules(records, events, lane, failed, now)

        names = [events.names for _, events in content.events]
        ruling = ruling_of(requests.event_rules, chunks, names, requests.effort.ruled, letter)
        content.ruling = ruling
        content.events = [
            (chunk.lane, StampedEvents(chunk.data, chunk.count, chunk.ids))
            for chunk in ruling.chunks
        ]
        content.letters += ruling.failed

    def _decode(self, records: RecordBatch, now: float) -> _LargeRecord:
        """Have the only record of a batch read by the decoder process. Raises a `Backpressure` if
        that can't be done now.
        """
        bodies = self._requests.large
        requests = self._requests
        if bodies is None:
            raise TypeError("there is no decoder process")
        self._decoded = {
            key: each
            for key, each in self._decoded.items()
            if each.content is None or now - each.requested < STALE_SECONDS
        }
        if len(self._decoded) >= MAX_LARGE:
            raise BufferFull("other large records wait for room in the buffer")
        job = RecordJob(
            requests.rules,
            self._max_bytes,
            now,
            records.facts(0),
            records.api_key,
            foreign=records.foreign,
            event_rules=requests.rules_of_job(self._source),
            routes=requests.routes_of_job(self._source),
        )
        large = _LargeRecord(records, self._reader, now, self._source)
        bodies.submit(
            LargeBody(
                self,
                None,
                len(records.values[0]),
                partial(large.run, bodies, job, requests.event_rules),
                large.fail,
            )
        )
        self._decoded[id(records)] = large
        return large

    def forget(self, records: RecordBatch) -> None:
        """The batch was accepted."""
        if self._decoded:
            self._decoded.pop(id(records), None)

    def too_large(
        self, records: RecordBatch, content: BatchContent, why: str, now: float
    ) -> DeadLetter:
        """The dead letter of a batch's only record, as it was read, because it can't
        be accepted.
        """
        lanes = {lane for lane, _ in content.events}
        lane = lanes.pop() if len(lanes) == 1 else None
        # routes may take too long for it: it goes where its events would have gone
        to = sorted({events.to for _, events in content.events if events.to is not None}) or None
        rejected = RejectedEvent(Reason.TOO_LARGE, records.values[0], why=why, to=to)
        (letter,) = self._reader.letters(
            [(lane, rejected)], records.facts(0), records.attributes(0), now
        )
        return letter


class _LargeRecord:
    """A record that is read by the decoder process, until it is accepted."""

    def __init__(
        self, records: RecordBatch, reader: RecordBatchReader, now: float, source: str
    ) -> None:
        self.records = records
        """Kept, so that its identity is not reused."""
        self._reader = reader
        self._source = source
        self.requested = now
        """When its source requested it last, wall-clock seconds."""
        self.content: BatchContent | None = None
        self.error: Backpressure | None = None
        """Why it couldn't be read; its source repeats it."""
        self.done: list[Callable[[], None]] = []

    async def run(self, bodies: LargeBodies, job: RecordJob, rules: EventRules | None) -> None:
        """Have it read; `rules`: those of the job."""
        value = self.records.values[0]
        content = BatchContent()
        try:
            decoded = await bodies.decode(
                encode_job(job), value, no_files if rules is None else rules.known
            )
        except Exception as error:
            if isinstance(error, Backpressure):
                raise
            reason = Reason.TOO_LARGE if isinstance(error, RequestTooLarge) else Reason.UNDECODABLE
            content.letters = self._letters(
                [(None, RejectedEvent(reason, value, why=error_text(error)))]
            )
        else:
            content.nulled = decoded.head.nulled
            content.ruling = decoded.ruling(rules, self.requested, self._source)
            for chunk in await bodies.sliced(decoded.chunks(self.requested, self._source)):
                content.events.append(
                    (
                        chunk.lane,
                        StampedEvents(chunk.data, chunk.count, chunk.ids, to=chunk.to),
                    )
                )
            content.letters = self._letters(await bodies.sliced(decoded.rejected()))
        self.content = content
        self._finish()

    def _letters(self, rejected: Sequence[tuple[Lane | None, RejectedEvent]]) -> list[DeadLetter]:
        records = self.records
        return self._reader.letters(
            rejected, records.facts(0), records.attributes(0), self.requested
        )

    def fail(self, error: Exception) -> None:
        """It couldn't be read now: its source repeats it."""
        drop_frames(error)
        self.error = (
            error
            if isinstance(error, Backpressure)
            else Backpressure(f"a large record could not be decoded: {error_text(error)}")
        )
        self._finish()

    def _finish(self) -> None:
        done = self.done
        self.done = []
        for each in done:
            each()


def _report(name: str) -> None:
    _log.exception(
        "reading a record failed in an unforeseen way; it becomes a dead letter", record=name
    )


def _no_room(error: RequestTooLarge) -> DeadLettersFull:
    """What is raised for dead letters that can't be made smaller and never fit: their
    source waits.
    """
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
    """The intake of a process whose only source makes its events itself, all of one lane, which
    may use the whole buffer.
    """
    known = KnownKeys(source_keys=[lane.api_key])
    lanes = LaneRegistry(1, buffer.holdings, known)
    quotas = UnsharedBuffer(buffer, (), known)
    admission = Admission(
        buffer,
        dead_letters,
        books,
        lanes,
        quotas,
        clock=clock,
        on_accepted=delivery.wake,
        logs_rejected=False,
    )
    return SourceIntake(admission, [Branch(admission, delivery, delivery.halts)], source=source)
