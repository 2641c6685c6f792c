"""What the layers ask of each other, as protocols. Implementations are wired together in `runtime/pipeline.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forwarder.core.batch import Batch
from forwarder.core.event import Chunk, Lane
from forwarder.core.lane_queue import LaneQueue
from forwarder.core.outcome import Reply


class Ordering(StrEnum):
    """What a lane promises about order (architecture: Order)."""

    NONE = "none"
    PER_DISTINCT_ID = "per_distinct_id"
    STRICT = "strict"


class Reason(StrEnum):
    """Why an event became a dead letter (closed set; documented in docs/operations.md)."""

    MISSING_EVENT = "missing_event"
    MISSING_DISTINCT_ID = "missing_distinct_id"
    INVALID_EVENT = "invalid_event"
    LONE_SURROGATE = "lone_surrogate"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    GAVE_UP = "gave_up"
    UNDELIVERED_AT_EXIT = "undelivered_at_exit"


class DropReason(StrEnum):
    """Why an event was dropped (closed set; documented in docs/operations.md)."""

    INVALID_OVERFLOW = "invalid_overflow"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that can't be delivered, with its original bytes. `why` quotes whoever refused it; `lane` is None if none could be told."""

    reason: Reason
    lane: Lane | None
    data: bytes
    at: float
    why: str = ""
    source: str = "http"


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


class Intake(Protocol):
    """Takes requests into the pipeline, whole or not at all."""

    def take(self, incoming: Incoming) -> None:
        """Return when every event of the request is in the buffer or among the dead letters.

        Keeps nothing of `incoming` itself, and may take the body out of it.

        Raises `InvalidRequest`, `InvalidToken`, `RequestTooLarge` or a `Backpressure`; then nothing was taken.
        """


class Buffer(Protocol):
    """Where events wait. It owns an event from `offer` until `settle`, in flight or not."""

    def offer(self, chunks: Sequence[Chunk]) -> None:
        """Take all of `chunks` or none. Raises `BufferFull`, taking none."""

    def queue(self, lane: Lane) -> LaneQueue:
        """The lane's waiting chunks, oldest first. Whoever takes one from it must settle it, or put it back at its place."""

    def waiting_lanes(self) -> Collection[Lane]:
        """The lanes that have waiting chunks."""

    def replace(self, chunk: Chunk, parts: Sequence[Chunk]) -> None:
        """From now on `parts`, which hold the same events, stand for `chunk`. The queue is the caller's to mend."""

    def settle(self, chunks: Sequence[Chunk]) -> None:
        """Forget chunks of one lane: they were delivered, buried or dropped. Exactly once for each chunk or its parts."""

    def count(self, lane: Lane) -> int:
        """Events of the lane that are held, in flight or waiting."""


class DeadLetters(Protocol):
    """Where events go that can't be delivered."""

    def bury(self, letters: Sequence[DeadLetter]) -> bool:
        """Keep all of the letters, or none and answer False: there is no room. Counts nothing in the books."""


class Sink(Protocol):
    """The way to the upstream."""

    async def send(self, batch: Batch) -> Reply:
        """Make one attempt. What the network or the upstream does is never raised: it is in the reply. Cancelling drops the connection."""


class Books(Protocol):
    """The accounts: received = delivered + buffered + dead-lettered + dropped, per lane."""

    def receive(self, lane: Lane | None, source: str, count: int) -> None:
        """Events came in (accepted, or kept as dead letters at receipt)."""

    def deliver(self, lane: Lane, count: int) -> None:
        """The upstream took events."""

    def bury(self, lane: Lane | None, reason: Reason, count: int) -> None:
        """Events became dead letters."""

    def drop(self, lane: Lane | None, reason: DropReason, count: int) -> None:
        """Events were dropped."""
