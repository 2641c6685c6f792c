"""Admission: how events get into the buffer, the same for requests and for records.

1. `Gate` applies rules and routes to the content of every source (`content.py`).
2. `Admission` reserves room for dead letters, checks lanes and quotas, offers all chunks to the
   buffer or none, counts them in the books, stores the dead letters, and acknowledges.

A `Submission` is the content of one request, or of one batch of records, on its way through step 2.

A sender must be answered within a time limit; a source waits as long as it takes (`source_waits`).
Three differences follow. At the level `delivered`, a sender whose events aren't delivered in time
is answered 503, and the events are withdrawn, as it will send them again. `when_full` may drop
senders' events, but a source's are never dropped for lack of room. And a source's dead letters may
use the whole store, a sender's only the share for events rejected at receipt.

Invariants: books and buffer change in the same callback, so that they balance whenever both are
read. If the buffer rejects a submission, at once or later, nothing of it is counted. The callback
is called at most once. An event is withdrawn only if it was not sent yet.
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
from forwarder.intake.content import Content, RouteTable, apply_routes, apply_rules, note_route
from forwarder.intake.decoder_jobs import RoutesOfJob, RulesOfJob
from forwarder.intake.lane_registry import LaneRegistry, Quotas
from forwarder.stamping.stamp_event import NOT_INGESTED
from forwarder.telemetry.labels import UNDECODABLE, lane_label
from forwarder.wire.effort import UNBOUNDED, Allowance, Effort
from forwarder.wire.v1_results import BUFFER_FULL

_FULL: Final = (BufferFull, LaneFull)
"""The errors for which `when_full` may drop events: exactly these, not their subclasses, such as a
disk that can't be written.
"""

MAX_REOFFERS: Final = 3
"""How often a submission that the buffer has rejected late is offered again. Dropping older events
may not make room for it, as long as some of them are in flight.
"""

_log = structlog.get_logger(__name__)


Sizes: TypeAlias = Mapping[Lane, tuple[int, int]]
"""Bytes and events by lane."""

NO_SIZES: Final[Sizes] = {}


class ReceiptDeadLetters(Protocol):
    """The store of dead letters, as admissions use it.

    The methods `…at_receipt` are for events of senders that are rejected at receipt: these may use
    a share of the store. The others are for what is rejected of a source's records.
    """

    def add_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Store as many of the dead letters as fit, from the first on; return how many."""

    def reserve_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Reserve room for all of the dead letters; False if there is not enough, and nothing was
        reserved.
        """

    def could_hold_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Whether these dead letters would have room if there were no others."""

    def release_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Free the room that was reserved for these dead letters."""

    def add_reserved_at_receipt(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Store dead letters in the room that was reserved for them."""

    def reserve(self, size: int, count: int) -> int | None:
        """Reserve room for `count` dead letters of `size` bytes together; return the bytes that
        were reserved. None: there is not enough room, or nothing can be written.
        """

    def could_hold(self, size: int, count: int) -> bool:
        """Whether `count` dead letters of `size` bytes together would have room if there were no
        others.
        """

    def release(self, reserved: int) -> None:
        """Free reserved room."""

    def add_reserved(self, dead_letters: Sequence[DeadLetter], reserved: int) -> None:
        """Store dead letters in the room that was reserved for them, and free the rest of it."""

    def when_durable(self, callback: AckCallback) -> bool:
        """Whether all dead letters so far are durable, or never will be. If not, `callback` is
        called once, later.
        """


