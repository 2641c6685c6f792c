"""Records: what a source reads from a log of them (Kafka, a file), and what it asks of the intake.

`RecordIntake` reads records as events; `EventIntake` is for a source that makes the events itself.

A source hands over neighbouring records of one partition (or file) as one batch. The batch
is accepted whole or not at all, and is settled as one: when each of its events is
delivered, is a durable dead letter, or (at the level `disk`) is durable in the buffer.
"Now" is a record's own time and uuids come from its position and time, so that a batch that is read
twice yields the same bytes twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.event import Chunk, Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.core.stamps import derived_uuid, is_moment


class RecordFacts(NamedTuple):
    """What is known of a record beside its bytes; made for many records, so it has to be cheap."""

    name: str
    """Its position, such as `cluster/topic/partition/offset`: its dead letters are found by it."""
    at: float | None
    """Its own time, seconds since 1970; None if it has none: then an event without
    a timestamp is rejected.
    """
    api_key: str | None = None
    """The project key of events that name none."""
    distinct_id: str | None = None
    """The distinct_id of events that have none."""
    identity: str = ""
    """What uuids are derived from, where a position doesn't name one record for ever; empty: from
    `name`.
    """

    @property
    def time(self) -> float | None:
        """Its own time, if the calendar has it."""
        return self.at if is_moment(self.at) else None

    @property
    def usable_id(self) -> str:
        """The distinct_id of events without one; empty if its source knows none that is text."""
        text = self.distinct_id or ""
        try:
            text.encode()
        except UnicodeEncodeError:
            return ""
        return text if text.strip() else ""

    def uuid(self, index: int) -> bytes:
        """The uuid of the event with this index in the record."""
        return derived_uuid(f"{self.identity or self.name}/{index}")


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that its source could make no event of."""

    facts: RecordFacts
    reason: Reason
    data: bytes
    """The record as it was read."""
    why: str
    attributes: str = ""
    """See `RecordBatch.attributes`."""


class RecordBatch(Protocol):
    """Some neighbouring records."""

    values: Sequence[bytes]
    """Each record's body: whatever the HTTP listener accepts as one."""
    api_key: str | None
    """The project key of all events that name none; None: `facts` may know one, record by record.
    """
    foreign: bool
    """Whether `values` were mapped from foreign records: then `token` among an event's properties
    is a field of the record, and no key.
    """
    rejected: Sequence[RejectedRecord]
    """Records that belong to the batch and have no value in `values`."""

    def facts(self, index: int) -> RecordFacts:
        """What is known of the record of `values[index]`. Called only for records that are not
        complete as they are.
        """

    def names(self, indexes: Sequence[int]) -> Sequence[str]:
        """What the uuids of each of these records are derived from: for very many of them, that
        only this is needed of, `facts` would take too long.
        """

    def times(self, indexes: Sequence[int]) -> Sequence[float | None]:
        """`RecordFacts.at` of each of these records."""

    def attributes(self, index: int) -> str:
        """What is kept with dead letters of `values[index]`, as the text of a JSON object: its
        position, key and headers.
        """


class AcceptedBatch(Protocol):
    """A batch of records that was accepted and is not settled."""

    @property
    def at(self) -> float:
        """When it was accepted, wall-clock seconds."""

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes of its events."""


class RecordIntake(Protocol):
    """Accepts records into the pipeline."""

    def accept(
        self,
        records: RecordBatch,
        callback: AckCallback,
        level: AckLevel,
        given_up: Collection[Lane] = (),
    ) -> AcceptedBatch | None:
        """Accept all events of the records; None if they are settled at `level` (`delivered` or
        `disk`) already.

        Otherwise `callback` is called once, later: with None when they are settled, or with an
        error if the buffer couldn't keep them; then nothing of them was accepted. There is no
        limit of time. What is invalid in the records becomes a dead letter, which is part of what
        is waited for. `given_up`: lanes that were halted for too long; where the buffer has no
        room for their events, those become dead letters (`lane_halted`), so that they don't block
        what comes after them.

        Raises a `Backpressure`; then nothing was accepted, nothing was counted, and `callback` is
        not called. After `TogetherTooLarge` the source repeats the batch in smaller parts, else as
        it is (after `StillDecoding` the same object, until it is accepted or not needed any more).
        Nothing else is ever raised for what the records hold.
        """

    def give_back(self, batches: Collection[AcceptedBatch]) -> int:
        """Release batches that their source reads again: their callbacks are not called, and
        their pending events are dropped as `returned_to_broker`. Return the number of those.

        Events that are in flight, or only in the buffer's files, are still delivered.
        """

    def keep(self, batches: Collection[AcceptedBatch]) -> None:
        """Release batches whose records can't be read again: their callbacks are not called. Their
        events stay in the buffer. They are delivered as a request's events are, and become dead
        letters where those do.
        """

    def dead_letter(self, batches: Sequence[AcceptedBatch], lane: Lane, why: str) -> bool:
        """Make dead letters (`lane_halted`) of one lane's pending events in these batches. False
        if there is no room for all of them.

        Batches that have nothing else are settled by that. What is in flight stays so.
        """

    def halted(self) -> Mapping[Lane, float]:
        """The halted lanes, and since when (wall-clock seconds)."""


class EventIntake(Protocol):
    """Accepts events that a source has made of its records, and checked:
    nothing is decoded or stamped.
    """

    def accept_events(
        self, chunks: Sequence[Chunk], dead_letters: Sequence[DeadLetter], callback: AckCallback
    ) -> AcceptedBatch | None:
        """Accept all events of the chunks, and all dead letters; None if everything is settled
        already, as if there is nothing.

        Otherwise `callback` is called once, later, with None: when each event is delivered or is a
        durable dead letter, and so are `dead_letters`. There is no limit of time. The chunks are
        the buffer's from now on; their `ack` is replaced.

        Raises a `Backpressure` if there is no room now; then nothing was accepted and nothing was
        counted, `callback` is not called, and the source repeats all of it.
        """
