"""Batches of one UTC day each, cut from events that come roughly in order (wire facts: What the service does not tell).

Invariants: a batch's events are of one day, in the order in which they came. Batches leave in the order in which they were opened, so
what hasn't left is all after the first event of the oldest open batch. Two events of one id leave in the order in which they came, also
where their days differ; an event that makes one person of two (`MERGES`) has two ids. Open are at most `max_days` batches, each below its
limits, unless it is one event that alone is over `max_bytes`.

How the order is kept: an event may join an open batch only if no batch that was opened later holds one of its ids. Else that
batch leaves, with those before it, and the day gets a new one. Exports of neighbouring days in any order cost a few small batches so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from operator import attrgetter
from typing import Final, overload

from forwarder.sources.imports.columns import MERGES, EventColumns, FinishedEvent
from forwarder.sources.imports.times import DAY

_file_of: Final = attrgetter("file")
_MANY: Final = 8
"""Neighbours of one day that are worth being added together."""


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
    events: Sequence[FinishedEvent]
    size: int
    """Bytes of `data`."""
    ids: frozenset[str]
    """The ids that order is kept by, of all events: two batches that share one have to be delivered in turn."""

    @property
    def data(self) -> bytes:
        """The events' JSON joined by commas, as it stands in a request's `batch`."""
        return joined_data(self.events)


class _OpenBatch:
    """A batch that is being filled; `serial` counts batches as they were opened.

    Its events are in `stretches`, and after these in `events`.
    """

    __slots__ = ("count", "day", "events", "second_ids", "serial", "size", "stretches")

    def __init__(self, day: int, serial: int) -> None:
        self.day = day
        self.serial = serial
        self.stretches: list[EventColumns] = []
        self.events: list[FinishedEvent] = []
        self.second_ids: set[str] = set()
        self.count = 0
        self.size = -1  # the first event has no comma

    @property
    def first(self) -> FinishedEvent:
        """The first event."""
        return self.stretches[0][0] if self.stretches else self.events[0]

    @property
    def distinct_ids(self) -> frozenset[str]:
        """Of all events."""
        return frozenset().union(*[each.distinct_ids for each in self.stretches], [event.distinct_id for event in self.events])

    def put(self, events: EventColumns) -> None:
        """Take neighbours."""
        self._gather()
        self.stretches.append(events)
        if not MERGES.isdisjoint(events.bounds.names):
            self.second_ids.update(*[events[at].second_ids for at, name in enumerate(events.names) if name in MERGES])
        self.count += len(events)
        self.size += events.size + len(events)

    def all(self) -> Sequence[FinishedEvent]:
        """All of them: a list, if they came one by one."""
        if not self.stretches:
            return self.events
        self._gather()
        return JoinedColumns(self.stretches)

    def _gather(self) -> None:
        if self.events:
            self.stretches += JoinedColumns.of(self.events).stretches
            self.events = []


class DayBatches:
    """Takes events in the order of the source, gives batches in the order in which they have to leave."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._open: dict[int, _OpenBatch] = {}  # by day, in the order in which they were opened
        self._latest: dict[str, int] = {}  # of an id: the serial of the last batch that it is in
        self._unlisted: list[_OpenBatch] = []  # batches of which the ids aren't all in `_latest`: they are added on demand
        self._serials = 0

    @property
    def oldest(self) -> FinishedEvent | None:
        """The first event that hasn't left: everything before it has. None if nothing waits."""
        return next((batch.first for batch in self._open.values()), None)

    def add(self, event: FinishedEvent) -> Sequence[DayBatch]:
        """Take an event, and give the batches that leave now: most often none."""
        left: list[DayBatch] = []
        day, size = event.time // DAY, len(event.data) + 1
        batch = self._open.get(day)
        if self._unlisted:
            self._list_ids()
        if batch is not None and (
            batch.size + size > self.limits.max_bytes
            or self._latest.get(event.distinct_id, batch.serial) > batch.serial
            or (event.event in MERGES and self._is_later(event.second_ids, batch.serial))
        ):
            left = self._leave(batch.serial)
            batch = None
        if batch is None:
            batch = self._opened(day, left)
        batch.events.append(event)
        batch.count += 1
        batch.size += size
        self._latest[event.distinct_id] = batch.serial
        if event.event in MERGES:
            batch.second_ids |= event.second_ids
            self._latest.update(dict.fromkeys(event.second_ids, batch.serial))
        return self._left_full(batch, left)

    def extend(self, events: EventColumns) -> Sequence[DayBatch]:
        """Take neighbouring events: the same as one by one, and much faster for many of one day."""
        left: list[DayBatch] = []
        for day, stretch in _by_day(events):
            batch = self._open.get(day)
            if len(stretch) < _MANY or (batch is not None and batch.serial < self._serials):
                for event in stretch:  # each may share its id with a batch that was opened later
                    left += self.add(event)
            else:
                left += self._extend(day, stretch)
        return left

    def _extend(self, day: int, events: EventColumns) -> list[DayBatch]:
        """Take events of a day whose batch, if there is one, was opened last: no order can keep them from joining it."""
        left: list[DayBatch] = []
        while events:
            batch = self._open.get(day)
            count = 0 if batch is None else self._room(batch, events)
            if batch is None or not count:
                left += [] if batch is None else self._leave(batch.serial)
                batch = self._opened(day, left)
                count = max(1, self._room(batch, events))  # one that alone is too large goes alone
            batch.put(events if count == len(events) else events[:count])
            if batch not in self._unlisted:
                self._unlisted.append(batch)
            left = self._left_full(batch, left)
            events = events[count:]
        return left

    def _room(self, batch: _OpenBatch, events: EventColumns) -> int:
        """How many of these events fit into the batch."""
        count = min(self.limits.max_events - batch.count, len(events))
        room = self.limits.max_bytes - batch.size
        neighbours = events if count == len(events) else events[:count]
        if neighbours.size + count > room:
            return bisect_right(list(accumulate([len(each) + 1 for each in neighbours.data])), room)
        return count

    def _opened(self, day: int, left: list[DayBatch]) -> _OpenBatch:
        """A new batch; where too many are open, the oldest leaves."""
        if len(self._open) >= self.limits.max_days:
            left += self._leave(next(iter(self._open.values())).serial)
        self._serials += 1
        batch = self._open[day] = _OpenBatch(day, self._serials)
        return batch

    def _left_full(self, batch: _OpenBatch, left: list[DayBatch]) -> list[DayBatch]:
        if batch.count >= self.limits.max_events or batch.size >= self.limits.max_bytes:
            left += self._leave(batch.serial)
        return left

    def _list_ids(self) -> None:
        for batch in self._unlisted:  # in the order in which they were opened
            self._latest.update(dict.fromkeys(batch.distinct_ids | batch.second_ids, batch.serial))
        self._unlisted.clear()

    def flush(self) -> Sequence[DayBatch]:
        """All that is left, at the end of the source."""
        return self._leave(self._serials)

    def _leave(self, serial: int) -> list[DayBatch]:
        """The batch with this serial leaves, after all that were opened before it."""
        leaving = [batch for batch in self._open.values() if batch.serial <= serial]
        for batch in leaving:
            del self._open[batch.day]
        self._unlisted = [batch for batch in self._unlisted if batch.serial > serial]
        if not self._open:
            self._latest.clear()
        return [self._left(batch) for batch in leaving]

    def _left(self, batch: _OpenBatch) -> DayBatch:
        ids = batch.distinct_ids | batch.second_ids if batch.second_ids else batch.distinct_ids
        if self._latest:
            for each in ids:
                if self._latest.get(each) == batch.serial:
                    del self._latest[each]
        return DayBatch(batch.day, batch.all(), batch.size, ids)

    def _is_later(self, ids: frozenset[str], serial: int) -> bool:
        return any(self._latest.get(each, serial) > serial for each in ids)


