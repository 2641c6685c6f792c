"""Batches of one UTC day each, cut from events that come roughly in order (wire facts: What the service does not tell).

Invariants: a batch's events are of one day, in the order in which they came. Batches leave in the order in which they were opened, so
what hasn't left is all after the first event of the oldest open batch. Two events of one distinct_id leave in the order in which they came,
also where their days differ. Open are at most `max_days` batches, each below its limits, unless it is one event that alone is over
`max_bytes`.

How the order is kept: an event may join an open batch only if no batch that was opened later holds one of its distinct_id. Else that
batch leaves, with those before it, and the day gets a new one. Exports of neighbouring days in any order cost a few small batches so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forwarder.migration.finishing import Finished
from forwarder.migration.moments import DAY


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch leaves: before it would have more than `max_bytes` of events with the commas between them, and at `max_events`."""

    max_bytes: int
    max_events: int
    max_days: int = 4
    """How many may be open at once."""


@dataclass(frozen=True, slots=True)
class DayBatch:
    """Events of one day."""

    day: int
    """The UTC day, counted from 1970."""
    events: Sequence[Finished]
    size: int
    """Bytes of `data`."""

    @property
    def data(self) -> bytes:
        """The events' JSON joined by commas, as it stands in a request's `batch`."""
        return b",".join([event.data for event in self.events])

    @property
    def ids(self) -> frozenset[str]:
        """The distinct_ids of the events: two batches that share one have to be delivered in turn."""
        return frozenset([event.distinct_id for event in self.events])


class _Open:
    """A batch that is being filled; `serial` counts batches as they were opened."""

    __slots__ = ("day", "events", "serial", "size")

    def __init__(self, day: int, serial: int) -> None:
        self.day = day
        self.serial = serial
        self.events: list[Finished] = []
        self.size = -1  # the first event has no comma


class DayBatches:
    """Takes events in the order of the source, gives batches in the order in which they have to leave."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._open: dict[int, _Open] = {}  # by day, in the order in which they were opened
        self._latest: dict[str, int] = {}  # of a distinct_id: the serial of the last batch that it is in
        self._serials = 0

    @property
    def oldest(self) -> Finished | None:
        """The first event that hasn't left: everything before it has. None if nothing waits."""
        return next((batch.events[0] for batch in self._open.values()), None)

    def add(self, event: Finished) -> Sequence[DayBatch]:
        """Take an event, and give the batches that leave now: most often none."""
        left: list[DayBatch] = []
        day, size = event.time // DAY, len(event.data) + 1
        batch = self._open.get(day)
        if batch is not None and (
            batch.size + size > self.limits.max_bytes or self._latest.get(event.distinct_id, batch.serial) > batch.serial
        ):
            left = self._leave(batch.serial)
            batch = None
        if batch is None:
            if len(self._open) >= self.limits.max_days:
                left += self._leave(next(iter(self._open.values())).serial)
            self._serials += 1
            batch = self._open[day] = _Open(day, self._serials)
        batch.events.append(event)
        batch.size += size
        self._latest[event.distinct_id] = batch.serial
        if len(batch.events) >= self.limits.max_events or batch.size >= self.limits.max_bytes:
            left += self._leave(batch.serial)
        return left

    def flush(self) -> Sequence[DayBatch]:
        """All that is left, at the end of the source."""
        return self._leave(self._serials)

    def _leave(self, serial: int) -> list[DayBatch]:
        """The batch with this serial leaves, after all that were opened before it."""
        leaving = [batch for batch in self._open.values() if batch.serial <= serial]
        for batch in leaving:
            del self._open[batch.day]
            for event in batch.events:
                if self._latest.get(event.distinct_id) == batch.serial:
                    del self._latest[event.distinct_id]
        return [DayBatch(batch.day, batch.events, batch.size) for batch in leaving]
