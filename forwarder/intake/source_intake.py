"""Accepts batches of records, or of events made of them, from sources with positions; releases
them, and dead-letters what a halted lane holds.

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
from typing import TYPE_CHECKING, Final

import structlog

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.error_text import error_text
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    RequestTooLarge,
    StillDecoding,
    TogetherTooLarge,
    drop_frames,
)
from forwarder.core.event import Chunk, Lane
from forwarder.core.garbage import note_body
from forwarder.core.ports import DeadLetter, DropReason, Fate, Reason, dead_letters_of
from forwarder.core.record_intake import AcceptedBatch, RecordBatch
from forwarder.intake.admission import Gate, SubmissionPart, log_dead_lettered
from forwarder.intake.content import Content
from forwarder.intake.decoder_jobs import RecordJob, encode_job, no_files
from forwarder.intake.fan_out import Branch
from forwarder.intake.large import LargeBodies, LargeBody
from forwarder.intake.record_reader import RecordBatchReader
from forwarder.stamping.stamp import RejectedEvent
from forwarder.wire.effort import TooMuchWork

if TYPE_CHECKING:
    from forwarder.rules.event_rules import EventRules

MAX_LARGE: Final = 4
"""Large records that are decoded, or were and wait for room in the buffer."""
STALE_SECONDS: Final = 60.0
"""A decoded record that was not requested for so long is discarded."""

_log = structlog.get_logger(__name__)


class SourceIntake:
    """The intake of one source: a `RecordIntake` and an `EventIntake`."""

    def __init__(self, gate: Gate, branches: Sequence[Branch], *, source: str) -> None:
        """`branches`: the destinations behind the gate."""
        self._gate = gate
        self._branches = branches
        self._source = source
        self._now = gate.admitter.clock.now
        self._reading = _RecordReading(gate, source)

    def accept_made(
        self, chunks: Sequence[Chunk], dead_letters: Sequence[DeadLetter], callback: AckCallback
    ) -> AcceptedBatch | None:
        content = Content(list(chunks), list(dead_letters))
        try:
            return self._enter(content, callback, AckLevel.DELIVERED, self._now())
        except RequestTooLarge as error:
            raise _no_room(error) from None

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        reading = self._reading
        now = self._now()
        if reading.conditions.attentive:
            reading.conditions.check()
        note_body(sum(map(len, records.values)))
        how = callback, level, now, given_up
        with suppress(TooMuchWork):
            return self._accept_read(records, reading.read(records, now), how)
        return self._accept_read(records, reading.read_elsewhere(records, now), how)

    def _accept_read(
        self,
        records: RecordBatch,
        content: Content,
        how: tuple[AckCallback, AckLevel, float, Collection[Lane]],
    ) -> AcceptedBatch | None:
        """Accept what was read of records. Raises `TooMuchWork` if rules or routes would take too
        long.
        """
        callback, level, now, given_up = how
        reading = self._reading
        read = content.chunks
        try:
            accepted = self._enter(content, callback, level, now, given_up)
        except RequestTooLarge as error:
            if len(records.values) + len(records.rejected) > 1:
                raise TogetherTooLarge(error.message) from None
            dead_letter = reading.too_large(records, read, error.message, now)
            try:
                accepted = self._enter(Content(dead_letters=[dead_letter]), callback, level, now)
            except RequestTooLarge as never:
                # it can't be made smaller: its source waits
                raise _no_room(never) from None
        reading.forget(records)
        return accepted

    def _enter(
        self,
        content: Content,
        callback: AckCallback,
        level: AckLevel,
        now: float,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        """Into the buffer. Raises a `Backpressure`, `RequestTooLarge` if it never fits, or
        `TooMuchWork`.
        """
        parts = self._gate.enter(
            content,
            level,
            callback,
            effort=self._gate.conditions.effort,
            source_waits=True,
            given_up=self.halted().keys() & given_up if given_up else (),
        )
        return None if parts is None else _SubmittedBatch(now, parts)

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        """What waits for its fsync stays in the buffer, too."""
        parts = _parts(batches)
        for part in parts:
            part.submission.callback = None
        count = 0
        for branch, chunks in self._withdraw(parts, None):
            branch.admission.drop(chunks, DropReason.RETURNED_TO_BROKER)
            count += sum([chunk.count for chunk in chunks])
        return count

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        for part in _parts(batches):
            part.submission.callback = None
            if part.submission.ack is not None:
                part.submission.ack.comes_again = True

    def dead_letter(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        """At each destination where the lane is halted."""
        parts = [part for part in _parts(batches) if lane in part.sizes]
        branches = [
            branch
            for branch in self._branches
            if len(self._branches) == 1 or lane in branch.halts.since()
        ]
        settled = [
            self._dead_letter(branch, _of_branch(parts, branch), lane, why) for branch in branches
        ]
        return all(settled)

    def _dead_letter(
        self, branch: Branch, parts: Sequence[SubmissionPart], lane: Lane, why: str
    ) -> bool:
        admission = branch.admission
        sizes = [part.sizes[lane] for part in parts]
        count = sum([events for _, events in sizes])
        reserved = admission.dead_letters.reserve(
            sum([size for size, _ in sizes]) + count * len(why), count
        )
        if reserved is None:
            return False
        chunks = [chunk for _, group in self._withdraw(parts, lane) for chunk in group]
        dead_letters = [
            dead_letter
            for chunk in chunks
            for dead_letter in dead_letters_of(chunk, Reason.LANE_HALTED, why, self._now())
        ]
        admission.dead_letters.add_reserved(dead_letters, reserved)
        if dead_letters:
            admission.books.dead_letter(lane, Reason.LANE_HALTED, len(dead_letters))
            admission.buffer.settle(chunks, Fate.DEAD_LETTERED)
            log_dead_lettered(dead_letters)
        return True

    def _withdraw(
        self, parts: Sequence[SubmissionPart], lane: Lane | None
    ) -> Iterator[tuple[Branch, list[Chunk]]]:
        """The pending chunks of these parts, to be sent again or for the first time, by
        destination.
        """
        for branch in self._branches:
            mine = [part.submission.ack for part in _of_branch(parts, branch)]
            acks = [ack for ack in mine if ack is not None and not ack.settled]
            if acks:
                yield (
                    branch,
                    branch.delivery.withdraw(acks, lane)
                    + branch.admission.buffer.withdraw(acks, lane),
                )

    def halted(self) -> Mapping[Lane, float]:
        """At any destination, the longest first."""
        if len(self._branches) == 1:
            return self._branches[0].halts.since()
        halts: dict[Lane, float] = {}
        for branch in self._branches:
            for lane, since in branch.halts.since().items() if branch.required else ():
                halts[lane] = min(since, halts.get(lane, since))
        return halts


@dataclass(frozen=True, slots=True, eq=False)
class _SubmittedBatch:
    """An `AcceptedBatch` that went through admission."""

    at: float
    parts: Sequence[SubmissionPart]

    @property
    def lanes(self) -> Collection[Lane]:
        """Those of the destinations."""
        return (
            self.parts[0].sizes.keys()
            if len(self.parts) == 1
            else {lane for part in self.parts for lane in part.sizes}
        )


def _parts(batches: Collection[AcceptedBatch]) -> list[SubmissionPart]:
    return [part for batch in batches if isinstance(batch, _SubmittedBatch) for part in batch.parts]


def _of_branch(parts: Sequence[SubmissionPart], branch: Branch) -> list[SubmissionPart]:
    return [part for part in parts if part.submission.admission is branch.admission]


class _RecordReading:
    """Reads batches of records, and large records in the decoder process."""

    def __init__(self, gate: Gate, source: str) -> None:
        self.conditions = conditions = gate.conditions
        self._gate = gate
        self._source = source
        self._max_bytes = gate.admitter.quotas.max_lane_bytes
        self._reader = RecordBatchReader(
            gate.admitter.lanes,
            conditions.reading,
            source,
            self._max_bytes,
            report=_report,
            effort=conditions.effort,
        )
        self._decoded: dict[int, _LargeRecord] = {}
        """Records in the decoder process or back from it, by the identity of their batches."""

    def read(self, records: RecordBatch, now: float) -> Content:
        """What is in the batch. Raises `TogetherTooLarge`, `StillDecoding` for one large record
        that is not read yet, and `TooMuchWork` for one that isn't begun.
        """
        large = self._decoded.get(id(records)) if self._decoded else None
        if large is None:
            return self._reader.read(records, now)
        return self._content_of(large, now)

    def read_elsewhere(self, records: RecordBatch, now: float) -> Content:
        """`read`, of what would hold the loop for too long. Raises as it does."""
        if len(records.values) + len(records.rejected) > 1:
            raise TogetherTooLarge("rules and routes take too long for so many records at once")
        return self._content_of(self._decode(records, now), now)

    def _content_of(self, large: _LargeRecord, now: float) -> Content:
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
        return large.content.copy(now)  # it is requested again if there is no room now

    def _decode(self, records: RecordBatch, now: float) -> _LargeRecord:
        """Have the only record of a batch read by the decoder process. Raises a `Backpressure` if
        that can't be done now.
        """
        conditions = self.conditions
        bodies = conditions.large
        if bodies is None:
            raise TypeError("there is no decoder process")
        self._decoded = {
            key: decoding
            for key, decoding in self._decoded.items()
            if decoding.content is None or now - decoding.requested < STALE_SECONDS
        }
        if len(self._decoded) >= MAX_LARGE:
            raise BufferFull("other large records wait for room in the buffer")
        job = RecordJob(
            conditions.reading,
            self._max_bytes,
            now,
            records.facts(0),
            records.api_key,
            records.foreign,
            *self._gate.steps_of_job(self._source),
        )
        large = _LargeRecord(records, self._reader, now, self._source)
        bodies.submit(
            LargeBody(
                self,
                None,
                len(records.values[0]),
                partial(large.run, bodies, job, conditions.rules),
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
        self, records: RecordBatch, read: Sequence[Chunk], why: str, now: float
    ) -> DeadLetter:
        """The dead letter of a batch's only record, as it was read, because it can't
        be accepted.
        """
        lanes = {chunk.lane for chunk in read}
        lane = lanes.pop() if len(lanes) == 1 else None
        # routes may take too long for it: it goes where its events would have gone
        to = sorted({number for chunk in read for number in chunk.to or ()}) or None
        rejected = RejectedEvent(Reason.TOO_LARGE, records.values[0], why=why, to=to)
        (dead_letter,) = self._reader.dead_letters(
            [(lane, rejected)], records.facts(0), records.attributes(0), now
        )
        return dead_letter


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
        self.content: Content | None = None
        self.error: Backpressure | None = None
        """Why it couldn't be read; its source repeats it."""
        self.done: list[Callable[[], None]] = []

    async def run(self, bodies: LargeBodies, job: RecordJob, rules: EventRules | None) -> None:
        """Have it read; `rules`: those of the job."""
        value = self.records.values[0]
        at = self.requested
        content = Content()
        try:
            decoded = await bodies.decode(
                encode_job(job), value, no_files if rules is None else rules.known
            )
        except Exception as error:
            if isinstance(error, Backpressure):
                raise
            reason = Reason.TOO_LARGE if isinstance(error, RequestTooLarge) else Reason.UNDECODABLE
            content.dead_letters = self._dead_letters(
                [(None, RejectedEvent(reason, value, why=error_text(error)))]
            )
        else:
            content = decoded.content(rules, at, self._source)
            content.chunks = await bodies.sliced(decoded.chunks(at, self._source))
            content.dead_letters = self._dead_letters(await bodies.sliced(decoded.rejected()))
        self.content = content
        self._finish()

    def _dead_letters(
        self, rejected: Sequence[tuple[Lane | None, RejectedEvent]]
    ) -> list[DeadLetter]:
        records = self.records
        return self._reader.dead_letters(
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
        for callback in done:
            callback()


def _report(name: str) -> None:
    _log.exception(
        "reading a record failed in an unforeseen way; it becomes a dead letter", record=name
    )


def _no_room(error: RequestTooLarge) -> DeadLettersFull:
    """What is raised for dead letters that can't be made smaller and never fit: their
    source waits.
    """
    return DeadLettersFull(error.message, retry_after=5.0, hint="raise dead_letters.max_bytes")
