"""What the layers need of each other, as protocols, and the words that they share.
`daemon/pipeline.py` wires the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.errors import Backpressure
from forwarder.core.event import Ack, Batch, Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.outcome import Reply
from forwarder.core.path import RequestPath


class Ordering(StrEnum):
    """What a lane promises about order (docs/explanation/delivery.md, Ordering)."""

    NONE = "none"
    PER_DISTINCT_ID = "per_distinct_id"
    STRICT = "strict"


class Reason(StrEnum):
    """Why an event became a dead letter (closed set; documented in docs/reference/reasons.md)."""

    MISSING_EVENT = "missing_event"
    MISSING_DISTINCT_ID = "missing_distinct_id"
    INVALID_EVENT = "invalid_event"
    LONE_SURROGATE = "lone_surrogate"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    GAVE_UP = "gave_up"
    UNDELIVERED_AT_EXIT = "undelivered_at_exit"
    UNDECODABLE = "undecodable"
    """A source's record that can't be read as events; its lane is unknown."""
    INVALID_TOKEN = "invalid_token"  # noqa: S105 - no secret
    """A source's record, or an event of it, without a project key, or with one that can't be one.
    """
    MISSING_TIMESTAMP = "missing_timestamp"
    """Neither the event nor its record has a time."""
    UNMAPPABLE = "unmappable"
    """A source's record that its mapping rejects."""
    ILLEGAL_DISTINCT_ID = "illegal_distinct_id"
    """An import's record that would merge persons by an id that many share (`nil`, `blank`)."""
    LANE_HALTED = "lane_halted"
    """Its lane was halted for longer than its source waits."""
    RULE_FAILED = "rule_failed"
    """A rule that protects people, or that says so, could not be applied to it."""


class WhenFull(StrEnum):
    """What happens to new events when the buffer is full."""

    REJECT = "reject"
    """Their sender gets 503 and retries."""
    DROP_NEWEST = "drop_newest"
    """They are dropped, and counted."""
    DROP_OLDEST = "drop_oldest"
    """Those that have waited longest are dropped, and counted, until there is room."""


class DropReason(StrEnum):
    """Why an event was dropped (closed set; documented in docs/reference/reasons.md)."""

    INVALID_OVERFLOW = "invalid_overflow"
    """Rejected at receipt, and the dead letters' share for such is full."""
    WITHDRAWN = "withdrawn"
    """Its sender got 503: it was not acknowledged in time, and had not been sent."""
    DROP_NEWEST = "drop_newest"
    """The buffer was full, and `buffer.when_full` says so."""
    DROP_OLDEST = "drop_oldest"
    """It made room for a newer one, because `buffer.when_full` says so."""
    OPERATOR = "operator"
    """A dead letter that an operator dropped."""
    DAMAGED = "damaged"
    """Its record on disk can't be read any more; it is in quarantine."""
    OPTIONAL_DESTINATION = "optional_destination"
    """Its destination isn't required and had no room for it."""
    RETURNED_TO_BROKER = "returned_to_broker"
    """Its source gave its partition up before it was sent: the next reader of the partition reads
    it again.
    """


RULE_PREFIX: Final = "rule:"


class RuleDrop(str):
    """An event was dropped by a rule: `rule:` and the rule's name. Beside `DropReason`, for names
    are the user's.
    """

    __slots__ = ()

    @property
    def value(self) -> str:
        """The text, as that of a `DropReason`."""
        return str(self)


DropCause: TypeAlias = DropReason | RuleDrop


def drop_cause(text: str) -> DropCause:
    """What a text of books or files stands for. Raises `ValueError`."""
    return RuleDrop(text) if text.startswith(RULE_PREFIX) else DropReason(text)


class Fate(StrEnum):
    """An event's final state, if it was not dropped."""

    DELIVERED = "delivered"
    DEAD_LETTERED = "buried"  # as the logs on disk have it
    """It became a dead letter."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that can't be delivered, with its original bytes. `why` quotes the refusal; `lane`
    is None if it is unknown.
    """

    reason: Reason
    lane: Lane | None
    data: bytes
    at: float
    why: str = ""
    source: str = "http"
    coordinates: str = ""
    """Its position in the source, if that has positions: cluster/topic/partition/offset,
    file:offset.
    """
    place: tuple[int, int] | None = None
    """Where in the buffer's files, or in its source, it was (`Chunk.where`): the same event is
    never dead-lettered twice. None: nowhere.
    """
    attributes: str = ""
    """What else its source knows of it (key and headers of a record), as the text of a JSON
    object; empty if nothing.
    """
    to: Sequence[int] | None = None
    """The numbers of the destinations that it is for, where that is known before it is divided
    among them.
    """
    ruled: bool = False
    """Whether the rules for events were applied to it: they aren't again when it is replayed."""
    sender_key: str = ""
    """The project key that its sender used; empty: that of its lane."""
    new_uuid: str = ""
    """The uuid that a replay gives it if it has none. Letters of the same event, at several
    destinations, have the same.
    """