class Submission:
    """The content of one request, or of one batch of records, from the offer to the
    acknowledgement. It takes the chunks out of the content, and clears what only rules need.
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
        "reoffers",
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
        may_drop_dead_letters: bool = True,
        given_up: Collection[Lane] = (),
    ) -> None:
        """`may_drop_dead_letters`: whether the dead letters of events that the service wouldn't
        ingest may be dropped. `given_up`: lanes that were halted for too long, so that their events
        become dead letters if they have no room. Raises `RuntimeError` unless the content is
        `ruled`.
        """
        if not content.ruled:
            raise RuntimeError("nothing is admitted before rules are applied (`Gate.enter`)")
        self.admission = admission
        self.content = content
        self.chunks: Sequence[Chunk] = content.chunks
        """Empty once they are counted: then only the buffer has them."""
        content.chunks = []
        # what rules may have needed must not stay until the events are settled
        content.names = ()
        content.dead_letter = None
        self.dead_letters: Sequence[DeadLetter] = content.dead_letters
        """Dead letters that have to be kept."""
        self.droppable: Sequence[DeadLetter] = ()
        """Dead letters that are dropped if there is no room."""
        if content.dead_letters and may_drop_dead_letters:
            self.dead_letters, self.droppable = _split_droppable(content.dead_letters)
        self.callback = callback
        """None once it was called, or is no longer needed."""
        self.source_waits = source_waits
        self.given_up = given_up
        self.reserved: int | None = None
        """The room reserved for `dead_letters`, if any: in bytes if the source waits, else 0."""
        self.ack: Ack | None = None
        """Counts the events that are not settled, at the level `delivered`."""
        self.timer: Timer | None = None
        """Limits how long a sender waits for the delivery of its events."""
        self.counted = False
        """Whether it is in the books."""
        self.reoffers = 0

    def on_buffered(self, error: Backpressure | None) -> None:
        """The buffer has the events, or has rejected them late (`core.ack.AckCallback`)."""
        if error is not None:
            if self.admission.offer_again(self, error):
                return
            if not self.chunks:  # they were dropped instead
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
            ) or self.admission.dead_letters.when_durable(self.on_dead_letters_stored):
                self.answer(None)
        elif self.callback is None:
            self.admission.withdraw(self.ack)

    def on_settled(self, error: Backpressure | None) -> None:
        """All events are settled, or one was dropped. Dead letters have to be durable before the
        sender may forget their events.
        """
        if self.callback is None:
            return
        if error is not None:
            self.fail(error)
        elif self.admission.dead_letters.when_durable(self.on_dead_letters_stored):
            self.answer(None)

    def on_dead_letters_stored(self, error: Backpressure | None) -> None:
        """The dead letters are durable, or can't be written now. The store retries, and a source
        waits for that.
        """
        if error is None or not self.source_waits:
            self.answer(error)
        elif self.callback is not None and self.admission.dead_letters.when_durable(
            self.on_dead_letters_stored
        ):
            self.answer(None)

    def expire(self) -> None:
        """The events were not delivered in time."""
        self.fail(NotAcknowledged("the events could not be delivered in time"))

    def fail(self, error: Backpressure) -> None:
        """Ask the sender to repeat the request, and drop its events that were not sent yet."""
        ack = self.ack
        results = self.content.results
        if ack is None or self.source_waits:
            self.answer(error)
            return
        chunks = self.admission.buffer.withdraw((ack,)) if self.counted else []
        # the results that the answer lists can't change any more
        ack.watch = None
        if (
            results is not None
            and self.counted
            and results.retry_rest([chunk.data for chunk in chunks])
        ):
            callback = self._end_wait(error)
            if callback is not None and self.admission.dead_letters.when_durable(callback):
                callback(None)
        else:
            self.answer(error)
        ack.end(error)
        self.admission.drop(chunks, DropReason.WITHDRAWN)

    def answer(self, error: Backpressure | None) -> None:
        """Call back, unless that was done before."""
        callback = self._end_wait(error)
        if callback is not None:
            callback(error)

    def break_cycle(self) -> None:
        """Forget chunks and acknowledgement, which refer to each other and back to this: else their
        memory waits for the garbage collector.
        """
        self.chunks = ()
        self.ack = None

    def _end_wait(self, error: Backpressure | None) -> AckCallback | None:
        """Stop waiting for anything; return the callback for the caller to call, or None if it was
        called before.
        """
        callback = self.callback
        self.callback = None
        if callback is not None and self.timer is not None:
            self.timer.cancel()
            self.admission.note_answer(self, error)
        return callback


@dataclass(slots=True, eq=False)
class SubmissionPart:
    """The part of a content that is routed to one destination."""

    submission: Submission
    sizes: Sizes
    """Bytes and events by lane; empty unless the source waits."""
    required: bool = True
    """Whether the destination rejects what it has no room for, and acknowledgements wait for it."""

    def release(self) -> None:
        """Give up the part, which was not accepted."""
        self.submission.admission.release(self.submission)
        self.submission.break_cycle()


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counts since the start, except for `awaiting_delivery`."""

    nulled_numbers: int
    """NaN and Infinity that became null."""
    awaiting_delivery: int = 0
    """Requests whose senders wait for the delivery of their events."""
    not_acknowledged: int = 0
    """Requests that were answered 503 because delivery took too long."""
    filtered_records: int = 0
    """Log records of OTLP that the mapping leaves out."""


