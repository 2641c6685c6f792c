"""Admission: the one way of events into the buffer, for requests and for records.

The steps, in order: rules and routes (`content.py`), which `Gate` has every source take; reserve
room for dead letters, check lanes and quotas, offer all chunks to the buffer or none, count them
in the books, write dead letters, acknowledge, which `Admission` does. A `Submission` is the
content of one request, or of one batch of records.

Senders and sources differ in one thing: a sender is answered within a limit of time, a source
waits (`source_waits`). So at the level `delivered` the events of a sender that was answered 503
are withdrawn, and `when_full` may drop events of senders. A source's events are never dropped for
want of room, and its dead letters may use the whole store, not only the share of those at receipt.

Invariants: books and buffer change in the same callback, so that they balance whenever both are
read; of a submission that the buffer rejects, at once or later, nothing is counted. The callback
is called at most once. What is dropped because its sender repeats it had not been sent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

import structlog

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import (
    Backpressure,
    BufferFull,
    DeadLettersFull,
    Draining,
    LaneFull,
    NotAcknowledged,
    RequestTooLarge,
)
from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.ports import (
    Buffer,
    DeadLetter,
    DropReason,
    Ledger,
    Reason,
    RuleDrop,
    WhenFull,
    dead_letters_of,
)
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.intake.conditions import Conditions
from forwarder.intake.content import Content, RouteTable, note_route, take_steps
from forwarder.intake.decoder_jobs import RoutesOfJob, RulesOfJob
from forwarder.intake.lane_registry import LaneRegistry, Quotas
from forwarder.stamping.stamp_event import NOT_INGESTED
from forwarder.telemetry.labels import UNDECODABLE, lane_label
from forwarder.wire.effort import UNBOUNDED, Allowance, Effort
from forwarder.wire.v1_results import BUFFER_FULL

_FULL: Final = (BufferFull, LaneFull)
"""What `when_full` is about: exactly these, no subclasses (a disk that can't be written, say)."""

MAX_OFFERED_AGAIN: Final = 3
"""How often a submission may drop older events in vain: what is in flight can hold their room."""

_log = structlog.get_logger(__name__)


Sizes: TypeAlias = Mapping[Lane, tuple[int, int]]
"""Bytes and events by lane."""

NO_SIZES: Final[Sizes] = {}


class ReceiptDeadLetters(Protocol):
    """The dead letters, as far as they accept what is rejected at receipt, and what is rejected of
    a source's records.
    """

    def add_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Keep as many of the letters, from the first on, as fit the share for such; how many
        those were.
        """

    def reserve_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Reserve room for letters at receipt that have to be kept, all or none; whether there was
        room.
        """

    def could_hold_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Whether letters at receipt would have room if there were no others."""

    def release_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Letters that room was reserved for are not needed."""

    def add_reserved_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Keep letters that room was reserved for."""

    def reserve(self, size: int, count: int) -> int | None:
        """Reserve room for so many letters of `size` bytes together; how much that is. None: there
        is none, or nothing can be written.
        """

    def could_hold(self, size: int, count: int) -> bool:
        """Whether so many letters of `size` bytes together would have room if there
        were no others.
        """

    def release(self, reserved: int) -> None:
        """Reserved room is not needed."""

    def add_reserved(self, dead_letters: Sequence[DeadLetter], reserved: int) -> None:
        """Keep letters in the room that was reserved for them; what they don't need of it is free
        again.
        """

    def when_durable(self, callback: AckCallback) -> bool:
        """Whether all letters that were dead-lettered so far are durable, or never will be; else
        `callback` is called once, later.
        """


class Submission:
    """The content of one request, or of one batch of records; from the offer to the
    acknowledgement. It is complete when it is made, and has the content's chunks from then on.
    """

    __slots__ = (
        "ack",
        "admission",
        "callback",
        "chunks",
        "content",
        "counted",
        "dead_letters",
        "droppable",
        "given_up",
        "offered_again",
        "reserved",
        "source_waits",
        "timer",
    )

    def __init__(
        self,
        admission: Admission,
        content: Content,
        callback: AckCallback | None,
        *,
        source_waits: bool = False,
        droppable: bool = True,
        given_up: Collection[Lane] = (),
    ) -> None:
        """`droppable`: whether letters of what the service wouldn't ingest may be dropped.
        `given_up`: lanes whose events become dead letters where they have no room, because they
        have been halted for too long. Raises `RuntimeError` if no rules were applied.
        """
        if not content.ruled:
            raise RuntimeError("nothing is admitted before rules are applied (`Gate.enter`)")
        self.admission = admission
        self.content = content
        self.chunks: Sequence[Chunk] = content.chunks
        """Until they are counted; from then on they are the buffer's alone."""
        content.chunks = []
        self.dead_letters: Sequence[DeadLetter] = content.dead_letters
        """Dead letters that have to be kept."""
        self.droppable: Sequence[DeadLetter] = ()
        """Dead letters that are dropped if there is no room."""
        if content.dead_letters and droppable:
            self.dead_letters, self.droppable = _divided(content.dead_letters)
        self.callback = callback
        """None once it was called, or is not needed any more."""
        self.source_waits = source_waits
        self.given_up = given_up
        self.reserved: int | None = None
        """Room that `dead_letters` have in the store, as it counts it if the source waits."""
        self.ack: Ack | None = None
        """Counts the events down, at the level `delivered`."""
        self.timer: Timer | None = None
        """Bounds how long a sender waits for the delivery of its events."""
        self.counted = False
        self.offered_again = 0

    def offered(self, error: Backpressure | None) -> None:
        """The buffer holds the events as safely as it can, or has rejected them late
        (`core.ack.AckCallback`).
        """
        if error is not None:
            if self.admission.is_offered_again(self, error):
                return
            if not self.chunks:
                error = None
        if error is not None:
            self.admission.release(self)
            if self.ack is None:
                self.answer(error)
            else:
                self.ack.end(error)
            return
        self.admission.count(self)
        if self.ack is None:
            if (
                not self.dead_letters and not self.droppable
            ) or self.admission.dead_letters.when_durable(self.written):
                self.answer(None)
        elif self.callback is None:
            self.admission.withdraw(self.ack)

    def settled(self, error: Backpressure | None) -> None:
        """All events are settled, or one was dropped. Dead letters have to be durable before the
        sender may forget their events.
        """
        if self.callback is None:
            return
        if error is not None:
            self.fail(error)
        elif self.admission.dead_letters.when_durable(self.written):
            self.answer(None)

    def written(self, error: Backpressure | None) -> None:
        """The dead letters are durable, or can't be written now: the store retries, and a source
        waits for that.
        """
        if error is None or not self.source_waits:
            self.answer(error)
        elif self.callback is not None and self.admission.dead_letters.when_durable(self.written):
            self.answer(None)

    def expire(self) -> None:
        """The events were not delivered in time."""
        self.fail(NotAcknowledged("the events could not be delivered in time"))

    def fail(self, error: Backpressure) -> None:
        """Ask the sender to repeat the request, and drop what it will send again: all that was not
        sent yet.
        """
        ack = self.ack
        results = self.content.results
        if ack is None or self.source_waits:
            self.answer(error)
            return
        chunks = self.admission.buffer.withdraw((ack,)) if self.counted else []
        # a later change comes too late: a dead letter, say, that is not durable when the answer is
        # given
        ack.watch = None
        if (
            results is not None
            and self.counted
            and results.retry_rest([chunk.data for chunk in chunks])
        ):
            callback = self._leave(error)
            if callback is not None and self.admission.dead_letters.when_durable(callback):
                callback(None)
        else:
            self.answer(error)
        ack.end(error)
        self.admission.drop(chunks, DropReason.WITHDRAWN)

    def answer(self, error: Backpressure | None) -> None:
        """Call back, unless that was done before."""
        callback = self._leave(error)
        if callback is not None:
            callback(error)

    def _leave(self, error: Backpressure | None) -> AckCallback | None:
        """Wait no longer; the callback, if it was not called."""
        callback = self.callback
        self.callback = None
        if callback is not None and self.timer is not None:
            self.timer.cancel()
            self.admission.answered(self, error)
        return callback


@dataclass(slots=True, eq=False)
class SubmissionPart:
    """What one destination gets of a content."""

    submission: Submission
    sizes: Sizes
    """Bytes and events by lane; only of a source that waits."""
    required: bool = True
    """Whether the destination rejects what it has no room for, and acknowledgements wait for it."""

    def release(self) -> None:
        """It is not accepted."""
        self.submission.admission.release(self.submission)
        # they refer to each other, and would wait for the garbage collector
        self.submission.chunks = ()
        self.submission.ack = None


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


class Admitter(Protocol):
    """What contents are admitted by: an `Admission` to one destination, or a `FanOut` to
    several.
    """

    @property
    def clock(self) -> Clock:
        """The clock of all its parts."""

    @property
    def lanes(self) -> LaneRegistry:
        """The lanes of senders."""

    @property
    def quotas(self) -> Quotas:
        """Those of the first destination."""

    @property
    def rejects(self) -> bool:
        """Whether a full buffer rejects new events, and drops none."""

    @property
    def routes(self) -> RouteTable | None:
        """Where events go; None if there is one destination."""

    @property
    def check_room(self) -> Callable[[Lane, int], None]:
        """Raises `BufferFull` if a lane has no room for so many bytes."""

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """`admit` for one chunk with nothing beside it, the most frequent content; whether `level`
        is reached.
        """

    def admit(
        self,
        content: Content,
        level: AckLevel,
        callback: AckCallback,
        *,
        source_waits: bool = False,
        given_up: Collection[Lane] = (),
    ) -> Sequence[SubmissionPart] | None:
        """Put all events into the buffer, and what was rejected to the dead letters, or nothing;
        None if `level` is reached. Otherwise what each required destination got, and `callback` is
        called once, later.

        `source_waits`, `given_up`: see the module, and `Submission`. Raises what lanes, quotas,
        buffer and dead letters raise; then nothing was accepted.
        """

    def end_waiting(self) -> None:
        """Answer every sender that still waits for delivery. Call it when nothing will be
        delivered any more.
        """

    def statistics(self) -> IntakeStatistics:
        """Figures of all its parts."""


class Gate:
    """What every source gives its contents to: rules, routes, admission, in this order."""

    def __init__(self, admitter: Admitter, conditions: Conditions) -> None:
        self.admitter = admitter
        self.conditions = conditions
        self._routes = admitter.routes
        self._admit_one = admitter.admit_one

    def enter(
        self,
        content: Content,
        level: AckLevel,
        callback: AckCallback,
        *,
        effort: Effort = UNBOUNDED,
        source_waits: bool = False,
        given_up: Collection[Lane] = (),
    ) -> Sequence[SubmissionPart] | None:
        """Accept the content whole, or raise with nothing accepted and nothing counted; None if
        `level` is reached, else what is pending (`Admitter.admit`). `effort`: what rules may take,
        and again routes.

        Raises what rules, routes and the admission raise; `TooMuchWork` beyond `effort`.
        """
        take_steps(content, self.conditions.rules, self._routes, microseconds=effort.ruled)
        if source_waits:
            self._check_keys(content)
        elif content.is_one_chunk:
            return None if self._admit_one(content.chunks[0], level, callback) else ()
        return self.admitter.admit(
            content, level, callback, source_waits=source_waits, given_up=given_up
        )

    def enter_one(
        self, chunk: Chunk, level: AckLevel, callback: AckCallback, effort: Effort
    ) -> bool:
        """`enter` for one event with nothing beside it, the most frequent content, without an
        object for it where nothing is done to it on the way; whether `level` is reached.
        """
        conditions = self.conditions
        routes = self._routes
        if conditions.rules is None:
            if routes is not None:
                chunk.to = routes.whole(chunk.lane, chunk.source)
            if routes is None or chunk.to is not None:
                return self._admit_one(chunk, level, callback)
        try:
            if conditions.rules is None and routes is not None:
                note_route(routes, chunk, Allowance(effort.ruled))
                return self._admit_one(chunk, level, callback)
            return self.enter(Content([chunk]), level, callback, effort=effort) is None
        finally:
            conditions.turn.spend(self.admitter.clock.now() - chunk.received_at)

    def _check_keys(self, content: Content) -> None:
        """Raises `RequestTooLarge` for a source's events, as rules leave them, of so many project
        keys that they might never find room together.
        """
        keys = len({chunk.lane for chunk in content.chunks})
        if keys > max(self.admitter.lanes.max_lanes // 2, 1):
            raise RequestTooLarge(
                f"events of {keys} project keys are more than can be accepted at once"
            )

    def steps_of_job(self, source: str) -> tuple[RulesOfJob | None, RoutesOfJob | None]:
        """The rules and routes that the decoder process applies to what it reads."""
        rules = self.conditions.rules
        encoded = None if self._routes is None else self._routes.encoded
        return (
            None
            if rules is None
            else RulesOfJob(rules.encoded, source, self.admitter.quotas.max_lane_bytes),
            None if encoded is None else RoutesOfJob(encoded, source),
        )


class OfferedChunk:
    """One chunk with nothing beside it, from the offer until the buffer holds it: lighter than a
    `Submission`, which it stands in for.
    """

    __slots__ = ("admission", "callback", "chunk")

    def __init__(self, admission: Admission, chunk: Chunk, callback: AckCallback) -> None:
        self.admission = admission
        self.chunk = chunk
        self.callback = callback

    def __call__(self, error: Backpressure | None) -> None:
        """The buffer holds the chunk as safely as it can, or has rejected it late
        (`core.ack.AckCallback`).
        """
        if error is None:
            self.admission.count_chunk(self.chunk)
        self.callback(error)


class Admission:
    """Puts requests and records into the buffer, and counts them."""

    def __init__(
        self,
        buffer: Buffer,
        dead_letters: ReceiptDeadLetters,
        books: Ledger,
        lanes: LaneRegistry,
        quotas: Quotas,
        *,
        clock: Clock,
        on_accepted: Callable[[], None],
        when_full: WhenFull = WhenFull.REJECT,
        ack_timeout: float = 5.0,
        logs_rejected: bool = True,
        taps: TapPoint | None = None,
    ) -> None:
        """`on_accepted`: called when new events are in the buffer. `ack_timeout`: how long a
        sender waits for delivery, in seconds.

        `logs_rejected`: whether what a source rejects of its records is logged; a command reports
        it in its own way.
        """
        self.buffer = buffer
        self.dead_letters = dead_letters
        self.books = books
        self.lanes = lanes
        self.quotas = quotas
        self.check_room = quotas.check_room
        """See `Quotas.check_room`."""
        self.clock = clock
        self.rejects = when_full is WhenFull.REJECT
        """Whether a full buffer rejects new events, and drops none."""
        self._when_full = when_full
        self._logs_rejected = logs_rejected
        self._ack_timeout = ack_timeout
        self._on_accepted = on_accepted
        self._taps = taps or TapPoint()
        self._awaited: dict[Submission, None] = {}
        self.routes: Final = None
        self._nulled = self._filtered = self._not_acknowledged = 0

    def statistics(self) -> IntakeStatistics:
        return IntakeStatistics(
            self._nulled, len(self._awaited), self._not_acknowledged, self._filtered
        )

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """`admit` for one chunk with nothing beside it, the most frequent submission: at the level
        `memory` it needs no object.
        """
        chunks = (chunk,)
        if level is AckLevel.MEMORY:
            try:
                self.lanes.admit(chunks)
                self.quotas.check(chunks)
                self.buffer.offer(chunks)
            except _FULL:
                if self.rejects:
                    raise
            else:
                self.count_chunk(chunk)
                return True
        elif level is AckLevel.DISK and self.rejects:
            self.lanes.admit(chunks)
            self.quotas.check(chunks)
            if not self.buffer.offer(chunks, OfferedChunk(self, chunk, callback)):
                return False
            self.count_chunk(chunk)
            return True
        content = Content([chunk], ruled=True)
        return self.admit_whole(Submission(self, content, callback), level)

    def check_one(self, chunk: Chunk) -> None:
        """Raises what `put_one` would raise for a full buffer."""
        chunks = (chunk,)
        self.lanes.admit(chunks)
        self.quotas.check(chunks)
        self.buffer.check(chunks)

    def put_one(self, chunk: Chunk) -> None:
        """Put a chunk into the buffer, after `check_one`, at the level `memory`."""
        chunks = (chunk,)
        self.buffer.offer(chunks)
        self.books.receive(chunk.lane, chunk.source, chunk.count)
        if self._taps.tap is not None:
            self._taps.tap.chunks(TapOutcome.RECEIVED, chunks)
        self._on_accepted()

    def admit(
        self,
        content: Content,
        level: AckLevel,
        callback: AckCallback,
        *,
        source_waits: bool = False,
        given_up: Collection[Lane] = (),
    ) -> Sequence[SubmissionPart] | None:
        submission = Submission(
            self,
            content,
            callback,
            source_waits=source_waits,
            droppable=not source_waits,
            given_up=given_up,
        )
        sizes = sizes_of(submission.chunks) if source_waits else NO_SIZES
        if self.admit_whole(submission, level):
            return None
        return (SubmissionPart(submission, sizes),)

    def admit_whole(self, submission: Submission, level: AckLevel) -> bool:
        """Put all chunks into the buffer, and what was rejected to the dead letters; whether
        `level` is reached.

        If not, the submission's callback is called later. Raises what lanes, quotas, buffer and
        dead letters raise; then nothing was accepted.
        """
        while True:
            if submission.dead_letters:
                self._reserve(submission)
            try:
                return self.admit_prepared(submission, level)
            except BaseException as error:
                self.release(submission)
                if isinstance(error, LaneFull) and self._give_up(submission):
                    continue
                # they refer to each other, and would wait for the garbage collector
                submission.chunks = ()
                submission.ack = None
                raise

    def _give_up(self, submission: Submission) -> bool:
        """Make dead letters of events that have no room, as far as their lanes were halted for too
        long; whether there are any.
        """
        chunks = [
            chunk
            for chunk in submission.chunks
            if chunk.lane in submission.given_up and self.quotas.is_halted(chunk.lane)
        ]
        if not chunks:
            return False
        why = "its project key was halted for too long, and the buffer has no room for its events"
        now = self.clock.now()
        dead_lettered = [
            dead_letter
            for chunk in chunks
            for dead_letter in dead_letters_of(chunk, Reason.LANE_HALTED, why, now)
        ]
        submission.dead_letters = [*submission.dead_letters, *dead_lettered]
        submission.chunks = [chunk for chunk in submission.chunks if chunk not in chunks]
        return True

    def prepare(self, submission: Submission) -> None:
        """Reserve what `admit_prepared` needs, where several admissions accept together or not at
        all.

        Raises what `admit` would raise now; then nothing is reserved. `release` undoes it. Between
        the two nothing else may be admitted.
        """
        while True:
            if submission.dead_letters:
                self._reserve(submission)
            try:
                if submission.chunks:
                    self.lanes.admit(submission.chunks)
                    self.quotas.check(submission.chunks)
                    self.buffer.check(submission.chunks)
            except BaseException as error:
                if self._makes_room(submission, error):
                    return
                self.release(submission)
                if isinstance(error, LaneFull) and self._give_up(submission):
                    continue
                raise
            return

    def _makes_room(self, submission: Submission, error: BaseException) -> bool:
        """Whether events are dropped where the buffer is full, instead of rejecting these."""
        return (
            not (self.rejects or submission.source_waits or submission.content.replayed is not None)
            and type(error) in _FULL
        )

    def admit_prepared(self, submission: Submission, level: AckLevel) -> bool:
        """`admit_whole` after `prepare`, or after what has to be reserved is."""
        if submission.chunks and level is AckLevel.DELIVERED:
            return self._admit_until_delivered(submission)
        if submission.chunks and not self._offer(
            submission, None if level is AckLevel.MEMORY else submission.offered
        ):
            return False
        return self._accepted(submission, level)

    def _accepted(self, submission: Submission, level: AckLevel) -> bool:
        """Count what can be counted at once; whether there is nothing to wait for."""
        self.count(submission)
        durable = level is AckLevel.MEMORY or (
            not submission.dead_letters and not submission.droppable
        )
        return durable or self.dead_letters.when_durable(submission.written)

    def _admit_until_delivered(self, submission: Submission) -> bool:
        chunks = submission.chunks
        waits = submission.source_waits
        ack = submission.ack = Ack(
            sum([chunk.count for chunk in chunks]),
            submission.settled,
            math.inf if waits else chunks[0].received_at,
            comes_again=not waits,
        )
        if submission.content.results is not None:
            ack.watch = submission.content.results.settled
        for chunk in chunks:
            chunk.ack = ack
        if waits:
            self._offer(submission, None)
            self.count(submission)
            return False
        held = self._offer(submission, submission.offered)
        if not submission.chunks:  # they were dropped
            submission.ack = None
            return self._accepted(submission, AckLevel.DELIVERED)
        submission.timer = self.clock.call_later(self._ack_timeout, submission.expire)
        self._awaited[submission] = None
        if held:
            submission.offered(None)
        return False

    def _offer(self, submission: Submission, callback: AckCallback | None) -> bool:
        """Into the buffer, or raise; whether the buffer holds the chunks already. If new events
        are dropped instead, no chunks are left.
        """
        while True:
            try:
                return self._try(submission.chunks, callback)
            except _FULL as error:
                if not self._makes_room(submission, error):
                    raise
                if self._when_full is WhenFull.DROP_NEWEST:
                    self._drop_newest(submission)
                    return True
                anywhere = not isinstance(error, LaneFull)
                if not self._drop_oldest(submission.chunks, anywhere=anywhere):
                    raise

    def is_offered_again(self, submission: Submission, error: Backpressure) -> bool:
        """What the buffer has rejected late is offered again, a few times, if events may be dropped
        for it; whether the buffer will answer. If not, and no chunks are left, they were dropped.
        """
        if (
            submission.callback is None
            or submission.offered_again == MAX_OFFERED_AGAIN
            or not self._makes_room(submission, error)
        ):
            return False
        submission.offered_again += 1
        if self._when_full is WhenFull.DROP_NEWEST:
            self._drop_newest(submission)
            submission.ack = None
            return False
        try:
            return self._drop_oldest(submission.chunks, anywhere=True) and not self._offer(
                submission, submission.offered
            )
        except Backpressure:
            return False

    def _try(self, chunks: Sequence[Chunk], callback: AckCallback | None) -> bool:
        self.lanes.admit(chunks)
        self.quotas.check(chunks)
        return self.buffer.offer(chunks, callback)

    def drop_at_receipt(self, submission: Submission, reason: DropReason) -> None:
        """Drop all that is in a submission, counted as received."""
        content = submission.content
        self._count_ruled(content)
        dead_letters = [*submission.dead_letters, *submission.droppable]
        self.drop_chunks_at_receipt(submission.chunks, reason)
        self._drop_rejected_at_receipt(dead_letters, content, reason)
        if self._taps.tap is not None:
            self._taps.tap.dead_letters(TapOutcome.DROPPED, dead_letters, reason)
        submission.chunks = submission.dead_letters = submission.droppable = content.overflow = ()

    def drop_chunks_at_receipt(
        self, chunks: Sequence[Chunk], reason: DropReason | RuleDrop
    ) -> None:
        """Drop new events, counted as received."""
        for chunk in chunks:
            self.books.drop_at_receipt(chunk.lane, chunk.source, reason, chunk.count)
        if self._taps.tap is not None:
            self._taps.tap.chunks(TapOutcome.DROPPED, chunks, reason)

    def _drop_newest(self, submission: Submission) -> None:
        self.drop_chunks_at_receipt(submission.chunks, DropReason.DROP_NEWEST)
        submission.chunks = ()
        if submission.content.results is not None:
            submission.content.results.drop_rest(BUFFER_FULL)

    def _drop_oldest(self, chunks: Sequence[Chunk], *, anywhere: bool) -> bool:
        """Make some room: anywhere, or in the lane whose share is full; whether anything was
        pending there.
        """
        for lane in (None,) if anywhere else self.quotas.lanes_to_shorten(chunks):
            dropped = self.buffer.drop_oldest(lane)
            if dropped:
                self.drop(dropped, DropReason.DROP_OLDEST)
                return True
        return False

    def drop(self, chunks: Sequence[Chunk], reason: DropReason) -> None:
        """Count and settle chunks that were removed from their queues. Senders that wait for their
        delivery have to repeat the request.
        """
        for lane, group in groupby(chunks, attrgetter("lane")):
            of_lane = list(group)
            self.books.drop(lane, reason, sum([chunk.count for chunk in of_lane]))
            if self._taps.tap is not None:
                self._taps.tap.chunks(TapOutcome.DROPPED, of_lane, reason)
            for chunk in of_lane:
                if chunk.ack is not None and chunk.ack.comes_again:
                    chunk.ack.end(NotAcknowledged("the events had to make room for newer ones"))
            self.buffer.settle(of_lane, reason)

    def count_chunk(self, chunk: Chunk) -> None:
        """Count the events of a chunk that came alone."""
        self.books.receive(chunk.lane, chunk.source, chunk.count)
        if self._taps.tap is not None:
            self._taps.tap.chunks(TapOutcome.RECEIVED, (chunk,))
        self._on_accepted()

    def count(self, submission: Submission) -> None:
        """Count the events in the books, and write the dead letters. Nothing can fail
        from here on.
        """
        content = submission.content
        replayed = content.replayed
        chunks = submission.chunks
        submission.chunks = ()
        for chunk in chunks:
            if replayed is None:
                self.books.receive(chunk.lane, chunk.source, chunk.count)
            else:
                self.books.restore(chunk.lane, replayed.reason, chunk.count)
        if self._taps.tap is not None:
            self._taps.tap.chunks(
                TapOutcome.RECEIVED if replayed is None else TapOutcome.REPLAYED, chunks
            )
        self._count_ruled(content)
        if submission.dead_letters:
            self._dead_letter(submission)
        if submission.droppable or content.overflow:
            self._dead_letter_droppable(submission)
        self._nulled += content.nulled
        self._filtered += content.filtered
        submission.counted = True
        if chunks:
            self._on_accepted()

    def _count_ruled(self, content: Content) -> None:
        for reason, chunk in content.dropped:
            self.drop_chunks_at_receipt((chunk,), reason)
        for tally in content.tallies:
            tally.count()

    def _reserve(self, submission: Submission) -> None:
        """Room for the dead letters that have to be kept. Raises `DeadLettersFull`, or
        `RequestTooLarge` if there is never enough.
        """
        dead_letters = submission.dead_letters
        store = self.dead_letters
        if submission.source_waits:
            size = sum(
                [
                    len(dead_letter.data) + len(dead_letter.why) + len(dead_letter.attributes)
                    for dead_letter in dead_letters
                ]
            )
            submission.reserved = store.reserve(size, len(dead_letters))
            fits = submission.reserved is not None or store.could_hold(size, len(dead_letters))
        else:
            submission.reserved = 0 if store.reserve_at_receipt(dead_letters) else None
            fits = submission.reserved is not None or store.could_hold_at_receipt(dead_letters)
        if submission.reserved is not None:
            return
        what = (
            f"{len(dead_letters)} of its events can't be delivered "
            f"({dead_letters[0].reason.value}: {dead_letters[0].why}), and the dead letters"
        )
        if not fits:
            raise RequestTooLarge(f"{what} could never hold them (dead_letters.max_bytes)")
        if not submission.source_waits:
            for key in {
                dead_letter.lane.api_key for dead_letter in dead_letters if dead_letter.lane
            }:
                self.quotas.ask_if_unknown(key)
        hint = "replay or drop some dead letters, or raise dead_letters.max_bytes"
        raise DeadLettersFull(f"{what} have no room for them", retry_after=5.0, hint=hint)

    def release(self, submission: Submission) -> None:
        """The submission is not accepted: its room among the dead letters is free again."""
        reserved = submission.reserved
        submission.reserved = None
        if reserved is None:
            return
        if submission.source_waits:
            self.dead_letters.release(reserved)
        else:
            self.dead_letters.release_at_receipt(submission.dead_letters)

    def _dead_letter(self, submission: Submission) -> None:
        dead_letters = submission.dead_letters
        reserved = submission.reserved or 0
        submission.reserved = None
        if submission.source_waits:
            self.dead_letters.add_reserved(dead_letters, reserved)
            if self._logs_rejected:
                log_dead_lettered(dead_letters)
        else:
            self.dead_letters.add_reserved_at_receipt(dead_letters)
        self._count_dead_lettered(dead_letters)

    def _dead_letter_droppable(self, submission: Submission) -> None:
        dead_letters = submission.droppable
        accepted = self.dead_letters.add_at_receipt(dead_letters)
        self._count_dead_lettered(dead_letters[:accepted])
        if self._taps.tap is not None:
            self._taps.tap.dead_letters(
                TapOutcome.DROPPED, dead_letters[accepted:], DropReason.INVALID_OVERFLOW
            )
        self._drop_rejected_at_receipt(
            dead_letters[accepted:], submission.content, DropReason.INVALID_OVERFLOW
        )

    def _drop_rejected_at_receipt(
        self, dead_letters: Sequence[DeadLetter], content: Content, reason: DropReason
    ) -> None:
        """Count dead letters that are dropped, and what the content has beyond them."""
        counts = Counter((dead_letter.lane, dead_letter.source) for dead_letter in dead_letters)
        for owner, source, count in content.overflow:
            counts[owner, source] += count
        for (lane, source), count in counts.items():
            self.books.drop_at_receipt(lane, source, reason, count)

    def _count_dead_lettered(self, dead_letters: Sequence[DeadLetter]) -> None:
        if self._taps.tap is not None:
            self._taps.tap.dead_letters(TapOutcome.DEAD_LETTERED, dead_letters)
        for (lane, source, reason), count in Counter(
            (dead_letter.lane, dead_letter.source, dead_letter.reason)
            for dead_letter in dead_letters
        ).items():
            self.books.receive(lane, source, count)
            self.books.dead_letter(lane, reason, count)

    def withdraw(self, ack: Ack) -> None:
        """Drop what is still pending of a request whose sender was asked to repeat it."""
        self.drop(self.buffer.withdraw((ack,)), DropReason.WITHDRAWN)

    def answered(self, submission: Submission, error: Backpressure | None) -> None:
        """A sender that waited for delivery gets its answer."""
        self._awaited.pop(submission, None)
        if error is not None:
            self._not_acknowledged += 1

    def end_waiting(self) -> None:
        """Ask every sender that waits for delivery to repeat its request, and drop what it will
        send again.
        """
        for awaited in list(self._awaited):
            awaited.fail(Draining("shutting down", retry_after=2.0))


def log_dead_lettered(dead_letters: Sequence[DeadLetter]) -> None:
    """Log one line for each lane and reason; `why` is the first letter's."""
    counted = Counter((dead_letter.lane, dead_letter.reason) for dead_letter in dead_letters)
    first = {
        (dead_letter.lane, dead_letter.reason): dead_letter
        for dead_letter in reversed(dead_letters)
    }
    for (lane, reason), count in counted.items():
        label = lane_label(lane) if lane else UNDECODABLE
        dead_letter = first[lane, reason]
        _log.warning(
            "events became dead letters",
            lane=label,
            reason=reason.value,
            events=count,
            why=dead_letter.why,
            coordinates=dead_letter.coordinates,
        )


def sizes_of(chunks: Sequence[Chunk]) -> Sizes:
    """Bytes and events by lane."""
    sizes: dict[Lane, tuple[int, int]] = {}
    for chunk in chunks:
        size, count = sizes.get(chunk.lane, (0, 0))
        sizes[chunk.lane] = size + len(chunk.data), count + chunk.count
    return sizes


def _divided(dead_letters: Sequence[DeadLetter]) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """Those that have to be kept, and those that may be dropped."""
    others: list[DeadLetter] = []
    droppable: list[DeadLetter] = []
    for dead_letter in dead_letters:
        (droppable if dead_letter.reason in NOT_INGESTED else others).append(dead_letter)
    return others, droppable