def _by_day(events: EventColumns) -> Iterator[tuple[int, EventColumns]]:
    """The events in stretches of neighbours of one day."""
    if not events:
        return
    first, last = events.bounds.first // DAY, events.bounds.last // DAY
    if first == last:
        yield first, events
        return
    days = [time // DAY for time in events.times]
    start = 0
    for end in range(1, len(days) + 1):
        if end == len(days) or days[end] != days[start]:
            yield days[start], events[start:end]
            start = end


class JoinedColumns(Sequence[FinishedEvent]):
    """Events of any files, in stretches of neighbours."""

    __slots__ = ("_count", "stretches")

    def __init__(self, stretches: Sequence[EventColumns]) -> None:
        self.stretches = stretches
        self._count = sum(map(len, stretches))

    @classmethod
    def of(cls, events: Iterable[FinishedEvent]) -> JoinedColumns:
        """Some events."""
        return (
            events
            if isinstance(events, JoinedColumns)
            else cls([EventColumns.of(list(group)) for _, group in groupby(events, key=_file_of)])
        )

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> FinishedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> JoinedColumns: ...
    def __getitem__(self, index: int | slice) -> FinishedEvent | JoinedColumns:
        """One event, or some neighbours."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step != 1:
                raise ValueError("only neighbours can be sliced")
            return JoinedColumns([part for part in _cut(self.stretches, start, stop) if part])
        at = range(self._count)[index]
        return next(part[0] for part in _cut(self.stretches, at, at + 1) if part)

    def __iter__(self) -> Iterator[FinishedEvent]:
        return chain.from_iterable(self.stretches)


def joined_data(events: Sequence[FinishedEvent]) -> bytes:
    """The events' JSON joined by commas."""
    if isinstance(events, JoinedColumns):
        return b",".join([each.joined() for each in events.stretches])
    return b",".join([event.data for event in events])


def without_data(events: Sequence[FinishedEvent]) -> Sequence[FinishedEvent]:
    """The events without their JSON, which takes the most room by far."""
    if isinstance(events, JoinedColumns):
        return JoinedColumns([stretch.without_data() for stretch in events.stretches])
    return [event._replace(data=b"") for event in events]


def _cut(stretches: Iterable[EventColumns], start: int, stop: int) -> Iterator[EventColumns]:
    for each in stretches:
        yield each[max(0, start) : max(0, stop)]
        start -= len(each)
        stop -= len(each)