class Admitter(Protocol):
    """Admits contents: an `Admission` to one destination, or a `FanOut` to several."""

    @property
    def clock(self) -> Clock:
        """The clock of all destinations."""

    @property
    def lanes(self) -> LaneRegistry:
        """The lanes of senders."""

    @property
    def quotas(self) -> Quotas:
        """The quotas of the first destination."""

    @property
    def rejects_when_full(self) -> bool:
        """Whether a full buffer rejects new events, instead of dropping some."""

    @property
    def routes(self) -> RouteTable | None:
        """Which destinations events go to; None if there is only one destination."""

    @property
    def check_room(self) -> Callable[[Lane, int], None]:
        """Raises `BufferFull` if a lane has no room for so many bytes."""

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """Admit a content that is one chunk and nothing else, the most frequent case; return
        whether `level` is reached.
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
        """Put all events into the buffer, and the rejected ones into the dead letters, or nothing.

        Return None if `level` is reached. Otherwise return the part of each required destination,
        and `callback` is called once, later. `source_waits`, `given_up`: see the module, and
        `Submission`. Raises what lanes, quotas, buffer and dead letters raise; then nothing was
        accepted.
        """

    def end_waiting(self) -> None:
        """Answer every sender that still waits for delivery: nothing is delivered from now on."""

    def statistics(self) -> IntakeStatistics:
        """Figures of all destinations together."""


class Gate:
    """The entrance for the contents of every source: rules, routes, admission, in this order."""

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
        """Accept the content as a whole, or raise with nothing accepted and nothing counted. Return
        None if `level` is reached, else the pending parts (`Admitter.admit`).

        `effort.ruled` limits the time of rules, and again that of routes. Raises what rules, routes
        and the admission raise; `TooMuchWork` beyond `effort`.
        """
        if self.conditions.rules is None:
            content.ruled = True
        else:
            apply_rules(content, self.conditions.rules, microseconds=effort.ruled)
        if self._routes is not None:
            apply_routes(content, self._routes, microseconds=effort.ruled)
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
        """`enter` for a content that is one event and nothing else, the most frequent case. It
        makes no `Content` unless there are rules. Return whether `level` is reached.
        """
        conditions = self.conditions
        routes = self._routes
        if conditions.rules is None:
            if routes is not None:
                chunk.to = routes.whole(chunk.lane, chunk.source)
            if routes is None or chunk.to is not None:
                return self._admit_one(chunk, level, callback)
        # rules, and routes that depend on the event, take time: it counts for the loop's turn
        try:
            if conditions.rules is not None:
                return self.enter(Content([chunk]), level, callback, effort=effort) is None
            if routes is not None:
                note_route(routes, chunk, Allowance(effort.ruled))
            return self._admit_one(chunk, level, callback)
        finally:
            conditions.turn.spend(self.admitter.clock.now() - chunk.received_at)

    def _check_keys(self, content: Content) -> None:
        """Raises `RequestTooLarge` if a source's events, after rules, have more project keys than
        half of the lanes that there may be: they might never be accepted together.
        """
        keys = len({chunk.lane for chunk in content.chunks})
        if keys > max(self.admitter.lanes.max_lanes // 2, 1):
            raise RequestTooLarge(
                f"events of {keys} project keys are more than can be accepted at once"
            )

    def steps_of_job(self, source: str) -> tuple[RulesOfJob | None, RoutesOfJob | None]:
        """The rules and routes of a source, for the decoder process to apply to what it reads."""
        rules = self.conditions.rules
        encoded = None if self._routes is None else self._routes.encoded
        return (
            None
            if rules is None
            else RulesOfJob(rules.encoded, source, self.admitter.quotas.max_lane_bytes),
            None if encoded is None else RoutesOfJob(encoded, source),
        )


class OfferedChunk:
    """One chunk and nothing else, from the offer until the buffer has it: a `Submission` that costs
    less.
    """

    __slots__ = ("admission", "callback", "chunk")

    def __init__(self, admission: Admission, chunk: Chunk, callback: AckCallback) -> None:
        self.admission = admission
        self.chunk = chunk
        self.callback = callback

    def __call__(self, error: Backpressure | None) -> None:
        """The buffer has the chunk, or has rejected it late (`core.ack.AckCallback`)."""
        if error is None:
            self.admission.count_chunk(self.chunk)
        self.callback(error)


class Admission:
    """Puts requests and records into one destination's buffer, and counts them.

    `admit_one` and `admit` are for one destination. With several, `FanOut` calls `check_one` and
    `put_one`, or `prepare` and `admit_prepared`, so that all destinations have agreed before the
    first accepts.
    """

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

        `logs_rejected`: whether rejected records of a source are logged; a command reports them in
        its own way.
        """
        self.buffer = buffer
        self.dead_letters = dead_letters
        self.books = books
        self.lanes = lanes
        self.quotas = quotas
        self.check_room = quotas.check_room
        """Raises `BufferFull` if a lane has no room for so many bytes."""
        self.clock = clock
        self.rejects_when_full = when_full is WhenFull.REJECT
        """Whether a full buffer rejects new events, instead of dropping some."""
        self._when_full = when_full
        self._logs_rejected = logs_rejected
        self._ack_timeout = ack_timeout
        self._on_accepted = on_accepted
        self._taps = taps or TapPoint()
        self._awaiting_delivery: dict[Submission, None] = {}
        self.routes: Final = None
        self._nulled = self._filtered = self._not_acknowledged = 0

    def statistics(self) -> IntakeStatistics:
        return IntakeStatistics(
            self._nulled, len(self._awaiting_delivery), self._not_acknowledged, self._filtered
        )

    def admit_one(self, chunk: Chunk, level: AckLevel, callback: AckCallback) -> bool:
        """At the level `memory`, this makes no object for the chunk."""
        chunks = (chunk,)
        if level is AckLevel.MEMORY:
            try:
                self.lanes.admit(chunks)
                self.quotas.check(chunks)
                self.buffer.offer(chunks)
            except _FULL:
                if self.rejects_when_full:
                    raise
            else:
                self.count_chunk(chunk)
                return True
        elif level is AckLevel.DISK and self.rejects_when_full:
            self.lanes.admit(chunks)
            self.quotas.check(chunks)
            if not self.buffer.offer(chunks, OfferedChunk(self, chunk, callback)):
                return False
            self.count_chunk(chunk)
            return True
        content = Content([chunk], ruled=True)
        return self._admit(Submission(self, content, callback), level)

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
            may_drop_dead_letters=not source_waits,
            given_up=given_up,
        )
        sizes = sizes_of(submission.chunks) if source_waits else NO_SIZES
        if self._admit(submission, level):
            return None
        return (SubmissionPart(submission, sizes),)

    def _admit(self, submission: Submission, level: AckLevel) -> bool:
        """Return whether `level` is reached. If not, the submission's callback is called later."""
        while True:  # again if events became dead letters because their lanes have no room
            if submission.dead_letters:
                self._reserve(submission)
            try:
                return self.admit_prepared(submission, level)
            except BaseException as error:
                self.release(submission)
                if isinstance(error, LaneFull) and self._dead_letter_given_up(submission):
                    continue
                submission.break_cycle()
                raise

    def _dead_letter_given_up(self, submission: Submission) -> bool:
        """Turn the events of lanes that were halted for too long into dead letters of the
        submission; return whether there are any.
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
        """Reserve what `admit_prepared` needs, so that several admissions can accept together or
        not at all.

        Raises what `admit` would raise now; then nothing is reserved. `release` undoes it. Between
        this and `admit_prepared`, nothing else may be admitted.
        """
        while True:  # as in `_admit`
            if submission.dead_letters:
                self._reserve(submission)
            try:
                if submission.chunks:
                    self.lanes.admit(submission.chunks)
                    self.quotas.check(submission.chunks)
                    self.buffer.check(submission.chunks)
            except BaseException as error:
                if self._may_drop_events(submission, error):
                    return
                self.release(submission)
                if isinstance(error, LaneFull) and self._dead_letter_given_up(submission):
                    continue
                raise
            return

    def _may_drop_events(self, submission: Submission, error: BaseException) -> bool:
        """Whether `error` says that the buffer is full, and events are dropped then, instead of
        rejecting the submission.
        """
        return (
            not (
                self.rejects_when_full
                or submission.source_waits
                or submission.content.replayed is not None
            )
            and type(error) in _FULL
        )

    def admit_prepared(self, submission: Submission, level: AckLevel) -> bool:
        """Admit a submission whose dead letters have room reserved; return whether `level` is
        reached, as `_admit` does.
        """
        if submission.chunks and level is AckLevel.DELIVERED:
            return self._admit_until_delivered(submission)
        if submission.chunks and not self._offer(
            submission, None if level is AckLevel.MEMORY else submission.on_buffered
        ):
            return False
        return self._count_buffered(submission, level)

    def _count_buffered(self, submission: Submission, level: AckLevel) -> bool:
        """Count a submission that the buffer has; return whether `level` is reached."""
        self.count(submission)
        durable = level is AckLevel.MEMORY or (
            not submission.dead_letters and not submission.droppable
        )
        return durable or self.dead_letters.when_durable(submission.on_dead_letters_stored)

    def _admit_until_delivered(self, submission: Submission) -> bool:
        chunks = submission.chunks
        source_waits = submission.source_waits
        ack = submission.ack = Ack(
            sum([chunk.count for chunk in chunks]),
            submission.on_settled,
            math.inf if source_waits else chunks[0].received_at,
            of_request=not source_waits,
        )
        if submission.content.results is not None:
            ack.watch = submission.content.results.settled
        for chunk in chunks:
            chunk.ack = ack
        if source_waits:
            self._offer(submission, None)
            self.count(submission)
            return False
        buffered = self._offer(submission, submission.on_buffered)
        if not submission.chunks:  # they were dropped
            submission.ack = None
            return self._count_buffered(submission, AckLevel.DELIVERED)
        submission.timer = self.clock.call_later(self._ack_timeout, submission.expire)
        self._awaiting_delivery[submission] = None
        if buffered:
            submission.on_buffered(None)
        return False

    def _offer(self, submission: Submission, callback: AckCallback | None) -> bool:
        """Offer the chunks to the buffer, and make room by dropping events if they may be dropped;
        else raise. Return whether the buffer has the chunks already.

        If the new events are the ones that are dropped, no chunks are left.
        """
        while True:
            try:
                return self._check_and_offer(submission.chunks, callback)
            except _FULL as error:
                if not self._may_drop_events(submission, error):
                    raise
                if self._when_full is WhenFull.DROP_NEWEST:
                    self._drop_newest(submission)
                    return True
                anywhere = not isinstance(error, LaneFull)
                if not self._drop_oldest(submission.chunks, anywhere=anywhere):
                    raise

    def offer_again(self, submission: Submission, error: Backpressure) -> bool:
        """Drop events to make room for a submission that the buffer has rejected late, and offer it
        again, a few times. Return whether the buffer will answer.

        If not, and no chunks are left, the new events were dropped.
        """
        if (
            submission.callback is None
            or submission.reoffers == MAX_REOFFERS
            or not self._may_drop_events(submission, error)
        ):
            return False
        submission.reoffers += 1
        if self._when_full is WhenFull.DROP_NEWEST:
            self._drop_newest(submission)
            submission.ack = None
            return False
        try:
            return self._drop_oldest(submission.chunks, anywhere=True) and not self._offer(
                submission, submission.on_buffered
            )
        except Backpressure:
            return False

    def _check_and_offer(self, chunks: Sequence[Chunk], callback: AckCallback | None) -> bool:
        self.lanes.admit(chunks)
        self.quotas.check(chunks)
        return self.buffer.offer(chunks, callback)

    def drop_at_receipt(self, submission: Submission, reason: DropReason) -> None:
        """Drop a whole submission; it counts as received."""
        content = submission.content
        self._count_rule_results(content)
        dead_letters = [*submission.dead_letters, *submission.droppable]
        self.drop_chunks_at_receipt(submission.chunks, reason)
        self._drop_rejected_at_receipt(dead_letters, content, reason)
        if self._taps.tap is not None:
            self._taps.tap.dead_letters(TapOutcome.DROPPED, dead_letters, reason)
        submission.chunks = submission.dead_letters = submission.droppable = content.overflow = ()

    def drop_chunks_at_receipt(
        self, chunks: Sequence[Chunk], reason: DropReason | RuleDrop
    ) -> None:
        """Drop new events; they count as received."""
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
        """Drop the oldest pending events, of all lanes or of one whose share is full; return
        whether there were any.
        """
        for lane in (None,) if anywhere else self.quotas.lanes_to_shorten(chunks):
            dropped = self.buffer.drop_oldest(lane)
            if dropped:
                self.drop(dropped, DropReason.DROP_OLDEST)
                return True
        return False

    def drop(self, chunks: Sequence[Chunk], reason: DropReason) -> None:
        """Count and settle chunks that were removed from their queues. Senders that wait for their
        delivery are asked to repeat the request.
        """
        for lane, group in groupby(chunks, attrgetter("lane")):
            lane_chunks = list(group)
            self.books.drop(lane, reason, sum([chunk.count for chunk in lane_chunks]))
            if self._taps.tap is not None:
                self._taps.tap.chunks(TapOutcome.DROPPED, lane_chunks, reason)
            for chunk in lane_chunks:
                if chunk.ack is not None and chunk.ack.of_request:
                    chunk.ack.end(NotAcknowledged("the events had to make room for newer ones"))
            self.buffer.settle(lane_chunks, reason)

    def count_chunk(self, chunk: Chunk) -> None:
        """Count a chunk that has no submission."""
        self.books.receive(chunk.lane, chunk.source, chunk.count)
        if self._taps.tap is not None:
            self._taps.tap.chunks(TapOutcome.RECEIVED, (chunk,))
        self._on_accepted()

    def count(self, submission: Submission) -> None:
        """Count the events in the books, and store the dead letters. Nothing can fail from here
        on.
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
        self._count_rule_results(content)
        if submission.dead_letters:
            self._dead_letter(submission)
        if submission.droppable or content.overflow:
            self._dead_letter_droppable(submission)
        self._nulled += content.nulled
        self._filtered += content.filtered
        submission.counted = True
        if chunks:
            self._on_accepted()

    def _count_rule_results(self, content: Content) -> None:
        """Count what rules have dropped, and how often each rule was applied."""
        for reason, chunk in content.dropped:
            self.drop_chunks_at_receipt((chunk,), reason)
        for tally in content.tallies:
            tally.count()

    def _reserve(self, submission: Submission) -> None:
        """Reserve room for the dead letters that have to be kept. Raises `DeadLettersFull`, or
        `RequestTooLarge` if they could never have room.
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
            could_fit = submission.reserved is not None or store.could_hold(size, len(dead_letters))
        else:
            submission.reserved = 0 if store.reserve_at_receipt(dead_letters) else None
            could_fit = submission.reserved is not None or store.could_hold_at_receipt(dead_letters)
        if submission.reserved is not None:
            return
        undeliverable = (
            f"{len(dead_letters)} of its events can't be delivered "
            f"({dead_letters[0].reason.value}: {dead_letters[0].why})"
        )
        if not could_fit:
            raise RequestTooLarge(
                f"{undeliverable}, and the dead letters could never hold them "
                "(dead_letters.max_bytes)"
            )
        if not submission.source_waits:
            for key in {
                dead_letter.lane.api_key for dead_letter in dead_letters if dead_letter.lane
            }:
                self.quotas.ask_if_unknown(key)
        hint = "replay or drop some dead letters, or raise dead_letters.max_bytes"
        raise DeadLettersFull(
            f"{undeliverable}, and the dead letters have no room for them",
            retry_after=5.0,
            hint=hint,
        )

    def release(self, submission: Submission) -> None:
        """Free the room reserved for the dead letters of a submission that is not accepted."""
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
        """Count dead letters that are dropped, and the content's overflow."""
        counts = Counter((dead_letter.lane, dead_letter.source) for dead_letter in dead_letters)
        for lane, source, count in content.overflow:
            counts[lane, source] += count
        for (counted_lane, source), count in counts.items():
            self.books.drop_at_receipt(counted_lane, source, reason, count)

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
        """Drop the pending events of a request whose sender was asked to repeat it."""
        self.drop(self.buffer.withdraw((ack,)), DropReason.WITHDRAWN)

    def note_answer(self, submission: Submission, error: Backpressure | None) -> None:
        """A sender that waited for delivery is answered: it is no longer waited for."""
        self._awaiting_delivery.pop(submission, None)
        if error is not None:
            self._not_acknowledged += 1

    def end_waiting(self) -> None:
        """Ask every sender that waits for delivery to repeat its request, and drop its events that
        were not sent yet.
        """
        for submission in list(self._awaiting_delivery):
            submission.fail(Draining("shutting down", retry_after=2.0))


def log_dead_lettered(dead_letters: Sequence[DeadLetter]) -> None:
    """Log one line for each lane and reason; `why` is that of its first dead letter."""
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


def _split_droppable(
    dead_letters: Sequence[DeadLetter],
) -> tuple[list[DeadLetter], list[DeadLetter]]:
    """The dead letters that have to be kept, and those that may be dropped."""
    required: list[DeadLetter] = []
    droppable: list[DeadLetter] = []
    for dead_letter in dead_letters:
        (droppable if dead_letter.reason in NOT_INGESTED else required).append(dead_letter)
    return required, droppable