def dead_letters_of(chunk: Chunk, reason: Reason, why: str, at: float) -> list[DeadLetter]:
    """A dead letter for each event of a chunk that was admitted, or would have been if there were
    room.
    """
    lane = chunk.lane
    source = chunk.source
    return [
        DeadLetter(reason, lane, event, at, why, source, *chunk.where(index), ruled=True)
        for index, event in enumerate(chunk.events())
    ]


class ReplayedDeadLetter(NamedTuple):
    """The dead letter that is replayed: its number in the store, and why it was one."""

    number: int
    reason: Reason
    at: float | None = None
    """When it became one, wall-clock seconds: an event that was rejected at receipt gets that time
    if it has none of its own.
    """
    uuid: str = ""
    """The uuid that it gets if it has none; empty: a new one."""
    ruled: bool = False
    """See `DeadLetter.ruled`."""
    sender_key: str | None = None
    """The project key that its sender used, which rules match; None: that of its lane. Empty: it
    isn't known, and any matches.
    """
    source: str = ""
    """Where it came from first, which rules match."""


class EventResults(Protocol):
    """The results of a request's events, for protocols that answer so."""

    @property
    def retries(self) -> bool:
        """Whether the sender has to repeat an event."""

    def body(self) -> bytes:
        """The body of the answer."""


@dataclass(slots=True)
class V1Head:
    """What the head of a request says in the protocol whose answers have a result for
    each event (docs/reference/v1.md).
    """

    authorization: bytes = b""
    sdk_info: bytes = b""
    """Name and version of the sender's SDK."""
    request_timestamp: bytes = b""
    """When it was sent by its sender's clock."""
    results: EventResults | None = None
    """Set by the intake: complete once the request is acknowledged."""


@dataclass(slots=True)
class OtlpHead:
    """What the head of a request with log records of OpenTelemetry says
    (docs/reference/otlp.md).
    """

    authorization: bytes = b""
    protobuf: bool = False
    """Whether the body, and with it the answer's, is in protobuf; else in JSON."""
    results: EventResults | None = None
    """Set by the intake."""


@dataclass(slots=True)
class Incoming:
    """One request's body as a source received it, with what is needed to decode it."""

    body: bytes
    query: bytes = b""
    """The query string, without the question mark, as it was on the wire."""
    content_type: bytes = b""
    content_encoding: bytes = b""
    client: str | None = None
    """The sender's address if it may be stamped as `$ip`: globally routable, and stamping is on."""
    source: str = "http"
    ack: AckLevel | None = None
    """The level that the sender requests, if it is higher than the configured one."""
    replayed: ReplayedDeadLetter | None = None
    """Set if this is a replayed dead letter: it is not received anew, and if it is rejected at
    receipt again, `accept` raises.
    """
    head: V1Head | OtlpHead | None = None
    """Set if the body is one of a protocol of its own, whose answers say what became of the
    events: v1 or OTLP.
    """
    path: RequestPath | None = None
    """The forwarders that it has passed; None: it comes from its sender."""
    event: bytes = b""
    """The name of an event that has none, as JSON text; empty if such an event is invalid."""


@runtime_checkable
class PatientWaiter(Protocol):
    """An `AckCallback` that can wait longer: a request with a large body takes its time."""

    def __call__(self, error: Backpressure | None) -> None:
        """The chunk is held at the level that was asked for, or was rejected with `error`."""

    @property
    def sender(self) -> Hashable:
        """The sender of the request: senders take turns."""

    @property
    def origin(self) -> object:
        """The connection that it came on; None once that is gone."""

    def postpone(self, seconds: float) -> None:
        """Allow the answer so many more seconds."""

    def failed(self, error: Exception) -> None:
        """Called instead of the object itself, with what `RequestIntake.accept` would
        have raised.
        """


