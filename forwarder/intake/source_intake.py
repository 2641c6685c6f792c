"""The intake of sources that read records: accepts batches of records, or of events that a source
made of them; releases them; and dead-letters the events of a halted lane.

Invariants: a batch is accepted whole, or nothing of it is accepted or counted. Nothing is dropped
because the buffer or the dead letters are full: the source waits. The dead letters of records may
use all of the store, not only a share as those of requests. `when_full: drop_oldest` may drop
accepted events to make room for a newer request; they are counted as dropped, and are settled.

A record that takes too much work for the event loop is read by the decoder process. Its source
offers it again until it is decoded, and has room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from forwarder.core.garbage import COUNTED_FROM, note_body
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

MAX_LARGE_RECORDS: Final = 4
"""Records of one source that wait for the decoder process, are read by it, or were read and wait
for room in the buffer.
"""
STALE_SECONDS: Final = 60.0
"""A decoded record is discarded if its source hasn't offered it for so long."""

_log = structlog.get_logger(__name__)


class SourceIntake:
    """The intake of one source: a `RecordIntake` and an `EventIntake`."""

    def __init__(self, gate: Gate, branches: Sequence[Branch], *, source: str) -> None:
        """`branches`: the destinations behind the gate."""
        self._gate = gate
        self._conditions = gate.conditions
        self._branches = branches
        self._now = gate.admitter.clock.now
        self._reader = _RecordReader(gate, source)

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        if self._conditions.needs_check:
            self._conditions.check()
        now = self._now()
        size = sum(map(len, records.values))
        if size >= COUNTED_FROM:
            note_body(size)
        try:
            content = self._reader.read(records, now)
            return self._accept_content(
                records, content, callback, level, now=now, given_up=given_up
            )
        except TooMuchWork:
            pass  # reading, or rules and routes: the decoder process does both
        content = self._reader.read_in_decoder(records, now)
        return self._accept_content(records, content, callback, level, now=now, given_up=given_up)

    def accept_events(
        self, chunks: Sequence[Chunk], dead_letters: Sequence[DeadLetter], callback: AckCallback
    ) -> AcceptedBatch | None:
        content = Content(list(chunks), list(dead_letters))
        try:
            return self._enter(content, callback, AckLevel.DELIVERED, self._now())
        except RequestTooLarge as error:
            raise _dead_letters_full(error) from None

    def _accept_content(
        self,
        records: RecordBatch,
        content: Content,
        callback: AckCallback,
        level: AckLevel,
        *,
        now: float,
        given_up: Collection[Lane],
    ) -> AcceptedBatch | None:
        """Accept the content of `records`; if it can never fit, ask for fewer records, or accept a
        dead letter of the only one. Raises a `Backpressure`, or `TooMuchWork` if rules or routes
        would take too long.
        """
        chunks = content.chunks  # as they were read: rules and admission replace the content's
        try:
            accepted = self._enter(content, callback, level, now, given_up)
        except RequestTooLarge as error:
            if _count(records) > 1:
                raise TogetherTooLarge(error.message) from None
            if not records.values:  # its source has rejected it, and that doesn't fit
                raise _dead_letters_full(error) from None
            dead_letter = self._reader.dead_letter_too_large(records, chunks, error.message, now)
            try:
                accepted = self._enter(Content(dead_letters=[dead_letter]), callback, level, now)
            except RequestTooLarge as too_large:
                raise _dead_letters_full(too_large) from None
        self._reader.forget(records)
        return accepted

    def _enter(
        self,
        content: Content,
        callback: AckCallback,
        level: AckLevel,
        now: float,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        """Take the content through the gate. Raises a `Backpressure` if there is no room now,
        `RequestTooLarge` if there never will be, or `TooMuchWork`.
        """
        halted: Collection[Lane] = ()
        if given_up:  # some of them may have resumed
            halted = self.halted().keys() & given_up
        parts = self._gate.enter(
            content,
            level,
            callback,
            effort=self._conditions.effort,
            source_waits=True,
            given_up=halted,
        )
        return None if parts is None else _SubmittedBatch(now, parts)

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        """Events that the buffer hasn't made durable yet aren't removed either."""
        parts = _parts_of(batches)
        for part in parts:
            part.submission.callback = None
        count = 0
        for branch, chunks in self._withdraw(parts, None):
            branch.admission.drop(chunks, DropReason.RETURNED_TO_BROKER)
            count += sum([chunk.count for chunk in chunks])
        return count

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        for part in _parts_of(batches):
            part.submission.callback = None
            if part.submission.ack is not None:
                part.submission.ack.of_request = True

    def dead_letter(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        """Of several destinations, those where the lane is halted dead-letter its events."""
        parts = [part for part in _parts_of(batches) if lane in part.sizes]
        branches = [
            branch
            for branch in self._branches
            if len(self._branches) == 1 or lane in branch.halts.halted_since()
        ]
        # a list: a destination without room doesn't keep the others from it
        succeeded = [
            self._dead_letter(branch, _parts_at(branch, parts), lane, why) for branch in branches
        ]
        return all(succeeded)

    def _dead_letter(
        self, branch: Branch, parts: Sequence[SubmissionPart], lane: Lane, why: str
    ) -> bool:
        admission = branch.admission
        sizes = [part.sizes[lane] for part in parts]
        # at most so much: some events may be settled or in flight
        count = sum([events for _, events in sizes])
        size = sum([size for size, _ in sizes]) + count * len(why)
        reserved = admission.dead_letters.reserve(size, count)
        if reserved is None:
            return False
        chunks = [chunk for _, withdrawn in self._withdraw(parts, lane) for chunk in withdrawn]
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
        """Remove the pending chunks of these parts, of one lane or all, from each destination's
        delivery, where they wait for a retry, and from its buffer; the caller settles them.
        """
        for branch in self._branches:
            acks = [
                part.submission.ack
                for part in _parts_at(branch, parts)
                if part.submission.ack is not None and not part.submission.ack.settled
            ]
            if acks:
                retried = branch.delivery.withdraw(acks, lane)
                yield branch, retried + branch.admission.buffer.withdraw(acks, lane)

    def halted(self) -> Mapping[Lane, float]:
        """Of several destinations, only the required ones count; of halts of one lane, the first to
        begin.
        """
        if len(self._branches) == 1:
            return self._branches[0].halts.halted_since()
        halts: dict[Lane, float] = {}
        for branch in self._branches:
            if not branch.required:
                continue
            for lane, since in branch.halts.halted_since().items():
                halts[lane] = min(since, halts.get(lane, since))
        return halts


@dataclass(frozen=True, slots=True, eq=False)
class _SubmittedBatch:
    """The `AcceptedBatch` of this intake."""

    at: float
    parts: Sequence[SubmissionPart]

    @property
    def lanes(self) -> Collection[Lane]:
        """The destinations' lanes: a destination may have other project keys than the sender."""
        return (
            self.parts[0].sizes.keys()
            if len(self.parts) == 1
            else {lane for part in self.parts for lane in part.sizes}
        )


def _parts_of(batches: Collection[AcceptedBatch]) -> list[SubmissionPart]:
    return [part for batch in batches if isinstance(batch, _SubmittedBatch) for part in batch.parts]


def _parts_at(branch: Branch, parts: Sequence[SubmissionPart]) -> list[SubmissionPart]:
    return [part for part in parts if part.submission.admission is branch.admission]


def _count(records: RecordBatch) -> int:
    return len(records.values) + len(records.rejected)


def _dead_letters_full(error: RequestTooLarge) -> DeadLettersFull:
    """What makes the source wait for a larger `dead_letters.max_bytes`: no smaller batch would help
    against `error`.
    """
    return DeadLettersFull(error.message, retry_after=5.0, hint="raise dead_letters.max_bytes")


class _RecordReader:
    """Reads batches of records on the event loop, or a large record in the decoder process."""

    def __init__(self, gate: Gate, source: str) -> None:
        self._gate = gate
        self._conditions = conditions = gate.conditions
        self._source = source
        self._max_bytes = gate.admitter.quotas.max_lane_bytes
        self._on_loop = RecordBatchReader(
            gate.admitter.lanes,
            conditions.reading,
            source,
            self._max_bytes,
            report=_log_unforeseen,
            effort=conditions.effort,
        )
        self._large: dict[int, _LargeRecord] = {}
        """The large records that aren't accepted yet, by the `id` of their batches: the source
        offers the same object again.
        """

    def read(self, records: RecordBatch, now: float) -> Content:
        """Read a batch on the loop, or return what the decoder process has read of it. Raises
        `TogetherTooLarge` if the records take too much work together, `TooMuchWork` if one record
        alone does; what `read_in_decoder` raises once that was called for it.
        """
        large = self._large.get(id(records)) if self._large else None
        if large is None:
            return self._on_loop.read(records, now)
        return self._content_of(large, now)

    def read_in_decoder(self, records: RecordBatch, now: float) -> Content:
        """Read a batch for which `read`, or rules and routes, raised `TooMuchWork`. Raises
        `StillDecoding` until its only record is decoded, `TogetherTooLarge` if it has several, or
        another `Backpressure` if it can't be decoded now.
        """
        if _count(records) > 1:  # `read` has raised for those that take too long to read
            raise TogetherTooLarge("rules and routes take too long for so many records at once")
        return self._content_of(self._submit(records, now), now)

    def forget(self, records: RecordBatch) -> None:
        """Discard what the decoder process has read of a batch, if it has."""
        if self._large:
            self._large.pop(id(records), None)

    def dead_letter_too_large(
        self, records: RecordBatch, chunks: Sequence[Chunk], why: str, now: float
    ) -> DeadLetter:
        """The dead letter of a batch's only record, with its bytes as the source read them.
        `chunks` were read of it and can't be accepted.
        """
        lanes = {chunk.lane for chunk in chunks}
        lane = lanes.pop() if len(lanes) == 1 else None
        # it goes where its events would have gone: to route it itself may take too long
        to = sorted({number for chunk in chunks for number in chunk.to or ()}) or None
        rejected = RejectedEvent(Reason.TOO_LARGE, records.values[0], why=why, to=to)
        (dead_letter,) = self._on_loop.dead_letters(
            [(lane, rejected)], records.facts(0), records.attributes(0), now
        )
        return dead_letter

    def _content_of(self, large: _LargeRecord, now: float) -> Content:
        """What the decoder process has read of a record. Raises `StillDecoding`, or why it couldn't
        be read: the next offer has it decoded again.
        """
        error = large.error
        if error is not None:
            self.forget(large.records)
            large.error = None
            try:
                raise error
            finally:
                del error  # its traceback leads to this frame: without this they are a cycle
        if large.content is None:
            raise StillDecoding("a large record is being decoded", when_done=large.on_done.append)
        large.offered_at = now
        return large.content.copy(now)  # the admission empties it, even if there is no room now

    def _submit(self, records: RecordBatch, now: float) -> _LargeRecord:
        """Queue the only record of a batch for the decoder process. Raises a `Backpressure` if
        there is no room in the queue.
        """
        conditions = self._conditions
        bodies = conditions.large
        if bodies is None:  # a bug: without a decoder process, `effort` has no bounds
            raise TypeError("there is no decoder process")
        self._discard_stale(now)
        if len(self._large) >= MAX_LARGE_RECORDS:
            raise BufferFull("other large records wait for room in the buffer")
        event_rules, routes = self._gate.steps_of_job(self._source)
        job = RecordJob(
            conditions.reading,
            self._max_bytes,
            now,
            records.facts(0),
            records.api_key,
            records.foreign,
            event_rules,
            routes,
        )
        large = _LargeRecord(records, self._on_loop, now, self._source)
        bodies.submit(
            LargeBody(
                sender=self,
                origin=None,
                size=len(records.values[0]),
                run=partial(large.run, bodies, job, conditions.rules),
                fail=large.fail,
            )
        )
        self._large[id(records)] = large
        return large

    def _discard_stale(self, now: float) -> None:
        """Discard decoded records that their source doesn't offer any more, such as those of a
        revoked partition.
        """
        self._large = {
            key: large
            for key, large in self._large.items()
            if large.content is None or now - large.offered_at < STALE_SECONDS
        }


class _LargeRecord:
    """A record that is read by the decoder process, until it is accepted."""

    def __init__(
        self, records: RecordBatch, reader: RecordBatchReader, now: float, source: str
    ) -> None:
        """`records`: its batch. `reader`: makes its dead letters."""
        self.records = records
        """Kept, so that its `id` is not reused."""
        self._reader = reader
        self._source = source
        self.offered_at = now
        """When its source offered it last, once it is decoded; until then, first. Wall-clock
        seconds.
        """
        self.content: Content | None = None
        """What was read of it; None until it is decoded."""
        self.error: Backpressure | None = None
        """Why it couldn't be read now; raised when its source offers it again."""
        self.on_done: list[Callable[[], None]] = []
        """Called once, when `content` or `error` is set."""

    async def run(self, bodies: LargeBodies, job: RecordJob, rules: EventRules | None) -> None:
        """Have the decoder process read it. `rules`: those of the job; a reload may have set others
        since. A record that can't be read becomes a dead letter; a `Backpressure` is raised, and
        `LargeBodies` calls `fail` with it.
        """
        value = self.records.values[0]
        received_at = self.offered_at
        look_up = no_files if rules is None else rules.known
        try:
            decoded = await bodies.decode(encode_job(job), value, look_up)
        except Backpressure:
            raise
        except Exception as error:
            reason = Reason.TOO_LARGE if isinstance(error, RequestTooLarge) else Reason.UNDECODABLE
            rejected = RejectedEvent(reason, value, why=error_text(error))
            content = Content(dead_letters=self._dead_letters([(None, rejected)]))
        else:
            content = decoded.content(rules, received_at, self._source)
            content.chunks = await bodies.sliced(decoded.chunks(received_at, self._source))
            content.dead_letters = self._dead_letters(await bodies.sliced(decoded.rejected()))
        self.content = content
        self._call_back()

    def fail(self, error: Exception) -> None:
        """Set `error`: it couldn't be read now, and is to be decoded again."""
        drop_frames(error)
        self.error = (
            error
            if isinstance(error, Backpressure)
            else Backpressure(f"a large record could not be decoded: {error_text(error)}")
        )
        self._call_back()

    def _dead_letters(
        self, rejected: Sequence[tuple[Lane | None, RejectedEvent]]
    ) -> list[DeadLetter]:
        records = self.records
        return self._reader.dead_letters(
            rejected, records.facts(0), records.attributes(0), self.offered_at
        )

    def _call_back(self) -> None:
        callbacks = self.on_done
        self.on_done = []
        for callback in callbacks:
            callback()


def _log_unforeseen(position: str) -> None:
    """Log the exception that is handled now, which reading the record at `position` raised."""
    _log.exception(
        "reading a record failed in an unforeseen way; it becomes a dead letter", record=position
    )
