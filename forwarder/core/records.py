"""Records: what a source reads from a log of them (Kafka, a file), and what it asks of the intake.

A source hands over neighbouring records of one partition (or file) as one unit. The unit is taken whole or not at all, and is settled as
one: when each of its events is delivered, is a durable dead letter, or (at the level `disk`) is durable in the buffer. "Now" is a record's
own time and uuids come from its place, so that a unit that is read twice yields the same bytes twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from forwarder.core.ack import AckCallback, AckLevel
from forwarder.core.event import Lane
from forwarder.core.ports import Reason


class RecordFacts(NamedTuple):
    """What is known of a record beside its bytes; made for many records, so that it has to be cheap."""

    name: str
    """Its place, such as `cluster/topic/partition/offset`: what uuids are derived from, and what its dead letters are found by."""
    at: float | None
    """Its own time, seconds since 1970; None if it has none: then an event without a time of its own can't go on."""
    api_key: str | None = None
    """The project key of events that name none."""
    distinct_id: str | None = None
    """The distinct_id of events that have none."""


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that its source could make no event of."""

    facts: RecordFacts
    reason: Reason
    data: bytes
    """The record as it was read."""
    why: str
    attributes: str = ""
    """See `Records.attributes`."""


class Records(Protocol):
    """A unit: some neighbouring records."""

    values: Sequence[bytes]
    """Each record's body: whatever the HTTP listener takes as one."""
    api_key: str | None
    """The project key of all events that name none; None: `facts` may know one, record by record."""
    foreign: bool
    """Whether `values` were made of foreign records: then `token` among an event's properties is a field of the record's, and no key."""
    refused: Sequence[RefusedRecord]
    """Records that belong to the unit and have no value in `values`."""

    def facts(self, index: int) -> RecordFacts:
        """What is known of the record of `values[index]`. Asked only for records that aren't complete as they are."""

    def attributes(self, index: int) -> str:
        """What is to be kept with dead letters of `values[index]`, as the text of a JSON object: where it was, its key and headers."""


class Taken(Protocol):
    """A unit that was taken and isn't settled."""

    at: float
    """When it was taken, wall-clock seconds."""

    @property
    def lanes(self) -> Collection[Lane]:
        """The lanes of its events."""


class RecordIntake(Protocol):
    """Takes records into the pipeline."""

    def take(self, records: Records, waiter: AckCallback, level: AckLevel, given_up: Collection[Lane] = ()) -> Taken | None:
        """Take all events of the records; None if they are settled at `level` (`delivered` or `disk`) already.

        Otherwise `waiter(None)` is called once, later, when they are; or with an error, if the buffer couldn't keep them:
        then nothing of them was taken. There is no limit of time. What of the records is no good becomes a dead letter, and is part of
        what is waited for. `given_up`: lanes that were halted for too long; where the buffer has no room for their events, those become
        dead letters (`lane_halted`), so that they don't hold up all that comes behind them.

        Raises a `Backpressure`; then nothing was taken, nothing was counted, and nobody will be called: for `TogetherTooLarge` the unit has
        to come again in smaller parts, for the others it is to come again as it is (for `StillDecoding` the same object, until it was
        taken or nobody asks any more). Nothing else is ever raised for what the records hold.
        """

    def give_back(self, units: Collection[Taken]) -> int:
        """Let go of units: their waiters won't be called. How many events were still waiting, and have been taken out.

        Those are dropped as `returned_to_broker`. What is in flight, or has a part in the buffer's files only, goes its way.
        """

    def bury(self, units: Sequence[Taken], lane: Lane, why: str) -> bool:
        """Make dead letters (`lane_halted`) of what waits of one lane's events in these units. False if there is no room for all of them.

        Units that have nothing else are settled by that. What is in flight goes its way.
        """

    def halted(self) -> Mapping[Lane, float]:
        """The lanes that stand still, and since when (wall-clock seconds)."""