class RequestIntake(Protocol):
    """Accepts requests into the pipeline, whole or not at all."""

    def accept(self, incoming: Incoming, callback: AckCallback) -> bool:
        """Accept the request's events; whether the required level of acknowledgement is reached
        already.

        False: `callback` will be called once, later. Keeps nothing of `incoming` itself, and may
        take the body out of it.

        Raises `InvalidRequest`, `InvalidToken`, `RequestTooLarge`, `UnsupportedMedia` or a
        `Backpressure`; then nothing was accepted, and `callback` is not called. Where decoding
        takes long, a `PatientWaiter` gets the error later.
        """


class ReadingSource(Protocol):
    """What the pipeline asks of a source that reads by itself, used on the loop."""

    def start(self) -> None:
        """Begin to read, and hand over what is read."""

    def stop_reading(self) -> None:
        """Read nothing more; what was read is still handed over and settled. May come twice."""

    async def close(self) -> None:
        """End, once nothing is delivered any more. Cancellation leaves nothing open."""


class Buffer(Protocol):
    """Holds pending events. It owns an event from `offer` until `settle`, in flight or not."""

    on_arrival: Callable[[], None]
    """Called when events have come to a queue other than by `offer`: they were written, or read
    back. Delivery sets it.
    """

    def offer(self, chunks: Sequence[Chunk], held: AckCallback | None = None) -> bool:
        """Take all of `chunks` or none; whether they are held already, as safely as this buffer
        can.

        False: `held` is called once, later; until then they can't be taken from their queues, and
        `count` doesn't count them. Without `held` the buffer answers for them from now on, and
        they count at once. Raises `BufferFull`, taking none.
        """

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises what `offer` would raise now, with the same chunks."""

    def cost(self, chunk: Chunk) -> int:
        """What the chunk counts for against the limit, in bytes."""

    def queue(self, lane: Lane) -> LaneQueue:
        """The lane's chunks in memory, oldest first. Whoever takes one from it must settle it, or
        put it back in order.
        """

    def waiting_lanes(self) -> Collection[Lane]:
        """The lanes that have pending chunks, in memory or not."""

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts`, which hold the same events, stand for `chunk`. The caller updates
        the queue.
        """

    def settle(self, chunks: Sequence[Chunk], fate: Fate | DropCause) -> None:
        """Forget chunks of one lane: they were delivered, dead-lettered or dropped. Exactly once
        for each chunk or its parts.

        Their acks count them.
        """

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Remove the pending chunks that have one of these acks from their queues, and return
        them: the caller settles them.

        `lane`: only those of this one.
        """

    def drop_oldest(self, lane: Lane | None) -> list[Chunk]:
        """Remove the oldest chunk, of `lane` or of all, from its queue: the caller settles it.
        Empty if none is pending.
        """

    def oldest(self, lane: Lane) -> float | None:
        """When the oldest pending event was received, wall-clock seconds; None if none
        is pending.
        """

    def count(self, lane: Lane) -> int:
        """Buffered events of the lane, in flight or not."""


class ResendQueue(Protocol):
    """What delivery holds of a buffer's chunks, to be sent again."""

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        """Take back the chunks with one of these acks, in `lane` or any, that aren't in flight: the
        caller settles them.
        """


class DeadLetters(Protocol):
    """Where events go that can't be delivered."""

    def add(self, dead_letters: Sequence[DeadLetter]) -> bool:
        """Keep all of the letters, or none and return False: there is no room, or they can't be
        written. Counts nothing in the books.

        They are durable before any record that says that their events are settled.
        """


class Sink(Protocol):
    """Sends batches to the upstream."""

    async def send(self, batch: Batch) -> Reply:
        """Make one attempt. What the network or the upstream does is in the reply, never raised.
        Cancelling drops the connection.
        """


class Ledger(Protocol):
    """The books: received = delivered + buffered + dead-lettered + dropped, per lane."""

    def receive(self, lane: Lane | None, source: str, count: int) -> None:
        """Events were received (accepted, or kept as dead letters at receipt)."""

    def deliver(self, lane: Lane, count: int) -> None:
        """Events were delivered."""

    def dead_letter(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events became dead letters."""

    def restore(self, lane: Lane, reason: Reason, count: int) -> None:
        """Dead letters are in the buffer again."""

    def drop_at_receipt(
        self, lane: Lane | None, source: str, reason: DropCause, count: int
    ) -> None:
        """Events were received and dropped at once."""

    def drop(self, lane: Lane | None, reason: DropCause, count: int) -> None:
        """Events were dropped."""
