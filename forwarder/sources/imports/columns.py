"""Finished events in columns: what is done with every event is done with a whole column at once; single events are built on request.

Invariant: all columns have the same length, except `data`, which is empty once it is no longer needed, and `parts`, which is empty where
each event is the first of its record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, overload

from forwarder.sources.imports.times import DAY
from forwarder.wire.identity import ids_of

MERGES: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously"})
"""Events that make one person of two: each has a second id, whose order is kept too."""


class EventBounds(NamedTuple):
    """What some events are within: most questions about each of them are answered by it for all at once."""

    names: dict[str, int]
    """How many have each name."""
    first: int
    last: int
    """The earliest and the latest time."""

    @classmethod
    def of(cls, names: Sequence[str], times: Sequence[int]) -> EventBounds:
        """The bounds of events with these names and times, at least one."""
        return cls(Counter(names), min(times), max(times))


class FinishedEvent(NamedTuple):
    """An event as it is sent, and where it came from."""

    time: int
    """Microseconds since 1970, UTC."""
    distinct_id: str
    event: str
    uuid: str
    data: bytes
    """Its JSON, as it stands in a request's `batch`."""
    file: int
    """The number of its file, in the order of the source."""
    line: int
    number: int
    """Of its record in its file, from 0: what a checkpoint counts in."""
    part: int = 0
    """Which of the events of its record this is."""
    turn: int = -1
    """Of events that are sorted: the number in the order of time, over all files, from 0."""

    @property
    def day(self) -> int:
        """The UTC day, counted from 1970."""
        return self.time // DAY

    @property
    def second_ids(self) -> frozenset[str]:
        """Of one of `MERGES`: the ids that it is ordered with, beside its own. To be asked while it has its `data`."""
        return ids_of(self.data) - {self.distinct_id}


class EventColumns(Sequence[FinishedEvent]):
    """Events of one file, in its order; none of them is of a sorted import."""

    __slots__ = ("_bounds", "data", "distinct_ids", "file", "lines", "names", "numbers", "parts", "times", "uuids")

    def __init__(  # noqa: PLR0917 - one for each column
        self,
        file: int,
        times: Sequence[int],
        distinct_ids: Sequence[str],
        names: Sequence[str],
        uuids: Sequence[str],
        data: Sequence[bytes],
        lines: Sequence[int],
        numbers: Sequence[int],
        parts: Sequence[int] = (),
        bounds: EventBounds | None = None,
    ) -> None:
        """See `FinishedEvent`; `bounds`, if they are known."""
        self.file = file
        self.times = times
        self.distinct_ids = distinct_ids
        self.names = names
        self.uuids = uuids
        self.data = data
        self.lines = lines
        self.numbers = numbers
        self.parts = parts
        self._bounds = bounds

    @classmethod
    def of(cls, events: Sequence[FinishedEvent]) -> EventColumns:
        """Some events of one file."""
        if not events:
            return cls(0, (), (), (), (), (), (), ())
        times, distinct_ids, names, uuids, data, files, lines, numbers, parts, _ = zip(*events, strict=True)
        return cls(files[0], times, distinct_ids, names, uuids, data, lines, numbers, parts)

    @property
    def bounds(self) -> EventBounds:
        """What all of them are within; there is at least one."""
        if self._bounds is None:
            self._bounds = EventBounds.of(self.names, self.times)
        return self._bounds

    @property
    def size(self) -> int:
        """Bytes of `data`, without commas."""
        return sum(map(len, self.data))

    def joined(self) -> bytes:
        """The events' JSON joined by commas."""
        return b",".join(self.data)

    def ids(self) -> frozenset[str]:
        """All ids that the events are ordered with: their own, and the second ids of those that merge persons (while there is `data`)."""
        own = frozenset(self.distinct_ids)
        if not self.times or MERGES.isdisjoint(self.bounds.names):
            return own
        return own.union(*[self[at].second_ids for at, name in enumerate(self.names) if name in MERGES])

    def only(self, indexes: Sequence[int]) -> EventColumns:
        """Some of the events, in that order."""
        return EventColumns(self.file, *([column[at] for at in indexes] if column else () for column in self._columns))  # type: ignore[arg-type]  # of many types

    def without_data(self) -> EventColumns:
        """All but the bytes."""
        columns = self.times, self.distinct_ids, self.names, self.uuids, (), self.lines, self.numbers, self.parts
        return EventColumns(self.file, *columns, self._bounds)

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, index: int) -> FinishedEvent: ...
    @overload
    def __getitem__(self, index: slice) -> EventColumns: ...
    def __getitem__(self, index: int | slice) -> FinishedEvent | EventColumns:
        """One event, or some neighbours."""
        if isinstance(index, slice):
            return EventColumns(self.file, *(column[index] for column in self._columns))  # type: ignore[arg-type]  # of many types
        texts = self.distinct_ids[index], self.names[index], self.uuids[index], self.data[index] if self.data else b""
        part = self.parts[index] if self.parts else 0
        return FinishedEvent(self.times[index], *texts, self.file, self.lines[index], self.numbers[index], part)

    def __iter__(self) -> Iterator[FinishedEvent]:
        data, parts = self.data or repeat(b""), self.parts or repeat(0)
        rows = zip(self.times, self.distinct_ids, self.names, self.uuids, data, repeat(self.file), self.lines, self.numbers, parts)
        return (FinishedEvent(*row) for row in rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def _columns(self) -> tuple[Sequence[object], ...]:
        return self.times, self.distinct_ids, self.names, self.uuids, self.data, self.lines, self.numbers, self.parts
